//! Views that are restricted to some prefixes: the locks whose names begin with one of them, and
//! the directories that lead there. Names outside the prefixes influence neither the content nor
//! the length of a view, nor its page boundaries.
//!
//! Prefixes are sorted, and none lies within another.

use super::callback::Then;
use super::failure::Unavailable;
use super::locks::Locks;
use super::paging::{Children, List, ListPage, ListedNames};
use crate::engine::{Child, LockName, LockView, Mode};
use std::vec::IntoIter;

/// Passes a page of the locks within `prefixes` to `then`. The prefix of the query is ignored: the
/// caller has already narrowed `prefixes` to it.
pub fn list(
    locks: &Locks,
    prefixes: Vec<String>,
    query: List,
    then: impl FnOnce(Result<ListPage<LockView>, Unavailable>) + Send + 'static,
) {
    list_of(locks, ListedNames::InUse, prefixes, query, then);
}

/// Passes a page of the locks within `prefixes` that have these names to `then`, as [`list`] does.
pub fn list_of(
    locks: &Locks,
    names: ListedNames,
    prefixes: Vec<String>,
    query: List,
    then: impl FnOnce(Result<ListPage<LockView>, Unavailable>) + Send + 'static,
) {
    list_on((locks.clone(), names), prefixes.into_iter(), query, Vec::new(), Box::new(then));
}

fn list_on(
    (locks, names): (Locks, ListedNames),
    mut left: IntoIter<String>,
    query: List,
    mut found: Vec<LockView>,
    then: Then<Result<ListPage<LockView>, Unavailable>>,
) {
    let is_full = found.len() >= query.limit;
    let Some(prefix) = left.next().filter(|_| !is_full) else {
        let next = found.last().filter(|_| is_full).map(|last| last.name.to_string());
        return then(Ok(ListPage { items: found, next }));
    };
    let part = List { prefix, after: query.after.clone(), limit: query.limit - found.len() };
    locks.clone().list_of(names, part, move |page| match page {
        Ok(page) => {
            found.extend(page.items);
            list_on((locks, names), left, query, found, then);
        }
        Err(why) => then(Err(why)),
    });
}

/// Passes the view of a name that itself lies outside `prefixes` but leads to them, to `then`. All
/// prefixes must lie below the name. The view shows a directory if locks exist within the prefixes,
/// and never shows whether the name itself is held.
pub fn lead(
    locks: &Locks,
    name: LockName,
    prefixes: Vec<String>,
    then: impl FnOnce(Result<LockView, Unavailable>) + Send + 'static,
) {
    let (asked, one) = (locks.clone(), List { limit: 1, ..List::default() });
    list(locks, prefixes, one, move |page| match page {
        Err(why) => then(Err(why)),
        Ok(below) => asked.view(&name, move |view| {
            let (holders, waiters) = (Vec::new(), Vec::new());
            let has_below = !below.items.is_empty();
            then(view.map(|view| LockView {
                mode: Mode::Exclusive,
                holders,
                waiters,
                has_below,
                ..view
            }));
        }),
    });
}

/// Passes a page of the entries directly below a name (or at the top level) that lie within
/// `prefixes` or lead there. All prefixes must lie below the name.
pub fn children(
    locks: &Locks,
    prefixes: Vec<String>,
    query: Children,
    then: impl FnOnce(Result<ListPage<Child>, Unavailable>) + Send + 'static,
) {
    let dir = query.parent.as_ref().map_or_else(String::new, |parent| format!("{parent}/"));
    let left = prefixes.into_iter();
    Walk { locks: locks.clone(), dir, left, query, found: Vec::new() }.go_on(Box::new(then));
}

/// The progress of a request that lists a directory within some prefixes.
struct Walk {
    locks: Locks,
    /// The text with which the names of all entries begin: the directory's own name and a slash.
    dir: String,
    left: IntoIter<String>,
    /// The query for the page. Its cursor advances during the listing, and is the smallest name
    /// that the next entry may have.
    query: Children,
    found: Vec<Child>,
}

