//! Suites that nobody here wrote, on a view and on the folder's own file system: pjdfstest, fsx,
//! stress-ng, and the own tests of git and `SQLite`. A failure on the view only is a bug, but for a
//! list with reasons.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testing::{Guard, Output, Scratch, rounds, run_within};

/// Returns the limit of a suite: none takes as long, unless it hangs.
fn suite_limit() -> Duration {
    Duration::from_secs(rounds(280, 1_400) as u64)
}

/// Returns the directory into which contrib/guard-suites installs the suites.
fn tools() -> PathBuf {
    let bin = Path::new(testing::latchfs_path());
    let dir = bin.parent().and_then(Path::parent).expect("a target directory");
    dir.join("test-tools/guard-suites")
}

fn tool(name: &str) -> PathBuf {
    let path = tools().join(name);
    assert!(path.exists(), "{} is missing; run contrib/test once", path.display());
    path
}

/// A view and a plain directory on the same file system.
struct Pair {
    guard: Guard,
    plain: PathBuf,
    scratch: Scratch,
}

impl Pair {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = Scratch::with_folder();
        scratch.init(&["--alone"]);
        let plain = scratch.join("plain");
        fs::create_dir(&plain).expect("made");
        for dir in [scratch.path(), &plain, &scratch.folder()] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("changed");
        }
        Self { guard: Guard::start(&scratch, "view", &[]), plain, scratch }
    }

    fn dirs(&self) -> [&Path; 2] {
        [&self.plain, &self.guard.view]
    }
}

pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) >> 16
}

/// Tests of pjdfstest that may fail on a view. Each makes an empty file, closes it, reads its
/// ctime, and reads it again after a call that must fail. The view publishes an empty file at the
/// last close, which the kernel reports after close(2) has returned, and that changes the ctime.
fn is_accepted(test: &str) -> bool {
    test == "truncate::unchanged_ctime_failed"
        || test.contains("unchanged_ctime") && test.ends_with("::regular")
}

fn pjdfstest(pair: &Pair, dir: &Path) -> (BTreeSet<String>, usize) {
    let config = pair.scratch.join("pjdfstest.toml");
    let text = "[features]\nposix_fallocate = {}\nrename_ctime = {}\nstat_st_birthtime = {}\n\
                utime_now = {}\nutimensat = {}\n[settings]\nnaptime = 0.01\n\
                allow_remount = false\n[dummy_auth]\n\
                entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
    fs::write(&config, text).expect("written");
    let mut command = Command::new(tool("bin/pjdfstest"));
    command.arg("-c").arg(config).args(["-s", "/dev/shm", "-p"]).arg(dir);
    let output = run_within(suite_limit(), &mut command);
    let ended = |end: &str| {
        let lines = output.out.lines().filter(|line| line.trim_end().ends_with(end));
        lines.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
    };
    let (failed, passed): (BTreeSet<_>, BTreeSet<_>) = (ended(" FAILED"), ended(" ok"));
    let passed = passed.len();
    assert!(passed + failed.len() > 380, "only {passed} passed\n{}\n{}", output.out, output.err);
    (failed, passed)
}

#[test]
fn pjdfstest_finds_no_more_faults_than_on_ext4() {
    let pair = Pair::new();
    let [on_ext4, on_view] = pair.dirs().map(|dir| pjdfstest(&pair, dir));
    println!("{} passed on ext4, and {} on the view", on_ext4.1, on_view.1);
    let new: Vec<_> = on_view.0.difference(&on_ext4.0).collect();
    let new: Vec<_> = new.into_iter().filter(|test| !is_accepted(test)).collect();
    assert!(new.is_empty(), "these fail on the view only: {new:?}");
}

#[test]
fn fsx_reads_what_it_wrote() {
    let config = "[weights]\nclose_open = 3\ninvalidate = 1\ntruncate = 5\nfsync = 1\n\
                  fdatasync = 1\nposix_fallocate = 2\npunch_hole = 2\nsendfile = 2\n\
                  posix_fadvise = 1\ncopy_file_range = 3\nread = 10\nwrite = 10\nmapread = 10\n\
                  mapwrite = 10\n";
    for options in [&[][..], &["--in-place", "*"]] {
        let scratch = Scratch::with_folder();
        scratch.init(&["--alone"]);
        let guard = Guard::start(&scratch, "view", options);
        let file = scratch.join("fsx.toml");
        fs::write(&file, config).expect("written");
        for round in 0..rounds(2, 20) {
            let seed = (seed() + round as u64).to_string();
            println!("fsx with the seed {seed}");
            let mut command = Command::new(tool("bin/fsx"));
            command.arg("-f").arg(&file).args(["-S", &seed, "-N"]);
            command.arg(rounds(1_500, 20_000).to_string()).arg("-P").arg(scratch.path());
            command.arg(guard.path(&format!("fsx-{round}")));
            let output = run_within(suite_limit(), &mut command);
            assert_eq!(output.code, 0, "seed {seed}\n{}\n{}", output.out, output.err);
        }
        guard.request("give", &[]).ok();
    }
}

