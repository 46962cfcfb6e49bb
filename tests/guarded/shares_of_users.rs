//! The parts that one user may take of what all users of a guard share: memory, directories, files
//! that are not in the folder, and the time of its threads.
use crate::relay::{Relay, Sent};
use latchfs::time::{Span, boot_now};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Lines, Read as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testing::{Guard, Scratch, Server, soon};

/// The user that takes too much.
pub(crate) const ATTACKER: u32 = 4_001;
/// Another user.
pub(crate) const VICTIM: u32 = 4_002;

/// Makes this thread, and no other, one of a user.
#[allow(unsafe_code)]
pub(crate) fn become_user(uid: u32) {
    // SAFETY: the calls change the identity of this thread, and no memory.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, uid, uid, uid), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
    }
}

/// Runs a part of a test as a user.
pub(crate) fn as_user<T: Send>(uid: u32, part: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let part = scope.spawn(|| {
            become_user(uid);
            part()
        });
        part.join().expect("no panic")
    })
}

/// A guarded folder in which all users may make files.
pub(crate) fn open_folder() -> Scratch {
    let scratch = Scratch::with_folder();
    for dir in [scratch.path().to_owned(), scratch.folder()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("its owner");
    }
    scratch.init(&["--alone"]);
    scratch
}

/// Ends the thread of an attack, also when the test fails.
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The times of one operation that was repeated, from the shortest to the longest.
struct Times(Vec<Span>);

impl Times {
    /// Returns the time that so many percent of the operations did not exceed.
    fn percentile(&self, percent: usize) -> Span {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }
}

/// How long one request may hold the thread of a guard.
const HELD_MAX: Duration = Duration::from_millis(20);

/// Returns how much longer an operation takes than another one, by the shortest times: they are
/// those that no other program of the machine has prolonged.
fn longer(times: &Times, others: &Times) -> Duration {
    let [own, other] = [times, others].map(|times| times.percentile(0).as_duration());
    own.saturating_sub(other)
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [p50, p95, p99, longest] = [50, 95, 99, 100].map(|percent| self.percentile(percent));
        let count = self.0.len();
        write!(f, "{count} times: p50 {p50:?}, p95 {p95:?}, p99 {p99:?}, longest {longest:?}")
    }
}

/// Measures an operation at least 200 times, and for 3 s, so that an attack has an effect.
fn timed(mut operation: impl FnMut(usize)) -> Times {
    let (mut times, begun) = (Vec::new(), boot_now());
    while times.len() < 200 || boot_now().since(begun) < Span::from_secs(3) {
        let begun = boot_now();
        operation(times.len());
        times.push(boot_now().since(begun));
    }
    times.sort_unstable();
    Times(times)
}

/// Returns a directory of a folder in which all users may make files, and the folder's server and
/// guard, which holds the lock.
fn guarded_dir(scratch: &Scratch, name: &str) -> (PathBuf, Server, Guard) {
    let dir = scratch.folder().join(name);
    fs::create_dir(&dir).expect("made");
    for dir in [scratch.path().to_owned(), scratch.folder(), dir.clone()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("its owner");
    }
    let server = Server::of(scratch);
    scratch.init(&["--server", &server.url]);
    let guard = Guard::start(scratch, "view", &["--client", "m1"]);
    guard.request("take", &[]).ok();
    (dir, server, guard)
}

/// Measures how long a user takes to save a file in `dir`.
fn saves_in(dir: &Path) -> Times {
    as_user(VICTIM, || {
        timed(|number| fs::write(dir.join(format!("saved{}", number % 20)), "x").expect("saved"))
    })
}

/// Repeats `attack` as the attacker while a user saves a file in `dir` again and again. Returns the
/// 95th percentile of the time of a save, and the longest one.
fn saves_during((view, dir): (&Path, &Path), attack: impl Fn(&Path, usize) + Sync) -> (Span, Span) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            become_user(ATTACKER);
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                attack(view, number);
                number += 1;
            }
            number
        });
        let stop = StopAtEnd(&is_over);
        let times = saves_in(dir);
        drop(stop);
        let attacks = attacker.join().expect("no panic");
        println!("{attacks} attacks, saves {times}");
        (times.percentile(95), times.percentile(100))
    })
}

