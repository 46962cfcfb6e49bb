//! Snapshots that fail or are killed at each step: those that are shown are complete.

use super::super::barrier_store::test_disk::{Fault, TestDisk, TestFolder};
use super::super::tenure::{Owner, TenureClock};
use super::descriptor::{
    DESCRIPTOR_BYTES_MAX, SnapshotConsistency, SnapshotDescriptor, SnapshotId,
};
use super::snapshot_disk::SnapshotDisk;
use super::snapshot_store::{SNAPSHOTS_MAX, SnapshotError, SnapshotStore, read_whole};
use super::snapshot_take::{SnapshotTake, TakenAs, staged_name};
use super::tree_copy::TreeCopy;
use crate::engine::Token;
use crate::guard::disk::linux_disk::LinuxDisk;
use crate::guard::disk::operations::Place;
use crate::guard::folder::folder_guard::{FolderDirs, FolderGuard};
use crate::guard::folder_snapshot::descriptor::MANIFEST_BYTES_MAX;
use crate::guard::folder_snapshot::snapshot_store::{
    RecoveredSnapshots, SnapshotFinding, findings, recover,
};
use crate::time::{Span, Time, boot_now};
use barrier::tenure_id::TenureId;
use rustix::fs::{Mode, OFlags, XattrFlags};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

struct LongTenure;

impl TenureClock for LongTenure {
    fn now(&self) -> Time {
        boot_now()
    }
    fn surely_until(&self) -> Time {
        boot_now() + Span::from_secs(60)
    }
}

fn tenure(token: u64) -> TenureId {
    TenureId { engine: 7, token: Token::named(token) }
}

fn open(path: &Path) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).expect("it is there")
}

/// A folder with files of each kind, and the guard of it.
struct SnapshotFolder {
    test: TestFolder,
}

impl SnapshotFolder {
    fn new() -> Self {
        let test = TestFolder::new();
        for name in ["stage", "lost", "snapshots"] {
            fs::create_dir(test.state_path(name)).expect("made");
        }
        test.put("a/text", b"text");
        test.put("a/b/deep", b"deep");
        test.put("run", b"#!/bin/sh\n");
        fs::set_permissions(test.path("run"), fs::Permissions::from_mode(0o4750)).expect("set");
        symlink("a/text", test.path("link")).expect("made");
        fs::hard_link(test.path("a/text"), test.path("a/twin")).expect("made");
        let sparse = File::create(test.path("sparse")).expect("made");
        sparse.write_all_at(b"end", 1 << 20).expect("written");
        let set = |path: &str, value: &[u8]| {
            let none = XattrFlags::empty();
            rustix::fs::setxattr(test.path(path), "user.note", value, none).expect("set");
        };
        set("run", b"kept");
        set("a", b"of a directory");
        fs::set_permissions(test.path("a/b"), fs::Permissions::from_mode(0o2711)).expect("set");
        Self { test }
    }

    /// Returns the guard in its tenure with this token.
    fn guard<D: SnapshotDisk<Dir = OwnedFd>>(&self, disk: D, token: u64) -> FolderGuard<D> {
        let dirs = FolderDirs {
            folder: self.test.folder(),
            stages: open(&self.test.state_path("stage")),
            lost: open(&self.test.state_path("lost")),
        };
        let guard = FolderGuard::new(Arc::new(disk), dirs, Arc::new(LongTenure), false);
        let guard = guard.expect("a guard");
        guard.begin(tenure(token), None).expect("begun");
        guard.open(tenure(token), Owner::Host);
        guard
    }

    /// Returns the number of steps with which a first tenure begins.
    fn begin_steps(&self) -> usize {
        self.guard(TestDisk::default(), 1).disk().steps.lock().len()
    }

    fn snapshots(&self) -> OwnedFd {
        open(&self.test.state_path("snapshots"))
    }

    /// Checks the snapshots as a guard does that starts now. Returns the complete ones.
    fn recovered(&self) -> Vec<SnapshotDescriptor> {
        let (dir, stages) = (self.snapshots(), open(&self.test.state_path("stage")));
        let store = SnapshotStore { disk: &LinuxDisk, dir: &dir };
        let complete = |store: &SnapshotStore<'_, LinuxDisk>| {
            let listed = store.list().expect("readable");
            for (id, _) in &listed {
                let differences = store.verify(id.as_str(), &|| ()).expect("readable");
                assert!(differences.is_empty(), "{differences:?}");
            }
            listed
        };
        complete(&store);
        recover(&store, &stages, |_| false).expect("recovered");
        assert_eq!(findings(&store, |_| false, true).expect("readable"), []);
        let names: Vec<_> =
            fs::read_dir(self.test.state_path("snapshots")).expect("there").collect();
        let listed = complete(&store);
        assert_eq!(names.len(), listed.len(), "{names:?}");
        listed.into_iter().map(|(_, descriptor)| descriptor).collect()
    }
}

