//! Habits of people and of other tools: the progress of a wait, `hold`, `who`, `top`, aliases, ways
//! to write durations and commands, and completions.

use crate::run::{Job, targets};
use latchfs::time::{Span, boot_now};
use std::process::Command;
use std::time::Duration;
use testing::*;

fn waiters(m: &Mount, count: usize) {
    eventually("the queue", || {
        let line = m.status("build")["waiters"].as_array().map(Vec::len);
        (line.unwrap_or(0) == count).then_some(())
    });
}

/// A wait tells its place, the holder and its note on standard error, when it begins and whenever
/// that changes; `-q` turns it off. So over a mount and over a server.
#[test]
fn a_wait_tells_its_progress() {
    for (m, options) in targets() {
        let hold = format!("exec latchfs hold build --note nightly {options}");
        let mut first = Job::new(&m, &hold);
        first.line();
        let run = |flags: &str, word: &str| {
            Job::new(&m, &format!("exec latchfs {flags} run build {options} echo {word} 2>&1"))
        };
        let mut second = run("", "second");
        let waits_at = |job: &Job, place: &str| {
            let line = job.line();
            let begins = format!("latchfs: waiting for lock 'build', {place}: it is held by ");
            assert!(line.starts_with(&begins), "{line}");
            assert!(line.contains(", taken ") && !line.contains('\x1b'), "{line}");
            line
        };
        assert!(waits_at(&second, "place 1").ends_with(" (note: nightly)"));
        let mut third = run("", "third");
        waits_at(&third, "place 2");
        let quiet = run("-q", "quiet");
        waiters(&m, 3);
        signal(second.pid(), libc::SIGINT);
        assert_eq!(second.ends(), None, "SIGINT ends it");
        waiters(&m, 2);
        waits_at(&third, "place 1");
        signal(first.pid(), libc::SIGTERM);
        assert_eq!(first.ends(), Some(0));
        third.says("third");
        assert_eq!(third.ends(), Some(0));
        quiet.says("quiet");
        // A command that gets the lock at once says nothing; the commands that wait say it as well.
        let m = &m;
        let sh = |script: &str| m.sh(&format!("{script} {options} 2>&1"));
        assert!(sh("latchfs wait build").ok().starts_with("acquired build"));
        for wait in ["acquire build --wait 1.5", "wait build --timeout 1500ms"] {
            let said = sh(&format!("latchfs {wait}"));
            assert_eq!(said.code, 75, "{}", said.out);
            assert!(
                said.out.contains("waiting for lock 'build', place 1: it is held"),
                "{}",
                said.out
            );
            assert!(said.out.contains("timed out after 1.5s"), "{}", said.out);
        }
        sh("latchfs release build --any").ok();
    }
}

/// `hold` holds the lock until a signal asks for its end, and then releases it. If the lock is
/// lost, it says so at once. A signal during its wait takes it out of the queue.
#[test]
fn hold_lasts_until_a_signal() {
    for (m, options) in targets() {
        let hold = format!("exec latchfs hold build --ttl 2 {options} 2>&1");
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let mut job = Job::new(&m, &hold);
            let line = job.line();
            assert!(line.starts_with("holding build: token "), "{line}");
            assert!(line.ends_with("; Ctrl-C releases it"), "{line}");
            assert_eq!(m.phase("build"), "held");
            signal(job.pid(), number);
            job.says("released build");
            assert_eq!(job.ends(), Some(0));
            assert_eq!(m.phase("build"), "free");
        }
        let mut job = Job::new(&m, &hold);
        job.line();
        let token = m.token("build");
        // It is renewed for longer than its ttl.
        job.goes_on(Duration::from_secs(4));
        assert_eq!((m.phase("build"), m.token("build")), ("held".to_owned(), token));
        let mut waiting = Job::new(&m, &hold.replace("2>&1", "-q"));
        waiters(&m, 1);
        signal(waiting.pid(), libc::SIGTERM);
        assert_eq!(waiting.ends(), None);
        waiters(&m, 0);
        let tried = m.sh(&format!("latchfs hold build --try {options}")).exits(75);
        assert!(tried.contains("lock 'build' is held by"), "{tried}");
        m.latchfs(&["steal", "build", "--reason", "test"]).ok();
        let line = job.line();
        assert!(
            line.starts_with(&format!("latchfs: lock 'build' was lost (token {token})")),
            "{line}"
        );
        assert_eq!(job.ends(), Some(76));
    }
}

