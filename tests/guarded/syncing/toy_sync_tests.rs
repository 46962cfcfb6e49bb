//! Tests of the toy sync tool: most run on a clock of their own, so that a seed repeats all steps.

use super::{Carrier, Delays, ToySync, files_in, is_conflict_copy};
use crate::syncing::random::{Random, seed};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testing::{Scratch, eventually};

const DELAYS: Delays =
    Delays { shortest: Duration::from_millis(50), longest: Duration::from_secs(8) };
/// The interval between two steps of a test.
const STEP: Duration = Duration::from_millis(10);

/// Folders with a tool whose time goes on when the test says so.
struct Trial {
    _scratch: Scratch,
    folders: Vec<PathBuf>,
    carrier: Carrier,
    now: Duration,
}

impl Trial {
    fn new(count: usize, seed: u64) -> Self {
        let scratch = Scratch::with_folder();
        let folders: Vec<_> = (0..count).map(|at| scratch.join(format!("m{at}"))).collect();
        for folder in &folders {
            fs::create_dir(folder).expect("made");
        }
        let carrier = Carrier::new(&folders, seed, DELAYS);
        Self { _scratch: scratch, folders, carrier, now: Duration::ZERO }
    }

    fn path(&self, machine: usize, name: &str) -> PathBuf {
        self.folders[machine].join(name)
    }

    /// Writes a file. No two writes of a test have the same length, for the kernel's clock may not
    /// go on between two of them.
    fn write(&self, machine: usize, name: &str, content: &str) {
        fs::write(self.path(machine, name), content).expect("written");
    }

    fn read(&self, machine: usize, name: &str) -> Option<String> {
        fs::read_to_string(self.path(machine, name)).ok()
    }

    /// Lets time pass. Time in which nothing can happen is skipped.
    fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        let mut polls = 0;
        while self.now < end {
            let steps = self.carrier.steps.len();
            self.now += STEP;
            self.carrier.step(self.now);
            let is_quiet = self.carrier.steps.len() == steps
                && self.carrier.replicas.iter().all(|replica| replica.differing.is_empty());
            polls = if is_quiet { polls + 1 } else { 0 };
            if polls > 2 {
                let is_stopped = |machine: usize| self.carrier.replicas[machine].is_stopped;
                let moving = self.carrier.deliveries.iter();
                let moving = moving.filter(|on| !is_stopped(on.from) && !is_stopped(on.to));
                let due = moving.map(|delivery| delivery.due).min().unwrap_or(end).min(end);
                self.now = self.now.max(due.saturating_sub(STEP));
            }
        }
    }

    /// Goes on until nothing is under way.
    fn arrive(&mut self) {
        self.run_for(4 * STEP);
        for _ in 0..100 {
            if self.carrier.deliveries.is_empty() {
                return;
            }
            self.run_for(DELAYS.longest);
        }
        panic!("{} versions are still under way", self.carrier.deliveries.len());
    }

    /// Returns the files of a folder with their content.
    fn all(&self, machine: usize) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = &self.folders[machine];
        let file = |path: PathBuf| {
            let content = fs::read(folder.join(&path)).expect("there");
            (path, content)
        };
        files_in(folder).into_iter().map(file).collect()
    }

    #[track_caller]
    fn is_the_same_everywhere(&self) {
        let first = self.all(0);
        for machine in 1..self.folders.len() {
            let here = self.all(machine);
            let differs = |file: &&(PathBuf, Vec<u8>)| !here.contains(file);
            let other = first.iter().find(differs).or(here.iter().find(|it| !first.contains(it)));
            if let Some((path, _)) = other {
                let name = path.display().to_string();
                let steps = self.carrier.steps.iter().filter(|step| step.ends_with(&name));
                let steps: Vec<_> = steps.map(String::as_str).collect();
                panic!("{name} differs on machine {machine}:\n{}", steps.join("\n"));
            }
        }
    }
}

