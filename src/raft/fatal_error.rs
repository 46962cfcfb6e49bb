//! Records the first fatal disk error of a node. Later errors are not recorded, and nothing is
//! retried.

use crate::base::said;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// Holds the first fatal disk error. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct FatalError(Arc<Mutex<Option<Arc<str>>>>);

impl FatalError {
    /// Records `error`, which occurred while doing `what`, unless an earlier one is recorded.
    /// Returns `error` unchanged.
    pub(super) fn note(&self, what: &str, error: io::Error) -> io::Error {
        let mut first = self.0.lock();
        if first.is_none() {
            *first = Some(format!("{what}: {}", said(&error)).into());
        }
        error
    }

    /// Returns the message of the first error, if any.
    pub(super) fn first(&self) -> Option<Arc<str>> {
        self.0.lock().clone()
    }
}
