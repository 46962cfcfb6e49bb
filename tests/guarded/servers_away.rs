//! A server that two machines with copies of a folder cannot reach for a while, and locks that are
//! stolen: nobody writes twice, and what the first machine has left is known to the second one
//! before it is ready.

use crate::arriving::{Machines, begin_take, not_ready, state};
use crate::changed_servers::kill;
use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;
use testing::{Guard, Server, latchfs, no_other_stops, pause, soon};
use testing::{rounds, run};

/// Waits until the second machine holds the lock and is ready, while all files are carried.
fn becomes_ready(machines: &Machines, one: &Guard, two: &Guard) {
    soon("the second machine is ready", || {
        machines.carry_all();
        assert!(
            !(state(one) == "holding" && state(two) == "holding"),
            "two machines hold the lock: {} {}",
            one.status(),
            two.status()
        );
        (state(two) == "holding").then_some(())
    });
}

/// Shows that the second machine has what the first one left, and that it may write.
fn has_all(machines: &Machines, two: &Guard, files: &[(&str, &str)]) {
    for (name, text) in files {
        assert_eq!(fs::read_to_string(two.path(name)).expect("arrived"), *text, "{name}");
    }
    fs::write(two.path("of two"), "of m2").expect("ready");
    two.request("give", &[]).ok();
    machines.carry_back();
}

/// The connection is away for less than the lease lasts.
#[test]
fn a_tenure_outlives_a_short_absence_of_its_server() {
    let _alone = no_other_stops();
    let machines = Machines::new();
    let (one, two) =
        (machines.start(1, &["--ttl", "6s", "--settle", "1h"]), machines.start(2, &[]));
    for round in 0..rounds(1, 10) {
        one.request("take", &[]).ok();
        fs::write(one.path("a"), "before").expect("ready");
        let held = one.token();
        machines.server.signal(libc::SIGSTOP);
        fs::write(one.path("a"), format!("meanwhile {round}")).expect("announced");
        pause(Duration::from_secs(2));
        fs::write(one.path("b"), "still").expect("announced");
        machines.server.signal(libc::SIGCONT);
        fs::write(two.path("c"), "early").expect_err("m1 holds the lock");
        assert_eq!(one.token(), held, "the tenure goes on");
        one.request("give", &[]).ok();
        let taking = begin_take(&two);
        becomes_ready(&machines, &one, &two);
        assert!(taking.join().expect("taken").contains("holding"));
        has_all(&machines, &two, &[("a", &format!("meanwhile {round}")), ("b", "still")]);
    }
}

/// The first machine loses its tenure at the deadline, and the server is back before another
/// machine asks: the first one goes on, since nobody else has changed anything.
#[test]
fn a_machine_goes_on_after_a_long_absence_of_its_server_if_nobody_else_came() {
    let _alone = no_other_stops();
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    for round in 0..rounds(1, 10) {
        one.request("take", &[]).ok();
        fs::write(one.path("a"), "before").expect("ready");
        let mut open = File::create(one.path("b")).expect("ready");
        open.write_all(b"half").expect("ready");
        let held = one.token();
        machines.server.signal(libc::SIGSTOP);
        let error = soon("the deadline", || open.write_all(b"x").err());
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
        // A little before the deadline changes are refused; until then the tenure may go on.
        soon("the end of the tenure", || (state(&one) != "holding").then_some(()));
        let error = fs::write(one.path("a"), "late").expect_err("the tenure is over");
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
        drop(open);
        machines.server.signal(libc::SIGCONT);
        soon("a new tenure", || {
            let taken = run(latchfs().args(["guard", "take"]).arg(&one.view));
            (taken.code == 0).then_some(())
        });
        assert!(one.token() > held);
        let text = format!("after it {round}");
        fs::write(one.path("a"), &text).expect("its own handover");
        one.request("give", &[]).ok();
        let taking = begin_take(&two);
        becomes_ready(&machines, &one, &two);
        assert!(taking.join().expect("taken").contains("holding"));
        has_all(&machines, &two, &[("a", &text)]);
        assert_eq!(one.request("lost", &[]).ok().matches(" b\n").count(), round + 1);
    }
}

