//! The messages between nodes, and their encoding. Decoding is strict: it never panics, and trusts
//! no length beyond the bytes that are there.

use crate::engine::Command;
use crate::engine::codec::state_codec::{
    Codec, DecodeError, Decoder, Encoder, Malformed, decode_message, encode_message, require,
    wire_enum, wire_struct,
};
use crate::raft::node_environment::NodeAddress;
use crate::raft::store::snapshot::{Answers, ClusterId, NodeId, Snapshot, TypeConfig, Vote};
use crate::raft::write::proposal_queue::{ENTRY_WEIGHT_MAX, weight_of_all, weight_of_entries};
use crate::service::backend_status::{ClusterChange, Member, Standing, Syncing};
use crate::time::Time;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use std::fmt;
use std::sync::Arc;

/// The highest length of a snapshot call in bytes: enough for a million locks, each with the
/// longest name, note and content. A node receives one snapshot at a time.
const SNAPSHOT_BYTES_MAX: usize = 8 << 30;
/// The highest length of a call with forwarded commands: the commands of one entry
/// (`ENTRY_WEIGHT_MAX`), or one larger command alone.
const FORWARD_BYTES_MAX: usize = 6 << 20;
/// The highest length of a call with log entries: those of one call (`CALL_WEIGHT_MAX`), or one
/// larger entry alone, such as one with a large batch of commands that another node has forwarded.
const APPEND_BYTES_MAX: usize = ENTRY_WEIGHT_MAX + FORWARD_BYTES_MAX + SHORT_BYTES_MAX;
/// The highest length of a call without log entries, forwarded commands or a snapshot, which holds
/// only numbers, addresses and names.
const SHORT_BYTES_MAX: usize = 64 << 10;

/// The memory that decoding a call with commands may take beyond its length. The shortest command
/// takes hundreds of times as many bytes in memory as encoded, but no node sends many of only
/// those.
const MEMORY_MAX: usize = 10 << 20;
/// The memory that decoding an answer, or a call without commands, may take beyond its length. An
/// answer holds the answers to 512 commands at most.
const SHORT_MEMORY_MAX: usize = 1 << 20;

/// The node id 0, which no node has. In the receiver's place it stands for any node at the called
/// address, and in the caller's place for a node that has no id yet.
pub(in crate::raft) const ANYBODY: NodeId = 0;

/// A call, its caller and its receiver.
#[derive(Debug, Clone)]
pub(in crate::raft) struct Envelope {
    /// The version of the call, and of its answer: the cluster version that the caller knows.
    pub(in crate::raft) version: u8,
    /// The cluster of the caller, or `None` if it has not joined one yet.
    pub(in crate::raft) cluster: Option<ClusterId>,
    /// The id of the caller; [`ANYBODY`] if it has none yet.
    pub(in crate::raft) from: NodeId,
    /// The id of the called node; [`ANYBODY`] stands for any node at the address.
    pub(in crate::raft) to: NodeId,
    /// The request that the call carries.
    pub(in crate::raft) call: RpcRequest,
}

/// A request to another node.
#[derive(Debug, Clone)]
pub enum RpcRequest {
    /// Raft's `AppendEntries`: log entries, or a heartbeat.
    Append(AppendEntriesRequest<TypeConfig>),
    /// Raft's `RequestVote`.
    Vote(VoteRequest<TypeConfig>),
    /// Raft's `PreVote`: asks whether the receiver would grant its vote.
    PreVote(VoteRequest<TypeConfig>),
    /// Raft's `InstallSnapshot`: the state at one entry, and the vote of the leader.
    Snapshot(Vote, Snapshot),
    /// Asks the receiver to take over leadership.
    Transfer(TransferLeaderRequest<TypeConfig>),
    /// Forwards commands from the caller's clients to the leader.
    Forward(Vec<Command>),
    /// Asks the leader for the read index, up to which the caller must apply the log before it
    /// serves a linearizable read.
    Read,
    /// Joins the cluster, first step: requests a node id.
    Join(NodeAddress),
    /// Joins the cluster, second step: the caller has stored its id on disk and listens, and
    /// requests to become a member.
    Enroll(NodeAddress),
    /// Changes the membership of the cluster, or its leader.
    Change(ClusterChange),
    /// Requests the status of the receiver; `true` adds a checksum of its state.
    Status(bool),
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub enum RpcResponse {
    /// Response to [`RpcRequest::Append`].
    Append(AppendEntriesResponse<TypeConfig>),
    /// Response to [`RpcRequest::Vote`] and [`RpcRequest::PreVote`].
    Vote(VoteResponse<TypeConfig>),
    /// Response to [`RpcRequest::Snapshot`]: the vote of the receiver.
    Snapshot(Vote),
    /// Response to [`RpcRequest::Transfer`].
    Transfer(Result<(), TransferLeaderError<TypeConfig>>),
    /// Response to [`RpcRequest::Forward`]: the index of the log entry that holds the commands, the
    /// leader's time, and the answers to the commands.
    Forwarded(LeaderProgress, Answers),
    /// Response to [`RpcRequest::Read`]: the read index and the leader's time.
    Read(LeaderProgress),
    /// Response to [`RpcRequest::Join`]: the id of the cluster, and the id of the caller in it.
    Joined(ClusterId, NodeId),
    /// Response to [`RpcRequest::Enroll`] and [`RpcRequest::Change`]: the change is made.
    Done,
    /// Response to [`RpcRequest::Status`].
    Status(Member),
}

/// A log index, which is the read index or the entry of forwarded commands, together with the
/// leader's engine time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderProgress {
    /// The read index, or the index of the entry with the forwarded commands.
    pub(crate) index: u64,
    /// The engine time of the leader when it sent the response.
    pub(crate) now: Time,
}

