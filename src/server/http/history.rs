//! Recent events, kept for later queries: the tenures that ended within the last hour, for the
//! chart of the status page, and the leases that each session has lost since its last keep-alive. A
//! tenure is the time from the grant of a lock to a client until the client loses or releases it.

use crate::engine::{ClientId, Event, EventKind, LockName, SessionId, TenureEnd, Token};
use crate::service::LockService;
use crate::service::event_log::EventWatch;
use crate::time::{Span, Time};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// How long a tenure (one client's hold of a lock, from the grant to its end) stays in the history
/// after its end.
pub(super) const KEPT: Span = Span::from_secs(3_600);

/// Maximum number of ended tenures in the history, about 500 KB, and 4 MB if each was ended by a
/// steal with the longest reason: a chart could not show more.
const TENURES_MAX: usize = 4_096;

/// Maximum number of recorded lost leases of one session. A client that has lost more has to query
/// the session for the leases that it still has.
const LOSSES_MAX: usize = 1_000;

/// Maximum number of recorded lost leases of all sessions, at some 100 bytes each. Beyond it only
/// the first few losses of a session are recorded, so that no client fills the memory of the server
/// with sessions that it does not keep alive.
const LOSSES_OF_ALL_MAX: usize = 1 << 17;

/// The number of lost leases that are recorded for each session in any case.
const LOSSES_ALWAYS: usize = 4;

/// Maximum number of events that are read while the event log's mutex is held. Commands that append
/// events wait for that mutex.
const HISTORY_BATCH: usize = 512;

/// Number of new events after which the history fetches them at once. The event log keeps the last
/// 8,192 events, so it drops none before the history has fetched it, unless thousands come at once.
const FETCH_AFTER: usize = 1_024;

/// Interval at which the history fetches events while there are few. A query fetches all events
/// first, so its result is never out of date.
const FETCH_EVERY: Duration = Duration::from_millis(500);

/// Recently ended tenures, and the leases that sessions have lost.
pub(super) struct EventHistory {
    state: Mutex<HistoryState>,
    /// The number of notifications of new events since the last fetch.
    news: Arc<AtomicUsize>,
    many: Arc<Notify>,
}

/// The subscription to the event log, and the history built from its events.
struct HistoryState {
    watch: EventWatch,
    past: RecentPast,
}

/// The ended tenures, and the open sessions with their leases.
#[derive(Default)]
struct RecentPast {
    tenures: VecDeque<EndedTenure>,
    sessions: HashMap<SessionId, SessionLosses>,
    hanging: HashMap<Token, SessionId>,
    /// The number of recorded losses of all sessions.
    losses: usize,
}

/// A tenure that has ended: one client's hold of a lock, from the grant to its end.
#[derive(Debug, Clone)]
pub(super) struct EndedTenure {
    pub(super) name: LockName,
    pub(super) holder: ClientId,
    pub(super) token: Token,
    pub(super) held: Span,
    pub(super) ended_at: Time,
    pub(super) end: TenureEnd,
}

/// The leases that one session keeps alive, and those that it has lost.
struct SessionLosses {
    client: ClientId,
    hangs: HashSet<Token>,
    lost: Vec<(LockName, Token)>,
}

impl EventHistory {
    pub(super) fn new(locks: &Arc<dyn LockService>) -> Self {
        let (news, many) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let mut watch = locks.subscribe(None);
        let (counted, wake) = (Arc::clone(&news), Arc::clone(&many));
        watch.wake_by(Arc::new(move || {
            // The callback runs on the thread that appends an event. Waking another thread for each
            // event would cost more than the lock command that caused the event, so the callback
            // wakes one only after many events.
            if counted.fetch_add(1, Ordering::Relaxed) == FETCH_AFTER {
                wake.notify_one();
            }
        }));
        let state = Mutex::new(HistoryState { watch, past: RecentPast::default() });
        Self { state, news, many }
    }

    /// Fetches new events into the history, in an endless loop.
    pub(super) async fn keep(&self) {
        loop {
            // Whether a notification or the timeout has ended the wait does not matter: the loop
            // fetches in both cases.
            let _ = tokio::time::timeout(FETCH_EVERY, self.many.notified()).await;
            self.fetch(&mut self.state.lock());
        }
    }

    fn fetch(&self, state: &mut HistoryState) {
        if self.news.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let HistoryState { watch, past } = state;
        while watch.visit(HISTORY_BATCH, |_, event| past.learn(event)).more {}
    }

    /// Returns the tenures that ended within the last hour, oldest first.
    pub(super) fn tenures(&self, now: Time) -> Vec<EndedTenure> {
        let mut state = self.state.lock();
        self.fetch(&mut state);
        let since = now - KEPT;
        state.past.tenures.iter().filter(|tenure| tenure.ended_at >= since).cloned().collect()
    }

    /// Whether the last tenure of a lock was this one, and its client released it.
    pub(super) fn was_released(&self, name: &LockName, client: &ClientId, token: Token) -> bool {
        let mut state = self.state.lock();
        self.fetch(&mut state);
        let last = state.past.tenures.iter().rev().find(|tenure| tenure.name == *name);
        last.is_some_and(|last| {
            (&last.holder, last.token) == (client, token) && last.end == TenureEnd::Released
        })
    }

