//! The leases that are bound to processes, and when each is to be renewed.

use crate::engine::{EventKind, LeaseKey, Lifetime, Token};
use crate::fuse::process::epoll::ProcessEpoll;
use crate::fuse::process::process_handle::ProcessHandle;
use crate::service::event_log::EventWatch;
use crate::time::{Span, Time};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A lease is renewed so many times in each ttl.
const RENEWALS_PER_TTL: u64 = 3;
/// Events taken at once.
const NEWS_MAX: usize = 256;

/// The bindings of one mount.
#[derive(Default)]
pub(super) struct BindingTable {
    pub(super) epoll: Option<Arc<ProcessEpoll>>,
    pub(super) bindings: HashMap<Token, Binding>,
    /// When each is to be renewed.
    pub(super) due: BTreeSet<(Time, Token)>,
    /// Follows what becomes of the leases, while any is bound.
    pub(super) watch: Option<EventWatch>,
}

/// One lease and its process.
pub(super) struct Binding {
    pub(super) key: LeaseKey,
    pub(super) process: ProcessHandle,
    /// When it is to be renewed; `None`: it hangs on a session.
    pub(super) next: Option<Time>,
}

/// How long between two renewals; a lease that hangs on a session needs none.
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

    /// Takes what the latest events say about leases that are bound, and whether there are more.
    pub(super) fn take_news(&mut self) -> Option<(Vec<EventKind>, bool)> {
        let batch = self.watch.as_mut()?.take(NEWS_MAX);
        let more = batch.events.len() == NEWS_MAX;
        if batch.lost > 0 {
            // A renewal of each tells what became of it.
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
