//! Two machines with copies of one folder: what the markers of the sync barrier name, when a folder
//! is ready, and whose version of a file a save replaces. The test itself is the sync tool.

use super::bed::{Bed, Setup, eventually, patterns};
use super::program::OpenedFile;
use crate::guard::write_policy::{OnWrite, WhenAsked};
use crate::time::{Span, boot_now};
use kernel::file_system::RenameFlags;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::thread::JoinHandle;

const MOMENT: Span = Span::from_millis(1);

/// Has a guard count as idle at once.
fn soon_idle(setup: &mut Setup) {
    setup.policy.when_asked = WhenAsked::Yield { idle: MOMENT, max: Span::from_secs(3_600) };
}

/// Returns the markers in the folder of a machine.
fn markers(bed: &Bed) -> Vec<PathBuf> {
    let dirs = [".latchfs", ".latchfs/markers"].map(|dir| fs::read_dir(bed.folder.path(dir)));
    let files = dirs.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect()
}

/// Returns what the markers name that are not in `before`: each path, with ` gone` for one under
/// which no file stands, and ` foreign` for one that was changed past the view.
fn named(bed: &Bed, before: &[PathBuf]) -> Vec<String> {
    let mut all = Vec::new();
    for path in markers(bed).into_iter().filter(|path| !before.contains(path)) {
        let text = fs::read_to_string(path).expect("there");
        let marker: Value = serde_json::from_str(&text).expect("JSON");
        for change in marker["changes"].as_array().expect("a list") {
            let gone = if change["type"] == "gone" { " gone" } else { "" };
            let foreign = if change["foreign"] == true { " foreign" } else { "" };
            all.push(format!("{}{gone}{foreign}", change["path"].as_str().expect("a path")));
        }
    }
    all.sort();
    all
}

/// Makes files with the same content, and gives the lock up, so that the ledger knows them.
fn make(bed: &Bed, names: &[&str]) -> Vec<PathBuf> {
    bed.take();
    for name in names {
        let dir = name.rsplit_once('/').map(|(dir, _)| dir);
        if let Some(dir) = dir.filter(|dir| !bed.exists(dir)) {
            bed.mkdir(dir).expect("ready");
        }
        bed.write(name, "before").expect("ready");
    }
    bed.give();
    markers(bed)
}

fn append(bed: &Bed, name: &str) {
    let file = bed.append(name).expect("held");
    file.write(" and after").expect("held");
}

/// Begins to take the lock, as a person does who waits for it.
fn begin_take(bed: &Bed) -> JoinHandle<Value> {
    let program = bed.program();
    std::thread::spawn(move || program.request(&json!({"do": "take", "wait_ms": 60_000})))
}

fn state(bed: &Bed) -> String {
    bed.settle();
    bed.status()["state"].as_str().expect("a state").to_owned()
}

fn not_ready(bed: &Bed, part: &str) {
    eventually(part, || {
        let why = bed.status()["not_ready"].as_str()?.to_owned();
        why.contains(part).then_some(())
    });
}

fn is_taken(taking: JoinHandle<Value>) {
    let answer = taking.join().expect("no panic");
    assert_eq!(answer["state"], "holding", "{answer}");
}

/// Gives the lock of one machine to another, with all files.
fn hand_over(from: &Bed, to: &Bed) {
    from.give();
    from.carry("", to);
    to.take();
}

/// A file that a program goes on changing in place is named under the name that it has by then.
#[test]
fn a_file_that_is_renamed_while_it_is_changed_is_named() {
    let one = Bed::copies();
    let before = make(&one, &["a", "d/b", "d/c"]);
    let files = ["a", "d/b", "d/c"].map(|name| one.append(name).expect("ready"));
    for file in &files {
        file.write(" and after").expect("written");
    }
    one.rename("a", "z").expect("renamed");
    one.rename("d", "e").expect("renamed");
    for file in &files[..2] {
        file.write(" and later").expect("written");
    }
    drop(files);
    one.give();
    let all = ["a gone", "d/b gone", "d/c gone", "e/b", "e/c", "z"];
    assert_eq!(named(&one, &before), all);
}