/// The error with which a node answers a call. The call had no effect unless the variant says
/// otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RpcError {
    /// The call can't be decoded.
    Malformed,
    /// The call names another cluster than that of the receiver.
    OtherCluster,
    /// The call is for another node; the node at this address has this id.
    OtherNode(NodeId),
    /// The receiver does not lead. Holds the address of the leader, if that is known.
    NotLeader(Option<Arc<str>>),
    /// The outcome is unknown: the command may have committed, or may still commit.
    Unknown,
    /// The caller is no longer a member of the cluster.
    Removed,
    /// The call is refused for this reason.
    Refused(Arc<str>),
    /// The receiver has not joined a cluster yet. Holds the addresses with which it was declared.
    NoCluster(Arc<str>),
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => write!(f, "the call is malformed"),
            Self::OtherCluster => write!(f, "it belongs to another cluster"),
            Self::OtherNode(id) => write!(f, "node {id} has that address"),
            Self::NotLeader(Some(leader)) => write!(f, "not the leader; the leader is {leader}"),
            Self::NotLeader(None) => write!(f, "the cluster has no leader"),
            Self::Unknown => write!(f, "the outcome is unknown"),
            Self::Removed => write!(f, "this node was removed from its cluster"),
            Self::Refused(why) => f.write_str(why),
            Self::NoCluster(_) => write!(f, "it has no cluster yet"),
        }
    }
}

impl RpcRequest {
    /// Returns the name of the call in paths and logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Append(_) => "append",
            Self::Vote(_) => "vote",
            Self::PreVote(_) => "prevote",
            Self::Snapshot(..) => "snapshot",
            Self::Transfer(_) => "transfer",
            Self::Forward(_) => "forward",
            Self::Read => "read",
            Self::Join(_) => "join",
            Self::Enroll(_) => "enroll",
            Self::Change(_) => "change",
            Self::Status(_) => "status",
        }
    }
}

/// Returns the highest length in bytes of a call of this name, or `None` if there is no such call.
pub(in crate::raft) fn call_bytes_max(name: &str) -> Option<usize> {
    match name {
        "snapshot" => Some(SNAPSHOT_BYTES_MAX),
        "append" => Some(APPEND_BYTES_MAX),
        "forward" => Some(FORWARD_BYTES_MAX),
        "vote" | "prevote" | "transfer" | "read" | "join" | "enroll" | "change" | "status" => {
            Some(SHORT_BYTES_MAX)
        }
        _ => None,
    }
}

/// Returns the memory that decoding a call of this name may take beyond its `bytes`. Each command
/// has at least one byte, so a short call takes little.
fn memory_beyond(name: &str, bytes: usize) -> usize {
    let most = match name {
        "append" | "forward" => MEMORY_MAX,
        _ => SHORT_MEMORY_MAX,
    };
    bytes.saturating_mul(size_of::<Command>()).min(most)
}

/// Returns the memory that a call of this name may take while it is read: its bytes, the decoded
/// texts in it, and the memory that the decoded commands take beyond that.
pub(in crate::raft) fn call_memory(name: &str, bytes: usize) -> usize {
    2 * bytes + memory_beyond(name, bytes)
}

