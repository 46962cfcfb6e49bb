//! Interrupts programs that wait in a system call, for a lock or for data, when a signal arrives:
//! one thread per mount polls the waiters for pending signals.
//!
//! The thread starts with the first waiter, and sleeps while there is none. It checks each waiter
//! every 20 ms, or less often if a user has so many waiters that checking them would cost more than
//! 2 % of a processor. The interval is per user, so the waiters of one user do not delay those of
//! another.

use crate::fuse::kernel::pending_signals::{ThreadSignals, WatchedThread};
use crate::fuse::kernel::user_shares::{Pool, Share, Shares};
use crate::time::{Span, Time, boot_now, thread_work};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The shortest interval between two checks of a waiter for signals. A person who presses Ctrl-C
/// does not notice such a delay.
const PERIOD_MIN: Duration = Duration::from_millis(20);
/// The longest interval between two checks of a waiter for signals, however many waiters there are.
const PERIOD_MAX: Duration = Duration::from_millis(800);
/// After a check, the thread sleeps this many times as long as the check took. The checks of one
/// user's waiters thus take less than 2 % of a processor.
const REST_PER_WORK: u32 = 55;
/// How long the queue place of an interrupted waiter is kept after its thread was last seen
/// running. A restarted system call repeats its request within a millisecond; a signal handler of a
/// shell takes a few.
const PLACE_KEPT: Span = Span::from_millis(200);
/// How long a lock that was granted to an interrupted waiter is kept for it after its thread was
/// last seen running: long enough for a second check, because a thread that repeats its request
/// sleeps until the request is read. Until then other clients find a lock that nobody uses.
const GRANT_KEPT: Span = Span::from_millis(30);
/// The interval between two checks of a waiter for the freezer of its cgroup. Such a check costs
/// more than one for signals, and a suspend waits for 20 s.
const FREEZER_PERIOD: Span = Span::from_millis(200);
/// How long the queue place of an interrupted waiter is kept at most, even if its thread runs all
/// that time. On a loaded machine such a thread may still be returning to its system call; beyond
/// this limit it is taken to be doing something else.
const PLACE_KEPT_MAX: Span = Span::from_secs(5);

/// The user id under which waiters in another pid namespace are counted, since the status of their
/// threads can't be read.
const UNKNOWN_USER: u32 = u32::MAX;

/// A waiting request, with the operations that the interrupt watcher needs. The module that answers
/// the request implements them.
pub(crate) trait InterruptibleWait: Send {
    /// Returns the current state of the waiting request.
    fn status(&self) -> WaitStatus;
    /// Called when the waiting thread has got a signal: fails the system call with EINTR unless it
    /// was answered already.
    fn interrupt(&self);
    /// Called when an interrupted waiter has not repeated its request in time: gives up its queue
    /// place.
    fn expire(&self) {}
}

/// The state of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitStatus {
    /// The program waits for the answer to its request.
    Asks,
    /// A signal has interrupted the program, and its queue place is kept.
    Parked,
    /// A signal has interrupted the program, and the lock was granted to its kept queue place. The
    /// program holds the lock without knowing it yet.
    Unclaimed,
    /// The program has got its answer, and no longer waits.
    Over,
}

/// The interrupt watcher of one mount: its thread and the waiters that it checks.
pub(crate) struct InterruptWatcher {
    inner: Arc<WatcherShared>,
    shares: Shares,
}

#[derive(Default)]
struct WatcherShared {
    posts: Mutex<WatchedUsers>,
    called: Condvar,
}

#[derive(Default)]
struct WatchedUsers {
    /// The waiters of each user. A user whose last waiter is gone is removed by the next check of
    /// that user's waiters.
    users: HashMap<u32, UserWaits>,
    started: bool,
    stopped: bool,
}

/// The waiting requests of one user, by the unique number of each wait.
struct UserWaits {
    waiters: HashMap<u64, WatchedWait>,
    /// The time of the next check of this user's waiters.
    due: Time,
}

