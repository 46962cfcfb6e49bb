//! As whom a guard of root acts: the space of the disk is counted for the users of the view, and
//! files belong to the same users as in a plain directory.

use crate::disks::Disk;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::{Guard, Scratch, latchfs, python, shell, soon};
use testing::{Output, run};

/// The acts of an ordinary user, which the tests of the units run as well.
const ACTS: &str = include_str!("../fixtures/guard_acts.py");
/// The ordinary user.
const USER: u32 = 4242;

/// Runs `call` of the acts.
fn acts(uid: u32, dir: &Path, call: &str) -> Output {
    python(uid, dir, &format!("{ACTS}\n{call}"))
}

/// Returns a plain directory beside the folder; both are prepared by `call`.
fn prepared(scratch: &Scratch, call: &str) -> PathBuf {
    let plain = scratch.join("plain");
    fs::create_dir_all(&plain).expect("made");
    acts(0, &plain, call).ok();
    acts(0, &scratch.folder(), call).ok();
    plain
}

/// Fails unless two programs have printed the same.
#[track_caller]
fn is_same(expected: &str, found: &str, lines_min: usize) {
    let lines = expected.lines().zip(found.lines());
    let other: Vec<_> = lines.filter(|(one, other)| one != other).collect();
    assert!(other.is_empty(), "{} differ: {other:#?}", other.len());
    assert_eq!(expected.lines().count(), found.lines().count());
    assert!(expected.lines().count() >= lines_min, "{expected}");
}

/// Runs `guard lost` as a user.
fn lost(guard: &Guard, uid: u32, options: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={uid}"), &format!("--regid={uid}")]);
    command.arg(testing::latchfs_path()).args(["guard", "lost"]).arg(&guard.view);
    run(command.args(options))
}

fn state_of(scratch: &Scratch) -> PathBuf {
    let mut states = fs::read_dir(scratch.join("state")).expect("there");
    states.next().expect("one").expect("readable").path()
}

#[test]
fn acts_of_a_user_end_as_in_a_plain_directory() {
    let scratch = Scratch::with_folder();
    let plain = prepared(&scratch, "prepare()");
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let expected = acts(USER, &plain, "acts()").ok();
    is_same(&expected, &acts(USER, &guard.view, "acts()").ok(), 140);
    let list = "find . -path ./.latchfs -prune -o -printf '%P %M %U %G %y\\n' | sort";
    let without_local = |text: String| -> Vec<String> {
        text.lines().filter(|line| !line.contains(".a.swp")).map(str::to_owned).collect()
    };
    let (plain, folder) = (shell(&plain, list).ok(), shell(&scratch.folder(), list).ok());
    assert_eq!(without_local(plain), without_local(folder));
}

/// The kernel removes special bits from a file that another user than root changes, also if they
/// were set past the view.
#[test]
fn no_special_bit_outlives_a_change_by_a_user() {
    let scratch = Scratch::with_folder();
    let plain = prepared(&scratch, "prepare()");
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let special = |dir: &Path, real: &Path| {
        acts(0, dir, &format!("special({:?})", real.display().to_string())).ok()
    };
    let expected = special(&plain, &plain);
    is_same(&expected, &special(&guard.view, &scratch.folder()), 21);
    let of_users = expected.lines().filter(|line| !line.starts_with("root"));
    let special: Vec<_> = of_users.filter(|line| !line.contains(" 100777 ")).collect();
    assert!(special.is_empty(), "a plain directory has none either: {special:?}");
    assert!(expected.ends_with(" []\n"), "nor a capability: {expected}");
}