/// A program has a file open by a name that is removed, and changes it: the change is named under
/// the other name of the file.
#[test]
fn a_change_by_a_removed_name_is_named_under_the_other_one() {
    let one = Bed::copies_with(|setup| setup.policy.settle = MOMENT);
    one.take();
    one.write("a", "before").expect("ready");
    one.link("a", "b").expect("ready");
    one.give();
    let before = markers(&one);
    let file = one.append("b").expect("ready");
    one.unlink("b").expect("removed");
    eventually("the marker", || (markers(&one).len() > before.len()).then_some(()));
    let before = markers(&one);
    file.write(" and after").expect("written");
    drop(file);
    one.give();
    assert_eq!(named(&one, &before), ["a"]);
    let two = one.copy(|_| {});
    two.take();
}

/// The files below a directory that is exchanged, or that gets a name which is not ignored, have
/// other paths afterwards.
#[test]
fn each_file_below_an_exchanged_or_uncovered_directory_is_named() {
    let one = Bed::copies();
    one.folder.put(".latchfs/ignore", b"build/\n");
    let names = ["d/one", "d/both", "e/both", "e/two", "f/x", "g", "src/y", "build/z"];
    let before = make(&one, &names);
    for (from, to) in [("d", "e"), ("f", "g")] {
        one.rename_with(from, to, RenameFlags::RENAME_EXCHANGE).expect("ready");
    }
    one.give();
    let all = ["d/both", "d/one gone", "d/two", "e/both", "e/one", "e/two gone"];
    let and_file = ["f", "f/x gone", "g gone", "g/x"];
    assert_eq!(named(&one, &before), [&all[..], &and_file].concat());
    let before = markers(&one);
    one.rename("build", "made").expect("renamed");
    one.rename("src", "build").expect("renamed");
    one.give();
    assert_eq!(named(&one, &before), ["made/z", "src/y gone"]);
}

/// A marker names each file that was changed, whichever way: in place, by a rename of its
/// directory, under each of its names.
#[test]
fn a_marker_names_each_changed_path() {
    let one = Bed::copies();
    make(&one, &["dir/x", "dir/y", "linked", "log.log", "kept", "cut"]);
    one.link("linked", "other name").expect("linked");
    one.give();
    let before = markers(&one);
    one.rename("dir", "moved").expect("renamed");
    append(&one, "linked");
    append(&one, "log.log");
    one.truncate("cut", 3).expect("cut");
    one.rename("old", "kept").expect("replaced");
    one.give();
    assert_eq!(markers(&one).len(), before.len() + 1, "one marker");
    let wanted = [
        "cut",
        "dir/x gone",
        "dir/y gone",
        "kept",
        "linked",
        "log.log",
        "moved/x",
        "moved/y",
        "old gone",
        "other name",
    ];
    assert_eq!(named(&one, &before), wanted);
}

/// Other ignore rules alone need a marker: the other machines would wait for those before.
#[test]
fn a_marker_follows_a_change_of_the_ignore_rules() {
    let one = Bed::copies();
    let two = one.copy(|_| {});
    let take = || {
        one.carry("", &two);
        two.take();
        two.give();
    };
    one.folder.put(".latchfs/ignore", b"*.o\n");
    one.take();
    one.give();
    take();
    one.write("a", "of m1").expect("all is here");
    one.folder.put(".latchfs/ignore", b"*.other\n");
    one.give();
    take();
}

/// A file that something else changes in the folder while the lock is held is reported, and stays.
#[test]
fn a_change_past_the_view_is_reported_to_the_holder() {
    let one = Bed::copies_with(|setup| setup.policy.settle = MOMENT);
    make(&one, &["a", "b"]);
    let events = one.events();
    one.take();
    events.next("held");
    one.folder.put("a", b"past the view");
    one.write("b", "after").expect("ready");
    let overwritten = events.next("overwritten");
    assert_eq!((&overwritten["count"], &overwritten["paths"]), (&1.into(), &json!(["a"])));
    assert_eq!(one.read("a").as_deref(), Ok("past the view"));
}

