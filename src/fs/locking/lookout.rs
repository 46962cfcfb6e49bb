//! One thread that looks after all who wait: it ends their wait when a signal comes.
//!
//! It sleeps while nobody waits. While somebody does, it looks at each waiter every 20 ms, or
//! less often when there are so many that looking would cost more than 2 % of a processor.

use super::signals::{Sight, Watched};
use super::table::Waiting;
use super::{Shared, run, waiting};
use crate::time::{Span, Time, boot_now, thread_work};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a waiter is looked at: a person who presses Ctrl-C does not notice it.
const PERIOD_MIN: Duration = Duration::from_millis(20);
/// How long between two looks at most, however many wait.
const PERIOD_MAX: Duration = Duration::from_millis(800);
/// Sleeping this many times as long as looking took keeps looking below 2 %.
const REST_PER_WORK: u32 = 50;
/// How long the place of an interrupted waiter is kept. A restarted system call asks again
/// within a millisecond; a signal handler of a shell takes some.
const PLACE_KEPT: Span = Span::from_millis(200);

/// The thread, and whom it looks after.
pub(super) struct Lookout(Arc<Inner>);

struct Inner {
    posts: Mutex<Posts>,
    called: Condvar,
}

#[derive(Default)]
struct Posts {
    waiters: Vec<Post>,
    stopped: bool,
}

/// One who waits.
struct Post {
    number: u64,
    /// The open file through which it reads, if it does not lock.
    reads: Option<u64>,
    watched: Option<Watched>,
    /// Seen with a signal that another thread of its process may take.
    doubtful: bool,
    /// Since when its place is kept.
    parked_at: Option<Time>,
}

impl Lookout {
    /// A lookout for one mount.
    pub(super) fn start(fs: Weak<Shared>) -> Self {
        let inner = Arc::new(Inner { posts: Mutex::default(), called: Condvar::new() });
        let looking = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("lookout".to_owned());
        if let Err(error) = thread.spawn(move || looking.keep_looking(&fs)) {
            log::error!("no thread for signals ({error}): programs that wait can't be interrupted");
        }
        Self(inner)
    }

    /// `number` waits in thread `tid`, from now on or again.
    pub(super) fn watch(&self, number: u64, tid: u32) {
        self.post(number, None, tid);
    }

    /// The read `number` of the open file `fh` is held in thread `tid`.
    pub(super) fn watch_read(&self, fh: u64, number: u64, tid: u32) {
        self.post(number, Some(fh), tid);
    }

    fn post(&self, number: u64, reads: Option<u64>, tid: u32) {
        let watched = Watched::new(tid);
        if watched.is_none() {
            log::debug!("thread {tid} waits in another pid namespace, and can't be interrupted");
        }
        let post = Post { number, reads, watched, doubtful: false, parked_at: None };
        let mut posts = self.0.posts.lock();
        posts.waiters.retain(|other| (other.number, other.reads) != (number, reads));
        posts.waiters.push(post);
        self.0.called.notify_one();
    }

    /// The mount is gone.
    pub(super) fn stop(&self) {
        self.0.posts.lock().stopped = true;
        self.0.called.notify_one();
    }
}

impl Inner {
    fn keep_looking(&self, fs: &Weak<Shared>) {
        let mut period = PERIOD_MIN;
        while let Some(mut waiters) = self.next_round(period) {
            let Some(fs) = fs.upgrade() else { return };
            // Time on the processor: on a loaded machine the thread itself waits, which costs
            // nobody anything, and is no reason to look less often.
            let begun = thread_work();
            waiters.retain_mut(|post| look_at(&fs, post));
            let work = thread_work().saturating_sub(begun);
            period = (work * REST_PER_WORK).clamp(PERIOD_MIN, PERIOD_MAX);
            let mut posts = self.posts.lock();
            // Who came or came back while we looked has the newer post.
            let known: std::collections::HashSet<_> =
                posts.waiters.iter().map(|post| (post.number, post.reads)).collect();
            let older = |post: &Post| !known.contains(&(post.number, post.reads));
            posts.waiters.extend(waiters.into_iter().filter(older));
        }
    }

    /// Sleeps until somebody waits, and then for a period more, whoever else comes: or a thousand
    /// who come one after the other would each have all the others looked at. `None`: no more.
    fn next_round(&self, mut period: Duration) -> Option<Vec<Post>> {
        let mut posts = self.posts.lock();
        while posts.waiters.is_empty() && !posts.stopped {
            self.called.wait(&mut posts);
            period = PERIOD_MIN;
        }
        let ends = boot_now() + Span::from_millis(period.as_millis() as u64);
        while boot_now() < ends && !posts.stopped {
            self.called.wait_for(&mut posts, ends.since(boot_now()).as_duration());
        }
        (!posts.stopped).then(|| std::mem::take(&mut posts.waiters))
    }
}

/// Looks at one waiter; false when it needs no more looking after.
fn look_at(fs: &Arc<Shared>, post: &mut Post) -> bool {
    let Some(running) = fs.locking.running() else { return false };
    let number = post.number;
    if let Some(fh) = post.reads {
        let waits = waiting::is_held(fs, fh, number);
        if waits && is_signalled(post) {
            waiting::interrupt(fs, fh, number);
            return false;
        }
        return waits;
    }
    let state = running.table.lock().is_waiting(number);
    let sight = post.watched.as_ref().map_or(Sight::Quiet, Watched::look);
    match state {
        Waiting::Over => return false,
        Waiting::Parked | Waiting::Unclaimed => {
            let since = *post.parked_at.get_or_insert_with(boot_now);
            // A stopped program keeps its place in line, but not a lock that others wait for.
            let keeps = sight == Sight::Stopped && state == Waiting::Parked;
            if sight == Sight::Gone || (!keeps && boot_now().since(since) >= PLACE_KEPT) {
                run(fs, &running, |table, todo| table.expire(number, todo));
                return false;
            }
            return true;
        }
        Waiting::Asks => {}
    }
    if signalled(post, sight) {
        post.parked_at = Some(boot_now());
        run(fs, &running, |table, todo| table.interrupt(number, todo));
    }
    true
}

fn is_signalled(post: &mut Post) -> bool {
    let sight = post.watched.as_ref().map_or(Sight::Quiet, Watched::look);
    signalled(post, sight)
}

/// Whether the thread has a signal to attend to, as far as can be known.
fn signalled(post: &mut Post, sight: Sight) -> bool {
    match sight {
        Sight::Signalled | Sight::Gone => post.watched.is_some(),
        Sight::PerhapsSignalled => std::mem::replace(&mut post.doubtful, true),
        Sight::Quiet | Sight::Stopped => {
            post.doubtful = false;
            false
        }
    }
}
