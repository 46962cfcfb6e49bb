//! The processes that made and last renewed the leases of a mount's files.
//!
//! A truncation (`: > NAME`, `truncate`, `open('w')`) is the heartbeat of some programs, and the
//! first half of `exec 9>NAME; flock 9` in others. The two look alike, so a truncation counts as a
//! renewal only if it comes from a process that uses the lease already, or from its login session.

use crate::engine::lease_terms::TTL_DEFAULT;
use crate::engine::{ClientId, EventKind, Lifetime, LockName, LockView, Tenure, TenureEnd, Token};
use crate::fuse::credentials::{Caller, Callers};
use crate::fuse::kernel::hash_maps::Named;
use crate::holder_id::Maker;
use crate::service::Locks;
use crate::service::event_log::EventWatch;
use crate::time::{Span, Time, boot_now};
use parking_lot::Mutex;
use std::sync::Arc;

/// The maximum number of leases whose users are remembered, at some 200 bytes each: more than one
/// machine renews by truncation. A lease beyond it is renewed all the same if its maker truncates
/// the file, but its loss is then not reported by a truncation.
const LEASES_MAX: usize = 1 << 14;
/// The maximum number of remembered leases of one lock, which bounds a look-up.
const LEASES_OF_LOCK_MAX: usize = 64;
/// The maximum number of events handled in one batch, which bounds how long the event log is
/// locked.
const EVENTS_MAX: usize = 256;

/// The relation of a process to the leases of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseUse {
    /// The process made or last renewed the lease with this token.
    ByProcess(Token),
    /// Another process of the same login session did.
    BySession(Token),
    /// The process made or last renewed a lease under this token, and has lost it.
    Lost(Token),
    /// The process has nothing to do with a lease of the lock.
    None,
}

/// The users of the leases of one mount.
pub(crate) struct LeaseUsers {
    service: Locks,
    callers: Arc<Callers>,
    known: Mutex<KnownLeases>,
}

#[derive(Default)]
struct KnownLeases {
    /// The subscription to lock events, which begins with the first remembered lease.
    watch: Option<EventWatch>,
    by_name: Named<LockName, Vec<KnownLease>>,
    count: usize,
    turns: u64,
}

/// A lease that was made or renewed through this mount. It is forgotten when it is released, and
/// remembered after it was lost.
struct KnownLease {
    token: Token,
    client: ClientId,
    /// The `holder_id` of the process that made the lease, and of the last one that renewed it.
    users: [Option<Arc<str>>; 2],
    ttl: Span,
    /// Until when a truncation fails again, after one has failed because the lease was lost.
    fails_until: Option<Time>,
    turn: u64,
}

impl LeaseUsers {
    /// Returns the users of the leases of a new mount: none yet.
    pub(crate) fn new(service: Locks, callers: Arc<Callers>) -> Self {
        Self { service, callers, known: Mutex::default() }
    }

    /// Returns the `holder_id` of the calling process.
    pub(crate) fn id_of(&self, caller: &Caller) -> Arc<str> {
        self.callers.holder_id(caller)
    }

    /// Records that the caller has made the lease of `name`. Leases of the lock that the process
    /// has lost before are forgotten.
    pub(crate) fn made(&self, caller: &Caller, name: &LockName, tenure: &Tenure) {
        let by = self.id_of(caller);
        let me = Maker::parse(&by);
        let mut known = self.known.lock();
        if known.watch.is_none() {
            known.watch = Some(self.service.subscribe(None));
        }
        known.catch_up();
        known.retain(name, |lease| {
            lease.client != caller.client || !me.is_some_and(|me| lease.is_used_by(me))
        });
        let users = [Some(by), None];
        known.insert(name, KnownLease::new(caller.client.clone(), users, tenure));
    }

