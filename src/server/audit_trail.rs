//! Entries of front ends in the audit log: administrative acts, and refused requests, each with the
//! credential and the address of the caller.

use crate::auth::connection_limits::ConnectionOrigin;
use crate::auth::permissions::Operation;
use crate::auth::{Credential, Grant};
use crate::engine::{ClientId, Op, ResetScope};
use crate::service::{ActionTarget, AdminAction, AuditEntry, Locks, RefusedRequest};
use tokio::sync::oneshot;

/// The credential and the address of a caller, for the audit log.
#[derive(Clone, Copy)]
pub(crate) struct AuditedCaller<'a> {
    pub(crate) grant: &'a Grant,
    pub(crate) origin: &'a ConnectionOrigin,
}

impl AuditedCaller<'_> {
    /// Records that a request of this caller was refused.
    pub(crate) fn refused(self, locks: &Locks, operation: Operation, reason: &str) {
        let (by, credential) = (&*self.grant.name, self.grant.credential.as_str());
        let is_known = !matches!(self.grant.credential, Credential::Missing | Credential::Unneeded);
        let (what, address) = (operation.rule().name, &*self.origin.source.to_string());
        let network = &*self.origin.source.identity().to_string();
        let refused = RefusedRequest { what, by, credential, is_known, address, network, reason };
        locks.audit(&AuditEntry::Refused(refused));
    }

    /// Records an administrative act of this caller that has begun or ended, and returns when the
    /// record is on disk.
    pub(crate) async fn acts(
        self,
        locks: &Locks,
        operation: Operation,
        target: Option<ActionTarget<'_>>,
        outcome: &str,
    ) {
        let address = self.origin.source.to_string();
        locks.audit(&AuditEntry::Act(self.act(operation, target, &address, outcome)));
        let (then, written) = oneshot::channel();
        // The send fails only if the request is over, and the wait only if the audit log has ended.
        locks.when_audited(Box::new(move || then.send(()).unwrap_or_default()));
        written.await.unwrap_or_default();
    }

    /// Records an administrative command before it is submitted, such as a steal. The records of
    /// what it has done follow, and it is answered when all of them are on disk.
    pub(crate) fn commands(self, locks: &Locks, op: &Op) {
        let (operation, target) = match op {
            Op::Steal(ask) => (Operation::Steal, Some(ActionTarget::Lock(&ask.name))),
            Op::Forget(ask) => (Operation::ForgetName, Some(ActionTarget::Lock(&ask.name))),
            Op::EndHoldOff(_) => (Operation::GrantNow, None),
            Op::Reset(ask) => (
                Operation::Reset,
                match &ask.whose {
                    ResetScope::Of(client) => Some(ActionTarget::Client(client)),
                    ResetScope::AllBut(_) => None,
                },
            ),
            _ => return,
        };
        let address = self.origin.source.to_string();
        locks.audit(&AuditEntry::Act(self.act(operation, target, &address, "begun")));
    }

    /// Records that this caller ends all that a client has, and returns when the record is on disk.
    /// There is no record unless the caller may also steal: all others release only what belongs to
    /// their own clients, and could push other records out of the audit log.
    pub(crate) async fn ends_all_of(self, locks: &Locks, client: &ClientId) {
        if self.grant.may_begin(Operation::Steal).is_ok() {
            let target = Some(ActionTarget::Client(client));
            self.acts(locks, Operation::ReleaseAll, target, "begun").await;
        }
    }

    fn act<'a>(
        &'a self,
        operation: Operation,
        target: Option<ActionTarget<'a>>,
        address: &'a str,
        outcome: &'a str,
    ) -> AdminAction<'a> {
        let (by, credential) = (&*self.grant.name, self.grant.credential.as_str());
        AdminAction { what: operation.rule().name, target, by, credential, address, outcome }
    }
}
