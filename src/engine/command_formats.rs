//! The format that the encoding of a command needs, and the form of a command that an older latchfs
//! knows.

use super::codec::{
    FORMAT_BASE, WITH_ACKNOWLEDGEMENTS, WITH_HANDOVERS, WITH_OPEN_RELEASES, WITH_RESET_PARTS,
    WITH_TAKEOVERS,
};
use super::command::{
    Acquire, Annotate, Answer, Command, EndSession, Op, Outcome, QueuePolicy, Release, Reset,
    ResetPart, Steal, Tenure,
};
use super::event::SessionEnd;
use super::handover::Previous;
use super::limits::LimitedField;
use super::refusal::{Conflict, Limit, Reason, Refusal, ShareOf};
use super::view::LockView;
use std::sync::Arc;

impl Op {
    /// Returns the operation as a latchfs of this `format` knows it. An open file that releases its
    /// lease is left out before format 6; the release then names the lease by its token. So is the
    /// lease that an acquire takes over; the acquire then does not wait, since it would wait for
    /// that lease. A part of a reset becomes the whole reset. An operation with [`Op::needs`] above
    /// `format` has no such form; it is returned as it is, and the caller refuses it.
    #[must_use]
    pub fn for_format(self, format: u8) -> Self {
        match self {
            Self::Release(release) if format < WITH_OPEN_RELEASES => {
                Self::Release(Release { open: None, acknowledges: false, ..release })
            }
            Self::Release(release) if format < WITH_HANDOVERS => {
                Self::Release(Release { acknowledges: false, ..release })
            }
            Self::Acquire(ask) if ask.takes_over.is_some() && format < WITH_TAKEOVERS => {
                Self::Acquire(Acquire { takes_over: None, line: QueuePolicy::Skip, ..ask })
            }
            Self::Reset(reset) if format < WITH_RESET_PARTS => {
                Self::Reset(Reset { part: ResetPart::ALL, ..reset })
            }
            // Without remembered names both mean the same.
            Self::Steal(ask) if ask.at_once && format < WITH_HANDOVERS => {
                Self::Steal(Steal { at_once: false, ..ask })
            }
            Self::EndSession(EndSession { session, end: SessionEnd::Revoked })
                if format < WITH_HANDOVERS =>
            {
                Self::EndSession(EndSession { session, end: SessionEnd::Closed })
            }
            op => op,
        }
    }

    /// Returns the lowest format in which the operation means what it says. A request that needs a
    /// newer format than all nodes know is refused: the client counts on being remembered.
    pub const fn needs(&self) -> u8 {
        match self {
            Self::Acquire(Acquire { remember: true, .. })
            | Self::Annotate(Annotate { handover: Some(_), .. })
            | Self::Release(Release { handover: Some(_), .. })
            | Self::Forget(_)
            | Self::EndHoldOff(_) => WITH_HANDOVERS,
            _ => FORMAT_BASE,
        }
    }

    /// Returns the lowest format that can hold the operation.
    pub const fn format(&self) -> u8 {
        match self {
            _ if self.needs() > FORMAT_BASE => self.needs(),
            Self::Release(Release { acknowledges: true, .. })
            | Self::Steal(Steal { at_once: true, .. })
            | Self::EndSession(EndSession { end: SessionEnd::Revoked, .. }) => WITH_HANDOVERS,
            Self::Release(Release { open: Some(_), .. }) => WITH_OPEN_RELEASES,
            Self::Acquire(Acquire { takes_over: Some(_), .. }) => WITH_TAKEOVERS,
            Self::Reset(Reset { part: ResetPart::Rest { holds: 0, waits: 0 }, .. }) => FORMAT_BASE,
            Self::Reset(_) => WITH_RESET_PARTS,
            _ => FORMAT_BASE,
        }
    }
}

