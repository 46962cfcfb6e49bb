//! The space that unpublished and lost content may take, and changes that never ask another machine
//! for the lock.

use super::bed::{Bed, Machines};
use crate::guard::write_policy::OnWrite;
use crate::time::Span;
use serde_json::json;

/// Returns the bytes of unpublished content and of lost files.
fn used(bed: &Bed) -> (u64, u64) {
    let status = bed.status();
    let bytes = |name: &str| status[name].as_u64().expect("a number");
    (bytes("staged_bytes"), bytes("lost_bytes"))
}

const FULL: Result<(), i32> = Err(libc::ENOSPC);

fn bytes(kib: usize) -> String {
    "1".repeat(kib << 10)
}

#[test]
fn unpublished_content_has_a_bound() {
    let bed = Bed::with(|setup| setup.limits.staged = 40 << 10);
    let file = bed.create("a").expect("the lock is free");
    file.write_at(0, &bytes(24)).expect("there is space");
    file.write_at(4 << 10, &bytes(4)).expect("nothing is added");
    assert_eq!(used(&bed), (24 << 10, 0));
    file.truncate(8 << 10).expect("shorter");
    assert_eq!(used(&bed), (8 << 10, 0));
    let other = bed.create("b").expect("held");
    other.write_at(0, &bytes(32)).expect("exactly full");
    assert_eq!(used(&bed), (40 << 10, 0));
    assert_eq!(file.write_at(8 << 10, "x"), FULL);
    assert!(bed.why().contains("--max-stage"), "{}", bed.why());
    assert_eq!(bed.write("c", "x"), FULL);
    // Files that are there can be read, published and removed.
    assert_eq!(bed.read("b").expect("readable").len(), 32 << 10);
    other.sync().expect("published");
    bed.unlink("b").expect("removed");
    assert_eq!(file.close(), FULL, "a write has failed");
    assert_eq!(used(&bed), (0, 8 << 10), "a file that is not whole is put aside");
    assert_eq!(bed.real("a"), None);
    let file = bed.create("d").expect("held");
    file.allocate(0, 0, 4_096).expect("there is space");
    file.close().expect("published");
    let file = bed.create("f").expect("held");
    file.truncate(8 << 30).expect("a hole takes no space");
    file.close().expect("published");
    for name in ["d", "f"] {
        bed.unlink(name).expect("held");
    }
    bed.write("g", "1").expect("held");
    bed.write("g", "2").expect("held");
    assert_eq!(used(&bed).0, 0);
    let removed = bed.create("h").expect("held");
    removed.write_at(0, &bytes(40)).expect("exactly full");
    bed.unlink("h").expect("held");
    drop(removed);
    assert_eq!(used(&bed).0, 0, "the space is free");
}

#[test]
fn lost_files_have_a_bound_and_are_never_dropped() {
    let bed = Bed::with(|setup| setup.limits.lost = 32 << 10);
    bed.write("old", "old").expect("the lock is free");
    let lose = |kib: usize| {
        let file = bed.create("lost").expect("there is space");
        file.write_at(0, &bytes(kib)).expect("there is space");
        bed.give();
    };
    let drop_lost = |bed: &Bed, number: u64| {
        let answer = bed.request(&json!({"do": "drop", "number": number}));
        assert!(answer["error"].is_null(), "{answer}");
    };
    lose(20);
    let file = bed.create("more").expect("there is space");
    assert_eq!(file.write_at(0, &(bytes(12) + "1")), FULL);
    drop(file);
    drop_lost(&bed, 2);
    lose(12);
    assert_eq!(used(&bed), (0, 32 << 10));
    assert_eq!(bed.write("old", "new"), FULL);
    assert_eq!(bed.append("old").map(drop), FULL);
    assert_eq!(bed.write("new", "new"), FULL);
    assert!(bed.why().contains("latchfs guard lost"), "{}", bed.why());
    assert_eq!(bed.read("old").as_deref(), Ok("old"));
    assert_eq!(bed.lost().len(), 2);
    bed.mkdir("d").expect("no content");
    bed.rename("old", "d/old").expect("no content");
    bed.chmod("d/old", 0o600).expect("no content");
    bed.unlink("d/old").expect("no content");
    bed.rmdir("d").expect("no content");
    drop_lost(&bed, 1);
    bed.write("new", "new").expect("there is space again");
    let bed = bed.restart(|setup| setup.limits.lost = 12 << 10);
    assert_eq!(used(&bed), (0, 12 << 10), "the lost files of an earlier guard count");
    assert_eq!(bed.write("new", "newer"), FULL);
}

#[test]
fn a_change_that_never_asks_takes_a_free_lock_alone() {
    let wait = OnWrite::Wait(Span::from_secs(1_800));
    let first = Bed::with(|setup| {
        (setup.machines, setup.policy.on_write) = (Machines::Shared, wait);
    });
    let second = first.beside(|setup| setup.policy.on_write = wait);
    first.folder.put(".git/index.lock", b"");
    first.folder.put("other", b"");
    first.take();
    let events = first.events();
    assert_eq!(second.write(".git/index.lock", "x"), Err(libc::EROFS), "it never asks");
    assert!(second.why().contains("m1 holds the lock"), "{}", second.why());
    first.settle();
    assert!(first.status()["wanted_by"].is_null());
    let program = second.program();
    let waiting = std::thread::spawn(move || program.write("other", "x"));
    assert_eq!(events.next("wanted")["client"], "m2");
    assert_eq!(second.write(".git/index.lock", "x"), Err(libc::EROFS), "it never waits");
    assert!(!waiting.is_finished(), "the other change still waits");
    first.give();
    assert_eq!(waiting.join().expect("no panic"), Ok(()));
    second.give();
    first.write(".git/index.lock", "x").expect("the lock is free");
    assert_eq!(first.status()["state"], "holding");
}
