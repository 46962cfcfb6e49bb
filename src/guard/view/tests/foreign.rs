//! Changes of others: foreign versions, which came past the view, are put aside by a save, a rename
//! or a removal through the view; and many machines change a folder on one storage at a time
//! (`--mode shared`).

use super::bed::{Bed, Machines, Setup};
use super::program::Events;
use crate::engine::Mode;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// A guard that holds the lock, over a folder with the file `a`.
fn holding(machines: Machines) -> Bed {
    let bed = Bed::with(|setup| setup.machines = machines);
    bed.write("a", "ours").expect("the lock is free");
    bed
}

/// Makes a foreign version of `a`.
fn plant(bed: &Bed, how: &str) {
    let a = bed.folder.path("a");
    match how {
        "replaced" => {
            bed.folder.put(".a.tmp", b"foreign");
            fs::rename(bed.folder.path(".a.tmp"), a).expect("renamed");
        }
        "changed" => fs::write(a, "foreign").expect("written"),
        "deleted" => fs::remove_file(a).expect("removed"),
        "made" => {
            fs::remove_file(&a).expect("removed");
            fs::write(a, "foreign").expect("written");
        }
        _ => {
            fs::remove_file(&a).expect("removed");
            bed.folder.put("a/inside", b"foreign");
        }
    }
}

/// Checks that the foreign version of `a` is among the lost files, reported, and can be restored.
fn is_kept(bed: &Bed, what: &str) {
    let kept = bed.lost();
    assert_eq!(kept.len(), 1, "{what}: {kept:?}");
    assert_eq!((&kept[0]["path"], &kept[0]["size"]), (&"a".into(), &7.into()), "{what}");
    assert!(kept[0]["why"].as_str().expect("text").contains("outside the view"), "{what}");
    assert!(bed.why().contains("a had a version that came past the view"), "{}", bed.why());
    let restored = bed.request(&json!({"do": "restore", "number": kept[0]["number"]}));
    let name = restored["restored"].as_str().unwrap_or_else(|| panic!("{restored}"));
    assert_eq!(bed.read(name).as_deref(), Ok("foreign"), "{what}");
    bed.unlink(name).expect("removed");
    assert!(bed.lost().is_empty(), "{what}: the restored version is no foreign one");
}

/// A save over the foreign version.
fn check_save(bed: &Bed, how: &str) {
    let saved = bed.create("a").expect("held");
    saved.write("saved").expect("held");
    plant(bed, how);
    if how == "directory" {
        assert_eq!(saved.sync(), Err(libc::EISDIR));
        drop(saved);
        assert_eq!(bed.real("a/inside").as_deref(), Some("foreign"));
        bed.request(&json!({"do": "drop", "number": bed.lost()[0]["number"]}));
        fs::remove_dir_all(bed.folder.path("a")).expect("there");
    } else {
        saved.sync().expect("published");
        drop(saved);
        assert_eq!(bed.real("a").as_deref(), Some("saved"));
    }
}

/// A rename over the foreign version, and its removal.
fn check_names(bed: &Bed, how: &str, events: &Events) {
    plant(bed, how);
    bed.write("b", "new").expect("held");
    bed.rename("b", "a").expect("held");
    assert_eq!(bed.read("a").as_deref(), Ok("new"));
    is_kept(bed, &format!("rename, {how}"));
    events.next("foreign");
    bed.write("a", "ours").expect("held");
    plant(bed, how);
    bed.unlink("a").expect("held");
    assert!(!bed.exists("a"));
    is_kept(bed, &format!("unlink, {how}"));
    events.next("foreign");
    bed.write("a", "ours").expect("held");
}

fn check(machines: Machines) {
    let bed = holding(machines);
    let events = bed.events();
    for how in ["replaced", "changed", "made"] {
        check_save(&bed, how);
        is_kept(&bed, &format!("save, {how}"));
        assert_eq!(events.next("foreign")["path"], "a");
        check_names(&bed, how, &events);
    }
    for how in ["deleted", "directory"] {
        check_save(&bed, how);
        assert!(bed.lost().is_empty(), "{how}");
        bed.write("a", "ours").expect("held");
    }
    bed.unlink("a").expect("held");
    bed.mkdir("d").expect("held");
    bed.write("d/a", "ours").expect("held");
    bed.rename("d/a", "a").expect("held");
    bed.rmdir("d").expect("held");
    assert!(bed.lost().is_empty(), "{:?}", bed.lost());
}

