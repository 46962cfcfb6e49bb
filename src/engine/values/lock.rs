//! One lock: its leases and its wait queue.
//!
//! The locks that are held, by name, and the number of them whose names have several parts.
//!
//! Nearly every file system request needs to know whether a lock lies below a name. Most users have
//! no names with several parts, and then this number answers the question without a search.

use super::command::Acquire;
use super::details::{Details, Patch, TextPatch};
use super::lease::{Lease, LeaseTerms, Mode, Ownership, Seats, SessionId, Ticket, Token};
use super::name::{ClientId, LockName};
use crate::time::Time;
use crate::values::details::TEXT_BYTES_MAX;
use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, OccupiedEntry, VacantEntry};
use std::ops::Deref;
use std::sync::Arc;

/// A lock that is held or waited for. Any other lock is not stored at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Lock {
    pub(crate) tenancy: Tenancy,
    /// The waiters by ticket: the lowest is served first.
    pub(crate) line: WaitQueue,
}

/// The wait queue of a lock. Most locks have no waiters, and then the queue takes one word of
/// memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(clippy::box_collection)] // One word instead of three, a million times.
pub(crate) struct WaitQueue(Option<Box<BTreeMap<Ticket, QueuedWaiter>>>);

impl WaitQueue {
    pub(crate) fn insert(&mut self, ticket: Ticket, waiter: QueuedWaiter) {
        self.0.get_or_insert_default().insert(ticket, waiter);
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<QueuedWaiter> {
        let waiter = self.0.as_mut()?.remove(&ticket);
        // An empty queue is always `None`, never an empty map, so that equal queues compare equal.
        self.0.take_if(|line| line.is_empty());
        waiter
    }
}

impl Deref for WaitQueue {
    type Target = BTreeMap<Ticket, QueuedWaiter>;

    fn deref(&self) -> &Self::Target {
        static NOBODY: BTreeMap<Ticket, QueuedWaiter> = BTreeMap::new();
        self.0.as_deref().unwrap_or(&NOBODY)
    }
}

impl From<BTreeMap<Ticket, QueuedWaiter>> for WaitQueue {
    fn from(line: BTreeMap<Ticket, QueuedWaiter>) -> Self {
        Self((!line.is_empty()).then(|| Box::new(line)))
    }
}

/// The leases of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Tenancy {
    /// The lock has no lease. This occurs inside one command, between the end of one lease and the
    /// start of the next, and during the hold-off.
    #[default]
    Nobody,
    /// One exclusive lease.
    Exclusive(Lease),
    /// One or more shared leases, oldest first.
    Shared(Vec<Lease>),
    /// One or more leases, oldest first, at most one for each seat.
    Seats(Seats, Vec<Lease>),
}

/// A queued request, with the content that it had when it came in. It is granted when the lock is
/// available and no earlier waiter is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueuedWaiter {
    pub(crate) client: ClientId,
    pub(crate) hold: Ownership,
    pub(crate) mode: Mode,
    pub(crate) term: LeaseTerms,
    pub(crate) patch: Patch,
    pub(crate) since: Time,
    /// When the wait times out; `None` for a wait without a timeout.
    pub(crate) until: Option<Time>,
}

/// The parts of a request that decide whether it conflicts with the leases of a lock.
#[derive(Clone, Copy)]
pub(crate) struct LeaseRequest<'a> {
    /// The client that makes the request.
    pub(crate) client: &'a ClientId,
    /// The owner of the lease within the client: the client as a whole, one program or one open
    /// file.
    pub(crate) hold: Ownership,
    /// The requested mode: exclusive or shared.
    pub(crate) mode: Mode,
    /// The token of the lease that the open file takes over, if the request names one.
    pub(crate) takes_over: Option<Token>,
}

impl<'a> From<&'a Acquire> for LeaseRequest<'a> {
    fn from(ask: &'a Acquire) -> Self {
        let Acquire { client, hold, mode, takes_over, .. } = ask;
        Self { client, hold: *hold, mode: *mode, takes_over: *takes_over }
    }
}

impl Lock {
    pub(crate) fn leases(&self) -> &[Lease] {
        match &self.tenancy {
            Tenancy::Nobody => &[],
            Tenancy::Exclusive(lease) => std::slice::from_ref(lease),
            Tenancy::Shared(leases) | Tenancy::Seats(_, leases) => leases,
        }
    }

    pub(crate) fn leases_mut(&mut self) -> &mut [Lease] {
        match &mut self.tenancy {
            Tenancy::Nobody => &mut [],
            Tenancy::Exclusive(lease) => std::slice::from_mut(lease),
            Tenancy::Shared(leases) | Tenancy::Seats(_, leases) => leases,
        }
    }

