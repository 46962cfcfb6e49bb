//! The stories of a guard on each file system that it supports, in images that the test makes.
use crate::hostile::TestMount;
use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;
use testing::{Guard, Scratch, Server, no_other_stops, run, soon};

/// A guard saves, changes in place, loses its lock, dies and is fenced on the file system at `at`.
fn check_on(name: &str, scratch: &Scratch) {
    let real = |name: &str| scratch.folder().join(name);
    // The lease must not depend on how fast an image is.
    let of_server = Scratch::with_folder();
    let server = Server::of(&of_server);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let options = |client| ["--client", client, "--shared-storage", "--ttl", "4s"];
    let first = Guard::start(scratch, "one", &options("m1"));
    let second = Guard::start(scratch, "two", &options("m2"));
    // A save, and a change in place.
    let mut saved = File::create(first.path("whole")).expect("the lock is free");
    saved.write_all(b"first").expect("held");
    assert!(!real("whole").exists(), "{name}: it is not complete");
    drop(saved);
    // A command that another thread is starting may have the file open for a moment longer.
    let whole = soon("the save", || fs::read(real("whole")).ok());
    assert_eq!(whole, b"first", "{name}");
    fs::write(first.path("log.log"), "one\n").expect("held");
    let appended = File::options().append(true).open(first.path("log.log")).expect("held");
    (&appended).write_all(b"two\n").expect("held");
    fs::rename(first.path("whole"), first.path("renamed")).expect("held");
    // The guard is stopped past its lease, in the middle of a save and of a change in place.
    let mut half = File::create(first.path("renamed")).expect("held");
    half.write_all(b"half").expect("held");
    first.signal(libc::SIGSTOP);
    second.take_here();
    fs::write(second.path("renamed"), "second").expect("held");
    first.signal(libc::SIGCONT);
    for late in [half.write_all(b"late"), half.sync_all(), (&appended).write_all(b"late")] {
        let late = late.expect_err("the tenure is over");
        assert_eq!(late.raw_os_error(), Some(libc::ESTALE), "{name}");
    }
    drop((half, appended));
    let is_second = || (fs::read(real("renamed")).expect("there") == b"second").then_some(());
    soon("the save of the second guard", is_second);
    assert_eq!(fs::read(real("log.log")).expect("there"), b"one\ntwo\n", "{name}");
    // The guard is killed in the middle of a save.
    let mut half = File::create(second.path("renamed")).expect("held");
    let written = half.write_all(b"half");
    assert!(written.is_ok(), "{name}: {written:?}: {}", second.why());
    second.kill();
    drop(half);
    assert_eq!(fs::read(real("renamed")).expect("there"), b"second", "{name}");
    first.request("take", &[]).ok();
    fs::write(first.path("renamed"), "third").expect("held");
    assert!(first.request("lost", &[]).ok().contains("renamed"), "{name}");
    first.end();
    assert_eq!(fs::read(real("renamed")).expect("there"), b"third", "{name}");
}

/// The kernel of the tests must have a file system; where it has not, the test says so.
pub(crate) fn is_in_kernel(name: &str) -> bool {
    let _ = Command::new("modprobe").arg(name).output();
    let text = fs::read_to_string("/proc/filesystems").expect("there");
    let is_there = text.split_whitespace().any(|found| found == name);
    if !is_there {
        println!("{name} is not tested: this kernel has no {name}");
    }
    is_there
}

#[test]
fn a_guard_works_on_each_file_system() {
    let _alone = no_other_stops();
    let images = Scratch::with_folder();
    let made = [
        ("ext4", "mkfs.ext4 -q -F", "64M"),
        ("xfs", "mkfs.xfs -q -f", "320M"),
        ("btrfs", "mkfs.btrfs -q -f", "128M"),
        ("tmpfs", "", ""),
    ];
    std::thread::scope(|scope| {
        for (name, mkfs, size) in made.into_iter().filter(|(name, ..)| is_in_kernel(name)) {
            let (image, at) = (images.join(format!("{name}.img")), images.join(name));
            scope.spawn(move || {
                let mut mount = Command::new("mount");
                if mkfs.is_empty() {
                    mount.args(["-t", name, "none"]);
                } else {
                    run(Command::new("truncate").arg("-s").arg(size).arg(&image)).ok();
                    run(Command::new("sh").arg("-c").arg(format!("{mkfs} {}", image.display())))
                        .ok();
                    mount.args(["-o", "loop"]).arg(&image);
                }
                let mount = TestMount::new(&mut mount, &at);
                let scratch = Scratch::at(at.join("scratch"));
                fs::create_dir_all(scratch.folder()).expect("made");
                check_on(name, &scratch);
                drop(scratch);
                drop(mount);
            });
        }
    });
}
