//! Faults drawn at random between a server and a mount: the server is killed, away, silent, cut
//! off, out of disk space, or does not know the token. When all is well again nobody is stuck and
//! nothing stays held.

use crate::crowd::{Chance, Crowd, TTL, patience, seed};
use crate::net::{Daemon, Machine, Net};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SECRET: &str = "the secret of all";

/// The faults, one of which is drawn each time unless `LATCHFS_FAULT` names one.
const FAULTS: [&str; 6] = [
    "a power cycle",
    "refused connections",
    "a black hole",
    "a pulled cable",
    "a full disk",
    "an unknown token",
];

/// The token file of the server, with this secret in it.
fn allow(tokens: &Path, secret: &str) {
    let text = format!("[[token]]\nname = \"all\"\nsecret = \"{secret}\"\nclients = [\"*\"]\n");
    private(tokens, &text);
}

fn private(path: &Path, text: &str) {
    fs::write(path, text).expect("ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("ours");
}

/// A small disk for the state of a server.
struct Disk(PathBuf);

impl Disk {
    fn new(path: PathBuf) -> Self {
        fs::create_dir(&path).expect("a fresh name");
        let options = ["-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs"];
        let mounted = Command::new("mount").args(options).arg(&path).status();
        assert!(mounted.expect("mount is there").success(), "this test needs root");
        Self(path)
    }

    fn fill(&self) {
        // It ends when nothing fits any more.
        let filled = fs::write(self.0.join("fill"), vec![0; 8 << 20]);
        assert!(filled.is_err(), "the disk is full");
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("fill")).expect("it is there");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A server, and what can be done to it.
struct Victim {
    machine: Machine,
    daemon: Daemon,
    disk: Disk,
    tokens: PathBuf,
}

impl Victim {
    fn fail(&mut self, fault: &str, chance: &mut Chance) -> Duration {
        println!("{fault}");
        match fault {
            "a power cycle" => {
                self.daemon.kill();
                self.daemon.again();
                Duration::ZERO
            }
            "refused connections" => {
                self.daemon.kill();
                let lasted = chance.linger(&self.machine);
                self.daemon.again();
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
fn faults_of_a_server_leave_nobody_waiting_and_nothing_held() {
    let seed = seed();
    let mut chance = Chance(seed);
    let mut net = Net::new();
    let (machine, client) = (net.machine(), net.machine());
    let disk = Disk::new(machine.path("state"));
    let tokens = machine.path("tokens.toml");
    allow(&tokens, SECRET);
    let daemon = machine.serve(&format!("--tokens {}", tokens.display()));
    let token = client.path("token");
    private(&token, SECRET);
    let token = token.display().to_string();
    let url = machine.url();
    let mount = client.mount(&url, &format!("--ttl {TTL} --token-file {token}"));
    let mut victim = Victim { machine, daemon, disk, tokens };
    let crowd = Crowd::begin(&mount, &url, Some(&token), seed);
    let named = std::env::var("LATCHFS_FAULT").ok();
    let (mut lasted, mut faults) = (Duration::ZERO, 0);
    while lasted < patience() {
        lasted += chance.linger(&client);
        let drawn = FAULTS[chance.below(FAULTS.len() as u64) as usize];
        lasted += victim.fail(named.as_deref().unwrap_or(drawn), &mut chance);
        faults += 1;
    }
    println!("{faults} faults");
    crowd.end(&mount);
}
