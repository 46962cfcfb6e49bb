//! Two versions of latchfs in one cluster: nodes are upgraded and downgraded one by one under load,
//! while mounts of both versions hold locks, take them in turn and rename locked files.

use crate::load::Load;
use crate::net::{Machine, Mount, Net, Program, Version, eventually, run};
use crate::nodes::Cluster;
use std::fs;
use std::sync::atomic::Ordering;

/// The number of clients that send requests over HTTP.
const CLIENTS: usize = 3;
/// The minimum number of answers between two restarts of nodes.
const ANSWERS: u64 = 200;
/// The format in which a release may name an open file.
const NEW_FORMAT: &str = "6";
/// The newest format of the previous version.
const OLD_FORMAT: &str = "5";

/// A program that holds one lock for its whole life, and meanwhile takes another one in turn with
/// the programs of the other mounts, and unlocks files that it has renamed while they were locked.
const PROGRAM: &str = "
    name, counter = sys.argv[1:3]
    held = os.open('held-' + name, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    token = os.getxattr('held-' + name, 'user.latchfs.token')
    print('holds')
    end = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), end.set()), daemon=True).start()
    # A server that does not answer while it restarts.
    away = (errno.ETIMEDOUT, errno.ENOENT)
    def locked(path):
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT)
            except OSError as e:
                assert e.errno in away, e
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                return fd
            except OSError as e:
                os.close(fd)
                assert e.errno in away, e
    def is_free(path):
        try:
            return b'\"phase\": \"free\"' in open('.latchfs/status/' + path, 'rb').read()
        except OSError as e:
            assert e.errno in away, e
            return False
    turns = renames = 0
    while not end.is_set():
        fd = locked('work')
        with open(counter) as f:
            count = int(f.read())
        with open(counter, 'w') as f:
            f.write(str(count + 1))
        os.close(fd)
        turns += 1
        a, b = 'a-%s-%d' % (name, turns), 'b-%s-%d' % (name, turns)
        fd = locked(a)
        try:
            os.rename(a, b)
        except OSError as e:
            assert e.errno in away, e
            os.close(fd)
            continue
        os.close(fd)
        limit = now() + 20_000_000_000
        while not is_free(b):
            assert now() < limit, 'lock %s was unlocked and is still held' % b
        renames += 1
    os.write(held, b'x')
    assert token == os.getxattr('held-' + name, 'user.latchfs.token'), 'the tenure was lost'
    print(turns, renames)
";

/// The programs on the mounts, and the file in which they count their turns.
struct Crowd {
    programs: Vec<Program>,
    counter: std::path::PathBuf,
}

impl Crowd {
    #[track_caller]
    fn begin(mounts: &[Mount], scratch: &Machine) -> Self {
        let counter = scratch.path("counter");
        fs::write(&counter, "0").expect("the scratch directory is ours");
        let path = counter.display().to_string();
        let program = |(at, mount): (usize, &Mount)| {
            let program = mount.python(PROGRAM, &[&at.to_string(), &path]);
            program.says("holds");
            program
        };
        Self { programs: mounts.iter().enumerate().map(program).collect(), counter }
    }

    /// Waits until the programs have had this many more turns.
    #[track_caller]
    fn go_on(&self, turns: u64) {
        let count = || fs::read_to_string(&self.counter).ok()?.parse::<u64>().ok();
        let begun = eventually("a count", count);
        eventually("turns", || count().filter(|count| *count >= begun + turns));
    }

    /// Ends the programs. Each must still hold its own lock, and no turn may be lost: two programs
    /// that had the lock at the same time would count the same number.
    #[track_caller]
    fn end(self) {
        let mut all = 0;
        for mut program in self.programs {
            program.tell("end");
            let said = program.line();
            let (turns, renames) = said.split_once(' ').expect("two numbers");
            let [turns, renames] = [turns, renames].map(|n| n.parse::<u64>().expect("a number"));
            assert!(renames > 0, "no file was renamed");
            all += turns;
            assert_eq!(program.ended(), 0);
        }
        let counted = fs::read_to_string(&self.counter).expect("it is there");
        assert_eq!(counted, all.to_string(), "two programs had the lock at the same time");
    }
}

/// Restarts a node as another version, or with other options, and waits until it is a voter again.
#[track_caller]
fn restart(cluster: &mut Cluster, at: usize, version: Version, more: &[&str]) {
    let node = &mut cluster.nodes[at];
    let mut args = node.daemon.args().to_vec();
    if let Some(at) = args.iter().position(|arg| arg == "--format-max") {
        args.truncate(at);
    }
    args.extend(more.iter().map(|word| (*word).to_owned()));
    node.daemon.end();
    node.daemon.again_as(version, args);
    cluster.voters(3);
}

