//! READs that are not answered yet, and the one thread that ends them when a signal comes.
//!
//! It sleeps while nothing is held. As for programs that wait for a lock (see `locking`), the
//! kernel does not tell of signals, so whoever waits is looked at every 20 ms, or less often when
//! there are so many that looking would cost more than 2 % of a processor.

use super::locking::signals::{Sight, Watched};
use crate::time::boot_now;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a reader is looked at: a person who presses Ctrl-C does not notice it.
const PERIOD_MIN: Duration = Duration::from_millis(20);
/// How long between two looks at most, however many wait.
const PERIOD_MAX: Duration = Duration::from_millis(800);
/// Sleeping this many times as long as looking took keeps looking below 2 %.
const REST_PER_WORK: u32 = 50;

/// What holds a READ: it knows it by a number.
pub(super) trait Holder: Send + Sync {
    /// Whether the READ is not answered yet.
    fn is_held(&self, number: u64) -> bool;
    /// Answers it with EINTR, if it was not answered yet.
    fn interrupt(&self, number: u64);
}

/// The held READs of one mount.
#[derive(Default)]
pub(super) struct Held {
    last: AtomicU64,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    posts: Mutex<Posts>,
    called: Condvar,
}

#[derive(Default)]
struct Posts {
    readers: Vec<Post>,
    started: bool,
    stopped: bool,
}

struct Post {
    number: u64,
    tid: u32,
    holder: Weak<dyn Holder>,
    watched: Watched,
    /// Seen with a signal that another thread of its process may take.
    doubtful: bool,
}

impl Held {
    /// A number for a READ that will be held.
    pub(super) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The thread `tid` waits in the READ that `holder` knows by `number`.
    pub(super) fn watch(&self, number: u64, tid: u32, holder: Weak<dyn Holder>) {
        let Some(watched) = Watched::new(tid) else {
            return log::debug!("thread {tid} reads in another pid namespace: no interrupts");
        };
        let post = Post { number, tid, holder, watched, doubtful: false };
        let mut posts = self.inner.posts.lock();
        let was_idle = posts.readers.is_empty();
        // A thread waits in one READ at a time, so what it waited in before was answered.
        posts.readers.retain(|other| other.tid != tid);
        posts.readers.push(post);
        if !posts.started {
            posts.started = true;
            let inner = Arc::clone(&self.inner);
            let thread = std::thread::Builder::new().name("held".to_owned());
            if let Err(error) = thread.spawn(move || inner.keep_looking()) {
                log::error!("no thread for signals ({error}): who reads can't be interrupted");
            }
        }
        drop(posts);
        if was_idle {
            self.inner.called.notify_one();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.inner.posts.lock().stopped = true;
        self.inner.called.notify_one();
    }
}

impl Inner {
    fn keep_looking(&self) {
        loop {
            let mut readers = {
                let mut posts = self.posts.lock();
                while posts.readers.is_empty() && !posts.stopped {
                    self.called.wait(&mut posts);
                }
                if posts.stopped {
                    return;
                }
                std::mem::take(&mut posts.readers)
            };
            let begun = boot_now();
            readers.retain_mut(look_at);
            let work = boot_now().since(begun).as_duration();
            let period = (work * REST_PER_WORK).clamp(PERIOD_MIN, PERIOD_MAX);
            let mut posts = self.posts.lock();
            posts.readers.append(&mut readers);
            if !posts.stopped && !posts.readers.is_empty() {
                self.called.wait_for(&mut posts, period);
            }
        }
    }
}

/// Looks at one reader; false when it needs no more looking after.
fn look_at(post: &mut Post) -> bool {
    let Some(holder) = post.holder.upgrade().filter(|holder| holder.is_held(post.number)) else {
        return false;
    };
    let signalled = match post.watched.look() {
        Sight::Signalled | Sight::Gone => true,
        Sight::PerhapsSignalled => std::mem::replace(&mut post.doubtful, true),
        Sight::Quiet | Sight::Stopped => {
            post.doubtful = false;
            false
        }
    };
    if signalled {
        holder.interrupt(post.number);
    }
    !signalled
}