fn take<D: SnapshotDisk<Dir = OwnedFd>>(
    guard: &FolderGuard<D>,
    dir: &OwnedFd,
    links: bool,
) -> Result<SnapshotDescriptor, SnapshotError> {
    take_within(guard, dir, links, u64::MAX)
}

fn take_within<D: SnapshotDisk<Dir = OwnedFd>>(
    guard: &FolderGuard<D>,
    dir: &OwnedFd,
    links: bool,
    bytes_max: u64,
) -> Result<SnapshotDescriptor, SnapshotError> {
    let may_link = |_: &std::ffi::OsStr, stat: &crate::guard::disk::operations::FileStat| {
        links && stat.links == 1
    };
    let mut take = SnapshotTake::begin(guard, dir, "m1", &may_link, bytes_max)?;
    take.copy_changed(&|| ())?;
    take.copy_last()?;
    let (consistency, risk) = (SnapshotConsistency::Quiesced, Vec::new());
    let taken_as = TakenAs { folder: "f".to_owned(), consistency, risk };
    let descriptor = take.complete(taken_as, &|| ())?;
    let pass = guard.gate().enter(Some(take.tenure()), |_| true).expect("open");
    take.publish(&pass)?;
    Ok(descriptor)
}

#[test]
fn a_snapshot_that_is_killed_at_each_step_is_complete_or_not_shown() {
    for links in [false, true] {
        for step in 0.. {
            let folder = SnapshotFolder::new();
            let dir = folder.snapshots();
            // The steps of the tenure's begin come first.
            let before = SnapshotFolder::new().begin_steps();
            let killed = TestDisk::failing(before + step, Fault::Lasting(libc::EIO));
            let guard = folder.guard(killed, 2);
            let taken = take(&guard, &dir, links);
            drop(guard);
            let complete = folder.recovered();
            assert!(complete.len() <= 1, "step {step}");
            if let Ok(taken) = taken {
                assert_eq!(complete, [taken]);
                assert!(step > 50, "{step} steps");
                break;
            }
        }
    }
}

