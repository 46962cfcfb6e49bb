//! A request that was made, and its answer, which may still be on its way.
//!
//! A request acts when it is made, in the order of the calls, and not when its answer is awaited.
//! Dropping a [`Call`] withdraws nothing: a release is carried out although nobody waits for it.

use crate::engine::{Answer, Outcome};
use crate::service::unavailable::{RequestError, Unavailable};
use crate::time::Span;
use common::task::{Pending, Promise, block_on, pending, spawn};
use std::fmt;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};

/// The sending half of a [`Call`]. Dropping it without an answer means that the service is closing.
pub type Replier<T> = Promise<Result<T, Unavailable>>;

/// A request that was made: a future of its answer.
///
/// The future may be awaited, and be dropped at any moment. [`Call::detach`] says that nobody needs
/// the answer.
#[must_use = "a request whose answer nobody needs is detached"]
pub struct Call<T>(Progress<T>);

enum Progress<T> {
    /// The answer, until it is taken.
    Answered(Option<Result<T, Unavailable>>),
    /// The answer will be sent.
    Expected(Pending<Result<T, Unavailable>>),
    /// An answer of another form will be sent, which this future receives and translates.
    Translated(Pin<Box<dyn Future<Output = Result<T, Unavailable>> + Send>>),
}

impl<T> Call<T> {
    /// Returns a request that is answered.
    pub const fn answered(answer: Result<T, Unavailable>) -> Self {
        Self(Progress::Answered(Some(answer)))
    }

    /// Returns a request that is not answered yet, and the value by which to answer it.
    pub fn expected() -> (Replier<T>, Self) {
        let (replier, answer) = pending();
        (replier, Self(Progress::Expected(answer)))
    }

    /// Says that nobody needs the answer. The request is carried out all the same.
    pub fn detach(self) {}
}

impl<T: Send + 'static> Call<T> {
    /// Returns a request that was sent elsewhere, and whose answer `receive` only waits for and
    /// translates: the future is dropped with the call.
    pub fn translated(
        receive: impl Future<Output = Result<T, Unavailable>> + Send + 'static,
    ) -> Self {
        Self(Progress::Translated(Box::pin(receive)))
    }

    /// Returns this request with its answer translated by `translate`, which is called at the
    /// latest when the answer is awaited.
    pub fn map<U: Send + 'static>(
        self,
        translate: impl FnOnce(T) -> U + Send + 'static,
    ) -> Call<U> {
        match self.0 {
            Progress::Answered(answer) => {
                Call(Progress::Answered(answer.map(|answer| answer.map(translate))))
            }
            _ => Call::translated(async move { self.await.map(translate) }),
        }
    }

    /// Keeps `guard` until this request is answered, whether or not the answer is awaited.
    pub fn keeping(self, guard: impl Send + 'static) -> Self {
        if let Progress::Answered(_) = self.0 {
            return self;
        }
        Self::of_steps(async move {
            let answer = self.await;
            drop(guard);
            answer
        })
    }

    /// Carries out `steps`, from now on and to their end, whether or not the answer is awaited.
    pub fn of_steps(steps: impl Future<Output = Result<T, Unavailable>> + Send + 'static) -> Self {
        let (replier, call) = Self::expected();
        spawn(async move { replier.keep(steps.await) });
        call
    }

    /// Blocks this thread until the answer is there.
    pub fn wait(self) -> Result<T, Unavailable> {
        block_on(self)
    }

    /// Blocks this thread until the answer is there, for at most `patience`.
    pub fn wait_at_most(self, patience: Span) -> Option<Result<T, Unavailable>> {
        let (send, answer) = mpsc::channel();
        // Sending fails only if the time is over.
        spawn(async move { drop(send.send(self.await)) });
        answer.recv_timeout(patience.as_duration()).ok()
    }
}

impl Call<Answer> {
    /// Waits for the answer to a command, and returns its outcome. A refusal and a missing answer
    /// are one type of error.
    pub async fn outcome(self) -> Result<Outcome, RequestError> {
        self.await.map_err(RequestError::Unavailable)?.map_err(RequestError::Refused)
    }
}