/// A quarter of the disk is kept for root.
#[test]
fn users_of_a_view_leave_the_reserve_of_the_disk_to_root() {
    let disk = Disk::with_reserve("reserve", 64, 80, 25);
    let scratch = disk.scratch();
    let plain = prepared(&scratch, "prepare_to_fill()");
    let guard = Guard::start(&scratch, "view", &[]);
    for way in ["write", "mmap", "allocate", "copy"] {
        for path in ["open/big", "open/big.log", "open/.big.swp", "closed/roots"] {
            let filled = |dir: &Path, real: &Path| {
                let real = real.display().to_string();
                acts(0, dir, &format!("filled({way:?}, {path:?}, {real:?}, 15 * MIB)")).ok()
            };
            let expected = filled(&plain, &plain);
            assert!(expected.ends_with("True\n"), "{expected}");
            assert_eq!(filled(&guard.view, &scratch.folder()), expected);
            // Content that did not fit is kept.
            let numbers = fs::read_dir(state_of(&scratch).join("lost")).expect("there").flatten();
            for number in numbers.filter_map(|it| it.file_name().to_str()?.parse::<u64>().ok()) {
                guard.request("lost", &["--drop", &number.to_string()]).ok();
            }
        }
    }
    // Root itself may use it, as in a plain directory.
    let program = "filled('write', 'open/big', '.', 0)
os.system('head -c 4M /dev/zero > roots || echo refused')
print(os.path.getsize('roots'))";
    let by_root = acts(0, &scratch.folder(), program).ok();
    assert!(by_root.ends_with("4194304\n"), "{by_root}");
}

/// Without `CAP_SYS_RESOURCE` the kernel counts what a guard writes in the quotas of the owners.
#[test]
fn no_thread_of_a_guard_may_exceed_quotas() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("a"), "1").expect("ready");
    let threads = fs::read_dir(format!("/proc/{}/task", guard.pid())).expect("it runs").flatten();
    let mut count = 0;
    for thread in threads {
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        for line in status.lines().filter(|line| line.starts_with("Cap")) {
            let Some((name @ ("CapPrm:" | "CapEff:" | "CapInh:"), mask)) = line.split_once('\t')
            else {
                continue;
            };
            let mask = u64::from_str_radix(mask, 16).expect("a mask");
            assert_eq!(mask & 1 << 24, 0, "{name} {mask:x}");
            count += 1;
        }
    }
    assert!(count >= 9, "{count}");
}

/// A guard that may give no file away makes each one as the user to whom it will belong.
#[test]
fn files_belong_to_their_owner_from_the_start() {
    let scratch = Scratch::with_folder();
    prepared(&scratch, "prepare()");
    scratch.init(&["--alone"]);
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-chown", testing::latchfs_path()]);
    let guard = Guard::start_as(command, &scratch, "view", &[]);
    let script = "put('open/a', b'1'); put('own/keep', b'2'); put('closed/roots', b'3')
put('closed/others', b'4'); put('open/a.log', b'5'); os.mkdir('own/d'); put('open/.a.swp', b'6')
for path in ['open/a', 'own/keep', 'closed/roots', 'closed/others', 'open/a.log', 'own/d',
             'open/.a.swp']:
    print(os.lstat(path).st_uid)";
    let owners = acts(USER, &guard.view, script).ok();
    assert_eq!(
        owners.split_whitespace().collect::<Vec<_>>(),
        ["4242", "4242", "0", "4343", "4242", "4242", "4242"]
    );
}

/// Makes a lost file of the user: the program that rewrites `path` is killed.
fn killed_while_rewriting(guard: &Guard, path: &str) {
    let program = format!(
        "file = os.open({path:?}, os.O_WRONLY | os.O_TRUNC); os.write(file, b'halfway')
os.kill(os.getpid(), 9)"
    );
    assert_eq!(acts(USER, &guard.view, &program).code, 128 + libc::SIGKILL);
    soon("the lost file", || lost(guard, USER, &[]).ok().contains("a signal ended").then_some(()));
}

