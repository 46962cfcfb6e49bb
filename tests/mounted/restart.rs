//! Restarts of a mount's daemon, after crashes and orderly ends: no lease is lost, and no token is
//! used twice.

use latchfs::time::{Span, Wall, boot_now};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::*;

/// After `kill -9` of the daemon, leases are held again under the same tokens, with no more time
/// left than before; new tokens are greater; the next start removes the stale mount.
#[test]
fn a_crash_loses_no_lease() {
    let mut m = mount();
    m.sh_as(ALICE, "mkdir -p team/build && touch file && ln -s text link").ok();
    m.sh_as(ALICE, "echo 1h > file && echo hello > file && touch -d 2001-02-03 file").ok();
    m.sh("touch gone && rm gone").ok();
    let names = ["team", "team/build", "file", "link"];
    let before = names.map(|name| m.status(name));
    m.crash();
    assert!(m.sh_gone("ls \"$D\"").fails().contains("not connected"));
    m.start();
    for (name, before) in names.iter().zip(&before) {
        let after = m.status(name);
        for field in ["holder", "token", "phase", "ttl_ms", "grace_ms", "holder_id", "mode"] {
            assert_eq!(after[field], before[field], "{field} of {name}");
        }
        let left = |status: &serde_json::Value| status["expires_in_ms"].as_u64().expect("a number");
        assert!(left(&after) <= left(before), "{name} has no more time than before");
    }
    assert_eq!(m.sh("ls; readlink link; cat .latchfs/content/file").ok(), LISTING);
    assert_eq!(m.sh("date -r file +%F").ok(), "2001-02-03\n");
    assert_eq!(m.phase("gone"), "free");
    m.sh_as(BOB, "mkdir team").fails();
    m.sh_as(ALICE, "touch file && rm -r team file link").ok();
    m.sh("mkdir new").ok();
    let greatest = before.iter().filter_map(|status| status["token"].as_u64()).max();
    assert!(Some(m.token("new")) > greatest);
}

const LISTING: &str = "file\nlink\nteam\ntext\nhello\n";

/// The kernel caches the attributes of the mount point for a while, even when the daemon is dead:
/// the next start must not conclude from them that the daemon is alive.
#[test]
fn a_dead_mount_is_detected_at_once() {
    let mut m = mount();
    for _ in 0..5 {
        m.sh("stat . && ls -la").ok();
        m.crash();
        m.start();
    }
}

/// Ten crashes in a row, each with a new lease: tokens rise, and none is used twice.
#[test]
fn tokens_rise_through_crashes() {
    let mut m = mount();
    let mut greatest = 0;
    for _ in 0..10 {
        m.sh("mkdir build").ok();
        let token = m.token("build");
        assert!(token > greatest, "{token} after {greatest}");
        greatest = token;
        m.sh("rmdir build").ok();
        m.crash();
        m.start();
    }
}

/// After a crash under load, every result that a program has received still holds.
#[test]
fn a_crash_under_load_takes_no_result_back() {
    let mut m = mount();
    let mut worker = Command::new("python3");
    let script = "import os
log = open(os.environ['T'] + '/work.log', 'w', buffering=1)
for n in range(1_000_000):
    name = f'{os.environ[\"D\"]}/n{n}'
    try:
        os.mkdir(name)
        token = open(name + '/token').read().strip()
        log.write(f'held {n} {token}\\n')
        if n % 3 == 0:
            os.rmdir(name)
            log.write(f'free {n} {token}\\n')
    except OSError:
        break";
    let mut worker = m.within(worker.args(["-c", script]).current_dir("/")).spawn().expect("runs");
    let work_log = m.scratch().join("work.log");
    let work_log = || std::fs::read_to_string(&work_log).unwrap_or_default();
    eventually("some work", || (work_log().lines().count() > 2_000).then_some(()));
    m.crash();
    assert!(worker.wait().expect("our child").success());
    m.start();
    let seen = json(&m.latchfs(&["ls", "--json"]).ok());
    let seen: BTreeMap<_, _> = seen
        .as_array()
        .expect("an array")
        .iter()
        .map(|lock| (text(&lock["name"]), lock["token"].as_u64()))
        .collect();
    let mut promised = BTreeMap::new();
    let mut greatest = 0;
    for line in work_log().lines() {
        let words: Vec<_> = line.split(' ').collect();
        let token = words[2].parse().expect("a number");
        greatest = greatest.max(token);
        match words[0] {
            "held" => promised.insert(format!("n{}", words[1]), token),
            _ => promised.remove(&format!("n{}", words[1])),
        };
    }
    // The crash may have come after the daemon had released the last lock and before the program
    // got the reply, so the last lock may be held or free.
    let last = promised.len() - 1;
    for (name, token) in promised.iter().filter(|(_, token)| **token != greatest) {
        assert_eq!(seen.get(name), Some(&Some(*token)), "{name}");
    }
    // The crash may have come after the daemon had granted one more lock and before the program got
    // the reply.
    assert!((last..=last + 2).contains(&seen.len()), "{} of {}", seen.len(), promised.len());
    m.sh("mkdir new").ok();
    assert!(m.token("new") > greatest);
}

