//! The types of the log: openraft's type configuration, and the contents of an entry.

use crate::engine::codec::{Codec, Decoder, Encoder, Malformed};
use crate::engine::{Answer, Baseline, Command, Engine, HoldOff, RememberedName, Rules};
use crate::time::Time;
use openraft::type_config::alias::{
    EntryOf, LogIdOf, PayloadOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf,
};
use std::fmt;
use std::sync::Arc;

openraft::declare_raft_types!(
    /// openraft's type configuration: an entry contains a proposal, and applying it returns
    /// answers.
    pub(crate) TypeConfig:
        D = Proposal,
        R = Answers,
);

/// The id of a node. It is never reused: a node that has lost its data gets a new one.
pub(crate) type NodeId = u64;
/// The index of an entry in the log, and the leader that proposed it.
pub(crate) type LogId = LogIdOf<TypeConfig>;
/// One leadership: a term, and the node that leads in it.
pub(crate) type Leader = openraft::vote::leader_id_adv::LeaderId<u64, NodeId>;
/// A vote: the leader or candidate that a node has promised to follow.
pub(crate) type Vote = VoteOf<TypeConfig>;
/// One entry of the log.
pub(crate) type Entry = EntryOf<TypeConfig>;
/// The payload of an entry.
pub(crate) type Payload = PayloadOf<TypeConfig>;
/// The members of the cluster, and the entry that set them.
pub(crate) type Membership = StoredMembershipOf<TypeConfig>;
/// The metadata of a snapshot: the last applied entry, and the membership.
pub(crate) type Meta = SnapshotMetaOf<TypeConfig>;
/// A snapshot: its metadata, and the encoded state.
pub(crate) type Snapshot = SnapshotOf<TypeConfig, Arc<[u8]>>;

/// The id of the cluster to which a log belongs: random, and drawn when the cluster is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClusterId(pub(crate) u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The contents of one entry, applied as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proposal {
    /// Begins a new cluster: its id, and the limits and durations (`Rules`) that all its replicas
    /// must share.
    Begin(ClusterId, Rules),
    /// Begins a cluster that replaces a lost one: its id, and what it takes over (limits, the first
    /// token and queue ticket, and for how long no lock is granted).
    Inherit(ClusterId, Baseline),
    /// Some of the names that the lost cluster remembered beyond a tenure. Such proposals follow
    /// the one that begins a cluster after another.
    Remember(Vec<RememberedName>),
    /// Raises the cluster version to this one, which all members know.
    Raise(u8),
    /// Commands in order, and the engine time at which all of them are applied.
    Commands(Arc<Commands>),
}

/// The commands of one entry: those that came while the entry before was in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commands {
    /// The engine time at which the commands are applied, as the leader stamped it.
    pub(crate) now: Time,
    /// The commands of the entry, in the order in which they are applied.
    pub(crate) commands: Vec<Command>,
}

/// The part of the state of a lost cluster that the cluster takes over which replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heritage {
    /// The limits of the lost cluster, the first token and queue ticket of the new one, and for how
    /// long no lock is granted.
    pub baseline: Baseline,
    /// The names that the lost cluster remembered beyond a tenure.
    pub names: Vec<RememberedName>,
}

/// From what a new cluster is begun that replaces a lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A backup.
    Backup,
    /// The data directory of a node that is left.
    Survivor,
}

/// The highest number of names in one [`Proposal::Remember`]: with the longest names, clients and
/// handovers they take 2 MB, less than the highest length of a call with log entries.
const NAMES_MAX: usize = 1_000;

impl Heritage {
    /// Returns what the cluster takes over that replaces the one of `engine`, as read from a
    /// backup. `wall_secs` is the start of the new cluster in seconds since 1970. `None` if no
    /// tokens would be left.
    pub fn of(engine: &Engine, wall_secs: u64, hold_off: Option<HoldOff>) -> Option<Self> {
        let baseline = engine.heritage(wall_secs, hold_off)?;
        Some(Self { baseline, names: engine.remembered_names() })
    }

    /// Returns the first proposals of the cluster with this id, in order.
    pub(crate) fn proposals(self, cluster: ClusterId) -> impl Iterator<Item = Proposal> {
        let names: Vec<_> = self.names.chunks(NAMES_MAX).map(<[_]>::to_vec).collect();
        let begin = std::iter::once(Proposal::Inherit(cluster, self.baseline));
        begin.chain(names.into_iter().map(Proposal::Remember))
    }
}

/// The answers to the commands of an entry, in order.
pub(crate) type Answers = Vec<Answer>;

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin(cluster, _) => write!(f, "the beginning of {cluster}"),
            Self::Inherit(cluster, _) => write!(f, "the beginning of {cluster}, after another"),
            Self::Remember(names) => write!(f, "{} names of another", names.len()),
            Self::Raise(version) => write!(f, "cluster version {version}"),
            Self::Commands(body) => write!(f, "{} commands at {}", body.commands.len(), body.now),
        }
    }
}

impl Codec for ClusterId {
    fn put(&self, out: &mut Encoder) {
        ((self.0 >> 64) as u64).put(out);
        (self.0 as u64).put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let high = u128::from(u64::take(from)?);
        Ok(Self(high << 64 | u128::from(u64::take(from)?)))
    }
}

impl Codec for Proposal {
    fn put(&self, out: &mut Encoder) {
        match self {
            Self::Begin(cluster, rules) => {
                out.push(0);
                cluster.put(out);
                rules.put(out);
            }
            Self::Inherit(cluster, heritage) => {
                out.push(2);
                cluster.put(out);
                heritage.put(out);
            }
            Self::Remember(names) => {
                out.push(3);
                names.put(out);
            }
            Self::Raise(version) => {
                out.push(4);
                version.put(out);
            }
            Self::Commands(body) => {
                out.push(1);
                body.now.put(out);
                body.commands.put(out);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => Ok(Self::Begin(Codec::take(from)?, Codec::take(from)?)),
            1 => {
                let (now, commands) = (Codec::take(from)?, Codec::take(from)?);
                Ok(Self::Commands(Arc::new(Commands { now, commands })))
            }
            2 => Ok(Self::Inherit(Codec::take(from)?, Codec::take(from)?)),
            3 => Codec::take(from).map(Self::Remember),
            4 => Codec::take(from).map(Self::Raise),
            _ => Err(Malformed),
        }
    }
}
