//! How a request stands to a lock: judged by the same words when it is carried out and when
//! somebody only looks ([`LockView::in_the_way`]).

use super::command::Acquire;
use super::lease::{Ends, Lease, Mode, Ownership, Phase};
use super::lock::{admits, own_among};
use super::name::ClientId;
use super::refusal::Way;
use super::view::{Holder, LockView};
use crate::time::Time;

/// How a request stands to a lock that is held.
pub(super) enum ConflictCheck<'a> {
    /// The client has it by this lease, and may go on.
    Own(&'a Lease),
    /// There is room beside those who have it.
    Beside,
    /// This lease is in the way, in this way.
    Conflict(&'a Lease, Way),
}

/// The parts of a request on which a conflict depends.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    /// The client that asks.
    pub(super) client: &'a ClientId,
    /// The owner within the client.
    pub(super) hold: Ownership,
    /// Exclusive or shared.
    pub(super) mode: Mode,
}

impl<'a> From<&'a Acquire> for Wish<'a> {
    fn from(ask: &'a Acquire) -> Self {
        Self { client: &ask.client, hold: ask.hold, mode: ask.mode }
    }
}

/// The parts of a held lock on which a conflict depends. `L` yields its leases, oldest first, and
/// when each ends.
pub(super) struct Facts<L> {
    pub(super) leases: L,
    pub(super) mode: Mode,
    /// Whether somebody waits.
    pub(super) has_line: bool,
    pub(super) now: Time,
}

impl<'a, L: Iterator<Item = (&'a Lease, Ends)> + Clone> Facts<L> {
    /// How `wish` stands to this lock.
    pub(super) fn stance(&self, wish: Wish<'_>) -> ConflictCheck<'a> {
        let (foremost, ends) = self.foremost();
        if self.mode == Mode::Exclusive && foremost.acquired_at > self.now {
            return ConflictCheck::Conflict(
                foremost,
                Way::StealGrace { until: foremost.acquired_at },
            );
        }
        let leases = self.leases.clone().map(|(lease, _)| lease);
        // A reset that removes some sharers leaves a placeholder lease, which begins in the future:
        // nobody owns it.
        let now = self.now;
        let usable = leases.clone().filter(move |lease| lease.acquired_at <= now);
        if let Some(own) = own_among(&usable, wish.client, wish.hold) {
            // An open file's mode is its own affair: a downgrade from outside would let others in
            // beside a program that was promised to be alone.
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

    /// The lease that is longest in the way.
    fn foremost(&self) -> (&'a Lease, Ends) {
        let foremost = self.leases.clone().max_by_key(|(_, ends)| ends.grace_until);
        foremost.expect("a lock that is stored is held")
    }
}

impl LockView {
    /// The holder that would be in the way of an acquire that does not wait, and in which way: what
    /// the engine would say at this moment, without asking for anything.
    pub fn in_the_way(
        &self,
        client: &ClientId,
        hold: Ownership,
        mode: Mode,
    ) -> Option<(&Holder, Way)> {
        if self.holders.is_empty() {
            return None;
        }
        let leases = self.holders.iter().map(|holder| (&holder.lease, holder.ends));
        let has_line = !self.waiters.is_empty();
        let facts = Facts { leases, mode: self.mode, has_line, now: self.at };
        let ConflictCheck::Conflict(lease, way) = facts.stance(Wish { client, hold, mode }) else {
            return None;
        };
        let holder = self.holders.iter().find(|holder| holder.lease.token == lease.token);
        holder.map(|holder| (holder, way))
    }
}
