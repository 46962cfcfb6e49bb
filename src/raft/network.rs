//! Implements openraft's network traits: links to other nodes that carry heartbeats, log entries,
//! votes and snapshots. openraft opens one link per purpose and node.

use super::entry_weight::fitting;
use super::node_address::NodeAddress;
use super::replica::Replica;
use super::rpc::accept::BYTES_A_SECOND_MIN;
use super::rpc::messages::{RpcError, RpcRequest, RpcResponse};
use super::rpc::rpc_client::{RpcConnection, RpcFailure, RpcIdentity};
use super::types::{NodeId, Snapshot, TypeConfig, Vote};
use crate::time::{Span, steady_now};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Timeout of a call that writes little or nothing to a disk. It is short, since a connection that
/// was opened before a partition may stay silent long after the partition has ended.
const CALL_PATIENCE: Span = Span::from_millis(500);
/// The timeout of a call grows by a second per this many bytes, for slow disks and networks. After
/// a call that took too long, half as many bytes are expected in a second, down to the minimum.
const BYTES_A_SECOND: u64 = 4 << 20;
/// The timeout of a call with a snapshot, which the receiver writes to its disk and decodes.
const SNAPSHOT_PATIENCE: Span = Span::from_secs(5);
/// The size that the timeout of a call assumes for each entry, if the entries weigh less. It counts
/// at the full speed of [`BYTES_A_SECOND`], however slow the link is.
const ENTRY_BYTES: u64 = 16 << 10;

/// Makes links to other nodes. A lone node has no `caller`, so its links are unreachable.
pub(super) struct Network {
    pub(super) caller: Option<Arc<RpcIdentity>>,
    pub(super) replica: Arc<Replica>,
    /// Set when a leader reports that this node is no longer a member.
    pub(super) removed: Arc<AtomicBool>,
}

/// A link to one node.
pub(super) struct PeerLink {
    line: Option<RpcConnection>,
    to: NodeId,
    caller: Option<Arc<RpcIdentity>>,
    replica: Arc<Replica>,
    removed: Arc<AtomicBool>,
    /// The address that the node had when the link was made. It is used if the membership has no
    /// address of the node.
    known: Option<NodeAddress>,
    speed: LinkSpeed,
}

/// How many bytes the calls of a link are expected to carry in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LinkSpeed(u64);

/// The size of a call, because of which it may take longer than others.
#[derive(Debug, Clone, Copy, Default)]
struct CallSize {
    bytes: u64,
    entries: u64,
}

impl LinkSpeed {
    /// Returns how much longer a call may take because of its size.
    fn patience(self, size: CallSize) -> Span {
        let entries = Self(BYTES_A_SECOND).time_of(size.entries.saturating_mul(ENTRY_BYTES));
        self.time_of(size.bytes).max(entries)
    }

    fn time_of(self, bytes: u64) -> Span {
        Span::from_millis(bytes.saturating_mul(1_000) / self.0)
    }

