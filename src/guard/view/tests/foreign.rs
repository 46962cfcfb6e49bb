//! Foreign versions of files, which came past the view: a save, a rename or a removal through the
//! view puts them aside.

use super::bed::{Bed, Machines};
use super::program::Events;
use serde_json::json;
use std::fs;

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
