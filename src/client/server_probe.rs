//! Probes a server, for `doctor`: how far a connection gets, and the time that the server reports.

use super::http_transport::{Connection, Http, HttpTarget, runtime};
use super::transport::{ServerConnection, TransportError};
use crate::net::http_connection::with_causes;
use crate::service::RttSample;
use crate::service::batch_messages::{BatchItem, RequestBatch};
use crate::time::{Span, Wall, boot_now};
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How long each step may take: after a longer time a user thinks that the program hangs.
const PATIENCE: Span = Span::from_secs(2);

/// The number of requests that measure the round trip, of which the fastest counts. The first ones
/// warm the connection.
const LOOKS: usize = 5;

/// The step at which a probe failed, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stuck {
    /// The TCP connection fails.
    Unreachable(String),
    /// The TLS handshake failed: one side does not trust the other's certificate.
    Untrusted(String),
    /// The server refuses the credentials.
    Denied(String),
    /// The peer is not a latchfs server of this version.
    Foreign(String),
    /// The server accepts connections, and does not answer.
    Silent(String),
}

/// Probes a server with requests for its time only.
pub fn probe(server: &Http) -> Result<RttSample, Stuck> {
    let runtime = runtime().map_err(|trouble| Stuck::Unreachable(trouble.to_string()))?;
    let mut connection = connect(runtime, &server.0)?;
    let ask = RequestBatch::repeatable(0, vec![BatchItem::Now]);
    let mut heard: Option<RttSample> = None;
    for _ in 0..LOOKS {
        let asked_at = boot_now();
        let told = connection.ask(&ask, PATIENCE).map_err(|trouble| match trouble {
            TransportError::Denied(why) => Stuck::Denied(why),
            TransportError::Foreign(why) | TransportError::Elsewhere(why) => Stuck::Foreign(why),
            TransportError::Silent(_) | TransportError::Late => Stuck::Silent(trouble.to_string()),
        })?;
        let (round_trip, here) = (boot_now().since(asked_at), Wall::now());
        if heard.is_none_or(|best| round_trip < best.round_trip) {
            heard = Some(RttSample::new(round_trip, told.stamp.wall, here));
        }
    }
    heard.ok_or_else(|| Stuck::Silent("it was not asked".to_owned()))
}

fn connect(runtime: Runtime, target: &Arc<HttpTarget>) -> Result<Connection, Stuck> {
    let patience = PATIENCE.as_duration();
    let in_time = |why: &str| format!("{why} within {PATIENCE}");
    let sender = runtime.block_on(async {
        let stream = match timeout(patience, target.reach()).await {
            Ok(reached) => reached.map_err(|error| Stuck::Unreachable(with_causes(&error)))?,
            Err(_) => return Err(Stuck::Unreachable(in_time("no connection"))),
        };
        match timeout(patience, target.speak(stream)).await {
            Ok(spoken) => spoken.map_err(|trouble| Stuck::Untrusted(trouble.to_string())),
            Err(_) => Err(Stuck::Untrusted(in_time("no TLS"))),
        }
    })?;
    let (target, runtime, sender) = (Arc::clone(target), Some(runtime), Some(sender));
    Ok(Connection { target, runtime, sender })
}
