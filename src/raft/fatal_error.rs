//! The first fatal error of the disk: later ones are not recorded, and nothing is retried.

use crate::os_error::said;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// Where the first error is kept. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct FatalError(Arc<Mutex<Option<Arc<str>>>>);

impl FatalError {
    /// Notes an error while doing `what`, and gives it back.
    pub(super) fn note(&self, what: &str, error: io::Error) -> io::Error {
        let mut first = self.0.lock();
        if first.is_none() {
            *first = Some(format!("{what}: {}", said(&error)).into());
        }
        error
    }

    /// Returns the error that was noted first.
    pub(super) fn first(&self) -> Option<Arc<str>> {
        self.0.lock().clone()
    }
}
