//! Deadlines in order of time, so that expiry finds its work without walking all locks.

use super::command::RequestId;
use super::lease::{SessionId, Ticket, Token};
use super::name::LockName;
use crate::time::Time;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Something that happens by itself. Ordered, so that what is due at one moment happens in the
/// same order on every replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A session runs out. First, so that its waiters are gone before any lock is given on.
    Session(SessionId),
    /// A waiter's patience is over. Boxed, so that what most of these are needs less room.
    Patience(Box<(Ticket, LockName)>),
    /// A lease runs out, or its grace does.
    Lease(Token, LockName),
    /// A request id may be forgotten.
    Reply(Arc<RequestId>),
}

/// All that is due, by time.
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

    /// Puts off what is due at `from` until `to`.
    pub(super) fn put_off(&mut self, from: Time, to: Time, due: Due) {
        if from != to {
            // In this order the set never is empty in between, and keeps its memory.
            self.add(to, due.clone());
            self.remove(from, due);
        }
    }

    /// Removes what may just have been taken by [`Deadlines::pop`].
    pub(super) fn discard(&mut self, at: Time, due: Due) {
        self.0.remove(&(at, due));
    }

    /// When the next thing is due.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Takes the first thing that is due by `now`.
    pub(super) fn pop(&mut self, now: Time) -> Option<(Time, Due)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first()
    }

    /// How much there is.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
