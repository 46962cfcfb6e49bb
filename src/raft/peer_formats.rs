//! Up to which format each node of the cluster can read log entries and messages. A feature that
//! needs a newer format is used only when all members have it, so that nodes of two versions can be
//! in one cluster while it is upgraded.
//!
//! A node learns the formats of its peers from their responses, in the header
//! [`PROTOCOL_HEADER`](crate::service::batch_messages::PROTOCOL_HEADER). Heartbeats keep the
//! leader's knowledge current.

use super::types::{Commands, NodeId};
use crate::engine::codec::{FORMAT_BASE, FORMAT_VERSION};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The newest format that each node of a cluster can read, in log entries and messages.
#[derive(Debug)]
pub(crate) struct PeerFormats {
    /// The newest format of log entries and messages that this node uses.
    own: u8,
    peers: Mutex<BTreeMap<NodeId, u8>>,
}

impl PeerFormats {
    /// Returns the newest formats as a node knows them at its start: `own` for the node itself, and
    /// [`FORMAT_BASE`] for each peer until that peer reports its own.
    pub(crate) fn new(own: u8) -> Self {
        Self { own: own.clamp(FORMAT_BASE, FORMAT_VERSION), peers: Mutex::default() }
    }

    /// Returns the newest format of log entries and messages that this node uses.
    pub(crate) const fn own(&self) -> u8 {
        self.own
    }

    /// Records the newest format of log entries and messages that a peer uses.
    pub(crate) fn hear(&self, peer: NodeId, format: u8) {
        self.peers.lock().insert(peer, format.max(FORMAT_BASE));
    }

    /// Returns the newest format of messages that both this node and `peer` use.
    pub(crate) fn shared_with(&self, peer: NodeId) -> u8 {
        self.peers.lock().get(&peer).map_or(FORMAT_BASE, |format| self.own.min(*format))
    }

    /// Returns `commands` in a format that all `members` know: later features are left out. `node`
    /// is the id of this node.
    pub(crate) fn for_members(
        &self,
        commands: Arc<Commands>,
        node: NodeId,
        members: impl Iterator<Item = NodeId>,
    ) -> Arc<Commands> {
        let knows = |peer| if peer == node { self.own } else { self.shared_with(peer) };
        let least = members.map(knows).min().unwrap_or(self.own);
        if commands.format() <= least {
            return commands;
        }
        let Commands { now, commands } = &*commands;
        let commands = commands.iter().map(|command| command.clone().for_format(least)).collect();
        Arc::new(Commands { now: *now, commands })
    }
}

impl Default for PeerFormats {
    fn default() -> Self {
        Self::new(FORMAT_VERSION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        ClientId, Command, LeaseKey, LockName, Op, OpenId, Release, SessionId, Token,
    };
    use crate::time::Time;

    fn unlock() -> Arc<Commands> {
        let (name, client) = (LockName::parse("x"), ClientId::parse("a"));
        let (name, client) = (name.expect("valid"), client.expect("valid"));
        let key = LeaseKey { name, client, token: Some(Token::named(7)) };
        let open = OpenId { session: SessionId::named(1), number: 2 };
        let release: Command = Op::Release(Release::of_open_file(open, key)).into();
        Arc::new(Commands { now: Time::ZERO, commands: vec![Op::Settle.into(), release] })
    }

    #[test]
    fn a_feature_is_used_only_when_all_members_have_it() {
        let formats = PeerFormats::default();
        let format = || formats.for_members(unlock(), 1, [1, 2, 3].into_iter()).format();
        assert_eq!(format(), FORMAT_BASE, "no peer has said anything yet");
        formats.hear(2, FORMAT_VERSION);
        assert_eq!(format(), FORMAT_BASE, "node 3 may be older");
        formats.hear(3, FORMAT_VERSION);
        assert_eq!(format(), FORMAT_VERSION);
        formats.hear(3, FORMAT_VERSION + 1);
        assert_eq!(format(), FORMAT_VERSION);
        formats.hear(2, FORMAT_BASE);
        assert_eq!(format(), FORMAT_BASE, "node 2 was downgraded");
        let alone = |own| PeerFormats::new(own).for_members(unlock(), 1, [1].into_iter()).format();
        assert_eq!(alone(FORMAT_VERSION), FORMAT_VERSION);
        assert_eq!(alone(FORMAT_BASE), FORMAT_BASE, "--format-max holds it back");
    }
}
