//! Guarded folders whose lock lives in a cluster: while leaders are killed and machines are
//! isolated, writes succeed or are refused, and no acknowledged write is lost or made twice.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testing::net::{Daemon, Machine, Net};
use testing::nodes::{Cluster, serve_alone};
use testing::{eventually_in_cluster, latchfs, latchfs_path, rounds, run};

/// How long the lock lasts when its holder does not answer.
const TTL: &str = "2s";

/// A program that takes the lock of a folder, adds lines to a file by saving it as a whole, and
/// gives the lock up, until a file `stop` appears. It records the acknowledged lines, and counts
/// the refusals. Any other error than ESTALE and EROFS ends it.
const WRITER: &str = r"
import errno, json, os, sys, time
view, folder, name = sys.argv[1:]
def ask(request):
    ctl = os.open(view + '/.latchfs/ctl', os.O_RDWR)
    try:
        os.write(ctl, (json.dumps(request) + '\n').encode())
        return json.loads(os.pread(ctl, 65536, 0))
    finally:
        os.close(ctl)
number, path = 0, view + '/list'
acknowledged = open(f'{folder}/../acknowledged-{name}', 'w')
refused = open(f'{folder}/../refused-{name}', 'w')
while not os.path.exists(folder + '/../stop'):
    if ask({'do': 'take', 'wait_ms': 2000}).get('state') != 'holding':
        print('take', file=refused, flush=True)
        time.sleep(0.05)
        continue
    try:
        for _ in range(3):
            number += 1
            text = open(path).read() if os.path.exists(path) else ''
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                os.write(file, f'{text}{name} {number}\n'.encode())
            finally:
                os.close(file)
            print(name, number, file=acknowledged, flush=True)
        ask({'do': 'give'})
    except OSError as error:
        if error.errno not in (errno.ESTALE, errno.EROFS):
            raise
        print(error.errno, file=refused, flush=True)
        time.sleep(0.05)
";

/// A folder that several machines guard, and a writer on each of them.
struct Writers {
    place: PathBuf,
    guards: Vec<(Daemon, PathBuf)>,
    programs: Vec<Child>,
}

/// Starts a guard on a machine. Returns the daemon and the view.
fn guard(machine: &Machine, folder: &Path, name: &str) -> (Daemon, PathBuf) {
    let view = machine.path("view");
    let stage = folder.with_file_name("stage");
    let paths = [folder, &view].map(|path| path.display().to_string());
    let stage = stage.display().to_string();
    let options = ["--stage", &stage, "--client", name, "--ttl", TTL];
    let policy = ["--shared-storage", "--on-write", "refuse"];
    let args = [&["guard", &paths[0], &paths[1]], &options[..], &policy].concat();
    let args = args.into_iter().map(str::to_owned).collect();
    (Daemon::start(machine, args, "shows"), view)
}

impl Writers {
    fn start(net: &mut Net, clients: &Machine, server: &str) -> Self {
        let place = clients.path("guarded");
        let folder = place.join("folder");
        fs::create_dir_all(&folder).expect("the scratch directory is ours");
        let mut init = clients.command(latchfs_path());
        init.args(["guard", "init", "--shared-storage", "--server", server]).arg(&folder);
        run(&mut init).ok();
        let mut guards = Vec::new();
        let mut programs = Vec::new();
        for name in ["w1", "w2"] {
            let (daemon, view) = guard(&net.machine(), &folder, name);
            let mut program = Command::new("/usr/bin/python3");
            program.args(["-c", WRITER]).arg(&view).arg(&folder).arg(name);
            programs.push(program.stdin(Stdio::null()).spawn().expect("python is there"));
            guards.push((daemon, view));
        }
        Self { place, guards, programs }
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.place.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn acknowledged(&self, name: &str) -> usize {
        self.lines(&format!("acknowledged-{name}")).len()
    }

    /// Waits until both programs have written several times more.
    fn await_progress(&self) {
        for name in ["w1", "w2"] {
            let before = self.acknowledged(name);
            eventually_in_cluster("writes", || {
                (self.acknowledged(name) >= before + 6).then_some(())
            });
        }
    }

    /// Waits until both programs are refused.
    fn are_refused(&self) {
        for name in ["w1", "w2"] {
            let file = format!("refused-{name}");
            let before = self.lines(&file).len();
            eventually_in_cluster("refusals", || {
                (self.lines(&file).len() > before + 1).then_some(())
            });
        }
    }

    /// Ends the programs. Checks that each acknowledged line is in the file once, in its order, and
    /// no line twice.
    fn end(mut self) {
        fs::write(self.place.join("stop"), "").expect("ours");
        for mut program in std::mem::take(&mut self.programs) {
            assert!(program.wait().expect("our child").success(), "another error");
        }
        let list = self.lines("folder/list");
        for name in ["w1", "w2"] {
            let own: Vec<_> = list.iter().filter(|line| line.starts_with(name)).collect();
            let acknowledged = self.lines(&format!("acknowledged-{name}"));
            let mut rest = own.iter();
            for line in &acknowledged {
                assert!(rest.any(|there| *there == line), "{line} is lost");
            }
            let refused = self.lines(&format!("refused-{name}"));
            let count = |why: &str| refused.iter().filter(|line| *line == why).count();
            let counts = ["take", "30", "116"].map(count);
            let acknowledged = acknowledged.len();
            println!("{name}: {acknowledged} acknowledged; no lock, EROFS, ESTALE: {counts:?}");
        }
        let count = list.len();
        let mut distinct = list;
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), count, "a line was written twice");
        for (mut daemon, view) in std::mem::take(&mut self.guards) {
            daemon.end();
            let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
            assert!(!mounts.contains(&view.display().to_string()));
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["w1", "w2"] {
                let refused = self.lines(&format!("refused-{name}"));
                println!("{name}: {} {refused:?}", self.acknowledged(name));
            }
        }
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
        for (daemon, view) in &mut self.guards {
            if std::thread::panicking() {
                println!("{}: {}\n{}", view.display(), status(view), daemon.log());
            }
            daemon.signal(libc::SIGKILL);
            let _ = Command::new("umount").arg("-l").arg(&*view).status();
            let _ = Command::new("chattr").arg("-i").arg(&*view).status();
        }
    }
}