/// The words and ways of other tools are understood.
#[test]
fn words_of_other_tools_are_understood() {
    let m = mount();
    for (ttl, millis) in [("30", 30_000), ("1h 30m", 5_400_000), ("1d", 86_400_000)] {
        m.latchfs(&["lock", "build", "--ttl", ttl]).ok();
        assert_eq!(m.status("build")["ttl_ms"], millis, "{ttl}");
        assert!(m.latchfs(&["list"]).ok().contains("build"));
        m.latchfs(&["unlock", "build", "--any"]).ok();
    }
    m.latchfs(&["acquire", "build", "--ttl", "1 30m"]).exits(64);
    assert_eq!(m.latchfs(&["help"]).ok(), m.latchfs(&["--help"]).ok());
    assert_eq!(m.latchfs(&["help", "run"]).ok(), m.latchfs(&["run", "--help"]).ok());
    assert_eq!(m.latchfs(&["run", "x", "sh", "-c", "exit $#", "--", "--wait", "1"]).code, 2);
    assert_eq!(m.latchfs(&["run", "x", "-c", "exit 5"]).code, 5);
    assert_eq!(m.latchfs(&["run", "x", "--wait", "3", "--", "sh", "-c", "exit 6"]).code, 6);
    let said = m.latchfs(&["run", "x"]).exits(64);
    assert!(said.contains("latchfs run NAME COMMAND") && said.contains("latchfs hold"), "{said}");
    m.latchfs(&["run", "x", "-c", "true", "true"]).exits(64);
    m.latchfs(&["acquire", "x"]).ok();
    let tried = m.latchfs(&["run", "x", "--try", "true"]).exits(75);
    assert!(tried.contains("lock 'x' is held by laptop1:root, taken "), "{tried}");
    assert!(tried.contains("--try does not wait: leave it out"), "{tried}");
    assert_eq!(m.latchfs(&["run", "x", "--try", "-E", "3", "true"]).code, 3);
    assert_eq!(m.latchfs(&["run", "x", "--timeout", "0.2", "-E", "4", "true"]).code, 4);
    m.latchfs(&["release", "x", "--any"]).ok();
    let dir = m.dir().display().to_string();
    m.latchfs_outside(&["unmount", &dir]).ok();
}

/// `who` names the holder of a lock and its waiters, by the lock's name or a path.
#[test]
fn who_names_the_holder() {
    for (m, options) in targets() {
        let who = |file: &str| m.sh(&format!("latchfs who {file} {options}"));
        assert_eq!(who("build").ok(), "build: free\n");
        let mut job = Job::new(&m, &format!("exec latchfs hold build --note deep {options}"));
        job.line();
        let waits = Job::new(&m, &format!("exec latchfs -q run build {options} true"));
        waiters(&m, 1);
        let said = who("build").ok();
        let lines: Vec<_> = said.lines().collect();
        assert!(lines[0].starts_with("build: held by ") && lines[0].contains("(note: deep); "));
        assert!(lines[1].starts_with("process ") && lines[2].starts_with("waiting 1. "), "{said}");
        let found = json(&who("build --json").ok());
        assert_eq!((&found["lock"], &found["status"]["note"]), (&"build".into(), &"deep".into()));
        if options.is_empty() {
            let by_path = who("./build").ok();
            assert_eq!(by_path.split(", taken ").next(), lines[0].split(", taken ").next());
            let outside = m.latchfs_outside(&["who", &m.dir().join("build").display().to_string()]);
            assert!(outside.ok().starts_with("build: held by "));
            let said = m.latchfs_outside(&["who", "/etc/passwd"]).exits(64);
            assert!(said.contains("lies in no guarded folder and in no mount of locks"), "{said}");
        }
        signal(job.pid(), libc::SIGINT);
        job.ends();
        drop(waits);
    }
}

