//! Cluster administration for the front ends: status reports and membership changes. Front ends
//! request them on threads of their own, and the node carries them out on its async runtime.

use super::node::RunningNode;
use super::rpc::messages::{RpcError, RpcRequest, RpcResponse};
use super::rpc::rpc_client::RpcFailure;
use crate::base::jittered;
use crate::service::cluster_status::{
    ClusterAdmin, ClusterChange, ClusterReport, Member, Outlook, PendingRequest, PendingStage,
    Standing, Unchanged,
};
use crate::service::{Then, Unavailable};
use crate::time::{Span, steady_now};
use std::sync::Arc;
use tokio::time::sleep;

/// How long a membership change may take: the leader may have to send a snapshot to a learner.
const CHANGE_PATIENCE: Span = Span::from_secs(60);
/// How long a membership change waits for a leader.
const LEADER_PATIENCE: Span = Span::from_secs(5);
/// The pause between two attempts to make a membership change, before jitter.
const PAUSE: Span = Span::from_millis(50);

/// Implements [`ClusterAdmin`] on a running node.
pub(super) struct RaftClusterAdmin(pub(super) RunningNode);

impl ClusterAdmin for RaftClusterAdmin {
    fn report(&self, with_state: bool, then: Then<ClusterReport>) {
        let reporter = Arc::clone(&self.0.reporter);
        self.0.runtime.spawn(async move { then(reporter.report(with_state).await) });
    }

    fn change(&self, change: ClusterChange, then: Then<Result<(), Unchanged>>) {
        let node = self.0.clone();
        self.0.runtime.spawn(async move { then(node.change(change).await) });
    }

    fn pending(&self, max: usize) -> Vec<PendingRequest> {
        let leads = self.0.reporter.own(false).standing == Standing::Leader;
        let stage = if leads { PendingStage::Replicating } else { PendingStage::Forwarded };
        self.0.requests.queue.pending(max, stage)
    }

    fn own(&self) -> Member {
        self.0.reporter.own(false)
    }

    fn outlook(&self) -> Outlook {
        self.0.reporter.outlook()
    }
}

impl RunningNode {
    /// Makes a change of the membership or the leadership: on this node if it leads, else by a call
    /// to the leader. Retries while no leader is known.
    async fn change(&self, change: ClusterChange) -> Result<(), Unchanged> {
        let until = steady_now() + LEADER_PATIENCE;
        loop {
            let unknown = || {
                let why = "whether it was changed is not known yet".into();
                Unchanged::Unavailable(Unavailable::NoQuorum { why })
            };
            let told = match self.members.change(change).await {
                Err(RpcError::NotLeader(_)) => self.send_on(change).await,
                here => here.map_err(RpcFailure::Turned),
            };
            let why = match told {
                Ok(()) => return Ok(()),
                Err(RpcFailure::Turned(RpcError::Refused(why))) => {
                    return Err(Unchanged::Refused(why.to_string()));
                }
                Err(RpcFailure::Turned(RpcError::Unknown) | RpcFailure::Unheard(_)) => {
                    return Err(unknown());
                }
                Err(trouble) => trouble.to_string(),
            };
            if steady_now() >= until {
                let why = why.into();
                return Err(Unchanged::Unavailable(Unavailable::NoQuorum { why }));
            }
            sleep(jittered(PAUSE).as_duration()).await;
        }
    }

    async fn send_on(&self, change: ClusterChange) -> Result<(), RpcFailure> {
        let told = self.leader.lock().await.call(RpcRequest::Change(change), CHANGE_PATIENCE).await;
        match told? {
            RpcResponse::Done => Ok(()),
            _ => Err(RpcFailure::Unheard("it sent an unexpected answer".to_owned())),
        }
    }
}
