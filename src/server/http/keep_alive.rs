//! The keep-alive thread: it serves all connections that only keep a session alive, many at a time.
//!
//! Ten thousand sessions ask once a millisecond, each by a connection of its own. To wake up for
//! each of them, with nothing of the server in the processor's caches, costs several times what
//! its answer does, and they have seconds to spare. So a connection that asks for nothing else,
//! and seldom, goes to a thread that takes breaks: it answers all that has come, and then reads
//! nothing for some milliseconds.
//!
//! No other connection is delayed by that. When such a connection sends another kind of request, it
//! first returns to its worker thread, which then serves the request, late by one break.

use crate::time::{Span, Time, boot_now};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use tokio::runtime::Handle;

/// A break is no longer than this: nothing to a lease of seconds, which alone are kept alive that
/// seldom, and time enough for some thirty of ten thousand.
const BREAK_MAX: Span = Span::from_millis(32);

/// So many at once cost each hardly more than itself: a break need not be longer.
const GATHERED: u64 = 32;

/// How long it is measured how often signs of life come.
const MEASURED: Span = Span::from_millis(200);

/// A connection whose signs of life come closer together than this stays among the others:
/// somebody waits for each before asking for the next, or has little time.
const SELDOM: Span = Span::from_secs(1);

thread_local! {
    static HERE: ThreadState = ThreadState::default();
    static PACE: RefCell<KeepAliveRate> = RefCell::default();
}

/// Per-thread state: the thread's number, and the requests seen in the current poll.
#[derive(Default)]
struct ThreadState {
    number: Cell<usize>,
    is_quiet: Cell<bool>,
    asked: Cell<u64>,
    signs: Cell<u64>,
    leaves: Cell<bool>,
}

/// This thread has this number, and may be the quiet one.
pub(super) fn settle(number: usize, is_quiet: bool) {
    HERE.with(|here| {
        here.number.set(number);
        here.is_quiet.set(is_quiet);
    });
}

/// The number of this thread.
pub(super) fn number() -> usize {
    HERE.with(|here| here.number.get())
}

/// The connection at hand has asked for something.
pub(super) fn asked() {
    HERE.with(|here| here.asked.set(here.asked.get() + 1));
}

/// And it was to keep a session alive, no more.
pub(super) fn sign_of_life() {
    HERE.with(|here| here.signs.set(here.signs.get() + 1));
}

/// Goes on where answers are prompt: elsewhere, if this is the quiet thread.
pub(super) async fn leave() {
    poll_fn(|_| {
        HERE.with(|here| {
            here.leaves.set(here.is_quiet.get());
            // On `Pending`, `MigratingConnection` moves the connection back to its worker thread
            // and polls again there.
            if here.is_quiet.get() { Poll::Pending } else { Poll::Ready(()) }
        })
    })
    .await;
}

/// Handle of the thread that serves keep-alive connections.
#[derive(Clone)]
pub(super) struct KeepAliveThread {
    pub(super) handle: Handle,
    /// How many are served there.
    pub(super) connections: Arc<AtomicUsize>,
}

/// A connection that moves between its worker and the keep-alive thread.
pub(super) struct MigratingConnection(Option<Box<ServedConnection>>);

/// A connection being served, and the threads it may run on.
struct ServedConnection {
    done: Pin<Box<dyn Future<Output = ()> + Send>>,
    rhythm: RequestInterval,
    /// Where it came from.
    prompt: Handle,
    quiet: KeepAliveThread,
}

impl MigratingConnection {
    /// Serves a connection, at first by `prompt`.
    pub(super) fn new(
        done: impl Future<Output = ()> + Send + 'static,
        prompt: Handle,
        quiet: KeepAliveThread,
    ) -> Self {
        let rhythm = RequestInterval { last: boot_now(), is_quiet: false };
        Self(Some(Box::new(ServedConnection { done: Box::pin(done), rhythm, prompt, quiet })))
    }
}

impl Future for MigratingConnection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(served) = &mut self.0 else { return Poll::Ready(()) };
        HERE.with(|here| {
            here.asked.set(0);
            here.signs.set(0);
            here.leaves.set(false);
        });
        if served.done.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !HERE.with(|here| served.listen(here)) {
            return Poll::Pending;
        }
        // The task ends here, and goes on as another there.
        if let Some(served) = self.0.take() {
            let to = if served.rhythm.is_quiet { &served.quiet.handle } else { &served.prompt };
            drop(to.clone().spawn(Self(Some(served))));
        }
        Poll::Ready(())
    }
}

