//! The threads that serve HTTP connections. Each has its own event loop, and new connections are
//! assigned to the threads in turn.

use std::future::Future;
use std::io;
use std::num::NonZero;
use std::thread::{self, JoinHandle};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// Maximum number of worker threads. A request takes microseconds under the mutex of the lock
/// service, and more threads would only contend for it.
const WORKERS_MAX: usize = 2;

/// The worker threads, which run until they are stopped.
pub(super) struct Workers {
    handles: Vec<Handle>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts one thread for each processor, up to [`WORKERS_MAX`].
    pub(super) fn start() -> io::Result<Self> {
        let (stop, _) = watch::channel(false);
        let count = thread::available_parallelism().map_or(1, NonZero::get).min(WORKERS_MAX);
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            handles.push(runtime.handle().clone());
            let mut stopped = stop.subscribe();
            threads.push(thread::Builder::new().name(format!("http-{number}")).spawn(
                move || {
                    // The wait for the stop flag fails only if the sender of the flag was dropped
                    // together with the server, and this thread must end in that case as well.
                    let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
                    runtime.shutdown_background();
                },
            )?);
        }
        Ok(Self { handles, stop, threads })
    }

    /// Returns the handle of the first thread, which also runs the tasks that exist once, such as
    /// the accept loop.
    pub(super) fn first(&self) -> &Handle {
        &self.handles[0]
    }

    /// Returns a round-robin assignment of connections to the threads.
    pub(super) fn choice(&self) -> WorkerChoice {
        WorkerChoice { handles: self.handles.clone(), turn: 0 }
    }

    /// Stops the threads, and aborts the connections that they still serve.
    pub(super) fn stop(self) {
        self.stop.send_replace(true);
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread of the server has panicked");
            }
        }
    }
}

/// Assigns connections to threads, round-robin.
pub(super) struct WorkerChoice {
    handles: Vec<Handle>,
    turn: usize,
}

impl WorkerChoice {
    /// Runs the task that serves a connection on the next thread.
    pub(super) fn assign(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        // The join handle of the task is dropped, because nobody waits for its end.
        drop(self.handles[self.turn].spawn(serving));
        self.turn = (self.turn + 1) % self.handles.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_serve_in_turn_until_they_are_stopped() {
        let workers = Workers::start().expect("threads are to be had");
        let mut choice = workers.choice();
        let (say, said) = std::sync::mpsc::channel();
        let count = workers.handles.len();
        for turn in 0..=count {
            let say = say.clone();
            choice.assign(async move {
                let name = thread::current().name().map(str::to_owned);
                say.send(name).expect("somebody listens");
            });
            let name = said.recv().expect("it was done");
            assert_eq!(name, Some(format!("http-{}", turn % count)));
        }
        workers.stop();
    }
}
