//! Modes, owners, ACLs and names of files that programs make in a view, compared with the same
//! programs in a plain directory.
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use testing::{Guard, Scratch, Server, python, shell};

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
fn a_copy_with_size_and_time_of_the_version_before_gets_a_time_of_its_own() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url]);
    let guard = Guard::start(&scratch, "view", &["--client", "m1"]);
    let script = "
        echo old > a; touch -d @1000.5 a; mkdir t; echo new > t/a; touch -d @1000.5 t/a
        cp -p t/a a; stat -c %.9Y ../folder/a; cat a
        echo old > a; touch -d @1000 a t/a; tar cf t.tar -C t a; tar xf t.tar
        stat -c %.9Y ../folder/a
        cp -p t/a b; stat -c %.9Y ../folder/b";
    let output = shell(&guard.view, script).ok();
    let times: Vec<_> = output.lines().collect();
    assert_eq!(times[..2], ["1000.500000001", "new"], "{output}");
    assert!(times[2] == "1000.000000001", "{output}");
    assert_eq!(times[3], "1000.000000000", "nothing had the name: {output}");
}

#[test]
fn names_that_differ_by_normalization_alone_are_refused() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url]);
    let guard = Guard::start(&scratch, "view", &["--client", "m1"]);
    let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
    fs::write(guard.path(composed), "1").expect("the only one");
    fs::write(guard.path("b"), "2").expect("another");
    let refused = [
        fs::write(guard.path(decomposed), "2"),
        fs::create_dir(guard.path(decomposed)),
        fs::rename(guard.path("b"), guard.path(decomposed)),
        fs::hard_link(guard.path("b"), guard.path(decomposed)),
        std::os::unix::fs::symlink("x", guard.path(decomposed)),
    ];
    for refused in refused {
        assert_eq!(refused.expect_err("a twin").raw_os_error(), Some(libc::EEXIST));
        assert!(guard.why().contains("normalization"), "{}", guard.why());
    }
    fs::write(guard.path(composed), "3").expect("the same name");
    fs::rename(guard.path(composed), guard.path(decomposed)).expect("one is left");
    drop(guard);
    let alone = Scratch::with_folder();
    alone.init(&["--alone"]);
    let guard = Guard::start(&alone, "view", &[]);
    fs::write(guard.path(composed), "1").expect("free");
    fs::write(guard.path(decomposed), "2").expect("nothing carries the folder");
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
