//! The model: machines with their copies, ledgers and tenures, and the lock service.
//!
//! One machine's copy of the folder: two files, each a version by number or absent.
//!
//! Visits all states that are reached by at most so many moves, the nearest first.

use super::super::folder_path::FolderPath;
use super::super::handover::{
    Handover, HandoverEnd, HandoverId, HandoverKind, MarkerCounts, PreviousTenure, Remembered,
};
use super::super::ignored::IgnoreRules;
use super::super::ledger::{Ledger, LedgerEntry};
use super::super::marker::{Change, Marker, PathState};
use super::super::marking::TenureMarking;
use super::{BarrierSetup, Ignored};
use crate::chain::MarkerFiles;
use crate::folder_path::{ContentDigest, FileStamp, FolderTree, FoundFile};
use crate::marker::{MarkerKind, MarkerLink, MarkerName};
use crate::tenure_id::TenureId;
use engine::Token;
use foldhash::quality::RandomState;
use foldhash::{HashMap, HashMapExt as _};
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::io;
use std::rc::Rc;

const MACHINES_MOST: usize = 3;
const VERSIONS_MOST: usize = 12;
pub(super) const ENGINE: u64 = 1;
pub(super) const NAMES: [&str; MACHINES_MOST] = ["laptop0", "laptop1", "laptop2"];

/// Values that states name by number, so that states are small.
#[derive(Debug)]
pub(super) struct Interned<T> {
    numbers: HashMap<Rc<T>, u32>,
    values: Vec<Rc<T>>,
}

impl<T: Eq + Hash> Interned<T> {
    fn new() -> Self {
        Self { numbers: HashMap::new(), values: Vec::new() }
    }

    pub(super) fn put(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let (value, number) = (Rc::new(value), self.values.len() as u32);
        self.values.push(Rc::clone(&value));
        self.numbers.insert(value, number);
        number
    }