/// SIGTERM, Ctrl-C and SIGHUP make the daemon unmount and exit with 0; the next start continues
/// with the same leases.
#[test]
fn signals_end_it_cleanly() {
    let mut m = mount();
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        m.sh("mkdir build").ok();
        let token = m.token("build");
        assert_eq!(m.stop(number), 0, "{}", m.log());
        assert!(!mounts().contains(&m.dir().to_owned()), "it is unmounted");
        m.start();
        assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token));
        m.sh("rmdir build").ok();
    }
}

/// A lease whose ttl and grace period pass while the daemon is down is over at the next start.
#[test]
fn time_passes_while_it_is_down() {
    let mut m = Setup::new().with("--ttl 1s --grace 0s").start();
    m.sh("mkdir build").ok();
    let token = m.token("build");
    m.crash();
    // `CLOCK_BOOTTIME` also advances while the daemon is down, so the test waits by it until the
    // lease must be over.
    let end = boot_now() + Span::from_millis(1_100);
    eventually("a second", || (boot_now() > end).then_some(()));
    m.start();
    assert_eq!(m.phase("build"), "free");
    m.sh("mkdir build").ok();
    assert!(m.token("build") > token);
}

/// A second daemon that uses the same state directory is refused.
#[test]
fn a_state_directory_has_one_daemon() {
    let m = mount();
    let other = Setup::new().no_state().prepare();
    let mut second = other.command();
    let said = run(second.arg("--state").arg(m.state())).exits(69);
    assert!(said.contains(&m.state().display().to_string()), "{said}");
    assert!(!mounts().contains(&other.dir().to_owned()));
    m.sh("mkdir build").ok();
}

/// A second mount on the same mount point, or within a mount, is refused; the first one continues.
#[test]
fn a_directory_is_mounted_once() {
    let m = mount();
    m.sh("mkdir build").ok();
    let mut second = latchfs();
    let said =
        run(second.arg("mount").arg(m.dir()).args(["--state", "none", "--grant-at-once"])).fails();
    assert!(said.contains("is a latchfs mount already"), "{said}");
    // A directory that is created in a mount is a lock, and the refused mount has acquired none.
    let inside = m.dir().join("inside");
    let mut third = latchfs();
    let said =
        run(third.arg("mount").arg(&inside).args(["--state", "none", "--grant-at-once"])).exits(69);
    assert!(said.contains("lies in the latchfs that is mounted at"), "{said}");
    assert!(!inside.exists());
    assert_eq!(m.sh("ls").ok(), "build\n");
}

/// Returns the files of the state directory, the largest last.
fn state_files(m: &Mount) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(m.state()).expect("it was made");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ["tokens", "snapshot", "journal"].iter().any(|kind| name.starts_with(kind))
    });
    files.sort_by_key(|path| path.metadata().expect("readable").len());
    files
}

/// A torn record at the end of the journal is truncated, and all records before it are kept.
#[test]
fn a_torn_tail_is_truncated() {
    let mut m = mount();
    m.sh("mkdir first").ok();
    m.crash();
    for garbage in [&b"\x01"[..], b"\x40\x00\x00\x00torn", &[0; 4096]] {
        for path in state_files(&m).iter().filter(|path| is_journal(path)) {
            let mut bytes = std::fs::read(path).expect("readable");
            bytes.extend(garbage);
            std::fs::write(path, bytes).expect("ours");
        }
        m.start();
        assert_eq!(m.sh("ls").ok(), "first\n", "{garbage:?}");
        m.sh("mkdir more && rmdir more").ok();
        m.crash();
    }
    m.start();
}

fn is_journal(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains("journal"))
}

