//! The own tests of programs and libraries that lock, as far as they are about locking: Python's
//! mailbox, gofrs/flock, fasteners, portalocker and flufl.lock. Their temporary directories are on
//! a mount, on which the directories that they make last for an hour.

use crate::harness::*;
use std::collections::BTreeSet;
use std::process::Command;

/// Returns a mount whose leases outlive any suite.
fn mount_for_an_hour() -> Mount {
    Setup::new().with("--ttl 1h").start()
}

/// Asserts that exactly these tests of a suite fail: a failure that is mended has to be deleted
/// from its table.
#[track_caller]
fn fail_as_known(failed: &BTreeSet<&str>, known: &[&str], output: &Output) {
    let known: BTreeSet<_> = known.iter().copied().collect();
    let new: Vec<_> = failed.difference(&known).collect();
    assert!(new.is_empty(), "these fail: {new:?}\n{}\n{}", output.out, output.err);
    let mended: Vec<_> = known.difference(failed).collect();
    assert!(mended.is_empty(), "delete from the table, for they pass: {mended:?}");
}

/// Tests that fail because they lock through another open file than the one that wrote a text.
const MAILBOX: [&str; 3] =
    ["TestMbox.test_relock", "TestMMDF.test_relock", "TestMH.test_lock_unlock"];

/// Locking in Python's `mailbox`: dot locks by link and rename, and fcntl.
#[test]
fn python_mailbox() {
    let m = mount_for_an_hour();
    let program = r#"
        import unittest
        import test.test_mailbox as suite
        for kind in 'TestMbox', 'TestMMDF', 'TestBabyl', 'TestMH', 'TestMaildir':
            kind = getattr(suite, kind)
            for name in 'test_lock_unlock', 'test_lock_conflict', 'test_relock':
                if not hasattr(kind, name): continue
                result = unittest.TestResult()
                kind(name).run(result)
                if not result.wasSuccessful():
                    print(f'{kind.__name__}.{name}')
                    print((result.errors + result.failures)[0][1], file=sys.stderr)
        "#;
    let output = m.py_by("/usr/bin/python3", program);
    assert_eq!(output.code, 0, "{}", output.err);
    fail_as_known(&output.out.lines().collect(), &MAILBOX, &output);
}

/// All tests of the Go package gofrs/flock, from Debian.
#[test]
fn go_flock() {
    let m = mount_for_an_hour();
    m.sh("cd $T && GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=$T/cache GOFLAGS= \
          go test -c -o flock.test github.com/gofrs/flock")
        .ok();
    let seen = m.sh("TMPDIR=$D $T/flock.test 2>&1").ok();
    assert!(seen.contains("OK: 12 passed"), "{seen}");
}

/// Runs tests of a Python package by pytest, from its source archive.
#[track_caller]
fn pytest(archive: &str, args: &str, known: &[&str]) {
    let m = mount_for_an_hour();
    let dir = tools().join("suites").join(archive);
    assert!(dir.is_dir(), "{} is missing; run contrib/test once", dir.display());
    let mut command = Command::new(tools().join("venv/bin/python"));
    command.args(["-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"]);
    command.args(["-o", "addopts=", "-o", "log_cli=false", "-W", "ignore"]);
    command.arg("--basetemp").arg(m.dir().join("pytest")).args(args.split_whitespace());
    let output = run(m.within(&mut command).env("TMPDIR", m.dir()).current_dir(dir));
    let failed = output.out.lines().filter_map(|line| {
        let failed = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
        failed.split(' ').next()
    });
    assert!(output.out.contains(" passed"), "{}\n{}", output.out, output.err);
    fail_as_known(&failed.collect(), known, &output);
}

/// Left out: `test_non_destructive`, which reads back a text after the lock was released.
#[test]
fn python_fasteners() {
    let left_out = "--deselect tests/test_process_lock.py::test_non_destructive";
    pytest("fasteners-0.20", &format!("tests/test_process_lock.py {left_out}"), &[]);
}

/// Fail because a file to which a program wrote may not be locked through another open file. Left
/// out: `test_simple`, which waits for an hour for the same reason, and a test that reads back a
/// text.
#[test]
fn python_portalocker() {
    let files = ["lock_flags", "mechanisms", "multiprocess", "timeout_behaviour", "exceptions"];
    let more = ["rlock_behaviour", "semaphore", "core_locking", "concurrent_state"];
    let files = files.into_iter().chain(more).chain(["lock_lifecycle"]);
    let files: Vec<_> = files.map(|file| format!("portalocker_tests/test_{file}.py")).collect();
    let left_out = [
        "test_core_locking.py::test_simple",
        "test_concurrent_state.py::test_pidfilelock_release_is_reentrancy_safe",
    ];
    let left_out = left_out.map(|test| format!("--deselect portalocker_tests/{test}"));
    let args = format!("{} {}", files.join(" "), left_out.join(" "));
    let known = [
        "portalocker_tests/test_lock_flags.py::test_exclusive",
        "portalocker_tests/test_lock_flags.py::test_shared",
        "portalocker_tests/test_core_locking.py::test_truncate",
    ];
    pytest("portalocker-4.4.2", &args, &known);
}

/// Left out: tests that read back a text of another program, and two that take a quarter of a
/// minute each.
#[test]
fn python_flufl_lock() {
    let left_out = ["use_unrelated_existing_lockfile", "break_lock"];
    let left_out = left_out.map(|test| format!("--deselect tests/test_lock.py::test_{test}"));
    pytest("flufl_lock-10.0.0", &format!("tests {}", left_out.join(" ")), &[]);
}
