//! One request for all callers that ask the same question: however many ask, the lock service gets
//! one request at a time.

use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::{self, ThreadId};

/// Takes an answer.
pub(super) type Then<T> = Box<dyn FnOnce(T) + Send>;
/// Sends a request, whose answer goes to the argument.
pub(super) type Query<T> = Arc<dyn Fn(Then<T>) + Send + Sync>;

/// The requests for one answer, of which at most one is on its way. Requests that come meanwhile
/// share the next one, so that each answer is newer than its request.
pub(super) struct SharedQuery<T>(Mutex<QueryState<T>>);

struct QueryState<T> {
    waiting: Vec<Then<T>>,
    step: QueryStep,
}

/// How far the request has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QueryStep {
    /// No request is under way.
    Idle,
    /// This thread is sending the request.
    Sending(ThreadId),
    /// The answer came on the thread that was still sending the request.
    AnsweredAtOnce,
    /// The request was sent, and has no answer yet.
    Sent,
}

impl<T> Default for SharedQuery<T> {
    fn default() -> Self {
        Self(Mutex::new(QueryState { waiting: Vec::new(), step: QueryStep::Idle }))
    }
}

impl<T: Clone + Send + 'static> SharedQuery<T> {
    /// Calls `then` with the answer to a request that is sent by `look` from now on.
    pub(super) fn request(self: &Arc<Self>, query: &Query<T>, then: Then<T>) {
        let mut state = self.0.lock();
        state.waiting.push(then);
        let is_idle = state.step == QueryStep::Idle;
        drop(state);
        if is_idle {
            self.send(query);
        }
    }

    /// Sends requests for all who wait, until one is on its way or nobody waits.
    fn send(self: &Arc<Self>, query: &Query<T>) {
        let here = QueryStep::Sending(thread::current().id());
        loop {
            let mut state = self.0.lock();
            // Another thread may have begun at the same time.
            if state.waiting.is_empty()
                || matches!(state.step, QueryStep::Sending(_) | QueryStep::Sent)
            {
                return;
            }
            state.step = here;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            let (own, next) = (Arc::clone(self), Arc::clone(query));
            query(Box::new(move |answer| own.answer(&answer, waiting, &next)));
            let mut state = self.0.lock();
            if state.step == here {
                state.step = QueryStep::Sent;
                return;
            }
            if state.step != QueryStep::AnsweredAtOnce {
                return;
            }
            state.step = QueryStep::Idle;
        }
    }

    fn answer(self: &Arc<Self>, answer: &T, waiting: Vec<Then<T>>, query: &Query<T>) {
        for then in waiting {
            then(answer.clone());
        }
        let mut state = self.0.lock();
        if state.step == QueryStep::Sending(thread::current().id()) {
            // The thread that sends requests goes on in its loop: a call of it here would make the
            // stack deeper with each answer.
            state.step = QueryStep::AnsweredAtOnce;
            return;
        }
        state.step = QueryStep::Idle;
        drop(state);
        self.send(query);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn a_flood_of_lookups_has_one_request_on_its_way() {
        let shared = Arc::new(SharedQuery::default());
        let (submit, requests) = channel::<Then<usize>>();
        let query: Query<usize> = Arc::new(move |then| submit.send(then).expect("the test reads"));
        let (send, answers) = channel();
        for _ in 0..1_000 {
            let send = send.clone();
            shared.request(
                &query,
                Box::new(move |answer| send.send(answer).expect("the test reads")),
            );
        }
        let first = requests.try_recv().expect("a request");
        assert!(requests.try_recv().is_err(), "one is on its way");
        first(1);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [1]);
        let second = requests.try_recv().expect("the rest asks again");
        assert!(requests.try_recv().is_err(), "one is on its way");
        second(2);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), vec![2; 999]);
        assert!(requests.try_recv().is_err(), "nobody asks any more");
        shared.request(&query, Box::new(|_| {}));
        assert!(requests.try_recv().is_ok());
    }

    /// Asks, and once more after each answer.
    fn ask_repeatedly(shared: &Arc<SharedQuery<()>>, query: &Query<()>, count: &Arc<AtomicUsize>) {
        if count.fetch_add(1, Ordering::Relaxed) == 1_000_000 {
            return;
        }
        let (own, next, count) = (Arc::clone(shared), Arc::clone(query), Arc::clone(count));
        shared.request(query, Box::new(move |()| ask_repeatedly(&own, &next, &count)));
    }

    #[test]
    fn answers_at_once_take_no_stack() {
        let shared = Arc::new(SharedQuery::default());
        let count = Arc::new(AtomicUsize::new(0));
        let query: Query<()> = Arc::new(|then| then(()));
        ask_repeatedly(&shared, &query, &count);
        assert_eq!(count.load(Ordering::Relaxed), 1_000_001);
    }
}
