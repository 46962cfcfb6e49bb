//! Begins and ends tenures: the steps right after a grant, the opening of the gate, and what
//! becomes of unpublished files when the lock is lost or given up.

use crate::guard::barrier::handover::PreviousTenure;
use crate::guard::disk::operations::Disk;
use crate::guard::stage::fence::FenceError;
use crate::guard::stage::staged_file::PutAside;
use crate::guard::tenure::LiveTenures;
use crate::guard::tenure::{Owner, TenureId};
use crate::guard::tenures::sequence::{GuardState, Tenures};
use crate::guard::tenures::tenure_arrival::Then;
use crate::guard::tenures::wishes::Wish;
use crate::guard::tenures::wishes::{MayGoOn, TenureEnd, TenureNews};
use crate::time::{Time, Wall, boot_now};
use std::collections::VecDeque;

impl<D: Disk> Tenures<D> {
    /// Begins a tenure after its grant, for the owner that has waited longest. Where there is a
    /// sync barrier, the gate stays closed until everything is here.
    pub(in crate::guard) fn begin(
        &self,
        tenure: TenureId,
        previous: Option<PreviousTenure>,
        live: Option<&LiveTenures>,
        wishes: &mut VecDeque<Wish>,
    ) {
        if self.current_or_last() == Some(tenure) && self.state() != GuardState::Asking {
            return;
        }
        let waiting = wishes.front().map(|wish| wish.owner);
        let Some(owner) = waiting.or_else(|| self.asks_for(boot_now())) else {
            self.state.lock().state = GuardState::Reading;
            return self.lock.release(|| {});
        };
        // Other clients may have waited since before the grant.
        self.inspect_lock();
        match self.guard.begin(tenure, live) {
            Ok(kept) if self.worker.is_some() => self.arrive(tenure, owner, previous, kept),
            Ok(kept) => self.open(tenure, owner, kept, wishes),
            Err(error) => {
                let why = match error {
                    FenceError::Late => "the lease ended before the stages of other tenures were \
                                         removed"
                        .to_owned(),
                    FenceError::Disk(error) => {
                        format!("the stages of other tenures can't be removed: {error}")
                    }
                };
                self.lock.release(|| {});
                self.state.lock().state = GuardState::Reading;
                self.deny_all(wishes, &why);
            }
        }
    }

    /// Opens the gate for a tenure that is ready.
    pub(in crate::guard) fn open(
        &self,
        tenure: TenureId,
        owner: Owner,
        kept: usize,
        wishes: &mut VecDeque<Wish>,
    ) {
        let mut steps = self.steps.lock();
        steps.opens_at = Time::ZERO;
        let compared = steps.compared.take();
        drop(steps);
        if let Some(since) = compared {
            self.guard.compared(since);
        }
        if let Some(barrier) = self.guard.barrier() {
            barrier.unread.begin_tenure();
        }
        (self.on_news)(&TenureNews::Opens(tenure));
        self.guard.open(tenure, owner);
        let mut state = self.state.lock();
        state.state = GuardState::Holding(tenure, owner, Wall::now());
        (state.other_holder, state.asked, state.not_ready) = (None, None, None);
        drop(state);
        (self.on_news)(&TenureNews::Began(tenure, kept));
        for wish in std::mem::take(wishes) {
            self.wish(wish, wishes);
        }
    }

    pub(in crate::guard) fn lose(&self, tenure: TenureId, end: TenureEnd) {
        let is_idle = self.is_idle_for(self.policy.idle_after());
        let aside = self.guard.lose();
        let may_go_on = if is_idle { MayGoOn::Unchanged } else { MayGoOn::Never };
        (self.on_news)(&TenureNews::Closed(tenure, may_go_on));
        if end == TenureEnd::Taken {
            self.lock.forget();
        } else {
            // The lock service may still count this guard as the holder.
            self.lock.release(|| {});
        }
        self.forget_steps(end);
        self.ended(tenure, end, aside);
    }

    /// Gives the lock up, if the guard holds it, and calls `then` when that is done.
    pub(in crate::guard) fn give_now(&self, end: TenureEnd, then: Then) {
        let (tenure, is_ready) = match self.state() {
            GuardState::Holding(tenure, ..) => (tenure, true),
            GuardState::Arriving(tenure, _) => (tenure, false),
            GuardState::Yielding(_) => return self.wait_for_yield(then),
            GuardState::Reading | GuardState::Asking => return then(),
        };
        let aside = self.guard.give_up();
        (self.on_news)(&TenureNews::Closed(tenure, MayGoOn::Unchanged));
        if is_ready && self.worker.is_some() {
            return self.yield_marked(tenure, end, aside, then);
        }
        self.lock.release(then);
        self.forget_steps(end);
        self.ended(tenure, end, aside);
    }

    pub(in crate::guard) fn ended(&self, tenure: TenureId, end: TenureEnd, aside: PutAside) {
        let mut state = self.state.lock();
        state.state = GuardState::Reading;
        state.last_end = Some((tenure, end));
        (state.waiter, state.not_ready) = (None, None);
        drop(state);
        self.uses.tenure_is_over();
        (self.on_news)(&TenureNews::Ended(tenure, end, aside));
    }
}
