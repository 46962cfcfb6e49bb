//! Deadlines in order of time, so that expiry finds its work without walking all locks.

use super::command::RequestId;
use super::lease::{SessionId, Ticket, Token};
use super::name::LockName;
use crate::time::Time;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An action that is due at a time. The variants are ordered, so that actions due at the same time
/// take effect in the same order on every replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A session expires. This variant comes first, so that the waiters of the session are gone
    /// before any lock is granted to the next waiter.
    Session(SessionId),
    /// The wait of a queued request times out. Boxed, so that the more frequent variants take less
    /// memory.
    Patience(Box<(Ticket, LockName)>),
    /// A lease, or its grace, expires.
    Lease(Token, LockName),
    /// The remembered answer to a request with an id may be dropped.
    Reply(Arc<RequestId>),
    /// The hold-off is over. This variant comes last, so that waiters whose time is over at the
    /// same moment are gone.
    HoldOff,
}

/// All deadlines of an engine, in order of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Deadlines(BTreeSet<(Time, Due)>);

impl Deadlines {
    pub(super) fn add(&mut self, at: Time, due: Due) {
        let new = self.0.insert((at, due));
        assert!(new, "each thing is due once");
    }

    pub(super) fn remove(&mut self, at: Time, due: Due) {
        let known = self.0.remove(&(at, due));
        assert!(known, "what ends was due");
    }

    /// Moves the deadline of the action `due` from the time `from` to the time `to`.
    pub(super) fn put_off(&mut self, from: Time, to: Time, due: Due) {
        if from != to {
            // The new deadline is added before the old one is removed, so that the set of deadlines
            // never becomes empty, which would free its memory.
            self.add(to, due.clone());
            self.remove(from, due);
        }
    }

    /// Removes a deadline that [`Deadlines::pop`] may already have taken.
    pub(super) fn discard(&mut self, at: Time, due: Due) {
        self.0.remove(&(at, due));
    }

    /// Returns the time of the next deadline.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Takes the first deadline that is due by `now`.
    pub(super) fn pop(&mut self, now: Time) -> Option<(Time, Due)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first()
    }

    /// Returns the number of deadlines.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
