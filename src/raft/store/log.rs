//! The Raft log on disk: implements openraft's storage traits with the crate raft-log.
//!
//! Entries can be read as soon as [`append`](RaftLogStorage::append) has returned, but are
//! acknowledged only after a sync. Votes and entries go through one write queue, in order. A disk
//! error is final: it is recorded, openraft stops, and the sync is not retried, since a second
//! fsync may succeed although the first one has lost data.
//!
//! Measures the fsync latency of the log: a histogram since the start of the node, and the median
//! and maximum of recent syncs.

use crate::raft::node_environment::ClusterVersion;
use crate::raft::store::data_dir::{DataError, FatalError};
use crate::raft::store::snapshot::{
    Ballot, EncodedEntry, EncodedLogId, Entry, LogId, TypeConfig, Vote,
};
use crate::service::backend_status::Syncing;
use crate::service::counters::{Histogram, LatencyHistogram};
use crate::time::{Span, Time, steady_now};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use raft_log::api::raft_log_writer::RaftLogWriter;
use raft_log::{Callback, Config, RaftLog, Types};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// Upper bounds of the histogram buckets in microseconds. They range from tmpfs over SSDs and
/// rotating disks to a failing disk.
const BOUNDS_US: [u64; 12] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 1_000_000];

/// The number of syncs that count as recent: less than a second's worth under load, some minutes'
/// worth on a quiet node.
const RECENT: usize = 256;

/// The latencies of all syncs. Recording one takes no mutex, because each append to the log records
/// one.
pub(in crate::raft) struct FsyncLatency {
    times: LatencyHistogram<{ BOUNDS_US.len() }>,
    /// A ring buffer of the recent latencies in microseconds; 0 marks an unused slot.
    recent: [AtomicU32; RECENT],
    next: AtomicUsize,
}

impl Default for FsyncLatency {
    fn default() -> Self {
        let bounds = BOUNDS_US.map(|bound| Span::from_nanos(bound * 1_000));
        let recent = std::array::from_fn(|_| AtomicU32::new(0));
        Self { times: LatencyHistogram::new(bounds), recent, next: AtomicUsize::new(0) }
    }
}

impl FsyncLatency {
    /// Records the duration of a sync.
    pub(in crate::raft) fn add(&self, took: Span) {
        self.times.add(took);
        let micros = u32::try_from(took.as_nanos().div_ceil(1_000)).unwrap_or(u32::MAX);
        let at = self.next.fetch_add(1, Ordering::Relaxed) % RECENT;
        self.recent[at].store(micros.max(1), Ordering::Relaxed);
    }

    /// Returns the median and maximum of the recent syncs, or `None` before the first sync.
    pub(in crate::raft) fn recent(&self) -> Option<Syncing> {
        let all = self.recent.iter().map(|micros| micros.load(Ordering::Relaxed));
        let mut known: Vec<_> = all.filter(|micros| *micros > 0).collect();
        known.sort_unstable();
        let span = |micros: &u32| Span::from_nanos(u64::from(*micros) * 1_000);
        let median = known.get(known.len() / 2).map(span)?;
        known.last().map(span).map(|worst| Syncing { median, worst })
    }

    /// Returns the histogram of all syncs, for the metrics endpoint.
    pub(in crate::raft) fn histogram(&self) -> Histogram {
        self.times
            .histogram("latchfs_log_sync_seconds", "How long the disk took until it had an entry.")
    }
}

/// How long a sync waits for more writes, which could share it. There are none to wait for: the
/// proposer has one entry in flight at a time, and puts all requests that arrive during a sync into
/// the next entry.
const GATHER: Duration = Duration::ZERO;
/// The highest size of one file of the log in bytes: room for some hundred thousand commands,
/// which a start reads quickly.
const CHUNK_BYTES_MAX: usize = 16 << 20;
/// The highest number of entries cached in memory beside the file that is being written: more than
/// remain in the log after a snapshot.
const CACHED_MAX: usize = 20_000;
/// The highest total size of the cached entries in bytes.
const CACHED_BYTES_MAX: usize = 32 << 20;
/// The size of the buffer with which a start reads the log, in bytes.
const READ_BYTES: usize = 8 << 20;

/// The log. Cheap to clone: all clones share the same files.
#[derive(Clone)]
pub(in crate::raft) struct LogStore {
    files: Arc<Mutex<RaftLog<RaftLogTypes>>>,
    fatal_error: FatalError,
    /// The fsync latency of the log.
    pub(in crate::raft) syncs: Arc<FsyncLatency>,
    /// The version in which entries are written.
    pub(in crate::raft) version: ClusterVersion,
}

