//! A user's own locks: commands on a machine on which nothing is set up.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::time::Duration;
use testing::{LocalUser, Server, Squatter, pause, poll, rounds, run, soon};

const UID: u32 = 47_110;
const OTHER: u32 = 47_111;

#[test]
fn commands_on_locks_need_nothing_set_up() {
    let user = LocalUser::new(UID);
    let printed = user.latchfs(&["run", "build", "--", "sh", "-c", "echo $LATCHFS_LOCK"]);
    assert_eq!((printed.code, &*printed.err), (0, ""), "a pipe is told nothing");
    assert_eq!(printed.out, "build\n");
    assert_eq!(user.latchfs(&["run", "build", "--", "sh", "-c", "exit 7"]).code, 7);
    let acquired = user.latchfs(&["acquire", "build", "--ttl", "10m", "--json"]).ok();
    let token = serde_json::from_str::<Value>(&acquired).expect("JSON")["token"].clone();
    assert!(user.latchfs(&["ls"]).ok().contains("build"));
    assert!(user.latchfs(&["who", "build"]).ok().contains("tester"));
    let status = user.latchfs(&["status", "build", "--json"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&status).expect("JSON")["token"], token);
    let quiet = user.latchfs(&["run", "--try", "-q", "build", "--", "true"]);
    assert_eq!((quiet.code, &*quiet.err), (75, ""), "cron sends no mail");
    let busy = user.latchfs(&["run", "--try", "build", "--", "true"]).exits(75);
    assert!(busy.contains("lock 'build' is held by"), "{busy}");
    user.latchfs(&["steal", "build", "--reason", "test"]).ok();
    user.latchfs(&["release", "build"]).ok();
    user.latchfs(&["wait", "build"]).ok();
    assert!(user.latchfs(&["top", "--once"]).ok().contains("NAME"));
    let events = user.sh("timeout 1 latchfs events --since 0 --json");
    assert!(events.out.contains("\"stolen\""), "{events:?}");
    let config = user.latchfs(&["config", "show"]).ok();
    assert!(config.contains("own locks") && config.contains("its daemon runs"), "{config}");
    user.daemon();
}

/// At most as many programs run at a time as the lock has seats, each with a seat of its own.
#[test]
fn a_lock_with_seats_lets_so_many_run() {
    let user = LocalUser::new(UID);
    let script = "
        for n in 1 2 3 4 5 6 7; do
            latchfs run gpu --max 3 -- sh -c '
                mkdir seat$LATCHFS_SEAT || exit 1
                ls -d seat* | wc -l; sleep 0.2
                rmdir seat$LATCHFS_SEAT; echo $LATCHFS_SEAT >> used' &
            jobs=\"$jobs $!\"
        done
        for job in $jobs; do wait $job || exit 1; done
        sort -u used | tr '\\n' ' '";
    let printed = user.sh(&format!("cd $(mktemp -d); {script}")).ok();
    let lines: Vec<&str> = printed.lines().collect();
    let (seats, counts) = lines.split_last().expect("lines");
    assert_eq!(*seats, "0 1 2 ", "all seats were used");
    assert!(counts.iter().all(|count| ["1", "2", "3"].contains(count)), "{counts:?}");

    let status = |of: &str| serde_json::from_str::<Value>(of).expect("JSON");
    let held = status(&user.latchfs(&["acquire", "gpu", "--max", "2", "--json"]).ok());
    assert_eq!((&held["seat"], &held["max"]), (&0.into(), &2.into()));
    let held = user.latchfs(&["acquire", "gpu", "--max", "2"]).ok();
    assert!(held.contains(", seat 1, expires in"), "{held}");
    let why = user.latchfs(&["run", "gpu", "--max", "3", "--", "true"]).exits(75);
    assert!(why.contains("has 2 seats while somebody holds it"), "{why}");
    let why = user.latchfs(&["run", "gpu", "--max", "2", "--try", "--", "true"]).exits(75);
    assert!(why.contains("and 1 more (2 of 2 seats), taken "), "{why}");
    assert!(user.latchfs(&["ls"]).ok().contains("and 1 more (2 of 2 seats)"));
    let page = user.latchfs(&["status", "gpu"]).ok();
    assert!(
        page.contains(", seat 0 of 2, token") && page.contains(", seat 1 of 2, token"),
        "{page}"
    );
    let token = held.split(&[' ', ','][..]).nth(3).expect("a token").to_owned();
    let steal = ["steal", "gpu", "--token", &token, "--reason", "stuck"];
    let stolen = user.latchfs(&steal).ok();
    assert!(stolen.contains(", seat 1, expires in"), "{stolen}");
    let why = user.latchfs(&steal).exits(76);
    assert!(why.contains("is over, so nothing was stolen; read the lock's status"), "{why}");
    user.latchfs(&["run", "x", "--max", "0", "--", "true"]).exits(64);
    user.latchfs(&["run", "x", "--max", "2", "--shared", "--", "true"]).exits(64);
    let timed = user.sh("latchfs run x --ttl 9s --grace 7s -- latchfs status x --json").ok();
    assert!(timed.contains("\"ttl_ms\": 9000") && timed.contains("\"grace_ms\": 7000"), "{timed}");
}