/// A damaged journal is a clear error at start, and never makes the daemon reset its tokens
/// silently.
#[test]
fn damage_is_an_error() {
    let mut m = mount();
    m.py("for n in range(50): os.mkdir(f'build-{n}')").ok();
    m.crash();
    let whole: Vec<_> = state_files(&m)
        .into_iter()
        .map(|path| (std::fs::read(&path).expect("readable"), path))
        .filter(|(bytes, _)| bytes.len() >= 8)
        .collect();
    assert!(!whole.is_empty());
    for (bytes, path) in &whole {
        let mut damaged = bytes.clone();
        // Behind the last record, the journal file has preallocated zeros.
        let middle = damaged.iter().rposition(|byte| *byte != 0).expect("not empty") / 2;
        damaged[middle] ^= 0x5a;
        std::fs::write(path, damaged).expect("ours");
        let said = run(&mut m.command()).exits(69);
        assert!(said.contains(&path.display().to_string()), "{}: {said}", path.display());
        std::fs::write(path, bytes).expect("ours");
    }
    m.start();
    assert_eq!(m.sh("ls | wc -l").ok(), "50\n");
}

/// A state directory that can't be written is reported as a clear error at start.
#[test]
fn an_unwritable_state_is_an_error() {
    let m = Setup::new().no_state().prepare();
    for place in ["/proc/latchfs", "/dev/null", "/dev/null/state"] {
        let mut command = m.command();
        let said = run(command.args(["--state", place])).exits(69);
        assert!(said.contains(place), "{said}");
    }
    assert!(!mounts().contains(&m.dir().to_owned()));
}

/// With `--state none` a mount stores nothing: it prints a warning, and no lock is held after a
/// restart.
#[test]
fn state_none_forgets_all_leases() {
    let mut m = Setup::new().with("--state none --grant-at-once").no_state().start();
    assert!(m.log().contains("forgets"), "{}", m.log());
    m.sh("mkdir build").ok();
    let server = m.sh("cat .latchfs/server").ok();
    assert!(json(&server)["state"].is_string(), "{server}");
    assert_eq!(m.stop(libc::SIGTERM), 0);
    m.start();
    assert_eq!(m.sh("ls").ok(), "");
}

/// A mount without stored state does not know the leases of its last run. Until the longest of them
/// must be over, it grants nothing and says so, and its tokens are greater than all of theirs
/// (guarantee G2).
#[test]
fn no_state_holds_off() {
    /// For the sum of the maximum ttl and the grace period, the mount grants nothing after its
    /// start.
    const HOLD_OFF: Span = Span::from_secs(6);
    let started = (boot_now(), Wall::now().secs);
    let setup = Setup::new().with("--state none --max-ttl 5s --ttl 5s --grace 1s");
    let m = setup.no_state().start();
    let state = text(&json(&m.sh("cat .latchfs/server").ok())["state"]);
    assert!(state.contains("nothing is granted before"), "{state}");
    for form in ["mkdir build", "set -C; : > build", "flock -n build true"] {
        m.sh(form).fails();
        let why = text(&json(&m.sh("cat .latchfs/why").ok())["message"]);
        assert!(why.contains("nothing is granted for") && why.contains("wait"), "{form}: {why}");
    }
    let hold_off = &json(&m.sh("cat .latchfs/server").ok())["hold_off"];
    assert_eq!(hold_off["because"], "no_state", "{hold_off}");
    assert!(boot_now().since(started.0) < HOLD_OFF, "too slow to see anything");
    assert_eq!(m.sh("ls").ok(), "", "a refusal leaves nothing behind");
    // The read of `.latchfs/wait/build` returns as soon as the mount may grant locks again.
    let granted = json(&m.sh("cat .latchfs/wait/build").ok());
    let waited = boot_now().since(started.0);
    assert!(waited >= HOLD_OFF, "granted after {waited}");
    assert_eq!(granted["holder"], "laptop1:root");
    begins_at(&m, "build", started.1);
    m.sh("mkdir other && rmdir other").ok();
}

/// Asserts that a token is the first one that a mount without stored state grants: the Unix time in
/// seconds at which the mount was started, times 2^20.
#[track_caller]
fn begins_at(m: &Mount, name: &str, started_secs: i64) {
    let (token, now) = (m.token(name), Wall::now().secs);
    let secs = i64::try_from(token >> 20).expect("a token fits into 53 bits");
    assert!((started_secs..=now).contains(&secs), "{token} is not of {started_secs}..={now}");
}

/// With `--grant-at-once`, which says that no earlier holder is left, locks are granted at once.
#[test]
fn state_none_grants_at_once_on_request() {
    let mut last = 0;
    let mut m = Setup::new().with("--state none --grant-at-once").no_state().prepare();
    for _ in 0..3 {
        let started = Wall::now().secs;
        m.start();
        m.sh("mkdir build").ok();
        begins_at(&m, "build", started);
        let token = m.token("build");
        assert!(token > last, "{token} after {last}");
        last = token;
        m.crash();
    }
    m.start();
}