/// Returns the directory of the lost files.
pub(crate) fn lost_of(scratch: &Scratch) -> PathBuf {
    let state = fs::read_dir(scratch.join("state")).expect("there").next().expect("one");
    state.expect("readable").path().join("lost")
}

/// Makes lost files of a user, which an earlier guard has left, with paths of so many bytes.
pub(crate) fn make_lost(
    scratch: &Scratch,
    uid: u32,
    numbers: std::ops::RangeInclusive<u64>,
    length: usize,
) {
    let dir = lost_of(scratch);
    for number in numbers {
        let path = format!("{number}-{}", "x".repeat(length));
        let about = serde_json::json!({
            "path": path, "uid": uid, "at": "2026-01-01T00:00:00Z", "reason": "killed",
        });
        fs::write(dir.join(number.to_string()), "1").expect("written");
        fs::write(dir.join(format!("{number}.json")), about.to_string()).expect("written");
    }
}

/// Makes the state directory of a guard, and ends the guard.
pub(crate) fn make_state(scratch: &Scratch) {
    Guard::start(scratch, "view", &[]).end();
}

/// Returns the memory of a process in bytes.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    let number = line.split_whitespace().nth(1).expect("a number");
    number.parse::<u64>().expect("a number") << 10
}

/// Sends a request, and reads one byte of the answer.
pub(crate) fn send(ctl: &File, request: &str) -> io::Result<()> {
    ctl.write_all_at(format!("{request}\n").as_bytes(), 0)?;
    ctl.read_at(&mut [0], 0).map(drop)
}

/// Returns the first page of the lost files that the user of this thread may see.
fn first_page(view: &Path) -> serde_json::Value {
    let mut ctl = open_ctl(view).expect("a share of the open files");
    send(&ctl, "{\"do\": \"lost\"}").expect("an answer");
    let mut text = String::new();
    ctl.read_to_string(&mut text).expect("readable");
    serde_json::from_str(&text).expect("JSON")
}

pub(crate) fn open_ctl(view: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(view.join(".latchfs/ctl"))
}

fn why(view: &Path) -> String {
    fs::read_to_string(view.join(".latchfs/why")).expect("readable")
}

#[test]
fn answers_that_nobody_reads_take_a_share_of_memory() {
    const MEMORY_MAX: u64 = 96 << 20;
    let scratch = open_folder();
    make_state(&scratch);
    make_lost(&scratch, ATTACKER, 1..=1_000, 4_000);
    let guard = Guard::start(&scratch, "view", &[]);
    let (before, view) = (memory(guard.pid()), guard.view.clone());
    let (open, refused) = as_user(ATTACKER, || {
        let mut open = Vec::new();
        for number in 1..=600 {
            let ctl = open_ctl(&view).expect("a share of the open files");
            if let Err(error) = send(&ctl, "{\"do\": \"lost\"}") {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                return (open, why(&view));
            }
            open.push(ctl);
            let taken = memory(guard.pid()).saturating_sub(before);
            assert!(taken < MEMORY_MAX, "{taken} bytes for {number} answers");
        }
        panic!("nothing is refused");
    });
    println!("{} answers, {} bytes", open.len(), memory(guard.pid()).saturating_sub(before));
    assert!(refused.contains("user 4001 has 16777216 unread bytes"), "{refused}");
    // Requests that are not complete count as well.
    as_user(ATTACKER, || {
        let ctl = open_ctl(&view).expect("a share of the open files");
        let error = ctl.write_all_at(&[b' '; 4_000], 0).expect_err("there is no more");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    });
    for uid in [VICTIM, 0] {
        let answer = as_user(uid, || -> io::Result<String> {
            let mut ctl = open_ctl(&view)?;
            send(&ctl, "{\"do\": \"lost\"}")?;
            let mut text = String::new();
            ctl.read_to_string(&mut text).map(|_| text)
        });
        assert!(answer.as_ref().is_ok_and(|text| text.contains("lost")), "{uid}: {answer:?}");
    }
    drop(open);
    let repeated = as_user(ATTACKER, || send(&open_ctl(&view)?, "{\"do\": \"status\"}"));
    repeated.expect("the memory is free again");
}

