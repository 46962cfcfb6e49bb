//! One thread for each mount that looks after all who wait in a system call: it ends their wait
//! when a signal comes. Some wait for a lock, others to read something.
//!
//! It does not exist before somebody waits, and sleeps while nobody does. While somebody does, it
//! looks at each waiter every 20 ms, or less often when its user has so many that looking at those
//! would cost more than 2 % of a processor: one user's waiters do not delay those of another.

use crate::fuse::kernel::pending_signals::{ThreadSignals, WatchedThread};
use crate::fuse::kernel::user_shares::{Pool, Share, Shares};
use crate::time::{Span, Time, boot_now, thread_work};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How often a waiter is looked at: a person who presses Ctrl-C does not notice it.
const PERIOD_MIN: Duration = Duration::from_millis(20);
/// How long between two looks at most, however many wait.
const PERIOD_MAX: Duration = Duration::from_millis(800);
/// Sleeping this many times as long as looking took keeps looking at one user's waiters below 2 %,
/// with a tenth to spare.
const REST_PER_WORK: u32 = 55;
/// How long the place of an interrupted waiter is kept while its thread is seen at rest. A
/// restarted system call asks again within a millisecond; a signal handler of a shell takes some.
const PLACE_KEPT: Span = Span::from_millis(200);
/// And how long if it never is: on a loaded machine it may be on its way back all that time. A
/// program that computes for longer does something else.
const PLACE_KEPT_MAX: Span = Span::from_secs(5);

/// The user of threads in another pid namespace, which can't be looked at.
const UNKNOWN_USER: u32 = u32::MAX;

/// Somebody who waits, as whoever keeps the answer sees it.
pub(crate) trait InterruptibleWait: Send {
    /// How it stands with it.
    fn status(&self) -> WaitStatus;
    /// A signal has come: the system call is answered with EINTR, if it was not answered yet.
    fn interrupt(&self);
    /// Nobody has come back for the place that was kept.
    fn expire(&self) {}
}

/// How it stands with a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitStatus {
    /// A program waits for its answer.
    Asks,
    /// A signal has interrupted it, and its place is kept.
    Parked,
    /// The same, and its turn has come: it holds the lock, and does not know it yet.
    Unclaimed,
    /// It has been answered.
    Over,
}

/// The thread, and whom it looks after.
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
    /// The waiters of each user who has had any since they were looked at last.
    users: HashMap<u32, UserWaits>,
    started: bool,
    stopped: bool,
}

/// The waiters of one user, each under a number of its own.
struct UserWaits {
    waiters: HashMap<u64, WatchedWait>,
    /// When they are looked at next.
    due: Time,
}

/// One who waits.
struct WatchedWait {
    waiter: Box<dyn InterruptibleWait>,
    _share: Share,
    watched: Option<WatchedThread>,
    /// Seen with a signal that another thread of its process may take.
    doubtful: bool,
    /// Since when its place is kept, and since when it has been seen at rest.
    parked: Option<(Time, Time)>,
}

impl InterruptWatcher {
    /// Looks after nobody yet; its waiters will take of `shares`.
    pub(crate) fn new(shares: Shares) -> Self {
        Self { inner: Arc::default(), shares }
    }

