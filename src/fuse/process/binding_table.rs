//! The table of leases that are bound to processes, with the time of each lease's next renewal.

use crate::engine::{EventKind, LeaseKey, Lifetime, Token};
use crate::fuse::process::epoll::ProcessEpoll;
use crate::fuse::process::process_handle::ProcessHandle;
use crate::service::event_log::EventWatch;
use crate::time::{Span, Time};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The number of renewals of a bound lease within its ttl.
const RENEWALS_PER_TTL: u64 = 3;
/// The maximum number of lock events taken in one batch.
const NEWS_MAX: usize = 256;

/// The table of leases of one mount that are bound to processes.
#[derive(Default)]
pub(super) struct BindingTable {
    pub(super) epoll: Option<Arc<ProcessEpoll>>,
    pub(super) bindings: HashMap<Token, Binding>,
    /// The tokens of the leases that need renewal, in order of the time of the next renewal.
    pub(super) due: BTreeSet<(Time, Token)>,
    /// The subscription to lock events, while any lease is bound.
    pub(super) watch: Option<EventWatch>,
}

/// A lease that is bound to a process, with that process.
pub(super) struct Binding {
    pub(super) key: LeaseKey,
    pub(super) process: ProcessHandle,
    /// The time of the next renewal; `None` if the lease is attached to a session.
    pub(super) next: Option<Time>,
}

/// Returns the interval between two renewals of a bound lease; `None` for a lease that is attached
/// to a session, which needs no renewal.
pub(super) fn every(life: Lifetime) -> Option<Span> {
    match life {
        Lifetime::Own { ttl, .. } => {
            Some(Span::from_nanos(ttl.span().as_nanos() / RENEWALS_PER_TTL))
        }
        Lifetime::Session(_) => None,
    }
}

impl BindingTable {
    pub(super) fn take(&mut self, epoll: &ProcessEpoll, token: Token) -> Option<Binding> {
        let binding = self.bindings.remove(&token)?;
        if let Some(next) = binding.next {
            self.due.remove(&(next, token));
        }
        epoll.remove(&binding.process.alive);
        Some(binding)
    }

    pub(super) fn renew_at(&mut self, epoll: &ProcessEpoll, token: Token, next: Option<Time>) {
        let Some(binding) = self.bindings.get_mut(&token) else { return };
        if let Some(before) = std::mem::replace(&mut binding.next, next) {
            self.due.remove(&(before, token));
        }
        if let Some(next) = next {
            self.due.insert((next, token));
            epoll.alarm.set(next);
        }
    }

    /// Returns the next batch of events about bound leases, and whether there may be more events.
    pub(super) fn take_news(&mut self) -> Option<(Vec<EventKind>, bool)> {
        let batch = self.watch.as_mut()?.take(NEWS_MAX);
        let more = batch.events.len() == NEWS_MAX;
        if batch.lost > 0 {
            // Lock events were lost, so every bound lease is renewed now: the answer tells its
            // state.
            let all: Vec<_> = self.bindings.keys().copied().collect();
            if let Some(epoll) = self.epoll.clone() {
                for token in all {
                    self.renew_at(&epoll, token, Some(Time::ZERO));
                }
            }
        }
        let bound = |token: &Token| self.bindings.contains_key(token);
        let ours = batch.events.into_iter().map(|(_, event)| event.what).filter(|what| {
            matches!(what, EventKind::Renewed { token, .. } | EventKind::Ended { token, .. }
                if bound(token))
        });
        Some((ours.collect(), more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::LeaseTerms;

    #[test]
    fn a_lease_is_renewed_three_times_in_its_ttl() {
        let ttl = crate::engine::Ttl::parse("30s").expect("valid");
        let life = LeaseTerms::Own(ttl, crate::engine::Grace::NONE).begin(Time::ZERO);
        assert_eq!(every(life), Some(Span::from_secs(10)));
    }
}
