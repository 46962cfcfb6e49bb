//! The keys of a client's requests, by which a server recognizes repeats, and the range of them
//! that the server may forget.

use crate::engine::{AcknowledgedKeys, SessionId};
use crate::random::random;
use std::sync::Arc;

/// Issues keys in ascending order.
///
/// All keys with the current prefix were sent only in batches of the current session, if at all:
/// the prefix changes with the session. So the engine refuses late copies of these requests by
/// their order, and may forget the answers that have arrived.
pub(super) struct RequestKeys {
    prefix: Arc<str>,
    issued: u64,
    /// The session that numbers the requests.
    session: Option<SessionId>,
}

impl RequestKeys {
    fn of_session(session: Option<SessionId>) -> Self {
        Self { prefix: format!("{:016x}-", random()).into(), issued: 0, session }
    }

    /// Returns a key that no request had before.
    pub(super) fn issue(&mut self) -> Arc<str> {
        let key = self.key(self.issued);
        self.issued += 1;
        key
    }

    /// Returns the keys that a batch can acknowledge: all below the lowest of `pending`, which are
    /// the keys of the batch and of all other requests that may be sent again. `session` is the one
    /// that numbers the requests of the batch.
    pub(super) fn acknowledged<'a>(
        &mut self,
        session: Option<SessionId>,
        pending: impl Iterator<Item = &'a Arc<str>>,
    ) -> Option<AcknowledgedKeys> {
        if session != self.session {
            *self = Self::of_session(session);
        }
        session?;
        let pending = pending.filter(|key| key.starts_with(&*self.prefix));
        let below = pending.min().cloned().unwrap_or_else(|| self.key(self.issued));
        let from = Arc::clone(&self.prefix);
        (below > self.key(0)).then_some(AcknowledgedKeys { from, below })
    }

    /// Keys with one prefix have one length, so that their order is that of their numbers.
    fn key(&self, number: u64) -> Arc<str> {
        format!("{}{number:016x}", self.prefix).into()
    }
}

impl Default for RequestKeys {
    fn default() -> Self {
        Self::of_session(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_keys_of_the_session_are_acknowledged() {
        let mut keys = RequestKeys::default();
        let early = keys.issue();
        assert_eq!(keys.acknowledged(None, [].iter()), None, "without a session");
        let session = |number| Some(SessionId::named(number));
        assert_eq!(keys.acknowledged(session(1), [&early].into_iter()), None, "a new session");
        let issued: Vec<_> = (0..300).map(|_| keys.issue()).collect();
        assert!(issued.is_sorted());
        let pending = [&early, &issued[256], &issued[17]];
        let range = keys.acknowledged(session(1), pending.into_iter()).expect("17 keys");
        let covers = |key: &Arc<str>| range.from <= *key && *key < range.below;
        assert!(issued[..17].iter().all(covers));
        assert!(!issued[17..].iter().any(covers));
        assert!(!covers(&early), "it may have been sent without an order");
        let range = keys.acknowledged(session(1), [&early].into_iter()).expect("all keys");
        assert!(issued.iter().all(|key| range.from <= *key && *key < range.below));
        assert!(keys.issue() >= range.below, "not yet issued");
        // The requests of before belong to another session, or to none.
        assert_eq!(keys.acknowledged(session(2), [&issued[299]].into_iter()), None);
        let next = keys.issue();
        assert_eq!(keys.acknowledged(session(2), [&next].into_iter()), None, "none answered");
    }
}