    /// `number` waits in thread `tid`, from now on or again.
    pub(crate) fn watch(&self, number: u64, tid: u32, waiter: impl InterruptibleWait + 'static) {
        let watched = WatchedThread::new(tid);
        if watched.is_none() {
            log::debug!("thread {tid} waits in another pid namespace, and can't be interrupted");
        }
        let uid = watched.as_ref().and_then(WatchedThread::user).unwrap_or(UNKNOWN_USER);
        let share = self.shares.take_always(Pool::Threads, uid, 1);
        let waiter = Box::new(waiter);
        let post = WatchedWait { waiter, _share: share, watched, doubtful: false, parked: None };
        let mut posts = self.inner.posts.lock();
        // Else the thread comes by itself soon, and waking it at each wait would cost more than
        // most waits take.
        let is_new = !posts.users.contains_key(&uid);
        let user = posts.users.entry(uid).or_insert_with(UserWaits::new);
        user.waiters.insert(number, post);
        if !posts.started {
            posts.started = true;
            let inner = Arc::clone(&self.inner);
            let thread = std::thread::Builder::new().name("interrupts".to_owned());
            if let Err(error) = thread.spawn(move || inner.keep_looking()) {
                posts.started = false;
                log::error!("no thread for signals ({error}): who waits can't be interrupted");
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
        // Time on the processor: on a loaded machine the thread itself waits, which costs nobody
        // anything, and is no reason to look less often.
        let mut worked = thread_work();
        while let Some((uid, mut waiters)) = self.next_round() {
            waiters.retain(|_, post| post.look());
            // All of a round, what it takes to wake up included: at times more than to look.
            let before = std::mem::replace(&mut worked, thread_work());
            let period = worked.saturating_sub(before) * REST_PER_WORK;
            self.end_round(uid, waiters, period.clamp(PERIOD_MIN, PERIOD_MAX));
        }
    }

    /// Sleeps until the waiters of some user are to be looked at, and takes them. `None`: no more.
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

    /// Puts back those of a user who wait on, to be looked at again after `period`.
    fn end_round(&self, uid: u32, looked_at: HashMap<u64, WatchedWait>, period: Duration) {
        let mut posts = self.posts.lock();
        let Some(user) = posts.users.get_mut(&uid) else { return };
        for (number, post) in looked_at {
            // A waiter that came or came back meanwhile has the newer post.
            user.waiters.entry(number).or_insert(post);
        }
        user.due = boot_now() + Span::from(period);
        if user.waiters.is_empty() {
            posts.users.remove(&uid);
        }
    }
}

impl WatchedWait {
    /// Looks; false when it needs no more looking after.
    fn look(&mut self) -> bool {
        let waiting = self.waiter.status();
        if waiting == WaitStatus::Over {
            return false;
        }
        let sight = self.watched.as_ref().map_or(ThreadSignals::Quiet, WatchedThread::look);
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

    /// Whether the thread has a signal to attend to, as far as can be known.
    fn is_signalled(&mut self, sight: ThreadSignals) -> bool {
        match sight {
            ThreadSignals::Signalled | ThreadSignals::Gone => true,
            ThreadSignals::PerhapsSignalled => std::mem::replace(&mut self.doubtful, true),
            ThreadSignals::Quiet | ThreadSignals::Running | ThreadSignals::Stopped => {
                self.doubtful = false;
                false
            }
        }
    }
}

/// Whether a thread may be about to ask again: it has not taken its signal yet, or it runs.
fn is_on_its_way(sight: ThreadSignals) -> bool {
    matches!(
        sight,
        ThreadSignals::Running | ThreadSignals::Signalled | ThreadSignals::PerhapsSignalled
    )
}

/// Whether a place is kept for a thread that was interrupted so long ago, and has been seen at
/// rest for so long.
fn keeps(waiting: WaitStatus, sight: ThreadSignals, parked: Span, rests: Span) -> bool {
    match (waiting, sight) {
        (_, ThreadSignals::Gone) => false,
        // Others wait for this lock, and it is nobody's meanwhile.
        (WaitStatus::Unclaimed, _) => parked < PLACE_KEPT,
        (_, ThreadSignals::Stopped) => true,
        _ => rests < PLACE_KEPT && parked < PLACE_KEPT_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Waits until it is interrupted, and says what happens to it.
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

    /// A place is given up by who does something else, not by who has had no processor yet.
    #[test]
    fn a_place_is_kept_for_who_is_on_its_way_back() {
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
        let unclaimed =
            |sight, parked| keeps(WaitStatus::Unclaimed, sight, millis(parked), millis(0));
        assert!(unclaimed(ThreadSignals::Running, 199) && !unclaimed(ThreadSignals::Running, 200));
        assert!(!unclaimed(ThreadSignals::Stopped, 200));
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

    /// A process that is gone is told like one with a signal; the place that is kept for who was
    /// interrupted is kept for a moment; who was answered is looked at no more.
    #[test]
    fn each_waiter_is_dealt_with_as_it_stands() {
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