    /// Whether the lock has no lease and no waiter, and so is not stored.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.tenancy, Tenancy::Nobody) && self.line.is_empty()
    }

    pub(crate) const fn mode(&self) -> Mode {
        match self.tenancy {
            Tenancy::Shared(_) => Mode::Shared,
            Tenancy::Seats(seats, _) => Mode::Seats(seats),
            Tenancy::Nobody | Tenancy::Exclusive(_) => Mode::Exclusive,
        }
    }

    /// Whether the lock, with its present holders, can be granted to a request for `mode`: it has
    /// no holders, or it and the request are shared, or it has a free seat for the request.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        matches!(self.tenancy, Tenancy::Nobody)
            || admits(self.mode(), mode) && has_seat(self.mode(), self.leases().len())
    }

    /// Returns the lowest seat that is free for a new holder in this mode; `None` if the mode has
    /// no seats.
    pub(crate) fn free_seat(&self, mode: Mode) -> Option<u16> {
        let is_free = |seat: &u16| self.leases().iter().all(|lease| lease.seat != Some(*seat));
        (0..mode.seats()?).find(is_free)
    }

    /// Adds `lease` to the lock.
    pub(crate) fn admit(&mut self, mode: Mode, lease: Lease) {
        assert!(self.admits(mode), "a grant follows admits()");
        match (&mut self.tenancy, mode) {
            (Tenancy::Shared(leases) | Tenancy::Seats(_, leases), _) => leases.push(lease),
            (tenancy, Mode::Exclusive) => *tenancy = Tenancy::Exclusive(lease),
            (tenancy, Mode::Shared) => *tenancy = Tenancy::Shared(vec![lease]),
            (tenancy, Mode::Seats(seats)) => *tenancy = Tenancy::Seats(seats, vec![lease]),
        }
    }

    /// Removes and returns the lease with this token.
    pub(crate) fn evict(&mut self, token: Token) -> Option<Lease> {
        match &mut self.tenancy {
            Tenancy::Shared(leases) | Tenancy::Seats(_, leases) => {
                let place = leases.iter().position(|lease| lease.token == token)?;
                let lease = leases.remove(place);
                if leases.is_empty() {
                    self.tenancy = Tenancy::Nobody;
                }
                Some(lease)
            }
            Tenancy::Exclusive(lease) if lease.token == token => {
                match std::mem::take(&mut self.tenancy) {
                    Tenancy::Exclusive(lease) => Some(lease),
                    Tenancy::Nobody | Tenancy::Shared(_) | Tenancy::Seats(..) => None,
                }
            }
            Tenancy::Nobody | Tenancy::Exclusive(_) => None,
        }
    }

    pub(crate) fn lease_mut(&mut self, token: Token) -> Option<&mut Lease> {
        self.leases_mut().iter_mut().find(|lease| lease.token == token)
    }

    /// Returns the lease that the request `wish` would renew or take over.
    pub(crate) fn own(&self, wish: LeaseRequest<'_>) -> Option<&Lease> {
        own_among(&self.leases().iter(), wish)
    }

    /// Changes the mode of the lock. The lease with this token must be the only one.
    pub(crate) fn change_mode(&mut self, token: Token, mode: Mode) {
        let Some(lease) = self.evict(token) else { return };
        self.admit(mode, lease);
    }
}

/// Whether a lock that is held in mode `have` can also be held by another client in mode `want`, if
/// it has a seat for it.
pub(crate) fn admits(have: Mode, want: Mode) -> bool {
    have == want && have != Mode::Exclusive
}

/// Whether a lock in this mode, with this number of holders, has room for one more.
pub(crate) fn has_seat(mode: Mode, holders: usize) -> bool {
    mode.seats().is_none_or(|seats| holders < usize::from(seats))
}

/// Returns the lease, among those of one lock, that the request `wish` would renew or take over.
pub(crate) fn own_among<'a>(
    leases: &(impl Iterator<Item = &'a Lease> + Clone),
    wish: LeaseRequest<'_>,
) -> Option<&'a Lease> {
    let of_client = || leases.clone().filter(|lease| lease.holder == *wish.client);
    let is_own = |lease: &&Lease| {
        let is_named = wish.takes_over == Some(lease.token);
        takes_over(lease.hold, wish.hold, is_named)
    };
    of_client()
        .find(|lease| lease.hold == wish.hold && is_own(lease))
        .or_else(|| of_client().find(is_own))
}

/// Whether an acquire with the ownership `want` renews or takes over a lease of the same client
/// with the ownership `have`.
///
/// An acquire as [`Ownership::Client`] renews every lease of its client. An acquire as
/// [`Ownership::Exclusive`] only renews an exclusive lease that the same open file created; it
/// conflicts with all other leases, even those of the same client. An acquire by an open file takes
/// over a lease that the client as a whole owns, one that the file created, or an exclusive one
/// that no file created and whose token the acquire names (`is_named`). It renews the lease that
/// the file owns.
fn takes_over(have: Ownership, want: Ownership, is_named: bool) -> bool {
    match (have, want) {
        (_, Ownership::Client) | (Ownership::Client, Ownership::OpenFile(_)) => true,
        (Ownership::Exclusive(maker), Ownership::Exclusive(asker)) => {
            maker == asker && maker.is_some()
        }
        (Ownership::Exclusive(None), Ownership::OpenFile(_)) => is_named,
        (Ownership::Exclusive(Some(maker)), Ownership::OpenFile(open)) => maker == open,
        (Ownership::OpenFile(held), Ownership::OpenFile(open)) => held == open,
        (Ownership::Client | Ownership::OpenFile(_), Ownership::Exclusive(_)) => false,
    }
}

