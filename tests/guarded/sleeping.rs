//! Machines that sleep: a guard gives an idle lock up before, if logind says that a sleep comes,
//! and is right about what it has missed when it wakes up.

use crate::arriving::{Machines, begin_take, markers, state};
use latchfs::time::{Span, boot_now};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testing::signal;
use testing::{Guard, Scratch, latchfs, pause, soon};

/// The program that speaks to the bus of a test: `what` is done with the object of logind.
const CALL: &str = "import dbus, sys\n\
    bus = dbus.bus.BusConnection(sys.argv[1])\n\
    name, path = 'org.freedesktop.login1', '/org/freedesktop/login1'\n\
    manager = name + '.Manager'\n\
    def logind(): return bus.get_object(name, path)\n\
    def forged(to):\n\
    \x20   from dbus.lowlevel import SignalMessage\n\
    \x20   message = SignalMessage(path, manager, 'PrepareForSleep')\n\
    \x20   message.set_destination(to)\n\
    \x20   message.append(True, signature='b')\n\
    \x20   bus.send_message(message)\n";

/// A system bus with the mock of logind.
struct Logind {
    bus: Child,
    mock: Child,
    socket: PathBuf,
}

impl Logind {
    fn start(scratch: &Scratch) -> Self {
        let socket = scratch.join("bus");
        let bus = start_bus(&socket);
        let logind = Self { bus, mock: start_mock(&socket), socket };
        logind.has_inhibitors(0);
        logind
    }

    fn address(&self) -> String {
        format!("unix:path={}", self.socket.display())
    }

    /// Returns a command that runs latchfs with this bus.
    fn latchfs(&self) -> Command {
        let mut command = latchfs();
        command.env("DBUS_SYSTEM_BUS_ADDRESS", self.address()).env("RUST_LOG", "info");
        command
    }

    fn call(&self, what: &str) -> Option<String> {
        let mut python = Command::new("/usr/bin/python3");
        let called = python.args(["-c", &format!("{CALL}{what}")]).arg(self.address()).output();
        let called = called.expect("it runs");
        called.status.success().then(|| String::from_utf8_lossy(&called.stdout).trim().to_owned())
    }

    /// Waits until logind delays a sleep for so many processes.
    fn has_inhibitors(&self, count: usize) {
        let ask = "print(len(logind().ListInhibitors(dbus_interface=manager)))";
        soon("the inhibitors of logind", || (self.call(ask)? == count.to_string()).then_some(()));
    }

    /// Says that a sleep comes, or that it is over.
    fn sleeps(&self, comes: bool) {
        let comes = if comes { "True" } else { "False" };
        let emit = format!(
            "logind().EmitSignal(manager, 'PrepareForSleep', 'b', [{comes}], \
             dbus_interface='org.freedesktop.DBus.Mock')"
        );
        self.call(&emit).expect("the mock says so");
    }
}

fn end(child: &mut Child) {
    signal(child.id() as i32, libc::SIGCONT);
    let _ = child.kill();
    let _ = child.wait();
}

impl Drop for Logind {
    fn drop(&mut self) {
        end(&mut self.mock);
        end(&mut self.bus);
    }
}

fn start_bus(socket: &std::path::Path) -> Child {
    let mut bus = Command::new("dbus-daemon");
    bus.args(["--session", "--nofork", "--nopidfile", "--print-address=1"]);
    bus.arg(format!("--address=unix:path={}", socket.display()));
    let mut bus = bus.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(bus.stdout.take().expect("piped")).read_line(&mut line).expect("it listens");
    bus
}

