//! The state of the connection to a server.

use super::session_state::SessionState;
use crate::time::{Span, Time, boot_now};
use log::Level;
use std::mem::replace;

/// How long after a loss of the connection no further one is logged as a warning. A server that
/// accepts connections and closes them would otherwise fill the terminal of a command.
const LOSS_SAID_EVERY: Span = Span::from_secs(10);

/// Whether a server answers, and the session with it.
pub(super) struct ConnectionState {
    /// Whether the server answers requests.
    pub(super) asks_work: bool,
    /// Whether the event stream from the server is open.
    pub(super) events_work: bool,
    pub(super) session: SessionState,
    pub(super) stopped: bool,
    /// When a loss of the connection was last logged as a warning.
    loss_said: Option<Time>,
}

impl ConnectionState {
    pub(super) const fn new(session: SessionState) -> Self {
        Self { asks_work: true, events_work: false, session, stopped: false, loss_said: None }
    }

    /// Whether the server answers requests and sends events.
    pub(super) const fn is_up(&self) -> bool {
        self.asks_work && self.events_work
    }

    /// Records whether requests to `server` work. Returns whether they did before.
    pub(super) fn set_asks(&mut self, server: &str, work: bool) -> bool {
        let (was_up, before) = (self.is_up(), replace(&mut self.asks_work, work));
        self.log_change(server, was_up);
        before
    }

    /// Records whether the event stream of `server` is open. Returns whether it was before.
    pub(super) fn set_events(&mut self, server: &str, work: bool) -> bool {
        let (was_up, before) = (self.is_up(), replace(&mut self.events_work, work));
        self.log_change(server, was_up);
        before
    }

    /// Logs a change, if this client has a session: a single command needs no such lines.
    fn log_change(&mut self, server: &str, was_up: bool) {
        match (was_up, self.is_up()) {
            _ if !self.session.is_wanted() => {}
            (true, false) => {
                let level = self.level_of_loss(boot_now());
                log::log!(level, server; "connection to the server lost");
            }
            (false, true) => log::info!(server; "connected to the server"),
            (true, true) | (false, false) => {}
        }
    }

    /// Returns the level at which a loss of the connection is logged.
    fn level_of_loss(&mut self, now: Time) -> Level {
        if self.loss_said.is_some_and(|said| now < said + LOSS_SAID_EVERY) {
            return Level::Info;
        }
        self.loss_said = Some(now);
        Level::Warn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loss_in_ten_seconds_is_a_warning() {
        let mut state = ConnectionState::new(SessionState::new(None));
        let levels = [1, 2, 10, 11, 12].map(|secs| state.level_of_loss(Time::from_secs(secs)));
        let [warn, info] = [Level::Warn, Level::Info];
        assert_eq!(levels, [warn, info, info, warn, info]);
    }
}
