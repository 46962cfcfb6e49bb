//! The commands of latchfs on a mount: their output and their exit codes.

use latchfs::time::{Span, boot_now};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use testing::*;

/// `acquire`, `renew`, `release` and `status` work from scripts.
#[test]
fn lock_commands_work_on_a_mount() {
    let m = mount();
    m.latchfs(&["acquire", "build", "--ttl", "60s", "--note", "nightly"]).ok();
    let status = m.status("build");
    assert_eq!((&status["ttl_ms"], &status["note"]), (&60_000.into(), &"nightly".into()));
    let token = m.token("build").to_string();
    m.latchfs(&["renew", "build", "--token", &token, "--ttl", "90s"]).ok();
    assert_eq!(m.status("build")["ttl_ms"], 90_000);
    assert!(m.latchfs(&["status", "build"]).ok().contains("laptop1:root"));
    let shown = json(&m.latchfs(&["status", "build", "--json"]).ok());
    assert_eq!((&shown["token"], &shown["phase"]), (&m.token("build").into(), &"held".into()));
    m.latchfs(&["release", "build", "--token", &token]).ok();
    assert_eq!(m.phase("build"), "free");
    assert!(m.latchfs(&["status", "build"]).ok().contains("free"));
    assert_eq!(json(&m.latchfs(&["status", "build", "--json"]).ok())["phase"], "free");
}

/// The exit codes: 75 held by another client, 77 not the holder, 76 the lease is over, 64 wrong
/// usage, 69 no mount.
#[test]
fn errors_have_their_exit_codes() {
    let m = mount();
    m.sh_as(ALICE, "mkdir build").ok();
    let said = m.latchfs(&["acquire", "build"]).exits(75);
    assert!(said.contains(&format!("lock 'build' is held by laptop1:{ALICE} for ")), "{said}");
    m.latchfs(&["renew", "build"]).exits(77);
    m.latchfs(&["renew", "free"]).exits(77);
    m.latchfs(&["acquire", "mine"]).ok();
    let said = m.latchfs(&["acquire", "mine"]).exits(75);
    assert!(said.contains("held by your own user, laptop1:root, for "), "{said}");
    assert!(m.latchfs(&["acquire", "mine", "--reentrant"]).ok().starts_with("renewed mine"));
    m.latchfs(&["renew", "mine", "--token", "1000000"]).exits(76);
    m.latchfs(&["release", "mine", "--token", "1000000"]).exits(76);
    m.latchfs_outside(&["acquire", "bad//name"]).exits(64);
    m.latchfs(&["acquire", ".latchfs"]).exits(64);
    m.latchfs(&["acquire", &"x".repeat(256)]).exits(64);
    let said = m.latchfs(&["dance", "--", "make"]).exits(64);
    assert!(said.contains("'dance'") && said.contains("latchfs run NAME -- COMMAND"), "{said}");
    m.latchfs(&[]).exits(64);
    m.latchfs(&["acquire"]).exits(64);
    m.latchfs(&["ls", "--dir", "/nowhere"]).exits(69);
    m.latchfs(&["ls", "--dir", "/"]).exits(69);
    assert_eq!(m.phase("mine"), "held");
    let help = m.latchfs(&["--help"]).ok();
    for code in ["64", "69", "75", "76", "77"] {
        assert!(help.contains(code), "{code} is not in the help: {help}");
    }
    assert!(m.latchfs(&["-h"]).ok().lines().count() <= 40, "-h fits a screen");
    assert!(m.latchfs(&["--version"]).ok().starts_with("latchfs "));
}

/// `release` without options works from the shell that acquired the lock, and from the same login
/// session once the process that acquired it has ended. In all other cases it needs the token, or
/// `--any`.
#[test]
fn release_ends_the_lease_of_the_same_shell() {
    let m = mount();
    m.sh("latchfs acquire build && latchfs release build").ok();
    m.login("mkdir build && latchfs release build").ok();
    m.login("sh -c 'latchfs acquire build; true' && latchfs release build").ok();
    let others = "setsid -w sh -c 'latchfs acquire build; true'";
    let said = m.sh(&format!("{others} && latchfs release build")).exits(77);
    assert!(said.contains(", which has ended, and not from this shell; "), "{said}");
    let token = m.token("build").to_string();
    m.latchfs(&["release", "build", "--token", &token]).ok();
    m.sh(others).ok();
    m.latchfs(&["release", "build", "--any"]).ok();
    m.latchfs(&["release", "build", "--any", "--token", "1"]).exits(64);
    m.sh_as(ALICE, "mkdir build").ok();
    let said = m.latchfs(&["release", "build"]).exits(77);
    assert!(said.contains(&format!("is held by laptop1:{ALICE}, not by laptop1:root")), "{said}");
    assert_eq!(m.phase("build"), "held");
}

