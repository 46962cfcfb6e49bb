//! Folder snapshots: taken while programs work, killed, checked, read by other users, and restored.

use crate::file_systems::is_in_kernel;
use crate::hostile::TestMount;
use latchfs::time::boot_now;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testing::{Guard, Scratch, Server, latchfs, pause, python, shell};
use testing::{Output, python_tool, rounds, run};

/// Prints what a restore must give back of each file of a tree.
const FACTS: &str = r"
import os, sys
root, seen = os.fsencode(sys.argv[1]), {}
for where, dirs, files in os.walk(root):
    dirs[:] = sorted(name for name in dirs if name != b'.latchfs')
    links = [name for name in dirs if os.path.islink(where + b'/' + name)]
    for name in [b'.'] + sorted(files) + links:
        path = where + b'/' + name
        found = os.lstat(path)
        xattrs = [(key, os.getxattr(path, key, follow_symlinks=False))
                  for key in os.listxattr(path, follow_symlinks=False)]
        content, hole = b'', 0
        if os.path.islink(path):
            content = os.readlink(path)
        elif os.path.isfile(path):
            with open(path, 'rb') as file:
                content = hash(file.read()) if found.st_size > 1000 else file.read()
                hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE) if found.st_size else 0
        twin = seen.setdefault(found.st_ino, path[len(root):]) if name != b'.' else ''
        print(path[len(root):], oct(found.st_mode), found.st_uid, found.st_gid, found.st_size,
              found.st_mtime_ns, xattrs, content, hole, twin)
";

pub(crate) fn facts(dir: &Path) -> String {
    let mut command = Command::new("/usr/bin/python3");
    run(command.env("PYTHONHASHSEED", "0").args(["-c", FACTS]).arg(dir)).ok()
}

/// Runs `latchfs folder-snapshot` on a guard.
pub(crate) fn snapshot(guard: &Guard, args: &[&str]) -> Output {
    let (first, rest) = args.split_at(if matches!(args[0], "take" | "ls") { 1 } else { 2 });
    run(latchfs().arg("folder-snapshot").args(first).arg(&guard.view).args(rest))
}

pub(crate) fn taken(guard: &Guard, options: &[&str]) -> Value {
    let answer = snapshot(guard, &[&["take", "--json"], options].concat()).ok();
    serde_json::from_str(&answer).expect("JSON")
}

pub(crate) fn id_of(snapshot: &Value) -> String {
    snapshot["id"].as_str().expect("a name").to_owned()
}

/// Fills a folder with files of each kind.
pub(crate) fn fill(folder: &Path) {
    shell(
        folder,
        "mkdir -p a/b empty; echo text > a/text; ln a/text a/twin; echo run > run; chmod 4750 run
         ln -s a/text link; ln -s nowhere dangling; truncate -s 1M sparse; printf end >> sparse
         printf one > shared; printf deep > a/b/deep; chmod 2711 a/b; chown 4242:4343 a/b/deep
         setfattr -n user.note -v kept run; setfattr -n user.dir -v kept a
         touch -d 2001-02-03 run a
         printf secret > secret; chmod 600 secret; seq 20000 > numbers; mkfifo fifo",
    )
    .ok();
}

/// Returns the directory with the snapshots of a folder.
pub(crate) fn snapshots_of(scratch: &Scratch) -> PathBuf {
    let mut state = fs::read_dir(scratch.join("state")).expect("there").flatten();
    state.find(|entry| entry.path().is_dir()).expect("one").path().join("snapshots")
}

fn shown_in(guard: &Guard, id: &str) -> PathBuf {
    guard.path(".latchfs/snapshots").join(id)
}

/// Checks that a snapshot that is shown can't be changed.
fn nobody_changes(guard: &Guard, dir: &Path) {
    for changed in [
        fs::write(dir.join("shared"), "x"),
        fs::write(dir.join("new"), "x"),
        fs::remove_file(dir.join("shared")),
        fs::rename(dir.join("shared"), guard.path("moved")),
        fs::hard_link(dir.join("shared"), guard.path("linked")),
        fs::create_dir(dir.join("made")),
        fs::set_permissions(dir.join("shared"), fs::Permissions::from_mode(0o777)),
    ] {
        let errno = changed.expect_err("it is read-only").raw_os_error();
        assert!(matches!(errno, Some(libc::EROFS | libc::EXDEV)), "{errno:?}");
    }
}

