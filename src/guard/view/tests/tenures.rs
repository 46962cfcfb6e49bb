//! How a tenure begins and ends: a change takes the lock or is refused with a sentence, a loss is
//! reported, and what was not saved is kept.

use super::bed::{Bed, Machines};
use crate::guard::tenures::sequence::GuardState;
use crate::guard::write_policy::OnWrite;
use serde_json::{Value, json};
use std::fs;

#[test]
fn a_change_takes_the_lock_and_give_ends_it() {
    let bed = Bed::new();
    assert_eq!(bed.status()["state"], "reading");
    bed.write("a", "1").expect("the lock is free");
    let held = bed.status();
    assert_eq!((&held["state"], &held["tenure"]["owner"]), (&"holding".into(), &"host".into()));
    bed.give();
    assert_eq!(bed.status()["state"], "reading");
    let taken = bed.request(&json!({"do": "take"}));
    assert!(taken["tenure"]["token"].as_u64() > held["tenure"]["token"].as_u64(), "{taken}");
    assert_eq!(bed.read(".latchfs/ready").as_deref(), Ok("ready\n"));
}

#[test]
fn without_the_lock_a_change_is_refused_with_a_sentence() {
    let bed = Bed::with(|setup| setup.policy.on_write = OnWrite::Refuse);
    bed.folder.put("x", b"1");
    bed.folder.put("dir/y", b"1");
    let refused = [
        bed.write("a", "1"),
        bed.write("x", "2"),
        bed.append("x").map(drop),
        bed.mkdir("d"),
        bed.symlink("x", "l"),
        bed.link("x", "l"),
        bed.mkfifo("f"),
        bed.rename("x", "y"),
        bed.unlink("x"),
        bed.rmdir("dir"),
        bed.truncate("x", 0),
        bed.chmod("x", 0o600),
        bed.setxattr("x", "user.a", "1"),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused, Err(libc::EROFS), "change {number}");
    }
    assert!(bed.why().contains("latchfs guard take"), "{}", bed.why());
    assert_eq!(bed.read("x").as_deref(), Ok("1"));
    assert_eq!(bed.getxattr("x", "user.a"), Err(libc::ENODATA));
    bed.take();
    bed.write("a", "1").expect("the lock is held");
}

#[test]
fn a_lock_that_is_given_is_no_loss() {
    let bed = Bed::new();
    let events = bed.events();
    bed.write("a", "1").expect("the lock is free");
    let held = events.next("held");
    bed.give();
    let given = events.next("given");
    assert_eq!(held["token"], given["token"]);
    assert_eq!(given["why"], "the lock was given up");
}

#[test]
fn an_outage_past_the_lease_is_reported() {
    let bed = Bed::with(|setup| setup.machines = Machines::Shared);
    let events = bed.events();
    let open = bed.create("a.log").expect("the lock is free");
    events.next("held");
    // A program is in the middle of a save, so nobody goes on in the next tenure.
    let saved = bed.create("saved").expect("held");
    saved.write("half").expect("held");
    bed.service.falls_silent();
    open.write("the lease lasts").expect("held");
    bed.service.lease_ends();
    bed.settle();
    let lost = events.next("lost");
    let end = "the lock service did not answer before the lease ended";
    assert_eq!((&lost["why"], &lost["put_aside"][0]["path"]), (&end.into(), &"saved".into()));
    assert_eq!(open.write("x"), Err(libc::ESTALE));
    assert!(bed.why().contains(end), "{}", bed.why());
    assert_eq!(bed.write("b", "1"), Err(libc::EROFS));
    assert!(bed.why().contains("b was not changed"), "{}", bed.why());
    bed.service.answers_again();
    bed.take();
    bed.write("b", "1").expect("a new tenure");
    assert_eq!(bed.real("saved"), None);
}