/// raft-log's type configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RaftLogTypes;

impl Types for RaftLogTypes {
    type LogId = EncodedLogId;
    type LogPayload = EncodedEntry;
    type Vote = Ballot;
    type Callback = Flushed;
    type UserData = ();

    fn log_index(place: &EncodedLogId) -> u64 {
        place.0.index
    }

    fn payload_size(said: &EncodedEntry) -> u64 {
        said.size()
    }
}

/// Callback of a flush: reports that the data is on disk, or that the write has failed.
struct Flushed {
    who: FlushCallback,
    fatal_error: FatalError,
    syncs: Arc<FsyncLatency>,
    asked_at: Time,
}

enum FlushCallback {
    /// openraft's callback for appended entries.
    Raft(IOFlushed<TypeConfig>),
    /// The sender that wakes a method of [`LogStore`], which waits for the flush.
    Caller(oneshot::Sender<io::Result<()>>),
}

impl Callback for Flushed {
    fn send(self, result: io::Result<()>) {
        let result =
            result.map_err(|error| self.fatal_error.note("the log can't be written", error));
        if result.is_ok() {
            self.syncs.add(steady_now().since(self.asked_at));
        }
        match self.who {
            FlushCallback::Raft(flushed) => flushed.io_completed(result),
            // Sending fails if openraft has shut down and no task waits for the flush any more.
            FlushCallback::Caller(caller) => drop(caller.send(result)),
        }
    }
}

