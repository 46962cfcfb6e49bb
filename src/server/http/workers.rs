//! The threads that serve connections, and which of them gets the next one.
//!
//! The first thread that is not busy gets all new connections. With round robin, two threads would
//! wake now and then, each on a processor with nothing of the server in its caches: keeping 10,000
//! sessions alive costs half as much again that way. A busy thread gets no new connection while
//! another one is not busy.

use super::keep_alive::{self, KeepAliveThread, MigratingConnection};
use crate::time::{Span, Time, boot_now};
use std::future::Future;
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// A request is decided in microseconds, under one mutex: more threads would only wait for each
/// other.
const WORKERS_MAX: usize = 2;

/// How long it is measured how much a thread has to do: many requests, and not many connections.
const MEASURED: Span = Span::from_millis(100);

/// The threads. They serve until they are told to stop.
pub(super) struct Workers {
    handles: Vec<Handle>,
    quiet: KeepAliveThread,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// As many as there is work for, and one for those who are `quiet`, of which it is counted
    /// how many there are.
    pub(super) fn start(connections: Arc<AtomicUsize>) -> io::Result<Self> {
        let (stop, _) = watch::channel(false);
        let count = thread::available_parallelism().map_or(1, NonZero::get).min(WORKERS_MAX);
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        for number in 0..=count {
            let is_quiet = number == count;
            let mut runtime = Builder::new_current_thread();
            if is_quiet {
                runtime.on_thread_park(keep_alive::take_break);
            }
            let runtime = runtime.enable_all().build()?;
            handles.push(runtime.handle().clone());
            let mut stopped = stop.subscribe();
            let name = if is_quiet { "http-quiet".to_owned() } else { format!("http-{number}") };
            threads.push(thread::Builder::new().name(name).spawn(move || {
                keep_alive::settle(number, is_quiet);
                // The sender is dropped only by a server that is gone.
                let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
                runtime.shutdown_background();
            })?);
        }
        let quiet = KeepAliveThread { handle: handles.remove(count), connections };
        Ok(Self { handles, quiet, stop, threads })
    }

    /// The one that does what is to be done once.
    pub(super) fn first(&self) -> &Handle {
        &self.handles[0]
    }

    /// Deals connections out to them.
    pub(super) fn dealer(&self) -> WorkerChoice {
        let loads = WorkerLoads::new(self.handles.len(), boot_now());
        WorkerChoice { handles: self.handles.clone(), quiet: self.quiet.clone(), loads }
    }

    /// Ends them, and what they still serve.
    pub(super) fn stop(self) {
        self.stop.send_replace(true);
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread of the server has panicked");
            }
        }
    }
}

/// Assigns each connection to a worker thread.
pub(super) struct WorkerChoice {
    handles: Vec<Handle>,
    quiet: KeepAliveThread,
    loads: WorkerLoads,
}

impl WorkerChoice {
    /// Has `serving` done by whoever has time.
    pub(super) fn deal(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        let handles = &self.handles;
        let worked = |at: usize| handles[at].metrics().worker_total_busy_duration(0);
        let next = self.loads.next(boot_now(), worked);
        let prompt = &handles[next];
        // Nobody waits for it.
        drop(prompt.spawn(MigratingConnection::new(serving, prompt.clone(), self.quiet.clone())));
    }
}

/// The recent load of each worker thread.
struct WorkerLoads {
    since: Time,
    each: Vec<WorkerLoad>,
    turn: usize,
}

#[derive(Clone, Copy, Default)]
struct WorkerLoad {
    /// In all, when it was measured last.
    worked: Duration,
    /// More than half of the time before that.
    is_busy: bool,
}

impl WorkerLoads {
    fn new(count: usize, now: Time) -> Self {
        Self { since: now, each: vec![WorkerLoad::default(); count], turn: 0 }
    }

    /// Returns the thread for the next connection: the first that is not busy, or each in turn if
    /// all are. `worked` returns how long a thread has been busy in total.
    fn next(&mut self, now: Time, worked: impl Fn(usize) -> Duration) -> usize {
        let passed = now.since(self.since);
        if passed >= MEASURED {
            self.since = now;
            for (at, load) in self.each.iter_mut().enumerate() {
                let worked = worked(at);
                load.is_busy = worked.saturating_sub(load.worked) * 2 > passed.as_duration();
                load.worked = worked;
            }
        }
        self.each.iter().position(|load| !load.is_busy).unwrap_or_else(|| {
            self.turn += 1;
            self.turn % self.each.len()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_time_gets_all() {
        let at = |ms| Time::from_secs(1) + Span::from_millis(ms);
        let mut loads = WorkerLoads::new(2, at(0));
        let worked =
            |first, second| move |at| Duration::from_millis(if at == 0 { first } else { second });
        // Nothing is known yet.
        assert_eq!([0; 3].map(|_| loads.next(at(50), worked(50, 0))), [0, 0, 0]);
        assert_eq!([0; 3].map(|_| loads.next(at(100), worked(90, 10))), [1, 1, 1]);
        // Between two measurements nobody is asked.
        assert_eq!([0; 3].map(|_| loads.next(at(199), |_| panic!("too soon"))), [1, 1, 1]);
        assert_eq!([0; 4].map(|_| loads.next(at(200), worked(180, 100))), [1, 0, 1, 0]);
        assert_eq!([0; 3].map(|_| loads.next(at(400), worked(200, 300))), [0, 0, 0]);
    }

    #[test]
    fn each_is_a_thread_that_serves_until_it_is_stopped() {
        let workers = Workers::start(Arc::default()).expect("threads are to be had");
        let mut dealer = workers.dealer();
        let (say, said) = std::sync::mpsc::channel();
        dealer.deal(async move {
            let name = thread::current().name().map(str::to_owned);
            say.send(name).expect("somebody listens");
        });
        let name = said.recv().expect("it was done");
        assert_eq!(name.as_deref(), Some("http-0"));
        workers.stop();
    }
}