    /// Records that the process with this `holder_id` has renewed the lease of `name`.
    pub(crate) fn renewed(&self, by: Arc<str>, client: &ClientId, name: &LockName, of: &Tenure) {
        let mut known = self.known.lock();
        if known.watch.is_none() {
            known.watch = Some(self.service.subscribe(None));
        }
        known.catch_up();
        let leases = known.by_name.get_mut(name);
        if let Some(lease) =
            leases.and_then(|leases| leases.iter_mut().find(|lease| lease.token == of.token))
        {
            lease.users[1] = Some(by);
            lease.ttl = ttl_of(of);
            return;
        }
        known.insert(name, KnownLease::new(client.clone(), [None, Some(by)], of));
    }

    /// Forgets a lease of `name` that was released or moved through this mount. The event that
    /// tells of it may arrive later.
    pub(crate) fn released(&self, name: &LockName, token: Option<Token>) {
        self.known.lock().retain(name, |lease| Some(lease.token) != token);
    }

    /// Forgets the leases of `name` that the calling process has made or lost, after an open file
    /// has taken the lock.
    pub(crate) fn locked(&self, caller: &Caller, name: &LockName) {
        let mut known = self.known.lock();
        if !known.by_name.contains_key(name) {
            return;
        }
        let Some(me) = Maker::parse(&self.id_of(caller)) else { return };
        known.retain(name, |lease| lease.client != caller.client || !lease.is_used_by(me));
    }

    /// Returns the relation of the caller to the leases of the lock whose state is `view`. A lost
    /// lease counts until the process takes the lock in another way, or truncates nothing for as
    /// long as its ttl.
    pub(crate) fn use_of(&self, caller: &Caller, view: &LockView) -> LeaseUse {
        let me = Maker::parse(&self.id_of(caller));
        let Some(me) = me.filter(|me| me.process.is_known()) else { return LeaseUse::None };
        let mut known = self.known.lock();
        known.catch_up();
        let KnownLeases { by_name, .. } = &mut *known;
        let remembered = by_name.get_mut(&view.name).map(Vec::as_mut_slice).unwrap_or_default();
        let mut by_session = None;
        let current = view.holders.iter().map(|holder| &holder.lease);
        for lease in current.clone().filter(|lease| lease.holder == caller.client) {
            let recorded = remembered.iter().filter(|known| known.token == lease.token);
            let maker = lease.details.holder_id().and_then(|id| Maker::parse(id));
            let users = recorded.flat_map(KnownLease::makers).chain(maker);
            for user in users {
                if user.is_same_process(me) {
                    return LeaseUse::ByProcess(lease.token);
                }
                if user.is_same_session(me) {
                    by_session = Some(lease.token);
                }
            }
        }
        let now = boot_now();
        let is_over = |token| current.clone().all(|lease| lease.token != token);
        let lost = remembered.iter_mut().filter(|lease| {
            lease.client == caller.client
                && is_over(lease.token)
                && lease.fails_until.is_none_or(|until| now < until)
                && lease.is_used_by(me)
        });
        if let Some(lost) = lost.max_by_key(|lease| lease.token) {
            lost.fails_until = Some(now + lost.ttl);
            return LeaseUse::Lost(lost.token);
        }
        by_session.map_or(LeaseUse::None, LeaseUse::BySession)
    }
}

impl KnownLeases {
    /// Forgets the leases whose clients have released or moved them since the last call.
    fn catch_up(&mut self) {
        loop {
            let Some(watch) = &mut self.watch else { return };
            let mut ended = Vec::new();
            let visit = watch.visit(EVENTS_MAX, |_, event| {
                let EventKind::Ended { name, token, end, .. } = &event.what else { return };
                if self.by_name.contains_key(name)
                    && !matches!(end, TenureEnd::Lapsed | TenureEnd::Stolen { .. })
                {
                    ended.push((name.clone(), *token));
                }
            });
            for (name, token) in ended {
                self.retain(&name, |lease| lease.token != token);
            }
            if !visit.more {
                return;
            }
        }
    }