fn start_mock(socket: &std::path::Path) -> Child {
    let mut mock = Command::new("/usr/bin/python3");
    mock.args(["-m", "dbusmock", "--system", "--template", "logind"]);
    mock.env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", socket.display()));
    mock.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

pub(crate) fn how_it_ended(guard: &Guard) -> String {
    guard.status()["last_tenure"]["how"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn an_idle_lock_is_given_up_before_a_sleep() {
    let machines = Machines::new();
    let logind = Logind::start(&machines.first);
    let one = machines.start_as(logind.latchfs(), 1, &["--yield", "1s", "--settle", "1m"]);
    let two = machines.start(2, &[]);
    logind.has_inhibitors(1);
    fs::write(one.path("a"), "of m1").expect("free");
    let announced = boot_now();
    logind.sleeps(true);
    logind.has_inhibitors(0);
    let took = boot_now().since(announced);
    println!("given up {took} after the signal");
    assert!(took < Span::from_secs(5), "{took}");
    assert_eq!(state(&one), "reading");
    assert!(how_it_ended(&one).contains("about to sleep"), "{}", how_it_ended(&one));
    one.stop();
    let taking = begin_take(&two);
    soon("the lock of the second machine", || {
        machines.carry_all();
        let status = two.status();
        assert!(!status["not_ready"].to_string().contains("accept"), "{status}");
        (status["state"] == "holding").then_some(())
    });
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("a")).expect("arrived"), "of m1");
    two.request("give", &[]).ok();
    one.signal(libc::SIGCONT);
    logind.sleeps(false);
    logind.has_inhibitors(1);
    // The next sleep is delayed as well.
    one.request("take", &[]).ok();
    logind.sleeps(true);
    logind.has_inhibitors(0);
    assert_eq!(state(&one), "reading");
}

/// A lock that is kept, because a file is open for writing or `--keep` says so, gets a marker of
/// what has changed so far.
#[test]
fn a_busy_lock_is_kept_through_a_sleep_and_marked() {
    for options in [&["--yield", "1s"][..], &["--keep"]] {
        let machines = Machines::new();
        let logind = Logind::start(&machines.first);
        let options = [options, &["--settle", "1m"]].concat();
        let one = machines.start_as(logind.latchfs(), 1, &options);
        logind.has_inhibitors(1);
        fs::write(one.path("a"), "of m1").expect("free");
        let mut open = options.contains(&"--yield").then(|| File::create(one.path("b")));
        if let Some(open) = &mut open {
            open.as_mut().expect("held").write_all(b"half").expect("held");
        }
        let before = markers(&machines.first).len();
        let announced = boot_now();
        logind.sleeps(true);
        logind.has_inhibitors(0);
        let took = boot_now().since(announced);
        println!("kept, {took} after the signal");
        assert!(took < Span::from_secs(5), "{took}");
        assert_eq!(state(&one), "holding");
        assert_eq!(markers(&machines.first).len(), before + 1);
        if let Some(open) = open {
            let mut open = open.expect("held");
            open.write_all(b" and half").expect("the tenure goes on");
            drop(open);
            let text = fs::read_to_string(machines.first.folder().join("b")).expect("saved");
            assert_eq!(text, "half and half");
        }
    }
}

#[test]
fn a_restart_of_logind_or_of_the_bus_is_survived() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let mut logind = Logind::start(&scratch);
    let guard = Guard::start_as(logind.latchfs(), &scratch, "view", &[]);
    logind.has_inhibitors(1);
    end(&mut logind.mock);
    logind.mock = start_mock(&logind.socket);
    logind.has_inhibitors(1);
    end(&mut logind.mock);
    end(&mut logind.bus);
    fs::write(guard.path("a"), "without a bus").expect("the bus is not needed");
    fs::remove_file(&logind.socket).unwrap_or_default();
    logind.bus = start_bus(&logind.socket);
    logind.mock = start_mock(&logind.socket);
    logind.has_inhibitors(1);
    guard.request("take", &[]).ok();
    logind.sleeps(true);
    logind.has_inhibitors(0);
    assert_eq!(state(&guard), "reading");
    guard.end();
}

/// Any program may send a signal of this name; only that of logind counts.
#[test]
fn a_forged_signal_gives_nothing_up() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let logind = Logind::start(&scratch);
    let guard = Guard::start_as(logind.latchfs(), &scratch, "view", &["--yield", "1s"]);
    logind.has_inhibitors(1);
    guard.request("take", &[]).ok();
    let forge = "for to in bus.list_names():\n    if to[0] == ':': forged(to)\nbus.flush()";
    logind.call(forge).expect("sent");
    pause(Duration::from_millis(1_500));
    logind.has_inhibitors(1);
    assert_eq!(state(&guard), "holding");
    logind.sleeps(true);
    logind.has_inhibitors(0);
    assert_eq!(state(&guard), "reading");
}

/// Whether the guard has a thread of this name.
fn has_thread(guard: &Guard, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", guard.pid())).expect("it runs").flatten();
    let comm = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| comm(task).ok()).any(|comm| comm.trim_end() == name)
}

/// Returns the sockets of the guard that a command of it would inherit.
fn sockets_for_commands(guard: &Guard) -> Vec<String> {
    let dir = PathBuf::from(format!("/proc/{}", guard.pid()));
    let is_inherited = |name: &String| {
        let text = fs::read_to_string(dir.join("fdinfo").join(name)).unwrap_or_default();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & libc::O_CLOEXEC == 0)
    };
    let is_socket = |name: &String| {
        let target = fs::read_link(dir.join("fd").join(name)).unwrap_or_default();
        target.to_string_lossy().starts_with("socket:")
    };
    let names = fs::read_dir(dir.join("fdinfo")).expect("it runs").flatten();
    let names = names.map(|info| info.file_name().into_string().expect("a number"));
    names.filter(|name| is_inherited(name) && is_socket(name)).collect()
}

#[test]
fn a_guard_needs_no_bus_and_no_answer_of_it() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let silent = scratch.join("silent");
    let _listener = UnixListener::bind(&silent).expect("bound");
    for (socket, lines) in [(scratch.join("absent"), 1), (silent, 0)] {
        let mut command = latchfs();
        let address = format!("unix:path={}", socket.display());
        command.env("DBUS_SYSTEM_BUS_ADDRESS", address).env("RUST_LOG", "info");
        let guard = Guard::start_as(command, &scratch, "view", &[]);
        fs::write(guard.path("a"), "as ever").expect("free");
        if lines == 1 {
            soon("the end of the attempt", || (!has_thread(&guard, "sleep")).then_some(()));
            assert_eq!(sockets_for_commands(&guard), Vec::<String>::new());
        }
        let log = guard.end();
        assert_eq!(log.matches("about to sleep").count(), lines, "{log}");
        assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    }
}
