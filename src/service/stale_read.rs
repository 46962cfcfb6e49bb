//! Stale reads: a node's local state, with its age, for a caller that prefers an old answer to
//! waiting for a quorum.

use super::failure::Unavailable;
use super::locks::Locks;
use super::paging::{List, ListPage, ListedNames, page_of_locks};
use super::scoped_views;
use crate::engine::{Engine, LockName, LockView};
use crate::time::{Span, Time};

/// Reads of a node's local state, which may be stale.
pub trait StaleReads {
    /// Calls `look` with the local state, which does not change during the call, and returns an
    /// upper bound on the age of the state, if one is known. Returns `None` without calling `look`
    /// if the backend has no local state that can be stale.
    fn stale(&self, _look: &mut dyn FnMut(&Engine, Time)) -> Option<Option<Span>> {
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
    const fn now(it: T) -> Self {
        Self { it, age: Some(Span::ZERO) }
    }
}

impl Locks {
    /// Passes a possibly stale view of one lock to `then`, or a current view if the backend has no
    /// local state that can be stale.
    pub fn known_view(
        &self,
        name: &LockName,
        then: impl FnOnce(Result<StaleRead<LockView>, Unavailable>) + Send + 'static,
    ) {
        match self.stale(|engine, at| engine.view(name, at)) {
            Some(known) => then(Ok(known)),
            None => self.view(name, move |view| then(view.map(StaleRead::now))),
        }
    }

    /// Passes a possibly stale page of the locks whose names begin with one of `prefixes` to
    /// `then`, or a current page if the backend has no local state that can be stale. The prefix of
    /// the query is ignored: the caller has already narrowed `prefixes` to it.
    pub fn known_list(
        &self,
        names: ListedNames,
        prefixes: Vec<String>,
        query: List,
        then: impl FnOnce(Result<StaleRead<ListPage<LockView>>, Unavailable>) + Send + 'static,
    ) {
        match self.stale(|engine, at| page(engine, at, names, (&prefixes, &query))) {
            Some(known) => then(Ok(known)),
            None => scoped_views::list_of(self, names, prefixes, query, |page| {
                then(page.map(StaleRead::now));
            }),
        }
    }

    /// Returns the result of a stale read, or `None` if the backend has no local state that can be
    /// stale.
    fn stale<T>(&self, look: impl FnOnce(&Engine, Time) -> T) -> Option<StaleRead<T>> {
        let (mut look, mut seen) = (Some(look), None);
        let age =
            self.0.stale(&mut |engine, at| seen = look.take().map(|look| look(engine, at)))?;
        seen.map(|it| StaleRead { it, age })
    }
}

fn page(
    engine: &Engine,
    at: Time,
    names: ListedNames,
    (prefixes, query): (&[String], &List),
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
