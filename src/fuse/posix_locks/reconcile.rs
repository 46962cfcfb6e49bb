//! Reconciles the holds and waits of this mount's open files with the engine's state, after events
//! or answers were lost.

use crate::engine::{Lease, LeaseKey, LockName, OpenId, Ownership};
use crate::fuse::posix_locks::lock_session::LockSession;
use crate::fuse::posix_locks::table::{Found, Recall};
use std::sync::Arc;

impl LockSession {
    /// Queries the engine for the lease of a number on a lock and the lock's waiters, after events
    /// or an answer were lost.
    pub(crate) fn recall(self: &Arc<Self>, asked: Recall) {
        let own = Arc::clone(self);
        self.service().view_until_answered(&asked.name.clone(), move |view| {
            let Ok(view) = view else { return };
            let open = OpenId { session: own.session, number: asked.number };
            let hold = Ownership::OpenFile(open);
            let lease = view.holders.iter().map(|holder| &holder.lease).find(|l| l.hold == hold);
            let lease = lease.map(|lease| key_of(&view.name, lease));
            let tickets = view.waiters.iter().map(|waiter| waiter.ticket).collect();
            let found = Found { lease, tickets };
            own.run(|table, todo| table.recalled(&asked, &found, todo));
        });
    }

    /// Compares the leases that are attached to the session with the holds of open files here, page
    /// by page, and releases the others: grants whose answers were lost, and leases whose release
    /// was lost.
    pub(crate) fn compare(self: &Arc<Self>, after: Option<LockName>) {
        let own = Arc::clone(self);
        self.service().leases(self.session, after, move |page| {
            let Ok(page) = page else { return };
            let is_unknown = |token| own.queue.look(|table| table.holder(token).is_none());
            for (name, _) in page.items.iter().filter(|(_, token)| is_unknown(*token)) {
                own.give_strays_back(name);
            }
            if let Some(next) = page.next.and_then(|next| LockName::parse(&next).ok()) {
                own.compare(Some(next));
            }
        });
    }

    /// Releases those leases of a lock that are attached to the session but unknown here.
    fn give_strays_back(self: &Arc<Self>, name: &LockName) {
        let own = Arc::clone(self);
        self.service().view_until_answered(name, move |view| {
            let Ok(view) = view else { return };
            for lease in view.holders.iter().map(|holder| &holder.lease) {
                let Ownership::OpenFile(open) = lease.hold else { continue };
                if open.session == own.session {
                    let key = key_of(&view.name, lease);
                    own.run(|table, todo| table.found_stray(open.number, key, todo));
                }
            }
        });
    }
}

fn key_of(name: &LockName, lease: &Lease) -> LeaseKey {
    let (name, client) = (name.clone(), lease.holder.clone());
    LeaseKey { name, client, token: Some(lease.token) }
}
