//! Up to which format each node of the cluster can read log entries and messages. A feature that
//! needs a newer format is used only when all members have it, so that nodes of two versions can be
//! in one cluster while it is upgraded.
//!
//! A node learns the formats of its peers from their responses, in the header
//! [`PROTOCOL_HEADER`](crate::service::batch_messages::PROTOCOL_HEADER). Heartbeats keep the
//! leader's knowledge current.

use super::types::{Answers, Commands, NodeId};
use crate::engine::codec::{FORMAT_BASE, FORMAT_VERSION};
use crate::engine::{Command, Op, Reason, Refusal};
use crate::time::Time;
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

    /// Whether the newest format that `peer` uses is known.
    pub(crate) fn has_heard(&self, peer: NodeId) -> bool {
        self.peers.lock().contains_key(&peer)
    }

    /// Returns `commands` in a format that all `members` know: later features are left out. A
    /// command that can't do without them is replaced by one that changes nothing, and its place is
    /// returned too: it is refused. `in_use` is a format of which the state of the cluster has made
    /// use, so that no member can be without it. `node` is the id of this node.
    pub(crate) fn for_members(
        &self,
        commands: Arc<Commands>,
        node: NodeId,
        members: impl Iterator<Item = NodeId>,
        in_use: u8,
    ) -> (Arc<Commands>, Vec<usize>) {
        let knows = |peer| if peer == node { self.own } else { self.shared_with(peer) };
        let least = members.map(knows).min().unwrap_or(self.own).max(in_use.min(self.own));
        if commands.format() <= least {
            return (commands, Vec::new());
        }
        let Commands { now, commands } = &*commands;
        let (commands, refused) = for_format(commands.clone(), least);
        (Arc::new(Commands { now: *now, commands }), refused)
    }
}

/// Returns commands for a node that knows only this `format`, and the places of those that it must
/// refuse, which are replaced by commands that change nothing.
pub(super) fn for_format(commands: Vec<Command>, format: u8) -> (Vec<Command>, Vec<usize>) {
    let needs_more = |command: &Command| command.op.needs() > format;
    let places = commands.iter().enumerate().filter(|(_, command)| needs_more(command));
    let refused: Vec<_> = places.map(|(place, _)| place).collect();
    let each = |command: Command| {
        if needs_more(&command) { Op::Settle.into() } else { command.for_format(format) }
    };
    (commands.into_iter().map(each).collect(), refused)
}

/// Replaces the answers in these places by refusals, for commands that [`for_format`] has replaced.
pub(super) fn refuse(answers: &mut Answers, places: &[usize], at: Time) {
    for place in places {
        if let Some(answer) = answers.get_mut(*place) {
            *answer = Err(Refusal { at, reason: Box::new(Reason::NoHandoversYet) });
        }
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
        Annotate, ClientId, Handover, LeaseKey, LockName, OpenId, Outcome, Patch, Release,
        SessionId, Token,
    };

    /// The format of a release that names an open file.
    const WITH_FILES: u8 = 6;

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
        let in_format = |formats: &PeerFormats, members: &[NodeId]| {
            let members = members.iter().copied();
            formats.for_members(unlock(), 1, members, FORMAT_BASE).0.format()
        };
        let format = || in_format(&formats, &[1, 2, 3]);
        assert_eq!(format(), FORMAT_BASE, "no peer has said anything yet");
        formats.hear(2, FORMAT_VERSION);
        assert_eq!(format(), FORMAT_BASE, "node 3 may be older");
        formats.hear(3, FORMAT_VERSION);
        assert_eq!(format(), WITH_FILES);
        formats.hear(3, FORMAT_VERSION + 1);
        assert_eq!(format(), WITH_FILES);
        formats.hear(2, FORMAT_BASE);
        assert_eq!(format(), FORMAT_BASE, "node 2 was downgraded");
        let alone = |own| in_format(&PeerFormats::new(own), &[1]);
        assert_eq!(alone(FORMAT_VERSION), WITH_FILES);
        assert_eq!(alone(FORMAT_BASE), FORMAT_BASE, "--format-max holds it back");
    }

    /// A request that sets a handover is refused, and not carried out without it: its client counts
    /// on the handover.
    #[test]
    fn a_handover_is_refused_until_all_members_know_it() {
        let (name, client) = (LockName::parse("x"), ClientId::parse("a"));
        let (name, client) = (name.expect("valid"), client.expect("valid"));
        let key = LeaseKey { name, client, token: Some(Token::named(7)) };
        let handover = Some(Handover { text: "clean".into(), counter: 1 });
        let annotate = Annotate { key, patch: Patch::default(), handover };
        let commands = vec![Op::Settle.into(), Op::Annotate(annotate).into(), Op::Settle.into()];
        let commands = Arc::new(Commands { now: Time::ZERO, commands });
        let formats = PeerFormats::default();
        let for_members = |in_use| {
            let (of, refused) =
                formats.for_members(Arc::clone(&commands), 1, [1, 2].into_iter(), in_use);
            (of.format(), refused)
        };
        formats.hear(2, FORMAT_VERSION - 1);
        assert_eq!(for_members(FORMAT_BASE), (FORMAT_BASE, vec![1]));
        assert_eq!(for_members(FORMAT_VERSION), (FORMAT_VERSION, vec![]), "the state has names");
        formats.hear(2, FORMAT_VERSION);
        assert_eq!(for_members(FORMAT_BASE), (FORMAT_VERSION, vec![]));
        let mut answers = vec![Ok(Outcome::Settled); 3];
        refuse(&mut answers, &[1], Time::ZERO);
        let said = answers[1].as_ref().expect_err("refused").to_string();
        assert!(said.contains("newer latchfs"), "{said}");
        assert!(answers[0].is_ok() && answers[2].is_ok());
    }
}
