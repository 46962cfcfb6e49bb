//! The format of a snapshot: its file, replaced atomically, with a version and a checksum; and the
//! encoded state in it, which is also sent to other nodes.
//!
//! The types of the log: openraft's type configuration, and the contents of an entry.
//!
//! Binary encoding of log entries and of snapshot metadata.
//!
//! The length of an entry has a checksum of its own. Without it a corrupted length would look like
//! a torn write at the end of the log, and recovery would truncate the entries after it, although
//! they were acknowledged.

use crate::engine::codec::state_codec;
use crate::engine::codec::state_codec::{
    Codec, DecodeError, Decoder, Encoder, FORMAT_VERSION, Malformed, check_version, known_version,
    require,
};
use crate::engine::{Answer, Baseline, Command, Engine, HoldOff, RememberedName, Rules};
use crate::raft::store::data_dir::DataError;
use crate::storage::atomic_file::{Durable, replace};
use crate::time::Time;
use openraft::EntryPayload;
use openraft::impls::BasicNode;
use openraft::type_config::alias::{
    EntryOf, LogIdOf, PayloadOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf,
};
use openraft::vote::leader_id_adv::LeaderId;
use raft_log::codeq::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::{fmt, fs, io};

/// Magic bytes at the start of the file, before its version.
const MAGIC: &[u8; 8] = b"latchsnp";
/// The version of the file. A node that finds another one refuses to start.
const VERSION: u32 = 1;
/// The length of the file header: magic bytes, version, and a checksum of everything after the
/// header.
const HEAD_BYTES: usize = 16;

/// The decoded contents of a snapshot: the replicated state at one entry of the log.
#[derive(Debug, Clone)]
pub struct SnapshotContents {
    pub(crate) meta: Meta,
    pub(crate) cluster: Option<ClusterId>,
    /// The cluster version, which is that of the encoded state.
    pub(crate) version: u8,
    pub(crate) engine: Engine,
}

/// Encodes the state, as it is stored in the file and sent to other nodes.
pub fn to_bytes(version: u8, cluster: Option<ClusterId>, engine: &Engine) -> Arc<[u8]> {
    let mut out = Encoder::message(version);
    cluster.put(&mut out);
    out.extend_from_slice(&state_codec::encode_engine(version, engine));
    out.into_bytes().into()
}

/// Replaces the snapshot file at `path` atomically.
pub(in crate::raft) fn write(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    replace(path, &[&to_file(snapshot)], Durable::Yes).map(drop)
}

/// Encodes a snapshot with its metadata as the contents of a file.
pub fn to_file(snapshot: &Snapshot) -> Vec<u8> {
    let mut meta = Encoder::new(FORMAT_VERSION);
    put_meta(&snapshot.meta, &mut meta);
    let length = (meta.len() as u32).to_le_bytes();
    let parts: [&[u8]; 3] = [&length, &meta, &snapshot.snapshot];
    let mut sum = crc32fast::Hasher::new();
    for part in parts {
        sum.update(part);
    }
    let (version, sum) = (VERSION.to_le_bytes(), sum.finalize().to_le_bytes());
    let parts: [&[u8]; 6] = [MAGIC, &version, &sum, parts[0], parts[1], parts[2]];
    parts.concat()
}

/// Reads the snapshot file, or returns `None` if there is none.
pub(in crate::raft) fn read(path: &Path) -> Result<Option<Snapshot>, DataError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::io(path, error)),
    };
    from_file(path, &bytes).map(Some)
}

/// Decodes the contents of a file that [`to_file`] encoded; `path` is for error messages.
pub fn from_file(path: &Path, bytes: &[u8]) -> Result<Snapshot, DataError> {
    let damaged = |why: &str| DataError::damaged(path, why);
    let (head, body) =
        bytes.split_at_checked(HEAD_BYTES).ok_or_else(|| damaged("it is cut off"))?;
    let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    if &head[..8] != MAGIC {
        return Err(damaged("it is no snapshot"));
    }
    if number(8) != VERSION {
        let why = format!("it has version {}, and this latchfs knows version {VERSION}", number(8));
        return Err(DataError::OtherVersion { file: path.to_path_buf(), why });
    }
    if number(12) != crc32fast::hash(body) {
        return Err(damaged("it has the wrong sum"));
    }
    parse(body).map_err(|Malformed| damaged("it can't be understood"))
}

