//! A request that was made, and its answer, which may still be on its way.
//!
//! A request acts when it is made, in the order of the calls, and not when its answer is awaited.
//! Dropping a [`Call`] withdraws nothing: a release is carried out although nobody waits for it.

use crate::engine::{Answer, Outcome};
use crate::fuse::kernel::task::{block_on, spawn};
use crate::service::lock_service::{RequestError, Unavailable};
use crate::time::Span;
use std::fmt;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// The sending half of a [`Call`]. Dropping it without an answer means that the service is closing.
pub type Replier<T> = oneshot::Sender<Result<T, Unavailable>>;

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
    Expected(oneshot::Receiver<Result<T, Unavailable>>),
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
        let (replier, answer) = oneshot::channel();
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

    /// Returns this request with its answer translated by `translate`, which is called at the latest
    /// when the answer is awaited.
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
        spawn(async move {
            // Sending fails only if nobody waits for the answer.
            let _ = replier.send(steps.await);
        });
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