#[test]
fn a_change_arrives_after_its_delay_and_keeps_its_time_and_mode() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut trial = Trial::new(3, 1);
    fs::create_dir(trial.path(0, "dir")).expect("made");
    trial.write(0, "dir/a", "one");
    fs::set_permissions(trial.path(0, "dir/a"), fs::Permissions::from_mode(0o640)).expect("ours");
    trial.run_for(DELAYS.shortest);
    assert_eq!((trial.read(1, "dir/a"), trial.read(2, "dir/a")), (None, None));
    trial.run_for(DELAYS.longest + 3 * STEP);
    let [first, second] = [0, 1].map(|machine| fs::metadata(trial.path(machine, "dir/a")));
    let [first, second] = [first.expect("there"), second.expect("there")];
    let known = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec(), of.mode(), of.len());
    assert_eq!(known(&first), known(&second));
    trial.is_the_same_everywhere();
}

#[test]
fn paths_arrive_in_any_order() {
    let is_first_first = |seed| {
        let mut trial = Trial::new(2, seed);
        trial.write(0, "first", "1");
        trial.write(0, "second", "2");
        while trial.all(1).is_empty() {
            trial.run_for(STEP);
        }
        trial.read(1, "first").is_some()
    };
    let firsts = (0..20).filter(|seed| is_first_first(*seed)).count();
    assert!((1..20).contains(&firsts), "{firsts} of 20");
}

#[test]
fn concurrent_changes_make_one_conflict_copy() {
    let mut trial = Trial::new(3, 2);
    trial.write(0, "note.md", "start");
    trial.arrive();
    trial.write(0, "note.md", "the first machine");
    trial.write(1, "note.md", "the second machine, later");
    let later = fs::metadata(trial.path(0, "note.md")).expect("there").modified().expect("has one");
    let file = fs::File::options().write(true).open(trial.path(1, "note.md")).expect("there");
    file.set_modified(later + Duration::from_secs(1)).expect("ours");
    trial.arrive();
    trial.is_the_same_everywhere();
    assert_eq!(trial.read(2, "note.md").as_deref(), Some("the second machine, later"));
    let copies: Vec<_> = trial.all(2).into_iter().filter(|(p, _)| is_conflict_copy(p)).collect();
    let [(name, content)] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!(content, b"the first machine");
    let name = name.to_str().expect("text");
    let parts: Vec<_> = name.split(['.', '-']).collect();
    let [stem, "sync", "conflict", date, time, _, "md"] = parts[..] else { panic!("{name}") };
    assert_eq!((stem, date.len(), time.len()), ("note", 8, 6), "{name}");
}

#[test]
fn equal_concurrent_changes_are_no_conflict() {
    let mut trial = Trial::new(2, 3);
    trial.write(0, "a", "same");
    trial.write(1, "a", "same");
    trial.arrive();
    trial.is_the_same_everywhere();
    assert_eq!(trial.all(0).len(), 1);
    trial.write(0, "a", "later");
    trial.arrive();
    assert_eq!(trial.read(1, "a").as_deref(), Some("later"));
    trial.is_the_same_everywhere();
    assert_eq!(trial.all(0).len(), 1);
}

#[test]
fn a_deletion_arrives_and_loses_against_a_concurrent_change() {
    let mut trial = Trial::new(3, 4);
    trial.write(0, "gone", "x");
    trial.write(0, "kept", "xy");
    trial.arrive();
    fs::remove_file(trial.path(0, "gone")).expect("there");
    fs::remove_file(trial.path(0, "kept")).expect("there");
    trial.write(1, "kept", "changed");
    trial.arrive();
    trial.is_the_same_everywhere();
    assert_eq!(trial.all(2), [(PathBuf::from("kept"), b"changed".to_vec())]);
}

