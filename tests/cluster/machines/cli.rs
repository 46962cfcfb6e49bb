//! The command line with `--server`, without any mount.

use testing::net::{Machine, Net, Program};
use testing::{Output, eventually_in_cluster, latchfs_path, run};

fn latchfs(machine: &Machine, url: &str, client: &str, args: &[&str]) -> Output {
    let mut command = machine.command(latchfs_path());
    run(command.args(args).args(["--client", client]).env("LATCHFS_SERVER", url))
}

#[test]
fn all_commands_work_with_a_server() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let _served = server.serve("");
    let url = server.url();
    let me = |args: &[&str]| latchfs(&a, &url, "a", args);
    let other = |args: &[&str]| latchfs(&a, &url, "b", args);
    let acquired = me(&["acquire", "build", "--ttl", "1m", "--note", "hi"]).ok();
    assert!(acquired.starts_with("acquired build: token "), "{acquired}");
    assert!(me(&["acquire", "build", "--reentrant"]).ok().starts_with("renewed build"));
    let refused = other(&["acquire", "build"]);
    assert_eq!(refused.code, 75, "{refused:?}");
    assert!(refused.err.contains("lock 'build' is held by a"), "{refused:?}");
    assert_eq!(me(&["acquire", "build"]).code, 75);
    let status = other(&["status", "build", "--json"]).ok();
    assert!(
        status.contains("\"note\": \"hi\"") && status.contains("\"holder\": \"a\""),
        "{status}"
    );
    assert!(other(&["ls"]).ok().contains("build"));
    assert!(me(&["renew", "build", "--ttl", "2m"]).ok().contains("expires in 2m"));
    assert_eq!(other(&["release", "build"]).code, 77);
    let stolen = other(&["steal", "build", "--reason", "a is dead"]).ok();
    assert!(stolen.starts_with("stole build"), "{stolen}");
    assert!(other(&["release", "build"]).ok().contains("released build"));
    assert!(other(&["wait", "build", "--wait", "5s"]).ok().starts_with("acquired build"));
    assert_eq!(me(&["wait", "build", "--timeout", "500ms"]).code, 75);
    other(&["release", "build"]).ok();
    assert_eq!(me(&["ls"]).ok().lines().count(), 1, "nothing is held");
}

#[test]
fn a_command_runs_under_a_lock_of_a_server() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let _served = server.serve("");
    let url = server.url();
    let mut first = a.command(latchfs_path());
    first.args(["run", "build", "--server", &url, "--client", "a", "--"]);
    first.args(["sh", "-c", "echo $LATCHFS_LOCK $LATCHFS_SERVER; read line; exit 7"]);
    let mut first = Program::start(&mut first);
    first.says(&format!("build {url}"));
    let mut tried = b.command(latchfs_path());
    tried.args(["run", "build", "--try", "--server", &url, "--client", "b", "--", "true"]);
    let tried = run(&mut tried);
    assert_eq!(tried.code, 75, "{tried:?}");
    let mut second = b.command(latchfs_path());
    second.args(["run", "build", "--server", &url, "--client", "b", "--", "echo", "mine"]);
    let second = Program::start(&mut second);
    eventually_in_cluster("it waits", || {
        latchfs(&a, &url, "c", &["status", "build"]).ok().contains("waiting").then_some(())
    });
    assert!(second.is_silent());
    first.send_line("go");
    assert_eq!(first.ended(), 7);
    second.says("mine");
    assert_eq!(second.ended(), 0);
}

/// An isolated `latchfs run` ends its command before another client is granted the lock.
#[test]
fn an_isolated_command_is_ended_before_the_next_grant() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let _served = server.serve("");
    let url = server.url();
    let script = "trap '' TERM; while :; do cat /proc/uptime > $0; done";
    let beat = a.path("beat").display().to_string();
    let mut first = a.command(latchfs_path());
    first.args(["run", "build", "--ttl", "2s", "--server", &url, "--client", "a", "--"]);
    first.args(["sh", "-c", script, &beat]);
    let first = Program::start(&mut first);
    eventually_in_cluster("it runs", || std::fs::metadata(&beat).ok());
    let mut second = b.command(latchfs_path());
    second.args(["run", "build", "--server", &url, "--client", "b", "--"]);
    second.args(["sh", "-c", "cut -d' ' -f1 /proc/uptime"]);
    let second = Program::start(&mut second);
    eventually_in_cluster("it waits", || {
        latchfs(&b, &url, "c", &["status", "build"]).ok().contains("waiting").then_some(())
    });
    a.cable(false);
    let served_at: f64 = second.line().parse().expect("a time");
    assert_eq!(first.ended(), 76);
    let last = std::fs::read_to_string(&beat).expect("it ran");
    let last: f64 = last.split(' ').next().and_then(|at| at.parse().ok()).unwrap_or(0.0);
    assert!(last < served_at, "the last sign of it was at {last}, the next began at {served_at}");
}

#[test]
fn events_are_followed_from_a_server() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let _served = server.serve("");
    let url = server.url();
    latchfs(&a, &url, "a", &["acquire", "one"]).ok();
    let mut events = a.command(latchfs_path());
    events.args(["events", "--json", "--since", "0", "--server", &url]);
    let events = Program::start(&mut events);
    let first = events.line();
    assert!(
        first.contains("\"event\":\"granted\"") && first.contains("\"name\":\"one\""),
        "{first}"
    );
    latchfs(&a, &url, "a", &["release", "one"]).ok();
    let second = events.line();
    assert!(second.contains("\"event\":\"released\""), "{second}");
}

/// `latchfs doctor` reports the state of each mount's connection to its server, and problems of the
/// server.
#[test]
fn doctor_reports_the_servers_of_mounts() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let _served = server.serve("");
    let url = server.url();
    let mount = a.mount(&url, "--ttl 2s");
    mount.is("connected");
    // `doctor` also reports mounts of tests that run at the same time, so the test reads only the
    // lines about this mount.
    let found = || {
        let seen = run(a.command(latchfs_path()).arg("doctor"));
        let lines = seen.out.lines().filter(|line| line.contains(&*mount.dir().to_string_lossy()));
        let ours = lines.filter(|line| line.contains(" server: ")).collect::<Vec<_>>().join("\n");
        (seen, ours)
    };
    let dir = mount.dir().display();
    let (seen, ours) = found();
    assert_eq!(ours, format!("ok     server: {dir} is connected to {url}"));
    for word in ["answers within ", "the wall clock of "] {
        assert!(seen.out.lines().any(|line| line.starts_with("ok ") && line.contains(word)));
    }
    let page = &mount.server_page()["server"];
    assert_eq!((&page["url"], &page["trouble"]), (&url.into(), &serde_json::Value::Null));
    a.cable(false);
    mount.is("in jeopardy");
    let (_, ours) = found();
    assert!(ours.starts_with(&format!("wrong  server: {dir} waits for http://")), "{ours}");
    mount.is("lost");
    let (seen, ours) = found();
    assert_eq!(seen.code, 1, "{seen:?}");
    assert!(ours.starts_with(&format!("wrong  server: {dir} has lost http://")), "{ours}");
    assert!(seen.out.contains("fix: latchfs doctor --server http://"), "{seen:?}");
    a.cable(true);
    mount.is("connected");
    assert!(found().1.starts_with("ok "));
}