#[test]
fn one_user_takes_half_of_the_space_and_holes_take_none() {
    let scratch = open_folder();
    let options = ["--max-stage", "16M", "--max-lost", "32M"];
    let guard = Guard::start(&scratch, "view", &options);
    let lose_sparse = |name: &str| {
        let path = guard.path(name);
        let file = as_user(ATTACKER, || {
            let file = File::create(path).expect("free");
            file.write_all_at(b"x", 50 << 30).expect("a block");
            file
        });
        guard.request_here("{\"do\": \"give\"}");
        drop(file);
    };
    lose_sparse("a");
    lose_sparse("b");
    guard.request("lost", &["--drop", "1"]).ok();
    let lost = guard.status()["lost_bytes"].as_u64().expect("a number");
    assert!(lost <= 64 << 10, "{lost} bytes on the disk");
    let (view, write) = (guard.view.clone(), |name: &str, bytes: usize| {
        let file = File::create(guard.path(name))?;
        file.write_all_at(&vec![1; bytes], 0).map(|()| file)
    });
    let (open, why) = as_user(ATTACKER, || {
        let open = write("hog", 8 << 20).expect("half of the space");
        let full = open.write_all_at(b"x", 8 << 20).expect_err("more than half");
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC), "{full}");
        (open, why(&view))
    });
    assert!(why.contains("files of user 4001") && why.contains("8388608 bytes"), "{why}");
    as_user(ATTACKER, || {
        let refused = fs::write(view.join("more"), "x").expect_err("no space of this user's");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
    });
    let others = as_user(VICTIM, || write("other", 5 << 20)).expect("others have space");
    let roots = write("root's", 2 << 20).expect("a part is kept for root");
    drop((open, others, roots));
    as_user(ATTACKER, || {
        let file = File::create(view.join("allocated")).expect("the space is free again");
        let allocate =
            |bytes| rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bytes);
        allocate(9 << 20).expect_err("more than half");
        drop(file);
        fs::write(view.join("allocated"), "whole").expect("the space is free again");
    });
}

#[test]
fn many_lost_files_delay_no_other_user() {
    const COUNT: u64 = 30_000;
    let scratch = open_folder();
    make_state(&scratch);
    make_lost(&scratch, ATTACKER, 1..=COUNT, 20);
    make_lost(&scratch, VICTIM, COUNT + 1..=COUNT + 3, 20);
    let guard = Guard::start(&scratch, "view", &[]);
    let view = guard.view.clone();
    let why = as_user(ATTACKER, || {
        let refused = fs::write(view.join("more"), "x").expect_err("too many lost files");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
        why(&view)
    });
    assert!(why.contains("files of user 4001") && why.contains("more than 8192"), "{why}");
    let (p95, _) = saves_during((&view, &view), |view, _| {
        let page = first_page(view);
        assert!(page["lost"].as_array().is_some_and(|files| files.len() == 200), "{page}");
        fs::write(view.join("more"), "x").expect_err("too many lost files");
    });
    assert!(p95 < Span::from_millis(300), "{p95:?}");
    let page = as_user(VICTIM, || first_page(&view));
    assert!(page["lost"].as_array().is_some_and(|files| files.len() == 3), "{page}");
    assert!(page["next"].is_null(), "{page}");
    let all = guard.request("lost", &["--json"]).ok();
    assert_eq!(all.matches("\"number\"").count() as u64, COUNT + 3, "root sees all");
    // A removal past the guard is noticed at the next refusal.
    for number in 1..=COUNT - 8_000 {
        for name in [number.to_string(), format!("{number}.json")] {
            fs::remove_file(lost_of(&scratch).join(name)).expect("there");
        }
    }
    as_user(ATTACKER, || fs::write(view.join("more"), "x")).expect("there is room again");
}

#[test]
fn versions_from_past_the_view_are_no_way_beyond_a_share() {
    let scratch = open_folder();
    make_state(&scratch);
    make_lost(&scratch, ATTACKER, 1..=8_190, 20);
    let guard = Guard::start(&scratch, "view", &[]);
    guard.request("take", &[]).ok();
    let (view, folder) = (guard.view.clone(), scratch.folder());
    let remove_foreign = |uid: u32| {
        as_user(ATTACKER, || fs::write(folder.join("foreign"), "x")).expect("past the view");
        as_user(uid, || fs::remove_file(view.join("foreign")))
    };
    remove_foreign(ATTACKER).expect("there is room for one");
    remove_foreign(ATTACKER).expect("there is room for another one");
    let refused = remove_foreign(ATTACKER).expect_err("more than a share");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
    remove_foreign(0).expect("root is not refused by what users did");
    as_user(VICTIM, || fs::write(view.join("other"), "x")).expect("others have a share");
}

