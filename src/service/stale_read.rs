//! Stale reads: the local state of a node, with its age, for a caller that prefers an old answer to
//! waiting for a majority.

use super::failure::Unavailable;
use super::locks::Locks;
use super::paging::{List, ListPage};
use super::scoped_views;
use crate::engine::{Engine, LockName, LockView};
use crate::time::{Span, Time};

/// Reads of the state of a node that may be old.
pub trait StaleReads {
    /// Shows the local state to `look` while nothing changes, and returns an upper bound on its
    /// age, if one is known. `None`: no local state is old, and `look` was not called.
    fn stale(&self, _look: &mut dyn FnMut(&Engine, Time)) -> Option<Option<Span>> {
        None
    }
}

/// The result of a stale read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleRead<T> {
    /// The value.
    pub it: T,
    /// How long ago the value was known to be current, not counting network latency; `None`:
    /// unknown.
    pub age: Option<Span>,
}

impl<T> StaleRead<T> {
    /// It is so now.
    const fn now(it: T) -> Self {
        Self { it, age: Some(Span::ZERO) }
    }
}

impl Locks {
    /// Shows one lock to `then`, as it is known here.
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

    /// Shows a page of the locks whose names begin with one of `prefixes` to `then`, as they are
    /// known here; the prefix of the query is theirs already.
    pub fn known_list(
        &self,
        prefixes: Vec<String>,
        query: List,
        then: impl FnOnce(Result<StaleRead<ListPage<LockView>>, Unavailable>) + Send + 'static,
    ) {
        match self.stale(|engine, at| page(engine, at, &prefixes, &query)) {
            Some(known) => then(Ok(known)),
            None => {
                scoped_views::list(self, prefixes, query, |page| then(page.map(StaleRead::now)));
            }
        }
    }

    /// `None`: the backend keeps no state that is old.
    fn stale<T>(&self, look: impl FnOnce(&Engine, Time) -> T) -> Option<StaleRead<T>> {
        let (mut look, mut seen) = (Some(look), None);
        let age =
            self.0.stale(&mut |engine, at| seen = look.take().map(|look| look(engine, at)))?;
        seen.map(|it| StaleRead { it, age })
    }
}

fn page(engine: &Engine, at: Time, prefixes: &[String], query: &List) -> ListPage<LockView> {
    let mut items = Vec::new();
    for prefix in prefixes {
        let room = query.limit - items.len();
        items.extend(engine.list(prefix, query.after.as_ref(), room, at));
    }
    let last = items.last().filter(|_| items.len() >= query.limit);
    let next = last.map(|last: &LockView| last.name.to_string());
    ListPage { items, next }
}