#[test]
fn a_foreign_version_is_put_aside() {
    check(Machines::One);
}

#[test]
fn a_foreign_version_on_shared_storage_is_put_aside() {
    check(Machines::Shared);
}

#[test]
fn a_change_of_attributes_does_not_make_a_foreign_version_an_own_one() {
    let bed = holding(Machines::One);
    plant(&bed, "replaced");
    bed.chmod("a", 0o600).expect("held");
    bed.link("a", "b").expect("held");
    bed.unlink("b").expect("held");
    bed.write("a", "new").expect("held");
    is_kept(&bed, "chmod");
}

/// Tenures that follow each other within one tick of the file system's clock.
#[test]
fn the_version_of_the_last_tenure_is_no_foreign_one() {
    let bed = Bed::new();
    for number in 0..300 {
        bed.write("a", &number.to_string()).expect("the lock is free");
        bed.rename("a", "b").expect("held");
        bed.rename("b", "a").expect("held");
        bed.give();
    }
    assert!(bed.lost().is_empty(), "{:?}", bed.lost());
}

fn of_client(client: &'static str) -> impl FnOnce(&mut Setup) {
    move |setup| {
        (setup.machines, setup.client, setup.mode) = (Machines::Shared, client, Mode::Shared);
    }
}

/// Two machines that may change the folder at the same time.
fn two_machines() -> [Bed; 2] {
    let one = Bed::with(of_client("m1"));
    let two = one.beside(of_client("m2"));
    [one, two]
}

/// Returns the tokens of the stages.
fn stages(bed: &Bed) -> Vec<u64> {
    let names = fs::read_dir(bed.state("stage")).expect("there").flatten();
    let token = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().expect("text");
        name.rsplit('-').next().and_then(|token| token.parse().ok()).expect("a token")
    };
    names.map(token).collect()
}

fn token(bed: &Bed) -> u64 {
    bed.status()["tenure"]["token"].as_u64().expect("held")
}

/// A machine in the exclusive mode waits for the others, and they for it.
#[test]
fn an_exclusive_machine_has_the_folder_alone() {
    let [one, two] = two_machines();
    let alone = one.beside(|setup| setup.client = "m3");
    one.write("a", "1").expect("the lock is free");
    two.write("b", "2").expect("the lock is shared");
    for bed in [&one, &two] {
        bed.give();
    }
    alone.take();
    assert_eq!(stages(&alone), [token(&alone)]);
    for bed in [&one, &two] {
        assert_eq!(bed.write("c", "no"), Err(libc::EROFS), "the lock is held");
        assert!(bed.why().contains("m3"), "{}", bed.why());
    }
    alone.write("c", "3").expect("held");
    alone.give();
    one.take();
    two.take();
    two.write("c", "4").expect("the lock is shared");
    assert_eq!(one.read("c").as_deref(), Ok("4"));
}

/// A machine that takes the lock again parts no database that another one changes meanwhile: what
/// that one writes would be lost with the old inode.
#[test]
fn a_database_that_another_machine_changes_keeps_its_inode() {
    let [one, two] = two_machines();
    for name in ["x.db", "x.db-wal"] {
        one.write(name, "00000000").expect("the lock is free");
    }
    let open = |bed: &Bed| bed.open("x.db", libc::O_RDWR).expect("held");
    let inode = || fs::metadata(one.folder.path("x.db")).expect("there").ino();
    let of_one = open(&one);
    of_one.write_at(0, "11").expect("held");
    one.give();
    two.take();
    let of_two = open(&two);
    of_two.write_at(2, "22").expect("held");
    let before = inode();
    one.take();
    of_two.write_at(4, "22").expect("held");
    assert_eq!(inode(), before);
    assert_eq!(one.real("x.db").as_deref(), Some("11222200"));
    assert_eq!(of_one.write_at(6, "33"), Err(libc::ESTALE), "another machine has changed it");
}