#[test]
fn a_directory_of_many_files_delays_no_other_user() {
    const COUNT: usize = 300_000;
    let scratch = Scratch::with_folder();
    let (dir, _server, guard) = guarded_dir(&scratch, "many");
    for number in 0..COUNT {
        File::create(dir.join(format!("file-{number:06}"))).expect("a new name");
    }
    let (view, many) = (guard.view.clone(), guard.path("many"));
    println!("without an attack: saves {}", saves_in(&view));
    // The attacker waits for its own requests alone.
    let make = |name: &str| fs::create_dir(guard.path(name)).expect("a new name");
    let plain = as_user(ATTACKER, || timed(|number| make(&format!("plain{number}"))));
    let among_many = as_user(ATTACKER, || timed(|number| make(&format!("many/\u{e8}{number}"))));
    println!("a new directory: {plain}\namong many names: {among_many}");
    assert!(longer(&among_many, &plain) < HELD_MAX, "{among_many}");
    let attack = |view: &Path, number: usize| {
        fs::create_dir(view.join(format!("many/\u{e9}{number}"))).expect("a new name");
    };
    let (elsewhere, _) = saves_during((&view, &view), attack);
    let (beside, _) = saves_during((&view, &many), |view, number| attack(view, number + 1_000_000));
    for p95 in [elsewhere, beside] {
        assert!(p95 < Span::from_millis(300), "{p95:?}");
    }
    // Both usual forms are found among all of these names.
    let refused = fs::create_dir(guard.path("many/e\u{301}0")).expect_err("a twin");
    assert_eq!(refused.raw_os_error(), Some(libc::EEXIST), "{refused}");
    fs::create_dir(guard.path("many/a\u{308}")).expect("a new name");
    let refused = fs::create_dir(guard.path("many/\u{e4}")).expect_err("a twin");
    assert_eq!(refused.raw_os_error(), Some(libc::EEXIST), "{refused}");
}

/// All names begin alike, and each is compared with a new one to its end.
#[test]
fn a_new_name_is_compared_with_others_for_at_most_20_ms() {
    const COUNT: usize = 10_000;
    let scratch = Scratch::with_folder();
    let (dir, _server, guard) = guarded_dir(&scratch, "alike");
    let alike = |number: usize| format!("{}{number:07}", "e\u{301}".repeat(80));
    for number in 0..COUNT {
        File::create(dir.join(alike(number))).expect("a new name");
    }
    let make = |number: usize, name: &dyn Fn(usize) -> String| {
        fs::create_dir(guard.path("alike").join(name(number))).expect("a new name");
    };
    let plain = |number: usize| format!("{number:07}");
    let idle = as_user(ATTACKER, || timed(|number| make(number, &plain)));
    let compared = as_user(ATTACKER, || timed(|number| make(COUNT + number, &alike)));
    println!("names of ASCII: {idle}\nnames to be compared: {compared}");
    assert!(longer(&compared, &idle) < HELD_MAX, "{compared}");
}

