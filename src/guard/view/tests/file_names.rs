//! Names: long ones, ones that look alike, files that belong to this machine, and the times of
//! copies.

use super::bed::{Bed, Setup, patterns};
use crate::guard::barrier_store::test_disk::TestFolder;
use crate::guard::write_policy::OnWrite;
use kernel::file_system::RenameFlags;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

#[test]
fn names_of_255_bytes_are_saved_renamed_and_kept() {
    let bed = Bed::new();
    let (long, other) = ("n".repeat(255), "m".repeat(255));
    let mut deep = String::new();
    for part in ["d", "e", "f"] {
        deep += &part.repeat(255);
        bed.mkdir(&deep).expect("the lock is free");
        deep += "/";
    }
    for dir in ["", &deep] {
        let (long, other) = (format!("{dir}{long}"), format!("{dir}{other}"));
        bed.write(&long, "first").expect("saved");
        bed.rename(&long, &other).expect("renamed");
        bed.write(&other, "second").expect("saved again");
        assert_eq!(bed.real(&other).as_deref(), Some("second"));
        let half = bed.create(&long).expect("opened");
        bed.give();
        drop(half);
        assert_eq!(bed.real(&long), None);
        let too_long = format!("{dir}{}", "x".repeat(256));
        assert_eq!(bed.write(&too_long, ""), Err(libc::ENAMETOOLONG));
    }
    let lost = serde_json::json!(bed.lost()).to_string();
    assert_eq!(lost.matches(&long).count(), 2, "{lost}");
}

/// A guard that never takes the lock by itself, over a folder with some files.
fn unlocked(change: impl FnOnce(&mut Setup)) -> Bed {
    let folder = TestFolder::new();
    fs::create_dir_all(folder.path("deep/er")).expect("made");
    folder.put("deep/notes.md", b"text\n");
    Bed::over(folder, |setup| {
        setup.policy.on_write = OnWrite::Refuse;
        change(setup);
    })
}

fn real_names(bed: &Bed, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(bed.folder.path(dir)).expect("a directory");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("UTF-8");
    let mut names: Vec<_> = entries.map(|entry| name(entry.expect("readable"))).collect();
    names.sort();
    names
}

/// Returns the names of all local files.
fn local_names(bed: &Bed) -> Vec<String> {
    let dirs = fs::read_dir(bed.state("m1/local")).expect("there").flatten();
    let names = dirs.flat_map(|dir| fs::read_dir(dir.path()).into_iter().flatten().flatten());
    names.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect()
}

#[test]
fn local_files_need_no_lock_and_never_reach_the_folder() {
    let bed = unlocked(|_| {});
    bed.write("deep/er/.notes.md.swp", "swap\n").expect("local");
    let more = bed.append("deep/er/.notes.md.swp").expect("local");
    more.write("more\n").expect("local");
    drop(more);
    bed.write(".DS_Store", "x").expect("local");
    bed.write(".DS_Store", "yy").expect("local");
    bed.write("deep/Thumbs.db", "").expect("local");
    bed.truncate("deep/Thumbs.db", 7).expect("local");
    bed.chmod("deep/Thumbs.db", 0o600).expect("local");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(77);
    bed.touch("deep/Thumbs.db", time).expect("local");
    for dir in [".Trash-0", ".Trash-0/files"] {
        bed.mkdir(dir).expect("local");
    }
    bed.write(".Trash-0/files/a", "gone").expect("local");
    bed.rename(".Trash-0/files/a", ".Trash-0/b").expect("local");
    bed.link(".Trash-0/b", ".Trash-0/c").expect("local");
    bed.symlink("b", ".Trash-0/d").expect("local");
    bed.mkfifo(".Trash-0/e").expect("local");
    bed.unlink(".Trash-0/c").expect("local");
    bed.rename("deep/er/.notes.md.swp", "deep/.other.swp").expect("local");
    assert_eq!(bed.read("deep/.other.swp").as_deref(), Ok("swap\nmore\n"));
    let found = bed.stat("deep/Thumbs.db").expect("there");
    assert_eq!((found.size, found.perm, found.mtime), (7, 0o600, time));
    assert_eq!(
        bed.list("").as_deref(),
        Ok(&[".DS_Store", ".Trash-0", "deep"].map(String::from)[..])
    );
    let deep = [".other.swp", "Thumbs.db", "er", "notes.md"].map(String::from);
    assert_eq!(bed.list("deep").as_deref(), Ok(&deep[..]));
    assert_eq!(
        bed.list(".Trash-0").as_deref(),
        Ok(&["b", "d", "e", "files"].map(String::from)[..])
    );
    assert_eq!(bed.readlink(".Trash-0/d").as_deref(), Ok("b"));
    assert_eq!(real_names(&bed, ""), [".latchfs", "deep"]);
    assert_eq!(real_names(&bed, "deep"), ["er", "notes.md"]);
    assert!(local_names(&bed).contains(&".other.swp".to_owned()));
    for (from, to) in [(".DS_Store", "x"), ("deep/notes.md", ".Trash-0/n")] {
        assert_eq!(bed.rename(from, to), Err(libc::EXDEV), "{from}");
    }
    assert_eq!(bed.link(".DS_Store", "y"), Err(libc::EXDEV));
    let bed = bed.restart(|_| {});
    assert_eq!(bed.read(".DS_Store").as_deref(), Ok("yy"));
}