#[test]
fn a_snapshot_stays_as_it_was_taken_and_is_restored_exactly() {
    let scratch = Scratch::with_folder();
    fill(&scratch.folder());
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let before = facts(&scratch.folder());
    let first = taken(&guard, &[]);
    let id = id_of(&first);
    assert_eq!(
        (&first["consistency"], first["counts"]["files"].as_u64()),
        (&"quiesced".into(), Some(8))
    );
    assert!(first["degraded"][0].as_str().expect("one").starts_with("fifo is a FIFO"), "{first}");
    let dir = shown_in(&guard, &id);
    assert_eq!(fs::read_to_string(dir.join("shared")).expect("there"), "one");
    // Links of snapshots do not show, and those of the folder do.
    assert_eq!(guard.path("shared").metadata().expect("there").nlink(), 1);
    assert_eq!(guard.path("a/text").metadata().expect("there").nlink(), 2);
    nobody_changes(&guard, &dir);
    // A file that is shared is changed in place, by its mode, its times and its attributes.
    let file = File::options().read(true).write(true).open(guard.path("shared")).expect("held");
    file.write_at(b"two", 0).expect("written");
    drop(file);
    assert_eq!(fs::read_to_string(scratch.folder().join("shared")).expect("there"), "two");
    shell(
        &guard.view,
        "chmod 640 run; touch -d 2011-01-01 numbers; setfattr -n user.new -v x secret
         truncate -s 3 a/b/deep; chown 7:7 a/b; printf more >> shared; rm link; mkdir link
         printf new > link/inside; rm a/twin; mv numbers a/numbers",
    )
    .ok();
    snapshot(&guard, &["verify", &id]).ok();
    let second = taken(&guard, &[]);
    assert_eq!(second["parent"], first["id"]);
    // Both are listed, and a restore gives the first one back.
    let listed: Value =
        serde_json::from_str(&snapshot(&guard, &["ls", "--json"]).ok()).expect("JSON");
    assert_eq!(listed["snapshots"].as_array().map(Vec::len), Some(2));
    let to = scratch.join("restored");
    snapshot(&guard, &["restore", &id, "--to", &to.display().to_string()]).ok();
    assert_eq!(without_fifo(&facts(&to)), without_fifo(&before));
    assert!(snapshot(&guard, &["restore", &id, "--to", &to.display().to_string()]).code != 0);
    snapshot(&guard, &["verify", &id_of(&second)]).ok();
    // A removed one is gone, and a damaged one is found.
    snapshot(&guard, &["rm", &id]).ok();
    assert!(snapshot(&guard, &["show", &id]).err.contains("there is no snapshot"));
    let tree = fs::read_dir(scratch.join("state")).expect("there").next().expect("one");
    let tree = tree.expect("one").path().join("snapshots").join(id_of(&second)).join("tree");
    fs::remove_file(tree.join("a/numbers")).expect("there");
    let damaged = snapshot(&guard, &["verify", &id_of(&second)]);
    assert!(damaged.code == 1 && damaged.out.contains("a/numbers is missing"), "{damaged:?}");
    fs::remove_file(tree.join("../READY")).expect("there");
    let other = scratch.join("other").display().to_string();
    let partial = snapshot(&guard, &["restore", &id_of(&second), "--to", &other]);
    assert!(partial.err.contains("E_PARTIAL_SNAPSHOT"), "{partial:?}");
    assert!(!shown_in(&guard, &id_of(&second)).exists());
}