fn parse(body: &[u8]) -> Result<Snapshot, Malformed> {
    let (length, rest) = body.split_first_chunk().ok_or(Malformed)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (meta, state) = rest.split_at_checked(length).ok_or(Malformed)?;
    let mut from = Decoder::new(FORMAT_VERSION, meta);
    let meta = take_meta(&mut from)?;
    from.end()?;
    Ok(Snapshot { meta, snapshot: state.into() })
}

/// Decodes the encoded state in a snapshot, and returns it with the snapshot's metadata.
pub fn unpack(snapshot: &Snapshot) -> Result<SnapshotContents, DecodeError> {
    let (version, body) = snapshot.snapshot.split_first().ok_or(Malformed)?;
    check_version(*version)?;
    let mut from = Decoder::new(*version, body);
    let (meta, cluster) = (snapshot.meta.clone(), Codec::take(&mut from)?);
    let engine = state_codec::decode_engine(*version, from.rest())?;
    Ok(SnapshotContents { meta, cluster, version: *version, engine })
}

/// Reads the snapshot file at `path` and decodes its state; `None` if there is no file.
pub(in crate::raft) fn load(path: &Path) -> Result<Option<SnapshotContents>, DataError> {
    let Some(snapshot) = read(path)? else { return Ok(None) };
    unpack(&snapshot).map(Some).map_err(|error| match error {
        DecodeError::Version(unknown) => {
            let why = format!("its state has {unknown}");
            DataError::OtherVersion { file: path.to_path_buf(), why }
        }
        DecodeError::Malformed => DataError::damaged(path, "its state can't be understood"),
    })
}

openraft::declare_raft_types!(
    /// openraft's type configuration: an entry contains a proposal, and applying it returns
    /// answers.
    pub TypeConfig:
        D = Proposal,
        R = Answers,
);

/// The id of a node. It is never reused: a node that has lost its data gets a new one.
pub type NodeId = u64;
/// The index of an entry in the log, and the leader that proposed it.
pub type LogId = LogIdOf<TypeConfig>;
/// One leadership: a term, and the node that leads in it.
pub(crate) type Leader = LeaderId<u64, NodeId>;
/// A vote: the leader or candidate that a node has promised to follow.
pub type Vote = VoteOf<TypeConfig>;
/// One entry of the log.
pub type Entry = EntryOf<TypeConfig>;
/// The payload of an entry.
pub(crate) type Payload = PayloadOf<TypeConfig>;
/// The members of the cluster, and the entry that set them.
pub type Membership = StoredMembershipOf<TypeConfig>;
/// The metadata of a snapshot: the last applied entry, and the membership.
pub type Meta = SnapshotMetaOf<TypeConfig>;
/// A snapshot: its metadata, and the encoded state.
pub type Snapshot = SnapshotOf<TypeConfig, Arc<[u8]>>;

/// The id of the cluster to which a log belongs: random, and drawn when the cluster is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The contents of one entry, applied as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proposal {
    /// Begins a new cluster with tokens from 1, as earlier versions did: its id, and the limits
    /// and durations (`Rules`) that all its replicas must share.
    Begin(ClusterId, Rules),
    /// Begins a cluster: its id, and what its engine begins with (limits, the first token and queue
    /// ticket, and for how long no lock is granted). A new cluster has its numbers from the wall
    /// clock, and one that replaces a lost one those above the lost ones.
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
pub struct Commands {
    /// The engine time at which the commands are applied, as the leader stamped it.
    pub now: Time,
    /// The commands of the entry, in the order in which they are applied.
    pub commands: Vec<Command>,
}

