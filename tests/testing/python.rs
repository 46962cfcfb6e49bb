//! The prelude of the tests' Python programs, and the removal of their indentation.

use std::fmt::Write as _;

/// Removes the common indentation from a Python program that is a string literal in a test.
pub fn dedent(program: &str) -> String {
    let indent = program
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.len() - line.trim_start().len())
        .min()
        .unwrap_or(0);
    let mut dedented = String::new();
    for line in program.lines() {
        writeln!(dedented, "{}", line.get(indent..).unwrap_or("")).expect("memory suffices");
    }
    dedented
}

/// The imports and functions that every Python program of the tests may use.
pub const PRELUDE: &str = r#"
import contextlib, errno, fcntl, json, os, pathlib, pwd, signal, stat, subprocess, sys, time

def no(call, *args, **named):
    "The name of the errno that a call fails with, or 'ok'."
    try:
        call(*args, **named)
        return 'ok'
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))

@contextlib.contextmanager
def user(name):
    "As another user, for the length of a block."
    entry = pwd.getpwnam(name)
    os.setegid(entry.pw_gid)
    os.seteuid(entry.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)

def eq(seen, wanted):
    if seen != wanted:
        raise AssertionError(f'{seen!r}, not {wanted!r}')

def exclusive(name, mode=0o644):
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)

def status(name):
    return json.loads(pathlib.Path('.latchfs/status/%2F' + name.replace('/', '%2F')).read_text())

def why():
    return json.loads(pathlib.Path('.latchfs/why').read_text())['message']

def write(name, text):
    "What a shell's > does: open, truncate, one write, close. Gives the errno of the write."
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        return no(os.write, fd, text if isinstance(text, bytes) else text.encode())
    finally:
        os.close(fd)

def listed(where='.'):
    return sorted(os.listdir(where))

A, B = 'latchfs-a', 'latchfs-b'
"#;
