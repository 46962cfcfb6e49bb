//! How long a victim may have to wait beside an attack: a second, and whatever the machine itself
//! keeps everybody waiting meanwhile because its processors have too much to do.

use latchfs::time::boot_now;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// A victim beside an attack gets its right answer within this.
pub(crate) const VICTIM_LIMIT: Duration = Duration::from_secs(1);

/// A request of a victim comes to its end after so many turns between threads, or fewer.
const TURNS: usize = 16;
/// Between two looks at the machine.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Does what a victim does, and fails if that took longer than a victim may have to wait.
#[track_caller]
pub(crate) fn prompt<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (took, stall, done) = timed(work);
    assert!(took < VICTIM_LIMIT + stall, "{what} took {took:?}, and the machine's own {stall:?}");
    done
}

/// Does some work: how long it took, and the longest that the machine took meanwhile for as many
/// turns between two threads as a request needs.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (Duration, Duration, T) {
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        let looking = scope.spawn(move || {
            let (ask, asked) = channel::<()>();
            let (reply, told) = channel::<()>();
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
                    told.recv().expect("it answers");
                }
                worst = worst.max(boot_now().since(begun).as_duration());
                if ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Disconnected) {
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

/// It tells a slow machine from a slow answer.
#[test]
fn a_slow_answer_is_not_taken_for_a_slow_machine() {
    let (never, silent) = channel::<()>();
    let waits = || silent.recv_timeout(Duration::from_millis(300));
    let (took, stall, _) = timed(waits);
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert!(stall < took, "{stall:?} of {took:?}");
    drop(never);
}