/// `release` of a shared lock ends the lease of its own shell, even if the status shows another
/// holder first.
#[test]
fn release_of_a_shared_lock_ends_the_lease_of_the_same_shell() {
    let m = mount();
    let elsewhere = "setsid -w sh -c 'latchfs acquire build --shared; true'";
    m.sh_as(ALICE, elsewhere).ok();
    m.sh(elsewhere).ok();
    let said = m.sh("latchfs release build").exits(77);
    assert!(said.contains(", which has ended, and not from this shell; "), "{said}");
    let holders = || m.status("build")["holders"].as_array().map_or(1, Vec::len);
    assert_eq!(holders(), 2);
    m.sh("latchfs acquire build --shared && latchfs release build").ok();
    assert_eq!(holders(), 2);
    m.latchfs(&["release", "build", "--any"]).ok();
    assert_eq!(holders(), 1);
}

/// The scripts in the examples of `--help` do not touch a lock that another program holds.
#[test]
fn examples_of_the_help_release_only_their_own_lock() {
    let m = mount();
    let help = m.latchfs(&["--help"]).ok();
    let (_, examples) = help.split_once("Examples:").expect("the help has examples");
    let scripts: Vec<&str> = examples.lines().filter(|line| line.contains("mkdir ")).collect();
    assert!(!scripts.is_empty(), "{help}");
    for script in scripts {
        let script = script.replace("locks/build", "build").replace("./build", "touch ran");
        m.sh("mkdir build").ok();
        m.sh(&script);
        assert_eq!(m.phase("build"), "held", "released by '{script}'");
        assert_eq!(m.phase("ran"), "free", "'{script}' ran without the lock");
        m.sh("rmdir build").ok();
        m.sh(&script).ok();
        assert_eq!((m.phase("build"), m.phase("ran")), ("free".into(), "held".into()));
        m.sh("rm ran").ok();
    }
}

/// `ls` prints a table, and `ls --json` an array.
#[test]
fn ls_is_a_table() {
    let m = mount();
    m.sh_as(ALICE, "mkdir -p team/build && echo '{\"note\":\"nightly\"}' > team/build/ctl").ok();
    m.latchfs(&["acquire", "other"]).ok();
    let table = m.latchfs(&["ls"]).ok();
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    for word in ["NAME", "PHASE", "HOLDER", "EXPIRES", "WAITERS", "NOTE"] {
        assert!(lines[0].contains(word), "{word} is not in {table}");
    }
    let build = lines.iter().find(|line| line.starts_with("team/build ")).expect("listed");
    assert!(build.contains(&format!("laptop1:{ALICE}")) && build.contains("nightly"), "{table}");
    assert!(!table.contains('\x1b'), "no colour but on a terminal");
    let locks = json(&m.latchfs(&["ls", "--json"]).ok());
    let names: Vec<_> = locks.as_array().expect("an array").iter().map(|l| &l["name"]).collect();
    assert_eq!(names, ["other", "team", "team/build"]);
    let locks = json(&m.latchfs(&["ls", "team/", "--json"]).ok());
    assert_eq!(locks.as_array().map(Vec::len), Some(1));
    m.sh("latchfs ls | head -1").ok();
}

/// `ls` without locks is no error. A list of many locks is fetched page by page and is complete.
#[test]
fn ls_of_no_locks_and_of_many() {
    let m = mount();
    m.latchfs(&["ls"]).ok();
    assert_eq!(json(&m.latchfs(&["ls", "--json"]).ok()), serde_json::json!([]));
    m.py("for n in range(2_500): os.mkdir(f'lock-{n:04}')").ok();
    let locks = json(&m.latchfs(&["ls", "--json"]).ok());
    let locks = locks.as_array().expect("an array");
    assert_eq!(locks.len(), 2_500);
    assert_eq!(locks[1_234]["name"], "lock-1234");
}