#[test]
fn a_snapshot_waits_for_writers_or_says_who_they_are() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("db"), "old").expect("free");
    let writer = "import sys; f = open('db', 'r+'); print('ready', flush=True); sys.stdin.read()";
    let mut program = Command::new("/usr/bin/python3")
        .args(["-c", writer])
        .current_dir(&guard.view)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut ready = [0; 5];
    std::io::Read::read_exact(program.stdout.as_mut().expect("piped"), &mut ready)
        .expect("it says so");
    let is_over = AtomicBool::new(false);
    let slowest = std::thread::scope(|scope| {
        let saves = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let begun = boot_now();
                fs::write(guard.path("other"), "saved").expect("held");
                slowest = slowest.max(boot_now().since(begun).as_duration());
                pause(Duration::from_millis(5));
            }
            slowest
        });
        let refused = snapshot(&guard, &["take", "--wait", "1s"]);
        is_over.store(true, Ordering::Relaxed);
        assert!(refused.err.contains("E_CONSISTENCY_UNAVAILABLE"), "{refused:?}");
        assert!(
            refused.code == 69 && refused.err.contains("wait longer with --wait"),
            "{refused:?}"
        );
        let named = format!("db is open for writing by python3 ({})", program.id());
        assert!(refused.err.contains(&named), "{refused:?}");
        saves.join().expect("it ends")
    });
    // Nobody waits meanwhile.
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    let risky = taken(&guard, &["--best-effort"]);
    let id = id_of(&risky);
    assert_eq!(risky["consistency"], "best-effort");
    assert!(risky["risk"][0].as_str().expect("one").contains("db is open"), "{risky}");
    assert!(snapshot(&guard, &["ls"]).ok().contains("best-effort, 1 file open for writing"));
    assert!(snapshot(&guard, &["show", &id]).ok().contains("db is open for writing by python3"));
    // The wait ends with the writer.
    let waiting = latchfs()
        .args(["folder-snapshot", "take", "--json", "--wait", "60s"])
        .arg(&guard.view)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(program.stdin.take());
    program.wait().expect("it ends");
    let answer = waiting.wait_with_output().expect("it ends");
    let quiet: Value = serde_json::from_slice(&answer.stdout).expect("JSON");
    assert_eq!(
        (&quiet["consistency"], &quiet["risk"]),
        (&"quiesced".into(), &Value::Array(vec![]))
    );
}

#[test]
fn a_guard_that_is_killed_while_it_takes_snapshots_shows_complete_ones() {
    let scratch = Scratch::with_folder();
    fill(&scratch.folder());
    for number in 0..500 {
        fs::write(scratch.folder().join(format!("file{number}")), "x".repeat(number))
            .expect("written");
    }
    scratch.init(&["--alone"]);
    let (mut complete, mut interrupted) = (0, 0);
    for round in 0..rounds(6, 100) {
        let guard = Guard::start(&scratch, "view", &[]);
        for shown in fs::read_dir(guard.path(".latchfs/snapshots")).expect("there") {
            let id = shown.expect("one").file_name().into_string().expect("text");
            snapshot(&guard, &["verify", &id]).ok();
        }
        let mut take = latchfs();
        take.args(["folder-snapshot", "take"]).arg(&guard.view);
        let take = take.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        pause(Duration::from_millis(10 + 23 * (round as u64 % 12)));
        guard.kill();
        let dir = snapshots_of(&scratch);
        for file in fs::read_dir(dir).expect("there").flatten().map(|entry| entry.path()) {
            if file.extension().is_some_and(|end| end == "intent") {
                follows_schema("intent", &file);
                interrupted += 1;
            }
        }
        let ended = take.expect("it starts").wait_with_output().expect("it ends");
        complete += usize::from(ended.status.success());
    }
    let guard = Guard::start(&scratch, "view", &[]);
    let shown = fs::read_dir(guard.path(".latchfs/snapshots")).expect("there").count();
    assert!(shown >= complete, "{shown} of {complete}");
    let names = fs::read_dir(snapshots_of(&scratch)).expect("there").count();
    assert_eq!(names, shown, "nothing else is left");
    assert!(interrupted > 0, "no snapshot was interrupted");
}

