//! Saves: each appears in the folder in one step, when it is complete, and unpublished and lost
//! content may take a bounded space.

use super::bed::{Bed, Machines, patterns};
use crate::guard::write_policy::OnWrite;
use crate::time::Span;
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

#[test]
fn a_file_appears_when_it_is_closed() {
    let bed = Bed::new();
    bed.folder.put("notes", b"old version");
    let file = bed.create("notes").expect("the lock is free");
    for part in ["new", " ", "version"] {
        file.write(part).expect("written");
        assert_eq!(bed.real("notes").as_deref(), Some("old version"));
    }
    file.close().expect("published");
    assert_eq!(bed.real("notes").as_deref(), Some("new version"));
    let file = bed.create("made").expect("made");
    file.write("x").expect("written");
    assert_eq!(bed.real("made"), None, "not before it is closed");
    assert_eq!(bed.read("made").as_deref(), Ok("x"), "seen in the view");
    file.sync().expect("published by fsync");
    assert_eq!(bed.real("made").as_deref(), Some("x"));
    file.close().expect("nothing is left to do");
    bed.give();
    assert_eq!(fs::read_dir(bed.state("stage")).expect("there").count(), 0, "no stage is left");
}

#[test]
fn a_reader_keeps_the_version_that_it_opened() {
    let bed = Bed::new();
    bed.write("a", "first version").expect("the lock is free");
    let reader = bed.open("a", libc::O_RDONLY).expect("there");
    assert_eq!(reader.read_at(0, 5).as_deref(), Ok("first"));
    bed.program().write("a", "2nd").expect("held");
    assert_eq!(reader.read_at(5, 100).as_deref(), Ok(" version"));
    assert_eq!(bed.read("a").as_deref(), Ok("2nd"));
    assert_eq!(bed.real("a").as_deref(), Some("2nd"));
}

/// Programs try calls that a file system may refuse, and go on with others.
#[test]
fn a_refused_call_spoils_no_save() {
    let bed = Bed::new();
    let file = bed.open("data", libc::O_RDWR | libc::O_CREAT).expect("the lock is free");
    file.write("one ").expect("written");
    let refused = file.allocate(libc::FALLOC_FL_UNSHARE_RANGE, 1, 3);
    assert!(matches!(refused, Err(libc::EINVAL | libc::EOPNOTSUPP)), "{refused:?}");
    // A file of 1 << 60 bytes exceeds also what --max-stage allows.
    let refused = file.allocate(0, 0, 1 << 60);
    assert!(matches!(refused, Err(libc::EFBIG | libc::ENOSPC)), "{refused:?}");
    file.write("two").expect("written");
    file.close().expect("published");
    assert_eq!(bed.real("data").as_deref(), Some("one two"));
}

/// Editors truncate a file that they have opened, and write it from its beginning.
#[test]
fn a_file_that_is_truncated_before_it_is_written_appears_whole() {
    let bed = Bed::new();
    let real = || bed.real("data").expect("there");
    bed.write("data", "old version").expect("the lock is free");
    let file = bed.open("data", libc::O_WRONLY).expect("held");
    file.truncate(0).expect("held");
    let copy = file.dup();
    file.close().expect("another descriptor is left");
    copy.write("new ").expect("held");
    assert_eq!(real(), "old version");
    assert_eq!(bed.read("data").as_deref(), Ok("new "));
    copy.write("version").expect("held");
    copy.close().expect("published");
    assert_eq!(real(), "new version");
    // With another reader, or after a write, the file is changed in place.
    let reader = bed.open("data", libc::O_RDONLY).expect("there");
    let file = bed.open("data", libc::O_WRONLY).expect("held");
    file.truncate(0).expect("held");
    assert_eq!((real().as_str(), reader.read().as_deref()), ("", Ok("")));
    drop(reader);
    file.write("12345").expect("held");
    file.truncate(0).expect("held");
    assert_eq!(real(), "");
    drop(file);
    // A database truncates its journal to commit.
    bed.write("data", "journal").expect("held");
    let file = bed.open("data", libc::O_RDWR).expect("held");
    file.truncate(0).expect("held");
    assert_eq!(real(), "");
    drop(file);
    assert!(bed.lost().is_empty());
}