/// Stressors of stress-ng for files.
const STRESSORS: [&str; 34] = [
    "access",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dup",
    "fallocate",
    "fcntl",
    "fiemap",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "hdd",
    "iomix",
    "link",
    "lockofd",
    "locka",
    "mknod",
    "open",
    "readahead",
    "rename",
    "seek",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "verity",
    "xattr",
];

/// Stressors that fail on a view only.
const STRESSORS_THAT_FAIL: [(&str, &str); 0] = [];

fn stress(stressor: &str, dir: &Path, seed: u64) -> Output {
    let mut command = Command::new("stress-ng");
    command.arg(format!("--{stressor}")).args(["1", "--verify", "--timeout"]);
    command.arg(format!("{}s", rounds(1, 20))).arg("--seed").arg(seed.to_string());
    command.arg("--temp-path").arg(dir).args(["--hdd-bytes", "8m", "--iomix-bytes", "8m"]);
    command.args(["--fallocate-bytes", "8m", "--readahead-bytes", "8m", "--seek-size", "8m"]);
    command.args(["--copy-file-bytes", "128m", "--sync-file-bytes", "8m"]);
    command.args(["--dirdeep-inodes", "500"]);
    command.args(["--dentries", "256"]).current_dir(dir);
    run_within(suite_limit(), &mut command)
}

#[test]
fn stress_ng_finds_no_more_faults_than_on_ext4() {
    let pair = Pair::new();
    let seed = seed();
    println!("stress-ng with the seed {seed}");
    let known = |name: &str| STRESSORS_THAT_FAIL.iter().any(|(known, _)| *known == name);
    // Each takes a second, in which it mostly waits for the guard.
    let queue = parking_lot::Mutex::new(STRESSORS.iter());
    let done = parking_lot::Mutex::new((Vec::new(), 0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(stressor) = { queue.lock().next() } {
                    let output = stress(stressor, &pair.guard.view, seed);
                    done.lock().1 += usize::from(output.code == 0);
                    // The code 3 stands for a stressor that this machine does not have.
                    if ![0, 3].contains(&output.code)
                        && !known(stressor)
                        && [0, 3].contains(&stress(stressor, &pair.plain, seed).code)
                    {
                        done.lock().0.push(format!("{stressor}: {}{}", output.out, output.err));
                    }
                }
            });
        }
    });
    let (failed, passed) = done.into_inner();
    assert!(failed.is_empty(), "these fail on the view only:\n{}", failed.join("\n"));
    assert!(passed > 28, "only {passed} stressors ran");
}

/// Scripts of git's own suite: of each test run, and of the full form.
const GIT_SCRIPTS: [&str; 3] = ["t0000-basic", "t3903-stash", "t7102-reset"];
const MORE_GIT_SCRIPTS: [&str; 9] = ["t0", "t1", "t20", "t3", "t4", "t53", "t55", "t6", "t7"];

/// Runs a script of git's suite with its trash directory in `dir`. Returns the tests that failed,
/// and how many passed.
fn git_suite(dir: &Path, script: &str) -> (BTreeSet<String>, usize) {
    let tests = tool("git/t");
    let mut command = Command::new("sh");
    command.arg(format!("./{script}.sh")).arg(format!("--root={}", dir.display()));
    command.current_dir(tests).env("GIT_TEST_INSTALLED", "/usr/bin").env("GIT_TEST_OPTS", "");
    command.env("TEST_OUTPUT_DIRECTORY", dir.parent().expect("a directory"));
    let output = run_within(suite_limit(), &mut command);
    let failed = output
        .out
        .lines()
        .filter(|line| line.starts_with("not ok ") && !line.contains(" known breakage"));
    let failed = failed.map(|line| format!("{script}: {line}")).collect();
    (failed, output.out.lines().filter(|line| line.starts_with("ok ")).count())
}

fn git_scripts() -> Vec<String> {
    if rounds(0, 1) == 0 {
        return GIT_SCRIPTS.map(str::to_owned).to_vec();
    }
    let entries = fs::read_dir(tool("git/t")).expect("readable").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let names = names.filter_map(|name| name.strip_suffix(".sh").map(str::to_owned));
    let mut names: Vec<_> = names
        .filter(|name| name.contains('-') && MORE_GIT_SCRIPTS.iter().any(|s| name.starts_with(s)))
        .collect();
    names.sort();
    names
}