    fn retain(&mut self, name: &LockName, keep: impl Fn(&KnownLease) -> bool) {
        let Some(leases) = self.by_name.get_mut(name) else { return };
        let before = leases.len();
        leases.retain(keep);
        self.count -= before - leases.len();
        if leases.is_empty() {
            self.by_name.remove(name);
        }
    }

    fn insert(&mut self, name: &LockName, lease: KnownLease) {
        if self.count >= LEASES_MAX {
            self.make_room(&lease.client);
        }
        self.turns += 1;
        let leases = self.by_name.entry(name.clone()).or_default();
        if leases.len() >= LEASES_OF_LOCK_MAX {
            leases.remove(0);
            self.count -= 1;
        }
        leases.push(KnownLease { turn: self.turns, ..lease });
        self.count += 1;
    }

    /// Forgets the oldest leases: those of `client` if it has more than half of all.
    fn make_room(&mut self, client: &ClientId) {
        let of_client = |lease: &&KnownLease| lease.client == *client;
        let only_own = self.by_name.values().flatten().filter(of_client).count() > LEASES_MAX / 2;
        let counts = |lease: &KnownLease| !only_own || lease.client == *client;
        let all = self.by_name.values().flatten().filter(|lease| counts(lease));
        let mut turns: Vec<u64> = all.map(|lease| lease.turn).collect();
        turns.sort_unstable();
        let Some(oldest) = turns.get(turns.len() / 4).copied() else { return };
        for leases in self.by_name.values_mut() {
            leases.retain(|lease| lease.turn > oldest || !counts(lease));
        }
        self.by_name.retain(|_, leases| !leases.is_empty());
        self.count = self.by_name.values().map(Vec::len).sum();
    }
}

impl KnownLease {
    fn new(client: ClientId, users: [Option<Arc<str>>; 2], of: &Tenure) -> Self {
        Self { token: of.token, client, users, ttl: ttl_of(of), fails_until: None, turn: 0 }
    }

    fn makers(&self) -> impl Iterator<Item = Maker> {
        self.users.iter().flatten().filter_map(|id| Maker::parse(id))
    }

    fn is_used_by(&self, me: Maker) -> bool {
        self.makers().any(|user| user.is_same_process(me))
    }
}

fn ttl_of(tenure: &Tenure) -> Span {
    match tenure.life {
        Lifetime::Own { ttl, .. } => ttl.span(),
        Lifetime::Session(_) => TTL_DEFAULT.span(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(client: &ClientId, token: u64) -> KnownLease {
        let (token, users) = (Token::named(token), [None, None]);
        let ttl = TTL_DEFAULT.span();
        KnownLease { token, client: client.clone(), users, ttl, fails_until: None, turn: 0 }
    }

    #[test]
    fn the_leases_whose_users_are_remembered_are_bounded() {
        let mut known = KnownLeases::default();
        let client = |text: &str| ClientId::parse(text).expect("valid");
        let (ann, bob) = (client("a:ann"), client("a:bob"));
        let name = |n: u64| LockName::parse(&format!("n{n}")).expect("valid");
        let of = |known: &KnownLeases, client: &ClientId| {
            known.by_name.values().flatten().filter(|lease| lease.client == *client).count()
        };
        for n in 0..1_000 {
            known.insert(&name(n), lease(&ann, n));
        }
        for n in 1_000..3 * LEASES_MAX as u64 {
            known.insert(&name(n), lease(&bob, n));
            assert!(known.count <= LEASES_MAX);
        }
        assert_eq!(known.count, of(&known, &ann) + of(&known, &bob));
        assert_eq!(of(&known, &ann), 1_000, "bob has forgotten only his own");
        for n in 0..1_000 {
            known.insert(&name(0), lease(&ann, n));
        }
        assert_eq!(known.by_name[&name(0)].len(), LEASES_OF_LOCK_MAX);
    }
}