#[test]
fn deletions_take_longer() {
    let late = (0..40).filter(|seed| {
        let mut trial = Trial::new(2, *seed);
        trial.write(0, "a", "x");
        trial.arrive();
        fs::remove_file(trial.path(0, "a")).expect("there");
        trial.run_for(DELAYS.longest + 5 * STEP);
        trial.read(1, "a").is_some()
    });
    let late = late.count();
    assert!((5..35).contains(&late), "{late} of 40 came later than any change");
}

#[test]
fn swapped_names_are_swapped_by_an_exchange() {
    let mut trial = Trial::new(2, 5);
    trial.write(0, "left", "one");
    trial.write(0, "right", "three");
    trial.arrive();
    let inode = |trial: &Trial, name| fs::metadata(trial.path(1, name)).expect("there").ino();
    let before = (inode(&trial, "left"), inode(&trial, "right"));
    let [left, right, third] = ["left", "right", "third"].map(|name| trial.path(0, name));
    fs::rename(&left, &third).expect("there");
    fs::rename(&right, &left).expect("there");
    fs::rename(&third, &right).expect("there");
    trial.arrive();
    trial.is_the_same_everywhere();
    assert_eq!(trial.read(1, "left").as_deref(), Some("three"));
    assert_eq!((inode(&trial, "right"), inode(&trial, "left")), before);
    trial.write(1, "left", "the longest");
    trial.arrive();
    assert_eq!(trial.read(0, "left").as_deref(), Some("the longest"));
    trial.is_the_same_everywhere();
}

/// Where the new name arrives before the removal of the old one, as with this seed, the file is
/// renamed.
#[test]
fn a_renamed_file_is_renamed() {
    let mut trial = Trial::new(2, 7);
    trial.write(0, "old", "content");
    trial.arrive();
    // As long as it is open, no other file gets its inode.
    let old = fs::File::open(trial.path(1, "old")).expect("there");
    fs::rename(trial.path(0, "old"), trial.path(0, "new")).expect("there");
    trial.arrive();
    trial.is_the_same_everywhere();
    let inode = fs::metadata(trial.path(1, "new")).expect("there").ino();
    let before = old.metadata().expect("open").ino();
    assert_eq!(inode, before, "{}", trial.carrier.steps.join("\n"));
}

#[test]
fn a_stopped_machine_sends_and_receives_nothing() {
    let mut trial = Trial::new(3, 7);
    trial.carrier.replicas[1].is_stopped = true;
    trial.write(0, "a", "from the first");
    trial.write(1, "b", "from the second");
    trial.run_for(3 * DELAYS.longest);
    assert_eq!(trial.read(2, "a").as_deref(), Some("from the first"));
    assert_eq!((trial.read(1, "a"), trial.read(0, "b")), (None, None));
    trial.carrier.replicas[1].is_stopped = false;
    trial.arrive();
    trial.is_the_same_everywhere();
    assert_eq!(trial.all(1).len(), 2);
}

/// A version reaches a third machine also while the machine that made it is stopped.
#[test]
fn a_machine_passes_on_what_it_has_received() {
    let mut trial = Trial::new(3, 8);
    trial.carrier.replicas[2].is_stopped = true;
    trial.write(0, "a", "x");
    trial.run_for(2 * DELAYS.longest);
    assert_eq!(trial.read(1, "a").as_deref(), Some("x"));
    trial.carrier.replicas[0].is_stopped = true;
    trial.carrier.replicas[2].is_stopped = false;
    trial.run_for(2 * DELAYS.longest);
    assert_eq!(trial.read(2, "a").as_deref(), Some("x"));
}

#[test]
fn an_older_version_that_comes_last_changes_nothing() {
    let mut late = 0;
    for seed in 0..20 {
        let mut trial = Trial::new(2, seed);
        trial.write(0, "a", "old");
        trial.run_for(4 * STEP);
        trial.write(0, "a", "newer");
        trial.arrive();
        assert_eq!(trial.read(1, "a").as_deref(), Some("newer"));
        assert_eq!(trial.all(1).len(), 1);
        let received = |step: &&String| step.contains("machine 1: received a");
        late += usize::from(trial.carrier.steps.iter().filter(received).count() == 1);
    }
    assert!(late > 0, "the older version came first each time");
}

