//! The leases that hang on a session, page by page.

use super::ListPage;
use crate::engine::{Engine, LockName, SessionId, Token};

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
