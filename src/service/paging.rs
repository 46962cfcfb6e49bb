//! Queries that list locks, directories and leases, and the pages that answer them.

use crate::engine::{Engine, LockName, SessionId, Token};

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
