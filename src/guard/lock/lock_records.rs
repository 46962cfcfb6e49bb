//! The tenures of a folder's lock as its guard knows them, for the lock record: asks the lock
//! service, remembers an expired tenure until the next one begins, and tells the lock service which
//! program has begun or renewed a tenure by a record.

use super::folder_lock::FolderLock;
use super::lock_record::{HolderProof, LockRecord};
use crate::engine::values::lease::TTL_DEFAULT;
use crate::engine::{
    Answer, ClientId, Ends, EventKind, Firm, LeaseKey, LockView, Op, Phase, Renew, TenureEnd, Token,
};
use crate::guard::shared_query::{Query, SharedQuery};
use crate::service::event_log::EventWatch;
use crate::service::{Retry, Unavailable};
use crate::time::{Span, Time, boot_now};
use common::task::spawn;
use parking_lot::Mutex;
use std::sync::Arc;

/// The prefix of the lock's name before the id of the folder.
const LOCK_NAME_PREFIX: &str = "folder-";
/// The maximum number of events handled at a time.
const EVENTS_AT_A_TIME: usize = 256;

/// A tenure as the lock service last showed it.
#[derive(Debug, Clone)]
struct SeenTenure {
    token: Token,
    seq: u64,
    holder: Arc<str>,
    proof: Option<HolderProof>,
    acquired_at: Time,
    renewed_at: Time,
    ends: Ends,
}

/// The tenure of which there is a record now.
#[derive(Debug, Clone)]
pub(crate) struct RecordedTenure {
    /// The record.
    pub(crate) record: LockRecord,
    /// The proof of the tenure's holder.
    pub(crate) proof: Option<HolderProof>,
    /// The token of the tenure.
    pub(crate) token: Token,
    /// Whether the lease is held, in its grace, or over.
    pub(crate) phase: Phase,
}

#[derive(Default)]
struct RecordState {
    watch: Option<EventWatch>,
    /// The last tenure that was seen.
    seen: Option<SeenTenure>,
    /// The end of the last tenure that has ended, and whether its lease had expired.
    ended: Option<(Token, bool)>,
    /// The expired tenure whose record its holder has removed.
    removed: Option<Token>,
}

/// The tenures of one folder's lock, for its record.
pub(crate) struct LockRecords {
    lock: Arc<FolderLock>,
    state: Mutex<RecordState>,
    requests: Arc<SharedQuery<Option<RecordedTenure>>>,
}

fn result_of(answer: Result<Answer, Unavailable>) -> Result<(), String> {
    match answer {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(refusal)) => Err(refusal.to_string()),
        Err(why) => Err(why.to_string()),
    }
}

impl SeenTenure {
    fn of(view: &LockView) -> Option<Self> {
        let holder = view.holder()?;
        let lease = &holder.lease;
        let id = lease.details.holder_id().cloned();
        Some(Self {
            token: lease.token,
            seq: view.previous.as_ref().map_or(lease.token.as_u64(), |previous| previous.seq),
            holder: id.unwrap_or_else(|| lease.holder.as_str().into()),
            proof: HolderProof::in_lease(lease.details.text()),
            acquired_at: lease.acquired_at,
            renewed_at: lease.renewed_at,
            ends: holder.ends,
        })
    }

    /// Returns how long a renewal lasts, and when the lease expires. An engine in this process
    /// keeps the lease as long as the process lives: then it is shown as one that was just renewed.
    fn terms(&self, now: Time) -> (Span, Time) {
        if self.ends.expires_at == Time::NEVER {
            return (TTL_DEFAULT.span(), now + TTL_DEFAULT.span());
        }
        (self.ends.ttl.span(), self.ends.expires_at)
    }
}

impl RecordState {
    /// Takes note of how tenures of the lock have ended.
    fn apply_events(&mut self, lock: &FolderLock) {
        let Some(watch) = &mut self.watch else { return };
        loop {
            let batch = watch.take(EVENTS_AT_A_TIME);
            if batch.has_gap() {
                // Events were lost, and the end of the tenure may be among them.
                self.ended = None;
            }
            for (_, event) in &batch.events {
                if let EventKind::Ended { name, token, end, .. } = &event.what
                    && name == lock.name()
                {
                    self.ended = Some((*token, *end == TenureEnd::Lapsed));
                }
            }
            if batch.events.is_empty() {
                return;
            }
        }
    }

