//! Tenures that are held for one user or login session: the programs of other ones wait for the end
//! of such a tenure, in the order in which they came, as other machines do.

use super::bed::{Bed, Machines, Setup, eventually};
use super::program::Program;
use crate::guard::write_policy::{OnWrite, OwnerKind, WhenAsked};
use crate::time::Span;
use kernel::machine_facts::own_uid;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;

/// The users of the programs that wait.
const FIRST: u32 = 4_001;
const SECOND: u32 = 4_002;

const MOMENT: Span = Span::from_millis(1);
const LONG: Span = Span::from_secs(3_600);

/// Returns a guard that holds the lock for one user, and the programs of two others.
fn bed_with(change: impl FnOnce(&mut Setup)) -> (Bed, Program, Program) {
    let bed = Bed::with(|setup| {
        setup.policy.owner = OwnerKind::User;
        setup.policy.on_write = OnWrite::Wait(LONG);
        setup.policy.when_asked = WhenAsked::Yield { idle: LONG, max: LONG };
        change(setup);
    });
    fs::set_permissions(bed.folder.path(""), fs::Permissions::from_mode(0o777)).expect("ours");
    bed.folder.put("list", b"");
    fs::set_permissions(bed.folder.path("list"), fs::Permissions::from_mode(0o666)).expect("ours");
    let (first, second) = (bed.user(FIRST), bed.user(SECOND));
    (bed, first, second)
}

/// Appends a line to a file that is there, in a thread of its own.
fn append(program: &Program, line: &'static str) -> thread::JoinHandle<Result<(), i32>> {
    let program = program.clone();
    thread::spawn(move || {
        let file = program.open("list", libc::O_WRONLY | libc::O_APPEND)?;
        file.write(line)?;
        file.close()
    })
}

/// Waits until so many programs wait, and this user is the first of them.
fn wait_for_waiters(bed: &Bed, count: u64, first: u32) {
    eventually("programs that wait", || {
        let status = bed.status();
        let is_first = status["wanted_by"] == format!("user {first}");
        (status["waiting"] == count && is_first).then_some(())
    });
}

#[test]
fn the_programs_of_other_owners_wait_in_the_order_in_which_they_came() {
    let (bed, first, second) = bed_with(|_| {});
    append(&bed, "own ").join().expect("it ends").expect("the lock is free");
    let one = append(&first, "first ");
    wait_for_waiters(&bed, 1, FIRST);
    let other = append(&second, "second ");
    wait_for_waiters(&bed, 2, FIRST);
    bed.settle();
    bed.give();
    one.join().expect("it ends").expect("it has waited");
    let held = bed.status();
    assert_eq!(held["tenure"]["owner"], format!("user {FIRST}"), "{held}");
    wait_for_waiters(&bed, 1, SECOND);
    assert!(!other.is_finished(), "it waits for the end of the tenure before it");
    first.request(&json!({"do": "give"}));
    other.join().expect("it ends").expect("it has waited");
    assert_eq!(bed.read("list").as_deref(), Ok("own first second "));
}

/// As between machines, a tenure ends for another owner once nothing has changed for a while.
#[test]
fn an_idle_tenure_makes_way_for_another_owner() {
    let (bed, first, second) =
        bed_with(|setup| setup.policy.when_asked = WhenAsked::Yield { idle: MOMENT, max: LONG });
    let events = bed.events();
    for (program, line) in [(&*bed, "a"), (&first, "b"), (&second, "c"), (&first, "d")] {
        append(program, line).join().expect("it ends").expect("it has waited");
    }
    assert_eq!(bed.read("list").as_deref(), Ok("abcd"));
    events.next("held");
    assert_eq!(events.next("wanted")["client"], format!("user {FIRST}"));
    let why = "another user or session of this machine waited for the lock, and it was given up";
    assert_eq!(events.next("given")["why"], why);
}

