//! The leases of an agent's session. Each has a note that names the session: a mount and a server
//! know the user of a lease, and one user may run several agents.

use crate::cli::connect::mount_client::LockClient;
use crate::cli::connect::mount_client::listed_name;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::hook::file_lock::PREFIX;
use crate::cli::output::harmless;
use crate::cli::status_table::{Status, held_by};
use crate::control::ControlRequest;
use crate::control::control_request::{AcquireRequest, LeaseOptions, checked_note};
use crate::engine::LockName;
use crate::engine::{Token, Ttl};
use crate::time::Span;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// How often a lease is requested that ends between two requests.
const ATTEMPTS: usize = 3;

/// The leases of one session.
pub(super) struct AgentLeases {
    pub(super) ask: Arc<dyn LockClient>,
    note: String,
    ttl: Option<Ttl>,
}

/// Returns the note of the leases of a session.
pub(super) fn note_of(session: &str) -> String {
    format!("agent session {session}")
}

impl AgentLeases {
    /// Returns the leases of a session, which last for so long after they are renewed.
    pub(super) fn new(ask: Arc<dyn LockClient>, session: &str, ttl: Span) -> Self {
        Self { ask, note: note_of(session), ttl: Ttl::new(ttl).ok() }
    }

    /// Takes the lock of a file, or renews it if the session has it. Returns its token if it was
    /// taken. The error says who has it, since when, and what to do.
    pub(super) fn take(&self, name: &LockName, path: &Path) -> CliResult<Option<u64>> {
        let note = checked_note(&self.note).map_err(CliError::usage)?;
        let options = LeaseOptions { ttl: self.ttl, note: Some(note), ..LeaseOptions::default() };
        let acquire = AcquireRequest { for_parent: true, ..AcquireRequest::new(name, options) };
        let acquire = ControlRequest::Acquire(acquire);
        let mut refused = String::new();
        for _ in 0..ATTEMPTS {
            match self.ask.request(&acquire) {
                Ok(answer) => return Ok(answer["token"].as_u64()),
                Err(CliError::Said(Exit::Conflict, why)) => refused = why,
                Err(error) => return Err(error),
            }
            let answer = self.ask.request(&ControlRequest::Status(name.clone()))?;
            let (status, you) = (&answer["status"], &answer["you"]);
            let is_own = status["note"] == self.note.as_str() && status["holder"] == *you;
            match Status(status).phase().as_str() {
                "held" if !is_own => return Err(self.taken(name, path, status)),
                "held" => match self.renew(name, token_of(status)) {
                    Ok(()) => return Ok(None),
                    // The lease has expired since.
                    Err(CliError::Said(Exit::Lost | Exit::Denied, _)) => {}
                    Err(error) => return Err(error),
                },
                // The lock is free by now, unless a limit is reached.
                "free" => {}
                _ => break,
            }
        }
        Err(CliError::Said(Exit::Conflict, refused))
    }

    fn taken(&self, name: &LockName, path: &Path, status: &Value) -> CliError {
        let path = harmless(&path.to_string_lossy());
        let quoted = harmless(&name.as_str().replace('\'', "'\\''"));
        CliError::Said(
            Exit::Conflict,
            format!(
                "{path} was not written, since its lock is {}, and you are {}; do something else \
                 first, or wait with: latchfs run --wait 10m '{quoted}' -- true, and then read the \
                 file again before you change it",
                held_by(Status(status)),
                self.note
            ),
        )
    }

    fn renew(&self, name: &LockName, token: Token) -> CliResult {
        let (ttl, token) = (self.ttl, Some(token));
        let options = LeaseOptions { ttl, token, ..LeaseOptions::default() };
        self.ask.request(&ControlRequest::renewal(name, options)).map(drop)
    }

    /// Releases the lock of a file that was taken under this token.
    pub(super) fn release(&self, name: &LockName, token: Token) -> CliResult {
        self.ask.request(&ControlRequest::end_of(name, token)).map(drop)
    }

    /// Renews all leases of the session.
    pub(super) fn renew_all(&self) -> CliResult {
        self.for_each(|name, token| self.renew(name, token))
    }

    /// Releases all leases of the session, also that of its watcher, which ends then.
    pub(super) fn release_all(&self) -> CliResult {
        self.for_each(|name, token| self.release(name, token))
    }

