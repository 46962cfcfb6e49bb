//! Comparing what this mount's open files hold and wait for with what the engine says, after
//! events or answers were lost.

use crate::fuse::posix_locks::Running;
use crate::fuse::posix_locks::run;
use crate::fuse::posix_locks::table::{Found, Recall};
use crate::engine::{Lease, LeaseKey, LockName, OpenId, Ownership};
use crate::fuse::shared::Fs;
use std::sync::Arc;

/// Asks the engine what a number holds of a lock, and whether it waits: events were lost, or an
/// answer.
pub(crate) fn recall(fs: &Fs, running: &Arc<Running>, asked: Recall) {
    let (fs2, running) = (Arc::clone(fs), Arc::clone(running));
    fs.locks.view_until_answered(&asked.name.clone(), move |view| {
        let Ok(view) = view else { return };
        let own = Ownership::OpenFile(OpenId { session: running.session, number: asked.number });
        let lease = view.holders.iter().map(|holder| &holder.lease).find(|l| l.hold == own);
        let lease = lease.map(|lease| key_of(&view.name, lease));
        let tickets = view.waiters.iter().map(|waiter| waiter.ticket).collect();
        let found = Found { lease, tickets };
        run(&fs2, &running, |table, todo| table.recalled(&asked, &found, todo));
    });
}

/// Compares what hangs on the session with what open files hold here, page by page, and gives the
/// rest back: grants whose answers were lost, and releases that were.
pub(crate) fn compare(fs: &Fs, running: &Arc<Running>, after: Option<LockName>) {
    let (fs2, running2) = (Arc::clone(fs), Arc::clone(running));
    fs.locks.leases(running.session, after, move |page| {
        let Ok(page) = page else { return };
        let is_unknown = |token| running2.desk.look(|table| table.holder(token).is_none());
        for (name, _) in page.items.iter().filter(|(_, token)| is_unknown(*token)) {
            give_strays_back(&fs2, &running2, name);
        }
        if let Some(next) = page.next.and_then(|next| LockName::parse(&next).ok()) {
            compare(&fs2, &running2, Some(next));
        }
    });
}

/// Gives back what nobody here knows of among the holds of a lock that hang on the session.
fn give_strays_back(fs: &Fs, running: &Arc<Running>, name: &LockName) {
    let (fs2, running) = (Arc::clone(fs), Arc::clone(running));
    fs.locks.view_until_answered(name, move |view| {
        let Ok(view) = view else { return };
        for lease in view.holders.iter().map(|holder| &holder.lease) {
            let Ownership::OpenFile(open) = lease.hold else { continue };
            if open.session == running.session {
                let key = key_of(&view.name, lease);
                run(&fs2, &running, |table, todo| table.found_stray(open.number, key, todo));
            }
        }
    });
}

fn key_of(name: &LockName, lease: &Lease) -> LeaseKey {
    let (name, client) = (name.clone(), lease.holder.clone());
    LeaseKey { name, client, token: Some(lease.token) }
}
