//! Processors that do not rest: each has something to do that anything else goes before.

use crate::mounts::pin_to;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Keeps all processors awake while it lives.
pub(crate) struct Awake {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    pub(crate) fn start() -> Result<Self, String> {
        let count = thread::available_parallelism().map_err(|error| error.to_string())?.get();
        let (over, (say, said)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let spin = |processor| {
            let (over, say) = (Arc::clone(&over), say.clone());
            thread::spawn(move || {
                let begun = pin_to(processor).and_then(|()| give_way());
                let failed = begun.is_err();
                if say.send(begun).is_err() || failed {
                    return;
                }
                let mut turn = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    // Not `spin_loop`: a host takes a processor that pauses again and again.
                    turn = black_box(turn.wrapping_add(1));
                }
            })
        };
        let threads: Vec<_> = (0..count).map(spin).collect();
        let awake = Self { over, threads };
        said.iter().take(count).collect::<Result<(), String>>()?;
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}

/// From now on this thread runs only where nothing else would.
#[allow(unsafe_code)]
fn give_way() -> Result<(), String> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` is a valid parameter of this policy, and 0 is this thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) };
    if result == 0 {
        Ok(())
    } else {
        Err(format!("can't give way to others: {}", io::Error::last_os_error()))
    }
}