/// The part of the state of a lost cluster that the new cluster in its place takes over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InheritedState {
    /// The limits of the lost cluster, the first token and queue ticket of the new one, and for how
    /// long no lock is granted.
    pub baseline: Baseline,
    /// The lock names that the lost cluster remembered beyond a tenure, with their last handovers.
    pub names: Vec<RememberedName>,
}

/// The source of the state with which a new cluster begins in the place of a lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A backup.
    Backup,
    /// The data directory of a node that was left of the lost cluster.
    Survivor,
}

/// The highest number of names in one [`Proposal::Remember`]: with the longest names, clients and
/// handovers they take 2 MB, less than the highest length of a call with log entries.
const NAMES_MAX: usize = 1_000;

impl InheritedState {
    /// Returns what the cluster takes over that replaces the one of `engine`, as read from a
    /// backup. `wall_secs` is the start of the new cluster in seconds since 1970. `None` if no
    /// tokens would be left.
    pub fn of(engine: &Engine, wall_secs: u64, hold_off: Option<HoldOff>) -> Option<Self> {
        let baseline = engine.baseline(wall_secs, hold_off)?;
        Some(Self { baseline, names: engine.remembered_names() })
    }

    /// Returns the first proposals of the cluster with this id, in order.
    pub fn proposals(self, cluster: ClusterId) -> impl Iterator<Item = Proposal> {
        let names: Vec<_> = self.names.chunks(NAMES_MAX).map(<[_]>::to_vec).collect();
        let begin = std::iter::once(Proposal::Inherit(cluster, self.baseline));
        begin.chain(names.into_iter().map(Proposal::Remember))
    }
}

/// The answers to the commands of an entry, in order.
pub type Answers = Vec<Answer>;

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin(cluster, _) | Self::Inherit(cluster, _) => {
                write!(f, "the beginning of {cluster}")
            }
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
            Self::Inherit(cluster, inherited) => {
                out.push(2);
                cluster.put(out);
                inherited.put(out);
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

/// The highest length of an entry in bytes that the decoder accepts: many times the size that a
/// proposal may have.
const ENTRY_BYTES_MAX: usize = 256 << 20;

/// A log id, wrapped to implement the encoding of raft-log, which has a fixed length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::raft) struct EncodedLogId(pub(in crate::raft) LogId);

/// A vote, wrapped to implement the encoding of raft-log, which has a fixed length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(in crate::raft) struct Ballot(pub(in crate::raft) Vote);

/// The payload of an entry, as the log stores it.
#[derive(Debug, Clone)]
pub(in crate::raft) struct EncodedEntry {
    /// The decoded payload.
    pub(in crate::raft) payload: Payload,
    /// The encoded payload, after a byte for the version. The payload is encoded only once,
    /// and these bytes serve both the log file and [`Self::size`].
    bytes: Arc<[u8]>,
}

impl EncodedEntry {
    /// Encodes a payload in this version.
    pub(in crate::raft) fn new(version: u8, payload: Payload) -> Self {
        let mut out = Encoder::message(version);
        put_payload(&payload, &mut out);
        Self { payload, bytes: out.into_bytes().into() }
    }

    /// Returns a blank entry that claims another version, for a test.
    #[cfg(test)]
    pub(super) fn of_version(version: u8) -> Self {
        let mut said = Self::new(version, EntryPayload::Blank);
        let body = said.bytes[1..].to_vec();
        said.bytes = [&[version], body.as_slice()].concat().into();
        said
    }

    /// Returns the version in which the entry is encoded.
    pub(in crate::raft) fn version(&self) -> u8 {
        self.bytes[0]
    }

    /// Returns about how many bytes of memory the entry takes.
    pub(in crate::raft) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl Encode for EncodedLogId {
    fn encode<W: Write>(&self, mut to: W) -> io::Result<usize> {
        let LogId { leader_id: LeaderId { term, node_id }, index } = self.0;
        put_numbers(&[term, node_id, index], &mut to)
    }
}

impl Decode for EncodedLogId {
    fn decode<R: Read>(mut from: R) -> io::Result<Self> {
        let [term, node_id, index] = take_numbers(&mut from)?;
        Ok(Self(LogId { leader_id: LeaderId { term, node_id }, index }))
    }
}

impl Encode for Ballot {
    fn encode<W: Write>(&self, mut to: W) -> io::Result<usize> {
        let Vote { leader_id: LeaderId { term, node_id }, committed } = self.0;
        put_numbers(&[term, node_id, u64::from(committed)], &mut to)
    }
}

impl Decode for Ballot {
    fn decode<R: Read>(mut from: R) -> io::Result<Self> {
        let [term, node_id, committed] = take_numbers(&mut from)?;
        Ok(Self(Vote { leader_id: LeaderId { term, node_id }, committed: committed != 0 }))
    }
}

fn put_numbers(numbers: &[u64], to: &mut impl Write) -> io::Result<usize> {
    for number in numbers {
        to.write_all(&number.to_be_bytes())?;
    }
    Ok(size_of_val(numbers))
}

fn take_numbers<const N: usize>(from: &mut impl Read) -> io::Result<[u64; N]> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        *number = u64::from_be_bytes(bytes);
    }
    Ok(numbers)
}

