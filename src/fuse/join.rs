//! Several requests at once: their answers, in order, when the last has come.

use parking_lot::Mutex;
use std::sync::Arc;

/// Where the answers go.
type Then<T> = Box<dyn FnOnce(Vec<T>) + Send>;

/// The answers to a number of requests, some of which are still to come.
pub(super) struct Join<T>(Mutex<Inner<T>>);

struct Inner<T> {
    answers: Vec<Option<T>>,
    missing: usize,
    then: Option<Then<T>>,
}

impl<T> Join<T> {
    /// Waits for `count` answers, at least one, then calls `then` with all of them.
    pub(super) fn new(count: usize, then: impl FnOnce(Vec<T>) + Send + 'static) -> Arc<Self> {
        let answers = std::iter::repeat_with(|| None).take(count).collect();
        Arc::new(Self(Mutex::new(Inner { answers, missing: count, then: Some(Box::new(then)) })))
    }

    /// The answer to the request of this index, counted from 0.
    pub(super) fn answered(&self, index: usize, answer: T) {
        let mut inner = self.0.lock();
        inner.answers[index] = Some(answer);
        inner.missing -= 1;
        if inner.missing > 0 {
            return;
        }
        let answers = std::mem::take(&mut inner.answers).into_iter().flatten().collect();
        let then = inner.then.take();
        drop(inner);
        if let Some(then) = then {
            then(answers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn answers_arrive_in_order_of_the_requests() {
        let (send, all) = channel();
        let join = Join::new(3, move |answers| send.send(answers).expect("heard"));
        for index in [2, 0] {
            join.answered(index, index * 10);
            assert!(all.try_recv().is_err());
        }
        join.answered(1, 10);
        assert_eq!(all.recv(), Ok(vec![0, 10, 20]));
    }
}