/// A whole one and one in a stage are refused by a sentence that names both versions, and stay.
#[test]
fn a_snapshot_of_another_version_is_refused_and_stays_as_it_is() {
    let folder = SnapshotFolder::new();
    let dir = folder.snapshots();
    let taken = take(&folder.guard(LinuxDisk, 1), &dir, false).expect("taken");
    let store = SnapshotStore { disk: &LinuxDisk, dir: &dir };
    let whole = folder.test.state_path("snapshots").join(&taken.id);
    fs::write(whole.join("READY"), r#"{"v": 2, "of": "a later version"}"#).expect("written");
    let both = "has version 2, and this latchfs knows version 1";
    let refused = store.open(&taken.id).map(drop).expect_err("another version").to_string();
    assert!(refused.contains("READY") && refused.contains(both), "{refused}");
    let recovered = || recover(&store, &open(&folder.test.state_path("stage")), |_| false);
    assert_eq!(recovered().expect("readable"), RecoveredSnapshots::default());
    assert!(whole.join("tree/a/text").exists());

    // The guard of the snapshot died before the last step.
    let stage = folder.test.state_path("stage").join(tenure(1).to_string());
    let half = stage.join(staged_name(&SnapshotId::parse(&taken.id).expect("a name")));
    fs::rename(&whole, &half).expect("renamed");
    let intent = folder.test.state_path("snapshots").join(format!("{}.intent", taken.id));
    let (id, tenure) = (&taken.id, tenure(1));
    let record = format!(r#"{{"id": "{id}", "tenure": "{tenure}", "client": "m1"}}"#);
    fs::write(&intent, record).expect("written");
    assert_eq!(recovered().expect("readable"), RecoveredSnapshots::default());
    assert!(half.join("tree/a/text").exists() && intent.exists());
}

#[test]
fn a_snapshot_on_a_full_disk_leaves_nothing() {
    for step in 0.. {
        let folder = SnapshotFolder::new();
        let dir = folder.snapshots();
        let before = SnapshotFolder::new().begin_steps();
        let full = TestDisk::failing(before + step, Fault::Errno(libc::ENOSPC));
        let guard = folder.guard(full, 2);
        let taken = take(&guard, &dir, false);
        let listed = SnapshotStore { disk: &LinuxDisk, dir: &dir }.list().expect("readable");
        let entries = fs::read_dir(folder.test.state_path("stage")).expect("there");
        let staged = entries.map(|stage| fs::read_dir(stage.expect("one").path()));
        let staged = staged.flat_map(|names| names.expect("there").flatten());
        let left: Vec<_> = staged
            .map(|name| name.file_name())
            .filter(|name| name.to_string_lossy().starts_with("snap-"))
            .collect();
        assert!(left.is_empty() || taken.is_err(), "step {step}: {left:?}");
        if let Err(error) = &taken {
            assert!(!matches!(error, SnapshotError::Unknown(_)), "step {step}: {error}");
        }
        drop(guard);
        let complete = folder.recovered();
        assert!(complete.len() >= listed.len(), "step {step}");
        if taken.is_ok() && step > 50 {
            break;
        }
    }
}

#[test]
fn the_snapshots_of_a_folder_have_bounds() {
    let folder = SnapshotFolder::new();
    let sparse = File::create(folder.test.path("sparse")).expect("made");
    sparse.set_len(1 << 24).expect("a hole");
    let dir = folder.snapshots();
    let guard = folder.guard(LinuxDisk, 2);
    let first = take(&guard, &dir, false).expect("there is room");
    let bytes = first.counts.allocated;
    assert!(bytes > 0 && bytes < first.counts.bytes, "a hole takes no space: {first:?}");
    // The two snapshots together take more than `max` bytes, so the second one is refused.
    for max in [1, bytes, 2 * bytes - 1] {
        let refused = take_within(&guard, &dir, false, max).expect_err("there is no room");
        assert_eq!(refused.code(), Some("E_LIMIT"));
        let (said, limit) = (refused.to_string(), format!("{max} bytes"));
        assert!(said.contains("folder-snapshot rm ID") && said.contains(&limit), "{said}");
    }
    take_within(&guard, &dir, false, 2 * bytes).expect("exactly enough");
    let store = SnapshotStore { disk: &LinuxDisk, dir: &dir };
    for number in 2..SNAPSHOTS_MAX {
        fs::create_dir(folder.test.state_path(&format!("snapshots/20260102T030405-{number:08x}")))
            .expect("made");
    }
    let refused = take(&guard, &dir, false).expect_err("there are so many");
    assert!(refused.to_string().contains("folder-snapshot rm ID"), "{refused}");
    assert_eq!(store.names().expect("readable").len(), SNAPSHOTS_MAX);
    store.remove("20260102T030405-00000002").expect("removed");
    take(&guard, &dir, false).expect("there is room again");
}

#[test]
fn a_stale_holder_that_is_stopped_before_the_last_step_publishes_nothing() {
    let folder = SnapshotFolder::new();
    let dir = folder.snapshots();
    let guard = folder.guard(LinuxDisk, 1);
    let may_link = |_: &std::ffi::OsStr, _: &crate::guard::disk::operations::FileStat| false;
    let mut take = SnapshotTake::begin(&guard, &dir, "m1", &may_link, u64::MAX).expect("begun");
    take.copy_last().expect("copied");
    let (consistency, risk) = (SnapshotConsistency::Quiesced, Vec::new());
    let taken_as = TakenAs { folder: "f".to_owned(), consistency, risk };
    take.complete(taken_as, &|| ()).expect("complete");
    let pass = guard.gate().enter(Some(tenure(1)), |_| true).expect("open");
    // Another guard of the same storage takes the folder over.
    let next = folder.guard(LinuxDisk, 2);
    let late = take.publish(&pass).expect_err("the stage is gone");
    assert!(matches!(late, SnapshotError::TenureOver), "{late}");
    drop((pass, next));
    assert_eq!(folder.recovered(), []);
}

/// While an open directory is copied, another user exchanges it for a private one, and puts it back
/// before its mode is copied.
#[test]
fn the_files_of_a_private_directory_get_the_mode_of_no_other_one() {
    let test = TestFolder::new();
    let move_to = |from: &str, to: &str| fs::rename(test.path(from), test.path(to)).expect("moved");
    fs::create_dir(test.path("open")).expect("made");
    test.put("private/secret", b"secret");
    fs::set_permissions(test.path("private"), fs::Permissions::from_mode(0o700)).expect("set");
    fs::create_dir(test.state_path("copy")).expect("made");
    let (from, to) = (test.folder(), open(&test.state_path("copy")));
    let mut copy = TreeCopy::new(&LinuxDisk, &from, to, &|_, _| false);
    copy.copy_changed(&|| ()).expect("copied");
    move_to("open", "kept");
    move_to("private", "open");
    copy.copy_changed(&|| ()).expect("copied");
    move_to("open", "private");
    move_to("kept", "open");
    let stale = copy.finish().expect_err("another directory is there");
    assert!(stale.to_string().starts_with("open can't be copied"), "{stale}");
    // If nobody exchanges the directories in between, each copy has its own mode.
    copy.copy_changed(&|| ()).expect("copied");
    copy.finish().expect("nothing has changed");
    let mode = |path: &str| fs::metadata(test.state_path(path)).expect("there").mode() & 0o777;
    assert_eq!((mode("copy/private"), mode("copy/open")), (0o700, 0o755));
    assert!(!test.state_path("copy/open/secret").exists());
}

#[test]
fn every_changed_byte_mode_target_and_missing_file_is_found() {
    let folder = SnapshotFolder::new();
    let dir = folder.snapshots();
    let guard = folder.guard(LinuxDisk, 1);
    let taken = take(&guard, &dir, false).expect("taken");
    let store = SnapshotStore { disk: &LinuxDisk, dir: &dir };
    let tree = folder.test.state_path("snapshots").join(&taken.id).join("tree");
    let seed = crate::base::random();
    println!("seed {seed}");
    let rounds = if std::env::var_os("LATCHFS_LONG_TESTS").is_some() { 10_000 } else { 1_000 };
    let mut state = seed;
    let mut next = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let files = ["a/text", "a/b/deep", "run"];
    for round in 0..rounds {
        let path = tree.join(files[next(3) as usize]);
        let aside = tree.join("../aside");
        let (content, found) = (fs::read(&path).expect("there"), path.metadata().expect("there"));
        let change = next(4);
        match change {
            0 => {
                let (at, bit) = (next(content.len() as u64), next(8));
                let file = File::options().write(true).open(&path).expect("there");
                let byte = content[at as usize] ^ (1 << bit);
                file.write_all_at(&[byte], at).expect("written");
                file.set_modified(found.modified().expect("a time")).expect("set");
            }
            1 => {
                let mode = found.mode() & 0o7777 ^ (1 << next(12));
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            }
            2 => {
                fs::remove_file(tree.join("link")).expect("there");
                symlink(format!("a/tex{}", next(10)), tree.join("link")).expect("made");
            }
            _ => fs::rename(&path, &aside).expect("moved"),
        }
        let differences = store.verify(&taken.id, &|| ()).expect("readable");
        assert!(!differences.is_empty(), "round {round}, change {change} of {}", path.display());
        match change {
            0 => fs::write(&path, &content).expect("written"),
            2 => {
                fs::remove_file(tree.join("link")).expect("there");
                symlink("a/text", tree.join("link")).expect("made");
            }
            3 => fs::rename(&aside, &path).expect("moved"),
            _ => {}
        }
        fs::set_permissions(&path, found.permissions()).expect("set");
    }
    assert_eq!(store.verify(&taken.id, &|| ()).expect("readable"), Vec::<String>::new());
    fs::remove_file(tree.join("../READY")).expect("there");
    let partial = store.open(&taken.id).expect_err("it is not complete");
    assert_eq!(partial.code(), Some("E_PARTIAL_SNAPSHOT"));
    let found = findings(&store, |_| false, true).expect("readable");
    assert_eq!(found, [SnapshotFinding::Partial(taken.id)]);
}

#[test]
fn the_files_of_a_snapshot_have_bounds() {
    let test = TestFolder::new();
    for bytes_max in [MANIFEST_BYTES_MAX, DESCRIPTOR_BYTES_MAX] {
        TestFolder::make_sparse(&test.path("file"), bytes_max + 1);
        let (dir, name) = (test.folder(), "file");
        let read = read_whole(&LinuxDisk, Place::new(&dir, name), bytes_max);
        assert_eq!(read.expect_err("it is too long").kind(), std::io::ErrorKind::FileTooLarge);
    }
}