#[test]
fn commands_say_what_they_have_done() {
    let user = LocalUser::new(UID);
    let version = user.latchfs(&["version"]).ok();
    assert_eq!(version, user.latchfs(&["--version"]).ok());
    let stolen = user.latchfs(&["steal", "free", "--reason", "test"]).ok();
    assert!(stolen.starts_with("nobody held it; acquired free: token 1"), "{stolen}");
    user.latchfs(&["acquire", "build"]).ok();
    let stolen = user.latchfs(&["steal", "build", "--reason", "test"]).ok();
    assert!(stolen.starts_with("stole build"), "{stolen}");
    let said = user.latchfs(&["ls", "nosuch"]);
    assert!(said.code == 0 && said.err.contains("whose name begins with 'nosuch'"), "{said:?}");
    assert_eq!(user.latchfs(&["ls", "build"]).err, "");
    let held =
        user.sh("latchfs acquire mine >&2; echo $$; latchfs status mine | grep ^process").ok();
    let (shell, process) = held.split_once('\n').expect("two lines");
    assert_eq!(process.trim_end(), format!("process   {shell}"));
    let ended = user.latchfs(&["status", "mine"]).ok();
    assert!(ended.contains(&format!("process   {shell}, which has ended\n")), "{ended}");
    let why = user.latchfs(&["umount"]).exits(64);
    assert!(why.contains("no latchfs is mounted by you"), "{why}");
}

/// A command that runs under a lock does not wait for its own end.
#[test]
fn a_run_within_a_run_of_its_lock_fails_at_once() {
    let user = LocalUser::new(UID);
    let inner = "latchfs run build -- true";
    for words in [
        &["run", "build", "--", "sh", "-c", inner][..],
        &["run", "build", "--", "latchfs", "run", "other", "--", "sh", "-c", inner],
    ] {
        let why = user.latchfs(words).exits(64);
        assert!(why.contains("runs under lock 'build' already"), "{why}");
    }
    user.latchfs(&["run", "build", "--", "latchfs", "run", "other", "--", "true"]).ok();
    user.latchfs(&["run", "build", "--", "latchfs", "run", "--try", "build", "--", "true"])
        .exits(75);
    user.latchfs(&[
        "run", "--shared", "build", "--", "latchfs", "run", "--shared", "build", "--", "true",
    ])
    .ok();
}

#[test]
fn a_completion_finds_names_and_starts_no_daemon() {
    let user = LocalUser::new(UID);
    let tab = "LATCHFS_COMPLETE=bash _CLAP_COMPLETE_INDEX=2 latchfs -- latchfs status ''";
    user.sh(tab).ok();
    assert!(user.daemons().is_empty());
    user.latchfs(&["acquire", "build"]).ok();
    assert!(user.sh(tab).ok().contains("build"));
}