/// Runs scripts on the view, three at a time. Returns the tests that failed there and not on ext4,
/// besides the accepted ones, and how many tests ran.
fn failures_of_the_view<Script: AsRef<str> + Sync>(
    pair: &Pair,
    scripts: &[Script],
    suite: impl Fn(&Path, &str) -> (BTreeSet<String>, usize) + Sync,
    is_accepted: impl Fn(&str) -> bool + Sync,
) -> (BTreeSet<String>, usize) {
    let queue = parking_lot::Mutex::new(scripts.iter());
    let done = parking_lot::Mutex::new((BTreeSet::new(), 0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(script) = { queue.lock().next() } {
                    let (mut failed, ran) = suite(&pair.guard.view, script.as_ref());
                    failed.retain(|test| !is_accepted(test));
                    if !failed.is_empty() {
                        let on_ext4 = suite(&pair.plain, script.as_ref()).0;
                        failed = failed.difference(&on_ext4).cloned().collect();
                    }
                    let mut done = done.lock();
                    done.0.extend(failed);
                    done.1 += ran;
                }
            });
        }
    });
    done.into_inner()
}

#[test]
fn the_own_tests_of_git_pass_as_on_ext4() {
    let pair = Pair::new();
    let scripts = git_scripts();
    let (failed, passed) = failures_of_the_view(&pair, &scripts, git_suite, |_| false);
    println!("{passed} tests of git passed in {} scripts", scripts.len());
    assert!(failed.is_empty(), "these fail on the view only: {failed:#?}");
    assert!(passed > rounds(200, 10_000), "only {passed} tests of git passed");
}

/// Scripts of `SQLite`'s own suite: of each test run, and of the full form.
const SQLITE_SCRIPTS: [&str; 24] = [
    "exclusive",
    "exclusive2",
    "io",
    "journal1",
    "journal2",
    "journal3",
    "jrnlmode",
    "jrnlmode2",
    "jrnlmode3",
    "lock",
    "lock2",
    "lock4",
    "lock7",
    "mmap3",
    "pager3",
    "savepoint",
    "superlock",
    "symlink",
    "tempdb",
    "unixexcl",
    "wal",
    "wal2",
    "walmode",
    "zerodamage",
];
const MORE_SQLITE_SCRIPTS: [&str; 31] = [
    "attach2",
    "backup2",
    "chunksize",
    "crash",
    "crash2",
    "crash3",
    "crash4",
    "crash6",
    "crash8",
    "delete_db",
    "filectrl",
    "lock3",
    "lock5",
    "mmap1",
    "mmap2",
    "multiplex",
    "nolock",
    "pager1",
    "pager2",
    "pager4",
    "shared",
    "syscall",
    "tempdb2",
    "temptable",
    "vacuum",
    "wal3",
    "wal4",
    "wal5",
    "walbak",
    "walcrash",
    "walro2",
];

/// Tests of `SQLite` that may fail on a view. They exchange two databases by a rewrite with
/// `O_TRUNC`, and expect that a connection which has one of them open sees the other content: on a
/// view a rewritten file is a new version, and an open file stays the version that was opened. With
/// `--in-place '*.db*'` they pass.
const ACCEPTED_OF_SQLITE: [&str; 6] = [
    "superlock: superlock-6.4",
    "superlock: superlock-6.5",
    "superlock: superlock-6.9",
    "superlock: superlock-6.10",
    "superlock: superlock-6.14",
    "superlock: superlock-6.15",
];

/// Runs a script of `SQLite`'s suite in a directory of its own in `dir`. Returns the tests that
/// failed, and how many ran.
fn sqlite_suite(dir: &Path, script: &str) -> (BTreeSet<String>, usize) {
    let own = dir.join(script);
    fs::create_dir(&own).expect("made");
    let mut command = Command::new(tool("sqlite3/build/testfixture"));
    command.arg(tool("sqlite3/test").join(format!("{script}.test"))).current_dir(own);
    let output = run_within(suite_limit(), &mut command);
    let failed = output.out.lines().filter_map(|line| line.strip_prefix("! "));
    let failed = failed.filter_map(|line| line.split_whitespace().next());
    let failed = failed.map(|test| format!("{script}: {test}")).collect();
    // The summary: `0 errors out of 65 tests on ...`.
    let summary = output.out.lines().find_map(|line| line.split_once(" errors out of "));
    let ran = summary.and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    (failed, ran.unwrap_or_else(|| panic!("{script} did not end: {}{}", output.out, output.err)))
}

#[test]
fn the_own_tests_of_sqlite_pass_as_on_ext4() {
    let pair = Pair::new();
    let mut scripts = SQLITE_SCRIPTS.to_vec();
    if rounds(0, 1) > 0 {
        scripts.extend(MORE_SQLITE_SCRIPTS);
    }
    let is_accepted = |test: &str| ACCEPTED_OF_SQLITE.contains(&test);
    let (failed, ran) = failures_of_the_view(&pair, &scripts, sqlite_suite, is_accepted);
    println!("{ran} tests of SQLite ran in {} scripts", scripts.len());
    assert!(failed.is_empty(), "these fail on the view only: {failed:#?}");
    assert!(ran > rounds(1_500, 15_000), "only {ran} tests of SQLite ran");
}