/// git keeps the change time that it reads before the close, and takes a file with a later one for
/// a changed file.
#[test]
fn a_close_leaves_the_change_time_that_the_program_has_read() {
    let bed = Bed::new();
    let changed = |name: &str| {
        let found = fs::metadata(bed.folder.path(name)).expect("there");
        let since = Duration::new(found.ctime() as u64, found.ctime_nsec() as u32);
        SystemTime::UNIX_EPOCH + since
    };
    // The publish changes the time of the file, but perhaps not within a tick of its clock.
    let has_changed = (0..1_000).any(|round| {
        let name = if round % 3 == 2 { "other" } else { "new" };
        let file = bed.create(name).expect("the lock is free");
        file.write("text").expect("written");
        let before = file.stat().expect("open");
        file.close().expect("published");
        let after = bed.stat(name).expect("there");
        assert_eq!((before.ctime, before.mtime), (after.ctime, after.mtime), "{name}");
        let has_changed = changed(name) > before.ctime;
        bed.chmod(name, 0o600).expect("held");
        assert_eq!(bed.stat(name).expect("there").ctime, changed(name), "{name}");
        has_changed
    });
    assert!(has_changed, "the publish changes no time");
}

#[test]
fn an_open_for_reading_truncates_as_on_any_file_system() {
    let bed = Bed::new();
    for name in ["notes", "program"] {
        bed.write(name, "text").expect("the lock is free");
    }
    let truncate = |name: &str| bed.open(name, libc::O_RDONLY | libc::O_TRUNC)?.close();
    assert_eq!(truncate("notes"), Ok(()));
    assert_eq!(bed.real("notes").as_deref(), Some(""));
    // The kernel opens the file, and looks only then whether the program runs.
    bed.chmod("program", 0o755).expect("held");
    assert_eq!(truncate("program"), Err(libc::ETXTBSY));
    assert!(bed.why().contains("open it for writing"), "{}", bed.why());
    assert_eq!(bed.real("program").as_deref(), Some("text"));
}

/// `O_RDONLY | O_TRUNC` empties files that are changed in place.
#[test]
fn a_reader_empties_a_file_that_is_changed_in_place() {
    let bed = Bed::new();
    for name in ["a.log", ".a.swp", "b"] {
        bed.write(name, "text").expect("the lock is free");
    }
    bed.link("b", "c").expect("held");
    for name in ["a.log", ".a.swp", "b"] {
        bed.chmod(name, 0o644).expect("held");
        drop(bed.open(name, libc::O_RDONLY | libc::O_TRUNC).expect("held"));
        assert_eq!(bed.stat(name).expect("there").size, 0, "{name}");
    }
}

/// Once published, a file that is still open is changed in place.
#[test]
fn after_an_fsync_later_writes_are_in_place() {
    let bed = Bed::new();
    let inode = || fs::metadata(bed.folder.path("journal")).expect("there").ino();
    let file = bed.create("journal").expect("the lock is free");
    file.write("begun").expect("written");
    assert_eq!(bed.real("journal"), None);
    file.sync().expect("published");
    let published = inode();
    file.write(", and gone on").expect("written");
    assert_eq!(bed.real("journal").as_deref(), Some("begun, and gone on"));
    assert_eq!(inode(), published);
}

/// A file that is changed in place is seen in parts.
#[test]
fn a_file_that_matches_in_place_is_written_at_once() {
    let bed = Bed::with(|setup| setup.policy.in_place = patterns(&["*.txt", "build/**"]));
    let parts = |name: &str| {
        let file = bed.create(name).expect("the lock is free");
        file.write("one").expect("written");
        bed.real(name)
    };
    bed.mkdir("build").expect("held");
    assert_eq!(parts("a.txt").as_deref(), Some("one"));
    assert_eq!(parts("build/x").as_deref(), Some("one"));
    assert_eq!(parts("a.log"), None, "the default is replaced");
}

