//! A lock that a command of this program holds while another program works: how it is acquired,
//! watched and released.

use super::exit::{CliError, CliResult};
use super::lease_watcher::{LeaseReader, LeaseWatcher};
use super::mount_client::LockClient;
use super::wait_progress;
use crate::engine::LockName;
use crate::time::Span;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// How a lock is requested.
pub(super) struct HoldTerms {
    pub(super) shared: bool,
    /// The ttl as the request names it; `None` for that of the mount or server.
    pub(super) ttl: Option<String>,
    pub(super) note: Option<String>,
    /// Whether and for how long the request waits in the queue, as the request names it.
    pub(super) wait: Value,
}

/// A lock that this process holds.
pub(super) struct HeldLock {
    pub(super) ctl: Arc<dyn LockClient>,
    pub(super) name: LockName,
    pub(super) token: u64,
    pub(super) ttl: Span,
    pub(super) grace: Span,
}

impl HoldTerms {
    /// Returns the part of a request that says for how long to wait; without a limit, for ever.
    pub(super) fn waiting(limit: Option<Span>) -> Value {
        limit.map_or(Value::Bool(true), |limit| format!("{}ms", limit.as_millis()).into())
    }

    /// Acquires the lock `name` for this process, and starts to watch its lease. `dir` is the mount
    /// of the lock, unless a server is asked.
    pub(super) fn acquire(
        &self,
        ctl: Arc<dyn LockClient>,
        dir: Option<&Path>,
        name: &LockName,
    ) -> CliResult<(HeldLock, LeaseWatcher)> {
        let request = json!({
            "do": "acquire",
            "name": name.as_str(),
            "mode": if self.shared { "shared" } else { "exclusive" },
            "ttl": self.ttl,
            "note": self.note,
            "pid": std::process::id(),
            "wait": self.wait,
        });
        let answer = wait_progress::wait(&ctl, name, &request)?;
        let number = |value: &Value| value.as_u64();
        let (token, ttl) = (number(&answer["token"]), number(&answer["status"]["ttl_ms"]));
        let grace = Span::from_millis(number(&answer["status"]["grace_ms"]).unwrap_or(0));
        let (Some(token), Some(ttl)) = (token, ttl) else {
            return Err(CliError::unavailable(
                "the daemon's answer has no token; is it of this version?",
            ));
        };
        let ttl = Span::from_millis(ttl);
        let held = HeldLock { ctl, name: name.clone(), token, ttl, grace };
        let sight = match dir {
            Some(dir) => LeaseReader::of_mount(dir, name, token),
            None => LeaseReader::of_server(Arc::clone(&held.ctl), name, token),
        };
        Ok((held, LeaseWatcher::seen(sight, ttl)?))
    }
}

impl HeldLock {
    pub(super) fn release(&self) -> CliResult {
        self.tell(&json!({"do": "release", "name": self.name.as_str(), "token": self.token}))
    }

    pub(super) fn tell(&self, request: &Value) -> CliResult {
        self.ctl.ask(request).map(drop)
    }
}
