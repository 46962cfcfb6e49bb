//! The command `run --guard`: runs a command while a guard holds the lock of its folder. The
//! command starts when the folder is ready, and is dead before another machine can get the lock.

use super::children::{self, Signals, wake};
use super::exit::{CliError, CliResult, Exit};
use super::folder_options::PlaceArgs;
use super::guard_target::{GuardTarget, GuardedLock};
use super::run::{CommandEnd, NOTICE_AFTER_STEAL, RunArgs, Watched, code_of, not_run, run_on_lost};
use super::supervisor::{self, Inheritance, SupervisedLease};
use crate::time::{Span, Time};
use std::path::Path;

/// How long before the end of the lease the command gets SIGTERM, if the lease is long. With a
/// short lease that is a fifth of it.
const ENDS_BEFORE: Span = Span::from_secs(10);
/// The lease that is told to the front process. A guard renews its lease itself.
const UNUSED_TTL_MS: u64 = 0;

pub(super) fn run(args: &RunArgs, path: &Path) -> CliResult {
    let place = PlaceArgs::new(args.target.client(), args.stage.clone());
    // Both this and `split` fork, and must run before any other thread is started.
    let guard = GuardTarget::of(path, &place, args.ttl, args.target.key_arguments())?;
    let front = supervisor::split(|_, step| {
        if step == Inheritance::Release {
            guard.end_and_wait();
        }
    })?;
    let patience = if args.try_only { Some(Span::ZERO) } else { args.wait };
    let lock = guard.take(patience)?;
    let signals = Signals::take().map_err(|error| CliError::system("signals", &error))?;
    let mut command = args.command_line();
    command.env("LATCHFS_LOCK", &lock.name).env("LATCHFS_TOKEN", lock.token.to_string());
    let lease = SupervisedLease { token: lock.token, ttl_ms: UNUSED_TTL_MS };
    let watched = front.outlive(lease).and_then(|_| {
        let times = ending_times(&lock);
        Ok((guard.follow(&lock, wake)?, times))
    });
    let (known, times) = watched.inspect_err(|_| guard.end())?;
    let watched = Watched { known, times: &times, at_loss: &|| {}, lock: lock.name.clone() };
    let mut group = match children::Group::start(command, front.group()) {
        Ok(group) => group,
        Err(error) => {
            guard.end_and_wait();
            not_run(&args.command_line(), &error);
        }
    };
    let ended = watched.look_after(&mut group, (&signals, &front));
    if matches!(ended, CommandEnd::Lost) {
        // The guard may hang.
        guard.end();
    } else {
        guard.end_and_wait();
    }
    match ended {
        CommandEnd::Lost => {
            run_on_lost(args, &lock.name, lock.token, |_| {});
            Err(CliError::Said(Exit::Lost, why_lost(&lock, path)))
        }
        CommandEnd::Killed => Ok(()),
        CommandEnd::Exited(status) => match code_of(status) {
            0 => Ok(()),
            code => std::process::exit(code),
        },
    }
}

/// Returns how long before the end of the lease the command gets SIGTERM, and how long after
/// SIGTERM it gets SIGKILL. All processes are then dead before the lease ends, also if this process
/// has to wait for a busy machine: with a lease of 2 s, for up to 300 ms.
fn ending_times(lock: &GuardedLock) -> impl Fn(Time) -> (Span, Span) + use<> {
    let ttl = lock.ttl;
    let part = move |of: u64| Span::from_nanos(ttl.as_nanos() / of);
    move |sure| match sure {
        // The lock was stolen, or the guard is gone, or it waits for the end of the command.
        Time::ZERO => (Span::ZERO, part(10).min(NOTICE_AFTER_STEAL)),
        _ => (part(5).min(ENDS_BEFORE), part(20).min(NOTICE_AFTER_STEAL)),
    }
}

fn why_lost(lock: &GuardedLock, path: &Path) -> String {
    format!(
        "the folder's lock was lost or must be given up (token {}), so the command was ended; see \
         'latchfs guard status {}'",
        lock.token,
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock is taken at any time between two renewals of the lease. How soon the command ends
    /// depends on the whole lease, not on what is left of it then.
    #[test]
    fn a_command_ends_a_fifth_of_the_whole_lease_before_its_end() {
        let times_of = |ttl| {
            let until = Time::from_secs(1);
            ending_times(&GuardedLock { token: 1, name: "build".to_owned(), until, ttl })
        };
        let times = times_of(Span::from_secs(2));
        let (margin, notice) = times(Time::from_secs(7));
        assert_eq!((margin, notice), (Span::from_millis(400), Span::from_millis(100)));
        assert_eq!(times(Time::ZERO), (Span::ZERO, Span::from_millis(200)));
        let times = times_of(Span::from_secs(24 * 3_600));
        assert_eq!(times(Time::from_secs(7)), (ENDS_BEFORE, NOTICE_AFTER_STEAL));
    }
}
