//! A ready tenure tells the lock service that changes follow, before the first one is made,
//! and that a marker names them, once nothing has changed for a while.

use crate::guard::disk::operations::Disk;
use crate::guard::folder::folder_barrier::Job;
use crate::guard::folder::folder_barrier::NextMark;
use crate::guard::stage::staged_file::PutAside;
use crate::guard::tenures::sequence::{GuardState, Message, Tenures};
use crate::guard::tenures::tenure_arrival::{
    ArrivingTenure, OnAnnounced, Sent, Then, WaitingChange, YieldUnderWay,
};
use crate::guard::tenures::wishes::{Denied, Wish};
use crate::guard::tenures::wishes::{TenureEnd, TenureNews};
use crate::time::{Span, Time, boot_now};
use barrier::folder_path::FolderPath;
use barrier::handover::{Handover, HandoverId};
use barrier::tenure_id::TenureId;
use std::collections::VecDeque;

/// The delay before a marker is tried again that could not be written, or a handover sent again
/// that was not answered.
const TELL_AGAIN: Span = Span::from_secs(5);

impl<D: Disk> Tenures<D> {
    /// Waits until the lock service has a handover that announces changes, and calls `then`.
    pub(crate) fn announced(&self, patience: Span, then: OnAnnounced) {
        let until = boot_now() + patience;
        self.send(Message::Announce(WaitingChange { until, then }));
    }

    /// Takes note of a change that waits until it is announced.
    pub(super) fn announce_change(&self, change: WaitingChange) {
        if !matches!(self.state(), GuardState::Holding(..)) {
            let sentence = "this machine does not hold the lock of the folder any more".to_owned();
            return (change.then)(Err(Denied { sentence }));
        }
        if !self.guard.gate().must_announce() {
            return (change.then)(Ok(()));
        }
        if let Some(sentence) = self.lock.replaced() {
            return (change.then)(Err(Denied { sentence }));
        }
        let mut steps = self.steps.lock();
        steps.changes.push(change);
        let is_sent = matches!(steps.sent, Some(Sent::Announcement(_)));
        drop(steps);
        if !is_sent {
            self.announce();
        }
    }

    /// Sends the handover that announces changes.
    pub(in crate::guard) fn announce(&self) {
        let Some(barrier) = self.guard.barrier() else { return };
        match barrier.announce() {
            Ok(Some(handover)) => self.hand_over(&handover, Sent::Announcement(handover.id)),
            Ok(None) => self.answer_changes(&Ok(())),
            Err(sentence) => self.answer_changes(&Err(Denied { sentence })),
        }
    }

    fn answer_changes(&self, answer: &Result<(), Denied>) {
        let changes = std::mem::take(&mut self.steps.lock().changes);
        for change in changes {
            (change.then)(answer.clone());
        }
    }

    /// Sends a handover.
    pub(in crate::guard) fn hand_over(&self, handover: &Handover, sent: Sent) {
        self.steps.lock().sent = Some(sent);
        let (messages, id) = (self.sender(), handover.id);
        self.lock.hand_over(handover, move |answer| {
            // The send fails only after the thread has ended.
            let _ = messages.send(Message::HandedOver(id, answer));
        });
    }

    /// Takes note of the answer to a handover. Only that to the last one counts.
    pub(super) fn handed_over(
        &self,
        id: HandoverId,
        answer: Result<(), String>,
        wishes: &mut VecDeque<Wish>,
    ) {
        let sent = self.steps.lock().sent.take_if(|sent| sent.id() == id);
        let (Some(sent), Some(barrier)) = (sent, self.guard.barrier()) else { return };
        match (sent, answer) {
            (Sent::Announcement(id), Ok(())) => {
                barrier.announced(self.guard.gate(), id);
                self.answer_changes(&Ok(()));
            }
            (Sent::Announcement(_), Err(why)) => {
                let sentence = format!("the first change must be announced, and was not: {why}");
                self.answer_changes(&Err(Denied { sentence }));
            }
            (Sent::Clean(_), Ok(())) => {
                barrier.cleaned();
                self.work(Job::CleanUp);
            }
            (Sent::Clean(_), Err(why)) => {
                log::debug!("the lock service does not know the last marker yet: {why}");
                self.steps.lock().tell_after = boot_now() + TELL_AGAIN;
            }
            (Sent::Acceptance(accepted), Ok(())) => {
                let (accepted, handover) = *accepted;
                self.accepted(accepted, &handover, wishes);
            }
            (Sent::Acceptance(_), Err(why)) => {
                self.refuse_acceptance(&format!("nothing was accepted here: {why}"), wishes);
            }
        }
    }

