//! The seed's lock files, as records in the view of a guarded folder, used by a client that was
//! written from the text of the seed alone.

use super::laptops::{Laptops, SeedClient, lock_name, locks, record};
use latchfs::time::{Span, Time, boot_now};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use testing::{Guard, Server, latchfs, pause, python, soon};
use testing::{python_tool, rounds, run};

const FIELDS: [&str; 14] = [
    "lock_id",
    "worktree_id",
    "holder_id",
    "holder_nonce",
    "session_id",
    "acquire_seq",
    "created_at",
    "last_renewed_at",
    "lease_duration_ms",
    "renew_interval_ms",
    "max_clock_skew_ms",
    "steal_grace_ms",
    "lease_expires_at",
    "fencing_token",
];

fn number(record: &Value, field: &str) -> u64 {
    record[field].as_u64().unwrap_or_else(|| panic!("{field}: {record}"))
}

fn token(record: &Value) -> u64 {
    number(record, "fencing_token")
}

fn read(guard: &Guard) -> Value {
    let text = fs::read(record(guard)).expect("there is a record");
    serde_json::from_slice(&text).expect("JSON")
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("refused").raw_os_error().expect("an errno")
}

// "Lock record schema (MUST)"
// "`holder_id` (`host:user:pid:start_time`)"
// "`max_clock_skew_ms = 2000`", "`steal_grace_ms = 1000`"
// "create lock file atomically using `O_CREAT|O_EXCL`"
// "after successful create, fsync lock file and parent directory"
// "renewal extends lease by `lease_duration_ms`"
// "One active writer lock per exclusive worktree."
#[test]
fn a_client_written_from_the_seed_alone_holds_the_lock() {
    let laptops = Laptops::new();
    let guard = laptops.guard(1);
    let mut client = SeedClient::on(&guard);
    assert_eq!(client.does("read"), Value::Null, "nobody holds the lock");
    let made = client.does("acquire");
    for field in FIELDS {
        assert!(!made[field].is_null() && made[field] != "", "{field}: {made}");
    }
    let holder: Vec<_> = made["holder_id"].as_str().expect("text").split(':').collect();
    assert_eq!(holder.len(), 4, "{holder:?}");
    assert_eq!((holder[0], holder[2]), ("laptop1", client.pid().to_string().as_str()));
    assert!(lock_name(&guard).ends_with(made["worktree_id"].as_str().expect("text")), "{made}");
    assert!(made["lock_id"].as_str().expect("text").ends_with(&lock_name(&guard)), "{made}");
    let policy = ["lease_duration_ms", "renew_interval_ms", "max_clock_skew_ms", "steal_grace_ms"];
    assert_eq!(policy.map(|field| number(&made, field)), [2_000, 666, 2_000, 1_000]);
    assert!(number(&made, "expires_in_ms") <= 2_000, "{made}");
    fs::write(guard.path("notes"), "of the client").expect("the lock is held");
    let renewed = client.does("renew");
    for same in ["holder_nonce", "session_id", "acquire_seq", "created_at", "fencing_token"] {
        assert_eq!(made[same], renewed[same], "{same}");
    }
    let at = |record: &Value| number(record, "last_renewed_boot_ms");
    assert!(at(&renewed) >= at(&made), "{made} {renewed}");
    assert!(renewed["lease_expires_at"].as_str() >= made["lease_expires_at"].as_str());
    assert_eq!(client.does("release"), Value::Null);
    assert_eq!(guard.status()["state"], "reading");
    let repeated = client.does("acquire");
    assert!(token(&repeated) > token(&made), "{made} {repeated}");
    assert_eq!(number(&repeated, "acquire_seq"), number(&made, "acquire_seq") + 1);
}

