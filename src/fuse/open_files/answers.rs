//! The answers in the control file `.latchfs/ctl` that were not read yet.

use crate::fuse::kernel::user_shares::{Full, Pool, Share, Shares};
use std::collections::VecDeque;

/// Unread answers in order, counted against the limit of their user.
#[derive(Debug, Default)]
pub(crate) struct UnreadAnswers {
    bytes: VecDeque<u8>,
    share: Option<Share>,
}

impl UnreadAnswers {
    /// Appends an answer, which is one line, if the user's limit on unread bytes allows it.
    pub(crate) fn add(&mut self, shares: &Shares, uid: u32, line: &str) -> Result<(), Full> {
        match &mut self.share {
            Some(share) => share.grow(line.len())?,
            share => *share = Some(shares.take(Pool::Bytes, uid, line.len())?),
        }
        self.bytes.extend(line.as_bytes());
        Ok(())
    }

    /// Appends an answer, which is one short line, even beyond the user's limit on unread bytes.
    pub(crate) fn add_always(&mut self, shares: &Shares, uid: u32, line: &str) {
        let share = &mut self.share;
        share
            .get_or_insert_with(|| shares.take_always(Pool::Bytes, uid, 0))
            .grow_always(line.len());
        self.bytes.extend(line.as_bytes());
    }

    /// Removes and returns at most `size` bytes of the unread answers.
    pub(crate) fn take(&mut self, size: u32) -> Vec<u8> {
        let size = self.bytes.len().min(size as usize);
        if let Some(share) = &mut self.share {
            share.shrink(size);
        }
        let taken = self.bytes.drain(..size).collect();
        if self.bytes.is_empty() {
            // Replacing the buffer frees its memory, of which one long list may have taken much.
            self.bytes = VecDeque::new();
        }
        taken
    }

    /// Whether the program has read all answers.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