#[test]
fn some_versions_are_delivered_twice() {
    let mut trial = Trial::new(2, 9);
    for number in 0..20 {
        trial.write(0, &format!("file {number}"), "x");
    }
    trial.run_for(4 * STEP);
    let to_second = trial.carrier.deliveries.iter().filter(|delivery| delivery.to == 1).count();
    assert!(to_second > 20, "{to_second}");
    trial.arrive();
    trial.is_the_same_everywhere();
}

/// Makes random changes on three machines, and returns all steps of the tool.
fn random_changes(seed: u64) -> Vec<String> {
    const NAMES: [&str; 5] = ["a", "b", "c.txt", "dir/d", "dir/e"];
    let mut random = Random::new(seed);
    let mut trial = Trial::new(3, seed);
    for folder in &trial.folders {
        fs::create_dir(folder.join("dir")).expect("made");
    }
    for length in 1..40 {
        let machine = random.below(3);
        let name = NAMES[random.below(NAMES.len())];
        match random.below(4) {
            0 => drop(fs::remove_file(trial.path(machine, name))),
            1 => {
                let to = trial.path(machine, NAMES[random.below(NAMES.len())]);
                let _ = fs::rename(trial.path(machine, name), to);
            }
            2 if random.one_in(3) => {
                let stopped = &mut trial.carrier.replicas[machine].is_stopped;
                *stopped = !*stopped;
            }
            _ => {
                trial.write(machine, name, &"x".repeat(length));
                // The winner of a conflict is to be the same in each run.
                let file = fs::File::options().write(true).open(trial.path(machine, name));
                let time = std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
                let time = time + Duration::from_secs(length as u64);
                file.expect("there").set_modified(time).expect("ours");
            }
        }
        let span = random.between(STEP, DELAYS.longest);
        trial.run_for(span);
    }
    for replica in &mut trial.carrier.replicas {
        replica.is_stopped = false;
    }
    trial.arrive();
    trial.is_the_same_everywhere();
    trial.carrier.steps
}

#[test]
fn after_random_changes_all_folders_are_the_same() {
    let first = seed();
    println!("seed {first}");
    let steps: usize = (0..10).map(|number| random_changes(first + number).len()).sum();
    assert!(steps > 1_000, "{steps}");
}

#[test]
fn the_same_seed_gives_the_same_steps() {
    let seed = seed();
    println!("seed {seed}");
    let steps = random_changes(seed);
    assert_eq!(steps, random_changes(seed));
    assert_ne!(steps, random_changes(seed + 1));
}

#[test]
fn a_reader_never_sees_a_part_of_a_file() {
    let scratch = Scratch::with_folder();
    let folders = ["m0", "m1"].map(|name| scratch.join(name));
    for folder in &folders {
        fs::create_dir(folder).expect("made");
    }
    let delays = Delays { shortest: Duration::ZERO, longest: Duration::from_millis(5) };
    let tool = ToySync::start(&folders, seed(), delays);
    let read = |folder: &Path| fs::read(folder.join("file")).unwrap_or_default();
    for version in 1..=10_u8 {
        let content = vec![version; 2_000_000 + usize::from(version)];
        fs::write(folders[0].join("file"), &content).expect("written");
        eventually("the version on the other machine", || {
            let seen = read(&folders[1]);
            let first = seen.first().copied().unwrap_or(0);
            let is_whole = seen.len() == 2_000_000 + usize::from(first);
            assert!(seen.is_empty() || is_whole && seen.iter().all(|byte| *byte == first));
            (seen == content).then_some(())
        });
    }
    drop(tool);
}
