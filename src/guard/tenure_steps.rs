//! The memory of the thread of the tenures between its messages about the sync barrier.

use super::barrier::acceptance::Accepted;
use super::barrier::handover::{Handover, HandoverId, PreviousTenure};
use super::staged_file::PutAside;
use super::tenure::TenureId;
use super::tenure_news::TenureEnd;
use super::wish::Denied;
use crate::engine::Token;
use crate::time::{Span, Time};

/// A callback for the end of a request.
pub(super) type Then = Box<dyn FnOnce() + Send>;

/// A callback for the answer to a program that waits until its change is announced.
pub(crate) type OnAnnounced = Box<dyn FnOnce(Result<(), Denied>) + Send>;

/// The first delay before the folder of an arriving tenure is compared again.
const LOOK_AGAIN: Span = Span::from_millis(200);
/// The last one, after it was doubled again and again.
const LOOK_AGAIN_MOST: Span = Span::from_secs(5);

/// A tenure that waits until everything is here.
pub(super) struct ArrivingTenure {
    pub(super) tenure: TenureId,
    /// The last tenure as the lock service remembers it, once that is known.
    pub(super) previous: Option<PreviousTenure>,
    /// The number of files of other tenures that were put aside.
    pub(super) kept: usize,
    /// When the folder is compared again.
    pub(super) next_look: Time,
    /// When the last comparison began, and when its result came.
    pub(super) began_at: Time,
    compared_at: Time,
    /// Whether something has changed where a file is missing since the comparison began.
    pub(super) is_changed: bool,
    delay: Span,
    /// How much was missing when the folder was last compared.
    missing: Option<(u64, u64)>,
}

impl ArrivingTenure {
    pub(super) fn new(tenure: TenureId, previous: Option<PreviousTenure>, kept: usize) -> Self {
        let (delay, next_look) = (LOOK_AGAIN, Time::ZERO);
        let (began_at, compared_at, is_changed) = (Time::ZERO, Time::ZERO, false);
        let missing = None;
        Self {
            tenure,
            previous,
            kept,
            next_look,
            began_at,
            compared_at,
            is_changed,
            delay,
            missing,
        }
    }

    /// Sets when to look again: soon, as long as files arrive.
    pub(super) fn wait(&mut self, now: Time, missing: Option<(u64, u64)>) {
        self.compared_at = now;
        if missing != self.missing || self.is_changed {
            (self.missing, self.delay) = (missing, self.least_delay());
        }
        self.next_look = now + self.delay;
        self.delay = (self.delay + self.delay).min(LOOK_AGAIN_MOST.max(self.least_delay()));
    }

    /// Returns the least delay before the folder is compared again. A comparison that takes long
    /// takes at most half of the time.
    fn least_delay(&self) -> Span {
        LOOK_AGAIN.max(self.compared_at.since(self.began_at))
    }

    /// Compares the folder again soon, since a program wants to change it.
    pub(super) fn compare_soon(&mut self) {
        self.next_look = self.next_look.min(self.compared_at + self.least_delay());
    }

    /// Compares the folder again soon, since something has changed where a file is missing.
    pub(super) fn changed(&mut self) {
        self.is_changed = true;
        self.compare_soon();
    }
}

/// A handover that was sent, and not answered yet.
pub(super) enum Sent {
    Announcement(HandoverId),
    Clean(HandoverId),
    Acceptance(Box<(Accepted, Handover)>),
}

impl Sent {
    pub(super) fn id(&self) -> HandoverId {
        match self {
            Self::Announcement(id) | Self::Clean(id) => *id,
            Self::Acceptance(accepted) => accepted.1.id,
        }
    }
}

/// A change that waits until it is announced.
pub(super) struct WaitingChange {
    pub(super) until: Time,
    pub(super) then: OnAnnounced,
}

/// The end of a tenure that is given up.
pub(super) struct YieldUnderWay {
    pub(super) end: TenureEnd,
    /// The files that were put aside.
    pub(super) aside: PutAside,
    /// The requests that wait for the end.
    pub(super) then: Vec<Then>,
}

/// A sleep of this machine that is delayed.
pub(super) struct SleepUnderWay {
    /// How long the guard waits until nothing has changed for a while.
    pub(super) gives_until: Time,
    /// How long the sleep is delayed at most.
    pub(super) until: Time,
    /// Whether a marker was begun, for a lock that is kept.
    pub(super) marks: bool,
    pub(super) then: Then,
}

/// The changes that wait since the clock has jumped.
#[derive(Default)]
pub(super) struct AfterJump {
    pub(super) changes: Vec<WaitingChange>,
    pub(super) is_asked: bool,
    /// Whether the lock service has to be asked although no change waits: events were lost.
    pub(super) must_ask: bool,
    /// Before this time the lock service is not asked again.
    pub(super) ask_after: Time,
}

/// The state of the steps.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) sleep: Option<SleepUnderWay>,
    pub(super) jump: AfterJump,
    pub(super) arrival: Option<ArrivingTenure>,
    /// Before this time the gate stays closed, even if everything is here.
    pub(super) opens_at: Time,
    /// The change time before which the folder was last compared.
    pub(super) compared: Option<i128>,
    /// Whether the folder is being compared.
    pub(super) is_looking: bool,
    /// Whether a marker is being written.
    pub(super) is_marking: bool,
    pub(super) sent: Option<Sent>,
    pub(super) changes: Vec<WaitingChange>,
    /// Before this time nothing is told again that could not be told.
    pub(super) tell_after: Time,
    /// The end of a tenure whose last marker is being written.
    pub(super) yielding: Option<YieldUnderWay>,
    /// When to look after changes of an ended tenure; `None` if there are none.
    pub(super) late_at: Option<Time>,
    /// Whether the lock service, or the thread of the barrier, was asked about them.
    pub(super) is_late_asked: bool,
    /// The last tenure before one of this guard, as the audit log has it if it expired.
    pub(super) expired: Option<Token>,
}
