//! A tenure that arrives: the guard holds the lock, and its gate stays closed until everything is
//! here that the last tenure left. Such a tenure changes nothing, and leaves no trace when it ends.
//! While the guard holds no lock, it looks after the changes of its own tenures that ended without
//! a word.

use super::audit_log::AuditedAct;
use super::barrier::acceptance::Accepted;
use super::barrier::folder_path::FolderPath;
use super::barrier::handover::{Handover, PreviousTenure};
use super::barrier::missing::MissingPath;
use super::barrier::tree::FileStamp;
use super::barrier_worker::{Job, JobDone};
use super::disk::Disk;
use super::folder_barrier::Arrival;
use super::folder_changes::FolderBarrier;
use super::late_changes::Late;
use super::not_ready::NotReady;
use super::tenure::{Owner, TenureId};
use super::tenure_news::{TenureEnd, TenureNews};
use super::tenure_steps::{ArrivingTenure, Sent, Steps};
use super::tenures::{GuardState, Message, Tenures};
use super::wish::{Wish, WishOf};
use super::write_policy::AcceptedByOption;
use crate::time::{Span, Time, boot_now};
use std::collections::{BTreeSet, VecDeque};

/// The delay before the guard asks for the lock again that it has given to another machine because
/// the folder was not ready, or looks again after changes about which nothing is known yet.
const AGAIN: Span = Span::from_secs(1);
/// The delay before it looks again after changes that nobody can name now.
const LATE_AGAIN: Span = Span::from_secs(5);
/// The delay if only another tenure can make a difference. Each tenure of this machine looks as
/// well before it is ready.
const LATE_SELDOM: Span = Span::from_secs(300);

impl Arrival {
    /// Returns the number of paths and bytes that are missing.
    fn missing(&self) -> Option<(u64, u64)> {
        match self {
            Self::NotArrived(it) => Some((it.missing.count, it.missing.bytes)),
            Self::Ready(_) | Self::First(_) | Self::Unsure(_) => None,
        }
    }

    /// Returns the paths that a guard accepts by its options, or none for the whole folder, and the
    /// reason for the other machines.
    fn accepted_by(&self, accepts: AcceptedByOption) -> Option<(BTreeSet<FolderPath>, String)> {
        match self {
            Self::Unsure(why) if accepts.unsure => {
                let reason = format!("--unsure go: accepted as it stands, although {why}");
                Some((BTreeSet::new(), reason))
            }
            Self::NotArrived(it) if accepts.foreign => {
                let paths = it.missing.all_foreign()?;
                let files = paths.len();
                let reason = format!("--foreign accept: other programs have changed {files} files");
                Some((paths, reason))
            }
            _ => None,
        }
    }

    /// Returns the paths that are missing, each with its reason.
    fn paths(&self) -> Vec<String> {
        match self {
            Self::NotArrived(it) => {
                let line = |it: &MissingPath| format!("'{}' {}", it.path, it.because);
                it.missing.paths.iter().map(line).collect()
            }
            Self::Ready(_) | Self::First(_) | Self::Unsure(_) => Vec::new(),
        }
    }
}

impl<D: Disk> Tenures<D> {
    /// Begins to wait until the folder is ready for a tenure.
    pub(super) fn arrive(
        &self,
        (tenure, owner): (TenureId, Owner),
        previous: Option<PreviousTenure>,
        kept: usize,
    ) {
        let mut state = self.state.lock();
        state.state = GuardState::Arriving(tenure, owner);
        (state.other_holder, state.waiter, state.not_ready) = (None, None, None);
        drop(state);
        let is_known = previous.is_some();
        if let Some(previous) = &previous {
            self.audit_expiry(tenure, previous);
        }
        self.steps.lock().arrival = Some(ArrivingTenure::new(tenure, previous, kept));
        if !is_known {
            self.ask_previous(Some(tenure));
        }
    }

    fn ask_previous(&self, tenure: Option<TenureId>) {
        let send = self.sender();
        self.lock.ask_previous(move |answer| {
            // The send fails only after the thread has ended.
            let _ = send.send(Message::Previous(tenure, answer));
        });
    }