/// Lookups of the lock record by many processes of a user reach the server as one request after the
/// other, and delay nobody's saves.
#[test]
fn a_flood_of_lookups_of_the_lock_record_is_one_request_after_the_other() {
    let scratch = Scratch::with_folder();
    for dir in [scratch.path().to_owned(), scratch.folder()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("its owner");
    }
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url]);
    let relay = Relay::start(&server.url);
    let options = ["--client", "m1", "--settle", "1h", "--server", &relay.url];
    let guard = Guard::start(&scratch, "view", &options);
    guard.request("take", &[]).ok();
    let locks = guard.path(".latchfs/locks");
    let record = fs::read_dir(&locks).expect("there").next().expect("one").expect("readable");
    let idle = saves_in(&guard.view);
    let one = |before: Sent| relay.sent().since(before);
    let before = relay.sent();
    for _ in 0..20 {
        assert!(record.path().exists(), "the lock is held");
    }
    let alone = one(before);
    let flood = Flood::start(&record.path());
    let (before, requests) = (relay.sent(), batches(&server));
    let during = saves_in(&guard.view);
    let (flooded, requests) = (one(before), batches(&server) - requests);
    let lookups = flood.stop();
    println!(
        "{lookups} lookups: {requests} requests at the server, {flooded:?}, one after the other \
         {alone:?}; saves {during}, without them {idle}"
    );
    assert!(requests > 0 && lookups > requests, "{lookups} lookups, {requests} requests");
    // A request that carries several lookups is larger.
    assert!(flooded.bytes / flooded.bodies < 2 * alone.bytes / alone.bodies, "{flooded:?}");
    assert!(during.percentile(95) < Span::from_millis(300), "{during}");

    // While an answer is on its way, all processes come to wait for it, and send nothing.
    let (flood, requests) = (Flood::start(&record.path()), batches(&server));
    for _ in 0..20 {
        relay.keep_answers("POST /door/v1/ask");
        relay.wait_for_kept_answer();
        let answered = batches(&server);
        testing::pause(Duration::from_millis(20));
        assert_eq!(batches(&server), answered, "nothing is asked beside it");
        relay.pass_answers();
        soon("the next request", || (batches(&server) > answered).then_some(()));
    }
    let (requests, lookups) = (batches(&server) - requests, flood.stop());
    println!("{lookups} lookups with slow answers: {requests} requests");
    assert!(requests >= 20 && lookups > 4 * requests, "{lookups} lookups, {requests} requests");
}