    /// Returns the tenure of which there is a record at `now`, and the phase of its lease.
    fn recorded(&mut self, view: Option<&LockView>, now: Time) -> Option<(SeenTenure, Phase)> {
        if let Some(seen) = view.and_then(SeenTenure::of) {
            self.seen = Some(seen.clone());
            let phase = seen.ends.phase(now);
            let is_removed = phase != Phase::Held && self.removed == Some(seen.token);
            return (!is_removed).then_some((seen, phase));
        }
        let seen = self.seen.clone()?;
        let has_expired = now >= seen.ends.grace_until;
        let is_there = match self.ended {
            Some((token, has_lapsed)) if token == seen.token => has_lapsed,
            // No event has announced the end of the tenure. If the lock service does not answer,
            // the tenure may go on.
            _ => view.is_none() || has_expired,
        };
        let phase = if view.is_none() { seen.ends.phase(now) } else { Phase::Free };
        (is_there && self.removed != Some(seen.token)).then_some((seen, phase))
    }
}

impl LockRecords {
    /// Returns the records of a lock, about which nothing is known yet.
    pub(crate) fn new(lock: Arc<FolderLock>) -> Arc<Self> {
        let state = RecordState { watch: Some(lock.locks.subscribe(None)), ..Default::default() };
        Arc::new(Self { lock, state: Mutex::new(state), requests: Arc::default() })
    }

    /// Returns the name of the record.
    pub(crate) fn file_name(&self) -> String {
        format!("{}.lock", self.lock.name())
    }

    /// Asks of which tenure there is a record. Calls `then` with the answer; `None` if there is no
    /// record. If the lock service does not answer, that is what was last known. However many ask,
    /// one request is on its way: any user may look the record up as often as it likes. `then` must
    /// not block.
    pub(crate) fn request(
        self: &Arc<Self>,
        then: impl FnOnce(Option<RecordedTenure>) + Send + 'static,
    ) {
        let own = Arc::clone(self);
        let query: Query<_> = Arc::new(move |then| {
            let seen = Arc::clone(&own);
            let lock = &own.lock;
            let view = lock.locks.view(lock.name(), Retry::Never);
            spawn(async move {
                then(seen.recorded(view.await.ok().map(|seen| seen.view).as_ref()));
            });
        });
        self.requests.request(&query, Box::new(then));
    }

    fn recorded(&self, view: Option<&LockView>) -> Option<RecordedTenure> {
        let locks = &self.lock.locks;
        let now = view.map_or_else(|| locks.now(), |view| view.at);
        let mut state = self.state.lock();
        state.apply_events(&self.lock);
        let (seen, phase) = state.recorded(view, now)?;
        drop(state);
        let (ttl, expires_at) = seen.terms(now);
        let name = self.lock.name().to_string();
        let renewed_ago = now.since(seen.renewed_at);
        let record = LockRecord {
            engine: self.lock.engine_id(),
            folder: name.strip_prefix(LOCK_NAME_PREFIX).unwrap_or(&name).to_owned(),
            lock: name,
            holder: seen.holder.to_string(),
            proof: seen.proof.clone(),
            seq: seen.seq,
            token: seen.token.as_u64(),
            created: locks.wall(seen.acquired_at),
            renewed: locks.wall(seen.renewed_at),
            renewed_boot: (boot_now() - renewed_ago).since(Time::ZERO),
            expires: locks.wall(expires_at),
            expires_in: expires_at.since(now),
            ttl,
        };
        Some(RecordedTenure { record, proof: seen.proof, token: seen.token, phase })
    }

    /// Renews the tenure with this token for the program with this id, which proves by a record
    /// that it is the holder, or begins the tenure by it: the lease lasts for its whole duration
    /// from then on. Calls `then` with the answer, or with a sentence that says why the tenure is
    /// not renewed. `then` must not block.
    pub(crate) fn renew(
        self: &Arc<Self>,
        token: Token,
        proof: &HolderProof,
        holder_id: Arc<str>,
        then: impl FnOnce(Result<(), String>) + Send + 'static,
    ) {
        let (name, client) = (self.lock.name().clone(), self.lock.client().clone());
        let patch = proof.details(holder_id);
        let key = LeaseKey { name, client, token: Some(token) };
        let renew = Renew { key, term: None, firm: Firm::Keep, patch, acquires: false };
        let own = Arc::clone(self);
        // The lease of the folder lasts as long as the session of the guard.
        let keep_alive = Op::KeepAlive(self.lock.current_session());
        let kept = self.lock.locks.submit(keep_alive.into(), Retry::Never);
        spawn(async move {
            let mut done = result_of(kept.await);
            if done.is_ok() {
                let renew = Op::Renew(renew).into();
                done = result_of(own.lock.locks.submit(renew, Retry::Never).await);
            }
            then(done);
        });
    }

    /// Returns the client as which this machine holds the lock.
    pub(crate) fn client(&self) -> &ClientId {
        self.lock.client()
    }

    /// Takes note that the holder has removed the record of its expired tenure.
    pub(crate) fn remove(&self, token: Token) {
        self.state.lock().removed = Some(token);
    }

    /// Returns a sentence that says what to do if the clock of this machine is too wrong for a
    /// steal.
    pub(crate) fn refuses_steal(&self) -> Option<String> {
        self.lock.locks.connection()?.refuses_steal()
    }
}
