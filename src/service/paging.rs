//! Queries that list locks, directories and leases, and the pages that answer them.
//!
//! Stale reads: a node's local state, with its age, for a caller that prefers an old answer to
//! waiting for a quorum.

use crate::engine::{Child, Engine, LockName, LockView, SessionId, Token};
use crate::time::{Span, Time};

/// A query for a page of locks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// The page contains only locks whose names begin with this prefix.
    pub prefix: String,
    /// The page contains only locks whose names come after this name.
    pub after: Option<LockName>,
    /// The maximum number of items on the page.
    pub limit: usize,
}

/// The names that a list of locks has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedNames {
    /// The names of locks that are held, in grace or waited for.
    InUse,
    /// The names that are remembered beyond a tenure, whether or not their locks are free.
    Remembered,
}

/// A query for a page of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Children {
    /// The directory; `None` for the top level.
    pub parent: Option<LockName>,
    /// The cursor from the previous page.
    pub cursor: Option<String>,
    /// The maximum number of items on the page.
    pub limit: usize,
}

/// One page of the answer to a query, and the cursor of the next page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage<T> {
    /// The items on the page.
    pub items: Vec<T>,
    /// The cursor of the next page; `None` on the last one.
    pub next: Option<String>,
}

/// The maximum number of leases shown with a session: a person reads fewer, and the engine is
/// locked while they are copied.
pub const SESSION_LEASES_SHOWN_MAX: usize = 1_000;

/// The maximum number of a session's leases on one page.
const LEASES_PAGE: usize = 1_000;

/// Returns the page of locks that a query asks for, as of `now`.
pub(crate) fn page_of_locks(
    engine: &Engine,
    names: ListedNames,
    query: &List,
    now: Time,
) -> ListPage<LockView> {
    let List { prefix, after, limit } = query;
    let items: Vec<_> = match names {
        ListedNames::InUse => engine.list(prefix, after.as_ref(), *limit, now).collect(),
        ListedNames::Remembered => {
            engine.list_remembered(prefix, after.as_ref(), *limit, now).collect()
        }
    };
    let is_full = items.len() == *limit;
    let next = items.last().filter(|_| is_full).map(|last| last.name.to_string());
    ListPage { items, next }
}

/// Returns the page of a directory that a query asks for.
pub(crate) fn page_of_children(engine: &Engine, query: &Children) -> ListPage<Child> {
    let Children { parent, cursor, limit } = query;
    let (items, next) = engine.children(parent.as_ref(), cursor.as_deref(), *limit);
    ListPage { items, next }
}

/// Returns the page of a session's leases that come after `after`.
pub(crate) fn page_of_leases(
    engine: &Engine,
    session: SessionId,
    after: Option<&LockName>,
) -> ListPage<(LockName, Token)> {
    let items = engine.leases_of(session, after, LEASES_PAGE);
    let last = items.last().filter(|_| items.len() == LEASES_PAGE);
    let next = last.map(|(name, _)| name.to_string());
    ListPage { items, next }
}

/// Reads of a node's local state, which may be stale.
pub trait StaleReads {
    /// Calls `read` with the local state, which does not change during the call, and returns an
    /// upper bound on the age of the state, if one is known. Returns `None` without calling `read`
    /// if the backend has no local state that can be stale.
    fn stale(&self, _read: &mut dyn FnMut(&Engine, Time)) -> Option<Option<Span>> {
        None
    }
}

/// The result of a stale read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleRead<T> {
    /// The value that was read.
    pub it: T,
    /// How long ago the value was known to be current. The time that the answer takes to reach the
    /// client is not included. `None` if the age is unknown.
    pub age: Option<Span>,
}

impl<T> StaleRead<T> {
    /// Returns a value that is current: its age is zero.
    pub(super) const fn now(it: T) -> Self {
        Self { it, age: Some(Span::ZERO) }
    }
}

/// Returns the page of the locks whose names begin with one of `prefixes`.
pub(super) fn page_within(
    engine: &Engine,
    at: Time,
    names: ListedNames,
    prefixes: &[String],
    query: &List,
) -> ListPage<LockView> {
    let mut items = Vec::new();
    for prefix in prefixes {
        let limit = query.limit - items.len();
        let part = List { prefix: prefix.clone(), after: query.after.clone(), limit };
        items.extend(page_of_locks(engine, names, &part, at).items);
    }
    let last = items.last().filter(|_| items.len() >= query.limit);
    let next = last.map(|last: &LockView| last.name.to_string());
    ListPage { items, next }
}
