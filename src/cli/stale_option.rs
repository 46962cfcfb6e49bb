//! `--stale`: a stale read. A node answers at once with its local state, however old that is,
//! without contacting another node, and so even without a majority.

use super::credential_options::ServerKeyArgs;
use super::exit::CliResult;
use super::mount_client::{PAGE, show_place};
use super::output;
use super::server_options;
use crate::engine::{ClientId, LockName};
use crate::time::Span;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::fmt::Display;

/// Timeout of a stale read: a node answers it without waiting for another node.
const PATIENCE: Span = Span::from_secs(2);

/// The servers to which stale reads are sent; the first that answers is used.
pub(super) struct StaleServers<'a> {
    pub(super) servers: String,
    pub(super) key: &'a ServerKeyArgs,
    /// The client whose own queue place the displayed status shows.
    pub(super) client: ClientId,
}

/// The result of a stale read, with the server that answered and the maximum age.
pub(super) struct StaleAnswer<T> {
    server: String,
    age_ms: Option<u64>,
    pub(super) it: T,
}

impl StaleServers<'_> {
    /// Returns the status of a lock by a stale read.
    pub(super) fn status(&self, name: &LockName) -> CliResult<StaleAnswer<Value>> {
        let name = encoded(name);
        let (server, mut it) = self.ask(&format!("/locks/{name}?consistency=stale"))?;
        show_place(&mut it, &self.client.as_str().into());
        Ok(StaleAnswer { server, age_ms: it["age_ms"].as_u64(), it })
    }

    /// Returns the statuses of all locks whose names begin with `prefix`, by a stale read.
    pub(super) fn list(&self, prefix: &str) -> CliResult<StaleAnswer<Vec<Value>>> {
        let (prefix, mut all, mut after) = (encoded(&prefix), Vec::new(), String::new());
        let query = format!("/locks?consistency=stale&limit={PAGE}&prefix={prefix}");
        loop {
            let (server, mut page) = self.ask(&format!("{query}{after}"))?;
            let age = page["age_ms"].take();
            for mut status in page["locks"].as_array_mut().into_iter().flat_map(std::mem::take) {
                show_place(&mut status, &self.client.as_str().into());
                status["age_ms"] = age.clone();
                all.push(status);
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", encoded(&next)),
                None => return Ok(StaleAnswer { server, age_ms: age.as_u64(), it: all }),
            }
        }
    }

    fn ask(&self, path: &str) -> CliResult<(String, Value)> {
        server_options::ask_first(&self.servers, self.key, "GET", path, PATIENCE)
    }
}

impl<T> StaleAnswer<T> {
    /// Prints how old the result of the stale read may be.
    pub(super) fn warn(&self) {
        let server = &self.server;
        match self.age_ms.map(Span::from_millis) {
            Some(Span::ZERO) => output::say(&format!("this is what {server} knows")),
            Some(age) => output::say(&format!("this is what {server} knew {age} ago")),
            None => output::say(&format!(
                "this is what {server} knew when it had contact to a majority last, and it does \
                 not know when that was"
            )),
        }
    }
}

fn encoded(text: &impl Display) -> String {
    utf8_percent_encode(&text.to_string(), NON_ALPHANUMERIC).to_string()
}