impl Command {
    /// Returns the command as a latchfs of this `format` knows it: see [`Op::for_format`].
    #[must_use]
    pub fn for_format(self, format: u8) -> Self {
        let acknowledged = self.acknowledged.filter(|_| format >= WITH_ACKNOWLEDGEMENTS);
        Self { op: self.op.for_format(format), acknowledged, ..self }
    }

    /// Returns the lowest format that can hold the command.
    pub fn format(&self) -> u8 {
        let keys = if self.acknowledged.is_some() { WITH_ACKNOWLEDGEMENTS } else { FORMAT_BASE };
        keys.max(self.op.format())
    }
}

impl Outcome {
    /// Returns the lowest format that can hold the outcome.
    pub fn format(&self) -> u8 {
        match self {
            Self::Forgotten | Self::HoldOffEnded => WITH_HANDOVERS,
            Self::Replayed(replay) => replay.first.format(),
            outcome => of_previous(outcome.tenure().and_then(|tenure| tenure.previous.as_ref())),
        }
    }

    fn without_previous(self) -> Self {
        let bare = |tenure: Tenure| Tenure { previous: None, ..tenure };
        match self {
            Self::Granted(tenure) => Self::Granted(bare(tenure)),
            Self::Renewed(tenure) => Self::Renewed(bare(tenure)),
            Self::Moved(tenure) => Self::Moved(bare(tenure)),
            Self::Stolen(tenure) => Self::Stolen(bare(tenure)),
            Self::Replayed(mut replay) => {
                replay.first = replay.first.without_previous();
                Self::Replayed(replay)
            }
            outcome => outcome,
        }
    }
}

impl Refusal {
    /// Returns the lowest format that can hold the refusal.
    pub fn format(&self) -> u8 {
        match &*self.reason {
            Reason::Conflict(conflict) => of_previous(conflict.previous.as_ref()),
            Reason::HoldOff { .. }
            | Reason::NotRemembered(_)
            | Reason::HandoverNeedsToken(_)
            | Reason::OldHandover { .. }
            | Reason::NoHandoversYet
            | Reason::Oversized(LimitedField::Handover)
            | Reason::Limit(Limit::Remembered(_) | Limit::Share(ShareOf::Remembered, _)) => {
                WITH_HANDOVERS
            }
            _ => FORMAT_BASE,
        }
    }
}

impl LockView {
    /// Returns the lowest format that can hold the view.
    pub const fn format(&self) -> u8 {
        if self.hold_off.is_some() { WITH_HANDOVERS } else { of_previous(self.previous.as_ref()) }
    }
}

/// Returns the lowest format that can hold an answer.
pub fn answer_format(answer: &Answer) -> u8 {
    match answer {
        Ok(outcome) => outcome.format(),
        Err(refusal) => refusal.format(),
    }
}

/// Returns an answer as a latchfs of this `format` knows it: without what is remembered of the name
/// of a lock. Answers to requests that such a latchfs does not know stay as they are.
pub fn answer_for(format: u8, answer: Answer) -> Answer {
    if format >= WITH_HANDOVERS {
        return answer;
    }
    match answer {
        Ok(outcome) => Ok(outcome.without_previous()),
        Err(refusal) => {
            let Refusal { at, reason } = refusal;
            let reason = match *reason {
                Reason::Conflict(conflict) => {
                    Reason::Conflict(Conflict { previous: None, ..conflict })
                }
                reason => reason,
            };
            Err(Refusal { at, reason: Box::new(reason) })
        }
    }
}

/// Returns a view as a latchfs of this `format` knows it: see [`answer_for`].
pub fn view_for(format: u8, view: LockView) -> LockView {
    let previous = view.previous.clone().filter(|_| format >= WITH_HANDOVERS);
    let hold_off = view.hold_off.filter(|_| format >= WITH_HANDOVERS);
    LockView { previous, hold_off, ..view }
}

const fn of_previous(previous: Option<&Arc<Previous>>) -> u8 {
    if previous.is_some() { WITH_HANDOVERS } else { FORMAT_BASE }
}
