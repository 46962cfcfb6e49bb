//! Restores in place that are killed at each step, finished and undone.

use super::super::barrier_store::test_disk::{Fault, TestDisk, TestFolder};
use super::super::linux_disk::LinuxDisk;
use super::in_place_restore::{
    CheckedSnapshot, InPlaceRestore, RestoreIntent, begin_restore, interrupted_restore,
    restored_content,
};
use super::snapshot_recovery::{SnapshotFinding, findings};
use super::snapshot_store::{SnapshotError, SnapshotStore};
use super::tests_snapshots::{Facts, SnapshotFolder, facts, take, take_before, tenure};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Changes the folder in all ways that a restore must take back.
fn disturb(test: &TestFolder) {
    fs::write(test.path("a/b/deep"), "changed").expect("written");
    fs::remove_file(test.path("link")).expect("there");
    fs::create_dir(test.path("link")).expect("made");
    test.put("link/inside", b"new");
    fs::remove_file(test.path("a/twin")).expect("there");
    fs::remove_file(test.path("run")).expect("there");
    test.put("run/other", b"new");
    // Two files become one with two names.
    fs::remove_file(test.path("two")).expect("there");
    fs::hard_link(test.path("one"), test.path("two")).expect("made");
}

/// A folder of which there is a snapshot, and that was changed since.
struct DisturbedFolder {
    folder: SnapshotFolder,
    dir: OwnedFd,
    /// The snapshot.
    id: String,
    /// The folder as the snapshot has it, and as it is now.
    wanted: BTreeMap<PathBuf, Facts>,
    disturbed: BTreeMap<PathBuf, Facts>,
    /// The numbers of the first and the last step of the last complete restore.
    steps: Cell<(usize, usize)>,
}

impl DisturbedFolder {
    fn new() -> Self {
        let folder = SnapshotFolder::new();
        for name in ["one", "two"] {
            folder.test.put(name, b"the same");
            let file = File::options().write(true).open(folder.test.path(name)).expect("there");
            file.set_modified(std::time::UNIX_EPOCH).expect("set");
        }
        let dir = folder.snapshots();
        let id = take(&folder.guard(TestDisk::default(), 1), &dir, false).expect("taken").id;
        let wanted = facts(&folder.test.path(""));
        disturb(&folder.test);
        let disturbed = facts(&folder.test.path(""));
        Self { folder, dir, id, wanted, disturbed, steps: Cell::new((0, 0)) }
    }

    fn facts(&self) -> BTreeMap<PathBuf, Facts> {
        facts(&self.folder.test.path(""))
    }

    fn interrupted(&self) -> Option<RestoreIntent> {
        interrupted_restore(&SnapshotStore { disk: &LinuxDisk, dir: &self.dir })
    }

    /// Restores the snapshot, or undoes that.
    fn restore(&self, token: u64, undoes: bool) -> Result<RestoreIntent, SnapshotError> {
        self.restore_killed(token, undoes, usize::MAX)
    }

    /// Does so by a guard that is killed at a step, after another one has taken the snapshot of the
    /// folder before: that one makes more steps or fewer, as fast as it is.
    fn restore_killed(
        &self,
        token: u64,
        undoes: bool,
        step: usize,
    ) -> Result<RestoreIntent, SnapshotError> {
        let store = SnapshotStore { disk: &LinuxDisk, dir: &self.dir };
        let wanted = restored_content(&store, &self.id, undoes)?;
        let guard = self.folder.guard(TestDisk::default(), token);
        let before = take_before(&guard, &self.dir, false, Some(wanted.clone()))?.id;
        drop(guard);
        let (id, tenure) = (self.id.clone(), tenure(token + 1));
        let killed = TestDisk::failing(step, Fault::Lasting(libc::EIO));
        let guard = self.folder.guard(killed, token + 1);
        let steps = || guard.disk().steps.lock().len();
        let store = SnapshotStore { disk: guard.disk(), dir: &self.dir };
        let checked = CheckedSnapshot::open(&store, &wanted, &|| ())?;
        let first = steps();
        let announce = || Err("nobody is told here".to_owned());
        let intent = RestoreIntent { id, before, tenure: tenure.to_string() };
        let intent = begin_restore(&store, intent)?;
        InPlaceRestore::run(&guard, &checked, (tenure, &announce), &|| ())?;
        self.steps.set((first, steps()));
        Ok(intent)
    }
}