/// A program that runs latchfs on a terminal of so many columns, types keys, and prints what
/// it has seen; the terminal must be as it was.
const TERMINAL: &str = r#"
import fcntl, pty, re, struct, subprocess, termios, threading
def terminal(args, rows, columns, word, keys):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
    before = termios.tcgetattr(slave)
    child = subprocess.Popen(['latchfs'] + args, stdin=slave, stdout=slave, stderr=slave,
                             env={**os.environ, 'NO_COLOR': '1'})
    seen = b''
    while word not in seen:
        seen += os.read(master, 10000)
    os.write(master, keys)
    code = child.wait(timeout=20)
    os.set_blocking(master, False)
    try:
        while more := os.read(master, 10000):
            seen += more
    except BlockingIOError:
        pass
    assert termios.tcgetattr(slave) == before
    return code, seen
"#;

/// `top` shows locks, queues and rates live, within the width and height of the terminal, and
/// leaves the terminal as it was on `q` and Ctrl-C. `--once` prints one table.
#[test]
fn top_shows_the_locks() {
    for (m, options) in targets() {
        let mut job = Job::new(
            &m,
            &format!("exec latchfs hold build --note '{}' {options}", "n".repeat(200)),
        );
        job.line();
        m.sh("mkdir other").ok();
        let waits = Job::new(&m, &format!("exec latchfs -q run build {options} true"));
        waiters(&m, 1);
        let once = m.sh(&format!("latchfs top --once {options}")).ok();
        let lines: Vec<_> = once.lines().collect();
        assert_eq!(lines[0], "2 held, 0 in grace, 1 waiting");
        assert!(lines[1].starts_with("NAME ") && lines[2].starts_with("build "), "{once}");
        assert!(lines[3].starts_with("other ") && !once.contains('\x1b'), "{once}");
        let said = m.sh(&format!("latchfs top {options}")).exits(64);
        assert!(said.contains("latchfs top --once"), "{said}");
        let script = r#"
args = ['top', '--every', '0.2'] + more
for keys in [b'q', b'\x03']:
    code, seen = terminal(args, 5, 60, b'build ', keys)
    assert code == 0, (code, seen)
    assert seen.startswith(b'\x1b[?1049h') and seen.endswith(b'\x1b[?25h\x1b[?1049l'), seen
    frame = seen.split(b'\x1b[H')[1].split(b'\x1b[J')[0].decode()
    lines = [line.removesuffix('\x1b[K') for line in frame.split('\r\n')]
    assert len(lines) <= 5 and all(len(line) <= 60 for line in lines), lines
    assert 'granted' in lines[0] or '2 held' in lines[0], lines
code, seen = terminal(['ls'] + more, 24, 60, b'other', b'')
lines = seen.decode().split('\r\n')
assert code == 0 and all(len(line) <= 60 for line in lines), lines
assert '\u2026' in seen.decode(), lines
"#;
        let program = format!("{TERMINAL}\nmore = '{options}'.split()\n{script}");
        m.py(&program).ok();
        signal(job.pid(), libc::SIGINT);
        job.ends();
        drop(waits);
    }
}

/// `top` counts what happens between two refreshes.
#[test]
fn top_counts_grants() {
    let m = mount();
    let script = r#"
def churn():
    for n in range(200):
        os.mkdir('churn')
        os.rmdir('churn')
        time.sleep(0.01)
worker = threading.Thread(target=churn)
worker.start()
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 100, 0, 0))
ends = {'stdin': slave, 'stdout': slave, 'stderr': slave}
child = subprocess.Popen(['latchfs', 'top', '--every', '0.3'], **ends)
seen, rates = b'', []
while not any(rate > 5 for rate in rates):
    seen += os.read(master, 10000)
    rates = [float(rate) for rate in re.findall(rb'a second: ([0-9.]+) granted', seen)]
