//! Power loss at every point: whatever a disk may contain after any prefix of the server's writes
//! and syncs, a server can open it, and finds all changes that were acknowledged by then.
//!
//! The writes are those of a real server, recorded by `shim.c`. After a power loss, a disk has all
//! synced data, and of the rest anything from nothing to all; the test tries six variants at each
//! point.

use crate::durable::shim::Shim;
use latchfs::engine::{Engine, LockName};
use latchfs::raft::RaftNode;
use latchfs::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use testing::{HttpConnection, Scratch};

/// The number of clients, and the number of locks that each of them is granted.
const CLIENTS: u64 = 3;
const GRANTS: u64 = 8;

/// A file operation of the server, as the preloaded library (`shim.c`) has recorded it.
#[derive(Debug, Clone)]
struct Done {
    letter: u8,
    path: String,
    data: Vec<u8>,
    number: i64,
}

/// Reads the file operations that the preloaded library (`shim.c`) has recorded.
fn read(trace: &Path) -> Vec<Done> {
    let bytes = fs::read(trace).expect("the server has done something");
    let mut rest = bytes.as_slice();
    let mut all = vec![];
    while let Some((letter, after)) = rest.split_first() {
        rest = after;
        let mut string = || {
            let (length, after) = rest.split_first_chunk().expect("whole records");
            let (string, after) = after.split_at(u32::from_le_bytes(*length) as usize);
            rest = after;
            string.to_vec()
        };
        let path = String::from_utf8(string()).expect("paths are text");
        let data = string();
        let (number, after) = rest.split_first_chunk().expect("whole records");
        rest = after;
        all.push(Done { letter: *letter, path, data, number: i64::from_le_bytes(*number) });
    }
    all
}

/// Files by their names. The name of a file and its content become durable independently of each
/// other.
#[derive(Clone, Default)]
struct Files {
    /// The file that each name refers to; `None` for a directory.
    names: BTreeMap<String, Option<usize>>,
    contents: BTreeMap<usize, Vec<u8>>,
}

/// The files as running programs see them, and the files that are certainly on the disk.
#[derive(Default)]
struct Disk {
    shown: Files,
    sure: Files,
    files: usize,
    /// For each file that was changed since its last sync, the first offset at which its content
    /// may differ from that on the disk.
    changed: BTreeMap<usize, usize>,
}

fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

impl Disk {
    fn carry_out(&mut self, done: &Done) {
        let Done { letter, path, data, number } = done;
        let file = self.shown.names.get(path).copied().flatten();
        match letter {
            b'M' => drop(self.shown.names.insert(path.clone(), None)),
            b'C' => {
                self.files += 1;
                self.shown.names.insert(path.clone(), Some(self.files));
                self.shown.contents.insert(self.files, vec![]);
                self.sure.contents.insert(self.files, vec![]);
            }
            b'W' => {
                let file = file.expect("made");
                let content = self.shown.contents.get_mut(&file).expect("made");
                let at = usize::try_from(*number).unwrap_or(content.len());
                let from = self.changed.entry(file).or_insert(at);
                *from = at.min(*from);
                content.resize(content.len().max(at + data.len()), 0);
                content[at..at + data.len()].copy_from_slice(data);
            }
            b'T' => {
                let file = file.expect("made");
                let length = *number as usize;
                self.shown.contents.get_mut(&file).expect("made").resize(length, 0);
                let from = self.changed.entry(file).or_insert(length);
                *from = length.min(*from);
            }
            b'R' => {
                let to = String::from_utf8(data.clone()).expect("paths are text");
                let file = self.shown.names.remove(path).expect("it is there");
                self.shown.names.insert(to, file);
            }
            b'U' => drop(self.shown.names.remove(path)),
            b'S' => self.sync(path, file),
            other => panic!("{other}"),
        }
    }

    fn sync(&mut self, path: &str, file: Option<usize>) {
        if let Some(file) = file {
            let from = self.changed.remove(&file).unwrap_or(usize::MAX);
            let shown = &self.shown.contents[&file];
            let sure = self.sure.contents.get_mut(&file).expect("made");
            // Only the changed end is copied, because most of a log is on the disk already.
            sure.truncate(from.min(shown.len()));
            sure.extend_from_slice(&shown[sure.len()..]);
        } else {
            self.sure.names.retain(|name, _| above(name) != path);
            let below = self.shown.names.iter().filter(|(name, _)| above(name) == path);
            self.sure.names.extend(below.map(|(name, file)| (name.clone(), *file)));
        }
    }