/// The snapshot of the folder before is taken like each other one, whose steps have a test of their
/// own.
#[test]
fn a_restore_in_place_that_is_killed_at_each_step_is_finished_or_undone() {
    let test = DisturbedFolder::new();
    test.restore(2, false).expect("restored");
    let (first, last) = test.steps.get();
    let is_long = std::env::var_os("LATCHFS_LONG_TESTS").is_some();
    let rest = usize::from(crate::random::random().is_multiple_of(2));
    println!("steps {first} to {last}, rest {rest}");
    assert!(last - first > 60, "{first} to {last}");
    // The short form ends each second one in the other way.
    let ends = |step| [false, true].map(|undoes| (step, undoes)).into_iter();
    let is_made = |(step, undoes): &(usize, bool)| is_long || (step % 2 == rest) == *undoes;
    for (step, undoes) in (first..=last).flat_map(ends).filter(is_made) {
        let test = DisturbedFolder::new();
        let is_over = test.restore_killed(2, false, step).is_ok();
        assert_eq!(is_over, step == last, "step {step}");
        test.folder.recover();
        let store = SnapshotStore { disk: &LinuxDisk, dir: &test.dir };
        let found = findings(&store, |_| false, true).expect("readable");
        let was_interrupted = test.interrupted().is_some();
        if was_interrupted {
            assert_eq!(found, [SnapshotFinding::Restore(test.id.clone())], "step {step}");
        } else {
            assert_eq!(found, []);
            let is_begun = step > first + 20;
            let is_as = if is_begun { &test.wanted } else { &test.disturbed };
            assert_eq!(test.facts(), *is_as, "step {step}");
        }
        match test.restore(4, undoes) {
            Err(SnapshotError::NothingToUndo(_)) => {
                assert!(undoes && !was_interrupted, "step {step}");
            }
            ended => {
                ended.unwrap_or_else(|error| panic!("step {step}: {error}"));
                let wanted = if undoes { &test.disturbed } else { &test.wanted };
                assert_eq!(test.facts(), *wanted, "step {step}");
            }
        }
        assert_eq!(findings(&store, |_| false, true).expect("readable"), []);
    }
}

#[test]
fn an_undo_that_is_killed_at_each_step_is_ended_either_way() {
    // Some files are restored, and others are not.
    let test = DisturbedFolder::new();
    test.restore(2, false).expect("restored");
    let interrupted_at = test.steps.get().1 - 40;
    let interrupted = || {
        let test = DisturbedFolder::new();
        test.restore_killed(2, false, interrupted_at).expect_err("it is killed");
        test.folder.recover();
        assert!(test.interrupted().is_some());
        assert!(![&test.wanted, &test.disturbed].contains(&&test.facts()));
        test
    };
    let test = interrupted();
    test.restore(4, true).expect("undone");
    let (first, last) = test.steps.get();
    println!("steps {first} to {last}");
    assert!(last - first > 40, "{first} to {last}");
    for step in first..=last {
        let test = interrupted();
        let is_over = test.restore_killed(4, true, step).is_ok();
        assert_eq!(is_over, step == last, "step {step}");
        test.folder.recover();
        if test.interrupted().is_some() {
            let undoes = step % 2 == 0;
            test.restore(6, undoes).unwrap_or_else(|error| panic!("step {step}: {error}"));
            let wanted = if undoes { &test.disturbed } else { &test.wanted };
            assert_eq!(test.facts(), *wanted, "step {step}");
        } else {
            assert_eq!(test.facts(), test.disturbed, "step {step}");
        }
    }
}

#[test]
fn a_complete_restore_is_undone_by_the_snapshot_of_the_folder_before() {
    let mut test = DisturbedFolder::new();
    let intent = test.restore(2, false).expect("restored");
    assert_eq!((test.facts(), test.interrupted()), (test.wanted.clone(), None));
    assert!(intent.needs(&test.id) && intent.needs(&intent.before) && !intent.needs("other"));
    let nothing = test.restore(4, true).expect_err("it is complete");
    assert!(matches!(nothing, SnapshotError::NothingToUndo(_)), "{nothing}");
    let store = SnapshotStore { disk: &LinuxDisk, dir: &test.dir };
    let (.., before) = store.open(&intent.before).expect("complete");
    assert_eq!(before.before_restore.as_ref(), Some(&test.id));
    test.id = intent.before;
    test.restore(6, false).expect("restored");
    assert_eq!(test.facts(), test.disturbed);
}