/// Returns the newest format of the entries in a node's log.
fn log_format(cluster: &Cluster, at: usize) -> Option<String> {
    let url = format!("{}/metrics", cluster.nodes[at].machine.url());
    let page = run(cluster.clients.command("curl").args(["-sS", "--max-time", "5", &url])).out;
    let line = page.lines().find(|line| line.starts_with("latchfs_cluster_log_format "));
    line.and_then(|line| line.split(' ').nth(1)).map(str::to_owned)
}

/// A cluster of the previous version is upgraded node by node, and downgraded node by node after
/// `--format-max` has prepared it. HTTP clients and mounts of both versions work all the time: no
/// lock is lost, and no lock has two holders.
#[test]
fn nodes_are_upgraded_and_downgraded_one_by_one_under_load() {
    let mut cluster = Cluster::of_version(Version::Previous, 3);
    let urls = cluster.urls().join(",");
    let machines = [cluster.net.machine(), cluster.net.machine()];
    let mounts = [
        machines[0].mount_as(Version::Current, &urls, &["locks-new"], ""),
        machines[1].mount_as(Version::Previous, &urls, &["locks-old"], ""),
    ];
    let load = Load::begin(&cluster.clients, &cluster.urls(), CLIENTS, crate::chaos::seed());
    let crowd = Crowd::begin(&mounts, &cluster.clients);
    let go_on = || {
        load.go_on(ANSWERS);
        crowd.go_on(4);
    };
    go_on();
    for at in 0..3 {
        restart(&mut cluster, at, Version::Current, &[]);
        go_on();
        let format = log_format(&cluster, at);
        assert!(at == 2 || format.as_deref() == Some(OLD_FORMAT), "node {at}: {format:?}");
    }
    // Only now all nodes know the new format.
    eventually("a release by open file", || (log_format(&cluster, 0)? == NEW_FORMAT).then_some(()));
    for at in 0..3 {
        restart(&mut cluster, at, Version::Current, &["--format-max", OLD_FORMAT]);
        go_on();
    }
    for at in 0..3 {
        eventually("a log that the previous version can read", || {
            (log_format(&cluster, at)? == OLD_FORMAT).then_some(())
        });
    }
    for at in 0..3 {
        restart(&mut cluster, at, Version::Previous, &[]);
        go_on();
    }
    crowd.end();
    let world = load.end();
    cluster.agree();
    let (answers, unknown) =
        (world.answers.load(Ordering::Relaxed), world.unknown.load(Ordering::Relaxed));
    println!("{answers} answers, {unknown} requests with an unknown outcome");
}

/// A node whose log has entries of the new format says so when the previous version is started on
/// it, and loses nothing.
#[test]
fn previous_version_refuses_a_log_that_it_cannot_read() {
    let mut cluster = Cluster::alone();
    let machine = cluster.net.machine();
    let mount = machine.mount(&cluster.urls()[0], "");
    mount.sh("mkdir held && flock work true").ok();
    eventually("a release by open file", || (log_format(&cluster, 0)? == NEW_FORMAT).then_some(()));
    let node = &mut cluster.nodes[0];
    node.daemon.end();
    let said = run(node.machine.command(&Version::Previous.program()).args(node.daemon.args()));
    assert!(said.code != 0 && said.err.contains("format 6"), "{said:?}");
    node.daemon.again();
    let held = || cluster.curl(0, "GET", "/locks/held").1["phase"] == "held";
    eventually("nothing is lost", || held().then_some(()));
}

/// One server without a cluster is replaced by the other version and back at the same URL, under
/// mounts of both versions that hold locks.
#[test]
fn a_single_server_is_upgraded_and_downgraded_under_mounts() {
    let mut net = Net::new();
    let (server, machines) = (net.machine(), [net.machine(), net.machine()]);
    let mut daemon = server.serve("");
    let args = daemon.args().to_vec();
    let mounts = [
        machines[0].mount_as(Version::Current, &server.url(), &["locks-new"], ""),
        machines[1].mount_as(Version::Previous, &server.url(), &["locks-old"], ""),
    ];
    let crowd = Crowd::begin(&mounts, &server);
    crowd.go_on(10);
    for version in [Version::Previous, Version::Current, Version::Previous] {
        daemon.end();
        daemon.again_as(version, args.clone());
        crowd.go_on(10);
    }
    crowd.end();
}