/// Layout: the length of the payload, the CRC-32 of that length alone, then the payload.
impl Encode for EncodedEntry {
    fn encode<W: Write>(&self, mut to: W) -> io::Result<usize> {
        let length = (self.bytes.len() as u32).to_be_bytes();
        to.write_all(&length)?;
        to.write_all(&crc32fast::hash(&length).to_be_bytes())?;
        to.write_all(&self.bytes)?;
        Ok(2 * size_of::<u32>() + self.bytes.len())
    }
}

impl Decode for EncodedEntry {
    fn decode<R: Read>(mut from: R) -> io::Result<Self> {
        let mut head = [0; 8];
        from.read_exact(&mut head)?;
        let [length, sum] = [&head[..4], &head[4..]]
            .map(|half| u32::from_be_bytes(half.try_into().expect("half of eight bytes")));
        if crc32fast::hash(&head[..4]) != sum || length as usize > ENTRY_BYTES_MAX {
            let why = "the length of an entry has the wrong sum";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut bytes = vec![0; length as usize];
        from.read_exact(&mut bytes)?;
        let payload = read_payload(&bytes)?;
        Ok(Self { payload, bytes: bytes.into() })
    }
}

/// Encodes the payload of an entry in the newest version, which is the first byte.
pub fn entry_bytes(payload: Payload) -> Arc<[u8]> {
    EncodedEntry::new(known_version(), payload).bytes
}

/// Decodes a payload that [`entry_bytes`] has encoded.
pub fn read_payload(bytes: &[u8]) -> io::Result<Payload> {
    let malformed = |Malformed| io::Error::new(io::ErrorKind::InvalidData, Malformed);
    let (version, body) = bytes.split_first().ok_or(Malformed).map_err(malformed)?;
    check_version(*version).map_err(|unknown| {
        io::Error::new(io::ErrorKind::Unsupported, format!("an entry has {unknown}"))
    })?;
    let mut from = Decoder::new(*version, body);
    let payload = take_payload(&mut from).map_err(malformed)?;
    from.end().map_err(malformed)?;
    Ok(payload)
}

/// Encodes the payload of an entry, without a version.
pub(in crate::raft) fn put_payload(payload: &Payload, out: &mut Encoder) {
    match payload {
        EntryPayload::Blank => out.push(0),
        EntryPayload::Normal(proposal) => {
            out.push(1);
            proposal.put(out);
        }
        EntryPayload::Membership(members) => {
            out.push(2);
            put_members(members, out);
        }
    }
}

/// Decodes a payload that [`put_payload`] encoded.
pub(in crate::raft) fn take_payload(from: &mut Decoder<'_>) -> Result<Payload, Malformed> {
    match u8::take(from)? {
        0 => Ok(EntryPayload::Blank),
        1 => Codec::take(from).map(EntryPayload::Normal),
        2 => take_members(from).map(EntryPayload::Membership),
        _ => Err(Malformed),
    }
}

/// The members of a cluster, without the id of the entry that set them.
type Members = openraft::Membership<u64, BasicNode>;

fn put_members(members: &Members, out: &mut Encoder) {
    let configs: Vec<Vec<u64>> =
        members.get_joint_config().iter().map(|config| config.iter().copied().collect()).collect();
    configs.put(out);
    let nodes: BTreeMap<u64, Arc<str>> =
        members.nodes().map(|(id, node)| (*id, node.addr.as_str().into())).collect();
    nodes.put(out);
}

fn take_members(from: &mut Decoder<'_>) -> Result<Members, Malformed> {
    let configs: Vec<Vec<u64>> = Codec::take(from)?;
    // Ids in another order, or twice, would be a second encoding of the same members.
    require(configs.iter().all(|config| config.is_sorted_by(|one, next| one < next)))?;
    let configs: Vec<BTreeSet<u64>> =
        configs.into_iter().map(|config| config.into_iter().collect()).collect();
    let nodes: BTreeMap<u64, Arc<str>> = Codec::take(from)?;
    let nodes: BTreeMap<u64, BasicNode> =
        nodes.into_iter().map(|(id, addr)| (id, BasicNode { addr: addr.to_string() })).collect();
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Members::default());
    }
    Members::new(configs, nodes).map_err(|_| Malformed)
}