    /// Takes note of what the lock service remembers of the last tenure.
    pub(super) fn previous_known(
        &self,
        tenure: Option<TenureId>,
        answer: Result<PreviousTenure, String>,
    ) {
        let mut steps = self.steps.lock();
        let Some(tenure) = tenure else {
            match answer {
                Ok(previous) if self.has_no_tenure() => {
                    let engine = self.lock.engine_id();
                    self.work(Job::Late(previous, engine));
                }
                _ => steps.late_later(LATE_AGAIN),
            }
            return;
        };
        let Some(arrival) = steps.arrival.as_mut().filter(|it| it.tenure == tenure) else { return };
        match answer {
            Ok(previous) => {
                arrival.previous = Some(previous.clone());
                drop(steps);
                self.audit_expiry(tenure, &previous);
            }
            Err(why) => {
                arrival.wait(boot_now(), None);
                self.state.lock().not_ready = Some(NotReady::said(why));
            }
        }
    }

    fn has_no_tenure(&self) -> bool {
        matches!(self.state(), GuardState::Reading | GuardState::Asking)
    }

    pub(super) fn work(&self, job: Job) {
        if let Some(worker) = &self.worker {
            worker.begin(job);
        }
    }

    /// Makes the next step while the folder is not ready, or no tenure is there.
    pub(super) fn step_arrival(&self, wishes: &mut VecDeque<Wish>, now: Time) {
        if let GuardState::Arriving(tenure, _) = self.state() {
            let is_persons = wishes.iter().any(|wish| !matches!(wish.of, WishOf::Program { .. }));
            // Each machine compares its folder once before it makes way for the next one.
            let makes_way = self.wanted_by().is_some() && self.not_ready().is_some();
            let is_asked = !wishes.is_empty() || self.asks_for(now).is_some();
            if !is_asked || makes_way && !is_persons {
                let end = if is_asked { TenureEnd::Yielded } else { TenureEnd::Unwanted };
                self.give_now(end, Box::new(|| {}));
                if makes_way {
                    self.state.lock().ask_again = now + AGAIN;
                }
                return;
            }
            return self.look_at_folder(tenure, wishes, now);
        }
        let mut steps = self.steps.lock();
        let is_due = steps.late_at.is_some_and(|at| at <= now) && !steps.is_late_asked;
        if is_due && self.has_no_tenure() {
            steps.is_late_asked = true;
            drop(steps);
            self.ask_previous(None);
        }
    }

    /// Compares the folder, or accepts it as it stands, if it is time for that.
    fn look_at_folder(&self, tenure: TenureId, wishes: &mut VecDeque<Wish>, now: Time) {
        let mut steps = self.steps.lock();
        let Steps { arrival: Some(arrival), is_looking, sent, .. } = &mut *steps else {
            return;
        };
        if *is_looking || sent.is_some() {
            return;
        }
        // The first comparison may find that nothing must be accepted. The kernel must not cache
        // what it was told in the last tenure when the gate opens.
        let was_compared = arrival.next_look > Time::ZERO && arrival.previous.is_some();
        let may_accept = was_compared && self.guard.gate().cached_until() <= now;
        let is_acceptance = |wish: &&mut Wish| {
            matches!(wish.of, WishOf::Acceptance { .. } | WishOf::PutBack { .. })
        };
        let accept = wishes.iter_mut().find(is_acceptance).filter(|_| may_accept);
        let is_due = arrival.next_look <= now || accept.is_some();
        let Some(previous) = arrival.previous.clone() else {
            if is_due && self.state.lock().not_ready.is_some() {
                arrival.wait(now, None);
                self.ask_previous(Some(tenure));
            }
            return;
        };
        if !is_due {
            return;
        }
        *is_looking = true;
        (arrival.began_at, arrival.is_changed) = (now, false);
        let accept = accept.map(|wish| std::mem::replace(&mut wish.of, WishOf::Accepting));
        self.work(match accept {
            Some(WishOf::Acceptance { paths, reason }) => {
                Job::Accept(previous, tenure, paths, reason)
            }
            Some(WishOf::PutBack { path, copy }) => Job::PutBack(previous, tenure, path, copy),
            _ => Job::Look(previous, tenure),
        });
    }

