//! The first moment of a tenure after files of another machine have arrived: programs find the new
//! names, sizes and contents, and nothing that the kernel has cached before.

use crate::arriving::{Machines, begin_take, state};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::path::Path;
use testing::{Guard, soon};

const BEFORE: &str = "before";
const AFTER: &str = "after, and longer than before";
/// Content of the same length as that before.
const ALIKE: &str = "behind";

fn make_files(folder: &Path) {
    for name in ["replaced", "in-place", "alike", "gone"] {
        fs::write(folder.join(name), BEFORE).expect("made");
    }
    fs::write(folder.join("left"), "one").expect("made");
    fs::write(folder.join("right"), "three").expect("made");
    fs::create_dir(folder.join("dir")).expect("made");
    fs::write(folder.join("dir/file"), BEFORE).expect("made");
}

/// Looks at all files in a view, so that the kernel knows them.
fn read_all(view: &Path) {
    for name in ["replaced", "in-place", "alike", "gone", "left", "right", "dir/file"] {
        assert!(fs::metadata(view.join(name)).is_ok_and(|found| found.is_file()), "{name}");
        fs::read(view.join(name)).expect("there");
    }
}

/// Changes all files, in a view or as a sync tool does it: with new files under the old names, in
/// place, or by an exchange of names.
fn change(folder: &Path) {
    let path = |name: &str| folder.join(name);
    renameat_with(CWD, path("left"), CWD, path("right"), RenameFlags::EXCHANGE).expect("swapped");
    fs::write(path("replaced.new"), AFTER).expect("written");
    fs::rename(path("replaced.new"), path("replaced")).expect("renamed");
    fs::write(path("in-place"), AFTER).expect("written");
    fs::write(path("alike"), ALIKE).expect("written");
    fs::remove_file(path("gone")).expect("removed");
    fs::rename(path("dir"), path("moved")).expect("renamed");
}

/// Checks that a view shows the files as they were changed.
fn check(view: &Path) {
    let size = |name: &str| fs::metadata(view.join(name)).map_or(0, |found| found.len());
    let read = |name: &str| fs::read_to_string(view.join(name)).unwrap_or_default();
    let sizes = ["left", "right", "replaced", "in-place", "alike"].map(size);
    let all = ["left", "right", "replaced", "in-place", "alike", "moved/file"].map(read);
    let are_there = ["gone", "dir", "dir/file"].map(|name| view.join(name).exists());
    assert_eq!(sizes, [5, 3, AFTER.len() as u64, AFTER.len() as u64, ALIKE.len() as u64]);
    assert_eq!(all, ["three", "one", AFTER, AFTER, ALIKE, BEFORE]);
    assert_eq!(are_there, [false; 3]);
}

fn give(guard: &Guard) {
    let answer = guard.request_here("{\"do\": \"give\"}");
    assert!(answer.contains("reading"), "{answer}");
}

/// The second machine changes all files, and a sync tool carries the changes to the first one.
/// `look_before` is called before they arrive.
fn change_elsewhere(machines: &Machines, two: &Guard, look_before: impl FnOnce()) {
    two.take_here();
    change(&two.view);
    give(two);
    look_before();
    change(&machines.first.folder());
    machines.carry_markers_back();
}

/// Programs may look at files while the lock is not held.
#[test]
fn what_was_seen_before_files_arrived_is_not_seen_afterwards() {
    let machines = Machines::with(make_files);
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    change_elsewhere(&machines, &two, || read_all(&one.view));
    one.take_here();
    check(&one.view);
}

/// The kernel may still know what programs saw in the tenure before.
#[test]
fn what_was_seen_in_the_last_tenure_is_not_seen_in_the_next() {
    let machines = Machines::with(make_files);
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    one.take_here();
    read_all(&one.view);
    give(&one);
    change_elsewhere(&machines, &two, || {});
    one.take_here();
    check(&one.view);
}

/// The files that have arrived are compared in a tenure that is given up, and again in the next.
#[test]
fn a_tenure_that_ends_before_it_is_ready_makes_nothing_known() {
    let machines = Machines::with(make_files);
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    one.take_here();
    read_all(&one.view);
    give(&one);
    change_elsewhere(&machines, &two, || {});
    let taking = begin_take(&one);
    let mut polls = 0;
    soon("the files were compared", || {
        polls += usize::from(state(&one) == "arriving");
        (polls == 5).then_some(())
    });
    one.request_here("{\"do\": \"give\"}");
    assert!(taking.join().expect("no panic").contains("holding"), "the program asks again");
    check(&one.view);
}
