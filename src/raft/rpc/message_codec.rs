//! The encoding of messages that contain values of openraft. The trait of the engine's encoding
//! can't be implemented here for types of a third crate, so such messages have a trait of their
//! own, and their other parts are encoded as the engine does it.

use super::messages::{Envelope, LeaderProgress, RpcError, RpcRequest, RpcResponse};
use crate::engine::Command;
use crate::engine::codec::state_codec::{
    self, Decoder, Encoder, Malformed, wire_enum, wire_struct,
};
use crate::raft::node_environment::NodeAddress;
use crate::raft::store::snapshot::{
    Answers, ClusterId, Entry, LogId, NodeId, Payload, Snapshot, TypeConfig, Vote,
};
use crate::raft::store::snapshot::{put_meta, put_payload, take_meta, take_payload};
use crate::service::backend_status::{ClusterChange, Member};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use openraft::vote::leader_id_adv::LeaderId;
use std::sync::Arc;

/// A message, or a part of one, that has exactly one encoding.
trait Codec: Sized {
    fn put(&self, out: &mut Encoder);
    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed>;
}

/// Implements one of the two traits for types that implement the other one.
macro_rules! as_in {
    ($known:path => $new:path: $($type:ty),* $(,)?) => {$(
        impl $new for $type {
            fn put(&self, out: &mut Encoder) {
                <Self as $known>::put(self, out);
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
                <Self as $known>::take(from)
            }
        }
    )*};
}

as_in! { state_codec::Codec => Codec:
    u8, bool, NodeId, ClusterId, Arc<[u8]>, NodeAddress, Vec<Command>, Answers, LeaderProgress,
    ClusterChange, Member, RpcError,
}
as_in! { Codec => state_codec::Codec: Envelope, RpcResponse }

type Append = AppendEntriesRequest<TypeConfig>;
type Appended = AppendEntriesResponse<TypeConfig>;
type AskVote = VoteRequest<TypeConfig>;
type Voted = VoteResponse<TypeConfig>;
type Refusal = TransferLeaderError<TypeConfig>;

wire_struct! {
    Envelope { cluster, from, to, call; version }
    Append { vote, prev_log_id, entries, leader_commit }
    AskVote { vote, last_log_id, leadership_transfer }
    Voted { vote, vote_granted, last_log_id }
    Entry { log_id, payload }
}

wire_enum! {
    RpcRequest {
        0 Append(ask), 1 Vote(ask), 2 PreVote(ask), 3 Snapshot(vote, snapshot), 4 Transfer(ask),
        5 Forward(commands), 6 Read, 7 Join(station), 8 Enroll(station), 9 Change(change),
        10 Status(with_state),
    }
    RpcResponse {
        0 Append(said), 1 Vote(said), 2 Snapshot(vote), 3 Transfer(said),
        4 Forwarded(place, answers), 5 Read(place), 6 Joined(cluster, id), 7 Done,
        8 Status(member),
    }
    Appended { 0 Success, 1 PartialSuccess(place), 2 Conflict, 3 HigherVote(vote) }
    Refusal { 0 VoteChanged { expected, actual }, 1 LogNotFlushed { expected, actual } }
}

impl Codec for LogId {
    fn put(&self, out: &mut Encoder) {
        self.leader_id.term.put(out);
        self.leader_id.node_id.put(out);
        self.index.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let leader_id = LeaderId { term: Codec::take(from)?, node_id: Codec::take(from)? };
        Ok(Self { leader_id, index: Codec::take(from)? })
    }
}

impl Codec for Vote {
    fn put(&self, out: &mut Encoder) {
        self.leader_id.term.put(out);
        self.leader_id.node_id.put(out);
        self.committed.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let leader_id = LeaderId { term: Codec::take(from)?, node_id: Codec::take(from)? };
        Ok(Self { leader_id, committed: Codec::take(from)? })
    }
}

impl Codec for Payload {
    fn put(&self, out: &mut Encoder) {
        put_payload(self, out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        take_payload(from)
    }
}

impl Codec for Snapshot {
    fn put(&self, out: &mut Encoder) {
        put_meta(&self.meta, out);
        self.snapshot.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self { meta: take_meta(from)?, snapshot: Codec::take(from)? })
    }
}

impl Codec for TransferLeaderRequest<TypeConfig> {
    fn put(&self, out: &mut Encoder) {
        self.from_leader().put(out);
        self.to_node_id().put(out);
        self.last_log_id().copied().put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self::new(Codec::take(from)?, Codec::take(from)?, Codec::take(from)?))
    }
}

impl Codec for Vec<Entry> {
    fn put(&self, out: &mut Encoder) {
        state_codec::Codec::put(&self.len(), out);
        for entry in self {
            entry.put(out);
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        (0..from.take_length::<Entry>()?).map(|_| Entry::take(from)).collect()
    }
}

impl<T: Codec> Codec for Option<T> {
    fn put(&self, out: &mut Encoder) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        bool::take(from)?.then(|| T::take(from)).transpose()
    }
}

impl Codec for Result<(), Refusal> {
    fn put(&self, out: &mut Encoder) {
        self.is_err().put(out);
        if let Err(refusal) = self {
            refusal.put(out);
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(<Option<Refusal> as Codec>::take(from)?.map_or(Ok(()), Err))
    }
}