/// Processes of a user that look a file up again and again.
struct Flood {
    process: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Flood {
    const PROCESSES: usize = 32;

    fn start(file: &Path) -> Self {
        let program = format!(
            "import os, sys
children = []
for _ in range({}):
    to_child, stop = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(stop); os.set_blocking(to_child, False); count = 0
        while True:
            os.stat({:?}); count += 1
            try:
                if os.read(to_child, 1) == b'': break
            except BlockingIOError: pass
        print(count, flush=True); os._exit(0)
    os.close(to_child); children.append(stop)
print('begun', flush=True); sys.stdin.read()
for stop in children: os.close(stop)
for _ in children: os.wait()",
            Self::PROCESSES,
            file.display().to_string()
        );
        let mut flood = Command::new("setpriv");
        flood.args(["--clear-groups", &format!("--reuid={ATTACKER}"), "/usr/bin/python3", "-c"]);
        flood.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = flood.spawn().expect("it starts");
        let mut said = BufReader::new(process.stdout.take().expect("piped")).lines();
        assert_eq!(said.next().expect("a line").expect("readable"), "begun");
        Self { process, said }
    }

    /// Ends it, and returns the number of its lookups.
    fn stop(mut self) -> u64 {
        drop(self.process.stdin.take());
        let counts = self.said.map(|line| line.expect("readable").parse::<u64>().expect("a count"));
        let lookups = counts.sum();
        assert!(self.process.wait().expect("it ends").success());
        lookups
    }
}

/// Returns the number of batches that a server has answered.
fn batches(server: &Server) -> u64 {
    let name = "latchfs_http_requests_total{method=\"POST\",route=\"/door/v1/ask\",code=\"200\"}";
    crate::yielding_in_time::metric(server, name)
}

/// Returns the directories with the local files of a folder's directories.
fn local_dirs(scratch: &Scratch) -> Vec<PathBuf> {
    let local = lost_of(scratch).parent().expect("one").join("m1/local");
    let entries = fs::read_dir(local).expect("there").map(|entry| entry.expect("one").path());
    entries.filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

/// Returns the number of names in a directory, once the kernel has noticed whose it is.
fn listed(dir: &Path) -> usize {
    soon("the directory", || fs::read_dir(dir).ok().map(Iterator::count))
}

#[test]
fn local_files_are_bound_to_their_directory_and_its_owner() {
    let scratch = open_folder();
    let guard = Guard::start(&scratch, "view", &["--client", "m1"]);
    let (view, folder) = (guard.view.clone(), scratch.folder());
    as_user(VICTIM, || {
        fs::create_dir(folder.join("private")).expect("made");
        fs::set_permissions(folder.join("private"), fs::Permissions::from_mode(0o700))
            .expect("its owner");
        fs::write(view.join("private/.x.swp"), "secret").expect("local");
        fs::create_dir_all(view.join("private/.Trash-1/files")).expect("local");
        fs::write(view.join("private/.Trash-1/files/a"), "thrown away").expect("local");
        // Past the view, so that the guard does not learn of it.
        fs::rename(folder.join("private"), folder.join("moved")).expect("its owner");
    });
    let refused = as_user(ATTACKER, || {
        fs::create_dir(folder.join("private")).expect("made");
        let names = listed(&view.join("private"));
        assert_eq!(names, 0, "nothing of the other directory is shown");
        fs::read_to_string(view.join("private/.x.swp"))
    });
    assert_eq!(refused.expect_err("another directory").kind(), io::ErrorKind::NotFound);
    as_user(VICTIM, || {
        let read = |name: &str| fs::read_to_string(view.join("moved").join(name));
        assert_eq!(read(".x.swp").expect("it has followed its directory"), "secret");
        assert_eq!(read(".Trash-1/files/a").expect("it has followed"), "thrown away");
    });
    std::os::unix::fs::chown(folder.join("moved"), Some(ATTACKER), None).expect("root may");
    as_user(ATTACKER, || {
        let names = listed(&view.join("moved"));
        assert_eq!(names, 0, "the local files were another user's");
        fs::write(view.join("moved/.y.swp"), "own").expect("local");
    });
    std::os::unix::fs::chown(folder.join("moved"), Some(VICTIM), None).expect("root may");
    // The rest of directories that are gone is removed at the next start, and nothing else.
    as_user(ATTACKER, || fs::write(view.join("private/.z.swp"), "mine")).expect("local");
    guard.end();
    fs::rename(folder.join("private"), folder.join("elsewhere")).expect("root may");
    fs::remove_dir_all(folder.join("moved")).expect("root may");
    let guard = Guard::start(&scratch, "view", &["--client", "m1"]);
    assert_eq!(fs::read_to_string(guard.path("elsewhere/.z.swp")).expect("kept"), "mine");
    assert_eq!(local_dirs(&scratch).len(), 1);
}

#[test]
fn one_user_takes_a_share_of_the_local_files() {
    const SHARE: usize = 32_768;
    let scratch = open_folder();
    let guard = Guard::start(&scratch, "view", &["--client", "m1"]);
    let view = guard.view.clone();
    as_user(ATTACKER, || {
        let file = File::create(view.join(".a.swp")).expect("local");
        let allocate =
            |bytes| rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bytes);
        assert_eq!(allocate(6 << 30), Err(rustix::io::Errno::NOSPC));
        allocate(1 << 20).expect("a small part");
        assert!(why(&view).contains("user 4001 has 5368709120 bytes of local files"));
    });
    guard.end();
    let dir = local_dirs(&scratch).pop().expect("one");
    for number in 1..SHARE {
        let path = dir.join(format!(".{number}.swp"));
        File::create(&path).expect("made");
        std::os::unix::fs::chown(path, Some(ATTACKER), Some(ATTACKER)).expect("given");
    }
    let _guard = Guard::start(&scratch, "view", &["--client", "m1"]);
    let more = |uid: u32| as_user(uid, || fs::write(view.join(format!(".new{uid}.swp")), "x"));
    let refused = more(ATTACKER).expect_err("more than a share");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
    let why = as_user(ATTACKER, || why(&view));
    assert!(why.contains("user 4001 has 32768 local files"), "{why}");
    as_user(ATTACKER, || {
        fs::create_dir(view.join(".Trash-1")).expect_err("more than a share");
        fs::hard_link(view.join(".1.swp"), view.join(".l.swp")).expect_err("more than a share");
        fs::write(view.join(".1.swp"), "x").expect("it is there already");
    });
    for uid in [VICTIM, 0] {
        more(uid).expect("others have a share");
    }
    let (p95, _) = saves_during((&view, &view), |view, _| {
        assert!(fs::read_dir(view).expect("listed").count() >= SHARE);
    });
    assert!(p95 < Span::from_millis(300), "{p95:?}");
    as_user(ATTACKER, || fs::remove_file(view.join(".1.swp"))).expect("its own");
    more(ATTACKER).expect("there is room again");
}
