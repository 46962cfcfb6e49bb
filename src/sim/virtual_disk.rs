//! A virtual disk: a journal of writes and one file for the snapshot. Of the writes that were not
//! synced, a crash keeps the first few, or none, or all. A sync may fail; the disk is then unusable
//! until the node restarts.

use super::planted_bugs::{PlantedBug, planted};
use super::seeded_random::SeededRandom;
use super::sim_types::{now, sleep};
use crate::raft::types::{LogId, Vote};
use crate::time::{Span, Time};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

/// How long a large snapshot takes at most to be written, or read.
pub(super) const SNAPSHOT_TAKES_MAX: Span = Span::from_secs(6);

/// One write to the journal.
#[derive(Debug, Clone)]
pub(super) enum Write {
    Vote(Vote),
    Committed(LogId),
    /// An entry, as the bytes that a real log would hold.
    Entry(LogId, Arc<[u8]>),
    /// Entries from this index on are no more.
    Truncate(u64),
    /// Entries up to this one are in a snapshot.
    Purge(LogId),
}

/// The contents of the disk after its writes.
#[derive(Debug, Clone, Default)]
pub(super) struct DiskContents {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) entries: BTreeMap<u64, (LogId, Arc<[u8]>)>,
}

impl DiskContents {
    fn change(&mut self, write: Write) {
        match write {
            Write::Vote(vote) => self.vote = Some(vote),
            Write::Committed(id) => self.committed = Some(id),
            Write::Entry(id, bytes) => drop(self.entries.insert(id.index, (id, bytes))),
            Write::Truncate(from) => drop(self.entries.split_off(&from)),
            Write::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = Some(upto);
            }
        }
    }

    /// The last entry, or the last that was purged.
    pub(super) fn last(&self) -> Option<LogId> {
        self.entries.last_key_value().map(|(_, (id, _))| *id).or(self.purged)
    }
}

/// The disk of one machine. Cheap to clone. It outlives the nodes that run on it.
#[derive(Clone)]
pub(super) struct Disk {
    state: Arc<Mutex<DiskState>>,
    dice: SeededRandom,
}

struct DiskState {
    /// As a reader sees it.
    seen: DiskContents,
    /// As a crash leaves it, at least.
    synced: DiskContents,
    /// Written and not synced, with a number that rises.
    pending: VecDeque<(u64, Write)>,
    written: u64,
    /// The snapshot, and up to which entry it knows the log.
    snapshot: Option<(Option<LogId>, Arc<[u8]>)>,
    /// Which run of the node may use it: those before are dead.
    run: u64,
    health: Health,
    /// When a node was told that a sync has failed.
    failed_at: Option<Time>,
    last_crash: DiskCrash,
}

/// The state of a disk at the last crash of its machine.
#[derive(Clone, Copy, Default)]
pub(super) struct DiskCrash {
    /// The last entry that was synced.
    pub(super) synced: Option<LogId>,
    /// Whether a sync had failed.
    pub(super) had_failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    /// The next sync fails.
    Failing,
    /// One has failed: nothing works until a restart.
    Failed,
}

/// A disk as one run of a node has it open.
#[derive(Clone)]
pub(super) struct OpenDisk {
    disk: Disk,
    run: u64,
}

impl Disk {
    pub(super) fn new(dice: &SeededRandom) -> Self {
        let state = DiskState {
            seen: DiskContents::default(),
            synced: DiskContents::default(),
            pending: VecDeque::new(),
            written: 0,
            snapshot: None,
            run: 0,
            health: Health::Well,
            failed_at: None,
            last_crash: DiskCrash::default(),
        };
        Self { state: Arc::new(Mutex::new(state)), dice: dice.clone() }
    }

    /// Opens it for a node that starts.
    pub(super) fn open(&self) -> OpenDisk {
        let mut state = self.state.lock();
        state.run += 1;
        state.health = Health::Well;
        state.failed_at = None;
        OpenDisk { disk: self.clone(), run: state.run }
    }

    /// The machine loses its power: some of what was not synced is there, in order, or nothing.
    pub(super) fn crash(&self) {
        let mut state = self.state.lock();
        let DiskState { seen, synced, pending, run, health, last_crash, .. } = &mut *state;
        *run += 1;
        let had_failed = *health != Health::Well;
        *last_crash = DiskCrash { synced: synced.last(), had_failed };
        let kept = self.dice.index(pending.len() + 1);
        for (_, write) in pending.drain(..).take(kept) {
            synced.change(write);
        }
        if planted(PlantedBug::VoteLost) {
            synced.vote = None;
        }
        if planted(PlantedBug::TailLost) {
            let last = synced.entries.keys().next_back().copied().unwrap_or_default();
            drop(synced.entries.split_off(&last.saturating_sub(2)));
            synced.committed = None;
        }
        *seen = synced.clone();
        if planted(PlantedBug::DiskLost) && self.dice.percent(50) {
            (state.seen, state.synced) = (DiskContents::default(), DiskContents::default());
            state.snapshot = None;
        }
    }

