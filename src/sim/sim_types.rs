//! openraft's type configuration for the simulation: the log entries of a real cluster, on a
//! runtime with virtual time.

use crate::raft::types::{Answers, Proposal};
use crate::time::{Span, Time};
use openraft::type_config::TypeConfigExt;
use openraft::vote::leader_id_adv::LeaderId;
use openraft_rt_sim::SimRuntime;

openraft::declare_raft_types!(
    /// openraft's type configuration: the log entries and answers of a real cluster, on a simulated
    /// async runtime.
    pub(super) SimTypeConfig:
        D = Proposal,
        R = Answers,
        AsyncRuntime = SimRuntime,
);

/// One leadership: a term, and the node that leads in it.
pub(super) type Leader = LeaderId<u64, u64>;

/// Returns the virtual time since the simulation began: the time that a perfect clock would show.
pub(super) fn now() -> Time {
    let since = SimTypeConfig::now().elapsed_since_start();
    Time::from_nanos(
        u64::try_from(since.as_nanos()).expect("a simulation lasts less than 500 years"),
    )
}

/// Sleeps for a span of virtual time.
pub(super) async fn sleep(span: Span) {
    SimTypeConfig::sleep(span.as_duration()).await;
}