/// A busy mount is detached when the daemon ends: programs in it get errors, and the daemon does
/// not wait for them.
#[test]
fn a_busy_mount_is_detached() {
    let mut m = mount();
    m.sh("mkdir build").ok();
    let mut inside = Command::new("sh");
    // The shell reports that it runs in the mount, and stays there until its input ends.
    let script = "cd build && exec 3<../.latchfs/README && echo there && read end";
    inside.args(["-c", script]).stdin(std::process::Stdio::piped());
    let mut inside =
        m.within(inside.stdout(std::process::Stdio::piped())).spawn().expect("there is a shell");
    let said = lines(inside.stdout.take().expect("piped"));
    assert_eq!(said.recv().expect("it lives"), "there");
    assert_eq!(m.stop(libc::SIGTERM), 0, "{}", m.log());
    assert!(!mounts().contains(&m.dir().to_owned()));
    drop(inside.stdin.take());
    inside.wait().expect("our child");
    m.start();
    assert_eq!(m.phase("build"), "held");
}

/// `latchfs umount DIR` ends the daemon, even if the mount is busy.
#[test]
fn umount_ends_the_daemon() {
    for busy in [false, true] {
        let mut m = mount();
        let inside = busy.then(|| std::fs::File::open(m.dir()).expect("a directory"));
        let mut umount = latchfs();
        run(umount.arg("umount").arg(m.dir())).ok();
        assert!(!mounts().contains(&m.dir().to_owned()));
        drop(inside);
        assert_eq!(m.ended(), Some(0), "{}", m.log());
        let repeated = run(latchfs().arg("umount").arg(m.dir())).exits(64);
        assert!(repeated.contains("no latchfs is mounted"), "{repeated}");
    }
}

/// A directory that nothing could be mounted on is not left: programs would lock in it.
#[test]
fn a_mount_that_fails_leaves_no_directory() {
    let m = mount();
    let failed = m.sh_as(
        ALICE,
        "cd $(mktemp -d) && PATH=$(dirname $(command -v latchfs)) &&
        latchfs mount locks; echo $?; [ -e locks ] || echo gone; /bin/rmdir $PWD",
    );
    assert_eq!(failed.out, "69\ngone\n", "{failed:?}");
}

/// A user who may not unmount a directory is told who may.
#[test]
fn umount_names_the_user_who_has_mounted() {
    let m = mount();
    let denied = m.sh_as(ALICE, &format!("latchfs umount {}", m.dir().display()));
    assert_eq!(denied.code, 77, "{denied:?}");
    let next = format!("root has mounted it; let root run 'latchfs umount {}'", m.dir().display());
    assert!(denied.err.contains("can't be unmounted by you") && denied.err.contains(&next));
    assert!(mounts().contains(&m.dir().to_owned()));
}

/// umount(8) by root ends the daemon as well.
#[test]
fn umount_by_root_ends_the_daemon() {
    let mut m = mount();
    run(Command::new("umount").arg(m.dir())).ok();
    assert_eq!(m.ended(), Some(0), "{}", m.log());
}

/// `mount --background` returns only when the mount is usable, and the daemon detaches from the
/// terminal.
#[test]
fn background_mount_returns_when_usable() {
    let m = Setup::new().no_state().prepare();
    let mut command = latchfs();
    // The daemon must not take its own option for a directory after the '--'.
    command.args(["mount", "--background", "--state"]).arg(m.state()).arg("--").arg(m.dir());
    // The function `run` of the tests returns when the command's output pipes are closed. So it
    // returns only if the daemon in the background has closed its copies of them.
    let said = run(&mut command).ok();
    assert!(said.contains("mounted"), "{said}");
    m.sh("mkdir build").ok();
    assert_eq!(m.phase("build"), "held");
    let refused = run(&mut command).fails();
    assert!(!refused.is_empty());
    run(latchfs().arg("umount").arg(m.dir())).ok();
    // The daemon keeps its state directory locked until it ends, a moment after the unmount. So the
    // test repeats `mount` until it succeeds.
    eventually("the state is free", || (run(&mut command).code == 0).then_some(()));
    assert_eq!(m.phase("build"), "held");
    run(latchfs().arg("umount").arg(m.dir())).ok();
    eventually("the daemon has ended", || (!is_named_by_a_process(&m.state())).then_some(()));
}

/// Whether the command line of any running process contains the path.
fn is_named_by_a_process(path: &Path) -> bool {
    let path = path.display().to_string();
    let processes = std::fs::read_dir("/proc").expect("proc is mounted").flatten();
    let mut commands = processes.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    commands.any(|command| String::from_utf8_lossy(&command).contains(&path))
}