    /// Makes the next step of the sync barrier, if there is one.
    pub(in crate::guard) fn step(&self, wishes: &mut VecDeque<Wish>, now: Time) {
        if self.worker.is_none() {
            return;
        }
        self.step_arrival(wishes, now);
        let late: Vec<_> = {
            let changes = &mut self.steps.lock().changes;
            let (late, waiting) = std::mem::take(changes).into_iter().partition(|c| c.until <= now);
            *changes = waiting;
            late
        };
        for change in late {
            let error = self.lock.connection_error();
            let sentence = error.unwrap_or_else(|| {
                "the lock service has not answered the announcement of the change".to_owned()
            });
            (change.then)(Err(Denied { sentence }));
        }
        let GuardState::Holding(tenure, ..) = self.state() else { return };
        let mut steps = self.steps.lock();
        if steps.is_marking || steps.sent.is_some() || steps.tell_after > now {
            return;
        }
        match self.next_mark() {
            NextMark::Marker => {
                steps.is_marking = true;
                self.work(Job::Mark(tenure, false));
            }
            NextMark::Clean => {
                drop(steps);
                self.clean();
            }
            NextMark::Later(_) | NextMark::Nothing => {}
        }
    }

    fn next_mark(&self) -> NextMark {
        let last_change = self.guard.gate().last_change();
        let barrier = self.guard.barrier();
        match barrier.map(|it| it.next_mark(last_change, self.policy.settle)) {
            Some(NextMark::Clean) if self.is_away() => NextMark::Nothing,
            next => next.unwrap_or(NextMark::Nothing),
        }
    }

    /// Returns when the next step is due; `Time::NEVER` if a message comes before.
    pub(in crate::guard) fn next_step(&self, now: Time) -> Time {
        if self.worker.is_none() {
            return Time::NEVER;
        }
        let state = self.state();
        let steps = self.steps.lock();
        let mut next = steps.changes.iter().map(|it| it.until).min().unwrap_or(Time::NEVER);
        match state {
            GuardState::Arriving(..) if !steps.is_looking && steps.sent.is_none() => {
                let arrival = steps.arrival.as_ref();
                let is_asked =
                    |it: &&ArrivingTenure| it.previous.is_some() || it.next_check > Time::ZERO;
                next = next.min(arrival.filter(is_asked).map_or(Time::NEVER, |it| it.next_check));
            }
            GuardState::Reading | GuardState::Asking if !steps.is_late_asked => {
                next = next.min(steps.late_at.unwrap_or(Time::NEVER));
            }
            GuardState::Holding(..) if !steps.is_marking && steps.sent.is_none() => {
                next = next.min(match self.next_mark() {
                    NextMark::Nothing => Time::NEVER,
                    NextMark::Later(at) => at,
                    NextMark::Marker | NextMark::Clean => steps.tell_after.max(now),
                });
            }
            _ => {}
        }
        next
    }

    /// Tells the lock service that a marker names everything.
    fn clean(&self) {
        let Some(barrier) = self.guard.barrier().filter(|_| !self.is_away()) else { return };
        match barrier.clean(self.guard.gate()) {
            Ok(Some(handover)) => self.hand_over(&handover, Sent::Clean(handover.id)),
            Ok(None) => {}
            Err(why) => {
                log::warn!("{why}");
                self.steps.lock().tell_after = boot_now() + TELL_AGAIN;
            }
        }
    }