#[test]
fn a_tenure_that_is_kept_makes_way_for_nobody() {
    let (bed, first, _) = bed_with(|setup| {
        setup.policy.when_asked = WhenAsked::Keep;
        setup.policy.on_write = OnWrite::Wait(MOMENT);
    });
    append(&bed, "a").join().expect("it ends").expect("the lock is free");
    assert_eq!(append(&first, "b").join().expect("it ends"), Err(libc::EROFS));
    let holds = format!("user {} holds the lock of this folder since", own_uid());
    assert!(first.why().contains(&holds), "{}", first.why());
    assert_eq!(bed.status()["tenure"]["owner"], format!("user {}", own_uid()));
}

/// A program that does not wait is refused, and the guard keeps its place: it gets the lock when it
/// tries again.
#[test]
fn a_refused_owner_keeps_its_place_and_is_told_who_holds_the_lock() {
    let (bed, first, second) = bed_with(|setup| setup.policy.on_write = OnWrite::Take);
    append(&bed, "a").join().expect("it ends").expect("the lock is free");
    for program in [&first, &second, &first] {
        assert_eq!(append(program, "b").join().expect("it ends"), Err(libc::EROFS));
    }
    let holds = format!("user {} holds the lock of this folder since 20", own_uid());
    let says = |text: &str| {
        assert!(text.contains(&holds), "{text}");
        assert!(text.contains("wait with 'latchfs guard wait', and try again"), "{text}");
        assert!(!text.contains("may write"), "{text}");
    };
    says(&first.why());
    let (excluded, holder) = (first.status(), bed.status());
    says(excluded["next"].as_str().expect("a sentence"));
    assert!(holder["excluded_by"].is_null(), "{holder}");
    let next = holder["next"].as_str().expect("a sentence");
    assert!(next.starts_with(&format!("user {FIRST} waits for the lock")), "{next}");
    bed.give();
    eventually("the tenure of the first one that was refused", || {
        (bed.status()["tenure"]["owner"] == format!("user {FIRST}")).then_some(())
    });
    append(&first, "b").join().expect("it ends").expect("its place was kept");
    first.request(&json!({"do": "give"}));
    eventually("the tenure of the second one", || {
        (bed.status()["tenure"]["owner"] == format!("user {SECOND}")).then_some(())
    });
    append(&second, "c").join().expect("it ends").expect("its place was kept");
}

/// A file that is open for writing goes on after the tenure of another owner.
#[test]
fn an_open_file_waits_for_the_end_of_the_tenure_of_another_owner() {
    let (bed, first, _) = bed_with(|_| {});
    let open = bed.open("list", libc::O_WRONLY | libc::O_APPEND).expect("the lock is free");
    open.write("a").expect("held");
    bed.give();
    append(&first, "b").join().expect("it ends").expect("the lock is free");
    let late = thread::spawn(move || open.write("c"));
    wait_for_waiters(&bed, 1, own_uid());
    first.request(&json!({"do": "give"}));
    late.join().expect("it ends").expect("it has waited");
    assert_eq!(bed.read("list").as_deref(), Ok("abc"));
}

/// Another machine that waits is next, and then a user of this one that began to wait later.
#[test]
fn another_machine_that_waits_is_next_before_a_later_owner() {
    let (one, first, _) = bed_with(|setup| setup.machines = Machines::Shared);
    let two = one.beside(|setup| setup.policy.when_asked = WhenAsked::Keep);
    append(&one, "one ").join().expect("it ends").expect("the lock is free");
    let asks = two.program();
    let asks = thread::spawn(move || asks.request(&json!({"do": "take", "wait_ms": 60_000})));
    eventually("the other machine", || (one.status()["wanted_by"] == "m2").then_some(()));
    let later = append(&first, "first ");
    eventually("the user", || (one.status()["waiting"] == 1).then_some(()));
    one.settle();
    one.give();
    let taken = asks.join().expect("it ends");
    assert_eq!(taken["state"], "holding", "{taken}");
    append(&two, "two ").join().expect("it ends").expect("the other machine has the lock");
    assert!(!later.is_finished(), "it waits in the queue of the lock service");
    two.give();
    later.join().expect("it ends").expect("it has waited");
    assert_eq!(one.read("list").as_deref(), Ok("one two first "));
}
