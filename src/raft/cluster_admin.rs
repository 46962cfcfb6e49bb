//! Cluster administration for the front ends: status and membership, asked from other threads and
//! answered on the node's own.

use super::node::Begun;
use super::rpc::messages::{Call, Told, Turned};
use super::rpc::rpc_client::Trouble;
use crate::random::jittered;
use crate::service::cluster_status::{Act, Change, Council, Member, Outlook, Report, Unchanged};
use crate::service::{Then, Unavailable};
use crate::time::{Span, Wall, steady_now};
use std::sync::Arc;
use tokio::time::sleep;

/// How long a change may take: a learner may have to be sent a snapshot.
const CHANGE_PATIENCE: Span = Span::from_secs(60);
/// How long it is waited for somebody to lead.
const LEADER_PATIENCE: Span = Span::from_secs(5);
/// Between two tries.
const PAUSE: Span = Span::from_millis(50);

/// Asks the nodes.
pub(super) struct Chamber(pub(super) Begun);

impl Council for Chamber {
    fn report(&self, with_state: bool, then: Then<Report>) {
        let reporter = Arc::clone(&self.0.reporter);
        self.0.runtime.spawn(async move { then(reporter.report(with_state).await) });
    }

    fn change(&self, change: Change, then: Then<Result<(), Unchanged>>) {
        let node = self.0.clone();
        self.0.runtime.spawn(async move { then(node.change(change).await) });
    }

    fn audit(&self, act: &Act<'_>) {
        self.0.audit.lock().enter_act(act, Wall::now());
    }

    fn own(&self) -> Member {
        self.0.reporter.own(false)
    }

    fn outlook(&self) -> Outlook {
        self.0.reporter.outlook()
    }
}

impl Begun {
    /// Has whoever leads change something.
    async fn change(&self, change: Change) -> Result<(), Unchanged> {
        let until = steady_now() + LEADER_PATIENCE;
        loop {
            let unknown = || {
                let why = "whether it was changed is not known yet".into();
                Unchanged::Unavailable(Unavailable::NoQuorum { why })
            };
            let told = match self.members.change(change).await {
                Err(Turned::NotLeader(_)) => self.send_on(change).await,
                here => here.map_err(Trouble::Turned),
            };
            let why = match told {
                Ok(()) => return Ok(()),
                Err(Trouble::Turned(Turned::Refused(why))) => {
                    return Err(Unchanged::Refused(why.to_string()));
                }
                Err(Trouble::Turned(Turned::Unknown) | Trouble::Unheard(_)) => {
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

    async fn send_on(&self, change: Change) -> Result<(), Trouble> {
        let told = self.leader.lock().await.call(Call::Change(change), CHANGE_PATIENCE).await;
        match told? {
            Told::Done => Ok(()),
            _ => Err(Trouble::Unheard("it answered what was not asked".to_owned())),
        }
    }
}
