//! The limit on requests that wait for locks. Each occupies a connection, or a stream of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of requests that wait at the same time.
pub(super) const WAITING_MAX: usize = 10_000;

/// The number of waiting requests.
#[derive(Default)]
pub(super) struct WaitSlots(AtomicUsize);

/// One counted waiting request; dropping it lowers the count.
pub(super) struct WaitSlot(Arc<WaitSlots>);

impl WaitSlots {
    /// Counts a waiting request; returns `None` if [`WAITING_MAX`] wait already.
    pub(super) fn take(self: &Arc<Self>) -> Option<WaitSlot> {
        let more = |count| (count < WAITING_MAX).then_some(count + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| WaitSlot(Arc::clone(self)))
    }

    /// Returns the number of waiting requests.
    pub(super) fn waiting(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for WaitSlot {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_requests_have_a_limit() {
        let slots: Arc<WaitSlots> = Arc::default();
        let all: Vec<_> = (0..WAITING_MAX).map(|_| slots.take()).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(slots.take().is_none());
        drop(all);
        assert_eq!(slots.waiting(), 0);
        assert!(slots.take().is_some());
    }
}
