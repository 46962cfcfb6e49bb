//! What was decided and is to be done, in the order of the decisions, by one thread at a time.
//!
//! The table decides under its mutex, and what it says is done without it. Were each thread to do
//! its own part, two could overtake each other: a release that was decided first would reach the
//! engine after the request that came next, and free what that had been granted.

use parking_lot::{Condvar, Mutex};

/// Effects on their way.
#[derive(Debug)]
pub(super) struct Outbox<E> {
    inner: Mutex<Inner<E>>,
    /// Told when nobody is at it any more.
    rest: Condvar,
}

#[derive(Debug)]
struct Inner<E> {
    waiting: Vec<E>,
    /// Who is at it.
    performer: Option<Me>,
}

/// A thread, by where something of its own lies: cheaper than std's number for it, which counts
/// references.
type Me = usize;

fn me() -> Me {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

/// Who does what was put into an [`Outbox`].
#[derive(Debug)]
#[must_use = "what was put there must be done"]
pub(super) enum Turn<E> {
    /// This thread, and these come first.
    Ours(Vec<E>),
    /// Nobody needs to: there is nothing, or this thread is at it further out, and comes to it.
    None,
    /// Another thread, which is at it already.
    Theirs,
}

impl<E> Default for Outbox<E> {
    fn default() -> Self {
        let inner = Mutex::new(Inner { waiting: Vec::new(), performer: None });
        Self { inner, rest: Condvar::new() }
    }
}

impl<E> Outbox<E> {
    /// Puts effects behind those that are there. To be called under the mutex under which they
    /// were decided, so that they come in that order.
    pub(super) fn put(&self, effects: Vec<E>) -> Turn<E> {
        if effects.is_empty() {
            return Turn::None;
        }
        let me = me();
        let mut inner = self.inner.lock();
        let Some(performer) = inner.performer else {
            inner.performer = Some(me);
            return Turn::Ours(effects);
        };
        inner.waiting.extend(effects);
        if performer == me { Turn::None } else { Turn::Theirs }
    }

    /// Takes the turn, if nobody is at it, for something that is not put there but has its place
    /// in the order all the same. To be called under that mutex, too.
    pub(super) fn claim(&self) -> Option<Turn<E>> {
        let mut inner = self.inner.lock();
        if inner.performer.is_some() {
            return None;
        }
        inner.performer = Some(me());
        Some(Turn::Ours(Vec::new()))
    }

    /// Has what was put there done, with no mutex held. When it returns it *is* done, unless this
    /// thread is at it further out: who is told that a lock is free may try it at once.
    pub(super) fn clear(&self, turn: Turn<E>, mut perform: impl FnMut(E)) {
        let mut effects = match turn {
            Turn::None => return,
            Turn::Theirs => {
                let mut inner = self.inner.lock();
                return self.rest.wait_while(&mut inner, |inner| inner.performer.is_some());
            }
            Turn::Ours(effects) => effects,
        };
        loop {
            effects.into_iter().for_each(&mut perform);
            let mut inner = self.inner.lock();
            effects = std::mem::take(&mut inner.waiting);
            if effects.is_empty() {
                inner.performer = None;
                break;
            }
        }
        self.rest.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn what_comes_of_an_effect_is_done_after_those_before() {
        let (outbox, done) = (Outbox::default(), Mutex::new(Vec::new()));
        outbox.clear(outbox.put(vec![1, 2]), |effect| {
            done.lock().push(effect);
            if effect == 1 {
                // As an event does that is heard on this very thread.
                outbox.clear(outbox.put(vec![3]), |effect| panic!("{effect} would overtake 2"));
            }
        });
        assert_eq!(*done.lock(), [1, 2, 3]);
    }

    #[test]
    fn threads_do_not_overtake_each_other_and_return_when_it_is_done() {
        const EACH: usize = 20_000;
        let (outbox, decided) = (Outbox::default(), Mutex::new(0));
        let (done, busy) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let act = || {
            for _ in 0..EACH {
                let (number, turn) = {
                    let mut decided = decided.lock();
                    *decided += 1;
                    (*decided, outbox.put(vec![*decided]))
                };
                outbox.clear(turn, |effect| {
                    assert!(!busy.swap(true, Ordering::AcqRel), "one at a time");
                    done.lock().push(effect);
                    busy.store(false, Ordering::Release);
                });
                assert!(done.lock().len() >= number, "it is done");
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(act))));
        assert_eq!(*done.lock(), (1..=4 * EACH).collect::<Vec<_>>());
    }
}