    /// Takes note of a step that the thread of the barrier has made.
    pub(super) fn worked(&self, done: JobDone, wishes: &mut VecDeque<Wish>) {
        match done {
            JobDone::Late(result) => self.looked_after_late(&result),
            JobDone::Looked(tenure, since, result) => {
                self.looked(since);
                match result {
                    Ok(Arrival::Ready(has_arrived)) => {
                        if !self.must_wait_for_caches(tenure, has_arrived) {
                            self.become_ready(tenure, None, wishes);
                        }
                    }
                    Ok(Arrival::First(files)) => self.become_ready(tenure, Some(files), wishes),
                    Ok(arrival) => {
                        if let Some(accept) = arrival.accepted_by(self.policy.accepts) {
                            return self.accept_by_option(tenure, accept);
                        }
                        self.watch_for(&arrival);
                        let missing = arrival.paths();
                        self.state.lock().missing = missing;
                        let why = NotReady::of(&arrival);
                        self.stay_closed(tenure, &why, arrival.missing(), wishes);
                    }
                    Err(why) => self.stay_closed(tenure, &NotReady::failed(why), None, wishes),
                }
            }
            JobDone::Accepting(tenure, since, result) => {
                self.looked(since);
                let accepted = match result {
                    Ok(Ok(accepted)) => accepted,
                    Ok(Err(arrival)) => {
                        return self.not_accepted(NotReady::of_refused(&arrival), wishes);
                    }
                    Err(why) => return self.not_accepted(NotReady::failed(why), wishes),
                };
                if self.arriving() == Some(tenure) {
                    let handover = accepted.1;
                    self.hand_over(&handover, Sent::Acceptance(accepted));
                }
            }
            JobDone::Marked(tenure, is_last, result) => self.marked(tenure, is_last, result),
        }
    }

    /// Accepts some paths, or the whole folder if there are none, as an option says.
    fn accept_by_option(&self, tenure: TenureId, (paths, reason): (BTreeSet<FolderPath>, String)) {
        if self.must_wait_for_caches(tenure, true) {
            return;
        }
        let mut steps = self.steps.lock();
        let Steps { arrival: Some(arrival), is_looking, .. } = &mut *steps else { return };
        let Some(previous) = arrival.previous.clone().filter(|_| arrival.tenure == tenure) else {
            return;
        };
        log::warn!("{reason}");
        // If it fails, the folder is compared again.
        arrival.wait(boot_now(), None);
        *is_looking = true;
        self.work(Job::Accept(previous, tenure, paths, reason));
    }

    fn looked(&self, since: Option<i128>) {
        let mut steps = self.steps.lock();
        (steps.is_looking, steps.compared) = (false, since);
    }

    /// Compares the folder soon again, if a tenure waits for it.
    pub(super) fn compare_soon(&self) {
        if let Some(arrival) = &mut self.steps.lock().arrival {
            arrival.compare_soon();
        }
    }

    /// Takes note that something has changed where a file is missing.
    pub(super) fn arrival_changed(&self) {
        if let Some(arrival) = &mut self.steps.lock().arrival {
            arrival.changed();
        }
    }

    /// Watches for the files that are missing, and for markers.
    fn watch_for(&self, arrival: &Arrival) {
        if let Some(watch) = &self.arrival_watch {
            let missing = match arrival {
                Arrival::NotArrived(it) => &*it.missing.paths,
                Arrival::Ready(_) | Arrival::First(_) | Arrival::Unsure(_) => &[],
            };
            let folder = (self.guard.disk(), self.guard.folder());
            watch.watch(folder, missing.iter().map(|it| it.path.as_str()));
        }
    }

    /// Ends the watches of a tenure that arrives no longer.
    pub(super) fn end_watch(&self) {
        if let Some(watch) = &self.arrival_watch
            && self.arriving().is_none()
        {
            watch.end();
        }
    }

    fn arriving(&self) -> Option<TenureId> {
        match self.state() {
            GuardState::Arriving(tenure, _) => Some(tenure),
            _ => None,
        }
    }

    /// Refuses an acceptance because of the state of the folder. The view adds the names of the
    /// files for those who may know them.
    fn not_accepted(&self, why: NotReady, wishes: &mut VecDeque<Wish>) {
        let sentence = why.text(false).to_owned();
        if let GuardState::Arriving(..) = self.state() {
            self.state.lock().not_ready = Some(why);
        }
        self.refuse_acceptance(&sentence, wishes);
    }

    pub(super) fn refuse_acceptance(&self, why: &str, wishes: &mut VecDeque<Wish>) {
        let all = std::mem::take(wishes);
        let (mut accepting, others) = all.into_iter().partition(|w| w.of == WishOf::Accepting);
        *wishes = others;
        self.deny_all(&mut accepting, why);
    }

