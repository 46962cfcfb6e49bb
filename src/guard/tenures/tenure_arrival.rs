//! A tenure that arrives: the guard holds the lock, and its gate stays closed until everything is
//! here that the last tenure left. Such a tenure changes nothing, and leaves no trace when it ends.
//! While the guard holds no lock, it looks after the changes of its own tenures that ended without
//! a word.
//!
//! The memory of the thread of the tenures between its messages about the sync barrier.

use crate::engine::Token;
use crate::guard::audit_log::AuditedAct;
use crate::guard::disk::operations::Disk;
use crate::guard::folder::folder_barrier::{Arrival, Job, JobDone, Late};
use crate::guard::folder::folder_changes::FolderBarrier;
use crate::guard::folder::not_ready::NotReady;
use crate::guard::stage::staged_file::PutAside;
use crate::guard::tenure::Owner;
use crate::guard::tenures::sequence::{GuardState, Message, Tenures};
use crate::guard::tenures::wishes::{Denied, TenureEnd, TenureNews, Wish, WishOf};
use crate::guard::write_policy::AcceptedByOption;
use crate::time::{Span, Time, boot_now};
use barrier::folder_path::{FileStamp, FolderPath};
use barrier::handover::{Handover, HandoverId, PreviousTenure};
use barrier::ready::{Accepted, MissingPath};
use barrier::tenure_id::TenureId;
use std::collections::{BTreeSet, VecDeque};

