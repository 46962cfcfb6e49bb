//! The unit of a guard serves ordinary users: it runs in a container under systemd, with exactly
//! the capabilities and system calls that it names.

use crate::http::units::Systemd;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use testing::{Scratch, run};

/// An ordinary user.
const USER: u32 = 4242;

/// A small ext4 file system of which a quarter is kept for root.
struct Disk {
    scratch: Scratch,
}

impl Disk {
    fn new() -> Self {
        let made = Self { scratch: Scratch::new() };
        let script = "truncate -s 64M image && mkfs.ext4 -q -m 25 -O ^has_journal image \
                      && mkdir disk && mount -o loop image disk && mkdir disk/plain disk/folder";
        let mut command = Command::new("sh");
        run(command.args(["-ec", script]).current_dir(made.scratch.path())).ok();
        made
    }

    fn dir(&self) -> PathBuf {
        self.scratch.path().join("disk")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir()).status();
    }
}

/// Returns a script that makes calls of a Python program in a directory, as a user.
fn python(uid: u32, dir: &str, program: &str, calls: &str) -> String {
    let load = format!("exec(open('/fixtures/{program}.py').read())");
    format!("cd {dir} && setpriv --clear-groups --reuid={uid} python3 -c \"{load}\n{calls}\"")
}

#[track_caller]
fn is_same(expected: &str, found: &str, lines_min: usize) {
    let lines = expected.lines().zip(found.lines());
    let other: Vec<_> = lines.filter(|(one, other)| one != other).collect();
    assert!(other.is_empty(), "{} differ: {:#?}", other.len(), &other[..other.len().min(20)]);
    assert_eq!(expected.lines().count(), found.lines().count());
    assert!(expected.lines().count() >= lines_min, "{expected}");
}

/// Prepares a plain directory and a folder, and starts the unit that shows the folder.
fn begin() -> (Systemd, Disk) {
    let disk = Disk::new();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let binds = [format!("{fixtures}:/fixtures"), format!("{}:/srv/disk", disk.dir().display())];
    let systemd = Systemd::boot_with(&binds);
    // Its watchdog is for another test.
    let drop_in = systemd.scratch.path().join("units/latchfs-guard@.service.d");
    fs::remove_dir_all(drop_in).expect("it is there");
    for dir in ["/srv/notes", "/srv/plain"] {
        systemd.run(&format!("mkdir -p {dir}/modes")).ok();
        systemd.run(&python(0, dir, "guard_acts", "prepare()")).ok();
        systemd.run(&python(0, &format!("{dir}/modes"), "guard_modes", "prepare()")).ok();
    }
    systemd.run("latchfs guard init /srv/notes --alone").ok();
    systemd.start("latchfs-guard@notes");
    (systemd, disk)
}

fn acts_are_as_in_a_plain_directory(systemd: &Systemd) {
    for (uid, dir, program, calls, lines) in [
        (USER, "", "guard_acts", "acts()", 140),
        (0, "", "guard_acts", "special('/srv/DIR')", 21),
        (USER, "/modes", "guard_modes", "make_all()", 900),
    ] {
        let made = |view: &str, real: &str| {
            let script = python(uid, &format!("{view}{dir}"), program, &calls.replace("DIR", real));
            systemd.run(&script).ok()
        };
        is_same(&made("/srv/plain", "plain"), &made("/notes", "notes"), lines);
    }
    // Root makes the same files under other names.
    systemd.run("rm -r /srv/plain/modes/* /notes/modes/*").ok();
    for dir in ["/srv/plain/modes", "/srv/notes/modes"] {
        systemd.run(&python(0, dir, "guard_modes", "prepare()")).ok();
    }
    let made = |dir: &str| systemd.run(&python(0, dir, "guard_modes", "make_all()")).ok();
    is_same(&made("/srv/plain/modes"), &made("/notes/modes"), 900);
}

fn lost_files_are_restored_by_their_users(systemd: &Systemd) {
    let killed = "file = os.open('closed/roots', os.O_WRONLY | os.O_TRUNC)
os.write(file, b'halfway'); os.kill(os.getpid(), 9)";
    let killed = systemd.run(&python(USER, "/notes", "guard_acts", killed));
    assert!(killed.code != Some(0), "{killed:?}");
    let lost = |options: &str| {
        let user = format!("setpriv --clear-groups --reuid={USER} --regid={USER}");
        systemd.run(&format!("{user} latchfs guard lost /notes {options}"))
    };
    let listed = lost("").ok();
    assert!(listed.contains("closed/roots") && listed.contains("a signal ended"), "{listed}");
    let number = listed.split_whitespace().find_map(|word| word.parse::<u64>().ok());
    let number = number.expect("its number");
    let refused = lost(&format!("--restore {number}"));
    assert!(refused.said.contains("may not make files in the directory"), "{refused:?}");
    systemd.run("chmod 777 /srv/notes/closed").ok();
    lost(&format!("--restore {number}")).ok();
    let restored = format!("/srv/notes/closed/'roots (restored {number})'");
    assert_eq!(systemd.run(&format!("cat {restored}")).ok(), "halfway");
    let owner = systemd.run(&format!("stat -c '%u %g' {restored}")).ok();
    assert_eq!(owner, format!("{USER} {USER}\n"));
}

fn users_leave_the_reserve_to_root(systemd: &Systemd) {
    let options = "FOLDER=/srv/disk/folder\nVIEW=/disk\nOPTIONS=--stage /srv/disk/state\n";
    fs::write(systemd.scratch.path().join("etc/guard-disk.env"), options).expect("ours");
    for dir in ["/srv/disk/folder", "/srv/disk/plain"] {
        systemd.run(&python(0, dir, "guard_acts", "prepare_to_fill()")).ok();
    }
    systemd.run("latchfs guard init /srv/disk/folder --alone").ok();
    systemd.start("latchfs-guard@disk");
    for way in ["write", "mmap", "allocate", "copy"] {
        for path in ["open/big", "open/big.log", "closed/roots"] {
            let filled = |dir: &str, real: &str| {
                let calls = format!("filled('{way}', '{path}', '{real}', 15 * MIB)");
                systemd.run(&python(0, dir, "guard_acts", &calls)).ok()
            };
            let expected = filled("/srv/disk/plain", "/srv/disk/plain");
            assert!(expected.ends_with("True\n"), "{expected}");
            assert_eq!(filled("/disk", "/srv/disk/folder"), expected);
            let drop_all = "for file in /srv/disk/state/*/lost/*.json; do
                test -e $file && latchfs guard lost /disk --drop $(basename $file .json); done";
            systemd.run(&format!("{drop_all}; true")).ok();
        }
    }
    systemd.stops_cleanly("latchfs-guard@disk");
}

#[test]
fn the_unit_of_a_guard_serves_ordinary_users() {
    let (systemd, _disk) = begin();
    acts_are_as_in_a_plain_directory(&systemd);
    lost_files_are_restored_by_their_users(&systemd);
    users_leave_the_reserve_to_root(&systemd);
    systemd.stops_cleanly("latchfs-guard@notes");
}
