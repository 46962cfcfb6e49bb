//! The handovers of a folder in the lock service: what it remembers of the last tenure, and the
//! messages of this one.

use super::folder_lock::{FolderLock, SeenLock};
use crate::engine::{
    self, Annotate, ClientId, Holder, LeaseKey, Mode, Op, Outcome, Patch, Previous, Token,
};
use crate::guard::lock::folder_lock::AWAY_NOTE;
use crate::guard::tenure::LiveTenures;
use crate::service::{CacheableView, Retry};
use crate::time::{Time, Wall};
use barrier::handover::{Handover, HandoverEnd, PreviousTenure, Remembered};
use barrier::tenure_id::TenureId;
use common::task::spawn;
use std::sync::Arc;

const fn end_of(end: engine::HandoverEnd) -> HandoverEnd {
    match end {
        engine::HandoverEnd::Open => HandoverEnd::Open,
        engine::HandoverEnd::Released => HandoverEnd::Released,
        engine::HandoverEnd::Expired => HandoverEnd::Expired,
        engine::HandoverEnd::Stolen => HandoverEnd::Stolen,
        engine::HandoverEnd::Session => HandoverEnd::Session,
        engine::HandoverEnd::Unknown => HandoverEnd::Unknown,
    }
}

/// Returns what the lock service remembers of the last tenure, as the barrier reads it. `wall`
/// converts the service's time.
pub(crate) fn previous_tenure(
    known: Option<&Previous>,
    wall: impl Fn(Time) -> Wall,
) -> PreviousTenure {
    let seq = known.map_or(0, |known| known.seq);
    let Some(last) = known.and_then(|known| known.last.as_ref()) else {
        return PreviousTenure {
            seq,
            token: Token::named(0),
            client: String::new(),
            at: 0,
            end: HandoverEnd::Unknown,
            handover: Remembered::Nothing,
        };
    };
    let at = last.at.map_or(0, |at| {
        let wall = wall(at);
        u64::try_from(wall.secs).unwrap_or(0) * 1_000 + u64::from(wall.nanos / 1_000_000)
    });
    PreviousTenure {
        seq,
        token: last.token,
        client: last.client.to_string(),
        at,
        end: end_of(last.end),
        handover: Remembered::read(Some(&last.handover.text)),
    }
}

impl FolderLock {
    /// Returns a client that holds the lock or waits for it, for messages: it may be another
    /// machine with the name of this one.
    pub(in crate::guard) fn shown(&self, client: &ClientId) -> String {
        if client == self.client() {
            return format!(
                "{client} (this machine's own name, which another machine uses too, or a guard of \
                 this machine that was killed; each machine needs a name of its own, --client)"
            );
        }
        client.to_string()
    }

    /// Returns what the lock service remembers of the last tenure, as the barrier reads it.
    pub(in crate::guard) fn previous_tenure(&self, known: Option<&Previous>) -> PreviousTenure {
        previous_tenure(known, |at| self.locks.wall(at))
    }

    /// Asks what the lock service remembers of the last tenure. Calls `then` with the answer, or
    /// with a sentence that says why there is none. `then` must not block.
    pub(crate) fn ask_previous(
        self: &Arc<Self>,
        then: impl FnOnce(Result<PreviousTenure, String>) + Send + 'static,
    ) {
        let own = Arc::clone(self);
        let view = self.locks.view(self.name(), Retry::Never);
        spawn(async move {
            then(match view.await {
                Ok(seen) => Ok(own.previous_tenure(seen.view.previous.as_deref())),
                Err(why) => Err(why.to_string()),
            });
        });
    }

    /// Whether other machines may hold the lock at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        self.identity.mode == Mode::Shared
    }

    /// Asks which tenures are live beside one that was granted before. Calls `then` with the
    /// answer, or with a sentence that says why there is none. `then` must not block.
    pub(super) fn ask_live(
        self: &Arc<Self>,
        newest: TenureId,
        then: impl FnOnce(Result<LiveTenures, String>) + Send + 'static,
    ) {
        let view = self.locks.view(self.name(), Retry::Never);
        spawn(async move {
            then(match view.await {
                Ok(CacheableView { view, .. }) => {
                    let tokens = view.holders.iter().map(|holder| holder.lease.token).collect();
                    Ok(LiveTenures { newest, tokens })
                }
                Err(why) => Err(why.to_string()),
            });
        });
    }

    /// Asks which other clients hold the lock or wait for it. Calls `then` with the answer; `None`
    /// if there is none. `then` must not block.
    pub(crate) fn inspect(self: &Arc<Self>, then: impl FnOnce(Option<SeenLock>) + Send + 'static) {
        let own = Arc::clone(self);
        let view = self.locks.view(self.name(), Retry::Never);
        spawn(async move {
            let view = view.await;
            let token = own.token();
            let is_other = |it: &&Holder| !own.is_own(it.lease.hold);
            // Another machine may have the name of this one. A guard that holds the lock does not
            // wait for it.
            let waits = |client: &&ClientId| token.is_some() || *client != own.client();
            then(view.ok().map(|CacheableView { view, .. }| {
                let mut waiters = view.waiters.iter().map(|waiter| &waiter.client);
                let holder = view.holders.iter().find(is_other);
                let is_away =
                    |it: &&Holder| it.lease.details.note().is_some_and(|note| **note == *AWAY_NOTE);
                SeenLock {
                    holder: holder.map(|holder| own.shown(&holder.lease.holder)),
                    away_until: holder
                        .filter(is_away)
                        .map(|holder| own.locks.wall(holder.ends.expires_at)),
                    waiter: waiters.find(waits).map(|client| own.shown(client)),
                }
            }));
        });
    }

    /// Asks whether this guard still holds the lock. Calls `then` with the answer; `None` if there
    /// is none. `then` must not block.
    pub(crate) fn ask_whether_held(
        self: &Arc<Self>,
        then: impl FnOnce(Option<bool>) + Send + 'static,
    ) {
        let Some(token) = self.token() else { return then(Some(false)) };
        let view = self.locks.view(self.name(), Retry::Never);
        spawn(async move {
            let holds =
                |seen: CacheableView| seen.view.holders.iter().any(|it| it.lease.token == token);
            then(view.await.ok().map(holds));
        });
    }

    /// Sends a handover of the current tenure. Calls `then` when the lock service has it, or with a
    /// sentence that says why that is not certain. `then` must not block.
    pub(crate) fn hand_over(
        &self,
        handover: &Handover,
        then: impl FnOnce(Result<(), String>) + Send + 'static,
    ) {
        let Some((token, counter)) = self.next_handover() else {
            return then(Err("the lock is not held any more".to_owned()));
        };
        let (name, client) = (self.name().clone(), self.client().clone());
        let key = LeaseKey { name, client, token: Some(token) };
        let handover = engine::Handover { text: handover.to_string().into(), counter };
        let ask = Annotate { key, patch: Patch::default(), handover: Some(handover) };
        let annotated = self.locks.submit(Op::Annotate(ask).into(), Retry::Never);
        spawn(async move {
            then(match annotated.outcome().await.map(Outcome::first) {
                Ok(Outcome::Annotated) => Ok(()),
                Ok(other) => Err(format!("the lock service answered {other:?}")),
                Err(failure) => Err(failure.to_string()),
            });
        });
    }

    /// Releases the lock with a handover. Calls `then` when that is decided or got no answer in
    /// time.
    pub(crate) fn release_handing_over(
        &self,
        handover: &Handover,
        then: impl FnOnce() + Send + 'static,
    ) {
        self.release_with(Some(handover.to_string().into()), then);
    }
}