impl LogStore {
    /// Opens the log in a directory, which must exist. A torn write at the end of the log is
    /// truncated; any other damage is an error.
    pub(in crate::raft) fn open(dir: &Path, fatal_error: &FatalError) -> Result<Self, DataError> {
        let unusable = |error| DataError::of_log(dir, error);
        let Some(name) = dir.to_str() else {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "its name is not UTF-8");
            return Err(unusable(why));
        };
        let mut config = Config::new(name);
        config.wal.flush_batch_wait = Some(GATHER);
        config.wal.truncate_incomplete_record = Some(true);
        config.wal.chunk_max_size = Some(CHUNK_BYTES_MAX);
        config.wal.read_buffer_size = Some(READ_BYTES);
        config.log_cache_max_items = Some(CACHED_MAX);
        config.log_cache_capacity = Some(CACHED_BYTES_MAX);
        let files = RaftLog::open(Arc::new(config)).map_err(unusable)?;
        let (files, fatal_error) = (Arc::new(Mutex::new(files)), fatal_error.clone());
        let log =
            Self { files, fatal_error, syncs: Arc::default(), version: ClusterVersion::default() };
        log.refuse_holes().map_err(unusable)?;
        Ok(log)
    }

    /// Fails if an entry is missing between the last purged entry and the end of the log.
    fn refuse_holes(&self) -> io::Result<()> {
        let (first, end) = self.range();
        let mut wanted = first;
        for entry in self.files.lock().read(first, end) {
            let (place, entry) = entry?;
            self.version.observe(entry.version());
            if place.0.index != wanted {
                break;
            }
            wanted += 1;
        }
        if wanted == end {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("entry {wanted} is missing")))
    }

    /// Returns the index of the first entry, and the index after the last.
    pub(in crate::raft) fn range(&self) -> (u64, u64) {
        let files = self.files.lock();
        let next = |place: Option<&EncodedLogId>| place.map_or(0, |place| place.0.index + 1);
        (next(files.log_state().purged()), next(files.log_state().last()))
    }

    /// Whether neither a vote nor an entry has ever been written to the log.
    pub(in crate::raft) fn is_new(&self) -> bool {
        self.is_empty() && self.vote().is_none()
    }

    /// Whether the log has never had an entry.
    pub(in crate::raft) fn is_empty(&self) -> bool {
        self.files.lock().log_state().last().is_none()
    }

    /// Returns the index of the last entry that was known to be committed.
    pub(in crate::raft) fn committed(&self) -> Option<u64> {
        self.files.lock().log_state().committed().map(|place| place.0.index)
    }

    /// Returns the last vote that was saved.
    pub(in crate::raft) fn vote(&self) -> Option<Vote> {
        self.files.lock().log_state().vote().map(|ballot| ballot.0)
    }

    /// Returns the last purged entry: a snapshot covers the log up to it.
    pub(in crate::raft) fn purged(&self) -> Option<LogId> {
        self.files.lock().log_state().purged().map(|place| place.0)
    }

    /// Applies `change` to the files of the log, and records an error as fatal.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut RaftLog<RaftLogTypes>) -> io::Result<T>,
    ) -> io::Result<T> {
        change(&mut self.files.lock())
            .map_err(|error| self.fatal_error.note("the log can't be written", error))
    }

    fn flushed(&self, who: FlushCallback) -> Flushed {
        let (fatal_error, syncs) = (self.fatal_error.clone(), Arc::clone(&self.syncs));
        Flushed { who, fatal_error, syncs, asked_at: steady_now() }
    }

    /// Applies `change` to the files of the log, and returns once the change is synced to disk.
    async fn change_durably(
        &self,
        change: impl FnOnce(&mut RaftLog<RaftLogTypes>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (send, flushed) = oneshot::channel();
        let callback = self.flushed(FlushCallback::Caller(send));
        self.change(|files| {
            change(files)?;
            files.flush(true, Some(callback))
        })?;
        flushed.await.unwrap_or_else(|_| Err(io::Error::other("the log's writer is gone")))
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<Entry>> {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(to) => *to,
            Bound::Unbounded => u64::MAX,
        };
        if from >= to {
            return Ok(vec![]);
        }
        let files = self.files.lock();
        let entry = |(EncodedLogId(log_id), said): (EncodedLogId, EncodedEntry)| Entry {
            log_id,
            payload: said.payload,
        };
        files
            .read(from, to)
            .map(|read| read.map(entry))
            .collect::<io::Result<_>>()
            .map_err(|error| self.fatal_error.note("the log can't be read", error))
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.vote())
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let files = self.files.lock();
        let id = |place: Option<&EncodedLogId>| place.map(|place| place.0);
        let state = files.log_state();
        Ok(LogState { last_purged_log_id: id(state.purged()), last_log_id: id(state.last()) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let ballot = Ballot(*vote);
        self.change_durably(|files| files.save_vote(ballot).map(drop)).await
    }

    /// Saves the commit index without a sync: it reaches the disk with the next entries, and only
    /// saves work at the next start.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed else { return Ok(()) };
        self.change(|files| files.commit(EncodedLogId(committed)).map(drop))
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.files.lock().log_state().committed().map(|place| place.0))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let callback = self.flushed(FlushCallback::Raft(callback));
        self.change(|files| {
            for entry in entries {
                let said = EncodedEntry::new(self.version.get(), entry.payload);
                files.append([(EncodedLogId(entry.log_id), said)])?;
            }
            files.flush(true, Some(callback))
        })
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        let (_, end) = self.range();
        if from >= end {
            // The log has no entry after `last`. raft-log would fail, but for openraft the call is
            // a no-op.
            return Ok(());
        }
        self.change_durably(|files| files.truncate(from).map(drop)).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        // This call does not wait for the flush, and need not: raft-log deletes the files of the
        // purged entries only after the flush.
        self.change(|files| {
            files.purge(EncodedLogId(upto))?;
            files.flush(true, None)
        })
    }
}

#[cfg(test)]
impl LogStore {
    /// Appends an entry of another version, for a test.
    pub(in crate::raft) fn append_of_version(&mut self, version: u8) {
        let mut files = self.files.lock();
        let mut place = *files.log_state().last().expect("there is an entry");
        place.0.index += 1;
        files.append([(place, EncodedEntry::of_version(version))]).expect("there is room");
        files.flush(true, None).expect("there is room");
        files.wait_worker_idle().expect("there is room");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Span {
        Span::from_nanos(count * 1_000)
    }

    #[test]
    fn recent_latency_covers_only_the_last_syncs() {
        let syncs = FsyncLatency::default();
        assert_eq!(syncs.recent(), None);
        syncs.add(Span::from_nanos(40));
        assert_eq!(syncs.recent(), Some(Syncing { median: micros(1), worst: micros(1) }));
        (1..=100).for_each(|count| syncs.add(micros(count)));
        assert_eq!(syncs.recent(), Some(Syncing { median: micros(50), worst: micros(100) }));
        // After `RECENT` more syncs, the older ones no longer count.
        (0..RECENT).for_each(|_| syncs.add(micros(7)));
        assert_eq!(syncs.recent(), Some(Syncing { median: micros(7), worst: micros(7) }));
        let all = syncs.histogram();
        assert_eq!(all.count, 357);
        assert_eq!(all.at_most[0], (micros(50), 1 + 50 + 256));
        assert_eq!(all.at_most[11], (Span::from_secs(1), 357));
    }
}