    /// Makes a call for each lease of the session. One that has ended meanwhile is no error.
    fn for_each(&self, call: impl Fn(&LockName, Token) -> CliResult) -> CliResult {
        for status in self.ask.list(PREFIX)? {
            if status["note"] != self.note.as_str() || Status(&status).phase() != "held" {
                continue;
            }
            let name = listed_name(status["name"].as_str().unwrap_or_default())?;
            match call(&name, token_of(&status)) {
                Ok(()) | Err(CliError::Said(Exit::Lost | Exit::Denied, _)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the token in the status of a held lock.
fn token_of(status: &Value) -> Token {
    Token::named(status["token"].as_u64().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use serde_json::json;

    /// A lock service that gives prepared answers, and records what it was asked.
    struct Prepared(Mutex<(Vec<CliResult<Value>>, Vec<String>)>);

    impl LockClient for Prepared {
        fn request(&self, request: &ControlRequest) -> CliResult<Value> {
            let mut state = self.0.lock();
            state.1.push(request.kind().as_str().to_owned());
            state.0.remove(0)
        }

        fn wait(&self, request: &ControlRequest) -> CliResult<Value> {
            self.request(request)
        }
    }

    /// Takes the lock of a file. Returns the outcome, and what was asked for.
    fn taken(answers: Vec<CliResult<Value>>) -> (CliResult<Option<u64>>, Vec<String>) {
        let service = Arc::new(Prepared(Mutex::new((answers, Vec::new()))));
        let leases = AgentLeases::new(Arc::clone(&service) as _, "s1", Span::from_secs(600));
        let name = LockName::parse("agents/file/a'b").expect("valid");
        let taken = leases.take(&name, Path::new("/a'b"));
        let asked = service.0.lock().1.clone();
        (taken, asked)
    }

    fn conflict() -> CliResult<Value> {
        Err(CliError::Said(Exit::Conflict, "held".to_owned()))
    }

    fn held(holder: &str, note: &str) -> Value {
        let status = json!({"phase": "held", "holder": holder, "note": note, "token": 7,
            "held_ms": 252_000});
        json!({"status": status, "you": "pc:ann"})
    }

    #[test]
    fn a_lock_is_taken_or_renewed_if_the_session_has_it() {
        let (new, asked) = taken(vec![Ok(json!({"token": 3}))]);
        assert!(matches!(new, Ok(Some(3))) && asked == ["acquire"], "{new:?} {asked:?}");
        let own = || Ok(held("pc:ann", "agent session s1"));
        let (renewed, asked) = taken(vec![conflict(), own(), Ok(json!({}))]);
        assert!(matches!(renewed, Ok(None)), "{renewed:?}");
        assert_eq!(asked, ["acquire", "status", "renew"]);
        // The lease expires between the requests.
        let lost = Err(CliError::Said(Exit::Lost, "expired".to_owned()));
        let (new, _) = taken(vec![conflict(), own(), lost, Ok(json!({"token": 8}))]);
        assert!(matches!(new, Ok(Some(8))), "{new:?}");
    }

    #[test]
    fn a_limit_is_a_refusal_with_its_reason() {
        let free = || Ok(json!({"status": {"phase": "free"}, "you": "pc:ann"}));
        let answers = vec![conflict(), free(), conflict(), free(), conflict(), free()];
        let (refused, asked) = taken(answers);
        let Err(CliError::Said(Exit::Conflict, why)) = refused else { panic!("{refused:?}") };
        assert_eq!((why.as_str(), asked.len()), ("held", 6));
    }

    #[test]
    fn the_lock_of_another_session_or_user_is_refused_with_the_next_step() {
        for (holder, note) in
            [("pc:ann", "agent session s2"), ("pc:bob", "agent session s1"), ("pc:ann", "")]
        {
            let (refused, _) = taken(vec![conflict(), Ok(held(holder, note))]);
            let Err(CliError::Said(Exit::Conflict, why)) = refused else { panic!("{refused:?}") };
            let says = format!("held by {holder}, taken 4m12s ago");
            assert!(why.contains(&says) && why.contains(note), "{why}");
            let next = r"latchfs run --wait 10m 'agents/file/a'\''b' -- true";
            assert!(why.contains(next), "{why}");
        }
    }
}
