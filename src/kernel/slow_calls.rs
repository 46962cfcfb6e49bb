//! Makes system calls that may take long, such as fsync, on threads of their own, so that the
//! thread that reads the kernel's requests answers others meanwhile.

use crate::LOG;
use common::shares::{TableShare, UserLimits, UserTable};
use common::task::pending;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of threads. More calls at once wait for one of them: they share one disk.
const THREADS_MAX: usize = 4;
/// One user has half of the threads at most, and one is kept for root and the user who mounted.
const THREADS_OF_USERS: UserLimits =
    UserLimits { one: THREADS_MAX / 2, users: THREADS_MAX - 1, all: THREADS_MAX };
/// How long a thread waits for a further call before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Call = Box<dyn FnOnce() + Send>;

/// The threads for slow calls of one mount.
pub struct SlowCalls(Arc<CallQueue>);

struct CallQueue {
    /// The threads that make calls, by the users of these.
    at_work: UserTable,
    state: Mutex<TaskQueueState>,
    more: Condvar,
}

#[derive(Default)]
struct TaskQueueState {
    /// The calls that wait for a thread, with their users.
    calls: VecDeque<(u32, Call)>,
    threads: usize,
    /// The threads that wait for a call.
    idle: usize,
    /// Whether the mount has ended.
    is_over: bool,
}

impl SlowCalls {
    /// Returns no threads yet, for a mount made by the user `mounter`.
    pub fn new(mounter: u32) -> Self {
        let at_work = UserTable::new("calls that may take long", THREADS_OF_USERS, mounter);
        let (state, more) = (Mutex::default(), Condvar::new());
        Self(Arc::new(CallQueue { at_work, state, more }))
    }

    /// Makes a call for a user on a thread of its own, and returns its result; `None` if the mount
    /// has ended.
    pub async fn make<T: Send + 'static>(
        &self,
        uid: u32,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (promise, result) = pending();
        self.add(uid, Box::new(move || promise.keep(call())));
        result.await
    }

    fn add(&self, uid: u32, call: Call) {
        let mut state = self.0.state.lock();
        state.calls.push_back((uid, call));
        let ready = state.calls.iter().filter(|(uid, _)| self.0.may_begin(*uid)).count();
        if state.idle >= ready || state.threads >= THREADS_MAX {
            self.0.more.notify_one();
            return;
        }
        let queue = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("slow-calls".to_owned());
        match thread.spawn(move || queue.serve()) {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads == 0 => {
                log::warn!(target: LOG, "no thread for slow calls can be started: {error}");
                let call = state.calls.pop_back();
                drop(state);
                if let Some((_, call)) = call {
                    call();
                }
            }
            Err(_) => {}
        }
    }
}

impl Drop for SlowCalls {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.more.notify_all();
    }
}

impl CallQueue {
    /// Whether a user has not yet as many threads as one user may have.
    fn may_begin(&self, uid: u32) -> bool {
        self.at_work.room(uid, 1).is_ok()
    }

    /// Returns the oldest call of a user who may have one more thread. Others wait: the thread that
    /// ends a call makes the next one.
    fn next_call(&self, state: &mut TaskQueueState) -> Option<(TableShare, Call)> {
        let ready = state.calls.iter().position(|(uid, _)| self.may_begin(*uid))?;
        let (uid, call) = state.calls.remove(ready)?;
        Some((self.at_work.take_always(uid, 1), call))
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((share, call)) = self.next_call(&mut state) {
                drop(state);
                call();
                state = self.state.lock();
                drop(share);
                continue;
            }
            if state.is_over {
                break;
            }
            state.idle += 1;
            let waited = self.more.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.calls.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::task::{block_on, spawn};
    use std::sync::mpsc::channel;

    /// A call that takes long delays no other one, and further calls wait for a thread.
    #[test]
    fn calls_run_beside_each_other() {
        let calls = Arc::new(SlowCalls::new(0));
        let (done, results) = channel();
        let mut ends = Vec::new();
        for number in 0..=THREADS_MAX {
            let (end, ended) = channel::<()>();
            ends.push(end);
            let (calls, done) = (Arc::clone(&calls), done.clone());
            spawn(async move {
                let result = calls.make(0, move || ended.recv().map(|()| number)).await;
                let _ = done.send(result);
            });
        }
        for number in (1..THREADS_MAX).rev() {
            ends[number].send(()).expect("the call waits");
            assert_eq!(results.recv(), Ok(Some(Ok(number))));
        }
        ends[THREADS_MAX].send(()).expect("the call waits");
        assert_eq!(results.recv(), Ok(Some(Ok(THREADS_MAX))));
        ends[0].send(()).expect("the call waits");
        assert_eq!(results.recv(), Ok(Some(Ok(0))));
        assert_eq!(block_on(calls.make(0, || 7)), Some(7));
    }

    /// One user has half of the threads, all users leave one to root, and what waits for a thread
    /// gets the next one that its user may have.
    #[test]
    fn one_user_leaves_half_of_the_threads_to_others() {
        let calls = Arc::new(SlowCalls::new(0));
        let (begun, begins) = channel();
        let (done, results) = channel();
        let start = |uid: u32| {
            let (end, ended) = channel::<()>();
            let (calls, begun, done) = (Arc::clone(&calls), begun.clone(), done.clone());
            spawn(async move {
                let call = move || {
                    let _ = begun.send(uid);
                    let _ = ended.recv();
                };
                calls.make(uid, call).await;
                let _ = done.send(uid);
            });
            end
        };
        let (eve, ann, root) = (1_000, 1_001, 0);
        let mut eves: Vec<_> = (0..5).map(|_| start(eve)).collect();
        assert_eq!([begins.recv(), begins.recv()], [Ok(eve), Ok(eve)]);
        let anns: Vec<_> = (0..2).map(|_| start(ann)).collect();
        assert_eq!(begins.recv(), Ok(ann));
        let roots = start(root);
        assert_eq!(begins.recv(), Ok(root), "one thread is kept for root");
        drop(roots);
        assert_eq!(results.recv(), Ok(root));
        drop(eves.remove(0));
        assert_eq!((results.recv(), begins.recv()), (Ok(eve), Ok(eve)));
        drop(eves);
        drop(anns);
        let mut rest: Vec<_> = (0..6).map(|_| results.recv().expect("it ends")).collect();
        rest.sort_unstable();
        assert_eq!(rest, [eve, eve, eve, eve, ann, ann]);
    }
}
