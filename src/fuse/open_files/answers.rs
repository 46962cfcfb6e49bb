//! The answers of a control file that were not read yet.

use crate::fuse::kernel::user_shares::{Full, Pool, Share, Shares};
use std::collections::VecDeque;

/// Answers in order, and what their user has for them.
#[derive(Debug, Default)]
pub(crate) struct UnreadAnswers {
    bytes: VecDeque<u8>,
    share: Option<Share>,
}

impl UnreadAnswers {
    /// Adds a line, if its user has room for it.
    pub(crate) fn add(&mut self, shares: &Shares, uid: u32, line: &str) -> Result<(), Full> {
        match &mut self.share {
            Some(share) => share.grow(line.len())?,
            share => *share = Some(shares.take(Pool::Bytes, uid, line.len())?),
        }
        self.bytes.extend(line.as_bytes());
        Ok(())
    }

    /// Adds a short line, room or not.
    pub(crate) fn add_always(&mut self, shares: &Shares, uid: u32, line: &str) {
        let share = &mut self.share;
        share
            .get_or_insert_with(|| shares.take_always(Pool::Bytes, uid, 0))
            .grow_always(line.len());
        self.bytes.extend(line.as_bytes());
    }

    /// Takes `size` bytes at most.
    pub(crate) fn take(&mut self, size: u32) -> Vec<u8> {
        let size = self.bytes.len().min(size as usize);
        if let Some(share) = &mut self.share {
            share.shrink(size);
        }
        let taken = self.bytes.drain(..size).collect();
        if self.bytes.is_empty() {
            // One long list is no reason to keep its room.
            self.bytes = VecDeque::new();
        }
        taken
    }

    /// Whether all was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