impl ServedConnection {
    /// Whether it belongs elsewhere, after what it has asked just now.
    fn listen(&mut self, here: &ThreadState) -> bool {
        let (asked, signs) = (here.asked.get(), here.signs.get());
        if here.is_quiet.get() {
            PACE.with_borrow_mut(|pace| pace.fresh += signs);
        }
        let was_quiet = self.rhythm.is_quiet;
        if asked + signs > 0 || here.leaves.get() {
            self.rhythm.after(asked <= signs && !here.leaves.get(), boot_now());
        }
        match (was_quiet, self.rhythm.is_quiet) {
            (false, true) => drop(self.quiet.connections.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.quiet.connections.fetch_sub(1, Ordering::Relaxed)),
            _ => return false,
        }
        true
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        if self.rhythm.is_quiet {
            self.quiet.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The time between a connection's requests.
struct RequestInterval {
    /// When it asked last.
    last: Time,
    is_quiet: bool,
}

impl RequestInterval {
    /// It has asked: for nothing but signs of life, or for something else.
    fn after(&mut self, only_signs: bool, now: Time) {
        let last = std::mem::replace(&mut self.last, now);
        self.is_quiet = only_signs && now.since(last) >= SELDOM;
    }
}

/// Before the quiet thread sleeps until more has come: takes a break, if many come.
pub(super) fn take_break() {
    if let Some(span) = PACE.with_borrow_mut(|pace| pace.next_break(boot_now())) {
        thread::sleep(span.as_duration());
    }
}

/// Measures how often keep-alives reach the keep-alive thread.
#[derive(Default)]
struct KeepAliveRate {
    /// How many have come since it slept last.
    fresh: u64,
    /// How many since when, and how often they came before that.
    counted: u64,
    since: Time,
    every: Option<Span>,
}

impl KeepAliveRate {
    /// How long a break is that begins now.
    fn next_break(&mut self, now: Time) -> Option<Span> {
        let fresh = std::mem::take(&mut self.fresh);
        self.counted += fresh;
        let passed = now.since(self.since);
        if passed >= MEASURED {
            let every = passed.as_nanos().checked_div(self.counted);
            (self.since, self.counted, self.every) = (now, 0, every.map(Span::from_nanos));
        }
        // For fewer it does not pay: hardly one would join another.
        let every = self.every.filter(|every| *every < BREAK_MAX)?;
        (fresh > 0).then(|| Span::from_nanos(every.as_nanos() * GATHERED).min(BREAK_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Span = Span::from_millis(1);

    fn at(ms: u64) -> Time {
        Time::from_secs(9) + Span::from_millis(ms)
    }

    /// After so many signs of life, one each `every`, how long a break is, in nanoseconds.
    fn after(pace: &mut KeepAliveRate, now: &mut Time, signs: u64, every: Span) -> Option<u64> {
        let mut last = None;
        for _ in 0..signs {
            *now = *now + every;
            pace.fresh += 1;
            last = pace.next_break(*now);
        }
        last.map(Span::as_nanos)
    }

    #[test]
    fn breaks_are_for_many() {
        let (mut pace, mut now) = (KeepAliveRate::default(), at(0));
        pace.fresh = 1;
        assert_eq!(pace.next_break(now), None, "nothing is known yet");
        assert_eq!(after(&mut pace, &mut now, 1_000, MS), Some(32_000_000), "BREAK_MAX");
        assert_eq!(pace.next_break(now), None, "nothing has come");
        let more = Span::from_nanos(100_000);
        assert_eq!(after(&mut pace, &mut now, 10_000, more), Some(3_200_000), "GATHERED");
        assert_eq!(after(&mut pace, &mut now, 100, Span::from_millis(33)), None, "they are few");
        assert!(after(&mut pace, &mut now, 1_000, MS).is_some());
        now = now + Span::from_secs(60);
        assert_eq!(after(&mut pace, &mut now, 1, MS), None, "they were many, long ago");
    }

    #[test]
    fn who_only_keeps_a_session_alive_and_seldom_is_quiet() {
        let mut rhythm = RequestInterval { last: at(0), is_quiet: false };
        let mut is_quiet = |ms, only_signs| {
            rhythm.after(only_signs, at(ms));
            rhythm.is_quiet
        };
        assert!(!is_quiet(500, true), "soon after it began");
        assert!(is_quiet(1_500, true));
        assert!(is_quiet(11_500, true));
        assert!(!is_quiet(21_500, false), "something else");
        assert!(!is_quiet(22_000, true), "soon after that");
        assert!(is_quiet(23_000, true));
        assert!(!is_quiet(23_999, true), "often");
    }
}