/// The data may arrive before the marker that names them: the folder is not ready before that.
#[test]
fn data_that_arrive_before_their_marker_make_nothing_ready() {
    let one = Bed::copies();
    let two = one.copy(|_| {});
    let before = markers(&one);
    one.write("a", "of m1").expect("ready");
    one.give();
    one.carry("a", &two);
    let taking = begin_take(&two);
    not_ready(&two, "the marker of m1's tenure");
    // An older marker with the same content is not the one that the handover names.
    let new: Vec<_> = markers(&one).into_iter().filter(|path| !before.contains(path)).collect();
    let [marker] = &new[..] else { panic!("one marker: {new:?}") };
    let name = marker.file_name().expect("a name").to_str().expect("text");
    let text = fs::read_to_string(marker).expect("readable");
    let other = text.replace("of m1", "of m2").replace("\"m1\"", "\"m9\"");
    two.folder.put(&format!(".latchfs/markers/{name}"), other.as_bytes());
    eventually("the other file is named", || {
        two.status()["notes"].to_string().contains("is not read").then_some(())
    });
    not_ready(&two, "the marker of m1's tenure");
    one.carry(".latchfs", &two);
    is_taken(taking);
}

/// An arriving tenure yields to another machine at once, and leaves no trace: the machine before it
/// is ready again although nothing was carried.
#[test]
fn an_arriving_tenure_gives_way_without_a_trace() {
    let one = Bed::copies();
    let two = one.copy(|setup| setup.policy.on_write = OnWrite::Wait(Span::from_secs(60)));
    one.write("a", "of m1").expect("ready");
    one.give();
    let (files, there) = (markers(&one), markers(&two).len());
    let program = two.program();
    let saving = std::thread::spawn(move || program.write("old", "of m2"));
    eventually("m2 arrives", || (state(&two) == "arriving").then_some(()));
    one.take();
    assert_eq!(markers(&one), files);
    assert_eq!(markers(&two).len(), there, "the first checkpoint");
    one.write("a", "again").expect("ready");
    one.give();
    one.carry("", &two);
    assert_eq!(saving.join().expect("no panic"), Ok(()), "ready once all is there");
    assert_eq!(two.real("old").as_deref(), Some("of m2"));
}

/// The first change after a quiet while waits until the lock service knows of it.
#[test]
fn a_quiet_tenure_accepts_no_first_change_without_its_server() {
    let one = Bed::copies();
    one.take();
    one.service.falls_silent();
    assert_eq!(one.write("a", "x"), Err(libc::EROFS), "nobody knows of it");
    let why = one.why();
    assert!(why.contains("announce") || why.contains("does not answer"), "{why}");
    assert_eq!(one.real("a"), None);
    one.service.answers_again();
    eventually("the server answers", || one.write("a", "x").ok());
    // A tenure whose changes are announced goes on without the server.
    one.service.falls_silent();
    one.write("b", "y").expect("announced");
    one.service.answers_again();
}

/// A refused acceptance names the files for those who may know them.
#[test]
fn a_refused_acceptance_names_what_is_missing() {
    let one = Bed::copies();
    let two = one.copy(|_| {});
    one.write("old", "of m1").expect("ready");
    (0..12).for_each(|n| one.write(&format!("f{n:02}"), "of m1").expect("ready"));
    one.give();
    one.carry(".latchfs", &two);
    let refused = two.request(&json!({"do": "accept", "paths": ["old"], "reason": "a test"}));
    let refused = refused["error"].as_str().unwrap_or_else(|| panic!("{refused}")).to_owned();
    assert!(refused.contains("'f00' is not here yet"), "{refused}");
    assert!(refused.contains("'f09' is not here yet, and 2 more"), "{refused}");
    // The sentence of a refused change counts them, for anybody may read it.
    assert!(!two.why().contains("f00"), "{}", two.why());
}