/// The last save wins; the version of another machine that it replaces is kept for a while.
#[test]
fn a_save_over_the_version_of_another_machine_keeps_that_version() {
    let [one, two] = two_machines();
    one.write("a", "of m1").expect("the lock is free");
    two.write("b", "of m2").expect("the lock is shared");
    one.write("a", "again of m1").expect("held");
    assert!(one.lost().is_empty(), "an own version is not kept");
    two.write("a", "of m2").expect("held");
    assert_eq!(one.real("a").as_deref(), Some("of m2"));
    let lost = two.lost();
    assert!(lost.len() == 1 && lost[0]["path"] == "a", "{lost:?}");
}

/// A snapshot of a folder that other machines change is best effort, and says so.
#[test]
fn a_snapshot_in_the_shared_mode_carries_its_risk() {
    let bed = Bed::with(of_client("m1"));
    bed.write("a", "1").expect("the lock is free");
    let ask = |more: Value| {
        let mut request = json!({"do": "snapshot"});
        request.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        bed.request(&request)
    };
    let refused = ask(json!({"snapshot": "take"})).to_string();
    assert!(refused.contains("E_CONSISTENCY_UNAVAILABLE"), "{refused}");
    assert!(refused.contains("--best-effort"), "{refused}");
    let taken = ask(json!({"snapshot": "take", "best_effort": true}));
    assert_eq!(taken["consistency"], "best-effort", "{taken}");
    let risk = taken["risk"][0].as_str().expect("a risk").to_owned();
    assert!(risk.contains("other machines"), "{risk}");
    for shown in [json!({"snapshot": "list"}), json!({"snapshot": "show", "id": taken["id"]})] {
        let shown = ask(shown).to_string();
        assert!(shown.contains("best-effort") && shown.contains(&risk), "{shown}");
    }
}

const ATTACKER: u32 = 4_001;
const VICTIM: u32 = 4_002;

#[test]
fn open_directories_of_a_view_have_a_share() {
    let bed = Bed::new();
    let attacker = bed.user(ATTACKER);
    let held: Vec<_> = (0..512).map(|_| attacker.open_dir("").expect("its share")).collect();
    assert_eq!(attacker.open_dir("").map(drop), Err(libc::ENFILE));
    let why = attacker.why();
    assert!(why.contains("user 4001 has 512 open directories"), "{why}");
    for other in [bed.user(VICTIM), bed.program()] {
        other.list("").expect("other users read directories");
    }
    drop(held);
    attacker.list("").expect("the share is free again");
}

#[test]
fn one_user_takes_half_of_the_space_and_holes_take_none() {
    let bed = Bed::with(|setup| {
        (setup.limits.staged, setup.limits.lost) = (16 << 20, 32 << 20);
    });
    let [attacker, victim] = [ATTACKER, VICTIM].map(|uid| bed.user(uid));
    for name in ["a", "b"] {
        let file = attacker.create(name).expect("the lock is free");
        file.write_at(50 << 30, "x").expect("a block");
        bed.give();
    }
    bed.request(&json!({"do": "drop", "number": 1}));
    let lost = bed.status()["lost_bytes"].as_u64().expect("a number");
    assert!(lost <= 64 << 10, "{lost} bytes on the disk");
    let write = |program: &super::program::Program, name: &str, bytes: usize| {
        let file = program.create(name)?;
        file.write_at(0, &"1".repeat(bytes)).map(|()| file)
    };
    let open = write(&attacker, "hog", 8 << 20).expect("half of the space");
    assert_eq!(open.write_at(8 << 20, "x"), Err(libc::ENOSPC), "more than half");
    let why = attacker.why();
    assert!(why.contains("files of user 4001") && why.contains("8388608 bytes"), "{why}");
    assert_eq!(attacker.write("more", "x"), Err(libc::ENOSPC), "no space of this user's");
    let others = write(&victim, "other", 5 << 20).expect("others have space");
    let own = write(&bed, "own", 2 << 20).expect("a part is kept for the user of the guard");
    drop((open, others, own));
    let file = attacker.create("allocated").expect("the space is free again");
    let keep_size = libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(file.allocate(keep_size, 0, 9 << 20), Err(libc::ENOSPC), "more than half");
    drop(file);
    attacker.write("allocated", "whole").expect("the space is free again");
}
