//! Makes system calls that may take long, such as fsync, on threads of their own, so that the
//! thread that reads the kernel's requests answers others meanwhile.

use crate::fuse::kernel::pending::pending;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of threads. More calls at once wait for one of them: they share one disk.
const THREADS_MAX: usize = 4;
/// How long a thread waits for a further call before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Call = Box<dyn FnOnce() + Send>;

/// The threads for slow calls of one mount.
#[derive(Default)]
pub(crate) struct SlowCalls(Arc<CallQueue>);

#[derive(Default)]
struct CallQueue {
    state: Mutex<QueueState>,
    more: Condvar,
}

#[derive(Default)]
struct QueueState {
    calls: VecDeque<Call>,
    threads: usize,
    /// The threads that wait for a call.
    idle: usize,
    /// Whether the mount has ended.
    is_over: bool,
}

impl SlowCalls {
    /// Makes a call on a thread of its own, and returns its result; `None` if the mount has ended.
    pub(crate) async fn make<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (promise, result) = pending();
        self.add(Box::new(move || promise.keep(call())));
        result.await
    }

    fn add(&self, call: Call) {
        let mut state = self.0.state.lock();
        state.calls.push_back(call);
        if state.idle >= state.calls.len() || state.threads >= THREADS_MAX {
            self.0.more.notify_one();
            return;
        }
        let queue = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("slow-calls".to_owned());
        match thread.spawn(move || queue.serve()) {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads == 0 => {
                log::warn!("no thread for slow calls can be started: {error}");
                let call = state.calls.pop_back();
                drop(state);
                if let Some(call) = call {
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
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(call) = state.calls.pop_front() {
                drop(state);
                call();
                state = self.state.lock();
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
    use crate::fuse::kernel::task::{block_on, spawn};
    use std::sync::mpsc::channel;

    /// A call that takes long delays no other one, and further calls wait for a thread.
    #[test]
    fn calls_run_beside_each_other() {
        let calls = Arc::new(SlowCalls::default());
        let (done, results) = channel();
        let mut ends = Vec::new();
        for number in 0..=THREADS_MAX {
            let (end, ended) = channel::<()>();
            ends.push(end);
            let (calls, done) = (Arc::clone(&calls), done.clone());
            spawn(async move {
                let result = calls.make(move || ended.recv().map(|()| number)).await;
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
        assert_eq!(block_on(calls.make(|| 7)), Some(7));
    }
}
