//! The table of all names that the engine remembers beyond a tenure.

use super::event::{EventKind, TenureEnd};
use super::handover::{HandoverEnd, LastHandover, Previous};
use super::lease::Token;
use super::name::{ClientId, LockName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All remembered names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RememberedNames(pub(super) BTreeMap<LockName, Memory>);

/// The record of one remembered name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Memory {
    /// The client to which the name is charged.
    pub(super) owner: ClientId,
    /// Shared with the answers that carry it.
    pub(super) previous: Arc<Previous>,
    /// The tenure that has lost the lock, and whose holder has not acknowledged that yet.
    pub(super) stolen: Option<StolenTenure>,
}

/// A tenure whose lock was taken away, and that its holder has not acknowledged yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StolenTenure {
    pub(super) client: ClientId,
    pub(super) token: Token,
}

impl RememberedNames {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what is remembered of the name of a lock.
    pub(super) fn get(&self, name: &LockName) -> Option<&Arc<Previous>> {
        self.0.get(name).map(|memory| &memory.previous)
    }

    /// Returns all names with the client to which each is charged, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&LockName, &ClientId, &Previous)> {
        self.0.iter().map(|(name, memory)| (name, &memory.owner, &*memory.previous))
    }

    /// Returns the last handover of a name, to be changed.
    pub(super) fn last_mut(&mut self, name: &LockName) -> Option<&mut LastHandover> {
        let previous = &mut self.0.get_mut(name)?.previous;
        previous.last.as_ref()?;
        Arc::make_mut(previous).last.as_mut()
    }

    /// Records how the tenure with this token ended, if it has set the last handover of the name
    /// and its end is not known yet.
    pub(super) fn end(&mut self, name: &LockName, token: Token, end: HandoverEnd) {
        let is_of_tenure =
            |last: &LastHandover| last.token == token && last.end == HandoverEnd::Open;
        if !self.get(name).and_then(|seen| seen.last.as_ref()).is_some_and(is_of_tenure) {
            return;
        }
        if let Some(last) = self.last_mut(name) {
            last.end = end;
        }
    }

    /// Counts the grants and records the ends of tenures that an event reports.
    pub(super) fn learn(&mut self, what: &EventKind) {
        match what {
            EventKind::Granted { name, .. } => {
                if let Some(memory) = self.0.get_mut(name) {
                    memory.stolen = None;
                    Arc::make_mut(&mut memory.previous).seq += 1;
                }
            }
            EventKind::Ended { name, token, end, .. } => self.end(name, *token, end.into()),
            _ => {}
        }
    }
}

impl From<&TenureEnd> for HandoverEnd {
    fn from(end: &TenureEnd) -> Self {
        match end {
            TenureEnd::Released | TenureEnd::Moved { .. } | TenureEnd::Replaced => Self::Released,
            TenureEnd::Lapsed => Self::Expired,
            TenureEnd::Stolen { .. } => Self::Stolen,
        }
    }
}