#[test]
fn a_restored_file_belongs_to_the_user_who_restores_it() {
    let scratch = Scratch::with_folder();
    prepared(&scratch, "prepare()");
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let shared = scratch.folder().join("open/shared");
    fs::write(&shared, "roots").expect("ours");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o666)).expect("ours");
    killed_while_rewriting(&guard, "open/shared");
    // The special bits and the owner of the lost file are not restored.
    let kept = state_of(&scratch).join("lost/1");
    assert_eq!(fs::metadata(&kept).expect("there").uid(), 0);
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o6777)).expect("ours");
    let capable = "import os; value = bytes.fromhex('0100000200040000' + '00' * 12)
os.setxattr('1', 'security.capability', value); os.setxattr('1', 'user.x', b'1')";
    python(0, kept.parent().expect("the lost files"), capable).ok();
    lost(&guard, USER, &["--restore", "1"]).ok();
    let restored = scratch.folder().join("open/shared (restored 1)");
    assert_eq!(fs::read_to_string(&restored).expect("there"), "halfway");
    let found = fs::metadata(&restored).expect("there");
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (USER, USER, 0o777));
    let names = python(
        0,
        &scratch.folder(),
        "import os; \
        print(os.listxattr('open/shared (restored 1)'))",
    );
    assert_eq!(names.ok(), "['user.x']\n");
    assert_eq!(fs::read_to_string(&shared).expect("there"), "roots");
    // Root owns what root restores.
    killed_while_rewriting(&guard, "open/shared");
    chown(state_of(&scratch).join("lost/2"), Some(USER), Some(USER)).expect("root may");
    guard.request("lost", &["--restore", "2"]).ok();
    let found = fs::metadata(scratch.folder().join("open/shared (restored 2)")).expect("there");
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o666));
}

/// Another user's file has got the name, past the view, in a directory with the sticky bit.
#[test]
fn the_lost_files_say_why_a_name_was_refused() {
    let scratch = Scratch::with_folder();
    prepared(&scratch, "prepare()");
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let taken = scratch.folder().join("sticky/taken");
    let program = format!(
        "file = os.open('sticky/taken', os.O_WRONLY | os.O_CREAT); os.write(file, b'late')
os.close(os.open({0:?}, os.O_WRONLY | os.O_CREAT)) if False else None
print('made'); sys.stdout.flush()
while not os.path.exists({0:?}): os.sched_yield()
tried('close', lambda: os.close(file))",
        taken.display().to_string()
    );
    let mut writer = Command::new("setpriv");
    writer.args(["--clear-groups", &format!("--reuid={USER}"), "/usr/bin/python3", "-c"]);
    writer.arg(format!("{ACTS}\n{program}")).current_dir(&guard.view);
    let out = scratch.join("out");
    writer.stdout(fs::File::create(&out).expect("made"));
    let mut writer = writer.spawn().expect("it starts");
    let said = || fs::read_to_string(&out).unwrap_or_default();
    soon("an open file", || said().contains("made").then_some(()));
    fs::write(&taken, "roots").expect("ours");
    assert!(writer.wait().expect("it ends").success());
    assert!(said().ends_with("close EPERM\n"), "{}", said());
    assert_eq!(fs::read_to_string(&taken).expect("there"), "roots");
    let listed = lost(&guard, USER, &[]).ok();
    assert!(listed.contains("refused to give the file its name"), "{listed}");
}

/// Each user would get errors from a guard that can't act as its users.
#[test]
fn a_guard_that_cannot_act_as_its_users_does_not_start() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = |options: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-setuid", testing::latchfs_path(), "guard"]);
        command.arg(scratch.folder()).arg(scratch.join("view"));
        command.arg("--stage").arg(scratch.join("state")).args(options);
        command
    };
    let refused = run(&mut guard(&[])).fails();
    assert!(refused.contains("CAP_SETUID") && refused.contains("--no-allow-other"), "{refused}");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-setuid", testing::latchfs_path()]);
    let guard = Guard::start_as(command, &scratch, "view", &["--no-allow-other"]);
    fs::write(guard.path("a"), "1").expect("root is served");
    run(latchfs().args(["guard", "status"]).arg(&guard.view)).ok();
}