/// The place of the locks depends on the user and the machine alone.
#[test]
fn each_way_to_start_a_command_means_the_same_locks() {
    let user = LocalUser::new(UID);
    user.sh("latchfs acquire shell").ok();
    user.sh("HOME=/nowhere XDG_STATE_HOME=/tmp XDG_RUNTIME_DIR=/tmp USER=root latchfs acquire env")
        .ok();
    user.sh("setsid --wait nohup latchfs acquire session").ok();
    // As cron and a service manager start a job.
    user.sh("env -i /bin/sh -c 'cd / && umask 0 && exec \"$0\" acquire cron' $PWD/latchfs").ok();
    run(&mut user.by_root(&["su", "tester", "-c", "latchfs acquire su"])).ok();
    let all = user.latchfs(&["ls", "--json"]).ok();
    let all: Value = serde_json::from_str(&all).expect("JSON");
    let names: Vec<_> = all.as_array().expect("a list").iter().map(|lock| &lock["name"]).collect();
    assert_eq!(names, ["cron", "env", "session", "shell", "su"]);
    user.daemon();
}

#[test]
fn a_race_of_first_commands_starts_one_daemon() {
    let user = LocalUser::new(UID);
    let count = rounds(100, 1_000);
    let race = format!(
        "for i in $(seq {count}); do latchfs acquire lock$i --ttl 1h & pids=\"$pids $!\"; done
         for pid in $pids; do wait $pid || exit 1; done"
    );
    run(&mut user.command(&["bash", "-c", &race])).ok();
    assert_eq!(user.latchfs(&["ls", "--json"]).ok().matches("\"held\"").count(), count);
    user.daemon();
}

/// The daemon keeps nothing of the command that starts it: no descriptor, directory, environment,
/// session or parent.
#[test]
fn the_daemon_is_no_part_of_what_starts_it() {
    let user = LocalUser::new(UID);
    let script = "exec 9>open; SECRET=1 latchfs acquire build; echo $$; kill -9 0";
    let killed = user.sh(script);
    assert_eq!(killed.code, 128 + libc::SIGKILL, "{killed:?}");
    let daemon = user.daemon();
    let about = |name: &str| format!("/proc/{daemon}/{name}");
    let open = fs::read_dir(about("fd")).expect("it runs").flatten();
    let open: Vec<_> = open.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
    assert!(!open.iter().any(|file| file.ends_with("open")), "{open:?}");
    assert_eq!(fs::read(about("environ")).expect("it runs"), b"");
    assert_eq!(fs::read_link(about("cwd")).expect("it runs").to_str(), Some("/"));
    let stat = fs::read_to_string(about("stat")).expect("it runs");
    let session: i32 = stat
        .rsplit_once(") ")
        .expect("a name")
        .1
        .split(' ')
        .nth(3)
        .expect("a field")
        .parse()
        .expect("a number");
    let shell: i32 = killed.out.lines().last().expect("its pid").parse().expect("a number");
    assert_ne!(session, shell);
    assert!(user.latchfs(&["ls"]).ok().contains("build"));
}

/// Starts a daemon that ends soon.
fn start_for(user: &LocalUser, idle: &str) {
    let own = user.own();
    let (socket, state) = (format!("unix:{}/socket", own.display()), own.join("state"));
    let mut serve = user.command(&["latchfs", "serve", "--listen", &socket, "--state"]);
    serve.arg(state).args(["--idle-end", idle, "--detached"]).stdout(std::process::Stdio::null());
    // It ends by itself, and is killed with the user's others.
    drop(serve.spawn().expect("it starts"));
    poll(1_000, "the socket", || own.join("socket").exists().then_some(()));
}

