//! The time that a victim, a well-behaved user of an attacked server or mount, may have to wait:
//! one second, plus the scheduling delay that the machine itself causes while its processors are
//! overloaded.

use latchfs::time::boot_now;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The time within which a victim must get its answer during an attack, scheduling delays excluded.
pub(crate) const VICTIM_LIMIT: Duration = Duration::from_secs(1);

/// An upper bound on the number of switches between threads that a request of a victim needs.
const TURNS: usize = 16;
/// The time between two measurements of the scheduling delay.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Runs the work of a victim; fails if it takes longer than `VICTIM_LIMIT` plus the scheduling
/// delay.
#[track_caller]
pub(crate) fn prompt<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (took, stall, done) = timed(work);
    assert!(took < VICTIM_LIMIT + stall, "{what} took {took:?}, and the machine's own {stall:?}");
    done
}

/// Runs `work`. Returns how long it took, the scheduling delay, and the result. The scheduling
/// delay is the longest time that `TURNS` round trips between two threads took in the meantime.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (Duration, Duration, T) {
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        let looking = scope.spawn(move || {
            let (ask, asked) = channel::<()>();
            let (reply, replied) = channel::<()>();
            let partner = thread::spawn(move || {
                while asked
                    .recv()
                    .and_then(|()| reply.send(()).map_err(|_| std::sync::mpsc::RecvError))
                    .is_ok()
                {}
            });
            let mut worst = Duration::ZERO;
            loop {
                let begun = boot_now();
                for _ in 0..TURNS {
                    ask.send(()).expect("it listens");
                    replied.recv().expect("it answers");
                }
                worst = worst.max(boot_now().since(begun).as_duration());
                if ended.recv_timeout(POLL_EVERY) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
            }
            drop(ask);
            partner.join().expect("it ends");
            worst
        });
        let begun = boot_now();
        let outcome = work();
        let took = boot_now().since(begun).as_duration();
        drop(done);
        (took, looking.join().expect("it ends"), outcome)
    })
}

/// The measured scheduling delay does not include the time of a slow answer.
#[test]
fn slow_answer_is_not_counted_as_scheduling_delay() {
    let (never, silent) = channel::<()>();
    let waits = || silent.recv_timeout(Duration::from_millis(300));
    let (took, stall, _) = timed(waits);
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert!(stall < took, "{stall:?} of {took:?}");
    drop(never);
}
