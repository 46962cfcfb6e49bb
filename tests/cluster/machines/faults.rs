//! Random faults between a server and a mount: the server is killed, down or isolated, loses
//! incoming packets, runs out of disk space, or does not accept the mount's bearer token. After the
//! faults no program is stuck and no lock stays held.

use crate::machines::crowd::{Chance, Crowd, GRACE, TTL, patience, seed};
use crate::machines::server_faults::{SECRET, allow, private};
use std::path::PathBuf;
use std::time::Duration;
use testing::SmallDisk;
use testing::net::{Daemon, Machine, Mount, Net};

/// The kinds of faults. A random one is injected each time, unless `LATCHFS_FAULT` names one.
const FAULTS: [&str; 6] = [
    "a power cycle",
    "refused connections",
    "a black hole",
    "a pulled cable",
    "a full disk",
    "an unknown token",
];

/// A server, and the parts of it in which faults are injected.
struct Victim {
    machine: Machine,
    daemon: Daemon,
    disk: SmallDisk,
    tokens: PathBuf,
}

impl Victim {
    fn fail(&mut self, fault: &str, chance: &mut Chance) -> Duration {
        println!("{fault}");
        match fault {
            "a power cycle" => {
                self.daemon.kill();
                self.daemon.restart();
                Duration::ZERO
            }
            "refused connections" => {
                self.daemon.kill();
                let lasted = chance.linger(&self.machine);
                self.daemon.restart();
                lasted
            }
            "a black hole" => {
                self.machine.deaf(true);
                let lasted = chance.linger(&self.machine);
                self.machine.deaf(false);
                lasted
            }
            "a pulled cable" => {
                self.machine.cable(false);
                let lasted = chance.linger(&self.machine);
                self.machine.cable(true);
                lasted
            }
            "a full disk" => {
                self.disk.fill();
                let lasted = chance.linger(&self.machine);
                self.disk.empty();
                lasted
            }
            "an unknown token" => {
                allow(&self.tokens, "another secret");
                self.daemon.signal(libc::SIGHUP);
                let lasted = chance.linger(&self.machine);
                allow(&self.tokens, SECRET);
                self.daemon.signal(libc::SIGHUP);
                lasted
            }
            other => panic!("LATCHFS_FAULT={other}: it is one of {FAULTS:?}"),
        }
    }
}

#[test]
fn faults_of_a_server_leave_no_program_stuck_and_no_lock_held() {
    let seed = seed();
    let mut chance = Chance(seed);
    let mut net = Net::new();
    let (machine, client) = (net.machine(), net.machine());
    let disk = SmallDisk::new(machine.path("state"), "size=4m,mode=700");
    let tokens = machine.path("tokens.toml");
    allow(&tokens, SECRET);
    let daemon = machine.serve(&format!("--tokens {}", tokens.display()));
    let token = client.path("token");
    private(&token, SECRET);
    let token = token.display().to_string();
    let url = machine.url();
    let mount = client.mount(&url, &format!("--ttl {TTL} --grace {GRACE} --token-file {token}"));
    let mut victim = Victim { machine, daemon, disk, tokens };
    let crowd = Crowd::begin(&mount, &url, Some(&token), seed);
    let named = std::env::var("LATCHFS_FAULT").ok();
    let (mut lasted, mut faults) = (Duration::ZERO, 0);
    let patience = patience(30);
    while lasted < patience {
        lasted += chance.linger(&client);
        let drawn = FAULTS[chance.below(FAULTS.len() as u64) as usize];
        lasted += victim.fail(named.as_deref().unwrap_or(drawn), &mut chance);
        faults += 1;
    }
    println!("{faults} faults");
    crowd.end(&mount);
}

/// Runs a test with a server without faults, a mount of it, and programs that take locks on the
/// mount.
fn healthy(test: impl FnOnce(&Machine, &Mount, Crowd)) {
    let mut net = Net::new();
    let (machine, client) = (net.machine(), net.machine());
    let _daemon = machine.serve("");
    let mount = client.mount(&machine.url(), &format!("--ttl {TTL} --grace {GRACE}"));
    let crowd = Crowd::begin(&mount, &machine.url(), None, 1);
    test(&client, &mount, crowd);
}

/// This test checks the assertions that run after the last fault: they fail if a lock is never
/// released.
#[test]
#[should_panic(expected = "still held 14s after the faults: Some([\"leaked ")]
fn a_lock_that_stays_held_is_detected() {
    healthy(|_, mount, crowd| {
        let holder = mount.python(crate::machines::contact::HOLDER, &["leaked"]);
        holder.says("mine");
        crowd.end(mount);
    });
}

/// This test checks the assertions that run after the last fault: they fail if a waiter is never
/// served, even if it is the only waiter of its kind.
#[test]
#[should_panic(expected = "'the waiter' is stuck 14s after the faults")]
fn a_stuck_waiter_is_detected() {
    healthy(|client, mount, mut crowd| {
        let holder = mount.python(crate::machines::contact::HOLDER, &["kept"]);
        holder.says("mine");
        let mut waiter = client.command("cat");
        waiter.arg(".latchfs/wait/kept").current_dir(mount.dir());
        crowd.add("the waiter", waiter);
        crowd.end(mount);
    });
}

/// This test checks the assertions that run after the last fault: they fail if no command of
/// `latchfs run` ever runs. Here the server refuses every request of `latchfs run`.
#[test]
#[should_panic(expected = "no lock was ever granted to run")]
fn a_run_that_is_always_refused_is_detected() {
    let mut net = Net::new();
    let (machine, client) = (net.machine(), net.machine());
    let tokens = machine.path("tokens.toml");
    allow(&tokens, SECRET);
    let _daemon = machine.serve(&format!("--tokens {}", tokens.display()));
    let token = client.path("token");
    private(&token, SECRET);
    let options = format!("--ttl {TTL} --grace {GRACE} --token-file {}", token.display());
    let mount = client.mount(&machine.url(), &options);
    Crowd::begin(&mount, &machine.url(), None, 1).end(&mount);
}
