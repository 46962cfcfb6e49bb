//! Queries that list locks, directories and leases, and the pages that answer them.

use crate::engine::{Child, Engine, LockName, LockView, SessionId, Token};
use crate::time::Time;

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