impl Walk {
    fn go_on(mut self, then: Then<Result<ListPage<Child>, Unavailable>>) {
        if self.found.len() >= self.query.limit {
            return then(Ok(ListPage { items: self.found, next: self.query.cursor }));
        }
        let cursor = self.query.cursor.as_deref().unwrap_or_default();
        let is_behind = |prefix: &String| cursor > prefix.as_str() && !cursor.starts_with(prefix);
        let Some(prefix) = self.left.find(|prefix| !is_behind(prefix)) else {
            return then(Ok(ListPage { items: self.found, next: None }));
        };
        let rest = prefix.strip_prefix(&self.dir).unwrap_or_default();
        match rest.split_once('/') {
            Some((part, _)) => {
                let dir = format!("{}{part}", self.dir);
                self.lead(dir, prefix, then);
            }
            None => self.whole(prefix, then),
        }
    }

    /// Adds the entry `dir` as a directory, if there is a lock below it whose name begins with
    /// `prefix`.
    fn lead(
        mut self,
        dir: String,
        prefix: String,
        then: Then<Result<ListPage<Child>, Unavailable>>,
    ) {
        let one = List { prefix, after: None, limit: 1 };
        self.locks.clone().list(one, move |page| match page {
            Ok(page) => {
                if !page.items.is_empty()
                    && let Ok(name) = LockName::parse(&dir)
                {
                    self.found.push(Child { name, lock: None });
                    // '0' follows '/' in ASCII. So the smallest name that the next entry may have
                    // is greater than all names below this directory.
                    self.query.cursor = Some(dir + "0");
                }
                self.go_on(then);
            }
            Err(why) => then(Err(why)),
        });
    }

    /// Adds the directory's entries whose names begin with `prefix`.
    fn whole(mut self, prefix: String, then: Then<Result<ListPage<Child>, Unavailable>>) {
        let Children { parent, cursor, limit } = self.query.clone();
        let from = cursor.filter(|cursor| *cursor > prefix).unwrap_or_else(|| prefix.clone());
        let part = Children { parent, cursor: Some(from), limit: limit - self.found.len() };
        self.locks.clone().children(part, move |page| match page {
            Ok(page) => {
                let is_within = |child: &Child| child.name.as_str().starts_with(&prefix);
                self.found.extend(page.items.into_iter().take_while(is_within));
                if let Some(next) = page.next.filter(|next| next.starts_with(&prefix)) {
                    self.query.cursor = Some(next);
                }
                self.go_on(then);
            }
            Err(why) => then(Err(why)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::Local;
    use super::*;
    use crate::engine::lease_terms::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{Acquire, ClientId, LeaseTerms, Op, Rules};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn holding(names: &BTreeSet<String>) -> Locks {
        let locks = Locks::new(Arc::new(Local::in_memory(Rules::default()).expect("started")));
        for text in names {
            let acquire = Op::Acquire(Acquire::new(
                name(text),
                ClientId::parse("a").expect("valid"),
                LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
            ));
            locks.submit(acquire, |answer| assert!(matches!(answer, Ok(Ok(_)))));
        }
        locks
    }

    /// Calls `ask` with a callback, and returns the answer, which must arrive before `ask` returns.
    fn got<T: Send + 'static>(ask: impl FnOnce(Then<Result<T, Unavailable>>)) -> T {
        let (send, come) = channel();
        ask(Box::new(move |answer| drop(send.send(answer))));
        come.try_recv().expect("answered at once").expect("available")
    }

    fn list_all(locks: &Locks, prefixes: &[String], limit: usize) -> Vec<String> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let query = List { prefix: String::new(), after, limit };
            let page = got(|then| list(locks, prefixes.to_vec(), query, then));
            assert!(page.items.len() <= limit);
            all.extend(page.items.iter().map(|view| view.name.to_string()));
            let Some(next) = page.next else { return all };
            assert_eq!(all.last(), Some(&next), "a page ends with what it shows");
            after = Some(name(&next));
        }
    }

    /// Returns the names of the entries, and whether each is shown as a lock.
    fn children_all(
        locks: &Locks,
        prefixes: &[String],
        parent: Option<&str>,
        limit: usize,
    ) -> BTreeSet<(String, bool)> {
        let (mut all, mut cursor) = (BTreeSet::new(), None);
        loop {
            let query = Children { parent: parent.map(name), cursor, limit };
            let page = got(|then| children(locks, prefixes.to_vec(), query, then));
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
            let view = got(|then| lead(&locks, name("team"), vec![prefix.to_owned()], then));
            assert_eq!((view.holders.len(), view.waiters.len()), (0, 0));
            view.has_below
        };
        assert!(lead("team/a/"));
        assert!(!lead("team/c"));
    }
}
