//! One thread for each mount that looks after all who wait in a system call: it ends their wait
//! when a signal comes. Who waits for a lock, and who waits to read something.
//!
//! It does not exist before somebody waits, and sleeps while nobody does. While somebody does, it
//! looks at each waiter every 20 ms, or less often when its user has so many that looking at those
//! would cost more than 2 % of a processor: one user's waiters do not delay those of another.

use super::shares::{Pool, Share, Shares};
use super::signals::{Sight, Watched};
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
/// And how long if it never is: on a loaded machine it may be on its way back all that time. Who
/// computes for longer does something else.
const PLACE_KEPT_MAX: Span = Span::from_secs(5);

/// The user of threads in another pid namespace, which can't be looked at.
const UNKNOWN_USER: u32 = u32::MAX;

/// Somebody who waits, as whoever keeps the answer sees it.
pub(super) trait Waiter: Send {
    /// How it stands with it.
    fn waiting(&self) -> Waiting;
    /// A signal has come: the system call is answered with EINTR, if it was not answered yet.
    fn interrupt(&self);
    /// Nobody has come back for the place that was kept.
    fn expire(&self) {}
}

/// How it stands with a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
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
pub(super) struct Lookout {
    inner: Arc<Inner>,
    shares: Shares,
}

#[derive(Default)]
struct Inner {
    posts: Mutex<Posts>,
    called: Condvar,
}

#[derive(Default)]
struct Posts {
    /// The waiters of each user who has had any since they were looked at last.
    users: HashMap<u32, User>,
    started: bool,
    stopped: bool,
}

/// The waiters of one user, each under a number of its own.
struct User {
    waiters: HashMap<u64, Post>,
    /// When they are looked at next.
    due: Time,
}

/// One who waits.
struct Post {
    waiter: Box<dyn Waiter>,
    _share: Share,
    watched: Option<Watched>,
    /// Seen with a signal that another thread of its process may take.
    doubtful: bool,
    /// Since when its place is kept, and since when it has been seen at rest.
    parked: Option<(Time, Time)>,
}

impl Lookout {
    /// Looks after nobody yet; its waiters will take of `shares`.
    pub(super) fn new(shares: Shares) -> Self {
        Self { inner: Arc::default(), shares }
    }

