//! Handovers: texts that the engine remembers for the name of a lock beyond the tenure.
//!
//! An acquire asks that the name be remembered. From then on the engine counts the grants of the
//! name, and keeps the last handover that a tenure has set, with the client and the token of that
//! tenure and how it ended. A tenure that sets no handover leaves all of that as it was. Only an
//! administrator makes the engine forget a name.
//!
//! A lock whose name is not remembered costs nothing: the table is looked up only while it has
//! entries.
//!
//! The table of all names that the engine remembers beyond a tenure.

use super::event::{EventKind, TenureEnd};
use super::lease::Token;
use super::name::{ClientId, LockName};
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A text that a holder leaves with the name of its lock, for the tenures after its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handover {
    /// The text. No rule of the engine reads it.
    pub text: Arc<str>,
    /// The number of the handover within its tenure. It must be above that of the last one, so that
    /// a copy of an earlier request that the network delivers late changes nothing.
    pub counter: u64,
}

/// The record that the engine keeps for a remembered name: the number of its grants, and its last
/// handover.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Previous {
    /// The number of grants of the name since it is remembered, the current one included.
    pub seq: u64,
    /// The last tenure that has set a handover, which may be the current one. `None` until a tenure
    /// sets one.
    pub last: Option<LastHandover>,
}

/// The last handover of a name, and the tenure that has set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastHandover {
    /// The fencing token of the tenure.
    pub token: Token,
    /// The client that held the lock under that token.
    pub client: ClientId,
    /// When the handover was set. `None` if an engine before this one has set it, whose times this
    /// engine cannot compare with its own.
    pub at: Option<Time>,
    /// How the tenure ended.
    pub end: HandoverEnd,
    /// The handover.
    pub handover: Handover,
}

/// How the tenure ended that has set the last handover of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoverEnd {
    /// The tenure still runs.
    Open,
    /// The holder released the lock, or moved its lease to another name or token.
    Released,
    /// The lease was not renewed in time, or its session was not kept alive in time.
    Expired,
    /// The lock was taken from its holder by a steal or a reset.
    Stolen,
    /// The session of the lease was ended.
    Session,
    /// The engine was restored from a backup, or from files whose last records a power failure may
    /// have taken: the tenure may have set other handovers since, and later tenures may have set
    /// some.
    Unknown,
}

impl HandoverEnd {
    /// Returns the name of the end as a lock's status shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Stolen => "stolen",
            Self::Session => "session",
            Self::Unknown => "unknown",
        }
    }
}

/// A remembered name, as a restored engine takes it over from a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RememberedName {
    /// The name of the lock.
    pub name: LockName,
    /// The client that has asked for the name to be remembered, to which the name is charged.
    pub owner: ClientId,
    /// The number of grants of the name, and its last handover.
    pub previous: Previous,
}

/// All remembered names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RememberedNames(pub(crate) BTreeMap<LockName, NameMemory>);

/// The record of one remembered name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameMemory {
    /// The client to which the name is charged.
    pub(crate) owner: ClientId,
    /// Shared with the answers that carry it.
    pub(crate) previous: Arc<Previous>,
    /// The tenure that has lost the lock, and whose holder has not acknowledged that yet.
    pub(crate) stolen: Option<StolenTenure>,
}

/// A tenure whose lock was taken away, and that its holder has not acknowledged yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StolenTenure {
    pub(crate) client: ClientId,
    pub(crate) token: Token,
}

impl RememberedNames {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what is remembered of the name of a lock.
    pub(crate) fn get(&self, name: &LockName) -> Option<&Arc<Previous>> {
        self.0.get(name).map(|memory| &memory.previous)
    }

    /// Returns all names with the client to which each is charged, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&LockName, &ClientId, &Previous)> {
        self.0.iter().map(|(name, memory)| (name, &memory.owner, &*memory.previous))
    }

    /// Returns the last handover of a name, to be changed.
    pub(crate) fn last_mut(&mut self, name: &LockName) -> Option<&mut LastHandover> {
        let previous = &mut self.0.get_mut(name)?.previous;
        previous.last.as_ref()?;
        Arc::make_mut(previous).last.as_mut()
    }

    /// Records how the tenure with this token ended, if it has set the last handover of the name
    /// and its end is not known yet.
    pub(crate) fn end(&mut self, name: &LockName, token: Token, end: HandoverEnd) {
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
    pub(crate) fn learn(&mut self, what: &EventKind) {
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
