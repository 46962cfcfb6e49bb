//! Directed tests of queries: a glance at one lock, sessions and their leases, pages of names.

use super::tests::{Lab, ask, client, key, name, shared, waiting};
use super::*;
use crate::time::Time;

fn in_session(ask: Acquire, session: SessionId) -> Acquire {
    Acquire { term: LeaseTerms::Session(session), ..ask }
}

#[test]
fn a_glance_sees_what_the_view_shows() {
    let mut lab = Lab::new();
    lab.granted(ask("a", "top"));
    lab.granted(shared(ask("a/b/c", "x")));
    lab.does(waiting(ask("a/b/c", "y"))).expect("waits");
    lab.granted(ask("z", "x"));
    let glance = |text| {
        // A glance borrows the name, which the test does not need any more.
        let name: &'static LockName = Box::leak(Box::new(name(text)));
        lab.engine.glance(name)
    };
    let holders = |leases: &[Lease]| {
        leases.iter().map(|lease| lease.holder.to_string()).collect::<Vec<_>>().join(" ")
    };
    let seen = |text| {
        let glance = glance(text);
        let (below, waited) = (glance.has_below(), glance.is_waited_for());
        (holders(glance.leases()), holders(glance.above()), glance.mode(), waited, below)
    };
    let (alone, with_others, none) = (Mode::Exclusive, Mode::Shared, String::new);
    assert_eq!(seen("a"), ("top".into(), none(), alone, false, true));
    assert_eq!(seen("a/b"), (none(), "top".into(), alone, false, true));
    assert_eq!(seen("a/b/c"), ("x".into(), "top".into(), with_others, true, false));
    assert_eq!(seen("z"), ("x".into(), none(), alone, false, false));
    let involved = |text, who| glance(text).involves(&client(who));
    assert!(involved("a/b/c", "x") && involved("a/b/c", "y") && involved("z", "x"));
    assert!(!involved("a/b/c", "top") && !involved("z", "y") && !involved("never", "x"));
}

#[test]
fn a_lease_is_renewed_with_its_session() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    lab.at(1).granted(in_session(ask("x", "a"), session));
    let name = name("x");
    let renewed_at = |lab: &Lab| {
        let glance = lab.engine.glance(&name);
        let lease = glance.leases().first().expect("it is held");
        let view = lab.engine.view(&name, lab.now);
        assert_eq!(
            view.holder().map(|holder| holder.lease.renewed_at),
            Some(glance.renewed_at(lease))
        );
        glance.renewed_at(lease)
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