/// A command may come in the moment in which the daemon ends.
#[test]
fn no_command_fails_when_the_daemon_ends() {
    let user = LocalUser::new(UID);
    user.latchfs(&["run", "build", "--", "true"]).ok();
    for round in 0..rounds(12, 400) {
        user.kill_daemons();
        let _ = fs::remove_file(user.own().join("socket"));
        start_for(&user, "100ms");
        // It looks every 100 ms, and its socket then has no name for 200 ms.
        pause(Duration::from_millis(100 + round as u64 * 37 % 400));
        user.latchfs(&["run", "build", "--", "true"]).ok();
    }
    // One that finds a held lock when it starts stays, however short its idle time is.
    user.latchfs(&["acquire", "build", "--ttl", "1h"]).ok();
    user.kill_daemons();
    let _ = fs::remove_file(user.own().join("socket"));
    start_for(&user, "0s");
    pause(Duration::from_millis(700));
    user.daemon();
    user.latchfs(&["release", "build"]).ok();
    soon("the end of the daemon", || user.daemons().is_empty().then_some(()));
    assert!(!user.own().join("socket").exists() && !user.own().join("socket.ending").exists());
}

#[test]
fn a_killed_daemon_is_started_again_with_its_locks() {
    let user = LocalUser::new(UID);
    let acquired = user.latchfs(&["acquire", "build", "--ttl", "1h", "--json"]).ok();
    let token = serde_json::from_str::<Value>(&acquired).expect("JSON")["token"].clone();
    let mut job = user.command(&[
        "latchfs",
        "run",
        "job",
        "--",
        "sh",
        "-c",
        "touch on; until [ -e off ]; do sleep 0.1; done",
    ]);
    let mut job = job.spawn().expect("it starts");
    let here = user.home().parent().expect("a directory").to_owned();
    soon("the job", || here.join("on").exists().then_some(()));
    user.kill_daemons();
    let status = user.latchfs(&["status", "build", "--json"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&status).expect("JSON")["token"], token);
    user.latchfs(&["run", "--try", "job", "--", "true"]).exits(75);
    fs::write(here.join("off"), "").expect("writable");
    assert!(job.wait().expect("our child").success(), "the job goes on");
    user.latchfs(&["run", "--try", "job", "--", "true"]).ok();
    user.daemon();
}

/// Nobody else can put a daemon, or its files, in the way.
#[test]
fn a_place_of_others_is_refused() {
    let user = LocalUser::new(UID);
    user.latchfs(&["run", "build", "--", "true"]).ok();
    user.kill_daemons();
    let own = user.own();
    let refused = |what: &str| {
        let why = user.latchfs(&["run", "build", "--", "true"]).exits(69);
        assert!(why.contains("your own locks can't be used"), "{what}: {why}");
        assert!(user.daemons().is_empty(), "{what}");
    };
    chown(&own, Some(OTHER), Some(OTHER)).expect("root may");
    refused("a directory of another user");
    chown(&own, Some(UID), Some(UID)).expect("root may");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o770)).expect("root may");
    refused("a directory that others may enter");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).expect("root may");
    let aside = own.with_extension("aside");
    fs::rename(&own, &aside).expect("root may");
    symlink(&aside, &own).expect("root may");
    refused("a symlink");
    fs::remove_file(&own).expect("root may");
    fs::rename(&aside, &own).expect("root may");
    let _ = fs::remove_file(own.join("socket"));
    // A process of another user that has got into the directory.
    let squatter = Squatter::listen(&own.join("socket"), OTHER);
    chown(own.join("socket"), Some(UID), Some(UID)).expect("root may");
    refused("a socket of another user");
    drop(squatter);
    let uids = [format!("--ruid={OTHER}"), format!("--euid={UID}")];
    let setuid =
        run(&mut user.by_root(&["setpriv", &uids[0], &uids[1], "--clear-groups", "latchfs", "ls"]));
    let why = setuid.exits(69);
    assert!(
        why.contains(&format!("has the rights of user {UID} and was started by user {OTHER}")),
        "{why}"
    );
    user.latchfs(&["run", "build", "--", "true"]).ok();
}