#[test]
fn a_snapshot_shows_nobody_what_the_folder_does_not() {
    let scratch = Scratch::with_folder();
    fill(&scratch.folder());
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("set");
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let id = id_of(&taken(&guard, &[]));
    let program = format!(
        "
import os
base = '.latchfs/snapshots/{id}/'
assert open(base + 'shared').read() == 'one'
for path in ['secret']:
    try:
        open(base + path)
        raise SystemExit(path + ' was shown')
    except PermissionError:
        pass
"
    );
    python(4_242, &guard.view, &program).ok();
    // A file that becomes private later stays readable in a snapshot that was taken before.
    fs::set_permissions(guard.path("shared"), fs::Permissions::from_mode(0o600)).expect("root");
    python(4_242, &guard.view, &program).ok();
    python(4_242, &guard.view, "open('shared')").exits(1);
    let mut other = Command::new("setpriv");
    other.args(["--clear-groups", "--reuid=4242", testing::latchfs_path(), "folder-snapshot"]);
    let refused = run(other.arg("take").arg(&guard.view));
    assert!(refused.err.contains("only root"), "{refused:?}");
    // Another user makes the guard read no whole snapshot.
    let mut other = Command::new("setpriv");
    other.args(["--clear-groups", "--reuid=4242", testing::latchfs_path()]);
    let refused = run(other.args(["folder-snapshot", "verify", &id]).arg(&guard.view));
    assert!(refused.err.contains("only root"), "{refused:?}");
    drop(guard);
    let none = run(latchfs().args(["folder-snapshot", "take"]).arg(scratch.folder()));
    assert!(none.err.contains("is shown in no view"), "{none:?}");
}

/// The time for which a snapshot of 10,000 files keeps a program waiting that saves files.
#[test]
fn a_snapshot_of_ten_thousand_files_keeps_writers_waiting_for_at_most_200_ms() {
    let scratch = Scratch::with_folder();
    for dir in 0..100 {
        let dir = scratch.folder().join(format!("dir{dir}"));
        fs::create_dir(&dir).expect("made");
        for file in 0..100 {
            fs::write(dir.join(format!("file{file}")), "some content").expect("written");
        }
    }
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let mut longest = Vec::new();
    for _ in 0..3 {
        let is_over = AtomicBool::new(false);
        let (answer, slowest) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut slowest = Duration::ZERO;
                while !is_over.load(Ordering::Relaxed) {
                    let begun = boot_now();
                    fs::write(guard.path("saved"), "content").expect("held");
                    slowest = slowest.max(boot_now().since(begun).as_duration());
                    pause(Duration::from_millis(10));
                }
                slowest
            });
            let answer = taken(&guard, &[]);
            is_over.store(true, Ordering::Relaxed);
            (answer, writer.join().expect("it ends"))
        });
        let closed_ms = answer["writers_waited_ms"].as_u64().expect("a number");
        println!(
            "{slowest:?} at most, the gate was closed for {closed_ms} ms; {}",
            answer["counts"]
        );
        longest.push(slowest);
        snapshot(&guard, &["rm", &id_of(&answer)]).ok();
        if slowest <= Duration::from_millis(200) {
            return;
        }
    }
    panic!("{longest:?}");
}

/// Returns the facts without those of the FIFO, which no snapshot holds.
fn without_fifo(facts: &str) -> Vec<&str> {
    facts.lines().filter(|line| !line.contains("fifo")).collect()
}