struct WatchedWait {
    waiter: Box<dyn InterruptibleWait>,
    _share: Share,
    watched: Option<WatchedThread>,
    /// Whether the last check saw a signal that is pending for the whole process. Another thread of
    /// the process may take it, so a second check must confirm it.
    doubtful: bool,
    /// Whether the last check found the thread's cgroups to be frozen or about to be, and the time
    /// of the next check.
    freezing: (bool, Time),
    /// For an interrupted waiter: when it was interrupted, and when its thread was last seen
    /// running.
    parked: Option<(Time, Time)>,
}

impl InterruptWatcher {
    /// Returns a watcher without waiters. Each waiter counts against the per-user limits `shares`.
    pub(crate) fn new(shares: Shares) -> Self {
        Self { inner: Arc::default(), shares }
    }

    /// Starts to watch a wait of thread `tid`. `number` identifies the wait; a wait that is already
    /// watched under the same number is replaced.
    pub(crate) fn watch(&self, number: u64, tid: u32, waiter: impl InterruptibleWait + 'static) {
        let watched = WatchedThread::new(tid);
        if watched.is_none() {
            log::debug!("thread {tid} waits in another pid namespace, and can't be interrupted");
        }
        let uid = watched.as_ref().and_then(WatchedThread::user).unwrap_or(UNKNOWN_USER);
        let share = self.shares.take_always(Pool::Threads, uid, 1);
        let waiter = Box::new(waiter);
        let freezing = (false, boot_now() + FREEZER_PERIOD);
        let (doubtful, parked) = (false, None);
        let post = WatchedWait { waiter, _share: share, watched, doubtful, freezing, parked };
        let mut posts = self.inner.posts.lock();
        // The watching thread is woken only for a user's first waiter. The user's other waiters are
        // checked with it, at the latest after [`PERIOD_MAX`]; a wake-up per wait would cost more
        // than most waits take.
        let is_new = !posts.users.contains_key(&uid);
        let user = posts.users.entry(uid).or_insert_with(UserWaits::new);
        user.waiters.insert(number, post);
        if !posts.started {
            posts.started = true;
            let inner = Arc::clone(&self.inner);
            let thread = std::thread::Builder::new().name("interrupts".to_owned());
            if let Err(error) = thread.spawn(move || inner.keep_looking()) {
                posts.started = false;
                log::error!(
                    "the interrupt thread can't be started ({error}): waiting programs \
                    can't be interrupted"
                );
            }
        }
        drop(posts);
        if is_new {
            self.inner.called.notify_one();
        }
    }
}

impl Drop for InterruptWatcher {
    fn drop(&mut self) {
        self.inner.posts.lock().stopped = true;
        self.inner.called.notify_one();
    }
}

impl UserWaits {
    fn new() -> Self {
        Self { waiters: HashMap::new(), due: boot_now() + Span::from(PERIOD_MIN) }
    }
}

impl WatcherShared {
    fn keep_looking(&self) {
        // The cost of a check is measured as processor time of this thread. On a loaded machine the
        // thread also waits for a processor, which is no reason to check less often.
        let mut worked = thread_work();
        while let Some((uid, mut waiters)) = self.next_round() {
            waiters.retain(|_, post| post.look());
            // The measured time includes the wake-up of this thread, which at times takes longer
            // than the checks themselves.
            let before = std::mem::replace(&mut worked, thread_work());
            let period = worked.saturating_sub(before) * REST_PER_WORK;
            self.end_round(uid, waiters, period.clamp(PERIOD_MIN, PERIOD_MAX));
        }
    }

