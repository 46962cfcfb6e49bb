//! Signal handling of a daemon: SIGINT, SIGTERM and SIGHUP shut the daemon down in order, except
//! that SIGHUP may make it reload its files instead.

use super::output;
use crate::log_output;
use crate::time::{Span, boot_now};
use std::io;
use std::mem::MaybeUninit;
use std::process;
use std::ptr;
use std::thread;

/// Signals that end the daemon: Ctrl-C, `kill`, and a terminal that is closed.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The time after the first signal in which others are ignored: one Ctrl-C may arrive twice, from
/// the terminal and forwarded by the program that started the daemon.
const ONE_AND_THE_SAME: Span = Span::from_millis(500);

/// How SIGHUP is handled.
pub(super) enum Hangup {
    /// SIGHUP ends the daemon, because its terminal was closed.
    Ends,
    /// SIGHUP calls the contained function, which reloads files, and the daemon continues.
    Calls(Box<dyn Fn() + Send>),
}

/// Calls `then` at the first signal that requests the daemon's end; a second such signal ends the
/// process at once.
///
/// Must be called before any other thread is started: threads inherit the mask that blocks the
/// signals, and only the thread `signals` may receive them.
#[allow(unsafe_code)]
pub(super) fn on_end(hangup: Hangup, then: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that it is given; the signals are valid numbers;
    // pthread_sigmask reads the set and writes no old one.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in ENDING {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        let set = set.assume_init();
        match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) {
            0 => set,
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    };
    let watch = move || {
        let first = wait_for_end(&set, &hangup);
        log::info!("signal {first}: ending");
        then();
        let second = wait_again(&set);
        output::say(
            "a second signal, so this ends at once; leases are kept in the state directory",
        );
        log_output::flush();
        process::exit(128 + second);
    };
    thread::Builder::new().name("signals".into()).spawn(watch).map(|_| ())
}

/// Waits for a signal that requests the daemon's end. Handles SIGHUP meanwhile.
fn wait_for_end(set: &libc::sigset_t, hangup: &Hangup) -> libc::c_int {
    loop {
        match (wait(set), hangup) {
            (libc::SIGHUP, Hangup::Calls(then)) => then(),
            (signal, _) => return signal,
        }
    }
}

/// Waits for a second signal that is not a duplicate of the first.
fn wait_again(set: &libc::sigset_t) -> libc::c_int {
    let first = boot_now();
    loop {
        let signal = wait(set);
        if boot_now().since(first) > ONE_AND_THE_SAME {
            return signal;
        }
    }
}

/// Waits until a signal of the set is pending, and takes it.
#[allow(unsafe_code)]
fn wait(set: &libc::sigset_t) -> libc::c_int {
    let mut signal = 0;
    loop {
        // SAFETY: both arguments point to values that live until the call returns.
        if unsafe { libc::sigwait(ptr::from_ref(set), &raw mut signal) } == 0 {
            return signal;
        }
    }
}
