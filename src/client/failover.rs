//! Failover between the nodes of one cluster, of which any may be asked: a client goes on to the
//! next node when one is down or on the other side of a partition. One URL is enough to begin with:
//! its server tells the URLs of the others.
//!
//! All threads of a door ask the same one, and stay with it while it answers. When it does not,
//! or says that it can't, they go on to the next. Whether the next is of the same cluster is the
//! hub's to know: a request says which engine it is for, and another one does not take it.

use super::transport::{FrameStream, ServerConnection, Transport, TransportError};
use crate::time::{Span, boot_now};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A server that has not answered by then is passed over. On a network of this size answers come
/// in a tenth of it, and the door's own deadline has room for three more tries.
const TRY_FIRST: Span = Span::from_millis(300);

/// When none of them has answered, all may be far away: then each is given twice as long as
/// before, up to this.
const TRY_MAX: Span = Span::from_millis(1_000);

/// Servers that one door knows: five nodes and their successors.
pub const SERVERS_MAX: usize = 16;

/// Makes a server of the URL of a node, if that may be asked; see [`Failover::learning`].
pub type MakeServer = Box<dyn Fn(&str) -> Option<Arc<dyn Transport>> + Send + Sync>;

/// Several servers.
pub struct Failover(Arc<FailoverState>);

struct FailoverState {
    servers: RwLock<Vec<Arc<dyn Transport>>>,
    /// The names of those that were given, for people.
    name: String,
    /// Which one is asked: its index, and above that how often another one was chosen.
    at: AtomicUsize,
    /// It is the only one: its engine has no name by which another could be known as the same.
    alone: AtomicBool,
    /// How long one is waited for.
    try_ms: AtomicU64,
    /// How to ask the other nodes of the cluster.
    make: Option<MakeServer>,
}

/// Bits of [`FailoverState::at`] that are the index.
const INDEX_BITS: u32 = 8;
const _: () = assert!(SERVERS_MAX <= 1 << INDEX_BITS, "each server has an index");

impl Failover {
    /// These servers, the first of which is asked first.
    pub fn new(servers: Vec<Arc<dyn Transport>>) -> Self {
        Self::made(servers, None)
    }

    /// The same, and the other nodes of their cluster as soon as one of them tells their URLs.
    pub fn learning(servers: Vec<Arc<dyn Transport>>, make: MakeServer) -> Self {
        Self::made(servers, Some(make))
    }

    fn made(servers: Vec<Arc<dyn Transport>>, make: Option<MakeServer>) -> Self {
        assert!(!servers.is_empty(), "there is somebody to ask");
        let names: Vec<_> = servers.iter().map(|server| server.name()).collect();
        let name = names.join(",");
        let (at, alone) = (AtomicUsize::new(0), AtomicBool::new(false));
        let try_ms = AtomicU64::new(TRY_FIRST.as_millis());
        let servers = RwLock::new(servers);
        Self(Arc::new(FailoverState { servers, name, at, alone, try_ms, make }))
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

    /// Adds the nodes of the cluster that are not known yet.
    fn learn(&self, urls: &[String]) {
        let Some(make) = &self.make else { return };
        for url in urls {
            let is_known = |server: &Arc<dyn Transport>| server.name() == url.trim_end_matches('/');
            let mut servers = self.servers.write();
            if servers.len() < SERVERS_MAX
                && !servers.iter().any(is_known)
                && let Some(server) = make(url)
            {
                log::info!("{}: {url} is of the same cluster, and asked when need be", self.name);
                servers.push(server);
            }
        }
    }

    fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    /// How long one is waited for.
    fn try_max(&self) -> Span {
        Span::from_millis(self.try_ms.load(Ordering::Relaxed))
    }

    /// Another one is asked from now on, unless that has been decided already.
    fn pass_over(&self, at: usize, why: &TransportError) {
        if self.is_alone() {
            return;
        }
        let (chosen, index) = ((at >> INDEX_BITS) + 1, (Self::index(at) + 1) % self.count());
        let next = (chosen << INDEX_BITS) | index;
        let moved = self.at.compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire);
        if moved.is_ok() && self.count() > 1 {
            let (from, to) = (self.server(at), self.server(next));
            let (from, to) = (from.name(), to.name());
            log::info!("{from} is passed over ({why}); {to} is asked next");
        }
    }