impl<T> Unpin for Call<T> {}

impl<T> Future for Call<T> {
    type Output = Result<T, Unavailable>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            // A future is not polled again after it has completed.
            Progress::Answered(answer) => {
                Poll::Ready(answer.take().unwrap_or(Err(Unavailable::Closing)))
            }
            Progress::Expected(answer) => Pin::new(answer)
                .poll(context)
                .map(|answer| answer.unwrap_or(Err(Unavailable::Closing))),
            Progress::Translated(answer) => answer.as_mut().poll(context),
        }
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{
        Acquire, ClientId, Command, Lease, LeaseKey, LeaseTerms, LockName, LockView, Op, Ownership,
        QueuePolicy, Release, Rules,
    };
    use crate::service::local::Local;
    use crate::service::queue_waits::QueueWaits;
    use crate::service::test_backends::{forward_status_to_engine, forward_to_engine};
    use crate::service::{CacheableView, LockService, ParentCheck, Retry};
    use futures_util::FutureExt as _;
    use parking_lot::Mutex;
    use std::collections::VecDeque;
    use std::sync::Arc;

    /// A lock service that is somewhere else: each request arrives, and is answered, when the test
    /// lets it.
    struct Elsewhere {
        engine: Local,
        under_way: Mutex<VecDeque<Request>>,
    }

    type Request = Box<dyn FnOnce(&Local) + Send>;

    impl Elsewhere {
        fn send<T: Send + 'static>(
            &self,
            request: impl FnOnce(&Local) -> Call<T> + Send + 'static,
        ) -> Call<T> {
            let (replier, call) = Call::expected();
            self.under_way.lock().push_back(Box::new(move |engine| {
                replier.keep(request(engine).wait());
            }));
            call
        }

        /// Lets the oldest request arrive, if there is one.
        fn arrives(&self) -> bool {
            let next = self.under_way.lock().pop_front();
            next.map(|request| request(&self.engine)).is_some()
        }
    }

    impl LockService for Elsewhere {
        fn submit(&self, command: Command, retry: Retry) -> Call<Answer> {
            self.send(move |engine| engine.submit(command, retry))
        }

        fn view(&self, name: &LockName, retry: Retry) -> Call<CacheableView> {
            let name = name.clone();
            self.send(move |engine| engine.view(&name, retry))
        }

        forward_to_engine!();
    }

    forward_status_to_engine!(Elsewhere);

    fn local() -> Local {
        Local::in_memory(Rules::default()).expect("it starts")
    }

    fn elsewhere() -> (Arc<Elsewhere>, Arc<dyn LockService>) {
        let service = Arc::new(Elsewhere { engine: local(), under_way: Mutex::default() });
        (Arc::clone(&service), service)
    }

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn acquire(lock: &str, client: &str) -> Acquire {
        let client = ClientId::parse(client).expect("valid");
        let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
        Acquire { hold: Ownership::Exclusive(None), ..Acquire::new(name(lock), client, term) }
    }

    fn release(lock: &str, client: &str) -> Op {
        let client = ClientId::parse(client).expect("valid");
        Op::Release(Release::of(LeaseKey { name: name(lock), client, token: None }))
    }

    fn done(engine: &Local, op: Op) {
        engine.submit(op.into(), Retry::Never).wait().expect("available").expect("done");
    }

    fn view(engine: &Local, lock: &str) -> LockView {
        engine.view(&name(lock), Retry::Never).wait().expect("available").view
    }

    /// Makes a request by `begin`, and drops its call after `steps` further requests have arrived
    /// and the call was polled after each. Then all others arrive.
    fn dropped_after<T>(steps: usize, service: &Elsewhere, begin: impl FnOnce() -> Call<T>) {
        let mut call = Some(begin());
        for _ in 0..steps {
            let is_over = call.as_mut().is_none_or(|call| call.now_or_never().is_some());
            if is_over || !service.arrives() {
                call = None;
            }
        }
        drop(call);
        while service.arrives() {}
    }

    /// The steps after which a call is dropped: more than any of them has.
    const STEPS: usize = 8;

    #[test]
    fn a_release_is_carried_out_whenever_its_call_is_dropped() {
        for steps in 0..STEPS {
            let (service, locks) = elsewhere();
            done(&service.engine, Op::Acquire(acquire("build", "a")));
            dropped_after(steps, &service, || locks.give_back_once(release("build", "a")));
            assert_eq!(view(&service.engine, "build").holders.len(), 0, "after {steps} steps");
            done(&service.engine, Op::Acquire(acquire("build", "a")));
            dropped_after(steps, &service, || {
                locks.submit(release("build", "a").into(), Retry::Never)
            });
            assert_eq!(view(&service.engine, "build").holders.len(), 0, "after {steps} steps");
        }
    }

    /// While the request for `top/x` is under way, another client takes `top`.
    #[test]
    fn a_grant_is_undone_whenever_its_call_is_dropped() {
        for steps in 0..STEPS {
            let (service, locks) = elsewhere();
            let ask = Op::Acquire(acquire("top/x", "a"));
            let check = ParentCheck::of(&ask, |_| {
                |_: &LockName, client: &ClientId, holders: &[Lease]| {
                    let is_own = |lease: &Lease| lease.holder == *client;
                    holders.iter().all(is_own).then_some(()).ok_or_else(|| "closed".into())
                }
            });
            let call = locks.clone().submit_checked(ask.into(), check);
            // The two views before the request were sent when it was made, and arrive now.
            assert!(service.arrives() && service.arrives());
            done(&service.engine, Op::Acquire(acquire("top", "b")));
            dropped_after(steps, &service, || call);
            assert_eq!(view(&service.engine, "top/x").holders.len(), 0, "after {steps} steps");
        }
    }

    #[test]
    fn a_place_in_a_queue_is_left_whenever_its_call_is_dropped() {
        for steps in 0..STEPS {
            let (service, locks) = elsewhere();
            done(&service.engine, Op::Acquire(acquire("build", "a")));
            let waits = QueueWaits::new(locks);
            let ask = Acquire { line: QueuePolicy::Join(None), ..acquire("build", "b") };
            dropped_after(steps, &service, || waits.enter(ask, None, |_| {}));
            assert_eq!(view(&service.engine, "build").waiters.len(), 0, "after {steps} steps");
            done(&service.engine, release("build", "a"));
            assert_eq!(view(&service.engine, "build").holders.len(), 0, "after {steps} steps");
        }
    }

    #[test]
    fn what_a_call_keeps_is_kept_until_it_is_answered() {
        let (service, locks) = elsewhere();
        let kept = Arc::new(());
        let call = locks.submit(Op::Acquire(acquire("build", "a")).into(), Retry::Never);
        drop(call.keeping(Arc::clone(&kept)));
        assert_eq!(Arc::strong_count(&kept), 2, "it has no answer yet");
        assert!(service.arrives());
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn a_service_that_ends_answers_every_call() {
        let (service, locks) = elsewhere();
        let call = locks.submit(Op::Settle.into(), Retry::Never);
        service.under_way.lock().clear();
        assert_eq!(call.wait(), Err(Unavailable::Closing));
    }

    /// Submits 1,000 requests, polls none of their calls, and returns whether the tokens follow the
    /// order of the requests.
    fn are_in_order(locks: &dyn LockService, mut arrive: impl FnMut()) -> bool {
        let lock = |number: usize| format!("lock{number:04}");
        for number in 0..1_000 {
            let ask = Op::Acquire(acquire(&lock(number), "a"));
            locks.submit(ask.into(), Retry::Never).detach();
        }
        arrive();
        let token = |number: usize| {
            let asked = locks.view(&name(&lock(number)), Retry::Never);
            arrive();
            asked.wait().expect("available").view.holders[0].lease.token
        };
        (0..1_000).map(token).is_sorted()
    }

    #[test]
    fn calls_that_nobody_polls_are_carried_out_in_their_order() {
        assert!(are_in_order(&local(), || {}));
        let (service, _) = elsewhere();
        assert!(are_in_order(&*service, || while service.arrives() {}));
    }
}