#[test]
fn a_stolen_lock_is_reported() {
    let bed = Bed::with(|setup| setup.machines = Machines::Shared);
    let events = bed.events();
    let open = bed.create("a").expect("the lock is free");
    open.write("unpublished").expect("held");
    let held = events.next("held");
    bed.service.stolen_by("m2");
    let lost = events.next("lost");
    assert_eq!((&lost["token"], &lost["put_aside"][0]["path"]), (&held["token"], &"a".into()));
    assert_eq!(lost["why"], "the lock service ended the lease");
    assert_eq!(open.write("more"), Err(libc::ESTALE));
    let why = bed.why();
    assert!(why.contains("a tenure that is over (the lock service ended the lease"), "{why}");
    assert_eq!(bed.write("b", "1"), Err(libc::EROFS));
    let why = bed.why();
    assert!(why.contains("b was not changed") && why.contains("m2 holds the lock"), "{why}");
}

#[test]
fn a_waiting_client_is_reported() {
    let bed = Bed::with(|setup| setup.machines = Machines::Shared);
    let events = bed.events();
    bed.write("a", "1").expect("the lock is free");
    events.next("held");
    assert!(!bed.service.wanted_by("m2"), "it waits");
    assert_eq!(events.next("wanted")["client"], "m2");
    assert_eq!(bed.status()["wanted_by"], "m2");
    bed.give();
    events.next("given");
    assert_eq!(bed.service.holder().as_deref(), Some("m2"));
}

/// A file that was being saved when its tenure ended is no longer in the view: programs of the next
/// tenure see and change the version in the folder, and not the lost content.
#[test]
fn a_later_tenure_does_not_see_the_unsaved_files_of_an_earlier_one() {
    let bed = Bed::new();
    bed.write("old", "saved").expect("the lock is free");
    let old = bed.create("old").expect("held");
    old.write("half").expect("held");
    let new = bed.create("new").expect("held");
    new.write("half").expect("held");
    bed.give();
    assert_eq!(bed.read("old").as_deref(), Ok("saved"));
    assert!(!bed.exists("new"));
    for name in ["old", "new"] {
        bed.write(name, "next").expect("a new tenure");
        bed.truncate(name, 2).expect("held");
        assert_eq!(bed.real(name).as_deref(), Some("ne"));
    }
    assert_eq!(old.write("late"), Err(libc::ESTALE));
    assert_eq!(new.close(), Err(libc::ESTALE));
    drop(old);
    for number in [1, 2] {
        let restored = bed.request(&json!({"do": "restore", "number": number}));
        assert!(restored["restored"].is_string(), "{restored}");
    }
    let names = bed.list("").expect("readable");
    let restored = names.iter().filter(|name| bed.real(name).as_deref() == Some("half"));
    assert_eq!(restored.count(), 2);
}

/// The reason of each refusal after the end of a tenure, and the state of the guard, say where the
/// content is.
#[test]
fn a_refused_save_says_where_its_content_is_kept() {
    let bed = Bed::new();
    let kept = "your text is kept: latchfs guard lost /view";
    bed.write("other", "1").expect("the lock is free");
    assert!(bed.status()["kept"].is_null());
    let half = bed.create("notes").expect("held");
    half.write("half").expect("held");
    bed.give();
    let refused = |what: &str, refused: Result<(), i32>| {
        assert_eq!(refused, Err(libc::ESTALE), "{what}");
        let why = bed.why();
        assert!(why.starts_with("notes was not changed: ") && why.contains(kept), "{what}: {why}");
        // The next refusal has to say it again.
        assert_eq!(bed.rename("other", ".latchfs"), Err(libc::EPERM));
        assert!(!bed.why().contains(kept), "{}", bed.why());
    };
    refused("write", half.write(", the rest"));
    refused("fsync", half.sync());
    refused("close", half.close());
    assert_eq!(bed.status()["kept"], kept);
    assert_eq!(bed.lost()[0]["path"], "notes");
    // A file of that name has appeared past the view.
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    let new = bed.open("new", flags).expect("a new tenure");
    new.write("text").expect("held");
    bed.folder.put("new", b"foreign");
    assert_eq!(new.close(), Err(libc::EEXIST));
    assert!(bed.why().contains(kept), "{}", bed.why());
}

/// A request in `.latchfs/ctl` is limited in size, and one that is no request is refused by a
/// sentence.
#[test]
fn requests_to_a_guard_have_a_bound() {
    let bed = Bed::new();
    let ctl = bed.open(".latchfs/ctl", libc::O_RDWR).expect("there");
    ctl.write(&"x".repeat(4_096)).expect("it fits");
    assert_eq!(ctl.write("x"), Err(libc::EFBIG), "one byte more");
    let answer = bed.request_text("x\n");
    assert!(answer.contains("no JSON"), "{answer}");
    // A wait of more than a day is one of a day.
    let answer = bed.request(&json!({"do": "take", "wait_ms": u64::MAX}));
    assert_eq!(answer["state"], "holding", "{answer}");
}

