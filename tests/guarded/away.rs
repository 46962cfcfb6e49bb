//! Locks that a person takes along (`guard take --for`), to where nobody can reach the lock
//! service.

use crate::arriving::{Machines, begin_take, state};
use std::fs;
use std::time::Duration;
use testing::{Guard, no_other_stops, pause, soon};

/// Refuses a change of the second machine, and returns the reason.
fn refused(guard: &Guard) -> String {
    fs::write(guard.path("b"), "of m2").expect_err("m1 holds the lock");
    guard.why()
}

#[test]
fn a_lock_that_was_taken_along_outlives_the_connection() {
    let _alone = no_other_stops();
    let machines = Machines::new();
    let one = machines.start(1, &["--yield", "1s"]);
    let two = machines.start(2, &["--never-ask", "index.lock"]);
    fs::write(one.path("a"), "before").expect("free");
    let output = one.request("take", &["--for", "40s"]).ok();
    assert!(output.contains(", until 20"), "{output}");
    let token = one.token();
    let tried = two.request("take", &["--try"]).exits(75);
    assert!(tried.contains("m1 holds the lock of this folder (token "), "{tried}");
    assert!(tried.contains("), and is away until 20"), "{tried}");
    fs::write(two.path("index.lock"), "").expect_err("m1 holds the lock");
    let why = two.why();
    assert!(
        why.contains("index.lock was not changed") && why.contains("is away until 20"),
        "{why}"
    );
    let why = refused(&two);
    assert!(why.contains("m1 holds the lock of this folder, and is away until 20"), "{why}");
    assert!(why.contains(" UTC"), "{why}");
    let early = begin_take(&two);
    soon("until when m1 is away", || {
        let status = two.status();
        assert_eq!(state(&one), "holding", "it yields to nobody");
        status["holder_away_until"].as_str().map(drop)
    });
    pause(Duration::from_secs(2));
    assert_eq!(state(&one), "holding", "it yields to nobody");
    machines.server.signal(libc::SIGSTOP);
    // The ordinary lease lasts 2 s.
    pause(Duration::from_secs(5));
    fs::write(one.path("a"), "away").expect("taken along");
    assert_eq!(state(&one), "holding");
    machines.server.signal(libc::SIGCONT);
    pause(Duration::from_secs(2));
    fs::write(one.path("c"), "back").expect("still held");
    assert_eq!(one.token(), token, "the tenure goes on");
    println!("waited so far: {}", if early.is_finished() { "no" } else { "yes" });
    let taking = begin_take(&two);
    one.request("give", &[]).ok();
    soon("the lock of the second machine", || {
        machines.carry_all();
        let status = two.status();
        assert!(!status["not_ready"].to_string().contains("nobody can say"), "{status}");
        (status["state"] == "holding").then_some(())
    });
    assert!(taking.join().expect("taken").contains("holding"));
    let early = early.join().expect("no panic");
    assert!(early.contains("waiting: m1 holds the lock, and is away until 20"), "{early}");
    assert_eq!(fs::read_to_string(two.path("a")).expect("arrived"), "away");
    assert_eq!(fs::read_to_string(two.path("c")).expect("arrived"), "back");
}

/// Until then the lock service knows that changes follow, even if nothing has changed for a while.
#[test]
fn a_lock_that_was_taken_along_ends_with_its_time() {
    let _alone = no_other_stops();
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &["--yield", "1s"]), machines.start(2, &[]));
    one.request("take", &["--for", "10s"]).ok();
    pause(Duration::from_secs(2));
    let mut status = testing::latchfs();
    status.args(["status", "--server", &machines.server.url, "--json"]);
    status.arg(one.status()["lock"].as_str().expect("a name"));
    let status = testing::run(&mut status).ok();
    assert!(status.contains("dirty"), "{status}");
    machines.server.signal(libc::SIGSTOP);
    fs::write(one.path("a"), "away").expect("taken along");
    soon("the end", || (state(&one) == "reading").then_some(()));
    let how = one.status()["last_tenure"]["how"].as_str().expect("ended").to_owned();
    assert!(how.contains("the time was over"), "{how}");
    machines.server.signal(libc::SIGCONT);
    let taking = begin_take(&two);
    soon("the lock of the second machine", || {
        machines.carry_all();
        (state(&two) == "holding").then_some(())
    });
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("a")).expect("arrived"), "away");
    fs::write(one.path("a"), "late").expect_err("m2 holds the lock");
}

#[test]
fn a_lock_is_taken_along_for_at_most_a_day() {
    let machines = Machines::new();
    let one = machines.start(1, &[]);
    let refused = one.request("take", &["--for", "25h"]).exits(64);
    assert!(refused.contains("a server keeps a lock for at most 24h"), "{refused}");
    let refused = one.request_here("{\"do\": \"take\", \"for_ms\": 90000001}");
    assert!(refused.contains("at most 24h"), "{refused}");
    assert_eq!(state(&one), "reading");
}
