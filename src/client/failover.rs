//! Failover between the nodes of one cluster, any of which can serve a request: a client goes on to
//! the next node when one is down or on the other side of a partition. One URL is enough to start:
//! its server reports the URLs of the others.
//!
//! All threads of a client use the same server as long as it answers. When it does not answer, or
//! reports that it cannot serve a request, they all go on to the next. Each request names the
//! engine that it is for, and a server of another engine refuses it, so this module need not know
//! whether the next server belongs to the same cluster.

use super::http_transport::{ServerAccess, Unusable};
use crate::client::http_transport::{
    FrameStream, ServerConnection, StreamPosition, Transport, TransportError,
};
use crate::service::batch::batch_messages::{BatchResponse, RequestBatch};
use crate::time::{Span, boot_now};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The first timeout of a request to one server, after which the client tries the next server. On a
/// typical network a response takes a tenth of this time, and the client's own deadline has room
/// for three more tries.
const TRY_FIRST: Span = Span::from_millis(300);

/// The upper bound of the timeout per server, which doubles whenever no server has answered, since
/// all of them may be slow to reach.
const TRY_MAX: Span = Span::from_millis(1_000);

/// The maximum number of servers that one client knows: five nodes and the nodes that replace them.
pub const SERVERS_MAX: usize = 16;

/// Returns the transport for the URL of a node, if the client may use it: see
/// [`Failover::learning`].
pub type MakeServer = Box<dyn Fn(&str) -> Option<Arc<dyn Transport>> + Send + Sync>;

/// A transport over several servers, of which one is in use at a time.
pub struct Failover(Arc<FailoverState>);

struct FailoverState {
    servers: RwLock<Vec<Arc<dyn Transport>>>,
    /// The names of the configured servers, to be shown to users.
    name: String,
    /// The server in use: its index in the low bits, and above them the number of failovers.
    at: AtomicUsize,
    /// Whether failover is off, because the engine of the server has no id by which another server
    /// could be recognized as one of the same cluster.
    alone: AtomicBool,
    /// The timeout per server, in milliseconds.
    try_ms: AtomicU64,
    /// Creates the transports of other nodes of the cluster when their URLs become known.
    make: Option<MakeServer>,
    /// Why a server refused the credentials, if none has answered a request since.
    denied: Mutex<Option<String>>,
    /// The credentials that have replaced those with which `make` creates transports.
    renewed: RwLock<Option<ServerAccess>>,
}

/// The number of low bits of [`FailoverState::at`] that hold the index of the server in use.
const INDEX_BITS: u32 = 8;
const _: () = assert!(SERVERS_MAX <= 1 << INDEX_BITS, "each server has an index");

impl Failover {
    /// Returns a transport over `servers`, the first of which is tried first.
    pub fn new(servers: Vec<Arc<dyn Transport>>) -> Self {
        Self::made(servers, None)
    }

    /// Returns a transport over `servers` that adds the other nodes of their cluster as soon as one
    /// of them reports their URLs.
    pub fn learning(servers: Vec<Arc<dyn Transport>>, make: MakeServer) -> Self {
        Self::made(servers, Some(make))
    }

    fn made(servers: Vec<Arc<dyn Transport>>, make: Option<MakeServer>) -> Self {
        assert!(!servers.is_empty(), "there is somebody to ask");
        let names: Vec<_> = servers.iter().map(|server| server.name()).collect();
        let name = names.join(",");
        let (at, alone) = (AtomicUsize::new(0), AtomicBool::new(false));
        let try_ms = AtomicU64::new(TRY_FIRST.as_millis());
        let (servers, renewed) = (RwLock::new(servers), RwLock::default());
        let denied = Mutex::default();
        Self(Arc::new(FailoverState { servers, name, at, alone, try_ms, make, denied, renewed }))
    }
}

impl FailoverState {
    fn at(&self) -> usize {
        self.at.load(Ordering::Acquire)
    }

    const fn index(at: usize) -> usize {
        at & ((1 << INDEX_BITS) - 1)
    }

    fn server(&self, at: usize) -> Arc<dyn Transport> {
        Arc::clone(&self.servers.read()[Self::index(at)])
    }

