//! The own tests of programs and libraries that lock, as far as they are about locking: Python's
//! mailbox, gofrs/flock, fasteners, portalocker, flufl.lock, filelock, zc.lockfile, npm's lockfile,
//! and the Rust crates fd-lock, file-lock, fs4, fslock and named-lock. Their temporary directories
//! are on a mount, on which the directories that they make last for an hour. The tests of the npm
//! package proper-lockfile are not published, so `proper_lockfile.js` states what it promises.
//!
//! Left out are the npm package fs-ext, which does not compile with today's Node, and the crate
//! file-guard, whose tests map the locked file into memory.

use std::collections::BTreeSet;
use std::process::Command;
use testing::*;

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

/// Returns the sum of the numbers that `number_in` finds in the lines of a report.
fn passed_in<'a>(report: &'a str, number_in: impl Fn(&'a str) -> Option<&'a str>) -> u32 {
    report.lines().filter_map(|line| number_in(line)?.parse::<u32>().ok()).sum()
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

/// Runs tests of a Python package by pytest, from its source archive. At least `least` pass.
#[track_caller]
fn pytest(archive: &str, args: &str, known: &[&str], least: u32) {
    pytest_on(&mount_for_an_hour(), archive, args, known, least);
}

#[track_caller]
fn pytest_on(m: &Mount, archive: &str, args: &str, known: &[&str], least: u32) {
    let dir = tools().join("suites").join(archive);
    assert!(dir.is_dir(), "{} is missing; run contrib/test once", dir.display());
    let mut command = Command::new(tools().join("venv/bin/python"));
    command.args(["-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"]);
    command.args(["-o", "addopts=", "-o", "log_cli=false", "-W", "ignore"]);
    command.arg("--basetemp").arg(m.dir().join("pytest")).args(args.split_whitespace());
    // The version of the archive is tested, whichever is installed.
    m.within(&mut command).env("TMPDIR", m.dir()).env("PYTHONPATH", dir.join("src"));
    let output = run(command.current_dir(dir));
    let failed = output.out.lines().filter_map(|line| {
        let failed = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
        failed.split(' ').next()
    });
    let passed = passed_in(&output.out, |line| line.split_once(" passed")?.0.rsplit(' ').next());
    assert!(passed >= least, "only {passed} passed\n{}\n{}", output.out, output.err);
    fail_as_known(&failed.collect(), known, &output);
}

/// Left out: `test_non_destructive`, which reads back a text after the lock was released.
#[test]
fn python_fasteners() {
    let left_out = "--deselect tests/test_process_lock.py::test_non_destructive";
    pytest("fasteners-0.20", &format!("tests/test_process_lock.py {left_out}"), &[], 9);
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
    pytest("portalocker-4.4.2", &args, &known, 107);
}

/// Left out: tests that read back a text of another program, and two that take a quarter of a
/// minute each.
#[test]
fn python_flufl_lock() {
    let left_out = ["use_unrelated_existing_lockfile", "break_lock"];
    let left_out = left_out.map(|test| format!("--deselect tests/test_lock.py::test_{test}"));
    pytest("flufl_lock-10.0.0", &format!("tests {}", left_out.join(" ")), &[], 30);
}

/// Tests of filelock that fail. Some say that the file stays when its lock is released; one reads
/// from it then, and one looks at its size and mode. Two first write a text to the file, so that it
/// may not be locked through another open file.
const FILELOCK: [&str; 8] = [
    "test_concurrent_acquire_release_keeps_lock_file",
    "test_lock_acquired_after_release_keeps_path",
    "test_waiter_fd_cannot_split_lock_after_release",
    "test_preserve_lock_file_unix_keeps_pathname",
    "test_lock_descriptor_roundtrip",
    "test_lock_descriptor_touches_no_paths",
    "test_winner_leaves_existing_file_as_found[default-mode]",
    "test_winner_leaves_existing_file_as_found[explicit-mode]",
];

/// Left out: tests that take seconds each; those that rename a directory with locks in it; and
/// those that interrupt a program between the `O_EXCL` that made a file and the lock, because such
/// a file is a lock that stays. The soft locks read back what they wrote, for which there is
/// `--content note`.
#[test]
fn python_filelock() {
    let m = Setup::new().with("--ttl 1h --content note").start();
    let left_out = [
        "threaded",
        "thrashing",
        "shared_instance_concurrent",
        "on_acquired_runs",
        "directory_rename",
        "interrupted",
    ];
    // The arguments are split at spaces.
    let left_out = left_out.map(|test| format!("(not({test}))")).join("and");
    let known = FILELOCK.map(|test| format!("tests/test_filelock.py::{test}"));
    let args = format!("tests/test_filelock.py tests/test_strict_soft.py -k {left_out}");
    let known: Vec<_> = known.iter().map(String::as_str).collect();
    pytest_on(&m, "filelock-4.2.5", &args, &known, 400);
}

/// Tests of zc.lockfile that fail: the name of a lock vanishes when the lock is released, but the
/// README says that the file stays.
const ZC_LOCKFILE: [&str; 1] = ["README_txt"];

/// Left out: `many_threads_read_and_write`, which writes a text to the file before it locks the
/// file through other open files. Such a lock belongs to the program that wrote the text until its
/// ttl is over, so the test would wait for an hour.
#[test]
fn python_zc_lockfile() {
    let m = mount_for_an_hour();
    let program = r#"
        import unittest, zc.lockfile.tests as suite
        def flat(tests):
            for test in tests:
                if isinstance(test, unittest.TestSuite): yield from flat(test)
                else: yield test
        passed = 0
        for test in flat(suite.test_suite()):
            if test.id().endswith('.many_threads_read_and_write'): continue
            result = unittest.TestResult()
            test.run(result)
            if result.wasSuccessful(): passed += 1
            else:
                print(test.id())
                print((result.errors + result.failures)[0][1], file=sys.stderr)
        assert passed >= 5, passed
        "#;
    let python = tools().join("venv/bin/python");
    let output = m.py_by(
        python,
        &format!("import os; os.environ['TMPDIR'] = os.getcwd()\n{}", dedent(program)),
    );
    assert_eq!(output.code, 0, "{}", output.err);
    fail_as_known(&output.out.lines().collect(), &ZC_LOCKFILE, &output);
}

/// Runs the test binary of a Rust crate. At least `least` tests pass, and exactly those in `known`
/// fail.
#[track_caller]
fn rust(m: &Mount, binary: &str, known: &[&str], least: u32) {
    let dir = tools().join("suites/rust");
    let path = std::env::var("PATH").expect("there is one");
    let mut command = Command::new(dir.join("bin").join(binary));
    // The directory of the examples has a `cargo` that runs them.
    let examples = dir.join("examples");
    m.within(&mut command).env("TMPDIR", m.dir()).env("RUST_BACKTRACE", "0");
    let output = run(command.env("PATH", format!("{}:{path}", examples.display())));
    // A test of named-lock runs the binary for one test more.
    let summary = output.out.rfind("test result: ").unwrap_or(0);
    let passed =
        passed_in(&output.out[summary..], |line| line.split_once(" passed")?.0.rsplit(' ').next());
    assert!(passed >= least, "only {passed} passed\n{}\n{}", output.out, output.err);
    let failed = output.out.lines().filter_map(|line| line.strip_prefix("---- "));
    let failed = failed.filter_map(|line| line.strip_suffix(" stdout ----")).collect();
    fail_as_known(&failed, known, &output);
}

/// The tests of Rust crates. Those that fail allocate space in the file (fs4), lock a file to which
/// a text was written through another open file (file-lock), or read a text back after the lock was
/// released (fslock).
#[test]
fn rust_crates() {
    let m = mount_for_an_hour();
    m.sh("mkdir testfiles").ok(); // by the examples of fslock
    rust(&m, "fd-lock", &[], 4);
    rust(&m, "file-lock", &["test::lock_for_read_or_write_only"], 1);
    rust(&m, "fslock", &["test::other_process_pid"], 4);
    rust(&m, "named-lock", &[], 5);
    let allocate = [
        "allocate",
        "allocate_idempotent",
        "allocate_preserves_eof_within_cluster",
        "allocate_reserves_blocks_on_sparse_file",
        "file_ext_blanket_for_ref",
    ];
    let allocate = allocate.map(|test| format!("file_ext::sync_impl::std_impl::test::{test}"));
    rust(&m, "fs4", &allocate.each_ref().map(String::as_str), 19);
}

/// The tests of the npm package lockfile, with tape for tap and with a slow clock. Left out:
/// `retry-time.js`, which fails on a loaded machine, and `unlock-no-cb.js`, which needs tap itself.
#[test]
fn npm_lockfile() {
    let m = mount_for_an_hour();
    let tests = tools().join("npm/node_modules/lockfile/test");
    let clock = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mounted/slow_clock.js");
    for (file, least) in [("basic.js", 222), ("stale-contention.js", 2)] {
        let mut node = Command::new("node");
        node.env("NODE_OPTIONS", format!("--require \"{clock}\""));
        let output = run(m.within(node.arg(tests.join(file))));
        let passed = passed_in(&output.out, |line| Some(line.strip_prefix("# pass")?.trim()));
        let failed: Vec<_> = output.out.lines().filter(|line| line.starts_with("not ok")).collect();
        assert_eq!(output.code, 0, "{failed:?}\n{}\n{}", output.out, output.err);
        assert!(passed >= least, "only {passed} passed\n{}\n{}", output.out, output.err);
    }
}

/// The documented behaviour of the npm package proper-lockfile.
#[test]
fn npm_proper_lockfile() {
    let m = mount_for_an_hour();
    let output = m.node(include_str!("proper_lockfile.js"));
    let passed = output.out.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!((output.out.contains("FAILED"), passed), (false, 9), "{}{}", output.out, output.err);
}