    pub(super) fn get(&self, number: u32) -> Rc<T> {
        Rc::clone(&self.values[number as usize])
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TenurePhase {
    Arriving,
    /// The tenure is ready. The number of its `TenureMarking`.
    Ready(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Machine {
    /// The version of each path.
    pub(super) files: [u8; PATHS],
    /// The number of the set of markers that are here.
    pub(super) markers: u32,
    pub(super) ledger: u32,
    pub(super) tenure: Option<(u8, TenurePhase)>,
    /// An older state of files and ledger.
    pub(super) image: Option<([u8; PATHS], u32)>,
}

/// How often each event may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) writes: u8,
    pub(super) crashes: u8,
    pub(super) restores: u8,
    pub(super) accepts: u8,
    pub(super) foreign: u8,
    pub(super) losses: u8,
    pub(super) images: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ModelState {
    pub(super) lock: Option<u8>,
    pub(super) token: u8,
    /// The number of what the lock service says about the last tenure.
    pub(super) previous: u32,
    pub(super) next_id: u8,
    pub(super) machines: [Machine; MACHINES_MOST],
    /// The version that each version replaced.
    pub(super) parents: [u8; VERSIONS_MOST],
    pub(super) versions: u8,
    /// The versions in which the path is absent, as bits.
    pub(super) absent: u16,
    /// The last published or accepted version of each path.
    pub(super) latest: [u8; PATHS],
    pub(super) left: Left,
    /// The backup of the lock service.
    pub(super) saved: Option<u32>,
}

impl ModelState {
    /// Returns the contents of versions.
    pub(super) fn contents(&self, files: [u8; PATHS]) -> Contents {
        files.map(|version| if self.absent & 1 << version == 0 { version } else { 0 })
    }

    /// Whether a version is another one, or was replaced by it.
    pub(super) fn is_ancestor(&self, version: u8, of: u8) -> bool {
        let mut at = of;
        while at > version {
            at = self.parents[usize::from(at)];
        }
        at == version
    }

    /// Adds a version that replaces another one.
    pub(super) fn add_version(&mut self, parent: u8, is_absent: bool) -> u8 {
        let version = self.versions;
        self.parents[usize::from(version)] = parent;
        self.absent |= u16::from(is_absent) << version;
        self.versions += 1;
        version
    }

    pub(super) fn take_id(&mut self) -> HandoverId {
        self.next_id += 1;
        HandoverId(u128::from(self.next_id - 1))
    }
}

/// The result of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decided {
    /// The folder is ready. The number of the ledger.
    Ready(u32),
    NotArrived,
    Unsure,
}

/// The result of writing a marker: the marker, and the numbers of the ledger and of the set of
/// markers with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub(super) marker: u32,
    pub(super) ledger: u32,
    /// The paths that the marker names or should name, as bits.
    pub(super) names: u8,
}

/// The inputs of a decision: the numbers of the ledger, of the last tenure and of the markers.
pub(super) type DecisionKey = (u32, u32, u32, Contents, u8);
/// The inputs of a marker: the ledger, the files, token, number, whether it is the last one, and
/// its kind.
pub(super) type MarkerKey = (u32, Contents, u8, u64, bool, MarkerKind);

/// The model, with the values that states name by number.
pub(super) struct BarrierWorld {
    pub(super) setup: BarrierSetup,
    pub(super) ledgers: Interned<Ledger>,
    pub(super) previous: Interned<PreviousTenure>,
    pub(super) markings: Interned<TenureMarking>,
    /// The file name and the bytes of each marker.
    pub(super) markers: Interned<(String, Vec<u8>)>,
    pub(super) sets: Interned<Vec<u32>>,
    /// The markers of each set, as they are read.
    pub(super) read: HashMap<u32, Rc<MarkerFiles>>,
    pub(super) decided: HashMap<DecisionKey, Decided>,
    pub(super) written: HashMap<MarkerKey, Written>,
    pub(super) rules: IgnoreRules,
}

pub(super) fn tenure(token: u8) -> TenureId {
    TenureId { engine: ENGINE, token: Token::named(u64::from(token)) }
}

impl BarrierWorld {
    pub(super) fn new(setup: BarrierSetup) -> Self {
        Self {
            setup,
            ledgers: Interned::new(),
            previous: Interned::new(),
            markings: Interned::new(),
            markers: Interned::new(),
            sets: Interned::new(),
            read: HashMap::new(),
            decided: HashMap::new(),
            written: HashMap::new(),
            rules: if setup.ignored == Ignored::Everything {
                IgnoreRules::parse("*").expect("valid")
            } else {
                IgnoreRules::default()
            },
        }
    }

    /// Returns the markers of a set, read from their bytes.
    pub(super) fn files(&mut self, set: u32) -> Rc<MarkerFiles> {
        let (sets, markers) = (&self.sets, &self.markers);
        let read = self.read.entry(set).or_insert_with(|| {
            let mut files = MarkerFiles::new("f");
            for number in &*sets.get(set) {
                let marker = markers.get(*number);
                files.add(&marker.0, &marker.1).expect("a marker of this folder");
            }
            Rc::new(files)
        });
        Rc::clone(read)
    }

    /// Returns the set with one marker more.
    pub(super) fn with_marker(&mut self, set: u32, marker: u32) -> u32 {
        let mut with = Vec::clone(&self.sets.get(set));
        if let Err(at) = with.binary_search(&marker) {
            with.insert(at, marker);
        }
        self.sets.put(with)
    }

    pub(super) fn put_marker(&mut self, marker: &Marker) -> (u32, MarkerLink) {
        let bytes = marker.write().expect("memory suffices");
        let link = MarkerLink { name: marker.name, digest: ContentDigest::of(&bytes) };
        (self.markers.put((link.file_name(), bytes)), link)
    }

    /// Records a handover as the lock service does, from its text.
    pub(super) fn set_handover(
        &mut self,
        state: &mut ModelState,
        machine: usize,
        handover: &Handover,
    ) {
        let text = handover.to_string();
        let (token, _) = state.machines[machine].tenure.expect("only a tenure sets a handover");
        state.previous = self.previous.put(PreviousTenure {
            seq: 0,
            token: Token::named(u64::from(token)),
            client: NAMES[machine].to_owned(),
            at: 0,
            end: HandoverEnd::Open,
            handover: Remembered::read(Some(&text)),
        });
    }

    /// Returns the state in which the first machine has made the folder a guarded one.
    pub(super) fn start(&mut self) -> ModelState {
        let name = MarkerName { kind: MarkerKind::Checkpoint, tenure: tenure(1), number: 1 };
        let of = |at: usize, version: u8| Change {
            path: path(at),
            state: PathState::File { size: 1, digest: digest(version), mode: 0o644 },
            is_foreign: false,
        };
        let checkpoint = Marker {
            name,
            folder: "f".to_owned(),
            lock: "l".to_owned(),
            holder: NAMES[0].to_owned(),
            previous: None,
            checkpoint: None,
            at: 0,
            is_last: false,
            accepted: None,
            ignore: None,
            changes: vec![of(0, 1), of(1, 2)],
        };
        let (marker, link) = self.put_marker(&checkpoint);
        let mut ledger = Ledger::default();
        for (at, version) in [(0, 1), (1, 2)] {
            let entry = LedgerEntry {
                stamp: stamp(version).expect("not absent"),
                digest: digest(version),
                from: name,
            };
            ledger.update(vec![(path(at), Some(entry))]);
        }
        (ledger.verified, ledger.checkpoint) = (Some(link), Some(link));
        ledger.record_own(HandoverId(0));
        let (kind, counts) = (HandoverKind::Clean, MarkerCounts::default());
        let handover = Handover { id: HandoverId(0), kind, next: 2, marker: Some(link), counts };
        let previous = self.previous.put(PreviousTenure {
            seq: 0,
            token: Token::named(1),
            client: NAMES[0].to_owned(),
            at: 0,
            end: HandoverEnd::Released,
            handover: Remembered::Handover(handover),
        });
        let (none, first) = (self.sets.put(vec![]), self.sets.put(vec![marker]));
        let mut others = Ledger::default();
        if self.setup.have_arrived {
            others = Ledger { own: VecDeque::new(), ..ledger.clone() };
        }
        let (others, ledger) = (self.ledgers.put(others), self.ledgers.put(ledger));
        let of =
            |files, markers, ledger| Machine { files, markers, ledger, tenure: None, image: None };
        let other = if self.setup.have_arrived {
            of([1, 2], first, others)
        } else {
            of([0, 0], none, others)
        };
        let setup = &self.setup;
        ModelState {
            lock: None,
            token: 1,
            previous,
            next_id: 1,
            machines: [of([1, 2], first, ledger), other, other],
            parents: [0; VERSIONS_MOST],
            versions: 3,
            absent: 1,
            latest: [1, 2],
            left: Left {
                writes: setup.writes,
                crashes: setup.crashes,
                restores: setup.restores,
                accepts: setup.accepts,
                foreign: setup.foreign,
                losses: setup.losses,
                images: setup.images,
            },
            saved: None,
        }
    }
}

/// The number of paths.
pub(super) const PATHS: usize = 2;
/// How each path stands: the number of a version, 0 if it is absent.
pub(super) type Contents = [u8; PATHS];

/// Returns the path with this number.
pub(super) fn path(at: usize) -> FolderPath {
    FolderPath::parse(["a", "b"][at]).expect("valid")
}

/// Returns the number of a path.
pub(super) fn number(path: &FolderPath) -> usize {
    usize::from(path.as_str() == "b")
}

/// Returns the digest of a version. All versions have one size.
pub(super) fn digest(version: u8) -> ContentDigest {
    ContentDigest::of(&[version])
}

/// Returns what tells a version apart; `None` if it is absent.
pub(super) fn stamp(version: u8) -> Option<FileStamp> {
    let inode = u64::from(version);
    (version > 0).then_some(FileStamp { size: 1, mtime: i128::from(version), inode })
}

/// Returns how a ledger, with its log, says that a path stands.
pub(super) fn known(ledger: &Ledger, at: usize) -> u8 {
    let entry = || ledger.entry(&path(at)).map(|entry| entry.stamp);
    let known = ledger.log().get(&path(at)).map_or_else(entry, |change| change.after);
    known.map_or(0, |stamp| stamp.inode as u8)
}

/// A copy of the folder.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelFolder {
    pub(super) contents: Contents,
    /// The digests that a comparison by size would take for those of the files.
    pub(super) assumed: Option<[ContentDigest; PATHS]>,
}

impl FolderTree for ModelFolder {
    fn walk(&mut self, visit: &mut dyn FnMut(FolderPath, FoundFile)) -> io::Result<()> {
        for at in 0..PATHS {
            if let Some(found) = self.find(&path(at))? {
                visit(path(at), found);
            }
        }
        Ok(())
    }