impl QueuedWaiter {
    pub(crate) fn new(ask: &Acquire, since: Time, until: Option<Time>) -> Self {
        Self {
            client: ask.client.clone(),
            hold: ask.hold,
            mode: ask.mode,
            term: ask.term,
            patch: ask.patch.clone(),
            since,
            until,
        }
    }

    /// Returns the sessions that must be alive for the waiter to be served.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionId> + use<> {
        sessions_of(self.hold, self.term)
    }
}

/// Returns the sessions on which a request depends: in practice at most one, or two if a caller
/// names one session for the lease and another for the open file.
pub(crate) fn sessions_of(hold: Ownership, term: LeaseTerms) -> impl Iterator<Item = SessionId> {
    let of_term = match term {
        LeaseTerms::Session(id) => Some(id),
        LeaseTerms::Own(..) => None,
    };
    let of_hold = hold.open().map(|open| open.session).filter(|id| Some(*id) != of_term);
    of_term.into_iter().chain(of_hold)
}

impl Patch {
    /// Whether the text of the lock is still within its limit after this patch.
    pub(crate) fn fits(&self, before: &Details) -> bool {
        let length = match &self.text {
            None => 0,
            Some(TextPatch::Set(text)) => text.len(),
            Some(TextPatch::Append(more)) => before.text().len().saturating_add(more.len()),
        };
        length <= TEXT_BYTES_MAX
    }

    /// Applies the patch to the details of a lease. An empty patch copies nothing.
    pub(crate) fn apply(&self, details: &mut Arc<Details>) {
        if *self == Self::default() {
            return;
        }
        Arc::make_mut(details).apply(self);
    }
}

/// The map of held locks by name. Each insertion and removal also updates the number of locks whose
/// names have several parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LockTable {
    locks: BTreeMap<LockName, Box<Lock>>,
    /// The number of locks whose names have more than one part.
    below: usize,
}

/// The entry of a lock name in the table, like the entry of a map in std.
pub(crate) enum LockEntry<'a> {
    /// The lock is in the table.
    Taken(&'a mut Lock),
    /// The lock is not in the table.
    Free(VacantSlot<'a>),
}

/// A lock in the table, and its name.
pub(crate) struct OccupiedSlot<'a> {
    slot: OccupiedEntry<'a, LockName, Box<Lock>>,
    below: &'a mut usize,
}

/// A name for which the table has no lock, and at which one can be inserted.
pub(crate) struct VacantSlot<'a> {
    slot: VacantEntry<'a, LockName, Box<Lock>>,
    below: &'a mut usize,
}

impl LockTable {
    /// Returns the entry of `name`. With a million locks the lookup is the main cost, so the caller
    /// does it once.
    pub(crate) fn slot(&mut self, name: &LockName) -> LockEntry<'_> {
        match self.locks.entry(name.clone()) {
            Entry::Occupied(slot) => LockEntry::Taken(slot.into_mut()),
            Entry::Vacant(slot) => LockEntry::Free(VacantSlot { slot, below: &mut self.below }),
        }
    }

    /// Returns the lock of this name as an entry that can be removed.
    pub(crate) fn taken(&mut self, name: &LockName) -> Option<OccupiedSlot<'_>> {
        match self.locks.entry(name.clone()) {
            Entry::Occupied(slot) => Some(OccupiedSlot { slot, below: &mut self.below }),
            Entry::Vacant(_) => None,
        }
    }

    /// Returns the lock of this name, inserting an empty one if there is none.
    pub(crate) fn get_or_new(&mut self, name: &LockName) -> &mut Lock {
        match self.slot(name) {
            LockEntry::Taken(lock) => lock,
            LockEntry::Free(free) => free.put(Box::default()),
        }
    }

    pub(crate) fn get_mut(&mut self, name: &LockName) -> Option<&mut Lock> {
        self.locks.get_mut(name).map(|lock| &mut **lock)
    }

    pub(crate) fn remove(&mut self, name: &LockName) {
        if self.locks.remove(name).is_some() {
            self.below -= usize::from(name.has_parts());
        }
    }

    /// Returns the number of locks whose names have more than one part.
    pub(crate) const fn below(&self) -> usize {
        self.below
    }
}

impl OccupiedSlot<'_> {
    pub(crate) fn lock(&self) -> &Lock {
        self.slot.get()
    }

    pub(crate) fn lock_mut(&mut self) -> &mut Lock {
        self.slot.get_mut()
    }

    pub(crate) fn remove(self) {
        *self.below -= usize::from(self.slot.key().has_parts());
        self.slot.remove();
    }
}

impl<'a> VacantSlot<'a> {
    pub(crate) fn put(self, lock: Box<Lock>) -> &'a mut Lock {
        *self.below += usize::from(self.slot.key().has_parts());
        self.slot.insert(lock)
    }
}

impl Deref for LockTable {
    type Target = BTreeMap<LockName, Box<Lock>>;

    fn deref(&self) -> &Self::Target {
        &self.locks
    }
}