// "if active non-expired lock exists, return `E_LOCK_CONFLICT`"
// "only holder with matching `holder_nonce` and `session_id` may renew"
// "if renewal commit fails, holder must stop writes immediately"
// "only holder with matching nonce/session can release"
// "non-holder release fails with `E_LOCK_NOT_HELD`"
//
// The seed leaves these checks to each client. Here one that leaves them out fails, too.
#[test]
fn of_two_racing_clients_one_holds_the_lock() {
    let laptops = Laptops::new();
    let guards = [laptops.guard(1), laptops.guard(2)];
    for others in [[0, 0], [0, 1]] {
        let mut clients = others.map(|at| SeedClient::on(&guards[at]));
        for client in &mut clients {
            client.send("acquire");
        }
        let answers = [0, 1].map(|at| clients[at].answer());
        let won = answers.iter().position(|it| it.get("ok").is_some());
        let won = won.unwrap_or_else(|| panic!("one wins: {answers:?}"));
        let lost = 1 - won;
        assert_eq!(answers[lost]["error"], "E_LOCK_CONFLICT", "{answers:?}");
        let held = answers[won]["ok"].clone();
        let conflict = ("E_LOCK_CONFLICT".to_owned(), "EBUSY".to_owned());
        assert_eq!(clients[lost].fails("replace"), conflict);
        assert_eq!(clients[lost].fails("steal").0, "E_LOCK_CONFLICT");
        for (checked, unchecked) in [("renew", "rewrite"), ("release", "remove")] {
            let not_held = |errno: &str| ("E_LOCK_NOT_HELD".to_owned(), errno.to_owned());
            assert_eq!(clients[lost].fails(checked), not_held(""));
            assert_eq!(clients[lost].fails(unchecked), not_held("EPERM"));
            let why = guards[others[lost]].why();
            assert!(why.contains("E_LOCK_NOT_HELD"), "{why}");
        }
        assert_eq!(clients[lost].does("stopped"), true);
        let record = clients[won].does("renew");
        assert_eq!(record["fencing_token"], held["fencing_token"]);
        assert_eq!(clients[won].does("stopped"), false);
        assert_eq!(clients[won].does("release"), Value::Null);
    }
}

// "renewal extends lease by `lease_duration_ms`"
//
// The guard renews the lease every 10 s by itself; the client's own renewal extends it as well.
#[test]
fn a_renewal_by_the_record_extends_the_lease() {
    let laptops = Laptops::new();
    let guard = laptops.default_guard();
    let mut client = SeedClient::on(&guard);
    client.does("acquire");
    for _ in 0..3 {
        let before = read(&guard);
        pause(std::time::Duration::from_millis(600));
        let after = client.does("renew");
        // Without an extension, at least the length of the pause would be missing.
        let left = |record: &Value| number(record, "expires_in_ms");
        assert!(left(&after) + 500 > left(&before), "{before} {after}");
        assert_eq!(token(&after), token(&before));
    }
}

/// A program that holds the lock by its record and writes files of the view, in a process of its
/// own; a line on its standard input lets it renew and then write.
const WRITER: &str = r"
import errno, sys
sys.path.insert(0, sys.argv[1])
from seed_002_client import Client
view, name = sys.argv[2:]
client = Client(view + '/.latchfs/locks', name)
client.acquire()
held = open(view + '/held', 'wb', buffering=0)
held.write(b'1')
print('ready', flush=True)
for line in sys.stdin:
    try:
        client.renew()
        said = 'renewed'
    except OSError:
        said = 'failed'
    for step in (lambda: held.write(b'2'), lambda: open(view + '/new', 'w'),
                 lambda: open(view + '/held', 'r+b')):
        try:
            step()
            said += ' ok'
        except OSError as error:
            said += ' ' + errno.errorcode[error.errno]
    print(said, flush=True)
";

// "if renewal commit fails, holder must stop writes immediately"
//
// The view stops the writes of a program whose renewal has failed, before the lease is over.
#[test]
fn after_a_failed_renewal_the_program_writes_nothing() {
    let laptops = Laptops::new();
    let guard = laptops.default_guard();
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/served/seeds");
    let mut writer = Command::new("/usr/bin/python3");
    writer.args(["-c", WRITER]).arg(seeds).arg(&guard.view).arg(lock_name(&guard));
    let piped = std::process::Stdio::piped;
    let mut writer = writer.stdin(piped()).stdout(piped()).spawn().expect("Python is installed");
    let mut input = writer.stdin.take().expect("piped");
    let mut output = io::BufReader::new(writer.stdout.take().expect("piped"));
    let mut line = || {
        let mut line = String::new();
        io::BufRead::read_line(&mut output, &mut line).expect("readable");
        line.trim_end().to_owned()
    };
    assert_eq!(line(), "ready");
    writeln!(input).expect("it runs");
    assert_eq!(line(), "renewed ok ok ok");
    laptops.server.signal(libc::SIGSTOP);
    writeln!(input).expect("it runs");
    let said = line();
    laptops.server.signal(libc::SIGCONT);
    assert_eq!(said, "failed ESTALE EROFS EROFS");
    let why = guard.why();
    assert!(why.contains("could not renew") && why.contains("E_LOCK_EXPIRED"), "{why}");
    // The guard holds the lock all the same: other programs write on.
    soon("the server answers", || fs::write(guard.path("other"), "x").ok());
    soon("the next renewal", || {
        writeln!(input).expect("it runs");
        (line() == "renewed ok ok ok").then_some(())
    });
    drop(input);
    writer.wait().expect("it ends");
}

