//! Sealed mount points: while nothing is mounted on one, no program, not even root's, can take a
//! lock there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use testing::*;

/// Commands that acquire a lock, each of which must fail in a sealed directory.
const FORMS: [&str; 4] =
    ["mkdir build", "(set -C; : > build)", "flock -n build true", "ln -s me build"];

/// Asserts that each command of [`FORMS`] fails in `dir`, as root and as another user.
#[track_caller]
fn nobody_locks_in(dir: &Path) {
    users();
    for form in FORMS {
        for user in ["root", ALICE] {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--clear-groups", "sh", "-c"]);
            let dir = dir.display();
            run(command.arg(format!("cd / && {}", form.replace("build", &format!("{dir}/build")))))
                .fails();
        }
    }
    assert_eq!(fs::read_dir(dir).expect("root may look").count(), 0);
}

/// A mount point is sealed however the mount has ended, until `umount --unseal` unseals it.
#[test]
fn nothing_is_locked_while_nothing_is_mounted() {
    let mut m = mount();
    m.sh("mkdir build && rmdir build").ok();
    assert_eq!(m.stop(libc::SIGTERM), 0);
    nobody_locks_in(m.dir());
    m.start();
    m.sh("mkdir build && rmdir build").ok();
    assert!(!m.log().contains("can't be sealed"), "{}", m.log());
    m.crash();
    // The daemon is dead, but its mount is still in the mount table, so calls in the directory
    // fail.
    fs::create_dir(m.dir().join("build")).expect_err("its daemon is gone");
    run(Command::new("umount").arg("-l").arg(m.dir())).ok();
    nobody_locks_in(m.dir());
    m.start();
    run(Command::new("umount").arg("-l").arg(m.dir())).ok();
    nobody_locks_in(m.dir());
    assert_eq!(m.ended(), Some(0));
    let unseal = |m: &Mount| run(latchfs().args(["umount", "--unseal"]).arg(m.dir())).ok();
    unseal(&m);
    fs::create_dir(m.dir().join("build")).expect("an ordinary directory");
    assert_eq!(fs::metadata(m.dir()).expect("there").permissions().mode() & 0o777, 0o755);
    fs::remove_dir(m.dir().join("build")).expect("ours");
    m.start();
    unseal(&m);
    assert_eq!(m.ended(), Some(0));
    assert!(!mounts().contains(&m.dir().to_owned()));
    fs::create_dir(m.dir().join("build")).expect("an ordinary directory");
}

/// `umount --unseal` keeps the permissions of files and directories that latchfs has not sealed.
#[test]
fn only_a_sealed_directory_is_unsealed() {
    let m = Setup::new().prepare();
    let (dir, file, link) = (m.dir().join("dir"), m.dir().join("file"), m.dir().join("link"));
    fs::create_dir(&dir).expect("an ordinary directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).expect("ours");
    fs::write(&file, "").expect("an ordinary directory");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).expect("ours");
    std::os::unix::fs::symlink(&file, &link).expect("an ordinary directory");
    let unseal = |path: &Path| run(latchfs().args(["umount", "--unseal"]).arg(path));
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    let said = unseal(&dir).ok();
    assert!(said.contains("is not sealed"), "{said}");
    for other in [&file, &link] {
        let said = unseal(other).fails();
        assert!(said.contains("can't be unsealed"), "{said}");
    }
    assert_eq!((mode(&dir), mode(&file)), (0o1777, 0));
}

/// A mount does not hide the entries of its mount point silently: mounting on a directory with
/// entries needs `--nonempty`, and `doctor` reports the entries.
#[test]
fn a_directory_with_entries_is_refused() {
    let mut m = Setup::new().prepare();
    for name in ["a", "b", "c", "d"] {
        fs::create_dir(m.dir().join(name)).expect("an ordinary directory");
    }
    let mut command = m.command();
    let said = run(&mut command).exits(69);
    assert!(said.contains("'a', 'b', 'c' and 1 more") && said.contains("--nonempty"), "{said}");
    let doctor = || run(latchfs().arg("doctor").env("LATCHFS_DIR", m.dir())).out;
    assert!(doctor().contains("which lock nothing: 'a', 'b'"), "{}", doctor());
    m = Setup::new().with("--nonempty").prepare();
    fs::create_dir(m.dir().join("build")).expect("an ordinary directory");
    m.start();
    assert_eq!(m.sh("ls").ok(), "");
    let doctor = run(latchfs().arg("doctor")).out;
    let hides = format!("the mount at {} hides entries", m.dir().display());
    assert!(doctor.contains(&hides), "{doctor}");
    assert_eq!(m.stop(libc::SIGTERM), 0);
    fs::remove_dir(m.dir().join("build")).expect("it is not sealed");
}

/// A mount point that `mount` has made is removed with the mount, however the mount ends, so that
/// nothing stays which root's `rm -rf` can't remove. One that was there before stays sealed.
#[test]
fn a_directory_that_the_mount_has_made_is_removed_with_it() {
    let scratch = Scratch::open_to_all();
    let (dir, state) = (scratch.join("made/here"), scratch.join("state"));
    let mount = |dir: &Path| {
        let mut mount = latchfs();
        mount.arg("mount").arg(dir).args(["--background", "--client", "laptop1", "--state"]);
        run(mount.arg(&state)).ok();
    };
    let umount = |args: &[&str]| run(latchfs().arg("umount").args(args).arg(&dir)).ok();
    let pid = || {
        let about = fs::read_to_string(dir.join(".latchfs/server")).expect("it is mounted");
        json(&about)["pid"].as_i64().expect("a number").to_string()
    };
    let over = |pid: &str| {
        eventually("the end of the daemon", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            (stat.is_empty() || stat.contains(") Z ")).then_some(())
        });
    };
    mount(&dir);
    umount(&[]);
    assert!(!dir.exists() && scratch.join("made").exists());
    mount(&dir);
    let ended = pid();
    run(Command::new("kill").arg(&ended)).ok();
    over(&ended);
    assert!(!dir.exists());
    mount(&dir);
    let ended = pid();
    run(Command::new("umount").arg("-l").arg(&dir)).ok();
    over(&ended);
    assert!(!dir.exists());
    // The next daemon finds a directory that an earlier mount has made.
    mount(&dir);
    let killed = pid();
    run(Command::new("kill").args(["-9", &killed])).ok();
    over(&killed);
    mount(&dir);
    umount(&[]);
    assert!(!dir.exists());
    mount(&dir);
    umount(&["--unseal"]);
    fs::create_dir(dir.join("build")).expect("an ordinary directory");
    fs::remove_dir(dir.join("build")).expect("ours");
    mount(&dir);
    umount(&[]);
    let mode = fs::metadata(&dir).expect("it was there before the mount").permissions().mode();
    assert_eq!(mode & 0o7777, 0);
}