#[test]
fn a_user_without_a_home_is_told_what_to_name() {
    let user = LocalUser::new(UID);
    let other = OTHER.to_string();
    let words =
        ["setpriv", "--reuid", &other, "--regid", &other, "--clear-groups", "latchfs", "ls"];
    let why = run(&mut user.by_root(&words)).exits(69);
    assert!(why.contains("user 47111 is in no user database; name a place by"), "{why}");
    // A directory service knows a user whom the files of the machine do not name.
    let (here, home) = (user.home().parent().expect("a directory").to_owned(), user.home());
    let entry = format!("#!/bin/sh\necho ldap:x:{OTHER}:{OTHER}::{}:/bin/sh\n", home.display());
    fs::write(here.join("getent"), entry).expect("writable");
    fs::set_permissions(here.join("getent"), fs::Permissions::from_mode(0o755)).expect("ours");
    chown(&home, Some(OTHER), Some(OTHER)).expect("root may");
    let words = words.join(" ").replace(" ls", " run build -- true");
    let script = format!("mount --bind getent /usr/bin/getent && exec {words}");
    run(&mut user.by_root(&["sh", "-c", &script])).ok();
    user.daemon();
    user.kill_daemons();
    fs::remove_dir_all(user.home()).expect("ours");
    let why = user.latchfs(&["ls"]).exits(69);
    assert!(why.contains("is missing; name a place by --server or --dir"), "{why}");
}

/// A server that a user configures later does not grant a name that the user holds already.
#[test]
fn two_places_never_hold_a_name_behind_the_users_back() {
    let (user, server) = (LocalUser::new(UID), Server::start(&[]));
    user.latchfs(&["acquire", "build", "--ttl", "1h"]).ok();
    let there = |words: &str| user.sh(&format!("LATCHFS_SERVER={} latchfs {words}", server.url));
    for words in ["run build -- true", "acquire build", "release build"] {
        let why = there(words).exits(75);
        assert!(why.contains(&server.url) && why.contains("own locks (unix:"), "{words}: {why}");
    }
    let named = user.latchfs(&["run", "--server", &server.url, "build", "--", "true"]);
    assert_eq!((named.code, &*named.err), (0, ""));
    // Another name is told, even in a pipe and with -q: there are two places now.
    for words in ["run -q other -- true", "ls"] {
        let told = there(words);
        let is_told = told.err.contains(&format!("this is about the locks of {}", server.url));
        assert!(told.code == 0 && is_told, "{told:?}");
    }
    user.latchfs(&["release", "build"]).ok();
    user.latchfs(&["run", "backup", "--slot", "today", "--", "true"]).ok();
    assert!(user.latchfs(&["ls", "--slots"]).ok().contains("backup@today"), "it is kept");
    let quiet = there("run build -- true");
    assert_eq!((quiet.code, &*quiet.err), (0, ""), "there is one place");
}

#[test]
fn root_is_told_that_the_locks_of_the_caller_of_sudo_are_others() {
    let user = LocalUser::new(UID);
    user.latchfs(&["acquire", "build", "--ttl", "1h"]).ok();
    let sudo = ["env", "SUDO_UID=47110", "latchfs", "run", "build", "--", "true"];
    let by_root = run(&mut user.by_root(&sudo));
    assert_eq!(by_root.code, 0, "these are two locks");
    assert!(by_root.err.contains("those of tester are others"), "{by_root:?}");
    assert_eq!(by_root.err.lines().count(), 1);
    assert_eq!(user.daemons().len(), 2);
}

#[test]
fn a_terminal_is_told_once_which_locks_these_are() {
    let user = LocalUser::new(UID);
    let script = "latchfs run build -- true; latchfs run build -- true; latchfs -q ls";
    let terminal = run(&mut user.command(&["script", "-qec", script, "/dev/null"])).ok();
    assert_eq!(terminal.matches("these are your own locks on this machine").count(), 1);
}
