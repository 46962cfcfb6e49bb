//! The Raft log on a virtual disk, behind openraft's storage traits. It follows the rules of the
//! real log: entries are readable once they are appended, reported to openraft once they are
//! synced, and votes and entries are written in one order.

use super::recorder::Record;
use super::sim_types::SimTypeConfig;
use super::virtual_disk::{DiskContents, OpenDisk, Write};
use crate::raft::entry_codec::{entry_bytes, read_payload};
use crate::raft::types::{Entry, LogId, NodeId, Vote};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

/// The Raft log of one run of a node.
#[derive(Clone)]
pub(super) struct VirtualLog {
    pub(super) node: NodeId,
    pub(super) disk: OpenDisk,
    /// The record of the entries and votes that the node has acknowledged.
    pub(super) record: Arc<Record>,
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
            self.disk.look(is_there).unwrap_or(false)
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
        self.disk.look(|files| {
            let read = |(log_id, bytes): &(LogId, Arc<[u8]>)| {
                let payload = read_payload(bytes)?;
                Ok(Entry { log_id: *log_id, payload })
            };
            files.entries.range(range).map(|(_, entry)| read(entry)).collect()
        })?
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.disk.look(|files| files.vote)
    }
}

impl RaftLogStorage<SimTypeConfig> for VirtualLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<SimTypeConfig>> {
        let state = |files: &DiskContents| LogState {
            last_purged_log_id: files.purged,
            last_log_id: files.last(),
        };
        self.disk.look(state)
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
        self.disk.look(|files| files.committed)
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