    /// Takes note of the end of an attempt to write a marker.
    pub(in crate::guard) fn marked(
        &self,
        tenure: TenureId,
        is_last: bool,
        result: Result<Option<Vec<FolderPath>>, String>,
    ) {
        self.steps.lock().is_marking = false;
        let foreign = result.unwrap_or_else(|why| {
            log::warn!("no marker was written: {why}");
            None
        });
        let is_written = foreign.is_some();
        let sees_changes = self.policy.sees_changes;
        if let Some(paths) = foreign.filter(|paths| sees_changes && !paths.is_empty()) {
            (self.on_news)(&TenureNews::Overwritten(tenure, paths));
        }
        match self.state() {
            GuardState::Holding(held, ..) if held == tenure && is_written => self.clean(),
            GuardState::Holding(..) if !is_written => {
                self.steps.lock().tell_after = boot_now() + TELL_AGAIN;
            }
            GuardState::Yielding(held) if held == tenure && is_last => self.finish_yield(tenure),
            GuardState::Yielding(held) => self.mark_last(held),
            _ => {}
        }
    }

    /// Gives up a tenure whose gate has closed for good: first the last marker, then the lock.
    pub(super) fn yield_marked(
        &self,
        tenure: TenureId,
        end: TenureEnd,
        aside: PutAside,
        then: Then,
    ) {
        let Some(barrier) = self.guard.barrier() else { return then() };
        let mut steps = self.steps.lock();
        steps.yielding = Some(YieldUnderWay { end, aside, then: vec![then] });
        if let Some(Sent::Announcement(id)) = steps.sent.take() {
            // The lock service may have the handover.
            barrier.announced(self.guard.gate(), id);
        }
        let is_marking = steps.is_marking;
        drop(steps);
        let sentence = "the lock was given up".to_owned();
        self.answer_changes(&Err(Denied { sentence }));
        if !is_marking && !barrier.needs_marker() {
            return self.finish_yield(tenure);
        }
        self.state.lock().state = GuardState::Yielding(tenure);
        if !is_marking {
            self.mark_last(tenure);
        }
    }

    fn mark_last(&self, tenure: TenureId) {
        self.steps.lock().is_marking = true;
        self.work(Job::Mark(tenure, true));
    }

    /// Calls `then` when the yield that is under way is over.
    pub(super) fn wait_for_yield(&self, then: Then) {
        match &mut self.steps.lock().yielding {
            Some(under_way) => under_way.then.push(then),
            None => then(),
        }
    }

    /// Releases the lock, with a handover if a marker names everything.
    fn finish_yield(&self, tenure: TenureId) {
        let Some(barrier) = self.guard.barrier() else { return };
        let Some(under_way) = self.steps.lock().yielding.take() else { return };
        let YieldUnderWay { end, aside, then } = under_way;
        let then = move || then.into_iter().for_each(|then| then());
        match barrier.clean(self.guard.gate()) {
            // The release may come too late. As long as the tenure counts as one whose changes are
            // not all named, the guard checks afterwards, and writes a late marker then.
            Ok(Some(handover)) => self.lock.release_handing_over(&handover, then),
            Ok(None) => self.lock.release(then),
            Err(why) => {
                log::warn!("{why}");
                self.lock.release(then);
            }
        }
        self.forget_steps(end);
        self.ended(tenure, end, aside);
    }

    /// Forgets what was under way in a tenure that ends, and checks later for changes that no
    /// marker names. A guard that sees no change does so in its next tenure if the lock was lost:
    /// programs may still be changing the folder.
    pub(super) fn forget_steps(&self, end: TenureEnd) {
        let Some(barrier) = self.guard.barrier() else { return };
        let has_unmarked = barrier.end_tenure();
        let mut steps = self.steps.lock();
        (steps.arrival, steps.sent) = (None, None);
        if has_unmarked && (self.policy.sees_changes || !end.is_loss()) {
            (steps.late_at, steps.is_late_asked) = (Some(boot_now()), false);
        }
        drop(steps);
        let sentence = "the tenure is over".to_owned();
        self.answer_changes(&Err(Denied { sentence }));
    }
}