    /// Whether the gate must stay closed although everything is here, because the kernel may still
    /// cache names and attributes of this machine's last tenure, which the files that have arrived
    /// have made stale. The folder is compared again when the kernel no longer does.
    fn must_wait_for_caches(&self, tenure: TenureId, has_arrived: bool) -> bool {
        let mut steps = self.steps.lock();
        if has_arrived {
            steps.opens_at = self.guard.gate().cached_until();
        }
        let opens_at = steps.opens_at;
        if opens_at <= boot_now() {
            return false;
        }
        if let Some(arrival) = steps.arrival.as_mut().filter(|it| it.tenure == tenure) {
            arrival.next_look = opens_at;
            self.state.lock().not_ready = None;
        }
        true
    }

    /// Keeps the gate of an arriving tenure closed, and refuses the programs that do not wait.
    fn stay_closed(
        &self,
        tenure: TenureId,
        why: &NotReady,
        missing: Option<(u64, u64)>,
        wishes: &mut VecDeque<Wish>,
    ) {
        if self.arriving() != Some(tenure) {
            return;
        }
        if let Some(arrival) = &mut self.steps.lock().arrival {
            arrival.wait(boot_now(), missing);
        }
        let before = self.state.lock().not_ready.replace(why.clone());
        if before.as_ref() != Some(why) {
            (self.on_news)(&TenureNews::NotReady(tenure, why.clone()));
        }
        self.deny_impatient(wishes, why.text(false));
    }

    /// Opens the gate of an arriving tenure: everything is here.
    fn become_ready(
        &self,
        tenure: TenureId,
        first: Option<Vec<(FolderPath, FileStamp)>>,
        wishes: &mut VecDeque<Wish>,
    ) {
        let GuardState::Arriving(arriving, owner) = self.state() else { return };
        let Some(barrier) = self.guard.barrier().filter(|_| arriving == tenure) else { return };
        let arrival = self.steps.lock().arrival.take();
        let Some(ArrivingTenure { previous: Some(previous), kept, .. }) = arrival else { return };
        match barrier.begin_tenure(self.guard.gate(), tenure, &previous, first) {
            Ok(tells) => {
                let tells = self.note_unseen(barrier) || tells;
                self.open((tenure, owner), kept, wishes);
                if tells {
                    self.announce();
                }
            }
            Err(why) => {
                self.deny_all(wishes, &why);
                self.give_now(TenureEnd::Given, Box::new(|| {}));
            }
        }
    }

    /// Opens the gate of a tenure whose acceptance the lock service has.
    pub(super) fn accepted(&self, accepted: (Accepted, Handover), wishes: &mut VecDeque<Wish>) {
        let GuardState::Arriving(tenure, owner) = self.state() else { return };
        let Some(barrier) = self.guard.barrier() else { return };
        let kept = self.steps.lock().arrival.take().map_or(0, |arrival| arrival.kept);
        let (accepted, handover) = accepted;
        self.audit(AuditedAct::Accept, tenure, accepted.reason());
        match barrier.accept(self.guard.gate(), tenure, (accepted, &handover)) {
            Ok(()) => {
                self.note_unseen(barrier);
                self.open((tenure, owner), kept, wishes);
            }
            Err(why) => {
                self.deny_all(wishes, &why);
                self.give_now(TenureEnd::Given, Box::new(|| {}));
            }
        }
    }

    /// Notes that programs may change the folder from now on, if this guard sees no change. Returns
    /// whether that is so.
    fn note_unseen(&self, barrier: &FolderBarrier<D>) -> bool {
        if !self.policy.sees_changes {
            barrier.note_unseen();
        }
        !self.policy.sees_changes
    }

    fn looked_after_late(&self, result: &Result<Late, String>) {
        let mut steps = self.steps.lock();
        match result {
            Ok(Late::Nothing) => steps.no_late(),
            Ok(Late::Marked) => {
                log::info!("a late marker names what an ended tenure of this machine has left");
                steps.no_late();
            }
            Ok(Late::PutAside(count)) => {
                log::warn!(
                    "{count} files were copied to the lost files: other machines have gone on \
                     without them"
                );
                steps.no_late();
            }
            Ok(Late::Soon) => steps.late_later(AGAIN),
            Ok(Late::Unknown) => steps.late_later(LATE_SELDOM),
            Err(why) => {
                log::warn!("what an ended tenure has left can't be told yet: {why}");
                steps.late_later(LATE_AGAIN);
            }
        }
    }
}

impl Steps {
    fn no_late(&mut self) {
        (self.late_at, self.is_late_asked) = (None, false);
    }

    fn late_later(&mut self, after: Span) {
        (self.late_at, self.is_late_asked) = (Some(boot_now() + after), false);
    }
}
