//! Queries that list locks, directories and leases, and the pages that answer them.

use crate::engine::{Engine, LockName, SessionId, Token};

/// Which locks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// Only names that begin so.
    pub prefix: String,
    /// Only names behind this one.
    pub after: Option<LockName>,
    /// At most so many.
    pub limit: usize,
}

/// Which directory to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Children {
    /// The directory; `None` is the top.
    pub parent: Option<LockName>,
    /// Where the page before ended.
    pub cursor: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// A page, and the cursor of the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage<T> {
    /// The items on the page.
    pub items: Vec<T>,
    /// The cursor of the next page; `None`: this is the last.
    pub next: Option<String>,
}

/// Leases shown of a session: a person looks at fewer, and the mutex is held meanwhile.
pub const SESSION_LEASES_SHOWN_MAX: usize = 1_000;

/// Leases of a session on one page.
const LEASES_PAGE: usize = 1_000;

/// The page of a session's leases behind `after`.
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
