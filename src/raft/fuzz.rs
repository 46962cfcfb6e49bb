//! The decoders of bytes from other nodes and from the disk of a node, for the fuzzer in
//! `tests/fuzz`. Not a part of the library's interface.

use super::rpc::messages::{
    Envelope, LeaderProgress, RpcError, RpcRequest, RpcResponse, call_bytes_max, call_memory,
    decode_answer, decode_envelope, encode_answer, encode_envelope,
};
use super::rpc::mutual_tls;
use crate::engine::{Answer, Command, Engine, Rules};
use crate::raft::node_environment::NodeAddress;
use crate::raft::store::snapshot;
use crate::raft::store::snapshot::{
    ClusterId, Commands, LogId, Membership, Meta, Proposal, Snapshot, Vote,
};
use crate::raft::store::snapshot::{entry_bytes, read_payload};
use crate::service::backend_status::{ClusterChange, Member, Standing, Syncing};
use crate::time::{Span, Time};
use openraft::EntryPayload;
use openraft::impls::BasicNode;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use openraft::vote::leader_id_adv::LeaderId;
use rustls::pki_types::CertificateDer;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Decodes a call between nodes, and returns its encoding.
pub fn call(name: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    decode_envelope(name, bytes).ok().map(|envelope| encode_envelope(&envelope))
}

/// Returns the highest length of a call of this name, and the memory that a call of this many bytes
/// may take.
pub fn call_limits(name: &str, bytes: usize) -> Option<(usize, usize)> {
    Some((call_bytes_max(name)?, call_memory(name, bytes)))
}

/// Decodes an answer between nodes, and returns its encoding.
pub fn answer(bytes: &[u8]) -> Option<Vec<u8>> {
    decode_answer(bytes).ok().map(|answer| encode_answer(1, &answer))
}

/// Decodes the payload of a log entry, and returns its encoding.
pub fn entry(bytes: &[u8]) -> Option<Vec<u8>> {
    read_payload(bytes).ok().map(|payload| entry_bytes(payload).to_vec())
}

/// Decodes the file of a snapshot and the state in it. Returns the encodings of both.
pub fn snapshot(bytes: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let snapshot = snapshot::from_file(Path::new("snapshot"), bytes).ok()?;
    let state = snapshot::unpack(&snapshot).ok();
    let state = state.map(|state| {
        let state = snapshot::to_bytes(state.version, state.cluster, &state.engine);
        snapshot::to_file(&Snapshot { meta: snapshot.meta.clone(), snapshot: state })
    });
    Some((snapshot::to_file(&snapshot), state))
}

/// Returns the file of a snapshot with this encoded state.
pub fn snapshot_file(numbers: [u64; 4], state: &[u8]) -> Vec<u8> {
    snapshot::to_file(&Snapshot { meta: meta(numbers), snapshot: state.into() })
}

/// Returns the encoded state of a snapshot of this engine.
pub fn snapshot_state(engine: &Engine) -> Arc<[u8]> {
    snapshot::to_bytes(1, Some(ClusterId(7)), engine)
}

/// Whether a certificate is that of a node.
pub fn is_peers(der: &[u8]) -> bool {
    mutual_tls::is_peers(&CertificateDer::from(der))
}

fn log_id([term, node_id, index, _]: [u64; 4]) -> LogId {
    LogId { leader_id: LeaderId { term, node_id }, index }
}

fn members([first, second, third, _]: [u64; 4]) -> openraft::Membership<u64, BasicNode> {
    let ids = BTreeSet::from([first, second, third]);
    let node = |id: &u64| (*id, BasicNode { addr: format!("10.0.0.1:{id} http://a box 1") });
    let nodes: BTreeMap<_, _> = ids.iter().map(node).collect();
    let voters = vec![BTreeSet::from([first]), ids];
    openraft::Membership::new(voters, nodes).unwrap_or_default()
}

fn meta(numbers: [u64; 4]) -> Meta {
    let id = log_id(numbers);
    Meta { last_log_id: Some(id), last_membership: Membership::new(Some(id), members(numbers)) }
}

fn payloads(numbers: [u64; 4], commands: Vec<Command>) -> Vec<snapshot::Payload> {
    let now = Time::from_nanos(numbers[3]);
    let commands = Proposal::Commands(Arc::new(Commands { now, commands }));
    vec![
        EntryPayload::Blank,
        EntryPayload::Normal(Proposal::Begin(ClusterId(numbers[0].into()), Rules::default())),
        EntryPayload::Normal(commands),
        EntryPayload::Membership(members(numbers)),
    ]
}

/// Returns the encodings of one log entry of each kind.
pub fn entries(numbers: [u64; 4], commands: Vec<Command>) -> Vec<Vec<u8>> {
    payloads(numbers, commands).into_iter().map(|payload| entry_bytes(payload).to_vec()).collect()
}

