//! The guard's reaction to other machines that wait for the lock of the folder, and to programs of
//! another owner that do: it is notified of them, and gives the lock up once nothing has changed
//! for a while (`--yield`), or at the latest after `--max`.
//!
//! A lock that a person takes along (`guard take --for 12h`): a session of its own keeps it for so
//! long, whether the lock service can be reached or not. It is given to no other machine meanwhile,
//! and it does not report to the lock service that nothing changes any more.

use crate::engine::values::lease::GRACE_OF_FOLDER;
use crate::engine::{EndSession, Op, OpenSession, Outcome, SessionEnd, Ttl};
use crate::guard::disk::operations::Disk;
use crate::guard::folder::folder_guard::{CHECK_AGAIN, IsUsed};
use crate::guard::lock::folder_lock::{FolderLock, SeenLock};
use crate::guard::tenure::Owner;
use crate::guard::tenures::sequence::{GuardState, Message, TenureState, Tenures};
use crate::guard::tenures::wishes::{Denied, TenureEnd, TenureNews, Waiter, Wish};
use crate::guard::write_policy::WhenAsked;
use crate::service::{Retry, SessionOwner};
use crate::time::{Time, Wall, boot_now};
use barrier::tenure_id::TenureId;
use common::task::spawn;
use std::collections::VecDeque;
use std::sync::Arc;

impl<D: Disk> Tenures<D> {
    /// Asks the lock service who holds the lock and who waits for it.
    pub(in crate::guard) fn inspect_lock(&self) {
        let send = self.sender();
        self.lock.inspect(move |seen| {
            // The send fails only after the thread has ended.
            let _ = send.send(Message::LockSeen(seen));
        });
    }

    /// Takes note of who holds the lock and who waits for it.
    pub(super) fn lock_seen(&self, seen: Option<SeenLock>, wishes: &mut VecDeque<Wish>) {
        match self.state() {
            GuardState::Asking => {
                let mut state = self.state.lock();
                let refused_by = state.refused_by.take();
                match seen {
                    // The holder may be another one by now.
                    Some(SeenLock { holder, .. })
                        if refused_by.is_some() && holder != state.other_holder => {}
                    Some(SeenLock { holder: Some(holder), away_until, .. }) => {
                        (state.other_holder, state.other_away) = (Some(holder), away_until);
                    }
                    _ => {}
                }
                drop(state);
                if let Some(token) = refused_by {
                    return self.refused_by(token, wishes);
                }
                self.deny_impatient(wishes, &self.why_not());
            }
            GuardState::Holding(..) | GuardState::Arriving(..) => {
                let Some(seen) = seen else { return };
                match seen.waiter {
                    Some(client) => self.waited_for(client),
                    None => self.state.lock().waiter = None,
                }
            }
            GuardState::Reading | GuardState::Yielding(_) => {}
        }
    }

    /// Takes note of another client that waits for the lock.
    pub(in crate::guard) fn waited_for(&self, client: String) {
        if !matches!(self.state(), GuardState::Holding(..) | GuardState::Arriving(..)) {
            return;
        }
        let mut state = self.state.lock();
        if let Some(waiter) = &mut state.waiter {
            waiter.client.clone_from(&client);
            return;
        }
        let waiter = Waiter { client: client.clone(), since: boot_now(), is_overdue: false };
        state.waiter = Some(waiter);
        drop(state);
        (self.on_news)(&TenureNews::Wanted(client));
    }

    /// Takes note of the programs that wait for the end of a tenure of another owner.
    pub(in crate::guard) fn look_for_own_waiter(
        &self,
        owner: Owner,
        wishes: &VecDeque<Wish>,
        now: Time,
    ) {
        let first = self.first_in_line(wishes, now).filter(|first| !owner.includes(*first));
        let mut state = self.state.lock();
        let Some(first) = first.map(|first| first.to_string()) else {
            state.own_waiter = None;
            return;
        };
        if let Some(waiter) = &mut state.own_waiter {
            waiter.client = first;
            return;
        }
        let waiter = Waiter { client: first.clone(), since: now, is_overdue: false };
        state.own_waiter = Some(waiter);
        drop(state);
        (self.on_news)(&TenureNews::Wanted(first));
    }

    /// Gives the lock up if nothing has changed for long enough, or tells the view that it must be
    /// given up.
    pub(super) fn yield_if_due(&self, tenure: TenureId, now: Time) {
        if self.away_step(now) {
            return;
        }
        if self.policy.give_after.is_some_and(|after| self.is_idle_for(after)) {
            return self.give_if_unused(tenure, TenureEnd::Given);
        }
        let WhenAsked::Yield { idle, max } = self.policy.when_asked else { return };
        let mut state = self.state.lock();
        let TenureState { waiter, own_waiter, .. } = &mut *state;
        let mut waiters = [waiter, own_waiter].into_iter().flatten().peekable();
        if waiters.peek().is_none() {
            return;
        }
        let mut is_overdue = false;
        for waiter in waiters {
            // Programs that must end before the lock is given up end first.
            let is_due = waiter.since + max <= now && !waiter.is_overdue && self.uses.end(now);
            waiter.is_overdue |= is_due;
            is_overdue |= is_due;
        }
        drop(state);
        if is_overdue {
            (self.on_news)(&TenureNews::Overdue(tenure));
        } else if self.is_idle_for(idle) {
            self.give_if_unused(tenure, self.yields_as());
        }
    }

