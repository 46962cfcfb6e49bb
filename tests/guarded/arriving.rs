//! The sync barrier between two machines with copies of one folder: the test itself is the sync
//! tool, and carries a file when it wants to.

use crate::harness::{Guard, Scratch, Server, eventually, latchfs};
use crate::support::run;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Two machines that have copies of one folder, and the server that decides about its lock.
struct Machines {
    first: Scratch,
    second: Scratch,
    _server: Server,
}

impl Machines {
    /// Returns machines with the same files.
    fn new() -> Self {
        let (first, second) = (Scratch::new(), Scratch::new());
        let server = Server::start(&first);
        fs::write(first.folder().join("old"), "old").expect("a folder");
        first.init(&["--server", &server.url, "--client", "m1"]);
        let machines = Self { first, second, _server: server };
        machines.carry_all();
        machines
    }

    fn start(&self, number: usize, options: &[&str]) -> Guard {
        let (scratch, client) = match number {
            1 => (&self.first, "m1"),
            _ => (&self.second, "m2"),
        };
        let options = [&["--client", client, "--settle", "1s", "--ttl", "2s"], options].concat();
        Guard::start(scratch, "view", &options)
    }

    /// Carries one path from the first machine to the second.
    fn carry(&self, path: &str) {
        let (from, to) = (self.first.folder().join(path), self.second.folder().join(path));
        if from.exists() {
            fs::create_dir_all(to.parent().expect("below the folder")).expect("made");
            run(Command::new("cp").arg("-a").arg(from).arg(to)).ok();
        } else {
            fs::remove_file(to).expect("gone elsewhere");
        }
    }

    /// Carries everything, and removes what is gone.
    fn carry_all(&self) {
        let from = format!("{}/", self.first.folder().display());
        run(Command::new("rsync").args(["-a", "--delete", &from]).arg(self.second.folder())).ok();
    }

    /// Carries the markers, and no file.
    fn carry_markers(&self) {
        let from = format!("{}/.latchfs/", self.first.folder().display());
        run(Command::new("rsync").args(["-a", &from]).arg(self.second.folder().join(".latchfs")))
            .ok();
    }
}

/// Begins to take the lock, which goes on in the background.
fn begin_take(guard: &Guard) -> std::thread::JoinHandle<String> {
    let view = guard.view.clone();
    std::thread::spawn(move || {
        let taken = run(latchfs().args(["guard", "take"]).arg(view));
        taken.ok()
    })
}

fn state(guard: &Guard) -> String {
    guard.status()["state"].as_str().expect("a state").to_owned()
}

fn not_ready(guard: &Guard, part: &str) {
    eventually(part, || {
        let status = guard.status();
        let why = status["not_ready"].as_str()?.to_owned();
        why.contains(part).then_some(())
    });
}

fn markers(scratch: &Scratch) -> Vec<PathBuf> {
    let control = scratch.folder().join(".latchfs");
    let all = [control.clone(), control.join("markers")]
        .into_iter()
        .filter_map(|dir| fs::read_dir(dir).ok());
    let files = all.flat_map(|entries| entries.flatten().map(|entry| entry.path()));
    files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect()
}

#[test]
fn a_folder_is_ready_when_the_last_file_has_arrived() {
    let machines = Machines::new();
    assert_eq!(markers(&machines.first).len(), 1, "the first checkpoint");
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("ready");
    fs::create_dir(one.path("dir")).expect("ready");
    fs::write(one.path("dir/b"), "of m1 as well").expect("ready");
    fs::remove_file(one.path("old")).expect("ready");
    one.ask("give", &[]).ok();
    let refused = fs::write(two.path("c"), "too early").expect_err("nothing has arrived");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert!(two.why().contains("the marker of tenure"), "{}", two.why());
    let taking = begin_take(&two);
    not_ready(&two, "the marker of tenure");
    machines.carry_markers();
    not_ready(&two, "3 of 3 files have not arrived, 18 bytes");
    machines.carry("a");
    not_ready(&two, "2 of 3 files have not arrived");
    machines.carry("old");
    not_ready(&two, "'dir/b' is not here yet");
    assert_eq!(state(&two), "arriving");
    assert!(!two.path("c").exists());
    fs::create_dir_all(machines.second.folder().join("dir")).expect("made");
    fs::write(machines.second.folder().join("dir/b"), "of another one").expect("written");
    not_ready(&two, "1 of 3 files");
    machines.carry("dir/b");
    assert!(taking.join().expect("taken").contains("holding"));
    fs::write(two.path("c"), "of m2").expect("ready");
    two.end();
}
