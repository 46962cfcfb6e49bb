//! The sync barrier between two machines with copies of one folder: the test itself is the sync
//! tool, and carries a file when it wants to.
use latchfs::time::{Span, boot_now};
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testing::{Guard, Scratch, Server, latchfs, pause, run, soon};

/// Two machines that have copies of one folder, and the server that decides about its lock.
pub(crate) struct Machines {
    pub(crate) first: Scratch,
    pub(crate) second: Scratch,
    pub(crate) server: Server,
}

impl Machines {
    /// Returns machines with the same files.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// Returns machines with the same files, to which `make` adds some.
    pub(crate) fn with(make: impl FnOnce(&Path)) -> Self {
        Self::of((0, make))
    }

    /// Returns machines whose folders belong to a user.
    pub(crate) fn new_of(owner: u32) -> Self {
        Self::of((owner, |_: &Path| {}))
    }

    fn of((owner, make): (u32, impl FnOnce(&Path))) -> Self {
        let (first, second) = (Scratch::with_folder(), Scratch::with_folder());
        for scratch in [&first, &second] {
            chown(scratch.folder(), Some(owner), Some(owner)).expect("by root");
        }
        let server = Server::of(&first);
        fs::write(first.folder().join("old"), "old").expect("a folder");
        make(&first.folder());
        // So many that a marker of a few files becomes no checkpoint.
        (0..60).for_each(|n| fs::write(first.folder().join(format!("pad{n}")), "").expect("made"));
        first.init(&["--server", &server.url, "--client", "m1"]);
        let machines = Self { first, second, server };
        machines.carry_all();
        machines
    }

    pub(crate) fn start(&self, number: usize, options: &[&str]) -> Guard {
        self.start_as(latchfs(), number, options)
    }

    /// Starts the guard of a machine by `command`, which runs latchfs.
    pub(crate) fn start_as(&self, command: Command, number: usize, options: &[&str]) -> Guard {
        let (scratch, client) = match number {
            1 => (&self.first, "m1"),
            _ => (&self.second, "m2"),
        };
        let ttl = if options.contains(&"--ttl") { &[][..] } else { &["--ttl", "2s"] };
        let settle = if options.contains(&"--settle") { &[][..] } else { &["--settle", "1s"] };
        let options = [&["--client", client], settle, ttl, options].concat();
        Guard::start_as(command, scratch, "view", &options)
    }

    /// Carries one path from the first machine to the second.
    pub(crate) fn carry(&self, path: &str) {
        let (from, to) = (self.first.folder().join(path), self.second.folder().join(path));
        if from.exists() {
            fs::create_dir_all(to.parent().expect("below the folder")).expect("made");
            run(Command::new("cp").arg("-a").arg(from).arg(to)).ok();
        } else {
            fs::remove_file(to).expect("gone elsewhere");
        }
    }

    /// Carries everything, and removes what is gone.
    pub(crate) fn carry_all(&self) {
        let from = format!("{}/", self.first.folder().display());
        run(Command::new("rsync").args(["-ac", "--delete", &from]).arg(self.second.folder())).ok();
    }

    /// Carries everything from the second machine to the first, and removes what is gone.
    pub(crate) fn carry_back(&self) {
        let from = format!("{}/", self.second.folder().display());
        run(Command::new("rsync").args(["-ac", "--delete", &from]).arg(self.first.folder())).ok();
    }

    /// Carries the markers, and no file.
    pub(crate) fn carry_markers(&self) {
        copy_markers(&self.first, &self.second);
    }

    /// Carries the markers from the second machine to the first, and no file.
    pub(crate) fn carry_markers_back(&self) {
        copy_markers(&self.second, &self.first);
    }
}

fn copy_markers(from: &Scratch, to: &Scratch) {
    let from = format!("{}/.latchfs/", from.folder().display());
    run(Command::new("rsync").args(["-ac", &from]).arg(to.folder().join(".latchfs"))).ok();
}

/// Begins to take the lock, which goes on in the background.
pub(crate) fn begin_take(guard: &Guard) -> std::thread::JoinHandle<String> {
    let view = guard.view.clone();
    std::thread::spawn(move || {
        let taken = run(latchfs().args(["guard", "take"]).arg(view));
        format!("{}{}", taken.out, taken.err)
    })
}

pub(crate) fn state(guard: &Guard) -> String {
    guard.status()["state"].as_str().expect("a state").to_owned()
}

pub(crate) fn not_ready(guard: &Guard, part: &str) {
    soon(part, || {
        let status = guard.status();
        let why = status["not_ready"].as_str()?.to_owned();
        why.contains(part).then_some(())
    });
}

