//! Binary encoding of log entries and of snapshot metadata.
//!
//! The length of an entry has a checksum of its own. Without it a corrupted length would look like
//! a torn write at the end of the log, and recovery would truncate the entries after it, although
//! they were acknowledged.

use super::types::{LogId, Membership, Meta, Payload, Vote};
use crate::engine::codec::{
    Codec, Decoder, Encoder, Malformed, check_version, known_version, require,
};
use openraft::EntryPayload;
use openraft::impls::BasicNode;
use openraft::vote::leader_id_adv::LeaderId;
use raft_log::codeq::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// The highest length of an entry in bytes that the decoder accepts: many times the size that a
/// proposal may have.
const ENTRY_BYTES_MAX: usize = 256 << 20;

/// A log id, wrapped to implement the encoding of raft-log, which has a fixed length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EncodedLogId(pub(super) LogId);

/// A vote, wrapped to implement the encoding of raft-log, which has a fixed length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) struct Ballot(pub(super) Vote);

/// The payload of an entry, as the log stores it.
#[derive(Debug, Clone)]
pub(super) struct EncodedEntry {
    /// The decoded payload.
    pub(super) payload: Payload,
    /// The encoded payload, after a byte for the version. The payload is encoded only once,
    /// and these bytes serve both the log file and [`Self::size`].
    bytes: Arc<[u8]>,
}

impl EncodedEntry {
    /// Encodes a payload in this version.
    pub(super) fn new(version: u8, payload: Payload) -> Self {
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
    pub(super) fn version(&self) -> u8 {
        self.bytes[0]
    }

    /// Returns about how many bytes of memory the entry takes.
    pub(super) fn size(&self) -> u64 {
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
pub(crate) fn entry_bytes(payload: Payload) -> Arc<[u8]> {
    EncodedEntry::new(known_version(), payload).bytes
}

/// Decodes a payload that [`entry_bytes`] has encoded.
pub(crate) fn read_payload(bytes: &[u8]) -> io::Result<Payload> {
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
pub(super) fn put_payload(payload: &Payload, out: &mut Encoder) {
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
pub(super) fn take_payload(from: &mut Decoder<'_>) -> Result<Payload, Malformed> {
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
pub(super) fn put_meta(meta: &Meta, out: &mut Encoder) {
    put_place(meta.last_log_id.as_ref(), out);
    put_place(meta.last_membership.log_id().as_ref(), out);
    put_members(meta.last_membership.membership(), out);
}

/// Decodes snapshot metadata that [`put_meta`] encoded.
pub(super) fn take_meta(from: &mut Decoder<'_>) -> Result<Meta, Malformed> {
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