/// The second machine waits in the queue, and gets the lock first when the server is back: it does
/// not know what the first one has changed before that one tells it.
#[test]
fn the_next_machine_waits_for_the_late_marker_of_one_that_lost_its_server() {
    let _alone = no_other_stops();
    let machines = Machines::new();
    let one = machines.start(1, &["--keep", "--settle", "1h"]);
    // Its place in the queue outlives the absence of the server.
    let two = machines.start(2, &["--ttl", "10s"]);
    for round in 0..rounds(1, 10) {
        one.request("take", &[]).ok();
        let text = format!("of m1 {round}");
        fs::write(one.path("a"), &text).expect("ready");
        let mut open = File::create(one.path("b")).expect("ready");
        open.write_all(b"half").expect("ready");
        let taking = begin_take(&two);
        soon("the queue", || one.status()["wanted_by"].as_str().map(drop));
        machines.server.signal(libc::SIGSTOP);
        soon("the deadline", || open.write_all(b"x").err());
        soon("the end of the tenure", || (state(&one) != "holding").then_some(()));
        drop(open);
        machines.server.signal(libc::SIGCONT);
        soon("the second machine has the lock", || {
            assert_ne!(state(&one), "holding");
            (state(&two) == "arriving").then_some(())
        });
        not_ready(&two, "m1");
        fs::write(one.path("a"), "twice").expect_err("m2 has the lock");
        becomes_ready(&machines, &one, &two);
        assert!(taking.join().expect("taken").contains("holding"));
        has_all(&machines, &two, &[("a", &text)]);
        assert!(one.request("lost", &[]).ok().contains(" b\n"), "the half is kept");
    }
}

/// Somebody steals the lock for a third client, and gives it back.
#[test]
fn a_stolen_tenure_is_reported_by_a_late_marker() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &["--settle", "1h"]), machines.start(2, &[]));
    let admin = |what: &[&str]| {
        run(latchfs().args(what).args(["--server", &machines.server.url, "--client", "m3"])).ok();
    };
    for round in 0..rounds(2, 10) {
        one.request("take", &[]).ok();
        let lock = one.status()["lock"].as_str().expect("a name").to_owned();
        let text = format!("of m1 {round}");
        fs::write(one.path("a"), &text).expect("ready");
        let mut open = File::create(one.path("b")).expect("ready");
        open.write_all(b"half").expect("ready");
        admin(&["steal", &lock, "--ttl", "10m", "--reason", "a test"]);
        let error = soon("the loss", || open.write_all(b"x").err());
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
        drop(open);
        fs::write(one.path("a"), "twice").expect_err("m3 holds the lock");
        machines.carry_markers();
        let taking = begin_take(&two);
        admin(&["release", &lock]);
        becomes_ready(&machines, &one, &two);
        assert!(taking.join().expect("taken").contains("holding"));
        has_all(&machines, &two, &[("a", &text)]);
    }
}

/// A lock that was taken along is stolen while nobody can reach its machine. The machine sees it
/// when it comes back, although the events of that time are lost, and tells what it has changed.
#[test]
fn a_machine_that_was_away_sees_that_its_lock_was_stolen() {
    let _alone = no_other_stops();
    let mut machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    one.request("take", &["--for", "10m"]).ok();
    let lock = one.status()["lock"].as_str().expect("a name").to_owned();
    fs::write(one.path("a"), "taken along").expect("ready");
    one.signal(libc::SIGSTOP);
    // Its connection ends, so that nothing waits there for it.
    kill(&machines.server);
    let url = machines.server.url.clone();
    let data = machines.first.join("server").display().to_string();
    let address = url.trim_start_matches("http://");
    machines.server = Server::at(address, &["--data", &data]);
    let admin = |what: &[&str], client: &str| {
        run(latchfs().args(what).args(["--server", &url, "--client", client])).ok();
    };
    let mut steal = latchfs();
    steal.args(["steal", &lock, "--ttl", "10m", "--reason", "the laptop is lost"]);
    steal.args(["--server", &url, "--client", "m3"]);
    let stealing = std::thread::spawn(move || run(&mut steal).ok());
    soon("the steal", || {
        let status = run(latchfs().args(["status", &lock, "--json", "--server", &url])).ok();
        status.contains("begins_in_ms").then_some(())
    });
    // So many events that those of the steal are forgotten.
    for method in ["POST", "DELETE"] {
        let url = format!("{url}/locks/n[1-4300]?client=m4");
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-Z", "--parallel-max", "40", "-o", "/dev/null", "-X", method, &url]);
        run(&mut curl).ok();
    }
    one.signal(libc::SIGCONT);
    soon("the end of the tenure", || (state(&one) != "holding").then_some(()));
    fs::write(one.path("a"), "twice").expect_err("m3 holds the lock");
    // The lock was taken along for 10 minutes, and m1 has said that it has stopped.
    stealing.join().expect("granted");
    admin(&["release", &lock], "m3");
    let taking = begin_take(&two);
    becomes_ready(&machines, &one, &two);
    assert!(taking.join().expect("taken").contains("holding"));
    has_all(&machines, &two, &[("a", "taken along")]);
}
