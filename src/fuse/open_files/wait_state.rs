//! The state of an open file of `.latchfs/wait`.

use crate::engine::LeaseKey;

/// The state of the wait for a lock through an open file.
#[derive(Debug, Default)]
pub(crate) enum WaitState {
    /// It has not asked yet, or what came of it has been read.
    #[default]
    Idle,
    /// It waits in the queue.
    Queued,
    /// The lock was granted, and no read has told so.
    Unread(LeaseKey),
    /// The file was closed.
    Closed,
}
