//! Views that are restricted to some prefixes: the locks whose names begin with one of them, and
//! the directories that lead there. Names outside the prefixes influence neither the content nor
//! the length of a view, nor its page boundaries.
//!
//! Prefixes are sorted, and none lies within another.
//!
//! Stale reads: what this node has applied, for a caller that prefers an old answer to waiting for
//! a majority.

use super::lock_service::{LockService, Retry};
use super::paging::{Children, List, ListPage, ListedNames, StaleRead, page_within};
use super::unavailable::Unavailable;
use crate::engine::{Child, Engine, LockName, LockView, Mode};
use crate::time::Time;
use std::vec::IntoIter;

/// Returns the state of one lock as this node has applied it, which may be old, or its current
/// state if the backend has no local state that can be old.
pub async fn known_view(
    service: &dyn LockService,
    name: &LockName,
) -> Result<StaleRead<LockView>, Unavailable> {
    match read_stale(service, |engine, at| engine.view(name, at)) {
        Some(known) => Ok(known),
        None => Ok(StaleRead::now(service.view(name, Retry::Never).await?.view)),
    }
}

/// Returns a page of the locks whose names begin with one of `prefixes`, which may be old, or a
/// current page if the backend has no local state that can be old. The prefix of the query is
/// ignored: the caller has already narrowed `prefixes` to it.
pub async fn known_list(
    service: &dyn LockService,
    names: ListedNames,
    prefixes: Vec<String>,
    query: List,
) -> Result<StaleRead<ListPage<LockView>>, Unavailable> {
    let known = read_stale(service, |engine, at| page_within(engine, at, names, &prefixes, &query));
    match known {
        Some(known) => Ok(known),
        None => list(service, names, prefixes, query).await.map(StaleRead::now),
    }
}

/// Returns the result of a stale read, or `None` if the backend has no local state that can be
/// old.
fn read_stale<T>(
    service: &dyn LockService,
    read: impl FnOnce(&Engine, Time) -> T,
) -> Option<StaleRead<T>> {
    let (mut read, mut seen) = (Some(read), None);
    let age = service.stale(&mut |engine, at| seen = read.take().map(|read| read(engine, at)))?;
    seen.map(|it| StaleRead { it, age })
}

/// Returns a page of the locks within `prefixes` that have these names. The prefix of the query is
/// ignored: the caller has already narrowed `prefixes` to it.
pub async fn list(
    service: &dyn LockService,
    names: ListedNames,
    prefixes: Vec<String>,
    query: List,
) -> Result<ListPage<LockView>, Unavailable> {
    let mut found: Vec<LockView> = Vec::new();
    for prefix in prefixes {
        if found.len() >= query.limit {
            break;
        }
        let limit = query.limit - found.len();
        let part = List { prefix, after: query.after.clone(), limit };
        found.extend(service.list(names, part).await?.items);
    }
    let last = found.last().filter(|_| found.len() >= query.limit);
    let next = last.map(|last| last.name.to_string());
    Ok(ListPage { items: found, next })
}

/// Returns the view of a name that itself lies outside `prefixes` but leads to them. All prefixes
/// must lie below the name. The view shows a directory if locks exist within the prefixes, and
/// never shows whether the name itself is held.
pub async fn lead(
    service: &dyn LockService,
    name: &LockName,
    prefixes: Vec<String>,
) -> Result<LockView, Unavailable> {
    let one = List { limit: 1, ..List::default() };
    let below = list(service, ListedNames::InUse, prefixes, one).await?;
    let view = service.view(name, Retry::Never).await?.view;
    let (holders, waiters) = (Vec::new(), Vec::new());
    let has_below = !below.items.is_empty();
    Ok(LockView { mode: Mode::Exclusive, holders, waiters, has_below, ..view })
}

