//! Entries of front ends in the audit log: administrative acts, and refused requests, each with the
//! credential and the address of the caller.

use crate::auth::Grant;
use crate::auth::connection_limits::ConnectionOrigin;
use crate::auth::permissions::Operation;
use crate::engine::{ClientId, Op, ResetScope};
use crate::service::{ActionTarget, AdminAction, AuditEntry, Locks, RefusedRequest};

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
        let (what, address) = (operation.rule().name, &*self.origin.source.to_string());
        let refused = RefusedRequest { what, by, credential, address, reason };
        locks.audit(&AuditEntry::Refused(refused));
    }

    /// Records an administrative act of this caller that has begun or ended.
    pub(crate) fn acts(
        self,
        locks: &Locks,
        operation: Operation,
        target: Option<ActionTarget<'_>>,
        outcome: &str,
    ) {
        let address = self.origin.source.to_string();
        locks.audit(&AuditEntry::Act(self.act(operation, target, &address, outcome)));
    }

    /// Records an administrative command before it is submitted: a steal or a reset. The records of
    /// what it has done follow, and it is answered when all of them are on disk.
    pub(crate) fn commands(self, locks: &Locks, op: &Op) {
        let (operation, target) = match op {
            Op::Steal(ask) => (Operation::Steal, Some(ActionTarget::Lock(&ask.name))),
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
        locks.audit(&AuditEntry::Command(self.act(operation, target, &address, "begun")));
    }

    /// Records that this caller ends all that a client has, unless its credential is for that
    /// client alone.
    pub(crate) fn ends_all_of(self, locks: &Locks, client: &ClientId) {
        if self.grant.only_client() != Some(client.as_str()) {
            let target = Some(ActionTarget::Client(client));
            self.acts(locks, Operation::ReleaseAll, target, "begun");
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