    fn count(&self) -> usize {
        self.servers.read().len()
    }

    /// Adds a transport for each URL in `urls` that has none yet, up to [`SERVERS_MAX`] servers.
    fn learn(&self, urls: &[String]) {
        let Some(make) = &self.make else { return };
        for url in urls {
            let is_known = |server: &Arc<dyn Transport>| server.name() == url.trim_end_matches('/');
            let mut servers = self.servers.write();
            if servers.len() < SERVERS_MAX
                && !servers.iter().any(is_known)
                && let Some(server) = make(url)
            {
                let renewed = self.renewed.read();
                if let Some(Err(why)) = renewed.as_ref().map(|access| server.renew_keys(access)) {
                    log::warn!("{url} is not used for failover: {why}");
                    continue;
                }
                log::info!(
                    "{}: {url} belongs to the same cluster and is used for failover",
                    self.name
                );
                servers.push(server);
            }
        }
    }

    fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    /// Returns the timeout per server.
    fn try_max(&self) -> Span {
        Span::from_millis(self.try_ms.load(Ordering::Relaxed))
    }

    /// Fails over from the server `at` to the next one, unless another thread has done so already.
    fn pass_over(&self, at: usize, why: &TransportError) {
        if let TransportError::Denied(why) = why {
            *self.denied.lock() = Some(why.clone());
        }
        if self.is_alone() {
            return;
        }
        let (chosen, index) = ((at >> INDEX_BITS) + 1, (Self::index(at) + 1) % self.count());
        let next = (chosen << INDEX_BITS) | index;
        let moved = self.at.compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire);
        if moved.is_ok() && self.count() > 1 {
            let (from, to) = (self.server(at), self.server(next));
            let (from, to) = (from.name(), to.name());
            log::info!("failover from {from} to {to}: {why}");
        }
    }

    /// Tries each server once, until one answers.
    fn each<T>(
        &self,
        patience: Span,
        mut ask: impl FnMut(usize, Span) -> Result<T, TransportError>,
    ) -> Result<T, TransportError> {
        let until = boot_now() + patience;
        let mut worst: Option<TransportError> = None;
        let count = if self.is_alone() { 1 } else { self.count() };
        let (try_max, mut tried_all) = (self.try_max(), true);
        for tried in 1..=count {
            let at = self.at();
            let left = until.since(boot_now());
            if left == Span::ZERO && tried > 1 {
                tried_all = false;
                break;
            }
            let is_last = tried == count;
            match ask(at, if is_last { left } else { left.min(try_max) }) {
                Err(error) => {
                    self.pass_over(at, &error);
                    worst = Some(worse(worst, error));
                }
                done @ Ok(_) => {
                    *self.denied.lock() = None;
                    return done;
                }
            }
        }
        let longer = (try_max + try_max).min(TRY_MAX);
        self.try_ms.store(longer.as_millis(), Ordering::Relaxed);
        match worst {
            // The deadline passed before all servers were tried. One of the servers that were not
            // tried may have the engine that the client uses, so the error is that of an
            // unreachable server.
            Some(TransportError::Elsewhere(why)) if !tried_all => Err(TransportError::Silent(why)),
            Some(error) => Err(error),
            None => Err(TransportError::Silent("no answer in time".to_owned())),
        }
    }
}

/// Returns which of two errors to report. An unreachable server may come back; only if every server
/// has another engine is the engine in use gone for good.
pub(super) fn worse(before: Option<TransportError>, now: TransportError) -> TransportError {
    match (before, now) {
        (None | Some(TransportError::Elsewhere(_)), now)
        | (Some(_), now @ TransportError::Silent(_)) => now,
        (Some(before), _) => before,
    }
}

impl Transport for Failover {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn line(&self) -> Box<dyn ServerConnection> {
        Box::new(FailoverConnection { shared: Arc::clone(&self.0), lines: Vec::new(), answered: 0 })
    }