#[test]
fn local_files_follow_their_directory() {
    let bed = unlocked(|_| {});
    let read = |path: &str| bed.read(path).unwrap_or_default();
    bed.write("deep/er/.a.swp", "1").expect("local");
    bed.write("deep/.b.swp", "2").expect("local");
    assert_eq!(bed.rmdir("deep/er"), Err(libc::EROFS));
    bed.take();
    bed.rename("deep", "moved").expect("held");
    assert_eq!((read("moved/.b.swp"), read("moved/er/.a.swp")), ("2".into(), "1".into()));
    for dir in ["o", "o/p", "x"] {
        bed.mkdir(dir).expect("held");
    }
    bed.rename("moved/er", "o/p/er").expect("held");
    assert_eq!(read("o/p/er/.a.swp"), "1");
    bed.rename("o/p/er", "moved/er").expect("held");
    bed.rename_with("moved", "x", RenameFlags::RENAME_EXCHANGE).expect("held");
    assert_eq!((read("x/.b.swp"), bed.exists("moved/.b.swp")), ("2".into(), false));
    bed.rmdir("moved").expect("empty");
    bed.rename("x", "moved").expect("held");
    assert_eq!(read("moved/er/.a.swp"), "1");
    for dir in ["moved/er", "o/p", "o"] {
        bed.rmdir(dir).expect("empty but for local files");
    }
    assert!(!bed.folder.path("moved/er").exists());
    // A directory is not removed with a local directory in it.
    bed.mkdir("sub").expect("held");
    bed.mkdir("sub/.Trash-1").expect("local");
    assert_eq!(bed.rmdir("sub"), Err(libc::ENOTEMPTY));
    bed.rmdir("sub/.Trash-1").expect("local");
    bed.rmdir("sub").expect("empty");
    bed.write("moved/.z.swp", "1").expect("local");
    bed.unlink("moved/notes.md").expect("held");
    bed.rmdir("moved").expect("empty but for local files");
    assert!(local_names(&bed).is_empty(), "{:?}", local_names(&bed));
    assert_eq!(fs::read_dir(bed.state("m1/local")).expect("there").count(), 0);
}

#[test]
fn a_file_that_the_folder_has_already_stays_in_the_folder() {
    let bed = unlocked(|setup| setup.policy.local = patterns(&["build/**", "*.tmp"]));
    bed.folder.put("old.tmp", b"old");
    assert_eq!(bed.write("old.tmp", "new"), Err(libc::EROFS), "no lock is held");
    bed.write("new.tmp", "1").expect("local");
    assert_eq!(bed.list("").as_deref(), Ok(&["deep", "new.tmp", "old.tmp"].map(String::from)[..]));
    assert_eq!((bed.read("new.tmp"), bed.read("old.tmp")), (Ok("1".into()), Ok("old".into())));
    bed.take();
    bed.mkdir("build").expect("held");
    bed.write("build/a", "a").expect("local");
    for dir in ["build/b", "build/b/c"] {
        bed.mkdir(dir).expect("local");
    }
    bed.write("build/b/c/d", "d").expect("local");
    assert!(real_names(&bed, "build").is_empty());
    assert_eq!((bed.read("build/a"), bed.read("build/b/c/d")), (Ok("a".into()), Ok("d".into())));
    for file in ["old.tmp", "new.tmp", "build/a", "build/b/c/d"] {
        bed.unlink(file).expect("held");
    }
    for dir in ["build/b/c", "build/b", "build"] {
        bed.rmdir(dir).expect("held");
    }
    assert_eq!(bed.list("").as_deref(), Ok(&["deep".to_owned()][..]));
}

/// A sync tool that compares sizes and times would take a copy of the same size and time for the
/// version before.
#[test]
fn a_copy_with_size_and_time_of_the_version_before_gets_a_time_of_its_own() {
    let bed = Bed::copies();
    let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    let real_time = |name: &str| {
        let found = fs::metadata(bed.folder.path(name)).expect("there");
        (found.mtime(), found.mtime_nsec())
    };
    let copy = |name: &str, millis: u64| {
        let file = bed.create(name).expect("held");
        file.write("new").expect("held");
        bed.touch(name, at(millis)).expect("held");
        file.close().expect("published");
    };
    bed.take();
    bed.write("a", "old").expect("held");
    bed.touch("a", at(1_000_500)).expect("held");
    copy("a", 1_000_500);
    assert_eq!((real_time("a"), bed.real("a")), ((1_000, 500_000_001), Some("new".into())));
    bed.touch("a", at(1_000_000)).expect("held");
    bed.unlink("a").expect("held");
    copy("a", 1_000_000);
    assert_eq!(real_time("a"), (1_000, 1));
    copy("b", 1_000_000);
    assert_eq!(real_time("b"), (1_000, 0), "nothing had the name");
}

#[test]
fn names_that_differ_by_normalization_alone_are_refused() {
    let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
    let bed = Bed::copies();
    bed.take();
    bed.write(composed, "1").expect("the only one");
    bed.write("b", "2").expect("another");
    let refused: [&dyn Fn() -> Result<(), i32>; 5] = [
        &|| bed.write(decomposed, "2"),
        &|| bed.mkdir(decomposed),
        &|| bed.rename("b", decomposed),
        &|| bed.link("b", decomposed),
        &|| bed.symlink("x", decomposed),
    ];
    for refused in refused {
        assert_eq!(refused(), Err(libc::EEXIST));
        assert!(bed.why().contains("normalization"), "{}", bed.why());
        assert_eq!(bed.rename("b", ".latchfs"), Err(libc::EPERM), "another refusal");
    }
    bed.write(composed, "3").expect("the same name");
    bed.rename(composed, decomposed).expect("one is left");
    let alone = Bed::new();
    alone.write(composed, "1").expect("the lock is free");
    alone.write(decomposed, "2").expect("nothing carries the folder");
}
