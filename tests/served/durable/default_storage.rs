//! Where a server keeps its locks if no option says so, and what it says if they will not last.

use serde_json::json;
use std::process::Command;
use testing::{LocalUser, Loopback, Scratch, Server, latchfs, latchfs_path, run, run_latchfs};

const UID: u32 = 47_112;

/// Acquires a lock for an hour, and returns its token.
#[track_caller]
fn acquire(server: &Server) -> u64 {
    let granted = server.curl(&["-X", "POST", "/locks/build?client=a&ttl=1h"]).is(200);
    granted["token"].as_u64().expect("a token")
}

/// Fails unless the lock is held by that token.
#[track_caller]
fn is_held(server: &Server, token: u64) {
    assert_eq!(server.curl(&["/locks/build"]).is(200)["token"], json!(token));
}

#[test]
fn a_user_s_server_is_durable_by_default() {
    let user = LocalUser::new(UID);
    let serve = ["latchfs", "serve", "--listen", "127.0.0.1:0"];
    let start = || Server::spawn(user.command(&serve).env("HOME", user.home()), Scratch::new());
    let mut server = start();
    let token = acquire(&server);
    server.signal(libc::SIGKILL);
    server.wait();
    let server = start();
    is_held(&server, token);
    assert!(user.home().join(".local/state/latchfs/data/log").is_dir());
}

#[test]
fn the_server_of_root_is_durable_by_default() {
    let user = LocalUser::new(UID);
    let script = "mount -t tmpfs tmpfs /var/lib
        latchfs serve --listen 127.0.0.1:0 > first & server=$!
        until grep -qs listening first; do [ -e /proc/$server ] || exit 1; done
        kill -9 $server
        exec latchfs serve --listen 127.0.0.1:0";
    let server = Server::spawn(&mut user.by_root(&["sh", "-c", script]), Scratch::new());
    let about = format!("/proc/{}/root/var/lib/latchfs/data/log", server.pid());
    assert!(std::path::Path::new(&about).is_dir(), "{}", server.log());
}

/// A server that was started without any option becomes the first node of a cluster.
#[test]
fn a_cluster_grows_from_the_default() {
    let scratch = Scratch::new();
    let mut command = latchfs();
    command.env("LATCHFS_DATA", scratch.join("data1"));
    let server = Server::serve(command, "127.0.0.1:0", &[]);
    let token = acquire(&server);
    drop(server);
    let mut cluster = Loopback::begin(scratch.path());
    let nodes: Vec<_> = (0..3).map(|_| cluster.node(&[])).collect();
    nodes[2].voters(3);
    is_held(&nodes[2], token);
}

#[test]
fn the_option_state_is_refused_by_a_sentence() {
    let scratch = Scratch::new();
    for state in [&*scratch.join("state").display().to_string(), "none"] {
        let (code, said) = run_latchfs(&["serve", "--listen", "127.0.0.1:0", "--state", state]);
        assert_eq!(code, Some(64), "{said}");
        for part in ["'mount'", "data directory, by default /", "--data DIR", "--memory"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    assert!(!scratch.join("state").exists());
    let (_, help) = run_latchfs(&["serve", "--help"]);
    assert!(!help.contains("--state ") && help.contains("--memory"), "{help}");
}

/// Makes a root file system in memory, with the programs of this machine and a volume, and runs a
/// server in it.
const CONTAINER: &str = r#"
mount -t tmpfs -o mode=755 tmpfs "$T" && cd "$T" && mkdir usr proc volume || exit 1
for dir in /bin /lib /lib64 /sbin; do [ ! -L $dir ] || cp -P $dir . || exit 1; done
mount --rbind /usr usr && mount --rbind /proc proc && mount -t tmpfs tmpfs volume || exit 1
: > latchfs && mount --bind "$LATCHFS" latchfs || exit 1
[ -z "$MARK" ] || : > "$MARK"
exec chroot --userspec="$USER_OF_SERVER" . /latchfs serve --listen 127.0.0.1:0
"#;

/// Returns the command that runs a server in a container.
fn in_container(scratch: &Scratch, data: &str, mark: &str, user: &str) -> Command {
    let root = scratch.join("root");
    std::fs::create_dir(&root).expect("a fresh directory");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", CONTAINER]);
    command.env("T", root).env("MARK", mark).env("LATCHFS", latchfs_path());
    command.env("USER_OF_SERVER", user).env("LATCHFS_DATA", data);
    command
}

/// Runs a server in a container, and returns its log.
fn log_in_container(data: &str, mark: &str, variables: &[(&str, &str)]) -> String {
    let scratch = Scratch::new();
    let mut command = in_container(&scratch, data, mark, "0:0");
    command.env_remove("KUBERNETES_SERVICE_HOST").envs(variables.iter().copied());
    let server = Server::spawn(&mut command, scratch);
    acquire(&server);
    server.log()
}

#[test]
fn a_server_warns_of_a_directory_that_ends_with_its_container() {
    let kubernetes = [("KUBERNETES_SERVICE_HOST", "10.0.0.1")];
    for (data, mark, variables, warns) in [
        ("/data", ".dockerenv", &[][..], true),
        ("/data", "", &kubernetes, true),
        ("/volume/data", ".dockerenv", &[], false),
        ("/volume/data", "", &kubernetes, false),
        ("/data", "", &[], false),
    ] {
        let log = log_in_container(data, mark, variables);
        let warning = format!(
            "latchfs: the data directory {data} is in the container, not on a volume: all locks \
             are lost when the container is removed; mount a volume there\n"
        );
        assert_eq!(log.contains(&warning), warns, "{data} {mark:?}: {log}");
    }
}

/// A server that can't write its data directory says so, and nothing about its container.
#[test]
fn a_server_without_its_directory_does_not_warn_of_its_container() {
    let scratch = Scratch::new();
    let seen = run(&mut in_container(&scratch, "/data", ".dockerenv", "4242:4242"));
    let said = seen.fails();
    assert!(said.contains("/data") && said.contains("permission denied"), "{said}");
    assert!(!said.contains("in the container"), "{said}");
}