    /// Returns the possible disk contents after a power failure at this moment.
    fn images(&self) -> Vec<BTreeMap<String, Option<Vec<u8>>>> {
        let image = |names: &Files, content: &dyn Fn(usize) -> Vec<u8>| {
            let named = names.names.iter();
            named.map(|(name, file)| (name.clone(), file.map(content))).collect()
        };
        let sure = |file: usize| self.sure.contents[&file].clone();
        let shown = |file: usize| self.shown.contents[&file].clone();
        // Two variants of the data that was added since the last sync: only its first half is on
        // the disk, or only its length, filled with zeros.
        let torn = |file: usize| {
            let (sure, shown) = (&self.sure.contents[&file], &self.shown.contents[&file]);
            match shown.strip_prefix(sure.as_slice()) {
                Some(added) => [sure.as_slice(), &added[..added.len() / 2]].concat(),
                None => sure.clone(),
            }
        };
        let zeros = |file: usize| {
            let (sure, shown) = (&self.sure.contents[&file], &self.shown.contents[&file]);
            [sure.as_slice(), &vec![0; shown.len().saturating_sub(sure.len())]].concat()
        };
        vec![
            image(&self.sure, &sure),
            image(&self.shown, &shown),
            image(&self.shown, &sure),
            image(&self.sure, &shown),
            image(&self.shown, &torn),
            image(&self.shown, &zeros),
        ]
    }
}

/// Returns the locks and tokens in the answers that the server has sent to clients.
fn grants(sent: &[u8]) -> Vec<(String, u64)> {
    let text = String::from_utf8_lossy(sent);
    let bodies = text.split("\r\n\r\n").skip(1);
    let values = bodies.filter_map(|body| {
        serde_json::Deserializer::from_str(body).into_iter::<serde_json::Value>().next()?.ok()
    });
    let grant = |value: serde_json::Value| {
        Some((value["name"].as_str()?.to_owned(), value["token"].as_u64()?))
    };
    values.filter_map(grant).collect()
}

/// Opens the data directory of a disk image as a node does, and fails unless every lock in
/// `granted` is held with its token.
#[track_caller]
fn check(
    image: &BTreeMap<String, Option<Vec<u8>>>,
    base: &str,
    granted: &BTreeMap<String, u64>,
    at: &str,
) {
    let scratch = Scratch::new();
    let place = |path: &str| -> PathBuf {
        scratch.path().join(path.strip_prefix(base).expect("below it").trim_start_matches('/'))
    };
    for (path, content) in image {
        // A file whose directory was lost, because the name of the directory was not yet on the
        // disk, is lost as well.
        if !place(path).parent().is_some_and(Path::is_dir) {
            continue;
        }
        match content {
            None => fs::create_dir(place(path)).expect("it is new"),
            Some(bytes) => fs::write(place(path), bytes).expect("there is room"),
        }
    }
    let node = RaftNode::open(&place(&format!("{base}/data")));
    let node = node.unwrap_or_else(|error| panic!("{at}: {error}"));
    for (name, token) in granted {
        let lock = LockName::parse(name).expect("it was one");
        let view = node.inspect(|engine| engine.view(&lock, Time::ZERO));
        let found = view.holders.first().map(|holder| holder.lease.token.as_u64());
        assert_eq!(found, Some(*token), "{at}: {name}");
    }
    let highest = granted.values().max().copied().unwrap_or_default();
    assert!(node.inspect(Engine::next_token) > highest, "{at}: a token would come twice");
}

/// Runs a server under load twice, and returns the file operations that it has made.
fn work(scratch: &Scratch, dir: &Path) -> Vec<Done> {
    let shim = Shim::new(scratch, dir);
    let data = dir.canonicalize().expect("it is there").join("data");
    for round in 0..2 {
        let server = shim.serve(&data);
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let url = &server.url;
                scope.spawn(move || {
                    let mut talk = HttpConnection::to(url).expect("it listens");
                    for number in 0..GRANTS {
                        let path = format!("/locks/r{round}c{client}n{number}?client=a&ttl=1h");
                        assert_eq!(talk.request("POST", &path).expect("it answers").0, 200);
                    }
                });
            }
        });
        // The server is killed, so that the second start opens the state that a crash leaves; its
        // file operations are recorded too.
        drop(server);
    }
    read(&shim.trace)
}

/// The cases that the power loss simulations have covered: the number of syncs, the number of
/// different disk images that were checked, and the locks granted so far with their tokens.
#[derive(Default, Debug)]
struct Looked {
    syncs: usize,
    images: usize,
    granted: BTreeMap<String, u64>,
}

/// Simulates a power loss after each file operation for which `wanted` is true, and checks all
/// possible disk images.
fn examine(all: &[Done], base: &str, wanted: impl Fn(usize) -> bool) -> Looked {
    let (mut disk, mut seen, mut looked) = (Disk::default(), BTreeSet::new(), Looked::default());
    for (index, done) in all.iter().enumerate() {
        if done.letter == b'K' {
            looked.granted.extend(grants(&done.data));
            continue;
        }
        looked.syncs += usize::from(done.letter == b'S');
        // The files by which the server locks its directories against a second process are not
        // simulated: they have no content, and a power loss releases the locks on them.
        if done.path.ends_with("/lock") || done.path.ends_with("/LOCK") {
            continue;
        }
        disk.carry_out(done);
        if !wanted(index) {
            continue;
        }
        for (kind, image) in disk.images().iter().enumerate() {
            let mut hasher = DefaultHasher::new();
            (image, &looked.granted).hash(&mut hasher);
            if seen.insert(hasher.finish()) {
                looked.images += 1;
                let path = done.path.strip_prefix(base).unwrap_or_default();
                let letter = char::from(done.letter);
                let at = format!("{index} ({letter} {path}), image {kind}");
                check(image, base, &looked.granted, &at);
            }
        }
    }
    looked
}

