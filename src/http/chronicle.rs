//! What happened lately, kept for those who ask afterwards: tenures that ended within the last
//! hour, for the picture, and what was taken from a session since it was last kept alive.

use crate::engine::{ClientId, End, Event, LockName, SessionId, Token, What};
use crate::locks::Locks;
use crate::locks::feed::Watch;
use crate::time::{Span, Time};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// For how long a tenure is shown after its end.
pub(super) const KEPT: Span = Span::from_secs(3_600);

/// Tenures kept: more would not be seen apart in a picture. About 500 KB.
const TENURES_MAX: usize = 4_096;

/// Losses kept for a session that is not kept alive: after so many it asks what it still has.
const LOSSES_MAX: usize = 1_000;

/// Events taken at a time.
const BATCH: usize = 512;

/// The feed keeps 8,192 events: this many are fetched before it forgets some.
const FETCH_AFTER: usize = 1_024;

/// When little happens it is fetched this often: nobody waits for it.
const FETCH_EVERY: Duration = Duration::from_millis(500);

/// What is kept.
pub(super) struct Chronicle {
    state: Mutex<State>,
    /// Changes since the last fetch.
    news: Arc<AtomicUsize>,
    many: Arc<Notify>,
}

struct State {
    watch: Watch,
    tenures: VecDeque<Tenure>,
    sessions: HashMap<SessionId, Bond>,
    hanging: HashMap<Token, SessionId>,
}

/// A tenure that is over.
#[derive(Debug, Clone)]
pub(super) struct Tenure {
    pub(super) name: LockName,
    pub(super) holder: ClientId,
    pub(super) token: Token,
    pub(super) held: Span,
    pub(super) ended_at: Time,
    pub(super) end: &'static str,
}

/// What is known of a session that was opened or used here.
struct Bond {
    client: ClientId,
    lost: Vec<(LockName, Token)>,
}

impl Chronicle {
    pub(super) fn new(locks: &Locks) -> Self {
        let (news, many) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let mut watch = locks.watch(None);
        let (counted, wake) = (Arc::clone(&news), Arc::clone(&many));
        watch.wake_by(Arc::new(move || {
            // Waking a thread for each change would cost whoever causes it more than the change.
            if counted.fetch_add(1, Ordering::Relaxed) == FETCH_AFTER {
                wake.notify_one();
            }
        }));
        let (tenures, sessions, hanging) = <_>::default();
        Self { state: Mutex::new(State { watch, tenures, sessions, hanging }), news, many }
    }

    /// Fetches what happens, for ever.
    pub(super) async fn keep(&self) {
        loop {
            // Whichever comes first.
            let _ = tokio::time::timeout(FETCH_EVERY, self.many.notified()).await;
            self.fetch(&mut self.state.lock());
        }
    }

    fn fetch(&self, state: &mut State) {
        if self.news.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        loop {
            let batch = state.watch.take(BATCH);
            for (_, event) in &batch.events {
                state.learn(event);
            }
            if batch.events.len() < BATCH {
                return;
            }
        }
    }

    /// The tenures that ended within the last hour, oldest first.
    pub(super) fn tenures(&self, now: Time) -> Vec<Tenure> {
        let mut state = self.state.lock();
        self.fetch(&mut state);
        let since = now - KEPT;
        state.tenures.iter().filter(|tenure| tenure.ended_at >= since).cloned().collect()
    }

    /// A session is open.
    pub(super) fn open(&self, id: SessionId, client: ClientId) {
        let lost = Vec::new();
        self.state.lock().sessions.entry(id).or_insert(Bond { client, lost });
    }

    /// Whose a session is, if that is known here.
    pub(super) fn client_of(&self, id: SessionId) -> Option<ClientId> {
        self.state.lock().sessions.get(&id).map(|bond| bond.client.clone())
    }

    /// A lease hangs on a session from now on.
    pub(super) fn hang(&self, id: SessionId, token: Token) {
        self.state.lock().hanging.insert(token, id);
    }

    /// What was taken from a session since this was asked last.
    pub(super) fn losses(&self, id: SessionId) -> Vec<(LockName, Token)> {
        let mut state = self.state.lock();
        self.fetch(&mut state);
        state.sessions.get_mut(&id).map(|bond| std::mem::take(&mut bond.lost)).unwrap_or_default()
    }
}

impl State {
    fn learn(&mut self, event: &Event) {
        match &event.what {
            What::Ended { name, holder, token, held, end } => {
                let ended_at = event.at;
                self.end_hanging(name, *token, end);
                let (name, holder) = (name.clone(), holder.clone());
                self.end_tenure(Tenure {
                    name,
                    holder,
                    token: *token,
                    held: *held,
                    ended_at,
                    end: word_of(end),
                });
            }
            What::SessionOver { session, .. } => {
                self.sessions.remove(session);
                self.hanging.retain(|_, hangs_on| hangs_on != session);
            }
            _ => {}
        }
    }

    fn end_tenure(&mut self, tenure: Tenure) {
        if self.tenures.len() == TENURES_MAX {
            self.tenures.pop_front();
        }
        self.tenures.push_back(tenure);
    }

    fn end_hanging(&mut self, name: &LockName, token: Token, end: &End) {
        let Some(session) = self.hanging.remove(&token) else { return };
        let Some(bond) = self.sessions.get_mut(&session) else { return };
        let is_loss = matches!(end, End::Stolen { .. } | End::Lapsed);
        if is_loss && bond.lost.len() < LOSSES_MAX {
            bond.lost.push((name.clone(), token));
        }
    }
}

const fn word_of(end: &End) -> &'static str {
    match end {
        End::Released => "released",
        End::Lapsed => "lapsed",
        End::Moved { .. } => "moved",
        End::Replaced => "replaced",
        End::Stolen { .. } => "stolen",
    }
}
