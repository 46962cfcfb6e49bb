//! Renewal of a mount's lease that is bound to no process: `run` renews it while any process that
//! its command has started is alive.

use super::exit::{CliError, Exit};
use super::mount_client::LockClient;
use crate::engine::LockName;
use crate::time::Span;
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The number of renewals within each ttl.
const RENEWALS_PER_TTL: u64 = 4;
/// The delay before the retry of a renewal that got no answer.
const RETRY: Span = Span::from_millis(100);

/// Renews one lease on a thread of its own.
pub(super) struct LeaseRenewal {
    stopped: Arc<AtomicBool>,
}

impl LeaseRenewal {
    /// Renews the lease `token` from now on, until a renewal is refused or [`Self::stop`] is
    /// called.
    pub(super) fn start(
        client: Arc<dyn LockClient>,
        name: &LockName,
        token: u64,
        ttl: Span,
    ) -> io::Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stopped);
        let period = Span::from_nanos(ttl.as_nanos() / RENEWALS_PER_TTL);
        let request = json!({"do": "renew", "name": name.as_str(), "token": token});
        thread::Builder::new().name("renewal".into()).spawn(move || {
            let mut pause = period;
            loop {
                thread::sleep(pause.as_duration());
                if is_stopped.load(Ordering::Acquire) {
                    return;
                }
                pause = match client.ask(&request) {
                    Ok(_) => period,
                    // A refusal means that the lease is over, so the renewals end. The lease
                    // watcher of `run` detects the loss by itself.
                    Err(CliError::Said(Exit::Lost | Exit::Denied, _)) => return,
                    Err(_) => RETRY.min(period),
                };
            }
        })?;
        Ok(Self { stopped })
    }

    /// Stops the renewals, so that the lease expires at the end of its ttl.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}
