//! Reconciles the lock table of this mount with the engine's leases and queues, after events or
//! answers were lost.

use crate::engine::{Lease, LeaseKey, LockName, OpenId, Ownership};
use crate::fuse::posix_locks::lock_session::LockSession;
use crate::fuse::posix_locks::table::{Found, Recall};
use std::sync::Arc;

impl LockSession {
    /// Queries the engine, after events or an answer were lost: which lease of the session has the
    /// lease number `asked.number` on the lock `asked.name`, and which waiters that lock has.
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

    /// Compares the engine's leases that are attached to the session with the leases in the lock
    /// table, page by page. Releases each lease that the table does not know: a grant whose answer
    /// was lost, or a lease whose release was lost.
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

    /// Releases those leases on the lock `name` that are attached to the session but that the lock
    /// table does not know.
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
