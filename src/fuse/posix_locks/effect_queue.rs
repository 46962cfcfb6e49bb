//! A table with a queue of effects (the actions that follow from the table's decisions), which one
//! thread at a time performs in the order in which the table decided them.
//!
//! The table decides under its mutex, and its effects are performed without it. If each thread
//! performed its own effects, two threads could overtake each other: a release that was decided
//! first could reach the engine after the next request, and release the lease which that request
//! was granted.

use parking_lot::{Condvar, Mutex};

/// A table, and the effects of its decisions that are not performed yet.
#[derive(Debug)]
pub(crate) struct EffectQueue<T, E> {
    inner: Mutex<QueueState<T, E>>,
    /// Notified after each batch of effects that was performed.
    progress: Condvar,
}

#[derive(Debug)]
struct QueueState<T, E> {
    table: T,
    waiting: Vec<E>,
    /// How many batches of waiting effects were taken from the queue to be performed.
    rounds: u64,
    /// How many of the batches that were taken are performed completely.
    done: u64,
    /// The thread that performs the effects, if any.
    performer: Option<Me>,
}

/// The identity of a thread: the address of one of its thread-locals. This is cheaper than std's
/// thread id, which counts references.
type Me = usize;

fn me() -> Me {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

/// Which thread performs the effects of a decision.
#[derive(Debug)]
#[must_use = "a decision must be carried out"]
pub(crate) enum Turn<E> {
    /// No thread performs effects now, so the calling thread does, and begins with these.
    Ours(Vec<E>),
    /// The calling thread has nothing to do: the decision has no effects, or an outer call on this
    /// thread performs effects already, and will perform these as well.
    None,
    /// Another thread performs effects, and will perform these in the batch with this number.
    Theirs(u64),
}

impl<E> Turn<E> {
    /// Returns the value for a caller that must not wait for another thread to perform the effects.
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

    /// Calls `look` with the table, for an access that has no effects.
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

    /// Performs the effects of a decision, with no mutex held. The effects are done when the call
    /// returns, so that a program that is told that a lock is free can take it at once. The
    /// exception is a call from within an effect: then the outer call performs the effects later.
    pub(crate) fn clear(&self, turn: Turn<E>, mut perform: impl FnMut(E)) {
        let mut effects = match turn {
            Turn::None => return,
            // Waits only for the batch that contains the effects of this decision: other threads
            // may keep adding more.
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
    /// Returns the next batch of effects. Returns `None` if no effects wait, and records that no
    /// thread performs effects any more.
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
    fn nested_effects_are_performed_after_earlier_ones() {
        let (queue, done) = (EffectQueue::new(()), Mutex::new(Vec::new()));
        let decide = |effects: Vec<i32>| queue.decide(|(), out| *out = effects).1;
        queue.clear(decide(vec![1, 2]), |effect| {
            done.lock().push(effect);
            if effect == 1 {
                // The handler of an engine event makes such a nested call: it calls `clear` while
                // an effect is performed on the same thread.
                queue.clear(decide(vec![3]), |effect| panic!("{effect} would overtake 2"));
            }
        });
        assert_eq!(*done.lock(), [1, 2, 3]);
    }

    #[test]
    fn effects_of_all_threads_are_performed_in_order_before_clear_returns() {
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