    /// Records an open session and its owner.
    pub(super) fn open(&self, id: SessionId, client: ClientId) {
        let bond = SessionLosses { client, hangs: HashSet::new(), lost: Vec::new() };
        self.state.lock().past.sessions.entry(id).or_insert(bond);
    }

    /// Returns the owner of a session, if this server knows the session.
    pub(super) fn client_of(&self, id: SessionId) -> Option<ClientId> {
        self.state.lock().past.sessions.get(&id).map(|bond| bond.client.clone())
    }

    /// Records that a session keeps a lease alive.
    pub(super) fn hang(&self, id: SessionId, token: Token) {
        let RecentPast { sessions, hanging, .. } = &mut self.state.lock().past;
        if let Some(bond) = sessions.get_mut(&id) {
            bond.hangs.insert(token);
            hanging.insert(token, id);
        }
    }

    /// Returns the leases that a session has lost since the previous call.
    pub(super) fn losses(&self, id: SessionId) -> Vec<(LockName, Token)> {
        let mut state = self.state.lock();
        self.fetch(&mut state);
        let bond = state.past.sessions.get_mut(&id);
        let lost = bond.map(|bond| std::mem::take(&mut bond.lost)).unwrap_or_default();
        state.past.losses -= lost.len();
        lost
    }
}

impl RecentPast {
    fn learn(&mut self, event: &Event) {
        match &event.what {
            EventKind::Ended { name, holder, token, held, end } => {
                let ended_at = event.at;
                self.end_hanging(name, *token, end);
                let (name, holder) = (name.clone(), holder.clone());
                self.end_tenure(EndedTenure {
                    name,
                    holder,
                    token: *token,
                    held: *held,
                    ended_at,
                    end: end.clone(),
                });
            }
            EventKind::SessionOver { session, .. } => {
                if let Some(bond) = self.sessions.remove(session) {
                    self.losses -= bond.lost.len();
                    bond.hangs.iter().for_each(|token| _ = self.hanging.remove(token));
                }
            }
            _ => {}
        }
    }

    fn end_tenure(&mut self, tenure: EndedTenure) {
        if self.tenures.len() == TENURES_MAX {
            self.tenures.pop_front();
        }
        self.tenures.push_back(tenure);
    }

    fn end_hanging(&mut self, name: &LockName, token: Token, end: &TenureEnd) {
        let Some(session) = self.hanging.remove(&token) else { return };
        let Some(bond) = self.sessions.get_mut(&session) else { return };
        bond.hangs.remove(&token);
        let is_loss = matches!(end, TenureEnd::Stolen { .. } | TenureEnd::Lapsed);
        let max = if self.losses < LOSSES_OF_ALL_MAX { LOSSES_MAX } else { LOSSES_ALWAYS };
        if is_loss && bond.lost.len() < max {
            bond.lost.push((name.clone(), token));
            self.losses += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SessionEnd;

    /// Returns the event that the lease of a lock with this token ended without a renewal.
    fn lapsed(token: u64) -> Event {
        let what = EventKind::Ended {
            name: LockName::parse(&format!("lock{token}")).expect("valid"),
            holder: ClientId::parse("a").expect("valid"),
            token: Token::named(token),
            held: Span::from_secs(1),
            end: TenureEnd::Lapsed,
        };
        Event { at: Time::ZERO, what }
    }

    #[test]
    fn the_oldest_tenures_and_the_last_losses_are_dropped() {
        let mut past = RecentPast::default();
        let (session, client) = (SessionId::named(1), ClientId::parse("a").expect("valid"));
        let hangs = (0..=TENURES_MAX as u64).map(Token::named);
        past.hanging = hangs.clone().map(|token| (token, session)).collect();
        let losses = SessionLosses { client, hangs: hangs.collect(), lost: vec![] };
        past.sessions.insert(session, losses);
        (0..=TENURES_MAX as u64).for_each(|token| past.learn(&lapsed(token)));
        assert_eq!(past.tenures.len(), TENURES_MAX);
        assert_eq!(past.tenures[0].token, Token::named(1), "the oldest one is gone");
        let lost = &past.sessions[&session].lost;
        assert_eq!(lost.len(), LOSSES_MAX);
        assert_eq!(lost[LOSSES_MAX - 1].1, Token::named(LOSSES_MAX as u64 - 1));
        assert!(past.hanging.is_empty());
        assert_eq!(past.losses, LOSSES_MAX);

        // All sessions together have lost too many leases, so only the first losses of another
        // session are recorded.
        past.losses = LOSSES_OF_ALL_MAX;
        let (other, client) = (SessionId::named(2), ClientId::parse("b").expect("valid"));
        let hangs = (10_000..10_010).map(Token::named);
        past.hanging = hangs.clone().map(|token| (token, other)).collect();
        let losses = SessionLosses { client, hangs: hangs.collect(), lost: vec![] };
        past.sessions.insert(other, losses);
        (10_000..10_010).for_each(|token| past.learn(&lapsed(token)));
        assert_eq!(past.sessions[&other].lost.len(), LOSSES_ALWAYS);
        for (session, end) in [(session, SessionEnd::Expired), (other, SessionEnd::Closed)] {
            let client = past.sessions[&session].client.clone();
            let what = EventKind::SessionOver { session, client, end };
            past.learn(&Event { at: Time::ZERO, what });
        }
        assert_eq!(past.losses, LOSSES_OF_ALL_MAX - LOSSES_MAX);
    }
}