/// Returns the encodings of one call of each kind, with their names.
pub fn calls(
    numbers: [u64; 4],
    commands: &[Command],
    state: &[u8],
) -> Vec<(&'static str, Vec<u8>)> {
    let [term, node_id, index, id] = numbers;
    let vote = Vote { leader_id: LeaderId { term, node_id }, committed: index % 2 == 0 };
    let entry = |payload| snapshot::Entry { log_id: log_id(numbers), payload };
    let append = AppendEntriesRequest {
        vote,
        prev_log_id: Some(log_id(numbers)),
        entries: payloads(numbers, commands.to_vec()).into_iter().map(entry).collect(),
        leader_commit: None,
    };
    let station = NodeAddress::new(&format!("[::1]:{}", 1 + id % 65_535), "http://a:1", "box");
    let mut ask = VoteRequest::new(vote, Some(log_id(numbers)));
    ask.leadership_transfer = id % 2 == 0;
    let snapshot = Snapshot { meta: meta(numbers), snapshot: state.into() };
    let mut calls = vec![
        RpcRequest::Append(append),
        RpcRequest::Vote(ask.clone()),
        RpcRequest::PreVote(ask),
        RpcRequest::Snapshot(vote, snapshot),
        RpcRequest::Transfer(TransferLeaderRequest::new(vote, id, Some(log_id(numbers)))),
        RpcRequest::Forward(commands.to_vec()),
        RpcRequest::Read,
        RpcRequest::Change(ClusterChange::Promote { id, force: true }),
        RpcRequest::Change(ClusterChange::Transfer { to: Some(id) }),
        RpcRequest::Status(true),
    ];
    if let Some(station) = station {
        calls.extend([RpcRequest::Join(station.clone()), RpcRequest::Enroll(station)]);
    }
    let cluster = (id % 3 != 0).then_some(ClusterId(u128::from(id) << 40));
    let envelope = |call| Envelope { version: 1, cluster, from: term, to: node_id, call };
    let named = |call: RpcRequest| (call.name(), encode_envelope(&envelope(call)));
    calls.into_iter().map(named).collect()
}

/// Returns the encodings of one answer of each kind.
pub fn answers(numbers: [u64; 4], answers: Vec<Answer>) -> Vec<Vec<u8>> {
    let [term, node_id, index, id] = numbers;
    let vote = Vote { leader_id: LeaderId { term, node_id }, committed: true };
    let place = LeaderProgress { index, now: Time::from_nanos(id) };
    let syncing = Syncing { median: Span::from_nanos(term), worst: Span::from_nanos(index) };
    let member = Member {
        id,
        name: "box".into(),
        address: "10.0.0.1:7100".into(),
        url: "http://10.0.0.1:8080".into(),
        standing: Standing::Learner,
        term,
        leader: Some(node_id),
        last_log: index,
        committed: index,
        applied: index,
        snapshot: 0,
        state: Some("298:0".into()),
        syncing: Some(syncing),
        heard_ms: Some(id),
    };
    let refused =
        TransferLeaderError::LogNotFlushed { expected: Some(log_id(numbers)), actual: None };
    let said = [
        Ok(RpcResponse::Append(AppendEntriesResponse::PartialSuccess(Some(log_id(numbers))))),
        Ok(RpcResponse::Append(AppendEntriesResponse::HigherVote(vote))),
        Ok(RpcResponse::Vote(VoteResponse::new(vote, Some(log_id(numbers)), true))),
        Ok(RpcResponse::Snapshot(vote)),
        Ok(RpcResponse::Transfer(Err(refused))),
        Ok(RpcResponse::Forwarded(place, answers)),
        Ok(RpcResponse::Read(place)),
        Ok(RpcResponse::Joined(ClusterId(index.into()), id)),
        Ok(RpcResponse::Done),
        Ok(RpcResponse::Status(member)),
        Err(RpcError::OtherNode(id)),
        Err(RpcError::NotLeader(Some("10.0.0.1:7100".into()))),
        Err(RpcError::Refused("no".into())),
    ];
    said.iter().map(|answer| encode_answer(1, answer)).collect()
}

/// Returns the bytes of the file `node`.
#[cfg(test)]
pub(crate) fn node() -> Vec<u8> {
    crate::raft::store::data_dir::node_file(ClusterId(7), 12)
}

/// Returns entries with these commands, as the log stores them.
#[cfg(test)]
pub(crate) fn stored_entries(numbers: [u64; 4], commands: Vec<Command>) -> Vec<u8> {
    use raft_log::codeq::Encode as _;
    let mut bytes = Vec::new();
    for payload in payloads(numbers, commands) {
        snapshot::EncodedEntry::new(1, payload).encode(&mut bytes).expect("memory");
    }
    bytes
}