    /// Sleeps until the waiters of some user are due for a check, and takes them out. Returns
    /// `None` when the watcher has been dropped.
    fn next_round(&self) -> Option<(u32, HashMap<u64, WatchedWait>)> {
        let mut posts = self.posts.lock();
        loop {
            if posts.stopped {
                return None;
            }
            let now = boot_now();
            match posts.users.iter_mut().min_by_key(|(_, user)| user.due) {
                Some((uid, user)) if user.due <= now => {
                    return Some((*uid, std::mem::take(&mut user.waiters)));
                }
                Some((_, user)) => {
                    let sleep = user.due.since(now).as_duration();
                    self.called.wait_for(&mut posts, sleep);
                }
                None => self.called.wait(&mut posts),
            }
        }
    }

    /// Puts back the waiters of a user that still wait, to be checked again after `period`.
    fn end_round(&self, uid: u32, looked_at: HashMap<u64, WatchedWait>, period: Duration) {
        let mut posts = self.posts.lock();
        let Some(user) = posts.users.get_mut(&uid) else { return };
        for (number, post) in looked_at {
            // A new wait with the same number may have been added while the waiters were checked.
            // In that case the new wait stays, and the checked one is dropped.
            user.waiters.entry(number).or_insert(post);
        }
        user.due = boot_now() + Span::from(period);
        if user.waiters.is_empty() {
            posts.users.remove(&uid);
        }
    }
}

impl WatchedWait {
    /// Checks the waiter once. Returns false if the waiter needs no further checks.
    fn look(&mut self) -> bool {
        let waiting = self.waiter.status();
        if waiting == WaitStatus::Over {
            return false;
        }
        let sight = self.sight();
        if waiting == WaitStatus::Asks {
            if self.is_signalled(sight) {
                self.parked = Some((boot_now(), boot_now()));
                self.waiter.interrupt();
            }
            return true;
        }
        let now = boot_now();
        let (parked_at, rests_since) = self.parked.get_or_insert((now, now));
        if is_on_its_way(sight) {
            *rests_since = now;
        }
        let keeps = keeps(waiting, sight, now.since(*parked_at), now.since(*rests_since));
        if !keeps {
            self.waiter.expire();
        }
        keeps
    }

    /// Returns the current state of the thread.
    fn sight(&mut self) -> ThreadSignals {
        let Some(watched) = &self.watched else { return ThreadSignals::Quiet };
        let sight = watched.look();
        let now = boot_now();
        if sight != ThreadSignals::Quiet || !self.freezing.0 && now < self.freezing.1 {
            return sight;
        }
        self.freezing = (watched.is_freezing(), now + FREEZER_PERIOD);
        if self.freezing.0 { ThreadSignals::Freezing } else { sight }
    }

    /// Whether the status of the thread shows that the thread has a signal to handle.
    fn is_signalled(&mut self, sight: ThreadSignals) -> bool {
        match sight {
            ThreadSignals::Signalled | ThreadSignals::Gone => true,
            // The first check may have come before the freezer has woken the thread.
            ThreadSignals::PerhapsSignalled | ThreadSignals::Freezing => {
                std::mem::replace(&mut self.doubtful, true)
            }
            ThreadSignals::Quiet | ThreadSignals::Running | ThreadSignals::Stopped => {
                self.doubtful = false;
                false
            }
        }
    }
}

/// Whether an interrupted thread may be about to repeat its request: it has not taken its signal
/// yet, or it runs.
fn is_on_its_way(sight: ThreadSignals) -> bool {
    matches!(
        sight,
        ThreadSignals::Running | ThreadSignals::Signalled | ThreadSignals::PerhapsSignalled
    )
}

