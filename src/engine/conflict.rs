//! Decides whether a request conflicts with the leases of a lock. Commands and read-only checks
//! ([`LockView::in_the_way`]) use the same code.

use super::lease::{Ends, Lease, Mode, Ownership, Phase, Token};
use super::lock::{Wish, admits, own_among};
use super::name::ClientId;
use super::refusal::Way;
use super::view::{LockView, Obstacle};
use crate::time::Time;

/// The relation between a request and the leases of a lock that is held.
pub(super) enum ConflictCheck<'a> {
    /// The client of the request holds the lock by this lease, which the request renews.
    Own(&'a Lease),
    /// The request may share the lock with its holders.
    Beside,
    /// The request conflicts with this lease. The [`Way`] says how.
    Conflict(&'a Lease, Way),
}

impl ConflictCheck<'_> {
    /// Whether the request, which wants the mode `want` of a lock with the mode `have`, would begin
    /// a tenure: one of a new holder, or one with a new token.
    pub(super) fn begins_tenure(&self, have: Mode, want: Mode) -> bool {
        match self {
            Self::Own(_) => (have, want) == (Mode::Shared, Mode::Exclusive),
            Self::Beside => true,
            Self::Conflict(..) => false,
        }
    }
}

/// The parts of a held lock that decide whether a request conflicts with it. `L` yields the leases,
/// oldest first, and when each ends.
pub(super) struct Facts<L> {
    pub(super) leases: L,
    pub(super) mode: Mode,
    /// Whether the queue of the lock has waiters.
    pub(super) has_line: bool,
    pub(super) now: Time,
}

impl<'a, L: Iterator<Item = (&'a Lease, Ends)> + Clone> Facts<L> {
    /// Decides whether the request `wish` renews a lease of this lock, may share the lock, or
    /// conflicts with a lease.
    pub(super) fn stance(&self, wish: Wish<'_>) -> ConflictCheck<'a> {
        let (foremost, ends) = self.foremost();
        if self.mode == Mode::Exclusive && foremost.acquired_at > self.now {
            return ConflictCheck::Conflict(
                foremost,
                Way::StealGrace { until: foremost.acquired_at },
            );
        }
        let leases = self.leases.clone().map(|(lease, _)| lease);
        // A reset that removes some holders of a shared lock leaves a placeholder lease, which
        // begins in the future and belongs to no client.
        let now = self.now;
        let usable = leases.clone().filter(move |lease| lease.acquired_at <= now);
        if let Some(own) = own_among(&usable, wish) {
            // The mode of an open file's lease is changed through that file only: a downgrade by
            // another program would admit sharers beside a program that was promised exclusive
            // access.
            let of_file =
                matches!((own.hold, wish.hold), (Ownership::OpenFile(_), Ownership::Client));
            if self.mode != wish.mode && of_file {
                return ConflictCheck::Conflict(own, Way::Own);
            }
            let other = leases.clone().find(|lease| lease.token != own.token);
            return match other {
                Some(other) if self.mode != wish.mode => ConflictCheck::Conflict(other, Way::Held),
                Some(_) | None => ConflictCheck::Own(own),
            };
        }
        if admits(self.mode, wish.mode) {
            if !self.has_line {
                return ConflictCheck::Beside;
            }
            return ConflictCheck::Conflict(foremost, Way::Behind);
        }
        let way = match ends.phase(self.now) {
            _ if foremost.holder == *wish.client => Way::Own,
            Phase::Held => Way::Held,
            Phase::Grace | Phase::Free => Way::Grace,
        };
        ConflictCheck::Conflict(foremost, way)
    }

    /// Returns the lease whose grace ends last, and which therefore blocks other clients longest.
    fn foremost(&self) -> (&'a Lease, Ends) {
        let foremost = self.leases.clone().max_by_key(|(_, ends)| ends.grace_until);
        foremost.expect("a lock that is stored is held")
    }
}

impl LockView {
    /// Returns what is in the way of an acquire that does not wait. The result is what the engine
    /// would answer at this moment, but needs no command.
    pub fn in_the_way(
        &self,
        client: &ClientId,
        hold: Ownership,
        mode: Mode,
        takes_over: Option<Token>,
    ) -> Option<Obstacle<'_>> {
        if self.holders.is_empty() {
            return self.hold_off.map(Obstacle::HoldOff);
        }
        let leases = self.holders.iter().map(|holder| (&holder.lease, holder.ends));
        let has_line = !self.waiters.is_empty();
        let facts = Facts { leases, mode: self.mode, has_line, now: self.at };
        let wish = Wish { client, hold, mode, takes_over };
        match facts.stance(wish) {
            ConflictCheck::Conflict(lease, way) => {
                let mut holders = self.holders.iter();
                let holder = holders.find(|holder| holder.lease.token == lease.token);
                holder.map(|holder| Obstacle::Lease(holder, way))
            }
            check if check.begins_tenure(self.mode, mode) => self.hold_off.map(Obstacle::HoldOff),
            ConflictCheck::Own(_) | ConflictCheck::Beside => None,
        }
    }
}
