//! Log lines about refused commands: the lock, the client and the reason.

use crate::engine::{ClientId, LockName, Op, Refusal, RefusalKind, Token};

/// The target of all log records about single locks and sessions, which `--log-locks off` leaves
/// out.
pub const LOCKS_LOG: &str = "latchfs::locks";

/// The target of the log records about answered HTTP requests.
pub(crate) const ACCESS_LOG: &str = "latchfs::access";

/// The lock and the client of a command, for the log.
pub(crate) struct CommandSubject {
    lock: Option<LockName>,
    client: Option<ClientId>,
    token: Option<Token>,
}

impl CommandSubject {
    /// Returns the subject of a command; `None` if refusals are not logged.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        log::log_enabled!(target: LOCKS_LOG, log::Level::Info).then(|| Self::named_in(op))
    }

    /// Returns the subject of a command that concerns all that a client has.
    pub(crate) fn of_client(client: &ClientId) -> Self {
        Self { lock: None, client: Some(client.clone()), token: None }
    }

    /// Returns the lock, the client and the token that a command names.
    pub(crate) fn named_in(op: &Op) -> Self {
        let (lock, client, token) = match op {
            Op::Acquire(ask) => (Some(&ask.name), Some(&ask.client), None),
            Op::Renew(ask) => (Some(&ask.key.name), Some(&ask.key.client), ask.key.token),
            Op::Annotate(ask) => (Some(&ask.key.name), Some(&ask.key.client), ask.key.token),
            Op::Release(ask) => (Some(&ask.key.name), Some(&ask.key.client), ask.key.token),
            Op::Move(ask) => (Some(&ask.from.name), Some(&ask.from.client), ask.from.token),
            Op::Leave(ask) => (Some(&ask.name), None, None),
            Op::Steal(ask) => (Some(&ask.name), Some(&ask.client), None),
            Op::Forget(ask) => (Some(&ask.name), None, None),
            Op::OpenSession(ask) => (None, Some(&ask.client), None),
            Op::Settle | Op::KeepAlive(_) | Op::EndSession(_) | Op::Reset(_) => (None, None, None),
        };
        Self { lock: lock.cloned(), client: client.cloned(), token }
    }

    /// The lock that the command concerns.
    pub(crate) fn lock(&self) -> Option<&str> {
        self.lock.as_ref().map(LockName::as_str)
    }

    /// The client for which the command acts.
    pub(crate) fn client(&self) -> Option<&str> {
        self.client.as_ref().map(ClientId::as_str)
    }

    /// The token that the command names.
    pub(crate) fn token(&self) -> Option<u64> {
        self.token.map(Token::as_u64)
    }

    /// Logs a refusal of the command.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        log_refusal(&RefusalLine {
            lock: self.lock(),
            client: self.client(),
            token: self.token(),
            kind: refusal.kind(),
            reason: &refusal.to_string(),
            request: None,
        });
    }
}

/// The fields of a line about a refusal.
pub(crate) struct RefusalLine<'a> {
    pub(crate) lock: Option<&'a str>,
    pub(crate) client: Option<&'a str>,
    pub(crate) token: Option<u64>,
    pub(crate) kind: RefusalKind,
    pub(crate) reason: &'a str,
    /// The id of the HTTP request.
    pub(crate) request: Option<&'a str>,
}

/// Logs a refusal.
pub(crate) fn log_refusal(line: &RefusalLine<'_>) {
    let RefusalLine { lock, client, token, kind, reason, request } = *line;
    log::info!(target: LOCKS_LOG, lock, client, token, kind = kind.as_str(), reason, request;
        "request refused");
}
