//! A lock that a person takes along (`guard take --for 12h`): a session of its own keeps it for so
//! long, whether the lock service can be reached or not. It is given to no other machine meanwhile,
//! and the lock service is not told that nothing changes any more.

use super::disk::Disk;
use super::folder_lock::FolderLock;
use super::tenure_news::TenureEnd;
use super::tenures::{GuardState, Tenures};
use super::wish::Denied;
use crate::engine::lease_terms::GRACE_OF_FOLDER;
use crate::engine::{EndSession, Op, OpenSession, Outcome, SessionEnd, Ttl};
use crate::service::SessionOwner;
use crate::time::{Time, Wall, boot_now};
use std::sync::Arc;

impl FolderLock {
    /// Opens the session that keeps the lock for so long. Calls `then` when that is done, or with a
    /// sentence that says why it can't be. `then` must not block.
    fn begin_away(
        self: &Arc<Self>,
        length: Ttl,
        then: impl FnOnce(Result<(), String>) + Send + 'static,
    ) {
        if matches!(self.locks.own_session(), Ok(SessionOwner::Own)) {
            // The engine is in this process, and keeps the lock anyway.
            return then(Ok(()));
        }
        let open = OpenSession {
            client: self.client().clone(),
            ttl: Some(length),
            grace: GRACE_OF_FOLDER,
        };
        let (own, asked_at) = (Arc::clone(self), boot_now());
        self.locks.submit(Op::OpenSession(open), move |answer| {
            then(match answer {
                Ok(Ok(outcome)) => match outcome.first() {
                    Outcome::SessionOpened(session) => {
                        own.end_away();
                        own.away.begin(session, asked_at, length.span());
                        Ok(())
                    }
                    other => Err(format!("the lock service answered {other:?}")),
                },
                Ok(Err(refusal)) => Err(refusal.to_string()),
                Err(why) => Err(why.to_string()),
            });
        });
    }

    /// Ends the session that keeps the lock although nobody can reach this machine.
    pub(super) fn end_away(&self) {
        if let Some(session) = self.away.end() {
            let end = EndSession { session, end: SessionEnd::Closed };
            // If it does not arrive, the session ends by itself.
            self.locks.give_back(Op::EndSession(end));
        }
    }
}

impl<D: Disk> Tenures<D> {
    /// Prepares a tenure that a person takes along for so long: gives the lock up, if it is held,
    /// so that the next request takes it for longer. Calls `then` when that is done.
    pub(crate) fn prepare_away(
        self: &Arc<Self>,
        length: Ttl,
        then: impl FnOnce(Result<(), Denied>) + Send + 'static,
    ) {
        let own = Arc::clone(self);
        self.give(None, move || {
            own.lock.clone().begin_away(length, move |begun| {
                let kept = "so the lock can't be taken along";
                then(begun.map_err(|why| Denied { sentence: format!("{why}, {kept}") }));
            });
        });
    }

    /// Forgets that a lock was to be taken along which this guard does not hold.
    pub(crate) fn stay(&self) {
        if !matches!(self.state(), GuardState::Holding(..)) {
            self.lock.end_away();
        }
    }

    /// Whether the lock was taken along, so that no other machine gets it.
    pub(super) fn is_away(&self) -> bool {
        self.lock.away.session().is_some()
    }

    /// Returns until when the lock was taken along.
    pub(crate) fn away_until(&self) -> Option<Wall> {
        self.lock.away.session()?;
        let until = self.lock.away.until();
        matches!(self.state(), GuardState::Holding(..)).then(|| Wall::at_boot_time(until))
    }

    /// Returns when the lock that was taken along is given up, unless programs that must end before
    /// do so earlier.
    pub(super) fn gives_away_at(&self) -> Time {
        self.lock.away.gives_at().max(self.uses.ends_at())
    }

    /// Gives a lock that was taken along up at the end of its time. Returns whether it was taken
    /// along.
    pub(super) fn away_step(&self, now: Time) -> bool {
        let is_away = self.is_away();
        if is_away && self.lock.away.gives_at() <= now && self.uses.end(now) {
            self.give_now(TenureEnd::AwayOver, Box::new(|| {}));
        }
        is_away
    }
}