/// A file that was emptied and not written is published when its last descriptor is closed: the
/// close has returned, and the failure is reported otherwise.
#[test]
fn a_failure_at_the_last_close_is_reported_to_the_user_who_wrote() {
    let bed = Bed::new();
    let (events, user) = (bed.events(), bed.user(4_242));
    user.write("a", "ours").expect("the lock is free");
    events.next("held");
    let emptied = user.open("a", libc::O_WRONLY | libc::O_TRUNC).expect("held");
    fs::remove_file(bed.folder.path("a")).expect("there");
    fs::create_dir(bed.folder.path("a")).expect("made");
    assert_eq!(emptied.close(), Ok(()));
    assert!(user.why().starts_with("a was not changed: "), "{}", user.why());
    let event = events.next("unsaved");
    let kept = bed.lost();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!((&kept[0]["number"], &kept[0]["path"]), (&event["number"], &event["path"]));
    assert_eq!(event["path"], "a");
}

/// The file is published by the kernel's report of its last close, since more programs wrote it
/// than the guard remembers.
#[test]
fn a_failure_after_the_last_close_of_a_written_file_is_reported() {
    let bed = Bed::new();
    let (events, user) = (bed.events(), bed.user(4_242));
    let file = user.open("a", libc::O_WRONLY | libc::O_CREAT).expect("the lock is free");
    events.next("held");
    let writers: Vec<_> = (0..20).map(|_| file.in_program(&bed.user(4_242))).collect();
    for writer in &writers {
        writer.write("x").expect("held");
    }
    file.close().expect("others have it open");
    fs::create_dir(bed.folder.path("a")).expect("made");
    for writer in writers {
        assert_eq!(writer.close(), Ok(()));
    }
    assert!(user.why().starts_with("a was not "), "{}", user.why());
    let event = events.next("unsaved");
    assert_eq!(event["path"], "a");
    let kept = bed.lost();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!((&kept[0]["number"], &kept[0]["path"]), (&event["number"], &"a".into()));
}

/// A guard remembers a limited number of writers of one file. With more writers the file appears
/// when its last descriptor is closed.
#[test]
fn a_file_with_too_many_writers_is_published_at_its_last_close() {
    let bed = Bed::new();
    let file = bed.open("many", libc::O_WRONLY | libc::O_CREAT).expect("the lock is free");
    let writers: Vec<_> = (0..20).map(|_| file.in_program(&bed.program())).collect();
    for (writer, letter) in writers.iter().zip('a'..) {
        writer.write(&letter.to_string()).expect("held");
    }
    file.close().expect("others have it open");
    for writer in writers {
        assert_eq!(bed.real("many"), None, "a program would go on writing");
        writer.close().expect("held");
    }
    assert_eq!(bed.real("many").as_deref(), Some("abcdefghijklmnopqrst"));
}

#[test]
fn a_file_with_several_names_is_not_changed_in_place_on_shared_storage() {
    let bed = Bed::with(|setup| setup.machines = Machines::Shared);
    let refused = |refused: Result<(), i32>| {
        assert_eq!(refused, Err(libc::EROFS));
        assert!(bed.why().contains("several names"), "{}", bed.why());
        bed.rename("a", ".latchfs").expect_err("it says something else");
    };
    let append = |name: &str| bed.append(name)?.write("2");
    bed.write("a", "1").expect("the lock is free");
    bed.link("a", "b").expect("held");
    refused(append("a"));
    refused(bed.truncate("b", 0));
    bed.unlink("b").expect("held");
    append("a").expect("it has one name");
    refused(bed.link("a", "b"));
    // A save by rename gives the name a new file.
    bed.write("c", "3").expect("held");
    bed.link("c", "d").expect("held");
    bed.write("t", "4").expect("held");
    bed.rename("t", "c").expect("held");
    assert_eq!(bed.real("d").as_deref(), Some("3"));
    let file = bed.create("e").expect("held");
    file.write("1").expect("held");
    file.sync().expect("published");
    bed.link("e", "f").expect("held");
    refused(file.write("2"));
}

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