/// On a full disk the daemon grants no lock: requests fail at once with a message. Held locks can
/// still be read, and are held after a restart.
#[test]
fn a_full_disk_grants_nothing() {
    let scratch = Scratch::open_to_all();
    let disk = SmallDisk::new(scratch.join("disk"), "size=2m");
    let state = disk.path().join("state").display().to_string();
    let mut m = Setup::new().no_state().with(&format!("--state {state}")).start();
    m.sh("mkdir held && touch file").ok();
    let token = m.token("held");
    disk.fill();
    // The space that is already allocated to the journal may suffice for a few more records. After
    // some more locks it does not, and requests are refused.
    m.py(r#"
        refused = None
        for n in range(5_000):
            refused = no(os.mkdir, f'more-{n}')
            if refused != 'ok': break
        eq(refused, 'ENOSPC')
        assert 'state' in why(), why()
        granted = n
        eq(status('held')['phase'], 'held')
        eq(no(os.mkdir, 'other'), refused)
        eq(status('other')['phase'], 'free')
        assert no(os.remove, 'file') in ('ok', refused)
        pathlib.Path(os.environ['T'] + '/granted').write_text(str(granted))
        "#)
        .ok();
    m.crash();
    disk.empty();
    m.start();
    assert_eq!((m.phase("held").as_str(), m.token("held")), ("held", token));
    let granted = std::fs::read_to_string(m.scratch().join("granted")).expect("written above");
    let held = m.sh("ls | grep -c more-").out;
    assert_eq!(held.trim(), granted, "all that was granted is there");
    m.sh("mkdir other").ok();
}

/// When the disk has room again, locks are granted without a restart.
#[test]
fn grants_resume_when_the_disk_has_room() {
    let scratch = Scratch::open_to_all();
    let disk = SmallDisk::new(scratch.join("disk"), "size=2m");
    let state = disk.path().join("state").display().to_string();
    let m = Setup::new().no_state().with(&format!("--state {state}")).start();
    disk.fill();
    m.py("assert any(no(os.mkdir, f'a{n}') != 'ok' for n in range(5_000))").ok();
    disk.empty();
    eventually("a grant", || (m.sh("mkdir build").code == 0).then_some(()));
    m.sh("rmdir build").ok();
}

/// An upgrade by umount and mount: the job that runs meanwhile keeps its lock and its exit code.
#[test]
fn a_job_outlives_umount_and_mount() {
    let scratch = Scratch::open_to_all();
    let script = "
        trap '$LATCHFS umount locks > /dev/null 2>&1 || :' EXIT
        mount() { $LATCHFS mount locks --state \"$T/state\" --background --ttl 1m > /dev/null; }
        mount
        mkfifo go
        cd / && $LATCHFS run \"$T/locks/build\" -- sh -c \"cat $T/go; exit 7\" & job=$!
        cd \"$T\"
        token() { $LATCHFS status build --dir locks --json | grep -o '\"token\": *[0-9]*'; }
        until token; do sleep 0.02; done
        $LATCHFS umount locks > /dev/null && mount
        token
        : > go
        code=0; wait $job || code=$?; echo $code
        [ -e locks/build ] || echo free
    ";
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(scratch.path());
    let path = scratch.path().display().to_string();
    command.env("T", path.trim_end_matches('/')).env("LATCHFS", latchfs_path());
    let seen = run(&mut command);
    assert_eq!(
        (seen.code, seen.out.as_str()),
        (0, "\"token\": 2\n\"token\": 2\n7\nfree\n"),
        "{}",
        seen.err
    );
}

/// A mount waits for the daemon that still writes to its state directory, and then takes over.
#[test]
fn a_mount_waits_for_the_daemon_that_is_ending() {
    let scratch = Scratch::open_to_all();
    let script = "
        trap '$LATCHFS umount locks > /dev/null 2>&1 || :' EXIT
        mkdir -m 700 state
        exec 9> state/lock && flock 9
        $LATCHFS mount locks --state \"$PWD/state\" > said 9>&- &
        until readlink /proc/$!/fd/* | grep -q state/lock; do sleep 0.02; done
        exec 9>&-
        until grep -q mounted said; do sleep 0.02; done
        mkdir locks/build && echo held
    ";
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(scratch.path()).env("LATCHFS", latchfs_path());
    let seen = run(&mut command);
    assert_eq!((seen.code, seen.out.as_str()), (0, "held\n"), "{}", seen.err);
}