    fn find(&mut self, path: &FolderPath) -> io::Result<Option<FoundFile>> {
        let stamp = stamp(self.contents[number(path)]);
        let of = |stamp| FoundFile { stamp, changed: 0, mode: 0o644, is_downloaded: true };
        Ok(stamp.map(of))
    }

    fn is_hidden(&mut self, _: &FolderPath) -> io::Result<bool> {
        Ok(false)
    }

    fn digest(&mut self, path: &FolderPath, _: &FoundFile) -> io::Result<Option<ContentDigest>> {
        let at = number(path);
        let of = || digest(self.contents[at]);
        Ok(Some(self.assumed.map_or_else(of, |assumed| assumed[at])))
    }
}

/// The result of an exploration.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    /// How many moves make a tenure ready without an acceptance.
    pub(super) ready: usize,
    /// The number of moves after which the exploration ended.
    pub(super) moves: u32,
    /// The first violation, with the moves that lead to it.
    pub(super) violation: Option<String>,
}

/// Explores all runs of a setup, until a move violates a guarantee.
pub(super) fn explore(setup: BarrierSetup) -> Explored {
    let mut world = BarrierWorld::new(setup);
    let hashers = [RandomState::default(), RandomState::default()];
    let key = |state: &ModelState| {
        let [low, high] = [0, 1].map(|at: usize| u128::from(hashers[at].hash_one(state)));
        high << 64 | low
    };
    let start = world.start();
    let mut seen = HashSet::from([key(&start)]);
    // For each visited state the one before it, and the move between them.
    let mut came_by: Vec<(u32, &'static str, u8)> = vec![(0, "", 0)];
    let mut nearest = vec![(start, 0_u32)];
    let mut explored = Explored { states: 1, ready: 0, moves: 0, violation: None };
    let mut next = Vec::new();
    while explored.moves < setup.moves && !nearest.is_empty() {
        explored.moves += 1;
        for (state, at) in nearest.drain(..) {
            for made in world.moves(&state) {
                explored.ready += usize::from(made.what == "becomes ready");
                if let Some(violation) = made.violation {
                    let mut lines = vec![format!("{} {}", made.machine, made.what)];
                    let mut at = at;
                    while at > 0 {
                        let (before, what, machine) = came_by[at as usize];
                        lines.push(format!("{machine} {what}"));
                        at = before;
                    }
                    lines.push(violation.to_owned());
                    lines.reverse();
                    explored.violation = Some(lines.join("\n"));
                    return explored;
                }
                if seen.insert(key(&made.state)) {
                    explored.states += 1;
                    came_by.push((at, made.what, made.machine));
                    next.push((made.state, came_by.len() as u32 - 1));
                }
            }
        }
        std::mem::swap(&mut nearest, &mut next);
    }
    explored
}
