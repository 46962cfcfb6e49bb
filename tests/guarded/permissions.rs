//! Modes, owners, ACLs and names of files that programs make in a view, compared with the same
//! programs in a plain directory.
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use testing::{Guard, Scratch, python, shell};

/// Makes files in all ways, and prints their modes, owners and ACLs.
const PROGRAM: &str = include_str!("../fixtures/guard_modes.py");

fn compare(uid: u32) {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let plain = scratch.join("plain");
    fs::create_dir(&plain).expect("made");
    let program = |call: &str| format!("{PROGRAM}\n{call}");
    python(0, &plain, &program("prepare()")).ok();
    python(0, &scratch.folder(), &program("prepare()")).ok();
    let guard = Guard::start(&scratch, "view", &[]);
    let make = |dir| python(uid, dir, &program("make_all()")).ok();
    let (expected, found) = (make(&plain), make(&guard.view));
    let lines = expected.lines().zip(found.lines());
    let other: Vec<_> = lines.filter(|(one, other)| one != other).collect();
    assert!(other.is_empty(), "{} differ: {:#?}", other.len(), &other[..other.len().min(9)]);
    assert_eq!((expected.lines().count(), found.lines().count()), (900, 900));
    // The folder itself has what the view shows.
    let list = "find . -path ./.latchfs -prune -o -printf '%P %M %U %G %y\\n' | sort";
    let real = shell(&scratch.folder(), list).ok();
    assert_eq!(real, shell(&guard.view, list).ok());
    // A file from before the default ACL has none after it is rewritten.
    if uid == 0 {
        shell(&guard.view, "echo new > full/old; chmod 644 full/old").ok();
        assert_eq!(fs::metadata(guard.path("full/old")).expect("there").mode() & 0o777, 0o644);
        let program = "import os; assert 'system.posix_acl_access' not in os.listxattr('full/old')";
        python(0, &scratch.folder(), program).ok();
    }
}

#[test]
fn new_files_of_root_are_as_in_a_plain_directory() {
    compare(0);
}

#[test]
fn new_files_of_a_user_are_as_in_a_plain_directory() {
    compare(4242);
}

#[test]
fn an_acl_set_by_a_program_outside_the_group_ends_set_group_id() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let plain = scratch.join("plain");
    fs::create_dir(&plain).expect("made");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o755)).expect("ours");
    fs::set_permissions(scratch.folder(), fs::Permissions::from_mode(0o755)).expect("ours");
    let set = "import os, struct
entries = b''.join(struct.pack('<HHI', tag, 7, 0xffffffff) for tag in (1, 4, 32))
os.setxattr('a', 'system.posix_acl_access', struct.pack('<I', 2) + entries)
print(oct(os.stat('a').st_mode & 0o7777))";
    let mut modes = Vec::new();
    for dir in [&plain, &guard.view] {
        for group in [4_003, 0] {
            fs::write(dir.join("a"), "x").expect("the lock is free");
            std::os::unix::fs::chown(dir.join("a"), Some(4_001), Some(group)).expect("root may");
            fs::set_permissions(dir.join("a"), fs::Permissions::from_mode(0o2755)).expect("root");
            modes.push(python(4_001, dir, set).ok().trim().to_owned());
            fs::remove_file(dir.join("a")).expect("ours");
        }
    }
    assert_eq!(modes, ["0o777", "0o2777", "0o777", "0o2777"]);
}
