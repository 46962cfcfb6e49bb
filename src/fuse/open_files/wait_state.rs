//! The state of an open file of `.latchfs/wait`.

use crate::engine::LeaseKey;

/// The state of a wait for a lock through an open file.
#[derive(Debug, Default)]
pub(crate) enum WaitState {
    /// No wait has started, or its result has been read.
    #[default]
    Idle,
    /// The wait is in the queue.
    Queued,
    /// The lock was granted, and no read has reported that.
    Unread(LeaseKey),
    /// The file was closed, so that no wait may start.
    Closed,
}