// "Error classes"
#[test]
fn each_refusal_in_a_view_has_a_class() {
    let laptops = Laptops::new();
    let (one, two) = (laptops.guard(1), laptops.guard(2));
    let mut client = SeedClient::on(&one);
    client.does("acquire");
    let class = |guard: &Guard, wanted: &str| {
        let why = guard.why();
        assert!(why.contains(&format!("({wanted})")), "{wanted}: {why}");
    };
    for guard in [&one, &two] {
        let refused = File::create_new(record(guard));
        assert_eq!(errno(refused), libc::EEXIST);
        class(guard, "E_LOCK_CONFLICT");
    }
    let mut late = File::create(one.path("late")).expect("the lock is held");
    late.write_all(b"x").expect("the lock is held");
    assert_eq!(errno(fs::write(two.path("new"), "x")), libc::EROFS);
    class(&two, "E_LOCK_NOT_HELD");
    let lease = ["--client", "admin", "--reason", "a test", "--ttl", "1h"];
    let steal = ["steal", &lock_name(&one), "--server", &laptops.server.url];
    run(latchfs().args(steal).args(lease)).ok();
    soon("the end of the tenure", || (one.status()["state"] == "reading").then_some(()));
    assert_eq!(errno(late.write_all(b"y")), libc::ESTALE);
    class(&one, "E_FENCING_MISMATCH");
}

// "on JuiceFS, `O_CREAT|O_EXCL` provides the required atomicity guarantee"
//
// Here the engine provides it, also between two copies of the folder.
#[test]
fn of_eight_processes_one_makes_the_record() {
    let laptops = Laptops::new();
    let guards = [laptops.guard(1), laptops.guard(2)];
    let mut clients: Vec<_> = (0..8).map(|at| SeedClient::on(&guards[at % 2])).collect();
    let mut last = 0;
    for round in 0..rounds(10, 500) {
        for client in &mut clients {
            client.send("create");
        }
        let answers: Vec<_> = clients.iter_mut().map(SeedClient::answer).collect();
        let won: Vec<_> = (0..8).filter(|at| answers[*at].get("ok").is_some()).collect();
        let [won] = won[..] else { panic!("round {round}: {answers:?}") };
        for (at, answer) in answers.iter().enumerate().filter(|(at, _)| *at != won) {
            assert_eq!(answer["errno"], "EEXIST", "round {round}, client {at}: {answer}");
        }
        let now = token(&answers[won]["ok"]);
        assert!(now > last, "round {round}: {now} after {last}");
        last = now;
        clients[won].does("release");
    }
}

/// Lets a client acquire the lock on a machine whose guard is killed then. Returns the record, and
/// when its lease expires.
fn expiring(laptops: &Laptops, other: &Guard) -> (Value, Time) {
    let guard = laptops.guard(1);
    let mut client = SeedClient::on(&guard);
    let held = client.does("acquire");
    guard.kill();
    let (asked_at, record) = (boot_now(), read(other));
    assert_eq!(record["fencing_token"], held["fencing_token"]);
    (record.clone(), asked_at + Span::from_millis(number(&record, "expires_in_ms")))
}

fn sleep_until(at: Time) {
    pause(at.since(boot_now()).as_duration());
}

/// Lets a client try a steal right before the end of the grace of an expired lease. Returns the
/// record and when it expires; `None` if this machine was too slow for a statement.
fn refused_until_the_grace_is_over(laptops: &Laptops, two: &Guard) -> Option<(Value, Time)> {
    let mut thief = SeedClient::on(two);
    let (held, expiry) = expiring(laptops, two);
    sleep_until(expiry + Span::from_millis(2_900));
    let early = thief.request("replace");
    if boot_now() > expiry + Span::from_millis(2_990) {
        if early.get("ok").is_none() {
            sleep_until(expiry + Span::from_millis(3_100));
            thief.does("replace");
        }
        // The next try finds the lock free.
        thief.does("release");
        return None;
    }
    assert_eq!(early["errno"], "EBUSY", "{early}");
    Some((held, expiry))
}