/// Programs that end the tenure of all programs of the machine, or take the lock from other
/// machines, run as root or as the user who started the guard. Other users read what happens, but
/// no paths of files that are not theirs.
#[test]
fn other_users_neither_give_nor_read_the_paths_of_others() {
    let bed = Bed::new();
    let other = bed.user(4_001);
    bed.mkdir("private").expect("the lock is free");
    let files = (0..12).map(|number| {
        let file = bed.create(&format!("private/secret{number}")).expect("held");
        file.write("half").expect("held");
        file
    });
    let files: Vec<_> = files.collect();
    for what in ["give", "take"] {
        let answer = other.request(&json!({"do": what}));
        assert!(answer["error"].as_str().is_some_and(|it| it.contains("only root")), "{answer}");
    }
    let (own, others) = (bed.events(), other.events());
    bed.give();
    let event = others.next("given");
    assert_eq!(event["put_aside"], 12, "{event}");
    assert!(!event.to_string().contains("secret"), "{event}");
    let event = own.next("given");
    assert_eq!(event["put_aside"].as_array().map(Vec::len), Some(10), "{event}");
    assert_eq!(event["more"], 2, "{event}");
    assert!(event["put_aside"][0]["path"].as_str().is_some_and(|p| p.contains("secret")));
    drop(files);
}

/// A server that was replaced counts from 1 again: its tenures remove the stages of greater
/// numbers.
#[test]
fn the_fence_removes_the_stage_of_any_other_tenure() {
    let bed = Bed::new();
    let stages = bed.state("stage");
    for name in ["00000000000000ff-999", "0000000000000000-999", "unknown"] {
        for part in ["files", "in-place"] {
            fs::create_dir_all(stages.join(name).join(part)).expect("made");
        }
        fs::write(stages.join(name).join("files/1.kept"), name).expect("written");
    }
    let bed = bed.restart(|_| {});
    bed.take();
    assert_eq!(fs::read_dir(&stages).expect("there").count(), 1, "the stage of this tenure");
    let kept = |it: &&Value| it["path"].as_str().is_some_and(|path| path.contains("kept"));
    assert_eq!(bed.lost().iter().filter(kept).count(), 3, "{:?}", bed.lost());
}

/// Programs change files that they have removed, such as temporary ones.
#[test]
fn a_change_of_a_removed_file_keeps_the_tenure() {
    let bed = Bed::with(|setup| setup.machines = Machines::Shared);
    bed.folder.put("a", b"text");
    bed.take();
    let token = bed.service.token();
    let file = bed.open("a", libc::O_RDWR).expect("held");
    bed.unlink("a").expect("held");
    file.write_at(4, "more").expect("written without a name");
    assert_eq!(file.read().as_deref(), Ok("textmore"));
    file.close().expect("the tenure goes on");
    assert!(matches!(bed.state_of_guard(), GuardState::Holding(..)));
    assert_eq!(bed.service.token(), token);
}

/// A reader has a file open that another machine replaces. A program that opens the name soon after
/// changes the version of the other machine.
#[test]
fn a_program_changes_the_version_of_the_last_tenure() {
    let one = Bed::with(|setup| setup.machines = Machines::Shared);
    let two = one.beside(|_| {});
    for round in 0..3 {
        let name = format!("counter{round}");
        one.write(&name, "one ").expect("the lock is free");
        let reader = one.open(&name, libc::O_RDONLY).expect("there");
        one.give();
        two.take();
        assert_eq!(reader.read().as_deref(), Ok("one "));
        assert_eq!(one.stat(&name).expect("there").size, 4);
        two.write(&name, "one two ").expect("held");
        two.give();
        one.take();
        let file = one.append(&name).expect("held");
        file.write("three").expect("held");
        file.close().expect("held");
        assert_eq!(two.read(&name).as_deref(), Ok("one two three"));
        one.give();
    }
}
