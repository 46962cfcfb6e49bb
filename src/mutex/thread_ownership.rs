//! The state that all mutexes of one process on one lock share: the threads that hold it, each with
//! its number of guards. A thread that would deadlock with itself gets an error.

use super::lock_file::{MutexMode, await_change, is_stopped, see, token_of};
use crate::engine::LockName;
use crate::holder_id::Maker;
use crate::mutex::guard::{Listeners, Notice, Unexpected};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, PipeReader, PipeWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::thread::{self, ThreadId};

/// The locks for which this process has a mutex, by the path of the lock's file.
static PLACES: LazyLock<Mutex<HashMap<PathBuf, Weak<ProcessLock>>>> = LazyLock::new(Mutex::default);

/// One lock, shared by all mutexes of this process on it.
pub(super) struct ProcessLock {
    path: PathBuf,
    status: PathBuf,
    holds: Mutex<ThreadHolds>,
}

#[derive(Default)]
struct ThreadHolds {
    /// The threads that hold the lock, each with its number of guards.
    threads: HashMap<ThreadId, (Arc<ThreadHold>, usize)>,
    /// The number of threads that are acquiring the lock now.
    entering: usize,
}

/// Whether the calling thread holds the lock already.
pub(super) enum Reentry {
    /// The thread holds the lock, and has one more guard now.
    Already(Arc<ThreadHold>),
    /// The thread does not hold the lock, and is acquiring it now.
    No {
        /// Whether no other thread of this process holds the lock or is acquiring it.
        is_first: bool,
    },
}

/// One thread's hold of the lock.
pub(super) struct ThreadHold {
    /// The fencing token of the lock that the thread holds.
    pub(super) token: u64,
    /// The mode in which the lock is held.
    pub(super) mode: MutexMode,
    file: File,
    lost: Arc<AtomicBool>,
    /// The pipe whose closing ends the thread that watches for a loss of the lock.
    stop: Mutex<Option<PipeWriter>>,
}

impl ProcessLock {
    /// Returns the shared state of the lock `name` in the mount at `dir`.
    pub(super) fn open(dir: &Path, name: &str) -> io::Result<Arc<Self>> {
        let shown = dir.display();
        let name = LockName::parse(name).map_err(|error| {
            let sentence = format!("'{name}' can't be the name of a lock: {error}");
            io::Error::new(ErrorKind::InvalidInput, sentence)
        })?;
        let dir = dir
            .canonicalize()
            .map_err(|error| io::Error::new(error.kind(), format!("{shown}: {error}")))?;
        if !dir.join(".latchfs/server").exists() {
            let sentence =
                format!("no latchfs is mounted at {shown}; mount it by 'latchfs mount {shown}'");
            return Err(io::Error::new(ErrorKind::NotFound, sentence));
        }
        let path = dir.join(name.as_str());
        let mut places = PLACES.lock();
        if let Some(place) = places.get(&path).and_then(Weak::upgrade) {
            return Ok(place);
        }
        places.retain(|_, place| place.strong_count() > 0);
        let report = name.as_str().replace('%', "%25").replace('/', "%2F");
        // The leading slash makes the name that of a file. Without it, the name would be that of a
        // directory if there are locks below it.
        let status = dir.join(".latchfs/status").join(format!("%2F{report}"));
        let place = Arc::new(Self { path: path.clone(), status, holds: Mutex::default() });
        places.insert(path, Arc::downgrade(&place));
        Ok(place)
    }

    /// Returns the path of the lock's file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Begins to lock for a thread: if the thread holds the lock already, counts one more guard.
    pub(super) fn reenter(&self, thread: ThreadId, mode: MutexMode) -> io::Result<Reentry> {
        let mut holds = self.holds.lock();
        let Some((hold, count)) = holds.threads.get_mut(&thread) else {
            let is_first = holds.threads.is_empty() && holds.entering == 0;
            holds.entering += 1;
            return Ok(Reentry::No { is_first });
        };
        let refuse = |kind, why: &str| {
            let sentence = format!("the lock {} {why}", self.path.display());
            Err(io::Error::new(kind, sentence))
        };
        if hold.lost.load(Ordering::Acquire) {
            return refuse(
                ErrorKind::StaleNetworkFileHandle,
                "was lost while this thread held it; drop its guards, and lock anew",
            );
        }
        if mode == MutexMode::Exclusive && hold.mode == MutexMode::Shared {
            return refuse(
                ErrorKind::Deadlock,
                "is read by this thread, which would wait for itself; drop that guard first",
            );
        }
        *count += 1;
        Ok(Reentry::Already(Arc::clone(hold)))
    }