// "allowed only when: `now > lease_expires_at + max_clock_skew_ms + steal_grace_ms`"
// "if expired plus skew+grace, steal flow applies and increments fencing token"
// "steal MUST use atomic file replacement"
// "new holder increments fencing token and `acquire_seq`"
// "audit event is mandatory"
//
// The seed's defect: `observed_skew = abs(local_now - lock.lease_expires_at -
// lock.lease_duration_ms)` is the time since the expiry less the duration, and no skew. With
// leases of 2 s a steal would be possible until 4 s after the expiry, and never again.
#[test]
fn an_expired_lock_is_stolen_from_three_seconds_on_and_for_ever_after() {
    let laptops = Laptops::new();
    let two = laptops.guard(2);
    let late = rounds(6, 60) as u64;
    for wait in [Span::from_millis(3_100), Span::from_secs(late)] {
        let (held, expiry) = (0..5)
            .find_map(|_| refused_until_the_grace_is_over(&laptops, &two))
            .expect("one of five tries is in time");
        let mut thief = SeedClient::on(&two);
        sleep_until(expiry + wait);
        if wait > Span::from_secs(4) {
            assert_eq!(thief.fails("steal").0, "E_CLOCK_SKEW_EXCEEDED", "the seed's formula");
        }
        let stolen = thief.does("replace");
        assert!(token(&stolen) > token(&held), "{held} {stolen}");
        assert!(number(&stolen, "acquire_seq") > number(&held, "acquire_seq"));
        assert_ne!(stolen["holder_nonce"], held["holder_nonce"]);
        assert_eq!(thief.does("renew")["fencing_token"], stolen["fencing_token"]);
        soon("the entry of the server", || {
            let log = laptops.server_log("expired.log");
            log.iter().any(|entry| entry["fencing_token"] == held["fencing_token"]).then_some(())
        });
        thief.does("release");
    }
}

// "concurrent stealer race: if `rename()` succeeds, that stealer wins; the loser's tmp is orphaned
// and harmless (cleaned by `doctor`)"
//
// The seed's defect: with one `.lock.tmp` for all, both renames can succeed, and both stealers hold
// the same token.
#[test]
fn of_two_stealers_one_wins() {
    let laptops = Laptops::new();
    let two = laptops.guard(2);
    let (held, expiry) = expiring(&laptops, &two);
    let one = laptops.guard(1);
    let mut thieves: Vec<_> = [&one, &two, &two, &one].map(SeedClient::on).into();
    sleep_until(expiry + Span::from_millis(3_100));
    for thief in &mut thieves {
        thief.send("replace");
    }
    let answers: Vec<_> = thieves.iter_mut().map(SeedClient::answer).collect();
    let won: Vec<_> = answers.iter().filter(|answer| answer.get("ok").is_some()).collect();
    let [won] = won[..] else { panic!("one wins: {answers:?}") };
    assert!(token(&won["ok"]) > token(&held), "{held} {won}");
    let current = thieves[0].does("read");
    assert_eq!(current["holder_nonce"], won["ok"]["holder_nonce"], "{current}");
}

// "Enforce SWMR for `exclusive` worktrees.", "Prevent stale-holder writes via fencing."
// "mutating writes in exclusive mode must validate current token before publish commit"
// "stale token fails with `E_FENCING_MISMATCH`"
// "no partial publish after fencing failure"
//
// The seed validates before the publish of snapshots alone. Here each write is checked.
#[test]
fn a_stale_holder_publishes_nothing() {
    let laptops = Laptops::new();
    let guard = laptops.guard(1);
    let mut client = SeedClient::on(&guard);
    client.does("acquire");
    fs::write(guard.path("notes"), "whole").expect("the lock is held");
    let mut half = File::create(guard.path("notes")).expect("the lock is held");
    half.write_all(b"half").expect("the lock is held");
    let mut stale = File::options().write(true).open(record(&guard)).expect("there");
    let text = fs::read(record(&guard)).expect("there");
    let lease = ["--client", "admin", "--reason", "a test", "--ttl", "1h"];
    let steal = ["steal", &lock_name(&guard), "--server", &laptops.server.url];
    run(latchfs().args(steal).args(lease)).ok();
    soon("the end of the tenure", || (guard.status()["state"] == "reading").then_some(()));
    assert_eq!(errno(half.sync_all()), libc::ESTALE);
    drop(half);
    assert_eq!(laptops.folder_file("notes"), "whole");
    assert_eq!(errno(fs::write(guard.path("new"), "x")), libc::EROFS);
    assert_eq!(errno(stale.write_all(&text)), libc::ESTALE);
    assert!(guard.why().contains("E_FENCING_MISMATCH"), "{}", guard.why());
    assert_eq!(client.fails("renew").0, "E_LOCK_NOT_HELD");
    assert_eq!(client.does("stopped"), true);
    assert_eq!(client.fails("remove"), ("E_LOCK_NOT_HELD".to_owned(), "EPERM".to_owned()));
}