    fn follow(
        &self,
        from: &StreamPosition,
        patience: Span,
    ) -> Result<Box<dyn FrameStream>, TransportError> {
        // The events come from the server that answers requests: those of another server could be
        // ahead of the answers, or behind them.
        let at = self.0.at();
        let is_one = self.0.is_alone() || self.0.count() == 1;
        let patience = if is_one { patience } else { patience.min(self.0.try_max()) };
        match self.0.server(at).follow(from, patience) {
            Ok(stream) => Ok(Box::new(FailoverStream { shared: Arc::clone(&self.0), at, stream })),
            Err(error) => {
                self.0.pass_over(at, &error);
                Err(error)
            }
        }
    }

    fn is_several(&self) -> bool {
        self.0.count() > 1
    }

    fn denial(&self) -> Option<String> {
        self.0.denied.lock().clone()
    }

    fn learn(&self, urls: &[String]) {
        self.0.learn(urls);
    }

    fn pass_over(&self, why: &TransportError) {
        self.0.pass_over(self.0.at(), why);
    }

    fn renew_keys(&self, access: &ServerAccess) -> Result<(), Unusable> {
        let servers = self.0.servers.write();
        servers.iter().try_for_each(|server| server.renew_keys(access))?;
        *self.0.renewed.write() = Some(access.clone());
        Ok(())
    }
}

/// Connections to the servers, each opened when it is first needed.
struct FailoverConnection {
    shared: Arc<FailoverState>,
    lines: Vec<Box<dyn ServerConnection>>,
    /// The position of the server that answered last, as in [`FailoverState::at`].
    answered: usize,
}

impl ServerConnection for FailoverConnection {
    fn send_batch(
        &mut self,
        batch: &RequestBatch,
        patience: Span,
    ) -> Result<BatchResponse, TransportError> {
        let (shared, lines) = (Arc::clone(&self.shared), &mut self.lines);
        let (at, response) = shared.each(patience, |at, patience| {
            while lines.len() <= FailoverState::index(at) {
                lines.push(shared.server(lines.len()).line());
            }
            lines[FailoverState::index(at)]
                .send_batch(batch, patience)
                .map(|response| (at, response))
        })?;
        self.answered = at;
        Ok(response)
    }

    fn pass_over(&mut self, why: &TransportError) {
        self.shared.pass_over(self.answered, why);
    }

    fn stay(&mut self) {
        self.shared.at.store(self.answered, Ordering::Release);
        self.shared.alone.store(true, Ordering::Release);
    }
}

/// The event stream of one of the servers.
struct FailoverStream {
    shared: Arc<FailoverState>,
    at: usize,
    stream: Box<dyn FrameStream>,
}

impl FrameStream for FailoverStream {
    fn read(&mut self, bytes: &mut Vec<u8>, patience: Span) -> Result<(), TransportError> {
        if self.shared.at() != self.at {
            return Err(TransportError::Silent("another server is asked now".to_owned()));
        }
        let read = self.stream.read(bytes, patience);
        if let Err(error) = &read {
            self.shared.pass_over(self.at, error);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::http_transport::{Http, ServerAccess};

    #[test]
    fn the_engine_is_gone_only_if_every_server_has_another_one() {
        let silent = || TransportError::Silent("away".to_owned());
        let denied = || TransportError::Denied("no".to_owned());
        let other = || TransportError::Elsewhere("another".to_owned());
        for (errors, response) in [
            (vec![other(), other()], other()),
            (vec![other(), silent()], silent()),
            (vec![silent(), other()], silent()),
            (vec![denied(), other()], denied()),
            (vec![denied(), silent(), other()], silent()),
        ] {
            let all = errors.into_iter().fold(None, |before, now| Some(worse(before, now)));
            assert_eq!(all, Some(response));
        }
    }

    #[test]
    fn a_client_learns_a_limited_number_of_servers() {
        let server = |url: &str| -> Option<Arc<dyn Transport>> {
            let access = ServerAccess { url: url.to_owned(), ..ServerAccess::default() };
            Http::new(&access).ok().map(|http| Arc::new(http) as _)
        };
        let first = server("http://node0:8080").expect("a URL");
        let failover = Failover::learning(vec![first], Box::new(server));
        let urls: Vec<_> = (0..=SERVERS_MAX).map(|n| format!("http://node{n}:8080")).collect();
        failover.0.learn(&urls);
        assert_eq!(failover.0.count(), SERVERS_MAX);
    }
}