/// `ls --watch` keeps running, and shows changes of locks as they happen.
#[test]
fn ls_watch_shows_changes() {
    let m = mount();
    let mut command = latchfs();
    command.args(["ls", "--watch"]).stdout(Stdio::piped());
    let mut watch = m.within(&mut command).spawn().expect("the program was built");
    let said = lines(watch.stdout.take().expect("piped"));
    m.sh("mkdir build").ok();
    let limit = std::time::Duration::from_secs(10);
    while !said.recv_timeout(limit).expect("it shows the lock").starts_with("build ") {}
    signal(watch.id().cast_signed(), libc::SIGINT);
    watch.wait().expect("our child");
}

/// `steal --reason` is for root and the user who mounted; the old holder can't release the lock any
/// more.
#[test]
fn steal_needs_a_reason_and_permission() {
    let m = mount();
    m.sh_as(ALICE, "mkdir build").ok();
    let token = m.token("build");
    m.latchfs(&["steal", "build"]).exits(64);
    // The program is copied, because other users may not enter the directory in which it was built.
    std::fs::copy(latchfs_path(), m.scratch().join("latchfs")).expect("there is room");
    m.sh_as(BOB, "$T/latchfs steal build --reason because").exits(77);
    m.latchfs(&["steal", "build", "--reason", "its host is gone"]).ok();
    assert_eq!(m.status("build")["holder"], "laptop1:root");
    assert!(m.token("build") > token);
    m.sh_as(ALICE, "rmdir build").fails();
    m.latchfs(&["release", "build"]).ok();
}

/// `--dir`, `LATCHFS_DIR`, or a path selects the mount. If there are several mounts and none is
/// given, the error message lists them.
#[test]
fn the_mount_is_selected() {
    let m = Setup::new().only("--client laptop1 --client laptop2").dirs(2).start();
    let bare = |args: &[&str]| run(latchfs().args(args).env_remove("LATCHFS_DIR"));
    let dir = m.dir_at(1).display().to_string();
    bare(&["acquire", "build", "--dir", &dir]).ok();
    assert_eq!(m.status("build")["holder"], "laptop2:root");
    bare(&["acquire", &format!("{dir}/path")]).ok();
    assert_eq!(m.status("path")["holder"], "laptop2:root");
    m.latchfs(&["acquire", "other"]).ok();
    assert_eq!(m.status("other")["holder"], "laptop1:root");
    let several = bare(&["acquire", "build"]).exits(64);
    assert!(several.contains("--dir") && several.contains(&dir), "{several}");
}