    /// Returns its state at the last crash of the machine.
    pub(super) fn last_crash(&self) -> DiskCrash {
        self.state.lock().last_crash
    }

    /// Returns when a sync has failed since the node started, if one has.
    pub(super) fn failed_at(&self) -> Option<Time> {
        self.state.lock().failed_at
    }

    /// The next sync fails.
    pub(super) fn fail(&self) {
        self.state.lock().health = Health::Failing;
    }
}

impl OpenDisk {
    /// Shows the files to `look`. A node that is dead sees nothing: the disk is another run's.
    pub(super) fn look<T>(&self, look: impl FnOnce(&DiskContents) -> T) -> io::Result<T> {
        let state = self.disk.state.lock();
        self.usable(&state)?;
        Ok(look(&state.seen))
    }

    /// Writes, without syncing. The number is what a sync must cover.
    pub(super) fn write(&self, writes: impl IntoIterator<Item = Write>) -> io::Result<u64> {
        let mut state = self.disk.state.lock();
        self.usable(&state)?;
        for write in writes {
            state.written += 1;
            let number = state.written;
            state.seen.change(write.clone());
            state.pending.push_back((number, write));
        }
        Ok(state.written)
    }

    /// Returns when all up to a number is on the disk.
    pub(super) async fn sync(&self, upto: u64) -> io::Result<()> {
        let takes = self.disk.sync_takes();
        if planted(PlantedBug::SyncSkipped) {
            return Ok(());
        }
        sleep(takes).await;
        let mut state = self.disk.state.lock();
        self.usable(&state)?;
        if state.health == Health::Failing && !planted(PlantedBug::DiskErrorIgnored) {
            state.health = Health::Failed;
            state.failed_at = Some(now());
            return Err(io::Error::other("the disk has failed"));
        }
        let DiskState { pending, synced, health, .. } = &mut *state;
        while pending.front().is_some_and(|(number, _)| *number <= upto) {
            let (_, write) = pending.pop_front().expect("there is one");
            // A write whose sync has failed is lost, even if the node takes it for synced.
            if *health == Health::Well {
                synced.change(write);
            }
        }
        Ok(())
    }

    /// Puts a snapshot in the place of the one before, whole or not at all, unless that one is
    /// newer: one that was built may be late while another is installed.
    pub(super) async fn put_snapshot(
        &self,
        upto: Option<LogId>,
        bytes: Arc<[u8]>,
    ) -> io::Result<()> {
        sleep(self.disk.snapshot_takes()).await;
        let mut state = self.disk.state.lock();
        self.usable(&state)?;
        let is_newer = |(there, _): &(Option<LogId>, _)| *there > upto;
        if !state.snapshot.as_ref().is_some_and(is_newer) || planted(PlantedBug::OlderSnapshotWins)
        {
            state.snapshot = Some((upto, bytes));
        }
        Ok(())
    }

    /// The snapshot, if there is one.
    pub(super) fn snapshot(&self) -> Option<Arc<[u8]>> {
        self.disk.state.lock().snapshot.as_ref().map(|(_, bytes)| Arc::clone(bytes))
    }

    /// Up to which entry the snapshot knows the log.
    pub(super) fn snapshot_upto(&self) -> Option<LogId> {
        self.disk.state.lock().snapshot.as_ref().and_then(|(upto, _)| *upto)
    }

    /// Reads the snapshot, which takes its time.
    pub(super) async fn read_snapshot(&self) -> io::Result<Option<Arc<[u8]>>> {
        sleep(self.disk.snapshot_takes()).await;
        self.usable(&self.disk.state.lock())?;
        Ok(self.snapshot())
    }

    fn usable(&self, state: &DiskState) -> io::Result<()> {
        if state.run != self.run {
            return Err(io::Error::other("the machine has crashed"));
        }
        if state.health == Health::Failed {
            return Err(io::Error::other("the disk has failed"));
        }
        Ok(())
    }
}

impl Disk {
    /// A large snapshot takes seconds.
    fn snapshot_takes(&self) -> Span {
        if self.dice.percent(30) {
            self.dice.millis(200, SNAPSHOT_TAKES_MAX.as_millis())
        } else {
            self.sync_takes()
        }
    }

    /// Most syncs take a millisecond or two; some take long.
    fn sync_takes(&self) -> Span {
        if self.dice.percent(3) { self.dice.millis(20, 120) } else { self.dice.millis(0, 3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_dead_sees_nothing_of_the_disk() {
        let disk = Disk::new(&SeededRandom::new(1));
        let dead = disk.open();
        assert!(dead.look(|_| ()).is_ok());
        disk.crash();
        assert!(dead.look(|_| ()).is_err());
        let alive = disk.open();
        assert!(alive.look(|_| ()).is_ok() && dead.look(|_| ()).is_err());
    }
}
