//! A virtual disk: a journal of writes and one snapshot file. Of the unsynced writes, a crash keeps
//! a random prefix. A sync may fail; the disk is then unusable until the node restarts.
//!
//! The Raft log on a virtual disk, behind openraft's storage traits. It follows the rules of the
//! real log: entries are readable once they are appended, reported to openraft once they are
//! synced, and votes and entries are written in one order.

use crate::checks::recorder::Record;
use crate::machines::virtual_environment::{SeededRandom, SimTypeConfig, now, sleep};
use crate::planted_bugs::{PlantedBug, planted};
use latchfs::raft::store::snapshot::{Entry, LogId, NodeId, Vote, entry_bytes, read_payload};
use latchfs::time::{Span, Time};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

/// The longest time that a large snapshot takes to be written or read.
pub const SNAPSHOT_TAKES_MAX: Span = Span::from_secs(6);

/// One write to the journal.
#[derive(Debug, Clone)]
pub enum Write {
    Vote(Vote),
    Committed(LogId),
    /// A log entry, encoded as in a real log.
    Entry(LogId, Arc<[u8]>),
    /// Removes the entries from the contained index on.
    Truncate(u64),
    /// Removes the entries up to and including the contained one, which a snapshot covers.
    Purge(LogId),
}

/// The contents of the disk after its writes.
#[derive(Debug, Clone, Default)]
pub struct DiskContents {
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    pub purged: Option<LogId>,
    pub entries: BTreeMap<u64, (LogId, Arc<[u8]>)>,
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

    /// Returns the id of the last entry, or of the last purged one if there is none.
    pub fn last(&self) -> Option<LogId> {
        self.entries.last_key_value().map(|(_, (id, _))| *id).or(self.purged)
    }
}

/// The disk of one machine. Cheap to clone. It outlives the nodes that run on it.
#[derive(Clone)]
pub struct VirtualDisk {
    state: Arc<Mutex<DiskState>>,
    dice: SeededRandom,
}

struct DiskState {
    /// The contents as the running node reads them, with unsynced writes.
    seen: DiskContents,
    /// The synced contents, which survive a crash.
    synced: DiskContents,
    /// Writes that are not synced, each with its sequence number. Sequence numbers rise with each
    /// write.
    pending: VecDeque<(u64, Write)>,
    written: u64,
    /// The snapshot, and the last entry that it contains.
    snapshot: Option<(Option<LogId>, Arc<[u8]>)>,
    /// The number of the node's current run, which may use the disk. Calls by an earlier run, which
    /// has crashed, fail.
    run: u64,
    health: Health,
    /// When a sync failed and the failure was reported to the node, if that has happened in this
    /// run.
    failed_at: Option<Time>,
    last_crash: DiskCrash,
}

/// The state of a disk at the last crash of its machine.
#[derive(Clone, Copy, Default)]
pub struct DiskCrash {
    /// The last entry that was synced before the crash.
    pub synced: Option<LogId>,
    /// Whether a sync had failed before the crash.
    pub had_failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    Failing,
    /// A sync has failed. Every further call fails until the node restarts.
    Failed,
}

/// A handle by which one run of a node uses the disk. Its calls fail once that run has ended.
#[derive(Clone)]
pub struct OpenDisk {
    disk: VirtualDisk,
    run: u64,
}