    /// Tries one after the other, each once, until one gives an answer.
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
                // It is busy with the very same request: to be asked again, and nobody else.
                Err(TransportError::Late) => return Err(TransportError::Late),
                Err(trouble) => {
                    self.pass_over(at, &trouble);
                    worst = Some(worse(worst, trouble));
                }
                done @ Ok(_) => return done,
            }
        }
        let longer = (try_max + try_max).min(TRY_MAX);
        self.try_ms.store(longer.as_millis(), Ordering::Relaxed);
        match worst {
            // Not all have been asked: ours may be among the others.
            Some(TransportError::Elsewhere(why)) if !tried_all => Err(TransportError::Silent(why)),
            Some(trouble) => Err(trouble),
            None => Err(TransportError::Silent("no answer in time".to_owned())),
        }
    }
}

/// Which of two troubles is told. That one is away may pass; only if all are of another engine is
/// ours gone for good.
fn worse(before: Option<TransportError>, now: TransportError) -> TransportError {
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
        start: u64,
        since: u64,
        patience: Span,
    ) -> Result<Box<dyn FrameStream>, TransportError> {
        // The one that is asked, or events would be ahead of answers, or behind.
        let at = self.0.at();
        let is_one = self.0.is_alone() || self.0.count() == 1;
        let patience = if is_one { patience } else { patience.min(self.0.try_max()) };
        match self.0.server(at).follow(start, since, patience) {
            Ok(stream) => Ok(Box::new(FailoverStream { shared: Arc::clone(&self.0), at, stream })),
            Err(trouble) => {
                self.0.pass_over(at, &trouble);
                Err(trouble)
            }
        }
    }

    fn is_several(&self) -> bool {
        self.0.count() > 1
    }

    fn learn(&self, urls: &[String]) {
        self.0.learn(urls);
    }

    fn pass_over(&self, why: &TransportError) {
        self.0.pass_over(self.0.at(), why);
    }
}

/// A connection to each, made when it is needed.
struct FailoverConnection {
    shared: Arc<FailoverState>,
    lines: Vec<Box<dyn ServerConnection>>,
    /// The server that has answered last.
    answered: usize,
}

impl ServerConnection for FailoverConnection {
    fn ask(&mut self, batch: &[u8], patience: Span) -> Result<Vec<u8>, TransportError> {
        let (shared, lines) = (Arc::clone(&self.shared), &mut self.lines);
        let (at, told) = shared.each(patience, |at, patience| {
            while lines.len() <= FailoverState::index(at) {
                lines.push(shared.server(lines.len()).line());
            }
            lines[FailoverState::index(at)].ask(batch, patience).map(|told| (at, told))
        })?;
        self.answered = at;
        Ok(told)
    }

    fn pass_over(&mut self, why: &TransportError) {
        self.shared.pass_over(self.answered, why);
    }

    fn stay(&mut self) {
        self.shared.at.store(self.answered, Ordering::Release);
        self.shared.alone.store(true, Ordering::Release);
    }
}

/// The events of one of them.
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
        if let Err(trouble) = &read {
            self.shared.pass_over(self.at, trouble);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_if_all_are_of_another_engine_is_ours_gone() {
        let silent = || TransportError::Silent("away".to_owned());
        let denied = || TransportError::Denied("no".to_owned());
        let other = || TransportError::Elsewhere("another".to_owned());
        for (troubles, told) in [
            (vec![other(), other()], other()),
            (vec![other(), silent()], silent()),
            (vec![silent(), other()], silent()),
            (vec![denied(), other()], denied()),
            (vec![denied(), silent(), other()], silent()),
        ] {
            let all = troubles.into_iter().fold(None, |before, now| Some(worse(before, now)));
            assert_eq!(all, Some(told));
        }
    }
}
