//! The README as printed: its `console` blocks run in order, in one shell, and say what it says.
//!
//! A line that begins with `$ ` is a command, continued by lines that begin with `> `; what
//! follows is its output, line by line; `[..]` stands for anything within a line. A block below
//! `<!-- not run: WHY -->` is left out. One command is replaced: `cargo run --release -- mount
//! ./locks` becomes the program under test, in the background, since it stays in the foreground.

#[path = "support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

const LATCHFS: &str = env!("CARGO_BIN_EXE_latchfs");
/// The README's first command for a newcomer, and the command that the test runs in its place.
const MOUNT: &str = "cargo run --release -- mount ./locks";
const MOUNT_HERE: &str = "latchfs mount ./locks --background --state ./.state";
/// No command of a README takes longer.
const LIMIT: Duration = Duration::from_secs(60);
/// More blocks than this are not run only when nobody looks.
const NOT_RUN_MAX: usize = 3;

/// A command and what it should print.
#[derive(Debug, PartialEq)]
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
}

/// The commands of a README, and how many blocks say that they are not run.
fn steps(text: &str) -> (Vec<Step>, usize) {
    let (mut steps, mut skipped) = (vec![], 0);
    let mut inside = false;
    let mut not_run = false;
    for (number, line) in (1..).zip(text.lines()) {
        match line {
            "```console" => inside = true,
            "```" if inside => {
                skipped += usize::from(not_run);
                (inside, not_run) = (false, false);
            }
            _ if line.starts_with("<!-- not run: ") => not_run = true,
            _ if !inside || not_run => {}
            _ => add(&mut steps, number, line),
        }
    }
    (steps, skipped)
}

fn add(steps: &mut Vec<Step>, number: usize, line: &str) {
    if let Some(command) = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")) {
        let command = command.to_owned();
        return steps.push(Step { line: number, command, output: vec![] });
    }
    let step = steps.last_mut().unwrap_or_else(|| panic!("line {number}: no command yet"));
    match line.strip_prefix("> ") {
        Some(more) if step.output.is_empty() => {
            write!(step.command, "\n{more}").expect("memory suffices");
        }
        _ => step.output.push(line.to_owned()),
    }
}

/// Whether `line` is what `pattern` says, where `[..]` is anything.
fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.trim_end().split("[..]");
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = line.trim_end().strip_prefix(first) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Mounts of other programs, out of sight in the namespace of the shell.
const UNMOUNT_OTHERS: &str = "for dir in $(grep latchfs /proc/self/mountinfo | cut -d ' ' -f 5); \
                              do umount -l $dir; done";

/// A shell that lives through all commands, in a directory and in namespaces of its own: there
/// it sees no other mount, has all ports to itself, and with it all ends that it began.
struct Shell {
    child: Child,
    lines: Receiver<String>,
    dir: PathBuf,
}

impl Shell {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("latchfs-readme-{}", std::process::id()));
        fs::create_dir(&dir).expect("a fresh name");
        let own = Path::new(LATCHFS).parent().expect("it is a file").display();
        let path = std::env::var("PATH").expect("there is one");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
            .args(["--net", "--mount-proc", "sh"])
            .current_dir(&dir)
            .env("PATH", format!("{own}:{path}"))
            .env("LC_ALL", "C.UTF-8")
            .env_remove("LATCHFS_DIR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("there is a shell");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // Nobody listens any more behind a failure.
                let _gone = sender.send(line);
            }
        });
        let mut shell = Self { child, lines, dir };
        shell.run("exec 2>&1");
        assert_eq!(shell.run(UNMOUNT_OTHERS), [""; 0], "unmounting in the namespace");
        assert_eq!(shell.run("ip link set lo up"), [""; 0], "a loopback of its own");
        shell
    }

    /// Runs a command, and returns what it prints to both outputs.
    fn run(&mut self, command: &str) -> Vec<String> {
        const END: &str = "=== end of the command ===";
        let input = self.child.stdin.as_mut().expect("piped");
        // The output may lack a newline at its end, so the mark brings one.
        writeln!(input, "{command}\necho; echo '{END}'").expect("the shell lives");
        let mut output = vec![];
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) if line == END => break,
                Ok(line) => output.push(line),
                Err(error) => panic!("{command:?} does not end ({error}): {output:#?}"),
            }
        }
        if output.last().is_some_and(String::is_empty) {
            output.pop();
        }
        output
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // With the first process of its namespace all others end, and the mount with them.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        support::remove_tree(&self.dir);
    }
}

#[test]
fn the_readme_is_as_printed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = fs::read_to_string(path).expect("there is a README");
    let (steps, skipped) = steps(&text);
    assert!(steps.len() >= 5, "the README shows how it works: {} commands", steps.len());
    assert!(skipped <= NOT_RUN_MAX, "{skipped} blocks are not run");
    assert!(steps.iter().any(|step| step.command == MOUNT), "the README says '{MOUNT}'");
    let mut shell = Shell::new();
    for step in &steps {
        let seen = shell.run(&step.command.replace(MOUNT, MOUNT_HERE));
        let alike = seen.len() == step.output.len()
            && seen.iter().zip(&step.output).all(|(line, pattern)| fits(pattern, line));
        assert!(
            alike,
            "README.md:{}: $ {}\nsays {:#?}\nprints {:#?}",
            step.line, step.command, step.output, seen
        );
    }
}

#[test]
fn blocks_are_read_as_written() {
    let text = "text\n```console\n$ one \\\n> two\nout\n\n$ three\n```\n\
                <!-- not run: no -->\n```console\n$ four\n```\n```\n$ five\n```\n";
    let (steps, skipped) = steps(text);
    let said: Vec<_> = steps.iter().map(|step| (step.line, step.command.as_str())).collect();
    assert_eq!(said, [(3, "one \\\ntwo"), (7, "three")]);
    assert_eq!(steps[0].output, ["out", ""]);
    assert_eq!(skipped, 1);
}

#[test]
fn anything_fits_the_dots_only() {
    assert!(fits("held by [..] for [..]s more", "held by laptop1:root for 24s more"));
    assert!(fits("[..]", "") && fits("a[..]", "a") && fits("[..]a", "ba") && fits("", ""));
    assert!(!fits("a", "ab") && !fits("a[..]c", "ab") && !fits("", "a"));
    assert!(!fits("ab[..]bc", "abc"), "parts do not overlap");
}
