//! Findings of `latchfs doctor --strict` about the kernel: a request timeout.

use crate::doctoring::{finds, is_healthy, kernel_changes};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use testing::run;
use testing::{Guard, Scratch};

/// A setting of the kernel's FUSE, which is 0 again when this value is dropped.
struct Setting(PathBuf);

impl Setting {
    /// Sets it to the longest time that there is: no request of another test takes as long.
    fn set(name: &str) -> Self {
        let path = PathBuf::from("/proc/sys/fs/fuse").join(name);
        assert_eq!(fs::read_to_string(&path).expect("Linux 6.14 or newer"), "0\n");
        fs::write(&path, "65535").expect("by root");
        Self(path)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "0");
    }
}

/// kernel: a view that is mounted while the kernel has a request timeout keeps it.
#[test]
fn a_request_timeout_of_the_kernel_is_found() {
    let _alone = kernel_changes();
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    for (number, name) in ["default_request_timeout", "max_request_timeout"].into_iter().enumerate()
    {
        let setting = Setting::set(name);
        let guard = Guard::start(&scratch, &format!("limited{number}"), &[]);
        guard.request("take", &[]).ok();
        let says = finds(&guard.view, &[], &["kernel"]);
        assert!(says[0].contains("a request timeout of 65535 s"), "{says:?}");
        drop(setting);
        finds(&guard.view, &[], &["kernel"]);
        assert_eq!(guard.status()["state"], "holding", "doctor frees no lock");
        guard.end();
        let guard = Guard::start(&scratch, &format!("free{number}"), &[]);
        is_healthy(&guard.view, &[]);
        let setting = Setting::set(name);
        let says = finds(&guard.view, &[], &["kernel"]);
        assert!(
            says[0].starts_with(&format!("fs.fuse.{name} is 65535: in a view that is started"))
        );
        drop(setting);
        is_healthy(&guard.view, &[]);
        guard.end();
    }
}

/// A guard of root of a user namespace lacks nothing. No other user has a place in the namespace,
/// so the guard serves root alone.
#[test]
fn a_guard_in_a_user_namespace_is_healthy() {
    let _stays = crate::doctoring::kernel_stays();
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    fs::write(scratch.folder().join("large"), vec![1; 200_000]).expect("a folder");
    let script = "
        latchfs guard folder inside --no-allow-other --stage state >out 2>err & guard=$!
        until grep -q shows out; do kill -0 $guard || { cat err >&2; exit 2; }; done
        cmp inside/large folder/large || exit 3
        latchfs doctor --strict --json inside; echo $? >code
        kill -TERM $guard; wait $guard";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--propagation", "private"]);
    command.args(["sh", "-c", script]).current_dir(scratch.path()).env_remove("LATCHFS_SERVER");
    let binary = PathBuf::from(testing::latchfs_path());
    let dir = binary.parent().expect("a directory").display().to_string();
    command.env("PATH", format!("{dir}:{}", std::env::var("PATH").expect("there is one")));
    let seen = run(&mut command).ok();
    let said: Value = serde_json::from_str(&seen).unwrap_or_else(|error| panic!("{error}: {seen}"));
    let found: Vec<_> = said["findings"].as_array().expect("a list").iter().collect();
    assert_eq!((found.len(), &found[0]["level"]), (1, &"ok".into()), "{said}");
    assert_eq!(fs::read_to_string(scratch.join("code")).expect("written"), "0\n");
}
