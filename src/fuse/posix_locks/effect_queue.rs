//! Where it is decided, and the order in which what was decided is done: by one thread at a time.
//!
//! The table decides under its mutex, and what it says is done without it. Were each thread to do
//! its own part, two could overtake each other: a release that was decided first would reach the
//! engine after the request that came next, and free what that had been granted.

use parking_lot::{Condvar, Mutex};

/// A table, and the effects of its decisions that are on their way.
#[derive(Debug)]
pub(crate) struct EffectQueue<T, E> {
    inner: Mutex<QueueState<T, E>>,
    /// Told when a round is done.
    progress: Condvar,
}

#[derive(Debug)]
struct QueueState<T, E> {
    table: T,
    waiting: Vec<E>,
    /// How often what waited was taken, to be done.
    rounds: u64,
    /// How many of these rounds are done.
    done: u64,
    /// The thread that carries out the effects.
    performer: Option<Me>,
}

/// A thread, by where something of its own lies: cheaper than std's number for it, which counts
/// references.
type Me = usize;

fn me() -> Me {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

/// The thread that carries out the effects of a decision.
#[derive(Debug)]
#[must_use = "what was decided must be done"]
pub(crate) enum Turn<E> {
    /// This thread, and these come first.
    Ours(Vec<E>),
    /// Nobody needs to: there is nothing, or this thread is at it further out, and comes to it.
    None,
    /// Another thread, which is at it already, in this round.
    Theirs(u64),
}

impl<E> Turn<E> {
    /// The same for who must not wait for another thread to come to it.
    pub(crate) fn unless_theirs(self) -> Self {
        match self {
            Self::Theirs(_) => Self::None,
            ours => ours,
        }
    }
}

impl<T, E> EffectQueue<T, E> {
    pub(crate) fn new(table: T) -> Self {
        let (waiting, rounds, done, performer) = (Vec::new(), 0, 0, None);
        let inner = Mutex::new(QueueState { table, waiting, rounds, done, performer });
        Self { inner, progress: Condvar::new() }
    }

    /// Looks something up, of which nothing is to be done.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.inner.lock().table)
    }

    /// Runs `decide` on the table. Its effects are queued behind all earlier ones, and
    /// [`EffectQueue::clear`] performs them.
    pub(crate) fn decide<R>(&self, decide: impl FnOnce(&mut T, &mut Vec<E>) -> R) -> (R, Turn<E>) {
        let mut inner = self.inner.lock();
        let mut effects = Vec::new();
        let decided = decide(&mut inner.table, &mut effects);
        if effects.is_empty() {
            return (decided, Turn::None);
        }
        let me = me();
        let turn = match inner.performer {
            None => {
                inner.performer = Some(me);
                Turn::Ours(effects)
            }
            Some(performer) => {
                inner.waiting.extend(effects);
                if performer == me { Turn::None } else { Turn::Theirs(inner.rounds + 1) }
            }
        };
        (decided, turn)
    }

    /// Has what was decided done, with no mutex held. When it returns it *is* done, unless this
    /// thread is at it further out: who is told that a lock is free may try it at once.
    pub(crate) fn clear(&self, turn: Turn<E>, mut perform: impl FnMut(E)) {
        let mut effects = match turn {
            Turn::None => return,
            // Only for its own: there may always be more, of others.
            Turn::Theirs(round) => {
                let mut inner = self.inner.lock();
                return self.progress.wait_while(&mut inner, |inner| inner.done < round);
            }
            Turn::Ours(effects) => effects,
        };
        loop {
            effects.into_iter().for_each(&mut perform);
            let next = self.inner.lock().next();
            self.progress.notify_all();
            match next {
                Some(next) => effects = next,
                None => return,
            }
        }
    }
}

impl<T, E> QueueState<T, E> {
    /// Returns the effects that are next; `None`: nothing, and nobody is at it any more.
    fn next(&mut self) -> Option<Vec<E>> {
        self.done = self.rounds;
        if self.waiting.is_empty() {
            self.performer = None;
            return None;
        }
        self.rounds += 1;
        Some(std::mem::take(&mut self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn what_comes_of_an_effect_is_done_after_those_before() {
        let (queue, done) = (EffectQueue::new(()), Mutex::new(Vec::new()));
        let decide = |effects: Vec<i32>| queue.decide(|(), out| *out = effects).1;
        queue.clear(decide(vec![1, 2]), |effect| {
            done.lock().push(effect);
            if effect == 1 {
                // As an event does that is heard on this very thread.
                queue.clear(decide(vec![3]), |effect| panic!("{effect} would overtake 2"));
            }
        });
        assert_eq!(*done.lock(), [1, 2, 3]);
    }

    #[test]
    fn threads_do_not_overtake_each_other_and_return_when_it_is_done() {
        const EACH: usize = 20_000;
        let (queue, done) = (EffectQueue::new(0), Mutex::new(Vec::new()));
        let busy = AtomicBool::new(false);
        let perform = |effect: usize| {
            assert!(!busy.swap(true, Ordering::AcqRel), "one at a time");
            done.lock().push(effect);
            busy.store(false, Ordering::Release);
        };
        let count = |table: &mut usize| {
            *table += 1;
            *table
        };
        let act = || {
            for _ in 0..EACH {
                let (number, turn) = queue.decide(|table, out| {
                    out.push(count(table));
                    *table
                });
                queue.clear(turn, perform);
                assert!(done.lock().len() >= number, "it is done");
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(act))));
        assert_eq!(*done.lock(), (1..=4 * EACH).collect::<Vec<_>>());
    }
}