pub(crate) fn markers(scratch: &Scratch) -> Vec<PathBuf> {
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
    one.request("give", &[]).ok();
    let refused = fs::write(two.path("c"), "too early").expect_err("nothing has arrived");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert!(two.why().contains("the marker of m1's tenure"), "{}", two.why());
    let taking = begin_take(&two);
    not_ready(&two, "has not arrived yet; the sync tool may still bring it");
    let next = two.status()["next"].as_str().expect("a sentence").to_owned();
    assert!(next.starts_with("wait until the sync tool is done"), "{next}");
    pause(Duration::from_secs(4));
    machines.carry_markers();
    not_ready(&two, "3 of 63 files of m1's tenure");
    assert!(two.status()["not_ready"].to_string().contains("18 bytes"));
    machines.carry("a");
    not_ready(&two, "2 of 63 files of m1");
    machines.carry("old");
    not_ready(&two, "'dir/b' is not here yet");
    assert_eq!(state(&two), "arriving");
    assert!(!two.path("c").exists());
    fs::create_dir_all(machines.second.folder().join("dir")).expect("made");
    fs::write(machines.second.folder().join("dir/b"), "of another one").expect("written");
    not_ready(&two, "1 of 62 files");
    machines.carry("dir/b");
    let said = taking.join().expect("taken");
    assert!(said.contains("holding"), "{said}");
    // It says what it waits for once, and not at each look.
    assert_eq!(said.matches("waiting: the marker of m1's tenure").count(), 1, "{said}");
    fs::write(two.path("c"), "of m2").expect("ready");
    two.end();
}

/// A guard that is killed has not said what it changed. When it comes back it says so, and then the
/// others wait for its files and no longer for a person.
#[test]
fn a_killed_holder_leaves_the_others_unsure_until_its_late_marker() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("ready");
    one.kill();
    let taking = begin_take(&two);
    not_ready(&two, "m1 (token");
    machines.carry("a");
    machines.carry_markers();
    not_ready(&two, "has not said what it changed");
    let one = machines.start(1, &[]);
    let late = soon("the late marker", || {
        let all = markers(&machines.first);
        all.iter().find_map(|path| {
            let text = fs::read_to_string(path).ok()?;
            text.contains("\"path\":\"a\"").then_some(text)
        })
    });
    assert!(late.contains("\"last\":true") && !late.contains("foreign"), "{late}");
    assert!(one.request("lost", &[]).ok().contains(" a\n"), "its content is kept as well");
    assert_eq!(state(&two), "arriving");
    machines.carry_markers();
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("a")).expect("there"), "of m1");
    // The copy is needed until the others build on the late marker, and no longer.
    fs::write(two.path("b"), "of m2").expect("ready");
    two.request("give", &[]).ok();
    assert!(one.request("lost", &[]).ok().contains(" a\n"), "no marker has reached m1");
    machines.carry_back();
    one.request("take", &[]).ok();
    soon("the removal of the copy", || one.request("lost", &[]).ok().is_empty().then_some(()));
    assert_eq!(fs::read_to_string(one.path("a")).expect("there"), "of m1");
}

/// A file that arrives after a long time without any is noticed at once, in a directory that is
/// there and in one that comes with it. The folder is compared every three seconds by then.
#[test]
fn a_file_that_arrives_after_a_long_wait_is_noticed_at_once() {
    for path in ["a", "new/b"] {
        let machines = Machines::new();
        let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
        fs::create_dir(one.path("new")).expect("ready");
        fs::write(one.path(path), "of m1").expect("ready");
        one.request("give", &[]).ok();
        machines.carry_markers();
        let taking = begin_take(&two);
        not_ready(&two, "is not here yet");
        pause(Duration::from_millis(3_300));
        let arrived = boot_now();
        machines.carry(path);
        assert!(taking.join().expect("taken").contains("holding"));
        let took = boot_now().since(arrived);
        assert!(took < Span::from_millis(1_200), "{path}: noticed after {took}");
    }
}

/// After nothing has changed for a while, a marker names everything: the machine may vanish, and
/// the others are ready once its files are there.
#[test]
fn a_machine_that_vanishes_after_a_quiet_while_leaves_nobody_unsure() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("ready");
    soon("the marker", || (markers(&machines.first).len() == 2).then_some(()));
    // The handover follows the marker.
    let id = fs::read_dir(machines.first.join("state")).expect("there").flatten().next();
    let changes = id.expect("one folder").path().join("m1/changes");
    soon("the handover", || {
        let own = fs::read_to_string(&changes).ok()?;
        own.contains("\"own\"").then_some(())
    });
    let server = machines.server.url.clone();
    soon("a clean handover", || {
        let shown =
            run(latchfs().args(["status", "--json", "--server", &server, &lock_name(&one)]));
        shown.ok().contains(" clean ").then_some(())
    });
    one.kill();
    machines.carry_all();
    assert!(begin_take(&two).join().expect("taken").contains("holding"));
    let one = machines.start(1, &[]);
    assert!(one.request("lost", &[]).ok().is_empty());
}

fn lock_name(guard: &Guard) -> String {
    guard.status()["lock"].as_str().expect("a name").to_owned()
}