/// A version that came past the view has the size, the time and the inode of the one that the
/// ledger has: no digest that was known before would be that of the snapshot's file.
#[test]
fn a_digest_is_that_of_the_copied_content() {
    let one = Bed::copies();
    one.write("file", "first").expect("held");
    // The marker of the tenure names the version.
    one.give();
    let path = one.folder.path("file");
    let time = fs::metadata(&path).and_then(|found| found.modified()).expect("known");
    let file = fs::File::options().write(true).open(&path).expect("there");
    std::os::unix::fs::FileExt::write_all_at(&file, b"other", 0).expect("written");
    file.set_modified(time).expect("set");
    let taken = one.request(&json!({"do": "snapshot", "snapshot": "take"}));
    let names = one.list(".latchfs/snapshots").expect("readable");
    let [id] = &names[..] else { panic!("one snapshot: {names:?} {taken}") };
    let shown = format!(".latchfs/snapshots/{id}/file");
    assert_eq!(one.read(&shown).as_deref(), Ok("other"));
    assert_eq!(one.write(&shown, "x"), Err(libc::EROFS));
    let checked = one.request(&json!({"do": "snapshot", "snapshot": "verify", "id": id}));
    assert!(checked["error"].is_null(), "{checked}");
    assert!(checked["differences"].as_array().is_none_or(Vec::is_empty), "{checked}");
}

/// Machines of which the first holds the lock, with the files `a` and `b`.
fn two_machines() -> (Bed, Bed) {
    let one = Bed::copies_with(soon_idle);
    one.write("a", "0000").expect("the lock is free");
    one.write("b", "0000").expect("held");
    let two = one.copy(soon_idle);
    (one, two)
}

fn open(bed: &Bed, path: &str) -> OpenedFile {
    bed.open(path, libc::O_RDWR).expect("held")
}

#[test]
fn a_program_goes_on_with_files_that_nobody_else_has_changed() {
    let (one, two) = two_machines();
    let file = open(&one, "a");
    file.write_at(0, "1").expect("held");
    let log = one.append("notes.log").expect("held");
    log.write("one\n").expect("held");
    hand_over(&one, &two);
    // The other machine keeps the lock as long as it is busy.
    two.write("c", "of m2").expect("held");
    let unsaved = two.create("d").expect("held");
    assert_eq!(file.write_at(1, "x"), Err(libc::EROFS));
    assert!(one.why().contains("hand it over"), "{}", one.why());
    assert_eq!(one.read("a").as_deref(), Ok("1000"));
    drop(unsaved);
    eventually("the lock comes back", || {
        two.carry("", &one);
        (state(&one) == "holding").then_some(())
    });
    file.write_at(1, "2").expect("held");
    file.sync().expect("held");
    log.write("two\n").expect("held");
    log.close().expect("held");
    file.close().expect("held");
    hand_over(&one, &two);
    assert_eq!(two.read("a").as_deref(), Ok("1200"));
    assert_eq!(two.read("notes.log").as_deref(), Ok("one\ntwo\n"));
}

/// The lock is free when the program goes on, so its write takes it.
#[test]
fn a_write_to_a_dormant_file_takes_a_free_lock() {
    let (one, two) = two_machines();
    let file = open(&one, "a");
    file.write_at(0, "1").expect("held");
    file.truncate(3).expect("held");
    one.give();
    file.write_at(1, "2").expect("the lock is free");
    assert_eq!(state(&one), "holding");
    one.give();
    file.truncate(2).expect("the lock is free");
    one.give();
    file.allocate(0, 2, 1).expect("the lock is free");
    one.give();
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(5);
    one.touch("a", time).expect("the lock is free");
    file.close().expect("held");
    hand_over(&one, &two);
    assert_eq!(two.read("a").as_deref(), Ok("12\0"));
}

#[test]
fn a_program_whose_file_was_changed_elsewhere_opens_all_its_files_again() {
    let (one, two) = two_machines();
    let other = one.program();
    let (file, second) = (open(&one, "a"), open(&one, "b"));
    second.write_at(0, "1").expect("held");
    let others = other.open("b", libc::O_RDWR).expect("held");
    hand_over(&one, &two);
    two.write("a", "of m2").expect("held");
    hand_over(&two, &one);
    assert_eq!(file.write_at(1, "x"), Err(libc::ESTALE));
    assert_eq!(second.write_at(1, "x"), Err(libc::ESTALE), "its other file");
    assert!(one.why().contains("open it again"), "{}", one.why());
    others.write_at(1, "2").expect("its program goes on");
    let file = open(&one, "a");
    assert_eq!(file.read().as_deref(), Ok("of m2"));
    file.write_at(0, "O").expect("held");
    assert_eq!(one.read("a").as_deref(), Ok("Of m2"));
    assert_eq!(one.read("b").as_deref(), Ok("1200"));
}