/// The delay before the guard asks for the lock again that it has given to another machine because
/// the folder was not ready, or looks again after changes about which nothing is known yet.
const AGAIN: Span = Span::from_secs(1);
/// The delay before the guard looks again after changes that nobody can name now.
const LATE_AGAIN: Span = Span::from_secs(5);
/// The delay before the guard looks again after changes for which only another tenure can make a
/// difference. Each tenure of this machine looks as well before it is ready.
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
                let (files, s) = (paths.len(), if paths.len() == 1 { "" } else { "s" });
                let begin = "--foreign accept: other programs have changed";
                Some((paths, format!("{begin} {files} file{s}")))
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
    pub(in crate::guard) fn arrive(
        &self,
        tenure: TenureId,
        owner: Owner,
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

    pub(in crate::guard) fn work(&self, job: Job) {
        if let Some(worker) = &self.worker {
            worker.begin(job);
        }
    }

    /// Makes the next step while the folder is not ready, or no tenure is there.
    pub(super) fn step_arrival(&self, wishes: &mut VecDeque<Wish>, now: Time) {
        if let GuardState::Arriving(tenure, _) = self.state() {
            let is_persons = wishes.iter().any(|wish| !matches!(wish.of, WishOf::Program { .. }));
            // Each machine compares its folder once before it makes way for the next one.
            let makes_way = self.is_wanted_elsewhere() && self.not_ready().is_some();
            let is_asked = !wishes.is_empty() || self.asks(now);
            if !is_asked || makes_way && !is_persons {
                let end = if is_asked { TenureEnd::Yielded } else { TenureEnd::Unwanted };
                self.give_now(end, Box::new(|| {}));
                if makes_way {
                    self.state.lock().ask_again = now + AGAIN;
                }
                return;
            }
            return self.check_folder(tenure, wishes, now);
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
    fn check_folder(&self, tenure: TenureId, wishes: &mut VecDeque<Wish>, now: Time) {
        let mut steps = self.steps.lock();
        let Steps { arrival: Some(arrival), is_looking, sent, .. } = &mut *steps else {
            return;
        };
        if *is_looking || sent.is_some() {
            return;
        }
        // The first comparison may find that nothing must be accepted. The kernel must not cache
        // the answer of the last tenure when the gate opens.
        let was_compared = arrival.next_check > Time::ZERO && arrival.previous.is_some();
        let may_accept = was_compared && self.guard.gate().cached_until() <= now;
        let is_acceptance = |wish: &&mut Wish| {
            matches!(wish.of, WishOf::Acceptance { .. } | WishOf::PutBack { .. })
        };
        let accept = wishes.iter_mut().find(is_acceptance).filter(|_| may_accept);
        let is_due = arrival.next_check <= now || accept.is_some();
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
            _ => Job::FileStat(previous, tenure),
        });
    }

    /// Takes note of a step that the thread of the barrier has made.
    pub(in crate::guard) fn worked(&self, done: JobDone, wishes: &mut VecDeque<Wish>) {
        match done {
            JobDone::Late(result) => self.compared_after_late(&result),
            JobDone::Compared(tenure, since, result) => {
                self.compared(since);
                match result {
                    Ok(Arrival::Ready(has_arrived)) => {
                        if !self.must_wait_for_caches(tenure, has_arrived) {
                            self.become_ready(tenure, None, wishes);
                        }
                    }
                    Ok(Arrival::First(files)) => self.become_ready(tenure, Some(files), wishes),
                    Ok(arrival) => {
                        if let Some((paths, reason)) = arrival.accepted_by(self.policy.accepts) {
                            return self.accept_by_option(tenure, paths, reason);
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
                self.compared(since);
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
    fn accept_by_option(&self, tenure: TenureId, paths: BTreeSet<FolderPath>, reason: String) {
        if self.must_wait_for_caches(tenure, true) {
            return;
        }
        let mut steps = self.steps.lock();
        let Steps { arrival: Some(arrival), is_looking, .. } = &mut *steps else { return };
        let Some(previous) = arrival.previous.clone().filter(|_| arrival.tenure == tenure) else {
            return;
        };
        log::warn!("{reason}");
        // If the acceptance fails, the folder is compared again.
        arrival.wait(boot_now(), None);
        *is_looking = true;
        self.work(Job::Accept(previous, tenure, paths, reason));
    }

    fn compared(&self, since: Option<i128>) {
        let mut steps = self.steps.lock();
        (steps.is_looking, steps.compared) = (false, since);
    }

    /// Compares the folder soon again, if a tenure waits for it.
    pub(in crate::guard) fn compare_soon(&self) {
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
            let (disk, folder) = (self.guard.disk(), self.guard.folder());
            watch.watch(disk, folder, missing.iter().map(|it| it.path.as_str()));
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
            arrival.next_check = opens_at;
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
                self.open(tenure, owner, kept, wishes);
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
    pub(in crate::guard) fn accepted(
        &self,
        accepted: Accepted,
        handover: &Handover,
        wishes: &mut VecDeque<Wish>,
    ) {
        let GuardState::Arriving(tenure, owner) = self.state() else { return };
        let Some(barrier) = self.guard.barrier() else { return };
        let kept = self.steps.lock().arrival.take().map_or(0, |arrival| arrival.kept);
        self.audit(AuditedAct::Accept, tenure, accepted.reason());
        match barrier.accept(self.guard.gate(), tenure, accepted, handover) {
            Ok(()) => {
                self.note_unseen(barrier);
                self.open(tenure, owner, kept, wishes);
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

    fn compared_after_late(&self, result: &Result<Late, String>) {
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

/// A callback for the end of a request.
pub(in crate::guard) type Then = Box<dyn FnOnce() + Send>;

/// A callback for the answer to a program that waits until its change is announced.
pub(crate) type OnAnnounced = Box<dyn FnOnce(Result<(), Denied>) + Send>;

/// The first delay before the folder of an arriving tenure is compared again.
const CHECK_AGAIN: Span = Span::from_millis(200);
/// The longest delay before the folder is compared again; the delay doubles each time.
const CHECK_AGAIN_MOST: Span = Span::from_secs(5);

/// A tenure that waits until everything is here.
pub(in crate::guard) struct ArrivingTenure {
    pub(in crate::guard) tenure: TenureId,
    /// The last tenure as the lock service remembers it, once that is known.
    pub(in crate::guard) previous: Option<PreviousTenure>,
    /// The number of files of other tenures that were put aside.
    pub(in crate::guard) kept: usize,
    /// When the folder is compared again.
    pub(in crate::guard) next_check: Time,
    /// When the last comparison began, and when its result came.
    pub(super) began_at: Time,
    compared_at: Time,
    /// Whether something has changed where a file is missing since the comparison began.
    pub(in crate::guard) is_changed: bool,
    delay: Span,
    /// How much was missing when the folder was last compared.
    missing: Option<(u64, u64)>,
}

impl ArrivingTenure {
    pub(in crate::guard) fn new(
        tenure: TenureId,
        previous: Option<PreviousTenure>,
        kept: usize,
    ) -> Self {
        let (delay, next_check) = (CHECK_AGAIN, Time::ZERO);
        let (began_at, compared_at, is_changed) = (Time::ZERO, Time::ZERO, false);
        let missing = None;
        Self {
            tenure,
            previous,
            kept,
            next_check,
            began_at,
            compared_at,
            is_changed,
            delay,
            missing,
        }
    }

    /// Sets when to look again: soon, as long as files arrive.
    pub(in crate::guard) fn wait(&mut self, now: Time, missing: Option<(u64, u64)>) {
        self.compared_at = now;
        if missing != self.missing || self.is_changed {
            (self.missing, self.delay) = (missing, self.least_delay());
        }
        self.next_check = now + self.delay;
        self.delay = (self.delay + self.delay).min(CHECK_AGAIN_MOST.max(self.least_delay()));
    }

    /// Returns the least delay before the folder is compared again. A comparison that takes long
    /// takes at most half of the time.
    fn least_delay(&self) -> Span {
        CHECK_AGAIN.max(self.compared_at.since(self.began_at))
    }

    /// Compares the folder again soon, since a program wants to change it.
    pub(in crate::guard) fn compare_soon(&mut self) {
        self.next_check = self.next_check.min(self.compared_at + self.least_delay());
    }

    /// Compares the folder again soon, since something has changed where a file is missing.
    pub(in crate::guard) fn changed(&mut self) {
        self.is_changed = true;
        self.compare_soon();
    }
}

/// A handover that was sent, and not answered yet.
pub(in crate::guard) enum Sent {
    Announcement(HandoverId),
    Clean(HandoverId),
    Acceptance(Box<(Accepted, Handover)>),
}

impl Sent {
    pub(in crate::guard) fn id(&self) -> HandoverId {
        match self {
            Self::Announcement(id) | Self::Clean(id) => *id,
            Self::Acceptance(accepted) => accepted.1.id,
        }
    }
}

/// A change that waits until it is announced.
pub(in crate::guard) struct WaitingChange {
    pub(in crate::guard) until: Time,
    pub(in crate::guard) then: OnAnnounced,
}

/// The end of a tenure that is given up.
pub(in crate::guard) struct YieldUnderWay {
    pub(in crate::guard) end: TenureEnd,
    /// The files that were put aside.
    pub(in crate::guard) aside: PutAside,
    /// The requests that wait for the end of the tenure.
    pub(in crate::guard) then: Vec<Then>,
}

/// A sleep of this machine that is delayed.
pub(in crate::guard) struct SleepUnderWay {
    /// How long the guard waits until nothing has changed for a while.
    pub(super) gives_until: Time,
    /// How long the sleep is delayed at most.
    pub(in crate::guard) until: Time,
    /// Whether a marker was begun, for a lock that is kept.
    pub(in crate::guard) marks: bool,
    pub(in crate::guard) then: Then,
}

/// The changes that wait since the clock has jumped.
#[derive(Default)]
pub(in crate::guard) struct AfterJump {
    pub(in crate::guard) changes: Vec<WaitingChange>,
    pub(in crate::guard) is_asked: bool,
    /// Whether the lock service has to be asked although no change waits: events were lost.
    pub(super) must_ask: bool,
    /// Before this time the lock service is not asked again.
    pub(super) ask_after: Time,
}

/// The state of the steps.
#[derive(Default)]
pub(in crate::guard) struct Steps {
    pub(in crate::guard) sleep: Option<SleepUnderWay>,
    pub(in crate::guard) jump: AfterJump,
    pub(in crate::guard) arrival: Option<ArrivingTenure>,
    /// Before this time the gate stays closed, even if everything is here.
    pub(super) opens_at: Time,
    /// The change time before which the folder was last compared.
    pub(in crate::guard) compared: Option<i128>,
    /// Whether the folder is being compared.
    pub(super) is_looking: bool,
    /// Whether a marker is being written.
    pub(in crate::guard) is_marking: bool,
    pub(in crate::guard) sent: Option<Sent>,
    pub(in crate::guard) changes: Vec<WaitingChange>,
    /// Before this time no late marker is tried again that could not be written.
    pub(super) tell_after: Time,
    /// The end of a tenure whose last marker is being written.
    pub(in crate::guard) yielding: Option<YieldUnderWay>,
    /// When to look after changes of an ended tenure; `None` if there are none.
    pub(super) late_at: Option<Time>,
    /// Whether the lock service, or the thread of the barrier, was asked about the changes of an
    /// ended tenure.
    pub(super) is_late_asked: bool,
    /// The last tenure before one of this guard, as the audit log has it if it expired.
    pub(in crate::guard) expired: Option<Token>,
}