impl RpcRequest {
    /// Returns about how many bytes the entries, commands or snapshot in the call take in memory.
    pub(in crate::raft) fn weight(&self) -> usize {
        match self {
            Self::Append(ask) => weight_of_entries(&ask.entries),
            Self::Forward(commands) => weight_of_all(commands),
            Self::Snapshot(_, snapshot) => snapshot.snapshot.len(),
            _ => 0,
        }
    }
}

/// Encodes a request and its envelope.
pub(in crate::raft) fn encode_envelope(envelope: &Envelope) -> Vec<u8> {
    encode_message(envelope.version, envelope)
}

/// Decodes a call of this name that [`encode_envelope`] encoded.
pub(in crate::raft) fn decode_envelope(name: &str, bytes: &[u8]) -> Result<Envelope, DecodeError> {
    let room = bytes.len().saturating_add(memory_beyond(name, bytes.len()));
    let mut envelope: Envelope = decode_message(room, bytes)?;
    envelope.version = bytes[0];
    require(envelope.call.name() == name)?;
    Ok(envelope)
}

/// Encodes the answer to a call of this version.
pub(in crate::raft) fn encode_answer(
    version: u8,
    answer: &Result<RpcResponse, RpcError>,
) -> Vec<u8> {
    encode_message(version, answer)
}

/// Decodes an answer that [`encode_answer`] encoded.
pub(in crate::raft) fn decode_answer(
    bytes: &[u8],
) -> Result<Result<RpcResponse, RpcError>, DecodeError> {
    let room = bytes.len().saturating_add(SHORT_MEMORY_MAX);
    decode_message(room, bytes)
}

wire_struct! {
    LeaderProgress { index, now }
    Member {
        id, name, address, url, standing, term, leader, last_log, committed, applied, snapshot,
        state, syncing, heard_ms
    }
    Syncing { median, worst }
}