/// A snapshot is taken, checked and restored on the file system at `at`.
fn check_on(name: &str, scratch: &Scratch) {
    let server = Server::of(scratch);
    for (alone, number) in [(true, 0), (false, 1)] {
        shell(&scratch.folder(), "find . -mindepth 1 -delete").ok();
        fill(&scratch.folder());
        if alone {
            scratch.init(&["--alone"]);
        } else {
            scratch.init(&["--server", &server.url]);
        }
        let guard = Guard::start(scratch, &format!("view{number}"), &["--client", "m1"]);
        let before = facts(&scratch.folder());
        let one = taken(&guard, &["--wait", "60s"]);
        let count = |method: &str| one["counts"][method].as_u64().expect("a number");
        match name {
            "ext4" if alone => assert!(count("linked") > 3, "{one}"),
            "ext4" => assert!(count("linked") + count("cloned") == 0, "{one}"),
            _ => assert!(count("cloned") >= 8, "{name}: {one}"),
        }
        shell(&guard.view, "printf x >> shared; rm -r a; chmod 700 run").ok();
        snapshot(&guard, &["verify", &id_of(&one)]).ok();
        let to = scratch.join(format!("restored{number}"));
        snapshot(&guard, &["restore", &id_of(&one), "--to", &to.display().to_string()]).ok();
        // The size of a directory is that of its names, and no snapshot holds all of them.
        let files = |facts: &str| -> Vec<String> {
            let lines = without_fifo(facts).into_iter().filter(|line| !line.contains("/.'"));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(files(&facts(&to)), files(&before));
        guard.end();
    }
}

#[test]
fn a_snapshot_shares_content_where_the_file_system_can() {
    let images = Scratch::with_folder();
    let made = [
        ("ext4", "mkfs.ext4 -q -F", "64M"),
        ("xfs", "mkfs.xfs -q -f", "320M"),
        ("btrfs", "mkfs.btrfs -q -f", "128M"),
    ];
    for (name, mkfs, size) in made.into_iter().filter(|(name, ..)| is_in_kernel(name)) {
        let (image, at) = (images.join(format!("{name}.img")), images.join(name));
        run(Command::new("truncate").arg("-s").arg(size).arg(&image)).ok();
        run(Command::new("sh").arg("-c").arg(format!("{mkfs} {}", image.display()))).ok();
        let mount = TestMount::new(Command::new("mount").args(["-o", "loop"]).arg(&image), &at);
        let scratch = Scratch::at(at.join("scratch"));
        fs::create_dir_all(scratch.folder()).expect("made");
        check_on(name, &scratch);
        drop(scratch);
        drop(mount);
    }
}

const CHECK: &str = "
import json, jsonschema_rs, sys
schema = json.load(open(sys.argv[1]))
def check_of(name):
    return jsonschema_rs.validator_for({**schema, '$ref': '#/$defs/' + name})
for snapshot in sys.argv[2:]:
    for name, file in [('descriptor', 'descriptor.json'), ('ready', 'READY')]:
        value, check = json.load(open(snapshot + '/' + file)), check_of(name)
        check.validate(value)
        for field in value:
            assert not check.is_valid({**value, field: {}}), field
            less = {key: value[key] for key in value if key != field}
            assert not check.is_valid(less), field
    lines, check = open(snapshot + '/manifest').read().splitlines(), check_of('manifest')
    check.validate(lines)
    assert len(lines) > 10
    assert [line.split(':')[1] for line in lines][:2] == ['', 'a'], lines[:2]
    digest = 'a' * 64
    wrong = ['', 'file:../a:0644:0:' + digest, 'file:a:0644:0:short', 'fifo:a:0644:0:' + digest]
    for line in wrong:
        assert not check.is_valid([line]), line
print(len(sys.argv) - 2)
";

/// Returns a command that runs a Python program with the schema of snapshots as first argument.
fn with_schema(program: &str) -> Command {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/schema/snapshot.json");
    let mut command = Command::new(python_tool("python"));
    command.args(["-c", program]).arg(schema);
    command
}

/// Checks a file beside the snapshots, which is called `name` in the schema.
pub(crate) fn follows_schema(name: &str, file: &Path) {
    let check = "
import json, jsonschema_rs, sys
schema, name, value = json.load(open(sys.argv[1])), sys.argv[2], json.load(open(sys.argv[3]))
check = jsonschema_rs.validator_for({**schema, '$ref': '#/$defs/' + name})
check.validate(value)
for field in value:
    assert not check.is_valid({key: value[key] for key in value if key != field}), field
";
    run(with_schema(check).arg(name).arg(file)).ok();
}

#[test]
fn the_files_of_a_snapshot_follow_their_schema() {
    let scratch = Scratch::with_folder();
    fill(&scratch.folder());
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("with:colon\n%"), "x").expect("held");
    let mut file = File::create(guard.path("open.log")).expect("held");
    file.write_all(b"half").expect("held");
    let state = fs::read_dir(scratch.join("state")).expect("there").next().expect("one");
    let dir = state.expect("one").path().join("snapshots");
    let risky = dir.join(id_of(&taken(&guard, &["--best-effort"])));
    drop(file);
    let quiet = id_of(&taken(&guard, &[]));
    let checked = run(with_schema(CHECK).args([risky, dir.join(quiet)])).ok();
    assert_eq!(checked.trim(), "2");
}