    /// Records that a thread that was acquiring the lock holds it now.
    pub(super) fn entered(&self, thread: ThreadId, hold: &Arc<ThreadHold>) {
        let mut holds = self.holds.lock();
        holds.entering -= 1;
        holds.threads.insert(thread, (Arc::clone(hold), 1));
    }

    /// Records that a thread has failed to acquire the lock.
    pub(super) fn gave_up(&self) {
        self.holds.lock().entering -= 1;
    }

    /// Drops one guard of a thread, and releases the lock with the last one.
    pub(super) fn leave(&self, thread: ThreadId) {
        let last = {
            let mut holds = self.holds.lock();
            let Some((_, count)) = holds.threads.get_mut(&thread) else { return };
            *count -= 1;
            if *count > 0 {
                return;
            }
            holds.threads.remove(&thread)
        };
        if let Some((hold, _)) = last {
            hold.end();
        }
    }

    fn status(&self) -> io::Result<Value> {
        serde_json::from_str(&fs::read_to_string(&self.status)?).map_err(io::Error::other)
    }

    /// Returns the token by which this process holds the lock, according to the lock's status in
    /// the mount.
    pub(super) fn held_by_this_process(&self) -> io::Result<Option<u64>> {
        let status = self.status()?;
        let id = status["holder_id"].as_str().unwrap_or_default();
        let pid = Maker::parse(id).map(|maker| maker.process.pid);
        Ok(status["token"].as_u64().filter(|_| pid == Some(std::process::id())))
    }
}

impl ThreadHold {
    /// Returns the record that a thread holds the lock by the locked file `file`. With the
    /// callbacks `hooks`, starts a thread that watches for the loss of the lock and reports it to
    /// them.
    pub(super) fn new(
        place: &Arc<ProcessLock>,
        file: File,
        mode: MutexMode,
        hooks: Option<Arc<Listeners>>,
    ) -> io::Result<Arc<Self>> {
        let token = token_of(&file).map_err(|error| {
            let shown = place.path.display();
            let sentence = match error.kind() {
                ErrorKind::StaleNetworkFileHandle => format!("the lock {shown} was lost at once"),
                _ => format!("the mount does not tell the token of {shown}: {error}"),
            };
            io::Error::new(error.kind(), sentence)
        })?;
        let lost = Arc::new(AtomicBool::new(false));
        let stop = match hooks {
            None => None,
            Some(hooks) => {
                let (stop, end) = io::pipe()?;
                let lost = Arc::clone(&lost);
                let watched = HoldWatcher { file: file.try_clone()?, token, lost, hooks };
                let thread = thread::Builder::new().name("latchfs-mutex".to_owned());
                thread.spawn(move || watched.watch(&stop))?;
                Some(end)
            }
        };
        Ok(Arc::new(Self { token, mode, file, lost, stop: Mutex::new(stop) }))
    }

    pub(super) fn is_held(&self) -> bool {
        !self.lost.load(Ordering::Acquire) && token_of(&self.file).is_ok_and(|t| t == self.token)
    }

    /// Releases the lock that the thread holds.
    fn end(&self) {
        // The watching thread is stopped before the lock is released, so that it does not report
        // the release as a loss.
        drop(self.stop.lock().take());
        // The file is unlocked explicitly, because closing it does not wait for the release. An
        // error is ignored: a lock that was lost can't be released.
        let _ = self.file.unlock();
    }
}

/// Watches for the loss of a held lock on a thread of its own, and reports it.
struct HoldWatcher {
    file: File,
    token: u64,
    lost: Arc<AtomicBool>,
    hooks: Arc<Listeners>,
}

impl HoldWatcher {
    fn watch(&self, stop: &PipeReader) {
        // The first check of the token comes before the first wait, because the lock may have been
        // lost before this thread has begun.
        let mut changed = Ok(());
        loop {
            let token = changed.and_then(|()| see(&self.file)).and_then(|()| token_of(&self.file));
            if is_stopped(stop) {
                return;
            }
            let is_held = token.is_ok_and(|token| token == self.token);
            // The pipe `stop` is checked once more after the loss was seen: the guard may have been
            // dropped in between, and then the lock was released and not lost.
            if !is_held && !is_stopped(stop) {
                self.lost.store(true, Ordering::Release);
                self.hooks.notice(Notice::Lost { token: self.token });
                self.hooks.unexpected(Unexpected::Lost { token: self.token });
                return;
            }
            changed = await_change(&self.file, stop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_without_a_mount_and_invalid_name_are_refused() {
        let error = ProcessLock::open(Path::new("/"), "build").err().expect("refused");
        assert!(error.to_string().contains("no latchfs is mounted at /"), "{error}");
        let error = ProcessLock::open(Path::new("/"), "a//b").err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("'a//b' can't be the name of a lock"), "{error}");
    }
}
