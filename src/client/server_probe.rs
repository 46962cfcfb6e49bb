//! One look at a server, as `doctor` takes it: how far one gets, and what it says of the time.

use super::http_transport::{Connection, Http, HttpTarget, runtime};
use super::transport::{ServerConnection, TransportError};
use crate::net::http_connection::with_causes;
use crate::service::RttSample;
use crate::service::batch_messages::{BatchItem, RequestBatch, decode_told, encode_batch};
use crate::time::{Span, Wall, boot_now};
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How long each step may take: a person who waits longer thinks that it hangs.
const PATIENCE: Span = Span::from_secs(2);

/// Requests, of which the fastest counts: the first ones warm the connection.
const LOOKS: usize = 5;

/// How far one got, and why not further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stuck {
    /// There is no connection.
    Unreachable(String),
    /// The TLS handshake failed: one side does not trust the other's certificate.
    Untrusted(String),
    /// It does not let us in.
    Denied(String),
    /// It is no server of this version.
    Foreign(String),
    /// It takes connections, and gives no answer.
    Silent(String),
}

/// Looks at a server; asks it for nothing but the time.
pub fn probe(server: &Http) -> Result<RttSample, Stuck> {
    let runtime = runtime().map_err(|trouble| Stuck::Unreachable(trouble.to_string()))?;
    let mut connection = connect(runtime, &server.0)?;
    let ask = encode_batch(&RequestBatch {
        engine: 0,
        from: 0,
        number: 0,
        session: None,
        asks: vec![BatchItem::Now],
    });
    let mut heard: Option<RttSample> = None;
    for _ in 0..LOOKS {
        let asked_at = boot_now();
        let told = connection.ask(&ask, PATIENCE).map_err(|trouble| match trouble {
            TransportError::Denied(why) => Stuck::Denied(why),
            TransportError::Foreign(why) | TransportError::Elsewhere(why) => Stuck::Foreign(why),
            // That is how TLS tells a client that its certificate is missing or unknown.
            TransportError::Silent(why) if why.contains("alert") => Stuck::Denied(why),
            TransportError::Silent(_) | TransportError::Late => Stuck::Silent(trouble.to_string()),
        })?;
        let (round_trip, here) = (boot_now().since(asked_at), Wall::now());
        let told = decode_told(&told).map_err(|error| Stuck::Foreign(error.to_string()))?;
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