    /// Expects half the speed, after a call of `bytes` bytes has got no answer for `took`, or a
    /// higher one, after it has got one. A call that could not be sent changes nothing.
    fn learn<T>(&mut self, bytes: u64, took: Span, told: &Result<T, RpcFailure>) {
        match told {
            // A short call that is lost says nothing about the speed of the link.
            Err(RpcFailure::Unheard(_)) if bytes > 0 && took >= self.time_of(bytes) => {
                self.0 = (self.0 / 2).max(BYTES_A_SECOND_MIN);
            }
            Ok(_) | Err(RpcFailure::Turned(_)) if Self(self.0 * 2).time_of(bytes) > took + took => {
                self.0 = (self.0 * 2).min(BYTES_A_SECOND);
            }
            _ => {}
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerLink;

    async fn new_client(&mut self, to: NodeId, node: &BasicNode) -> PeerLink {
        PeerLink {
            line: None,
            to,
            caller: self.caller.clone(),
            replica: Arc::clone(&self.replica),
            removed: Arc::clone(&self.removed),
            known: NodeAddress::of(node),
            speed: LinkSpeed(BYTES_A_SECOND),
        }
    }
}

impl PeerLink {
    /// Sends a call. Waits for its answer for `patience`, and longer by the time that its size is
    /// expected to take.
    async fn call(
        &mut self,
        call: RpcRequest,
        patience: Span,
        size: CallSize,
    ) -> Result<RpcResponse, RPCError<TypeConfig>> {
        let unreachable = |why: &str| RPCError::from(Unreachable::from_string(why));
        let Some(caller) = &self.caller else { return Err(unreachable("this node is alone")) };
        let at = self.replica.look().members().get_node(&self.to).and_then(NodeAddress::of);
        let Some(at) = at.or_else(|| self.known.clone()) else {
            return Err(unreachable("its address is unknown"));
        };
        if self.line.as_ref().is_none_or(|line| line.address != at.address) {
            self.line = Some(caller.line(self.to, &at.address));
        }
        let line = self.line.as_mut().expect("just made");
        let sent = steady_now();
        let told = line.call(call, patience + self.speed.patience(size)).await;
        self.speed.learn(size.bytes, steady_now().since(sent), &told);
        told.map_err(|trouble| {
            if matches!(trouble, RpcFailure::Turned(RpcError::Removed)) {
                self.removed.store(true, Ordering::Relaxed);
            }
            log::debug!("node {}: {trouble}", self.to);
            match trouble {
                RpcFailure::Unheard(_) => NetworkError::from_string(trouble).into(),
                RpcFailure::Unsent(_) | RpcFailure::Turned(_) => {
                    Unreachable::from_string(trouble).into()
                }
            }
        })
    }
}

fn foreign() -> RPCError<TypeConfig> {
    Unreachable::from_string("it sent an unexpected answer").into()
}

impl RaftNetworkV2<TypeConfig> for PeerLink {
    type SnapshotData = Arc<[u8]>;

    async fn append_entries(
        &mut self,
        mut ask: AppendEntriesRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        // A call carries only the entries that fit, since the receiver refuses larger calls;
        // openraft sends the remaining entries later.
        let (count, weight) = fitting(&ask.entries);
        let is_whole = count == ask.entries.len();
        ask.entries.truncate(count);
        let sent = ask.entries.last().map(|entry| entry.log_id);
        let size = CallSize { bytes: weight as u64, entries: count as u64 };
        match self.call(RpcRequest::Append(ask), CALL_PATIENCE, size).await? {
            RpcResponse::Append(AppendEntriesResponse::Success) if !is_whole => {
                Ok(AppendEntriesResponse::PartialSuccess(sent))
            }
            RpcResponse::Append(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn vote(
        &mut self,
        ask: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(RpcRequest::Vote(ask), CALL_PATIENCE, CallSize::default()).await? {
            RpcResponse::Vote(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn pre_vote(
        &mut self,
        ask: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(RpcRequest::PreVote(ask), CALL_PATIENCE, CallSize::default()).await? {
            RpcResponse::Vote(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let size = CallSize { bytes: snapshot.snapshot.len() as u64, entries: 0 };
        let call = self.call(RpcRequest::Snapshot(vote, snapshot), SNAPSHOT_PATIENCE, size);
        let told = tokio::select! {
            told = call => told?,
            closed = cancel => return Err(closed.into()),
        };
        match told {
            RpcResponse::Snapshot(vote) => Ok(SnapshotResponse::new(vote)),
            _ => Err(foreign().into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        ask: TransferLeaderRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(RpcRequest::Transfer(ask), CALL_PATIENCE, CallSize::default()).await? {
            RpcResponse::Transfer(said) => Ok(said),
            _ => Err(foreign()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unheard() -> Result<(), RpcFailure> {
        Err(RpcFailure::Unheard("no answer in time".into()))
    }

    /// A link of any speed above the minimum carries the longest call after a few attempts, and a
    /// link that becomes faster is soon expected to be fast.
    #[test]
    fn the_timeout_of_a_call_follows_the_speed_of_the_link() {
        let bytes = 4 << 20;
        for real in [8 << 20, 4 << 20, 1 << 20, 100_000, BYTES_A_SECOND_MIN] {
            let (mut speed, took) = (LinkSpeed(BYTES_A_SECOND), LinkSpeed(real).time_of(bytes));
            let mut attempts = 1;
            while took > speed.time_of(bytes) + CALL_PATIENCE {
                speed.learn(bytes, speed.time_of(bytes) + CALL_PATIENCE, &unheard());
                attempts += 1;
            }
            assert!(attempts <= 10, "{attempts} attempts at {real} bytes a second");
            // The next call is not given less time than this one needed.
            speed.learn(bytes, took, &Ok(()));
            assert!(took <= speed.time_of(bytes) + CALL_PATIENCE, "{speed:?} for {real}");
        }
        let mut speed = LinkSpeed(BYTES_A_SECOND_MIN);
        for _ in 0..8 {
            speed.learn(bytes, Span::from_millis(10), &Ok(()));
        }
        assert_eq!(speed, LinkSpeed(BYTES_A_SECOND));
        // A lost heartbeat changes nothing.
        speed.learn(0, CALL_PATIENCE, &unheard());
        assert_eq!(speed, LinkSpeed(BYTES_A_SECOND));
    }

    /// A call with many small entries to a node that is down ends within 2.5 s, also if the
    /// link was slow before; and a connection that is refused says nothing about the speed.
    #[test]
    fn many_small_entries_have_a_short_timeout_at_every_speed() {
        let size = CallSize { bytes: 300 * 100, entries: 300 };
        for speed in [BYTES_A_SECOND, BYTES_A_SECOND_MIN] {
            let patience = CALL_PATIENCE + LinkSpeed(speed).patience(size);
            assert!(patience <= Span::from_millis(2_500), "{patience:?} at {speed}");
        }
        let full = LinkSpeed(BYTES_A_SECOND).patience(size);
        assert_eq!(full, Span::from_millis(300 * ENTRY_BYTES * 1_000 / BYTES_A_SECOND));
        for start in [BYTES_A_SECOND, BYTES_A_SECOND_MIN] {
            let mut speed = LinkSpeed(start);
            for took in [Span::ZERO, Span::from_secs(9)] {
                speed.learn::<()>(size.bytes, took, &Err(RpcFailure::Unsent("refused".into())));
            }
            assert_eq!(speed, LinkSpeed(start));
        }
    }
}