/// Lets time pass in which nothing changes.
fn quiet(bed: &Bed) {
    let until = boot_now() + Span::from_millis(20);
    while boot_now() < until {
        bed.settle();
    }
}

/// The lease ends while the server does not answer.
#[test]
fn a_program_goes_on_after_a_night_that_ended_its_tenure() {
    let (one, _two) = two_machines();
    let file = open(&one, "a");
    file.write_at(0, "1").expect("held");
    quiet(&one);
    one.service.falls_silent();
    one.service.lease_ends();
    assert_ne!(state(&one), "holding");
    assert_eq!(file.write_at(1, "x"), Err(libc::EROFS), "the server does not answer");
    one.service.answers_again();
    eventually("the lock", || file.write_at(1, "2").ok());
    file.close().expect("held");
    assert_eq!(one.read("a").as_deref(), Ok("1200"));
}

/// A tenure that is lost in the middle of changes is no night: its programs learn of it.
#[test]
fn a_program_that_is_at_work_when_the_lock_is_lost_opens_its_files_again() {
    let one = Bed::copies();
    one.write("a", "0000").expect("the lock is free");
    let file = open(&one, "a");
    file.write_at(0, "1").expect("held");
    one.service.falls_silent();
    one.service.lease_ends();
    assert_eq!(file.write_at(0, "1"), Err(libc::ESTALE));
    assert_ne!(state(&one), "holding");
    one.service.answers_again();
    eventually("the lock", || one.write("b", "new").ok());
    assert_eq!(file.write_at(1, "2"), Err(libc::ESTALE));
}

/// Returns the paths of the lost files that are versions of other machines, the newest first.
fn kept(bed: &Bed) -> Vec<String> {
    let is_unread = |it: &&Value| it["why"].as_str().expect("text").contains("had published");
    let path = |it: &Value| it["path"].as_str().expect("text").to_owned();
    bed.lost().iter().filter(is_unread).map(path).collect()
}

/// The first machine has a file in its memory, which the second one has changed since.
fn changed_elsewhere(change: impl FnOnce(&mut Setup)) -> (Bed, Bed) {
    let one = Bed::copies_with(change);
    let two = one.copy(|_| {});
    one.write("a", "of m1").expect("the lock is free");
    hand_over(&one, &two);
    two.write("a", "of m2").expect("held");
    hand_over(&two, &one);
    (one, two)
}

/// A way to change the file `a`.
type Way = fn(&Bed) -> Result<(), i32>;

#[test]
fn a_version_that_no_program_has_read_is_kept_when_it_is_replaced() {
    let ways: [Way; 3] = [
        |bed| bed.write("a", "new"),
        |bed| bed.write("b", "new").and_then(|()| bed.rename("b", "a")),
        |bed| bed.unlink("a").and_then(|()| bed.write("a", "new")),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let (one, _two) = changed_elsewhere(|_| {});
        way(&one).expect("held");
        assert_eq!(kept(&one), ["a"], "way {number}");
        let why = one.why();
        assert!(why.contains("of another machine that no program had opened"), "{why}");
        let number = &one.lost()[0]["number"];
        let restored = one.request(&json!({"do": "restore", "number": number}));
        let name = restored["restored"].as_str().unwrap_or_else(|| panic!("{restored}"));
        assert_eq!(one.read(name).as_deref(), Ok("of m2"), "way {number}");
    }
}