/// Encodes snapshot metadata: the last applied entry and the membership.
pub(in crate::raft) fn put_meta(meta: &Meta, out: &mut Encoder) {
    put_place(meta.last_log_id.as_ref(), out);
    put_place(meta.last_membership.log_id().as_ref(), out);
    put_members(meta.last_membership.membership(), out);
}

/// Decodes snapshot metadata that [`put_meta`] encoded.
pub(in crate::raft) fn take_meta(from: &mut Decoder<'_>) -> Result<Meta, Malformed> {
    let last_log_id = take_place(from)?;
    let since = take_place(from)?;
    let last_membership = Membership::new(since, take_members(from)?);
    Ok(Meta { last_log_id, last_membership })
}

fn put_place(place: Option<&LogId>, out: &mut Encoder) {
    let numbers = place.map(|id| (id.leader_id.term, (id.leader_id.node_id, id.index)));
    numbers.put(out);
}

fn take_place(from: &mut Decoder<'_>) -> Result<Option<LogId>, Malformed> {
    let numbers: Option<(u64, (u64, u64))> = Codec::take(from)?;
    Ok(numbers
        .map(|(term, (node_id, index))| LogId { leader_id: LeaderId { term, node_id }, index }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fuzzer finds a second encoding of a value as well, but seldom this one.
    #[test]
    fn ids_of_members_are_in_order_and_there_once() {
        let nodes: BTreeMap<_, _> = [(7, BasicNode::default()), (8, BasicNode::default())].into();
        let members = Members::new(vec![BTreeSet::from([7, 8])], nodes).expect("sound");
        let bytes = entry_bytes(EntryPayload::Membership(members));
        assert!(read_payload(&bytes).is_ok());
        let at = bytes.windows(3).position(|part| part == [2, 7, 8]).expect("the ids") + 1;
        for ids in [[8, 7], [7, 7]] {
            let mut other = bytes.to_vec();
            other[at..at + 2].copy_from_slice(&ids);
            assert!(read_payload(&other).is_err(), "{ids:?}");
        }
    }

    /// The length is checked before memory for it is taken: the bytes end after the length.
    #[test]
    fn an_entry_has_a_longest_length() {
        for (length, kind) in [
            (ENTRY_BYTES_MAX as u32, io::ErrorKind::UnexpectedEof),
            (ENTRY_BYTES_MAX as u32 + 1, io::ErrorKind::InvalidData),
        ] {
            let length = length.to_be_bytes();
            let head = [length, crc32fast::hash(&length).to_be_bytes()].concat();
            let refused = EncodedEntry::decode(&head[..]).map(drop).expect_err("nothing follows");
            assert_eq!(refused.kind(), kind);
        }
    }
}
