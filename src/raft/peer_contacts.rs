//! Log lines about the other nodes: whether they can be reached.

use super::types::NodeId;
use crate::time::{Span, Time, boot_now};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// How long all calls to a node must fail before a line says so.
const PATIENCE: Span = Span::from_secs(2);

/// The calls to each other node, successful or not.
#[derive(Debug, Default)]
pub(super) struct PeerContacts(Mutex<BTreeMap<NodeId, PeerContact>>);

#[derive(Debug, Default)]
struct PeerContact {
    /// Since when calls have failed, if the last one has.
    fails_since: Option<Time>,
    is_lost: bool,
}

/// A change of the contact to another node.
#[derive(Debug, PartialEq, Eq)]
enum ContactChange {
    Lost,
    Back,
}

impl PeerContacts {
    /// Records the result of a call to a node. Logs the loss and the return of the contact.
    pub(super) fn called(&self, node: NodeId, trouble: Option<&str>) {
        match self.record(node, trouble.is_some(), boot_now()) {
            Some(ContactChange::Lost) => log::warn!(node, reason = trouble; "peer connection lost"),
            Some(ContactChange::Back) => log::info!(node; "peer connection restored"),
            None => {}
        }
    }

    fn record(&self, node: NodeId, is_failed: bool, now: Time) -> Option<ContactChange> {
        let mut contacts = self.0.lock();
        let contact = contacts.entry(node).or_default();
        if !is_failed {
            contact.fails_since = None;
            return std::mem::take(&mut contact.is_lost).then_some(ContactChange::Back);
        }
        let since = *contact.fails_since.get_or_insert(now);
        if contact.is_lost || now.since(since) < PATIENCE {
            return None;
        }
        contact.is_lost = true;
        Some(ContactChange::Lost)
    }

    /// Forgets nodes that are no members any more.
    pub(super) fn keep(&self, is_member: impl Fn(NodeId) -> bool) {
        self.0.lock().retain(|node, _| is_member(*node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_peer_is_told_once_and_its_return_once() {
        let contacts = PeerContacts::default();
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        assert_eq!(contacts.record(2, true, at(0)), None);
        assert_eq!(contacts.record(2, false, at(10)), None, "one lost call is no loss");
        let told: Vec<_> =
            (0..100).filter_map(|n| contacts.record(2, true, at(1_000 + 100 * n))).collect();
        assert_eq!(told, [ContactChange::Lost]);
        assert_eq!(contacts.record(2, false, at(20_000)), Some(ContactChange::Back));
        assert_eq!(contacts.record(2, false, at(20_001)), None);
        contacts.keep(|_| false);
        assert!(contacts.0.lock().is_empty());
    }
}
