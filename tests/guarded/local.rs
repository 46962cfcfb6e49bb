//! Files that belong to this machine: they need no lock, and never reach the folder.
use std::fs;
use std::path::PathBuf;
use testing::{Guard, Scratch, python, shell};

/// Exchanges the directories `moved` and `x`.
const EXCHANGE: &str =
    "import ctypes; assert ctypes.CDLL(None).renameat2(-100, b'moved', -100, b'x', 2) == 0";

/// A guard that never takes the lock by itself, over a folder with some files.
fn unlocked(scratch: &Scratch, options: &[&str]) -> Guard {
    scratch.init(&["--alone"]);
    fs::create_dir_all(scratch.folder().join("deep/er")).expect("made");
    fs::write(scratch.folder().join("deep/notes.md"), "text\n").expect("written");
    let mut all = vec!["--on-write", "refuse", "--client", "laptop1"];
    all.extend(options);
    Guard::start(scratch, "view", &all)
}

/// Whether there is a local file of this name.
fn is_local(scratch: &Scratch, name: &str) -> bool {
    let dirs = fs::read_dir(local_of(scratch)).expect("there");
    dirs.flatten().any(|dir| dir.path().join(name).exists())
}

/// Returns the directory of the local files.
fn local_of(scratch: &Scratch) -> PathBuf {
    let state = fs::read_dir(scratch.join("state")).expect("there").next().expect("one");
    state.expect("readable").path().join("laptop1/local")
}

fn names_in(dir: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("UTF-8");
    let mut names: Vec<_> = entries.map(|entry| name(entry.expect("readable"))).collect();
    names.sort();
    names
}

#[test]
fn local_files_need_no_lock_and_never_reach_the_folder() {
    let scratch = Scratch::with_folder();
    let guard = unlocked(&scratch, &[]);
    let script = "
        echo swap > deep/er/.notes.md.swp
        echo more >> deep/er/.notes.md.swp
        echo x > .DS_Store; echo yy > .DS_Store
        truncate -s 7 deep/Thumbs.db; chmod 600 deep/Thumbs.db; touch -d @77 deep/Thumbs.db
        mkdir .Trash-0 .Trash-0/files; echo gone > .Trash-0/files/a; mv .Trash-0/files/a .Trash-0/b
        ln .Trash-0/b .Trash-0/c; ln -s b .Trash-0/d; mkfifo .Trash-0/e; rm .Trash-0/c
        mv deep/er/.notes.md.swp deep/.other.swp
        test \"$(cat deep/.other.swp)\" = 'swap
more'
        test \"$(stat -c '%s %a %Y' deep/Thumbs.db)\" = '7 600 77'
        ls -A . deep .Trash-0";
    let listed = shell(&guard.view, script).ok();
    for name in [".DS_Store", ".Trash-0", ".other.swp", "Thumbs.db", "notes.md", "b", "d", "e"] {
        assert!(listed.lines().any(|line| line == name), "{name} in {listed}");
    }
    assert_eq!(names_in(scratch.folder()), [".latchfs", "deep"]);
    assert_eq!(names_in(scratch.folder().join("deep")), ["er", "notes.md"]);
    assert!(is_local(&scratch, ".other.swp"));
    // The directory of the local files of another one is not shown.
    assert_eq!(listed.lines().filter(|line| *line == "er").count(), 1);
    for change in ["mv .DS_Store x", "mv deep/notes.md .Trash-0/n", "ln .DS_Store y"] {
        shell(&guard.view, change).fails();
    }
    for (from, to) in [(".DS_Store", "x"), ("deep/notes.md", ".Trash-0/n")] {
        let refused = fs::rename(guard.path(from), guard.path(to)).expect_err("not the same side");
        assert_eq!(refused.raw_os_error(), Some(libc::EXDEV), "{from}");
    }
    guard.end();
    let guard = Guard::start(&scratch, "view", &["--client", "laptop1"]);
    assert_eq!(fs::read_to_string(guard.path(".DS_Store")).expect("kept"), "yy\n");
}

