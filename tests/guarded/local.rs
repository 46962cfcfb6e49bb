//! Files that belong to this machine: they need no lock, and never reach the folder.
use std::fs;
use std::path::PathBuf;
use testing::{Guard, Scratch, python, shell};

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
