//! `serve --idle-end`: ends a server that nobody needs.
//!
//! A command may connect in the very moment in which the server decides to end. So the server first
//! takes its sockets' names away, and ends only if nobody has connected until a moment later: who
//! comes after that finds no socket, and starts another server.

use super::app_state::AppState;
use crate::base::said;
use crate::service::{List, ListedNames, LockService};
use crate::time::{Span, Time, boot_now};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{fs, io, thread};

/// The maximum interval between two looks at the server.
const LOOK_EVERY: Span = Span::from_secs(1);
/// The minimum time after which a server is idle: a shorter one counts as this.
const AFTER_MIN: Span = Span::from_millis(100);
/// How long the sockets have no name before the server ends. A program that has found a socket by
/// its name connects to it at once.
const NAMELESS: Span = Span::from_millis(200);

/// Since when nobody has needed the server.
#[derive(Debug)]
struct IdleTime {
    since: Time,
    /// The number of connections that were accepted until then.
    accepted: u64,
}

impl IdleTime {
    /// Takes note of the server's state, and returns for how long nobody has needed it.
    fn look(&mut self, now: Time, accepted: u64, is_in_use: bool) -> Span {
        if is_in_use || accepted != self.accepted {
            *self = Self { since: now, accepted };
        }
        now.since(self.since)
    }
}

/// Whether anybody uses a server, and the names by which clients find it.
pub(super) struct ServerActivity {
    app: Arc<AppState>,
    sockets: Vec<PathBuf>,
}

impl ServerActivity {
    pub(super) fn of(app: &Arc<AppState>, sockets: &[PathBuf]) -> Self {
        Self { app: Arc::clone(app), sockets: sockets.to_vec() }
    }

    /// Whether a client is connected, or a lock is held, in grace or waited for.
    fn is_in_use(&self) -> bool {
        self.app.peers.connections() > 0 || has_locks(&self.app.locks)
    }

    /// Takes the names of the Unix sockets away. Who has connected is served all the same.
    fn hide_sockets(&self) {
        self.sockets.iter().for_each(|socket| rename(socket, &hidden(socket)));
    }

    /// Gives the Unix sockets their names back.
    fn show_sockets(&self) {
        self.sockets.iter().for_each(|socket| rename(&hidden(socket), socket));
    }
}

fn rename(from: &Path, to: &Path) {
    if let Err(error) = fs::rename(from, to) {
        log::warn!("{} can't be renamed to {}: {}", from.display(), to.display(), said(&error));
    }
}

/// Returns the name of a socket that nobody shall find.
pub(super) fn hidden(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".ending");
    name.into()
}

/// Calls `end` when the server was idle for the time `after`.
pub(super) fn watch(
    after: Span,
    activity: ServerActivity,
    end: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let after = after.max(AFTER_MIN);
    let watch = move || {
        let mut idle = IdleTime { since: boot_now(), accepted: 0 };
        let mut is_over = || {
            let accepted = activity.app.accepted.load(Ordering::Relaxed);
            idle.look(boot_now(), accepted, activity.is_in_use()) >= after
        };
        loop {
            if is_over() {
                activity.hide_sockets();
                thread::sleep(NAMELESS.as_duration());
                if is_over() {
                    return end();
                }
                activity.show_sockets();
            }
            thread::sleep(LOOK_EVERY.min(after).as_duration());
        }
    };
    thread::Builder::new().name("idle".to_owned()).spawn(watch).map(drop)
}

/// Whether a lock is held, in grace or waited for, or may be.
fn has_locks(locks: &Arc<dyn LockService>) -> bool {
    let first = List { prefix: String::new(), after: None, limit: 1 };
    !locks.list(ListedNames::InUse, first).wait().is_ok_and(|page| page.items.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_time_begins_anew_with_each_use() {
        let at = Time::from_secs;
        let mut idle = IdleTime { since: at(10), accepted: 0 };
        assert_eq!(idle.look(at(12), 0, false), Span::from_secs(2));
        assert_eq!(idle.look(at(13), 0, true), Span::ZERO, "a lock is held");
        assert_eq!(idle.look(at(15), 0, false), Span::from_secs(2));
        assert_eq!(idle.look(at(16), 1, false), Span::ZERO, "one came and went");
        assert_eq!(idle.look(at(19), 1, false), Span::from_secs(3));
    }
}
