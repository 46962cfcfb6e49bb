//! The log on a virtual disk, behind openraft's traits. It promises what the real one does, by the
//! same rules: readable when appended, told when synced, votes and entries in one order.

use super::disk::{Open, Write};
use super::kind::Kind;
use crate::cluster::bytes::{entry_bytes, read_payload};
use crate::cluster::kind::{Entry, LogId, Vote};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

/// The log.
#[derive(Clone)]
pub(super) struct Log(pub(super) Open);

impl Log {
    async fn write_durably(&self, write: Write) -> io::Result<()> {
        let written = self.0.write([write])?;
        self.0.sync(written).await
    }
}

impl RaftLogReader<Kind> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<Entry>> {
        self.0.look(|files| {
            let read = |(log_id, bytes): &(LogId, Arc<[u8]>)| {
                let payload = read_payload(bytes)?;
                Ok(Entry { log_id: *log_id, payload })
            };
            files.entries.range(range).map(|(_, entry)| read(entry)).collect()
        })
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.0.look(|files| files.vote))
    }
}

impl RaftLogStorage<Kind> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Kind>> {
        Ok(self
            .0
            .look(|files| LogState { last_purged_log_id: files.purged, last_log_id: files.last() }))
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.write_durably(Write::Vote(*vote)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed else { return Ok(()) };
        self.0.write([Write::Committed(committed)]).map(drop)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.0.look(|files| files.committed))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Kind>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let write = |entry: Entry| Write::Entry(entry.log_id, entry_bytes(entry.payload));
        let written = self.0.write(entries.into_iter().map(write))?;
        let disk = self.0.clone();
        Kind::spawn(async move { callback.io_completed(disk.sync(written).await) });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        self.write_durably(Write::Truncate(from)).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.0.write([Write::Purge(upto)]).map(drop)
    }
}