#[test]
fn a_version_that_a_program_has_read_is_replaced() {
    let ways: [Way; 3] = [
        |bed| {
            bed.read("a")?;
            bed.write("b", "new")?;
            bed.rename("b", "a")
        },
        |bed| bed.read("a").and_then(|_| bed.write("a", "new")),
        |bed| bed.append("a").and_then(|file| file.write("1 + 1")),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let (one, _two) = changed_elsewhere(|_| {});
        way(&one).expect("held");
        assert!(one.lost().is_empty(), "way {number}");
        // This machine's own version is no unread one.
        one.write("a", "newer").expect("held");
        assert!(one.lost().is_empty(), "way {number}");
    }
}

/// The program opens the file before the guard of its machine knows that it is a new version.
#[test]
fn a_version_that_was_read_before_the_lock_came_is_replaced() {
    let one = Bed::copies();
    let two = one.copy(|_| {});
    one.write("a", "of m1").expect("the lock is free");
    hand_over(&one, &two);
    two.write("a", "of m2").expect("held");
    two.give();
    two.carry("", &one);
    assert_eq!(one.read("a").as_deref(), Ok("of m2"));
    one.take();
    one.write("a", "newer").expect("held");
    assert!(one.lost().is_empty());
}

#[test]
fn a_careful_guard_refuses_a_save_over_a_version_that_nobody_has_read() {
    let (one, _two) = changed_elsewhere(|setup| setup.unread.is_careful = true);
    assert_eq!(one.write("a", "new"), Err(libc::ESTALE));
    assert!(one.why().contains("no program here has opened"), "{}", one.why());
    one.write("b", "new").expect("nobody else has written it");
    assert_eq!(one.rename("b", "a"), Err(libc::ESTALE));
    assert_eq!(one.real("a").as_deref(), Some("of m2"));
    let why = |it: &Value| it["why"].as_str().expect("text").contains("it would have replaced");
    assert!(one.lost().iter().all(why) && !one.lost().is_empty(), "{:?}", one.lost());
    let text = one.read("a").expect("readable");
    one.write("a", &(text + "!")).expect("it was read");
    assert_eq!(one.read("a").as_deref(), Ok("of m2!"));
}

#[test]
fn the_oldest_versions_are_dropped_when_they_are_too_many() {
    let keep = |bytes: u64| move |setup: &mut Setup| setup.unread.keep_bytes = bytes;
    let one = Bed::copies_with(keep(10));
    let two = one.copy(|_| {});
    one.write("a", "of m1").expect("the lock is free");
    hand_over(&one, &two);
    for (name, text) in [("a", "of m2"), ("b", "four"), ("c", "six of"), ("d", "eleven byte")] {
        two.write(name, text).expect("held");
    }
    hand_over(&two, &one);
    for name in ["a", "b", "c"] {
        one.write(name, "new").expect("held");
    }
    assert_eq!(kept(&one), ["c", "b"]);
    assert_eq!(one.write("d", "new"), Err(libc::ESTALE));
    assert!(one.why().contains("--keep-unread"), "{}", one.why());
    // A guard that is started again knows what it has kept, and what nobody has read.
    let one = one.restart(keep(12));
    one.take();
    one.write("d", "new").expect("held");
    assert_eq!(kept(&one), ["d"]);
}

fn ended_by_request(bed: &Bed) -> bool {
    let status = bed.status();
    let how = status["last_tenure"]["how"].as_str().unwrap_or_default().to_owned();
    status["state"] == "reading" && how.contains("another machine asked for the lock")
}

/// A refused change asks the other machine, and the lock comes although no program waits for it.
#[test]
fn a_refused_change_asks_for_the_lock_and_succeeds_when_it_is_repeated() {
    let one = Bed::copies_with(soon_idle);
    let two = one.copy(|_| {});
    one.write("a", "of m1").expect("the lock is free");
    let unsaved = one.create("c").expect("held");
    assert_eq!(two.write("b", "of m2"), Err(libc::EROFS), "m1 holds the lock");
    let why = two.why();
    assert!(why.contains("m1 holds the lock") && why.contains("hand it over: try again"), "{why}");
    drop(unsaved);
    eventually("the lock of the second machine", || {
        one.carry("", &two);
        (state(&two) == "holding").then_some(())
    });
    two.write("b", "of m2").expect("the lock is here");
    assert!(ended_by_request(&one), "{}", one.status());
}