    /// Makes the thread look again after a file was saved or put aside, if that may end the tenure.
    pub(crate) fn saved(&self) {
        if self.policy.give_after.is_some() || self.wanted_by().is_some() {
            self.recheck();
        }
    }

    /// Gives the lock of a tenure up because another machine has waited for so long.
    pub(super) fn yield_overdue(&self, tenure: TenureId) {
        if matches!(self.state(), GuardState::Holding(held, ..) if held == tenure) {
            self.give_now(self.yields_as(), Box::new(|| {}));
        }
    }

    /// Returns how a tenure ends that makes way for a waiter.
    fn yields_as(&self) -> TenureEnd {
        if self.is_wanted_elsewhere() { TenureEnd::Yielded } else { TenureEnd::HandedOn }
    }

    /// Returns when the lock may have to be given up, unless a message comes before.
    pub(super) fn next_yield(&self) -> Time {
        if self.is_away() {
            return self.gives_away_at();
        }
        let unchanged_since = self.guard.gate().last_change();
        // A file that is not published yet keeps the lock, and so does a program that must end
        // before. The guard looks again once it is published, or has ended.
        let is_busy = self.guard.has_unpublished() || !self.uses.is_empty();
        let next_use = self.hidden_use.next_check();
        let idle_at =
            |idle| if is_busy { Time::NEVER } else { next_use.max(unchanged_since + idle) };
        let mut next = self.policy.give_after.map_or(Time::NEVER, idle_at);
        let WhenAsked::Yield { idle, max } = self.policy.when_asked else { return next };
        let state = self.state.lock();
        for waiter in state.waiter.iter().chain(&state.own_waiter) {
            next = next.min(idle_at(idle));
            if !waiter.is_overdue {
                next = next.min((waiter.since + max).max(self.uses.ends_at()));
            }
        }
        next
    }

    /// Sets how to find out whether programs use the folder in a way that passes no gate.
    pub(crate) fn watch_use(&self, is_used: IsUsed) {
        // The function is set only once, so this does not fail.
        let _ = self.hidden_use.is_used.set(is_used);
    }

    /// Gives the lock up, unless programs still use the folder.
    pub(super) fn give_if_unused(&self, tenure: TenureId, end: TenureEnd) {
        let Some(is_used) = self.hidden_use.is_used.get().cloned() else {
            return self.give_now(end, self.after_end(end));
        };
        let mut next = self.hidden_use.next.lock();
        if *next > boot_now() {
            return;
        }
        *next = Time::NEVER;
        drop(next);
        let send = self.sender();
        // A thread of its own asks: the system may answer late about a program that hangs.
        let seen = move || drop(send.send(Message::UseSeen(tenure, end, is_used())));
        if let Err(error) = std::thread::Builder::new().name("use".to_owned()).spawn(seen) {
            log::warn!("the lock is kept, since nobody can look whether it is in use: {error}");
            *self.hidden_use.next.lock() = boot_now() + CHECK_AGAIN;
        }
    }

    /// Takes note of whether programs use the folder, and gives the lock up if they don't.
    pub(super) fn use_seen(&self, tenure: TenureId, end: TenureEnd, is_used: bool) {
        let now = boot_now();
        *self.hidden_use.next.lock() = if is_used { now + CHECK_AGAIN } else { Time::ZERO };
        let is_held = matches!(self.state(), GuardState::Holding(held, ..) if held == tenure);
        let after = match end {
            TenureEnd::Given => self.policy.give_after,
            _ => Some(self.policy.idle_after()),
        };
        if !is_used && is_held && after.is_some_and(|after| self.is_idle_for(after)) {
            self.give_now(end, self.after_end(end));
        }
    }
}

impl FolderLock {
    /// Opens the session that keeps the lock for so long. Calls `then` when that is done, or with a
    /// sentence that says why it can't be. `then` must not block.
    fn begin_away(
        self: &Arc<Self>,
        length: Ttl,
        then: impl FnOnce(Result<(), String>) + Send + 'static,
    ) {
        if matches!(self.locks.own_session(), Ok(SessionOwner::Own)) {
            // An engine in this process keeps the lock as long as the process runs, so it needs no
            // further session.
            return then(Ok(()));
        }
        let open = OpenSession {
            client: self.client().clone(),
            ttl: Some(length),
            grace: GRACE_OF_FOLDER,
        };
        let (own, asked_at) = (Arc::clone(self), boot_now());
        let opened = self.locks.submit(Op::OpenSession(open).into(), Retry::Never);
        spawn(async move {
            then(match opened.outcome().await.map(Outcome::first) {
                Ok(Outcome::SessionOpened(session)) => {
                    own.end_away();
                    own.away.begin(session, asked_at, length.span());
                    Ok(())
                }
                Ok(other) => Err(format!("the lock service answered {other:?}")),
                Err(failure) => Err(failure.to_string()),
            });
        });
    }

    /// Ends the session that keeps the lock although nobody can reach this machine.
    pub(in crate::guard) fn end_away(&self) {
        if let Some(session) = self.away.end() {
            let end = EndSession { session, end: SessionEnd::Closed };
            // If the request does not arrive, the session ends by itself.
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
    pub(in crate::guard) fn is_away(&self) -> bool {
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