os.write(master, b'q')
assert child.wait(timeout=20) == 0
worker.join()
"#;
    m.py(&format!("{TERMINAL}{script}")).ok();
}

/// Completions know the names of locks; without a mount, or with a server or daemon that does not
/// answer, they are silent and quick.
#[test]
fn completions_know_lock_names() {
    for (m, options) in targets() {
        m.sh("mkdir build burn other").ok();
        let complete = |shell: &str, line: &str| {
            let index = line.split(' ').count() - 1;
            let seen = m.sh(&format!(
                "LATCHFS_COMPLETE={shell} _CLAP_COMPLETE_INDEX={index} latchfs -- {line}"
            ));
            assert_eq!(seen.err, "");
            seen.ok()
        };
        for shell in ["bash", "zsh", "fish"] {
            let found = complete(shell, &format!("latchfs status {options} bu").replace("  ", " "));
            let names: Vec<_> =
                found.lines().map(|line| line.split([':', '\t']).next().unwrap_or("")).collect();
            assert_eq!(names.iter().filter(|name| name.starts_with("bu")).count(), 2, "{found}");
            assert!(found.contains("build") && !found.contains("other"), "{found}");
            assert!(m.latchfs(&["completions", shell]).ok().contains("LATCHFS_COMPLETE"));
        }
        assert!(complete("bash", "latchfs rel").contains("release"));
    }
    let m = mount();
    m.sh("mkdir build burn").ok();
    let script = "source <(latchfs completions bash); COMP_WORDS=(latchfs run bu); COMP_CWORD=2; \
                  COMP_TYPE=9; _clap_complete_latchfs latchfs bu run; echo ${COMPREPLY[@]}";
    assert_eq!(m.sh(&format!("bash -c '{script}'")).ok(), "build burn\n");
    let quick = |setting: &str, line: &str| {
        let begun = boot_now();
        let mut command = Command::new("sh");
        let index = line.split(' ').count() - 1;
        let script = format!(
            "{setting} LATCHFS_COMPLETE=bash _CLAP_COMPLETE_INDEX={index} latchfs -- {line}"
        );
        let seen = run(m.within(command.args(["-c", &script])));
        assert_eq!((seen.code, &*seen.out, &*seen.err), (0, "", ""), "{line}");
        let took = boot_now().since(begun);
        assert!(took < Span::from_secs(2), "{took}");
    };
    quick("LATCHFS_DIR=/nowhere", "latchfs status bu");
    quick("", "latchfs status --server http://127.0.0.1:1 bu");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = listener.local_addr().expect("bound");
    quick("", &format!("latchfs status --server http://{silent} bu"));
}

/// Each message that a user meets at a dead end names the next step that is possible there.
#[test]
fn messages_name_the_right_next_step() {
    let m = Setup::new().with("--ttl 1s --grace 20s").start();
    m.sh_as(ALICE, "mkdir build").ok();
    let said = m.latchfs(&["release", "build"]).exits(77);
    let step = format!("rm -d {}", m.dir().join("build").display());
    assert!(said.contains(&format!("as root, release it with '{step}'")), "{said}");
    m.sh(&step).ok();
    assert_eq!(m.phase("build"), "free");
    let said = m.latchfs_outside(&["mount", "x", "--background", "--state", "/proc/none"]);
    assert!(said.exits(69).contains("the log /proc/none/latchfs.log of a daemon"));
    // The grace of a lock of one's own.
    m.latchfs(&["acquire", "mine"]).ok();
    m.until("mine", "grace");
    let said = m.latchfs(&["acquire", "mine"]).exits(75);
    assert!(said.contains("renew it with 'latchfs acquire mine --reentrant'"), "{said}");
    assert!(m.latchfs(&["acquire", "mine", "--reentrant"]).ok().starts_with("renewed mine"));
}