/// A guard may be killed while it waits, and one that holds the lock may be ended and started: each
/// goes on where it was.
#[test]
fn a_restart_in_the_middle_loses_nothing() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("ready");
    one.end();
    let one = machines.start(1, &[]);
    fs::write(one.path("b"), "of m1").expect("its own handover");
    one.end();
    let taking = begin_take(&two);
    not_ready(&two, "the marker of m1's tenure");
    two.kill();
    drop(taking.join());
    let two = machines.start(2, &[]);
    machines.carry_markers();
    machines.carry("a");
    let taking = begin_take(&two);
    not_ready(&two, "'b' is not here yet");
    machines.carry("b");
    assert!(taking.join().expect("taken").contains("holding"));
    let one = machines.start(1, &[]);
    assert!(one.request("lost", &[]).ok().is_empty());
}

/// A person may go on without what has not arrived. The machine that comes back then puts its own
/// versions aside.
#[test]
fn an_accepted_folder_goes_on_and_the_other_machine_puts_its_versions_aside() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("ready");
    one.kill();
    assert!(two.request("accept", &[]).fails().contains("--reason"));
    two.request("accept", &["--reason", "the first laptop was stolen"]).ok();
    fs::write(two.path("a"), "of m2").expect("accepted");
    two.request("give", &[]).ok();
    let texts = markers(&machines.second).into_iter().filter_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        let names_the_reason = text.contains("the first laptop was stolen");
        names_the_reason.then_some(text)
    });
    assert_eq!(texts.count(), 1, "the reason is reported once");
    let one = machines.start(1, &[]);
    let lost = soon("m1 puts its version aside", || {
        let lost = one.request("lost", &["--json"]).ok();
        lost.contains("\"a\"").then_some(lost)
    });
    assert!(lost.contains("theirs may replace it"), "{lost}");
    fs::write(one.path("x"), "early").expect_err("the files of m2 are not here");
    machines.carry_back();
    fs::write(one.path("x"), "of m1").expect("all is here");
    assert_eq!(fs::read_to_string(one.path("a")).expect("there"), "of m2");
}

/// A folder that was made before there were markers gets its checkpoint in the first tenure.
#[test]
fn a_folder_of_an_older_version_gets_a_checkpoint() {
    let machines = Machines::new();
    let record = machines.first.folder().join(".latchfs/folder");
    let text = fs::read_to_string(&record).expect("there");
    let mut older: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    older["v"] = 1.into();
    older["id"] = "0123456789abcdef0123456789abcdef".into();
    for path in markers(&machines.first) {
        fs::remove_file(path).expect("removed");
    }
    fs::write(&record, older.to_string()).expect("written");
    machines.carry_all();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("the first tenure is ready as it stands");
    one.request("give", &[]).ok();
    assert_eq!(markers(&machines.first).len(), 1);
    assert!(fs::read_to_string(&record).expect("there").contains("\"v\": 2"));
    fs::write(two.path("b"), "of m2").expect_err("nothing has arrived");
    machines.carry_all();
    fs::write(two.path("b"), "of m2").expect("all is here");
}

/// `--carry` names the changed paths to a command after each marker, and `--on-ready` runs one when
/// a tenure begins.
#[test]
fn a_sync_tool_is_notified_of_the_paths_of_each_marker() {
    let machines = Machines::new();
    let file = |name: &str| machines.first.join(name);
    let carry = format!("(cat; echo end) >> {}", file("carried").display());
    let ready = format!("echo \"$LATCHFS_EVENT\" > {}", file("ready").display());
    let one = machines.start(1, &["--carry", &carry, "--on-ready", &ready]);
    fs::create_dir(one.path("dir")).expect("free");
    fs::write(one.path("dir/b c"), "of m1").expect("ready");
    fs::remove_file(one.path("old")).expect("ready");
    let carried = soon("the paths of the first marker", || {
        let carried = fs::read_to_string(file("carried")).ok()?;
        carried.ends_with("end\n").then_some(carried)
    });
    assert_eq!(carried, ".latchfs\ndir/b c\nold\nend\n");
    let event = fs::read_to_string(file("ready")).expect("the command has run");
    let event: serde_json::Value = serde_json::from_str(&event).expect("JSON");
    assert_eq!(event["event"], "held");
    fs::write(one.path("a"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    soon("the paths of the last marker", || {
        let carried = fs::read_to_string(file("carried")).ok()?;
        carried.ends_with("end\n.latchfs\na\nend\n").then_some(())
    });
    let mut other = latchfs();
    other.args(["guard"]).arg(machines.second.folder()).arg(machines.second.join("view"));
    other.args(["--client", "m2", "--carry", "syncthing=/nowhere"]);
    let refused = run(other.arg("--stage").arg(machines.second.join("state"))).fails();
    assert!(refused.contains("--carry syncthing=DIR"), "{refused}");
}
