//! Conflicts between lock owners of this mount: for `F_GETLK`, for `rm` of a lock, and for deadlock
//! detection.

use crate::engine::{LockName, Mode, Token};
use crate::fuse::posix_locks::byte_ranges::{Owner, Span};
use crate::fuse::posix_locks::table::locked_file::{Asking, Held, answer};
use crate::fuse::posix_locks::table::messages::{Ask, Call, Effect, No};
use crate::fuse::posix_locks::table::table_state::Table;
use std::collections::HashSet;

impl<R> Table<R> {
    /// Returns the first lock of this mount that conflicts with a request of the owner `id`, for
    /// `F_GETLK`. The table knows no holders outside of this mount. A lock that was granted after
    /// its waiter was interrupted is none.
    pub(crate) fn conflict(
        &self,
        ino: u64,
        id: u64,
        span: Span,
        mode: Mode,
    ) -> Option<(Span, Mode, u32)> {
        let file = self.files.get(&ino)?;
        let clash = |held: &&Held| {
            !held.unclaimed
                && held.owner.id != id
                && (held.mode == Mode::Exclusive || mode == Mode::Exclusive)
        };
        if let Some(held) = file.holds.iter().find(clash) {
            return Some((Span::WHOLE, held.mode, held.owner.pid));
        }
        let range = file.bundle.as_ref()?.ranges.conflict(id, span, mode)?;
        Some((range.span, range.mode, range.owner.pid))
    }

    /// Returns the first lock of the owner `id` itself that overlaps `span`.
    pub(crate) fn own_lock(&self, ino: u64, id: u64, span: Span) -> Option<(Span, Mode, u32)> {
        let file = self.files.get(&ino)?;
        if let Some(held) = file.holds.iter().find(|held| !held.unclaimed && held.owner.id == id) {
            return Some((Span::WHOLE, held.mode, held.owner.pid));
        }
        let range = file.bundle.as_ref()?.ranges.first_of(id, span)?;
        Some((range.span, range.mode, range.owner.pid))
    }

    /// Whether the owner `id` holds the whole file, or any owner of this mount holds a byte range
    /// of it.
    #[cfg(test)]
    pub(crate) fn holds(&self, ino: u64, id: u64) -> bool {
        self.files.get(&ino).is_some_and(|file| {
            file.holds.iter().any(|held| held.owner.id == id) || file.bundle.is_some()
        })
    }

    /// Returns the owner of the lease with this token. Only a process that opened or locked the
    /// file, or a descendant of one, may remove the lock.
    pub(crate) fn holder(&self, token: Token) -> Option<Owner> {
        let file = self.files.get(self.tenures.get(&token)?)?;
        file.held_under(token).map(|held| held.owner)
    }

    /// Returns the name and token of the lock that a program holds on the whole file through the
    /// open file `fh`.
    pub(crate) fn held_through(&self, ino: u64, fh: u64) -> Option<(LockName, Token)> {
        let mut holds = self.files.get(&ino)?.holds.iter();
        let held = holds.find(|held| held.owner.fh == fh && !held.unclaimed)?;
        Some((held.name.clone(), held.token))
    }

    /// Whether a request would cause a deadlock: an owner that holds what `ask` requests waits,
    /// directly or through other owners, for the owner of `ask`. As in Linux, only owners that are
    /// processes count, in fcntl(2): an flock or OFD lock belongs to an open file, which another
    /// process may close.
    pub(crate) fn would_wait_for_itself(&self, ask: &Ask) -> bool {
        let mut seen = HashSet::new();
        let mut to_see = self.in_the_way(ask);
        while let Some(id) = to_see.pop() {
            if id == ask.owner.id {
                return (ask.call)(ask.tid) == Call::Fcntl;
            }
            if !seen.insert(id) {
                continue;
            }
            let asks = self.files.values().flat_map(|file| file.asks.iter().chain(&file.queue));
            let waits = asks.filter(|asking| asking.ask.owner.id == id && asking.reply.is_some());
            let waits = waits.filter(|asking| (asking.ask.call)(asking.ask.tid) == Call::Fcntl);
            for asking in waits {
                to_see.extend(self.in_the_way(&asking.ask));
            }
        }
        false
    }

    /// Answers EDEADLK to a wait that a restarted system call has resumed, if the wait is part of a
    /// cycle: between the interruption and the restart, an owner for which it waits may have begun
    /// to wait for the owner of this request.
    pub(crate) fn break_circle(&mut self, ask: &Ask, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get(&ask.ino) else { return };
        let own =
            |asking: &Asking<R>| asking.reply.is_some() && asking.ask.owner.id == ask.owner.id;
        let Some(place) = file.queue.iter().position(own) else { return };
        if self.would_wait_for_itself(ask)
            && let Some(file) = self.files.get_mut(&ask.ino)
            && let Some(asking) = file.queue.remove(place)
        {
            answer(asking, Err(No::Deadlock), todo);
        }
    }
    /// Returns the other owners in this mount that hold the file or ranges of it in conflict with
    /// `ask`.
    pub(crate) fn in_the_way(&self, ask: &Ask) -> Vec<u64> {
        let Some(file) = self.files.get(&ask.ino) else { return Vec::new() };
        let clashes = |mode| mode == Mode::Exclusive || ask.mode == Mode::Exclusive;
        let holds = file.holds.iter().filter(|held| clashes(held.mode));
        let holds = holds.map(|held| held.owner.id).filter(|id| *id != ask.owner.id);
        let ranges = file.bundle.iter().flat_map(|bundle| {
            bundle.ranges.conflicts(ask.owner.id, ask.span, ask.mode).map(|range| range.owner.id)
        });
        holds.chain(ranges).collect()
    }
}