    /// `number` waits in thread `tid`, from now on or again.
    pub(super) fn watch(&self, number: u64, tid: u32, waiter: impl Waiter + 'static) {
        let watched = Watched::new(tid);
        if watched.is_none() {
            log::debug!("thread {tid} waits in another pid namespace, and can't be interrupted");
        }
        let uid = watched.as_ref().and_then(Watched::user).unwrap_or(UNKNOWN_USER);
        let share = self.shares.take_always(Pool::Threads, uid, 1);
        let waiter = Box::new(waiter);
        let post = Post { waiter, _share: share, watched, doubtful: false, parked: None };
        let mut posts = self.inner.posts.lock();
        // Else the thread comes by itself soon, and waking it at each wait would cost more than
        // most waits take.
        let is_new = !posts.users.contains_key(&uid);
        let user = posts.users.entry(uid).or_insert_with(User::new);
        user.waiters.insert(number, post);
        if !posts.started {
            posts.started = true;
            let inner = Arc::clone(&self.inner);
            let thread = std::thread::Builder::new().name("lookout".to_owned());
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

impl Drop for Lookout {
    fn drop(&mut self) {
        self.inner.posts.lock().stopped = true;
        self.inner.called.notify_one();
    }
}

impl User {
    fn new() -> Self {
        Self { waiters: HashMap::new(), due: boot_now() + Span::from(PERIOD_MIN) }
    }
}

impl Inner {
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
    fn next_round(&self) -> Option<(u32, HashMap<u64, Post>)> {
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
    fn end_round(&self, uid: u32, looked_at: HashMap<u64, Post>, period: Duration) {
        let mut posts = self.posts.lock();
        let Some(user) = posts.users.get_mut(&uid) else { return };
        for (number, post) in looked_at {
            // Who came or came back while we looked has the newer post.
            user.waiters.entry(number).or_insert(post);
        }
        user.due = boot_now() + Span::from(period);
        if user.waiters.is_empty() {
            posts.users.remove(&uid);
        }
    }
}

impl Post {
    /// Looks; false when it needs no more looking after.
    fn look(&mut self) -> bool {
        let waiting = self.waiter.waiting();
        if waiting == Waiting::Over {
            return false;
        }
        let sight = self.watched.as_ref().map_or(Sight::Quiet, Watched::look);
        if waiting == Waiting::Asks {
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
    fn is_signalled(&mut self, sight: Sight) -> bool {
        match sight {
            Sight::Signalled | Sight::Gone => true,
            Sight::PerhapsSignalled => std::mem::replace(&mut self.doubtful, true),
            Sight::Quiet | Sight::Running | Sight::Stopped => {
                self.doubtful = false;
                false
            }
        }
    }
}

/// Whether a thread may be about to ask again: it has not taken its signal yet, or it runs.
fn is_on_its_way(sight: Sight) -> bool {
    matches!(sight, Sight::Running | Sight::Signalled | Sight::PerhapsSignalled)
}

/// Whether a place is kept for a thread that was interrupted so long ago, and has been seen at
/// rest for so long.
fn keeps(waiting: Waiting, sight: Sight, parked: Span, rests: Span) -> bool {
    match (waiting, sight) {
        (_, Sight::Gone) => false,
        // Others wait for this lock, and it is nobody's meanwhile.
        (Waiting::Unclaimed, _) => parked < PLACE_KEPT,
        (_, Sight::Stopped) => true,
        _ => rests < PLACE_KEPT && parked < PLACE_KEPT_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Waits until it is interrupted, and says what happens to it.
    struct Told(Sender<&'static str>, Mutex<Vec<Waiting>>);

    impl Waiter for Told {
        fn waiting(&self) -> Waiting {
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
            |sight, parked, rests| keeps(Waiting::Parked, sight, millis(parked), millis(rests));
        assert!(parked(Sight::Quiet, 3_000, 199) && !parked(Sight::Quiet, 3_000, 200));
        assert!(parked(Sight::Running, 4_999, 0) && !parked(Sight::Running, 5_000, 0));
        assert!(parked(Sight::Stopped, 3_600_000, 3_600_000));
        assert!(!parked(Sight::Gone, 0, 0));
        let unclaimed = |sight, parked| keeps(Waiting::Unclaimed, sight, millis(parked), millis(0));
        assert!(unclaimed(Sight::Running, 199) && !unclaimed(Sight::Running, 200));
        assert!(!unclaimed(Sight::Stopped, 200));
        for sight in [Sight::Running, Sight::Signalled, Sight::PerhapsSignalled] {
            assert!(is_on_its_way(sight));
        }
        assert!(![Sight::Quiet, Sight::Stopped, Sight::Gone].into_iter().any(is_on_its_way));
    }

    /// A process that is gone is told like one with a signal; the place that is kept for who was
    /// interrupted is kept for a moment; who was answered is looked at no more.
    #[test]
    fn each_waiter_is_dealt_with_as_it_stands() {
        let mut gone = std::process::Command::new("true").spawn().expect("true is there");
        let (send, told) = channel();
        let lookout = Lookout::new(Shares::default());
        let waiter = |waiting: &[Waiting]| Told(send.clone(), Mutex::new(waiting.to_vec()));
        lookout.watch(1, gone.id(), waiter(&[Waiting::Asks, Waiting::Parked]));
        gone.wait().expect("it ends");
        assert_eq!(told.recv(), Ok("interrupted"));
        assert_eq!(told.recv(), Ok("expired"));
        let own = std::process::id();
        lookout.watch(2, own, waiter(&[Waiting::Asks, Waiting::Unclaimed]));
        assert_eq!(told.recv(), Ok("expired"));
        lookout.watch(3, own, waiter(&[Waiting::Asks, Waiting::Over]));
        while !lookout.inner.posts.lock().users.is_empty() {
            std::thread::yield_now();
        }
        assert!(told.try_recv().is_err());
    }
}
