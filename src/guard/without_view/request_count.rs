//! The number of requests that are under way: a guard without a view ends when nobody needs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of requests.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestCount(Arc<AtomicUsize>);

/// One of them, as long as this value lives.
pub(super) struct CountedRequest(RequestCount);

impl RequestCount {
    /// Counts one more request.
    pub(super) fn one_more(&self) -> CountedRequest {
        self.0.fetch_add(1, Ordering::AcqRel);
        CountedRequest(self.clone())
    }

    /// Returns the number.
    pub(super) fn now(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
