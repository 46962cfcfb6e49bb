//! The state of an open file of `.latchfs/wait`.

use crate::engine::LeaseKey;

/// The state of a wait for a lock through an open file.
#[derive(Debug, Default)]
pub(crate) enum WaitState {
    /// No wait has started, or a read has reported the result of the last one.
    #[default]
    Idle,
    /// The file waits in the queue of the lock.
    Queued,
    /// The lock was granted, and no read has reported the grant yet.
    Unread(LeaseKey),
    /// The file was closed, so that no wait may start.
    Closed,
}