#[test]
fn a_file_that_never_asks_leaves_the_lock_where_it_is() {
    let one = Bed::copies_with(soon_idle);
    let two = one.copy(|setup| setup.policy.never_ask = patterns(&["index.lock"]));
    one.write("a", "of m1").expect("the lock is free");
    assert_eq!(two.write("index.lock", ""), Err(libc::EROFS), "m1 holds the lock");
    assert!(two.why().contains("m1 holds the lock"), "{}", two.why());
    quiet(&one);
    assert_eq!((state(&one).as_str(), state(&two).as_str()), ("holding", "reading"));
    assert!(one.status()["wanted_by"].is_null());
}

#[test]
fn a_machine_that_keeps_the_lock_gives_it_up_when_a_person_does() {
    let one = Bed::copies_with(|setup| setup.policy.when_asked = WhenAsked::Keep);
    let two = one.copy(|_| {});
    let events = one.events();
    one.take();
    events.next("held");
    let taking = begin_take(&two);
    events.next("wanted");
    quiet(&one);
    assert_eq!(state(&one), "holding");
    one.give();
    is_taken(taking);
}

#[test]
fn the_lock_is_handed_over_after_the_last_file_is_closed() {
    let one = Bed::copies_with(soon_idle);
    let two = one.copy(|_| {});
    let events = one.events();
    let file = one.create("a").expect("the lock is free");
    events.next("held");
    let taking = begin_take(&two);
    events.next("wanted");
    quiet(&one);
    assert_eq!(state(&one), "holding", "a file is open for writing");
    file.write("whole").expect("ready");
    file.close().expect("published");
    eventually("the hand-over", || ended_by_request(&one).then_some(()));
    one.carry("", &two);
    is_taken(taking);
    assert_eq!(two.read("a").as_deref(), Ok("whole"));
}

/// A machine whose files have not arrived gives the lock back as soon as another one asks, unless a
/// person waits for it there.
#[test]
fn a_machine_that_is_not_ready_makes_way_for_one_that_is() {
    let one = Bed::copies_with(soon_idle);
    let two = one.copy(|setup| setup.policy.on_write = OnWrite::Wait(Span::from_secs(300)));
    one.write("old", "of m1").expect("the lock is free");
    one.give();
    let program = two.program();
    let writing = std::thread::spawn(move || program.write("old", "of m2"));
    not_ready(&two, "the marker of m1's tenure");
    // The first machine has everything.
    eventually("the lock of the first machine", || one.write("b", "of m1").ok());
    eventually("the lock of the second machine", || {
        one.carry("", &two);
        (state(&two) == "holding").then_some(())
    });
    assert_eq!(writing.join().expect("no panic"), Ok(()));
    assert_eq!(two.read("b").as_deref(), Ok("of m1"));
}

#[test]
fn a_machine_where_a_person_waits_makes_no_way() {
    let one = Bed::copies();
    let two = one.copy(soon_idle);
    one.write("a", "of m1").expect("the lock is free");
    one.give();
    let events = two.events();
    let taking = begin_take(&two);
    not_ready(&two, "the marker of m1's tenure");
    assert_eq!(one.write("b", "of m1"), Err(libc::EROFS), "m2 holds the lock");
    while events.any()["event"] != "wanted" {}
    quiet(&two);
    assert_eq!(state(&two), "arriving");
    one.carry("", &two);
    is_taken(taking);
}

/// Another client may have waited since before the grant.
#[test]
fn who_waited_before_the_grant_gets_the_lock_next() {
    let one = Bed::copies_with(|setup| setup.policy.when_asked = WhenAsked::Keep);
    let two = one.copy(soon_idle);
    let events = one.events();
    one.take();
    events.next("held");
    let taking = begin_take(&two);
    events.next("wanted");
    assert!(!one.service.wanted_by("m3"), "it waits");
    one.give();
    one.carry("", &two);
    is_taken(taking);
    eventually("the hand-over", || ended_by_request(&two).then_some(()));
    assert_eq!(two.service.holder().as_deref(), Some("m3"));
}