const CHECK: &str = "
import json, jsonschema_rs, sys
check = jsonschema_rs.validator_for(json.load(open(sys.argv[1])))
record = json.load(sys.stdin)
check.validate(record)
for field in record:
    if field not in ('last_renewed_boot_ms', 'expires_in_ms'):
        less = {name: record[name] for name in record if name != field}
        assert not check.is_valid(less), field
for broken in ({'holder_nonce': 7}, {'session_id': 'x' * 200}, {'fencing_token': -1},
               {'holder_id': 'laptop1'}, {'created_at': 'now'}, {'acquire_seq': '1'}):
    assert not check.is_valid({**record, **broken}), broken
";

// "Default policy values"
#[test]
fn a_record_follows_its_schema_and_the_default_policy() {
    let laptops = Laptops::new();
    let guard = laptops.default_guard();
    guard.request("take", &[]).ok();
    let shown = read(&guard);
    let policy = ["lease_duration_ms", "renew_interval_ms", "max_clock_skew_ms", "steal_grace_ms"];
    assert_eq!(policy.map(|field| number(&shown, field)), [30_000, 10_000, 2_000, 1_000]);
    let nonce = shown["holder_nonce"].as_str().expect("text");
    assert_eq!(nonce.len(), 32, "128 random bits: {nonce}");
    assert_ne!(shown["session_id"], "");
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/schema/lock-record.json");
    let mut check = Command::new(python_tool("python"));
    check.args(["-c", CHECK]).arg(schema).stdin(std::process::Stdio::piped());
    let mut check = check.spawn().expect("contrib/test-tools installs it");
    let text = shown.to_string();
    check.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    assert!(check.wait().expect("it ends").success(), "{shown}");
}

/// Returns a command that runs latchfs by a wall clock which differs as the file `clock` says.
fn with_clock(clock: &Path) -> Command {
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    assert!(Path::new(library).exists(), "libfaketime is missing; contrib/test installs it");
    let mut command = latchfs();
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", clock);
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    command
}

fn set(clock: &Path, offset: &str) {
    let beside = clock.with_extension("new");
    fs::write(&beside, offset).expect("writable");
    fs::rename(beside, clock).expect("renamed");
}

// "Clock skew detection (MUST)"
// "If `observed_skew > max_clock_skew_ms`, fail with `E_CLOCK_SKEW_EXCEEDED` and refuse steal."
// "Operator MUST resolve clock drift before retrying."
// "Keep deterministic behavior under bounded clock skew."
//
// The skew is what the clocks of machine and server differ by. No decision depends on it.
#[test]
fn a_machine_with_a_wrong_clock_steals_nothing() {
    let laptops = Laptops::new();
    let clock = laptops.file("clock");
    set(&clock, "+0");
    let two = laptops.guard_as(with_clock(&clock), 2);
    let (held, expiry) = expiring(&laptops, &two);
    let mut thief = SeedClient::on(&two);
    sleep_until(expiry + Span::from_millis(3_100));
    let refused = |thief: &mut SeedClient, wrong: &str| {
        set(&clock, wrong);
        assert_eq!(thief.fails("replace").1, "ETIME", "{wrong}");
        let why = two.why();
        assert!(why.contains("E_CLOCK_SKEW_EXCEEDED"), "{wrong}: {why}");
    };
    for wrong in ["+5", "-5", "+1h", "-1h"] {
        refused(&mut thief, wrong);
    }
    // The clock goes wrong by less than the tolerance.
    set(&clock, "+1");
    let stolen = thief.does("replace");
    assert!(token(&stolen) > token(&held), "{held} {stolen}");
    // A wrong clock neither ends nor prolongs a lease.
    set(&clock, "+1h");
    assert_eq!(thief.does("renew")["fencing_token"], stolen["fencing_token"]);
    fs::write(two.path("notes"), "by a wrong clock").expect("the lock is held");
}