#[test]
fn no_power_loss_loses_acknowledged_changes() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("watched");
    fs::create_dir(&dir).expect("a fresh name");
    let all = work(&scratch, &dir);
    let base = dir.canonicalize().expect("it is there").display().to_string();
    let Looked { syncs, images, granted } = examine(&all, &base, |_| true);
    println!("{} steps, {syncs} syncs, {images} images, {} grants", all.len(), granted.len());
    assert_eq!(granted.len() as u64, 2 * CLIENTS * GRANTS, "the answers were seen");
    // The check finds missing syncs: it fails if those of the log, or those of the data directory,
    // are left out.
    for forgotten in [".wal", "/data"] {
        let is_sync = |done: &Done| done.letter == b'S' && done.path.ends_with(forgotten);
        assert!(all.iter().any(is_sync), "{forgotten} is synced");
        let kept: Vec<_> = all.iter().filter(|done| !is_sync(done)).cloned().collect();
        let found = catch_unwind(AssertUnwindSafe(|| examine(&kept, &base, |_| true)));
        assert!(found.is_err(), "without the syncs of {forgotten} all was there");
    }
}

/// While a snapshot replaces a part of the log, each entry is in the snapshot, in the log, or in
/// both.
#[test]
fn no_power_loss_loses_entries_between_snapshot_and_log() {
    /// The number of lock requests, each of which is a log entry: a few more than the number of
    /// entries after which the server makes a snapshot.
    const ENTRIES: usize = 10_050;
    /// The test simulates a power loss after each file operation on a snapshot, and after this many
    /// operations before and after it.
    const BESIDE: usize = 3;
    let scratch = Scratch::new();
    let dir = scratch.path().join("watched");
    fs::create_dir(&dir).expect("a fresh name");
    let base = dir.canonicalize().expect("it is there").display().to_string();
    let shim = Shim::new(&scratch, &dir);
    let server = shim.serve(Path::new(&format!("{base}/data")));
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    for number in 0..ENTRIES {
        let path = format!("/locks/n{number}?client=a&ttl=1h");
        assert_eq!(talk.request("POST", &path).expect("it answers").0, 200);
    }
    drop(server);
    let all = read(&shim.trace);
    let is_snapshot = |done: &Done| done.path.contains("/data/snapshot");
    let touched: Vec<_> =
        all.iter().enumerate().filter(|(_, done)| is_snapshot(done)).map(|(at, _)| at).collect();
    assert!(!touched.is_empty(), "the log was long enough for a snapshot");
    let near = |index: usize| touched.iter().any(|at| at.abs_diff(index) <= BESIDE);
    let Looked { syncs, images, granted } = examine(&all, &base, near);
    println!("{} steps, {syncs} syncs, {images} images, {} grants", all.len(), granted.len());
    assert_eq!(granted.len(), ENTRIES, "the answers were seen");
}

/// While the log goes on in a new file, each entry is in one of its files.
#[test]
fn no_power_loss_loses_entries_when_the_log_begins_a_file() {
    /// With a note of 1,000 bytes each, these grants fill a file of 16 MiB.
    const GRANTS_EACH: usize = 1_300;
    const CLIENTS: usize = 16;
    /// The number of checked steps before and after the first step of the new file.
    const BESIDE: usize = 2;
    let scratch = Scratch::new();
    let dir = scratch.path().join("watched");
    fs::create_dir(&dir).expect("a fresh name");
    let base = dir.canonicalize().expect("it is there").display().to_string();
    let shim = Shim::new(&scratch, &dir);
    let server = shim.serve(Path::new(&format!("{base}/data")));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let url = &server.url;
            scope.spawn(move || {
                let mut talk = HttpConnection::to(url).expect("it listens");
                let note = "n".repeat(1_000);
                for number in 0..GRANTS_EACH {
                    let path = format!("/locks/c{client}n{number}?client=a&ttl=1h&note={note}");
                    assert_eq!(talk.request("POST", &path).expect("it answers").0, 200);
                }
            });
        }
    });
    drop(server);
    let all = read(&shim.trace);
    let is_log = |done: &Done| Path::new(&done.path).extension().is_some_and(|end| end == "wal");
    let begins = |done: &Done| done.letter == b'C' && is_log(done);
    let begun: Vec<_> =
        all.iter().enumerate().filter(|(_, done)| begins(done)).map(|(at, _)| at).collect();
    assert!(begun.len() >= 2, "the log has {} files", begun.len());
    let near = |index: usize| begun[1..].iter().any(|at| at.abs_diff(index) <= BESIDE);
    let Looked { syncs, images, granted } = examine(&all, &base, near);
    println!("{} steps, {syncs} syncs, {images} images, {} grants", all.len(), granted.len());
    assert_eq!(granted.len(), CLIENTS * GRANTS_EACH, "the answers were seen");
}
