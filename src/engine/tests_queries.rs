//! Directed tests of queries: locks above a name, sessions and their leases, pages of names.

use super::tests::{Lab, ask, client, key, name, shared, waiting};
use super::*;
use crate::time::Time;

fn in_session(ask: Acquire, session: SessionId) -> Acquire {
    Acquire { term: LeaseTerms::Session(session), ..ask }
}

#[test]
fn holders_above_are_those_of_the_nearest_held_lock() {
    let mut lab = Lab::new();
    lab.granted(ask("a", "top"));
    lab.granted(shared(ask("a/b/c", "x")));
    lab.does(waiting(ask("a/b/c", "y"))).expect("waits");
    lab.granted(ask("z", "x"));
    let above = |text| {
        let leases = lab.engine.holders_above(&name(text));
        leases.iter().map(|lease| lease.holder.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((above("a"), above("z")), (String::new(), String::new()));
    assert_eq!((above("a/b"), above("a/b/c")), ("top".into(), "top".into()));
    assert_eq!((above("a/b/c/d"), above("a/x/y")), ("x".into(), "top".into()));
    let involved = |text, who| lab.engine.involves(&name(text), &client(who));
    assert!(involved("a/b/c", "x") && involved("a/b/c", "y") && involved("z", "x"));
    assert!(!involved("a/b/c", "top") && !involved("z", "y") && !involved("never", "x"));
}

#[test]
fn a_lease_is_renewed_with_its_session() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    lab.at(1).granted(in_session(ask("x", "a"), session));
    let renewed_at = |lab: &Lab| {
        let view = lab.engine.view(&name("x"), lab.now);
        view.holder().expect("it is held").lease.renewed_at
    };
    assert_eq!(renewed_at(&lab), Time::from_secs(1));
    lab.at(5).does(Op::KeepAlive(session)).expect("alive");
    assert_eq!(renewed_at(&lab), Time::from_secs(5));
}

#[test]
fn a_session_lists_its_leases_in_pages() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    let mut tokens = vec![];
    for lock in ["c", "a", "b"] {
        tokens.push((name(lock), lab.granted(in_session(ask(lock, "a"), session))));
    }
    tokens.sort();
    lab.granted(ask("d", "b"));
    lab.does(Op::Acquire(Acquire {
        line: QueuePolicy::Join(None),
        ..in_session(ask("d", "a"), session)
    }))
    .expect("waits");
    let view = lab.engine.session(session, 2).expect("it is open");
    assert_eq!((view.client.as_str(), view.held, view.waiting), ("a", 3, 1));
    assert_eq!(view.leases, tokens[..2]);
    assert_eq!(view.ends.expires_at, Time::from_secs(10));
    let leases_of =
        |after: Option<&str>, limit| lab.engine.leases_of(session, after.map(name).as_ref(), limit);
    assert_eq!(leases_of(None, 2), tokens[..2]);
    assert_eq!(leases_of(Some("a"), 9), tokens[1..]);
    assert_eq!(leases_of(Some("c"), 9), []);
    let unknown = SessionId::named(99);
    assert_eq!(lab.engine.session(unknown, 9), None);
    assert_eq!(lab.engine.leases_of(unknown, None, 9), []);
}

#[test]
fn pages_have_the_size_that_was_asked_for() {
    let mut lab = Lab::new();
    for lock in ["a", "b/c", "b/d", "e"] {
        lab.granted(ask(lock, "x"));
    }
    let names =
        |page: &[Child]| page.iter().map(|child| child.name.to_string()).collect::<Vec<_>>();
    let (page, cursor) = lab.engine.children(None, None, 2);
    assert_eq!(names(&page), ["a", "b"]);
    let (page, cursor) = lab.engine.children(None, cursor.as_deref(), 2);
    assert_eq!((names(&page), cursor), (vec!["e".to_owned()], None));
    let listed = |after: Option<&str>, limit| {
        let after = after.map(name);
        let views = lab.engine.list("b/", after.as_ref(), limit, lab.now);
        views.map(|view| view.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed(None, 9), ["b/c", "b/d"]);
    assert_eq!(listed(None, 1), ["b/c"]);
    assert_eq!(listed(Some("b/c"), 9), ["b/d"]);
    assert_eq!(listed(Some("a"), 9), ["b/c", "b/d"], "a cursor before the prefix");
    lab.does(Op::Release(Release::of(key("b/c", "x", None)))).expect("released");
    assert!(lab.engine.view(&name("b"), lab.now).has_below);
    lab.does(Op::Release(Release::of(key("b/d", "x", None)))).expect("released");
    assert!(!lab.engine.view(&name("b"), lab.now).has_below);
}