#[test]
fn the_command_steal_is_refused_with_a_wrong_clock() {
    let laptops = Laptops::new();
    let clock = laptops.file("clock");
    set(&clock, "+0");
    let data = laptops.file("other").display().to_string();
    let server = Server::serve(with_clock(&clock), "127.0.0.1:0", &["--data", &data]);
    let lock = ["build", "--server", &server.url, "--client"];
    run(latchfs().arg("acquire").args(lock).args(["a", "--ttl", "1h"])).ok();
    let steal = |server_clock: &str| {
        set(&clock, server_clock);
        run(latchfs().arg("steal").args(lock).args(["b", "--reason", "a is gone"]))
    };
    for wrong in ["+5", "-5", "+1h", "-1h"] {
        // The server reads its wall clock now and then.
        let refused = || Some(steal(wrong)).filter(|done| done.code != 0);
        let why = soon("the refusal", refused).fails();
        assert!(why.contains("E_CLOCK_SKEW_EXCEEDED") && why.contains("wrong by"), "{why}");
    }
    soon("the steal", || (steal("+1").code == 0).then_some(()));
}

// "`open()` returns `EEXIST`"
//
// "Locks are repo-local files": a program that does not know the protocol changes no lock by them.
#[test]
fn only_a_record_is_written_and_only_by_its_rules() {
    let laptops = Laptops::new();
    let guard = laptops.guard(1);
    let (record, tmp) = (record(&guard), record(&guard).with_extension("lock.tmp"));
    let names = || {
        let entries = fs::read_dir(locks(&guard)).expect("listed");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("readable").file_name()).collect();
        names.sort();
        names
    };
    assert!(names().is_empty(), "{:?}", names());
    assert_eq!(errno(File::create(&record)), libc::EPERM, "without O_EXCL");
    assert_eq!(errno(File::create(locks(&guard).join("other.lock"))), libc::EPERM);
    assert_eq!(errno(fs::create_dir(locks(&guard).join("x"))), libc::EPERM);
    let attempt = format!(
        "import os, sys\ntry: os.open('{}', os.O_CREAT | os.O_EXCL | os.O_WRONLY)\n\
         except OSError as error: print(error.errno)",
        record.display()
    );
    let stranger = python(4_242, Path::new("/"), &attempt).ok();
    assert_eq!(stranger.trim(), libc::EPERM.to_string(), "the rights are those of guard take");
    let mut made = File::create_new(&record).expect("the lock is free");
    assert_eq!(errno(File::create_new(&record)), libc::EEXIST);
    assert_eq!(names(), [record.file_name().expect("a name")]);
    made.write_all(b"no record").expect("not whole yet");
    assert_eq!(errno(made.sync_all()), libc::EINVAL);
    let mut long = File::options().write(true).open(&record).expect("there");
    assert_eq!(errno(long.write_all(&[b' '; 5_000])), libc::EFBIG);
    // The guard's own nonce renews, as long as no program has written another one.
    let own = fs::read(&record).expect("there is a record");
    fs::write(&record, &own).expect("a renewal");
    let other = String::from_utf8(own).expect("text");
    let other = other.replace("holder_nonce\": \"", "holder_nonce\": \"x");
    assert_eq!(errno(fs::write(&record, &other)), libc::EPERM);
    assert_eq!(errno(fs::rename(&record, &tmp)), libc::EPERM);
    assert_eq!(errno(fs::rename(&tmp, &record)), libc::ENOENT);
    fs::write(&tmp, "{}").expect("the error is that of close(2)");
    assert_eq!(names().len(), 2, "{:?}", names());
    assert_eq!(errno(fs::rename(&tmp, &record)), libc::EINVAL);
    fs::remove_file(&tmp).expect("there");
    fs::remove_file(&record).expect("this machine holds the lock");
    assert_eq!(errno(fs::remove_file(&record)), libc::ENOENT);
    assert_eq!(guard.status()["state"], "reading");
    // The record is there however the lock was taken.
    fs::write(guard.path("notes"), "new").expect("the lock is free");
    assert_eq!(read(&guard)["fencing_token"], guard.status()["tenure"]["token"]);
    assert_eq!(errno(File::create_new(&record)), libc::EEXIST);
    guard.request("give", &[]).ok();
    assert!(!record.exists());
}