/// Whether the queue place of an interrupted waiter is still kept. The waiter was interrupted the
/// time `parked` ago, and its thread was last seen running the time `rests` ago.
fn keeps(waiting: WaitStatus, sight: ThreadSignals, parked: Span, rests: Span) -> bool {
    match (waiting, sight) {
        (_, ThreadSignals::Gone) => false,
        // The lock was granted to the interrupted waiter, which does not know it yet. Other clients
        // wait for the lock, so the grant is kept for a short time only, even if the thread is
        // stopped, and given back once the thread sleeps in another call.
        (WaitStatus::Unclaimed, _) => rests < GRANT_KEPT && parked < PLACE_KEPT,
        (_, ThreadSignals::Stopped | ThreadSignals::Freezing) => true,
        _ => rests < PLACE_KEPT && parked < PLACE_KEPT_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// A test waiter that reports the calls it receives, and returns the given states in turn.
    struct ToldWait(Sender<&'static str>, Mutex<Vec<WaitStatus>>);

    impl InterruptibleWait for ToldWait {
        fn status(&self) -> WaitStatus {
            let mut left = self.1.lock();
            if left.len() > 1 { left.remove(0) } else { left[0] }
        }

        fn interrupt(&self) {
            let _ = self.0.send("interrupted");
        }

        fn expire(&self) {
            let _ = self.0.send("expired");
        }
    }

    /// The queue place of an interrupted waiter is given up if the waiter's thread sleeps in
    /// another call, but not if the thread is runnable and has only waited for a processor.
    #[test]
    fn place_is_kept_while_its_thread_may_return() {
        let millis = Span::from_millis;
        let parked =
            |sight, parked, rests| keeps(WaitStatus::Parked, sight, millis(parked), millis(rests));
        assert!(
            parked(ThreadSignals::Quiet, 3_000, 199) && !parked(ThreadSignals::Quiet, 3_000, 200)
        );
        assert!(
            parked(ThreadSignals::Running, 4_999, 0) && !parked(ThreadSignals::Running, 5_000, 0)
        );
        assert!(parked(ThreadSignals::Stopped, 3_600_000, 3_600_000));
        assert!(!parked(ThreadSignals::Gone, 0, 0));
        let unclaimed = |sight, parked, rests| {
            keeps(WaitStatus::Unclaimed, sight, millis(parked), millis(rests))
        };
        assert!(unclaimed(ThreadSignals::Running, 199, 0));
        assert!(!unclaimed(ThreadSignals::Running, 200, 0));
        for sight in [ThreadSignals::Quiet, ThreadSignals::Stopped] {
            assert!(unclaimed(sight, 29, 29) && !unclaimed(sight, 30, 30));
        }
        assert!(parked(ThreadSignals::Freezing, 3_600_000, 3_600_000));
        for sight in
            [ThreadSignals::Running, ThreadSignals::Signalled, ThreadSignals::PerhapsSignalled]
        {
            assert!(is_on_its_way(sight));
        }
        assert!(
            ![ThreadSignals::Quiet, ThreadSignals::Stopped, ThreadSignals::Gone]
                .into_iter()
                .any(is_on_its_way)
        );
    }

    /// A process that has ended is treated like one with a signal; the queue place of an
    /// interrupted waiter is kept for a moment; a waiter that was answered is not checked any more.
    #[test]
    fn each_waiter_is_treated_according_to_its_status() {
        let mut gone = std::process::Command::new("true").spawn().expect("true is there");
        let (send, told) = channel();
        let interrupts = InterruptWatcher::new(Shares::default());
        let waiter = |waiting: &[WaitStatus]| ToldWait(send.clone(), Mutex::new(waiting.to_vec()));
        interrupts.watch(1, gone.id(), waiter(&[WaitStatus::Asks, WaitStatus::Parked]));
        gone.wait().expect("it ends");
        assert_eq!(told.recv(), Ok("interrupted"));
        assert_eq!(told.recv(), Ok("expired"));
        let own = std::process::id();
        interrupts.watch(2, own, waiter(&[WaitStatus::Asks, WaitStatus::Unclaimed]));
        assert_eq!(told.recv(), Ok("expired"));
        interrupts.watch(3, own, waiter(&[WaitStatus::Asks, WaitStatus::Over]));
        while !interrupts.inner.posts.lock().users.is_empty() {
            std::thread::yield_now();
        }
        assert!(told.try_recv().is_err());
    }
}
