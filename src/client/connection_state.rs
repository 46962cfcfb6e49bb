//! The state of the connection to a server.

use super::session_state::SessionState;
use std::mem::replace;

/// Whether a server answers, and the session with it.
pub(super) struct ConnectionState {
    /// Whether the server answers requests.
    pub(super) asks_work: bool,
    /// Whether the event stream from the server is open.
    pub(super) events_work: bool,
    pub(super) session: SessionState,
    pub(super) stopped: bool,
}

impl ConnectionState {
    pub(super) const fn new(session: SessionState) -> Self {
        Self { asks_work: true, events_work: false, session, stopped: false }
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
    fn log_change(&self, server: &str, was_up: bool) {
        match (was_up, self.is_up()) {
            _ if !self.session.is_wanted() => {}
            (true, false) => log::warn!(server; "connection to the server lost"),
            (false, true) => log::info!(server; "connected to the server"),
            (true, true) | (false, false) => {}
        }
    }
}
