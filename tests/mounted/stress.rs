//! Runs stress-ng on a mount and on tmpfs: the mount has no failure that tmpfs does not have.
//!
//! Each stressor runs for two seconds, or for `LATCHFS_STRESS_SECONDS`.

use std::path::Path;
use std::process::Command;
use testing::*;

/// The source of a library that makes write(2) succeed after EFBIG. A lock stores 4 KiB of text,
/// but two stressors fill their file with 64 KiB before they lock it.
const FILLED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
ssize_t write(int fd, const void *bytes, size_t count) {
    static ssize_t (*next)(int, const void *, size_t);
    if (!next) next = dlsym(RTLD_NEXT, "write");
    ssize_t done = next(fd, bytes, count);
    return done < 0 && errno == EFBIG ? (ssize_t)count : done;
}
"#;

/// Runs two workers of one stress-ng stressor in the directory `place`.
fn stress(m: &Mount, stressor: &str, place: &Path, preload: Option<&Path>) -> Output {
    let seconds = std::env::var("LATCHFS_STRESS_SECONDS").unwrap_or_else(|_| "2".to_owned());
    let mut command = Command::new("stress-ng");
    command.args([&format!("--{stressor}"), "2", "--timeout", &seconds]);
    command.arg("--temp-path").arg(place);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    run(m.within(&mut command).current_dir(m.scratch()))
}

/// Runs stressors on a mount and on tmpfs, and compares the failures.
fn stressed(stressors: &[&str]) {
    let m = mount();
    let library = m.scratch().join("filled.so");
    std::fs::write(m.scratch().join("filled.c"), FILLED).expect("ours");
    m.sh("cc -shared -fPIC -o $T/filled.so $T/filled.c").ok();
    for stressor in stressors {
        let preload = stressor.starts_with("lock").then_some(library.as_path());
        let ours = stress(&m, stressor, m.dir(), preload);
        let tmpfs = stress(&m, stressor, Path::new("/dev/shm"), preload);
        assert_eq!(tmpfs.code, 0, "{stressor} fails on tmpfs: {}{}", tmpfs.out, tmpfs.err);
        assert_eq!(ours.code, 0, "{stressor}: {}{}", ours.out, ours.err);
        for word in ["error:", "fail:"] {
            let said = format!("{}{}", ours.out, ours.err);
            assert!(!said.contains(word), "{stressor}: {said}");
        }
    }
    eventually("what they made is gone", || m.sh("ls -A").ok().is_empty().then_some(()));
}

/// Runs the stressors for flock, lockf and OFD locks (`stress-ng --flock --lockf --lockofd`).
#[test]
fn locks_under_stress() {
    stressed(&["flock", "lockf", "lockofd"]);
}

/// Runs the stressors that create, list and touch files and directories (`stress-ng --dentry --dir
/// --utime`).
#[test]
fn names_under_stress() {
    stressed(&["dentry", "dir", "utime"]);
}

/// Runs the stressors that create hard links and symlinks and rename files (`stress-ng --link
/// --symlink --rename`).
#[test]
fn links_under_stress() {
    stressed(&["link", "symlink", "rename"]);
}