/// In a mount namespace with one latchfs mount, that mount is the default. Without any, the user's
/// own locks are.
#[test]
fn the_only_mount_is_the_default() {
    let scratch = Scratch::open_to_all();
    let script = "
        # A fresh namespace has the mounts of others too: they are taken away here.
        for dir in $(grep -w latchfs /proc/self/mountinfo | cut -d ' ' -f 5); do
            umount -l $dir
        done
        cd $T; mkdir locks root
        sed s:/root:$T/root: /etc/passwd > passwd && mount --bind passwd /etc/passwd || exit 2
        latchfs run build -- true; echo $?
        kill $(cat root/.local/state/latchfs/own/*/state/lock)
        latchfs mount locks --state state --background >&2 || exit 1
        latchfs acquire build >&2; echo $?
        ls locks
        latchfs umount locks >&2";
    let path = std::env::var("PATH").expect("there is one");
    let own = std::path::Path::new(latchfs_path()).parent().expect("it is a file").display();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.env("PATH", format!("{own}:{path}")).env("T", scratch.path()).env_remove(DIR_NAME);
    let seen = run(&mut command);
    assert_eq!(seen.ok(), "0\n0\nbuild\n");
}

const DIR_NAME: &str = "LATCHFS_DIR";

/// Each unusable mount point gets an error message and its exit code.
#[test]
fn unusable_mount_points_are_reported() {
    let m = Setup::new().prepare();
    std::fs::write(m.scratch().join("file"), "text").expect("ours");
    let mount = |dir: &str| {
        let mut command = latchfs();
        command.args(["mount", "--state", "none", "--grant-at-once", dir]).current_dir(m.scratch());
        run(&mut command)
    };
    for dir in ["file", "file/below", "/dev/null", ""] {
        let seen = mount(dir);
        assert!([64, 69].contains(&seen.code) && seen.err.contains("latchfs: "), "{dir}: {seen:?}");
        assert!(!seen.err.contains("panicked"), "{dir}: {seen:?}");
    }
}

/// If the daemon is gone, commands exit with 69 at once, with a message. `doctor` names the stale
/// mount, and `umount` removes it.
#[test]
fn a_dead_daemon_is_reported() {
    let mut m = mount();
    m.crash();
    let dir = m.dir().display().to_string();
    let bare = |args: &[&str]| run(latchfs().args(args).env("LATCHFS_DIR", &dir));
    for args in [&["ls"][..], &["status", "build"], &["acquire", "build"]] {
        let said = bare(args).exits(69);
        assert!(said.contains(&dir), "{said}");
    }
    let found = bare(&["doctor"]);
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.out.contains(&dir) && found.out.contains("umount"), "{}", found.out);
    bare(&["umount", &dir]).ok();
    assert!(!mounts().contains(&m.dir().to_owned()));
}

/// Commands do not wait forever for a suspended daemon.
#[test]
fn commands_time_out_on_a_stopped_daemon() {
    let m = mount();
    signal(m.pid(), libc::SIGSTOP);
    // The test runs `latchfs ls` only after all threads of the daemon are stopped. A thread that is
    // stopped after it has read a FUSE request does not answer the request, and then not even
    // SIGKILL ends the program that waits for the answer.
    eventually("all threads stopped", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", m.pid())).expect("it lives");
        let stats =
            tasks.map(|task| std::fs::read_to_string(task.expect("there").path().join("stat")));
        let mut stats = stats.map(|stat| stat.expect("a stopped thread stays"));
        stats.all(|stat| stat.rsplit(')').next().is_some_and(|s| s.starts_with(" T"))).then_some(())
    });
    let began = boot_now();
    let seen = m.latchfs_outside(&["status", "build"]);
    let took = boot_now().since(began);
    signal(m.pid(), libc::SIGCONT);
    let said = seen.exits(69);
    assert!(said.contains("has not answered for 1s, as if it were stopped"), "{said}");
    assert!(took < Span::from_secs(15), "{took}");
    m.sh("mkdir build").ok();
}

/// A command that waits in a queue says that the daemon is stopped, and goes on when that does.
#[test]
fn a_wait_tells_that_the_daemon_is_stopped() {
    let m = mount();
    m.sh("mkdir build").ok();
    let mut wait = latchfs();
    m.within(wait.args(["wait", "build", "--wait", "1h"])).current_dir("/").stderr(Stdio::piped());
    let mut wait = wait.spawn().expect("the program is there");
    let mut progress =
        BufReader::new(wait.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(progress.next().is_some_and(|line| line.contains("waiting for lock 'build', place 1")));
    signal(m.pid(), libc::SIGSTOP);
    let line = progress.next().expect("it goes on");
    signal(m.pid(), libc::SIGCONT);
    assert!(line.contains("as if it were stopped; this waits until it goes on"), "{line}");
    m.sh("rmdir build").ok();
    assert!(wait.wait().expect("our child").success());
}

/// `doctor` runs all its checks on a mount, and reports each.
#[test]
fn doctor_runs_all_checks() {
    let m = mount();
    let state = m.state().display().to_string();
    let seen = m.latchfs(&["doctor"]);
    for word in ["/dev/fuse", "fusermount3", "request timeout", "clocks", "state", "works"] {
        assert!(seen.out.contains(word), "{word} is not in {}", seen.out);
    }
    assert!(!state.is_empty());
}

/// `completions SHELL` and `man` print valid files that can be installed.
#[test]
fn completions_and_manual_are_printed() {
    let m = mount();
    for shell in ["bash", "zsh", "fish"] {
        assert!(m.latchfs(&["completions", shell]).ok().contains("latchfs"), "{shell}");
    }
    m.sh("latchfs completions bash > $T/bash && bash -n $T/bash").ok();
    m.latchfs(&["completions", "dog"]).exits(64);
    let manual = m.latchfs(&["man"]).ok();
    assert!(manual.contains(".TH LATCHFS") && manual.contains("acquire"), "{manual}");
}

/// A closed pipe or a closed descriptor never makes a command panic.
#[test]
fn closed_output_does_not_panic() {
    let m = mount();
    for script in ["latchfs ls >&-", "latchfs man | true", "latchfs --help | head -1"] {
        let seen = m.sh(script);
        assert!(!seen.err.contains("panicked"), "{script}: {}", seen.err);
    }
    let full = m.sh("latchfs man > /dev/full").exits(69);
    assert!(!full.contains("panicked"), "{full}");
}
