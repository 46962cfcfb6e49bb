//! The acts of a guard that go into its audit log.

use super::audit_log::{AuditLog, AuditedAct, GuardAct};
use super::barrier::handover::{HandoverEnd, PreviousTenure};
use super::disk::Disk;
use super::folder_guard::FolderGuard;
use super::tenure::TenureId;
use super::tenures::Tenures;

impl<D: Disk> FolderGuard<D> {
    /// Records acts in this audit log.
    pub(crate) fn audited(mut self, audit: AuditLog<D>) -> Self {
        self.audit = Some(audit);
        self
    }

    /// Records an act in the audit log.
    pub(crate) fn audit(&self, act: &GuardAct<'_>) {
        if let Some(audit) = &self.audit {
            audit.note(act);
        }
    }
}

impl<D: Disk> Tenures<D> {
    /// Records an act of a tenure in the audit log.
    pub(super) fn audit(&self, act: AuditedAct, tenure: TenureId, reason: &str) {
        let (target, token) = (self.lock.name().as_str(), Some(tenure.token));
        let session = self.lock.held_session();
        self.guard.audit(&GuardAct { act, target, token, session, reason });
    }

    /// Records that a tenure has begun after the lease of the last one had expired, once for each
    /// tenure that has expired.
    pub(super) fn audit_expiry(&self, tenure: TenureId, last: &PreviousTenure) {
        let is_new = self.steps.lock().expired.replace(last.token) != Some(last.token);
        if last.end == HandoverEnd::Expired && is_new {
            let why = format!("the lease of {} (token {}) expired", last.client, last.token);
            self.audit(AuditedAct::AcquireAfterExpiry, tenure, &why);
        }
    }
}