wire_enum! {
    RpcError {
        0 Malformed, 1 OtherCluster, 2 OtherNode(id), 3 NotLeader(leader), 4 Unknown, 5 Removed,
        6 Refused(why), 7 NoCluster(declared),
    }
    ClusterChange { 0 Promote { id, force }, 1 Remove { id }, 2 Transfer { to } }
    Standing { 0 Leader, 1 Voter, 2 Learner, 3 Candidate, 4 Stranger }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Rules;
    use crate::engine::codec::state_codec::{FORMAT_VERSION, UnknownVersion};
    use crate::raft::store::snapshot::{Entry, LogId, Proposal};
    use crate::time::Span;
    use openraft::EntryPayload;
    use openraft::vote::leader_id_adv::LeaderId;

    fn id(index: u64) -> LogId {
        LogId { leader_id: LeaderId { term: 3, node_id: 7 }, index }
    }

    fn envelopes() -> Vec<Envelope> {
        let vote = Vote { leader_id: LeaderId { term: 3, node_id: 7 }, committed: true };
        let entry = |payload| Entry { log_id: id(300), payload };
        let begin = Proposal::Begin(ClusterId(9), Rules::default());
        let append = AppendEntriesRequest {
            vote,
            prev_log_id: Some(id(299)),
            entries: vec![entry(EntryPayload::Blank), entry(EntryPayload::Normal(begin))],
            leader_commit: None,
        };
        let at = NodeAddress::new("10.0.0.1:7100", "http://10.0.0.1:8080", "box").expect("sound");
        let mut ask = VoteRequest::new(vote, Some(id(4)));
        ask.leadership_transfer = true;
        let calls = [
            RpcRequest::Append(append),
            RpcRequest::Vote(ask.clone()),
            RpcRequest::PreVote(ask),
            RpcRequest::Transfer(TransferLeaderRequest::new(vote, 9, Some(id(5)))),
            RpcRequest::Forward(vec![engine::Op::Settle.into()]),
            RpcRequest::Read,
            RpcRequest::Join(at.clone()),
            RpcRequest::Enroll(at),
            RpcRequest::Change(ClusterChange::Promote { id: 3, force: true }),
            RpcRequest::Status(true),
        ];
        let envelope = |call| Envelope {
            version: 1,
            cluster: Some(ClusterId(1 << 100)),
            from: 7,
            to: 9,
            call,
        };
        calls.map(envelope).into()
    }

    fn member() -> Member {
        let syncing = Syncing { median: Span::from_nanos(400_000), worst: Span::from_millis(30) };
        Member {
            id: 7,
            name: "box".into(),
            address: "10.0.0.1:7100".into(),
            url: "http://10.0.0.1:8080".into(),
            standing: Standing::Learner,
            term: 3,
            leader: Some(1),
            last_log: 300,
            committed: 299,
            applied: 298,
            snapshot: 0,
            state: Some("298:0".into()),
            syncing: Some(syncing),
            heard_ms: None,
        }
    }

    /// A message is decoded as it was encoded; one that is too short or too long is refused.
    #[test]
    fn letters_are_read_as_they_were_written() {
        for envelope in envelopes() {
            let bytes = encode_envelope(&envelope);
            let name = envelope.call.name();
            let read = decode_envelope(name, &bytes).expect("as it was written");
            assert_eq!(format!("{read:?}"), format!("{envelope:?}"));
            for length in 0..bytes.len() {
                assert!(
                    decode_envelope(name, &bytes[..length]).is_err(),
                    "{length} of {}",
                    bytes.len()
                );
            }
            assert!(decode_envelope(name, &[&bytes[..], &[0]].concat()).is_err());
            for found in [0, FORMAT_VERSION + 1, u8::MAX] {
                let other = [&[found], &bytes[1..]].concat();
                let refused = decode_envelope(name, &other).map(drop);
                assert_eq!(refused, Err(DecodeError::Version(UnknownVersion { found })));
            }
        }
    }

    /// The shortest command has two bytes and takes hundreds in memory, so a call that is full of
    /// them is refused.
    #[test]
    fn a_call_takes_little_more_memory_than_it_has_bytes() {
        let call = |count| RpcRequest::Forward(vec![engine::Op::Settle.into(); count]);
        let envelope =
            |count| Envelope { version: 1, cluster: None, from: 1, to: 2, call: call(count) };
        let few = encode_envelope(&envelope(crate::raft::write::proposal_queue::REQUESTS_MAX));
        assert!(decode_envelope("forward", &few).is_ok());
        assert!(decode_envelope("status", &few).is_err(), "it is no such call");
        let many = encode_envelope(&envelope(2 * MEMORY_MAX / size_of::<Command>()));
        assert!(many.len() < FORWARD_BYTES_MAX);
        assert!(decode_envelope("forward", &many).is_err());
    }

    /// A snapshot call has room for as many locks as there may be, with all their texts.
    #[test]
    fn a_snapshot_of_all_locks_fits() {
        use crate::engine::values::details::{HOLDER_ID_BYTES_MAX, NOTE_BYTES_MAX, TEXT_BYTES_MAX};
        let (name, client, numbers) = (1_024, 255, 256);
        let texts = HOLDER_ID_BYTES_MAX + NOTE_BYTES_MAX + TEXT_BYTES_MAX;
        let lock = name + client + numbers + texts;
        assert!(Rules::default().locks_max * lock <= SNAPSHOT_BYTES_MAX);
    }

    /// Every call has a limit, under the name by which it is sent.
    #[test]
    fn every_call_has_a_limit() {
        for envelope in envelopes() {
            let name = envelope.call.name();
            assert!(call_bytes_max(name).is_some_and(|max| encode_envelope(&envelope).len() < max));
        }
        assert_eq!(call_bytes_max("anything"), None);
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let place = LeaderProgress { index: 1 << 40, now: Time::from_secs(5) };
        let answers = [
            Ok(RpcResponse::Append(AppendEntriesResponse::PartialSuccess(Some(id(4))))),
            Ok(RpcResponse::Forwarded(place, vec![Ok(engine::Outcome::Released)])),
            Ok(RpcResponse::Transfer(Err(TransferLeaderError::LogNotFlushed {
                expected: Some(id(4)),
                actual: None,
            }))),
            Ok(RpcResponse::Joined(ClusterId(5), 8)),
            Ok(RpcResponse::Status(member())),
            Err(RpcError::NotLeader(Some("10.0.0.1:7100".into()))),
            Err(RpcError::Refused("no".into())),
        ];
        for answer in answers {
            let bytes = encode_answer(1, &answer);
            let read = decode_answer(&bytes).expect("as it was written");
            assert_eq!(format!("{read:?}"), format!("{answer:?}"));
            for length in 0..bytes.len() {
                assert!(decode_answer(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
            }
        }
    }
}