#[test]
fn guards_write_on_while_leaders_are_killed() {
    let mut cluster = Cluster::of(3);
    let urls = cluster.urls().join(",");
    let clients = cluster.clients.clone();
    let writers = Writers::start(&mut cluster.net, &clients, &urls);
    writers.await_progress();
    for _ in 0..rounds(3, 20) {
        let leader = cluster.leader();
        cluster.nodes[leader].daemon.kill();
        writers.await_progress();
        cluster.nodes[leader].daemon.restart();
        cluster.voters(3);
    }
    cluster.nodes.iter_mut().for_each(|node| node.daemon.kill());
    writers.are_refused();
    cluster.nodes.iter_mut().for_each(|node| node.daemon.restart());
    cluster.voters(3);
    writers.await_progress();
    writers.end();
}

/// Returns what a guard tells about its state.
fn status(view: &Path) -> Value {
    let status = fs::read_to_string(view.join(".latchfs/status")).expect("readable");
    serde_json::from_str(&status).expect("JSON")
}

fn take(view: &Path) -> u64 {
    // A machine that was isolated may need a moment to reach the server again.
    eventually_in_cluster("the lock", || {
        let taken = run(latchfs().args(["guard", "take"]).arg(view));
        (taken.code == 0).then_some(())
    });
    status(view)["tenure"]["token"].as_u64().expect("a token")
}

#[test]
fn an_isolated_guard_writes_until_its_lease_ends_and_not_after_anothers_tenure() {
    let mut net = Net::new();
    let machine = net.machine();
    let _server = serve_alone(&machine, "data");
    let place = machine.path("guarded");
    let folder = place.join("folder");
    fs::create_dir_all(&folder).expect("ours");
    let mut init = machine.command(latchfs_path());
    init.args(["guard", "init", "--shared-storage", "--server", &machine.url()]).arg(&folder);
    run(&mut init).ok();
    let (first, second) = (net.machine(), net.machine());
    let guards = [guard(&first, &folder, "w1"), guard(&second, &folder, "w2")];
    let writers = Writers { place, guards: guards.into(), programs: Vec::new() };
    let [(_, one), (_, two)] = &writers.guards[..] else { unreachable!() };
    let write = |view: &Path, text: &str| {
        fs::write(view.join("a"), text).map_err(|error| error.raw_os_error().unwrap_or(0))
    };

    // Away for less than the lease: the tenure goes on.
    let token = take(one);
    first.isolate(true);
    assert_eq!(write(one, "1"), Ok(()));
    first.isolate(false);
    assert_eq!(write(one, "2"), Ok(()));
    assert_eq!(status(one)["tenure"]["token"], token);

    // Away for longer, and back before another machine had the lock.
    first.isolate(true);
    let refused = eventually_in_cluster("the end of the lease", || write(one, "3").err());
    assert!([libc::ESTALE, libc::EROFS].contains(&refused), "{refused}");
    // Up to the deadline the tenure could still go on.
    eventually_in_cluster("the end of the tenure", || {
        (status(one)["state"] != "holding").then_some(())
    });
    first.isolate(false);
    let later = take(one);
    assert!(later > token);
    assert_eq!(write(one, "4"), Ok(()));

    // Away for longer, and back after another machine had the lock.
    let mut open = fs::File::create(one.join("b")).expect("held");
    std::io::Write::write_all(&mut open, b"half").expect("held");
    first.isolate(true);
    let others = take(two);
    assert!(others > later);
    assert_eq!(write(two, "5"), Ok(()));
    assert!(write(one, "6").is_err());
    first.isolate(false);
    let late = std::io::Write::write_all(&mut open, b"more").expect_err("the tenure is over");
    assert_eq!(late.raw_os_error(), Some(libc::ESTALE));
    assert!(write(one, "7").is_err());
    assert_eq!(fs::read_to_string(folder.join("a")).expect("there"), "5");
    assert!(!folder.join("b").exists());
    run(latchfs().args(["guard", "give"]).arg(two)).ok();
    assert!(take(one) > others);
    assert_eq!(write(one, "8"), Ok(()));
    writers.end();
}