/// Returns a page of the entries directly below a name (or at the top level) that lie within
/// `prefixes` or lead there. All prefixes must lie below the name.
pub async fn children(
    service: &dyn LockService,
    prefixes: Vec<String>,
    query: Children,
) -> Result<ListPage<Child>, Unavailable> {
    let dir = query.parent.as_ref().map_or_else(String::new, |parent| format!("{parent}/"));
    let left = prefixes.into_iter();
    Walk { service, dir, left, query, found: Vec::new() }.fill_page().await
}

/// The progress of a request that lists a directory within some prefixes.
struct Walk<'a> {
    service: &'a dyn LockService,
    /// The text with which the names of all entries begin: the directory's own name and a slash.
    dir: String,
    left: IntoIter<String>,
    /// The query for the page. Its cursor advances during the listing, and is the smallest name
    /// that the next entry may have.
    query: Children,
    found: Vec<Child>,
}

impl Walk<'_> {
    async fn fill_page(mut self) -> Result<ListPage<Child>, Unavailable> {
        while self.found.len() < self.query.limit {
            let cursor = self.query.cursor.as_deref().unwrap_or_default();
            let is_behind =
                |prefix: &String| cursor > prefix.as_str() && !cursor.starts_with(prefix);
            let Some(prefix) = self.left.find(|prefix| !is_behind(prefix)) else {
                return Ok(ListPage { items: self.found, next: None });
            };
            let rest = prefix.strip_prefix(&self.dir).unwrap_or_default();
            match rest.split_once('/') {
                Some((part, _)) => {
                    let dir = format!("{}{part}", self.dir);
                    self.lead(dir, prefix).await?;
                }
                None => self.whole(prefix).await?,
            }
        }
        Ok(ListPage { items: self.found, next: self.query.cursor })
    }

    /// Adds the entry `dir` as a directory, if there is a lock below it whose name begins with
    /// `prefix`.
    async fn lead(&mut self, dir: String, prefix: String) -> Result<(), Unavailable> {
        let one = List { prefix, after: None, limit: 1 };
        let page = self.service.list(ListedNames::InUse, one).await?;
        if !page.items.is_empty()
            && let Ok(name) = LockName::parse(&dir)
        {
            self.found.push(Child { name, lock: None });
            // '0' follows '/' in ASCII. So the smallest name that the next entry may have is
            // greater than all names below this directory.
            self.query.cursor = Some(dir + "0");
        }
        Ok(())
    }

    /// Adds the directory's entries whose names begin with `prefix`.
    async fn whole(&mut self, prefix: String) -> Result<(), Unavailable> {
        let Children { parent, cursor, limit } = self.query.clone();
        let from = cursor.filter(|cursor| *cursor > prefix).unwrap_or_else(|| prefix.clone());
        let part = Children { parent, cursor: Some(from), limit: limit - self.found.len() };
        let page = self.service.children(part).await?;
        let is_within = |child: &Child| child.name.as_str().starts_with(&prefix);
        self.found.extend(page.items.into_iter().take_while(is_within));
        if let Some(next) = page.next.filter(|next| next.starts_with(&prefix)) {
            self.query.cursor = Some(next);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::Local;
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{Acquire, ClientId, LeaseTerms, Op, Rules};
    use futures_util::FutureExt as _;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn holding(names: &BTreeSet<String>) -> Arc<dyn LockService> {
        let locks = Arc::new(Local::in_memory(Rules::default()).expect("started"));
        for text in names {
            let acquire = Op::Acquire(Acquire::new(
                name(text),
                ClientId::parse("a").expect("valid"),
                LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
            ));
            assert!(matches!(locks.submit(acquire.into(), Retry::Never).wait(), Ok(Ok(_))));
        }
        locks
    }

    /// Returns the answer, which must be there at once.
    fn got<T>(asked: impl Future<Output = Result<T, Unavailable>>) -> T {
        asked.now_or_never().expect("answered at once").expect("available")
    }

    fn list_all(locks: &Arc<dyn LockService>, prefixes: &[String], limit: usize) -> Vec<String> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let query = List { prefix: String::new(), after, limit };
            let page = got(list(&**locks, ListedNames::InUse, prefixes.to_vec(), query));
            assert!(page.items.len() <= limit);
            all.extend(page.items.iter().map(|view| view.name.to_string()));
            let Some(next) = page.next else { return all };
            assert_eq!(all.last(), Some(&next), "a page ends with what it shows");
            after = Some(name(&next));
        }
    }

    /// Returns the names of the entries, and whether each is shown as a lock.
    fn children_all(
        locks: &Arc<dyn LockService>,
        prefixes: &[String],
        parent: Option<&str>,
        limit: usize,
    ) -> BTreeSet<(String, bool)> {
        let (mut all, mut cursor) = (BTreeSet::new(), None);
        loop {
            let query = Children { parent: parent.map(name), cursor, limit };
            let page = got(children(&**locks, prefixes.to_vec(), query));
            assert!(page.items.len() <= limit);
            for child in page.items {
                assert!(all.insert((child.name.to_string(), child.lock.is_some())), "{child:?}");
            }
            let Some(next) = page.next else { return all };
            let is_of = |(shown, _): &(String, bool)| next.starts_with(shown.as_str());
            assert!(all.iter().any(is_of), "'{next}' is made of what is shown");
            cursor = Some(next);
        }
    }

    /// Returns `prefixes` below `below`, without those that begin with another one of them, as
    /// `Grant::narrowed` does.
    fn disjoint(prefixes: BTreeSet<String>, below: &str) -> Vec<String> {
        let mut kept: Vec<String> = Vec::new();
        for prefix in prefixes.into_iter().filter(|prefix| prefix.starts_with(below)) {
            if kept.last().is_none_or(|last| !prefix.starts_with(last.as_str())) {
                kept.push(prefix);
            }
        }
        kept
    }

    fn text(pattern: &'static str) -> impl Strategy<Value = BTreeSet<String>> {
        prop::collection::btree_set(pattern, 0..12)
    }

    proptest! {
        #[test]
        fn pages_show_only_names_within_the_prefixes(
            held in text("[ab]{1,2}(/[ab!]{1,2}){0,2}"),
            prefixes in text("[ab]{1,2}(/[ab]{0,2}){0,2}"),
            limit in 1..5_usize,
        ) {
            let locks = holding(&held);
            let prefixes_of = |below: &str| disjoint(prefixes.clone(), below);
            let all = prefixes_of("");
            let is_within = |name: &str| all.iter().any(|prefix| name.starts_with(&**prefix));
            let seen: Vec<&String> = held.iter().filter(|name| is_within(name)).collect();
            let listed = list_all(&locks, &all, limit);
            prop_assert_eq!(listed.iter().collect::<Vec<_>>(), seen.clone());
            for parent in [None, Some("a"), Some("ab")] {
                let dir = parent.map_or_else(String::new, |parent| format!("{parent}/"));
                // A directory that lies wholly within a prefix is left out, because such a
                // directory is listed by the unrestricted query.
                if is_within(&dir) {
                    continue;
                }
                let below = seen.iter().filter_map(|name| name.strip_prefix(&dir));
                let expected: BTreeSet<(String, bool)> = below
                    .map(|rest| format!("{dir}{}", rest.split('/').next().unwrap_or_default()))
                    .map(|child| (child.clone(), held.contains(&child) && is_within(&child)))
                    .collect();
                let shown = children_all(&locks, &prefixes_of(&dir), parent, limit);
                prop_assert_eq!(shown, expected);
            }
        }
    }

    #[test]
    fn a_directory_that_leads_to_a_prefix_shows_nothing_of_itself() {
        let held = ["team", "team/a/x", "team/b"].map(str::to_owned).into();
        let locks = holding(&held);
        let lead = |prefix: &str| {
            let view = got(lead(&*locks, &name("team"), vec![prefix.to_owned()]));
            assert_eq!((view.holders.len(), view.waiters.len()), (0, 0));
            view.has_below
        };
        assert!(lead("team/a/"));
        assert!(!lead("team/c"));
    }
}