#[test]
fn local_files_follow_their_directory() {
    let scratch = Scratch::with_folder();
    let guard = unlocked(&scratch, &[]);
    let local = local_of(&scratch);
    shell(&guard.view, "echo 1 > deep/er/.a.swp; echo 2 > deep/.b.swp").ok();
    shell(&guard.view, "rmdir deep/er").fails();
    guard.request("take", &[]).ok();
    shell(&guard.view, "mv deep moved; cat moved/.b.swp moved/er/.a.swp").ok();
    shell(&guard.view, "mkdir -p o/p; mv moved/er o/p; cat o/p/er/.a.swp; mv o/p/er moved").ok();
    let exchange =
        format!("mkdir x; python3 -c \"{EXCHANGE}\"; cat x/.b.swp; test ! -e moved/.b.swp");
    shell(&guard.view, &exchange).ok();
    shell(&guard.view, "rm -r moved; mv x moved; cat moved/er/.a.swp; rmdir moved/er o/p o").ok();
    assert!(!scratch.folder().join("moved/er").exists());
    // A directory is not removed with a local directory in it.
    shell(&guard.view, "mkdir sub sub/.Trash-1; ! rmdir sub; rmdir sub/.Trash-1 sub").ok();
    shell(&guard.view, "echo 1 > moved/.z.swp; rm moved/notes.md; rmdir moved").ok();
    assert!(names_in(local).is_empty());
}

#[test]
fn a_file_that_the_folder_has_already_stays_in_the_folder() {
    let scratch = Scratch::with_folder();
    let guard = unlocked(&scratch, &["--local", "build/**", "--local", "*.tmp"]);
    fs::write(scratch.folder().join("old.tmp"), "old").expect("written");
    let refused = fs::write(guard.path("old.tmp"), "new").expect_err("no lock is held");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    shell(&guard.view, "echo 1 > new.tmp").ok();
    assert_eq!(shell(&guard.view, "ls *.tmp; cat *.tmp").ok(), "new.tmp\nold.tmp\n1\nold");
    guard.request("take", &[]).ok();
    shell(&guard.view, "mkdir build; echo a > build/a; mkdir -p build/b/c; echo d > build/b/c/d")
        .ok();
    assert!(names_in(scratch.folder().join("build")).is_empty());
    assert_eq!(shell(&guard.view, "cat build/a build/b/c/d").ok(), "a\nd\n");
    shell(
        &guard.view,
        "rm old.tmp new.tmp; rm -r build; test -z \"$(ls)\" || test \"$(ls)\" = deep",
    )
    .ok();
}

#[test]
fn shared_memory_is_local_only_beside_its_log() {
    let scratch = Scratch::with_folder();
    let guard = unlocked(&scratch, &[]);
    let refused = fs::write(guard.path("plain-shm"), "x").expect_err("there is no log");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    guard.request("take", &[]).ok();
    let program = "
import os, sqlite3
db = sqlite3.connect('db')
db.execute('pragma journal_mode = wal')
db.execute('create table t (n)')
db.executemany('insert into t values (?)', [(n,) for n in range(100)])
db.commit()
assert os.path.exists('db-shm') and os.path.exists('db-wal')
assert not os.path.exists('FOLDER/db-shm') and os.path.exists('FOLDER/db-wal')
os._exit(0)
";
    let folder = scratch.folder().display().to_string();
    python(0, &guard.view, &program.replace("FOLDER", &folder)).ok();
    guard.request("give", &[]).ok();
    // A reader of the database changes the shared memory, and needs no lock for that.
    let reader = "
import sqlite3
db = sqlite3.connect('file:db?mode=ro', uri=True)
assert db.execute('select count(*) from t').fetchone() == (100,)
";
    python(0, &guard.view, reader).ok();
    assert!(is_local(&scratch, "db-shm"));
}

#[test]
fn local_files_have_the_permissions_of_their_directory() {
    let scratch = Scratch::with_folder();
    let guard = unlocked(&scratch, &[]);
    shell(
        &scratch.folder(),
        "chmod 700 deep; mkdir -m 777 open; mkdir -m 2775 group; chgrp 7 group",
    )
    .ok();
    let program = "
import os
open('open/.a.swp', 'w').close()
assert os.stat('open/.a.swp').st_uid == 4242
for name in ['deep/.a.swp', 'group/.a.swp']:
    try:
        open(name, 'w')
        raise SystemExit(name)
    except PermissionError:
        pass
";
    python(4242, &guard.view, program).ok();
    shell(&guard.view, "echo x > group/.b.swp; test \"$(stat -c %g group/.b.swp)\" = 7").ok();
}