impl VirtualDisk {
    pub fn new(dice: &SeededRandom) -> Self {
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

    /// Opens the disk for a new run of the node.
    pub fn open(&self) -> OpenDisk {
        let mut state = self.state.lock();
        state.run += 1;
        state.health = Health::Well;
        state.failed_at = None;
        OpenDisk { disk: self.clone(), run: state.run }
    }

    /// Simulates a power loss: of the unsynced writes a random prefix survives, which may be empty
    /// or complete.
    pub fn crash(&self) {
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

    /// Returns the state of the disk at the last crash of the machine.
    pub fn last_crash(&self) -> DiskCrash {
        self.state.lock().last_crash
    }

    /// Returns the time at which a sync has failed since the node started, if one has.
    pub fn failed_at(&self) -> Option<Time> {
        self.state.lock().failed_at
    }

    pub fn fail(&self) {
        self.state.lock().health = Health::Failing;
    }
}

impl OpenDisk {
    /// Calls `query` with the contents of the disk. Fails if this handle's run of the node has
    /// ended.
    pub fn read<T>(&self, query: impl FnOnce(&DiskContents) -> T) -> io::Result<T> {
        let state = self.disk.state.lock();
        self.usable(&state)?;
        Ok(query(&state.seen))
    }

    /// Appends writes that are not synced yet. Returns the sequence number of the last of these
    /// writes; [`Self::sync`] takes it to sync all of them.
    pub fn write(&self, writes: impl IntoIterator<Item = Write>) -> io::Result<u64> {
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

    /// Syncs all writes up to the one with the sequence number `upto`.
    pub async fn sync(&self, upto: u64) -> io::Result<()> {
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
            // A write whose sync has failed is lost, even if the node believes that it is synced.
            if *health == Health::Well {
                synced.change(write);
            }
        }
        Ok(())
    }

    /// Replaces the snapshot atomically, unless the present one is newer: a snapshot build may
    /// finish late, after another snapshot was installed.
    pub async fn put_snapshot(&self, upto: Option<LogId>, bytes: Arc<[u8]>) -> io::Result<()> {
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

    /// Returns the snapshot, if there is one.
    pub fn snapshot(&self) -> Option<Arc<[u8]>> {
        self.disk.state.lock().snapshot.as_ref().map(|(_, bytes)| Arc::clone(bytes))
    }

    /// Returns the last entry that the snapshot contains.
    pub fn snapshot_upto(&self) -> Option<LogId> {
        self.disk.state.lock().snapshot.as_ref().and_then(|(upto, _)| *upto)
    }

    /// Reads the snapshot, with the delay of a real read.
    pub async fn read_snapshot(&self) -> io::Result<Option<Arc<[u8]>>> {
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

impl VirtualDisk {
    /// Returns how long a snapshot takes to be read or written: up to seconds, if it is a large
    /// one.
    fn snapshot_takes(&self) -> Span {
        if self.dice.percent(30) {
            self.dice.millis(200, SNAPSHOT_TAKES_MAX.as_millis())
        } else {
            self.sync_takes()
        }
    }

    /// Returns how long a sync takes: mostly up to 3 ms, and in 3 % of all cases 20 to 120 ms.
    fn sync_takes(&self) -> Span {
        if self.dice.percent(3) { self.dice.millis(20, 120) } else { self.dice.millis(0, 3) }
    }
}

/// The Raft log of one run of a node.
#[derive(Clone)]
pub struct VirtualLog {
    pub node: NodeId,
    pub disk: OpenDisk,
    /// The record of the entries and votes that the node has acknowledged.
    pub record: Arc<Record>,
}

impl VirtualLog {
    async fn write_durably(&self, write: Write) -> io::Result<()> {
        let written = self.disk.write([write])?;
        self.disk.sync(written).await
    }
}

impl VirtualLog {
    /// Syncs the writes up to number `written`. Then records that the node has acknowledged the log
    /// up to the entry `last`, unless that entry was truncated meanwhile.
    async fn sync(&self, written: u64, last: Option<LogId>) -> io::Result<()> {
        self.disk.sync(written).await?;
        let there = |id: &LogId| {
            let is_there =
                |files: &DiskContents| files.entries.get(&id.index).is_some_and(|(at, _)| at == id);
            self.disk.read(is_there).unwrap_or(false)
        };
        if let Some(last) = last.filter(there) {
            self.record.promised(self.node, last);
        }
        Ok(())
    }
}

impl RaftLogReader<SimTypeConfig> for VirtualLog {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<Entry>> {
        self.disk.read(|files| {
            let read = |(log_id, bytes): &(LogId, Arc<[u8]>)| {
                let payload = read_payload(bytes)?;
                Ok(Entry { log_id: *log_id, payload })
            };
            files.entries.range(range).map(|(_, entry)| read(entry)).collect()
        })?
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.disk.read(|files| files.vote)
    }
}

impl RaftLogStorage<SimTypeConfig> for VirtualLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<SimTypeConfig>> {
        let state = |files: &DiskContents| LogState {
            last_purged_log_id: files.purged,
            last_log_id: files.last(),
        };
        self.disk.read(state)
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.write_durably(Write::Vote(*vote)).await?;
        self.record.voted(self.node, *vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed else { return Ok(()) };
        self.disk.write([Write::Committed(committed)]).map(drop)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.disk.read(|files| files.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<SimTypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let write = |entry: Entry| Write::Entry(entry.log_id, entry_bytes(entry.payload));
        let entries: Vec<_> = entries.into_iter().collect();
        let last = entries.last().map(|entry| entry.log_id);
        let written = self.disk.write(entries.into_iter().map(write))?;
        let log = self.clone();
        SimTypeConfig::spawn(async move { callback.io_completed(log.sync(written, last).await) });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.record.truncated(self.node, last);
        let from = last.map_or(0, |last| last.index + 1);
        self.write_durably(Write::Truncate(from)).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.disk.write([Write::Purge(upto)]).map(drop)
    }
}
