//! Releases locks and gives up waits of programs: on unlock, on close, and after a signal.

use crate::engine::{LeaseKey, Leave, LeaveReason, LockName, Op, OpenId, Release, Ticket};
use crate::fuse::kernel::interrupts::WaitStatus;
use crate::fuse::posix_locks::byte_ranges::Span;
use crate::fuse::posix_locks::table::linked_leases::LinkedLeases;
use crate::fuse::posix_locks::table::locked_file::{Asking, File, Held};
use crate::fuse::posix_locks::table::messages::{Effect, No, Waits};
use crate::fuse::posix_locks::table::table_state::Table;

impl<R> Table<R> {
    /// Unlocks the byte range `span` for the owner `id`.
    pub(crate) fn unlock(&mut self, ino: u64, id: u64, span: Span, todo: &mut Vec<Effect<R>>) {
        if span != Span::WHOLE {
            self.bundle_up(ino, id, todo);
        }
        if span == Span::WHOLE {
            self.release_orphaned_links(ino, |owner| owner.id == id, todo);
        }
        let Some(file) = self.files.get_mut(&ino) else { return };
        if let Some(bundle) = &mut file.bundle {
            bundle.ranges.unlock(id, span);
        }
        // A request that a signal has interrupted could be resumed later, and would continue with
        // the lease that is released here. So the request is given up.
        let held = file.holds.iter().find(|held| held.owner.id == id).map(|held| held.number);
        let cut = |asking: &Asking<R>| asking.reply.is_none() && Some(asking.number) == held;
        self.abandon(ino, cut, todo);
        self.drop_holds(ino, |held| held.owner.id == id, todo);
    }

    /// Unlocks the byte range as [`Table::unlock`] does, and replies to the program once the engine
    /// has decided the release.
    pub(crate) fn unlock_and_reply(
        &mut self,
        (ino, id, span): (u64, u64, Span),
        reply: R,
        todo: &mut Vec<Effect<R>>,
    ) {
        let mut released = Vec::new();
        self.unlock(ino, id, span, &mut released);
        // The engine decides releases in the order in which they are submitted, so the reply waits
        // for the last one only.
        let last = released.iter_mut().rev().find_map(|effect| match effect {
            Effect::Tell(op, then) if matches!(**op, Op::Release(_)) => Some(then),
            _ => None,
        });
        match last {
            Some(then) => *then = Some(reply),
            None => released.push(Effect::Reply(reply, Ok(()))),
        }
        todo.append(&mut released);
    }

    /// Handles FLUSH, which the kernel sends when a process closes a descriptor: releases all fcntl
    /// locks of the process on the file.
    pub(crate) fn flushed(&mut self, ino: u64, id: u64, todo: &mut Vec<Effect<R>>) {
        self.abandon(ino, |asking| asking.reply.is_none() && asking.ask.owner.id == id, todo);
        self.unlock(ino, id, Span::WHOLE, todo);
    }

    /// Handles RELEASE, which the kernel sends when an open file is gone: releases all that was
    /// locked through it. For OFD locks the kernel sends no other message.
    pub(crate) fn closed(&mut self, ino: u64, fh: u64, todo: &mut Vec<Effect<R>>) {
        if let Some(bundle) = self.files.get_mut(&ino).and_then(|file| file.bundle.as_mut()) {
            bundle.ranges.drop_file(fh);
        }
        self.abandon(ino, |asking| asking.ask.owner.fh == fh, todo);
        self.drop_holds(ino, |held| held.owner.fh == fh, todo);
        self.release_orphaned_links(ino, |owner| owner.fh == fh, todo);
        self.spent.remove(&fh);
    }

    /// Cancels the waits of a program on an open file.
    pub(crate) fn give_up(&mut self, ino: u64, fh: u64, todo: &mut Vec<Effect<R>>) {
        let waits = |asking: &Asking<R>| asking.ask.owner.fh == fh && asking.ask.line == Waits::Yes;
        let Some(file) = self.files.get_mut(&ino) else { return };
        let File { asks, queue, behind, .. } = file;
        let all = asks.iter_mut().chain(queue).chain(behind);
        // The reply is EAGAIN and not EINTR: without a pending signal the kernel would turn EINTR
        // into an error number of its own.
        let no = all.filter(|asking| waits(asking)).filter_map(|asking| asking.reply.take());
        todo.extend(no.map(|reply| Effect::Reply(reply, Err(No::Busy(None)))));
        self.abandon(ino, waits, todo);
        self.drop_holds(ino, |held| held.unclaimed && held.owner.fh == fh, todo);
    }

    /// Replies EINTR, after a signal, to the program that waits for the lease with this number
    /// (unique within the session). The request's queue place is kept for a while, in case the
    /// system call is restarted: see [`Table::expire`].
    pub(crate) fn interrupt(&mut self, number: u64, todo: &mut Vec<Effect<R>>) {
        let reply = self.asking(number).and_then(|asking| asking.reply.take());
        if let Some(reply) = reply {
            todo.push(Effect::Reply(reply, Err(No::Interrupted)));
        }
    }

    /// Returns the state of the wait for the lease with this number (unique within the session):
    /// waiting, interrupted with its queue place kept, or over.
    pub(crate) fn is_waiting(&mut self, number: u64) -> WaitStatus {
        match self.asking(number).map(|asking| asking.reply.is_some()) {
            Some(true) => WaitStatus::Asks,
            Some(false) => WaitStatus::Parked,
            None if self.unclaimed(number).is_some() => WaitStatus::Unclaimed,
            None => WaitStatus::Over,
        }
    }

    /// Ends the time in which an interrupted wait may be resumed: gives up the queue place of the
    /// request, or the lock that was granted to it after the interruption. `number` identifies the
    /// requested lease within the session.
    pub(crate) fn expire(&mut self, number: u64, todo: &mut Vec<Effect<R>>) {
        let Some(ino) = self.numbers.get(&number).copied() else { return };
        self.abandon(ino, |asking| asking.number == number && asking.reply.is_none(), todo);
        self.drop_holds(ino, |held| held.number == number && held.unclaimed, todo);
    }

    /// Clears the table after its session was lost. Returns the replies to the programs that wait.
    pub(crate) fn retire(&mut self) -> Vec<R> {
        self.numbers.clear();
        self.tenures.clear();
        self.queued.clear();
        self.leaving.clear();
        self.spent.clear();
        self.released.clear();
        self.links = LinkedLeases::default();
        let all = |file: File<R>| file.asks.into_iter().chain(file.queue).chain(file.behind);
        let waiting = self.files.drain().flat_map(|(_, file)| all(file));
        waiting.filter_map(|asking| asking.reply).collect()
    }

    /// Gives up the requests that `gone` selects. The caller then calls `drop_holds`, which
    /// releases leases and removes unused entries of the table.
    pub(crate) fn abandon(
        &mut self,
        ino: u64,
        gone: impl Fn(&Asking<R>) -> bool,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(file) = self.files.get_mut(&ino).filter(|file| !file.is_quiet()) else { return };
        let tell = |asking: &mut Asking<R>, todo: &mut Vec<Effect<R>>| {
            if let Some(reply) = asking.reply.take() {
                todo.push(Effect::Reply(reply, Err(No::Interrupted)));
            }
        };
        let wanted = |asking: &&mut Asking<R>| asking.is_wanted();
        for asking in file.asks.iter_mut().filter(wanted).filter(|asking| gone(asking)) {
            tell(asking, todo);
            asking.spend(&mut self.spent);
            asking.gone = true;
            if let Some(ticket) = asking.ticket {
                self.leaving.insert(ticket, ino);
                todo.push(leave(asking.ask.name.clone(), ticket));
            }
        }
        file.queue.retain_mut(|asking| {
            let goes = gone(asking);
            if goes {
                tell(asking, todo);
            }
            !goes
        });
        file.behind.retain_mut(|asking| {
            let goes = gone(asking);
            if goes {
                tell(asking, todo);
            }
            !goes
        });
        self.requeue(ino, todo);
    }

    /// Releases the whole-file leases that `gone` selects.
    pub(crate) fn drop_holds(
        &mut self,
        ino: u64,
        gone: impl Fn(&Held) -> bool,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let dropped: Vec<Held> = file.holds.extract_if(.., |held| gone(held)).collect();
        for held in &dropped {
            self.give_back(ino, held, todo);
        }
        self.fit_bundle(ino, todo);
    }

    /// Releases a lease that no owner of this mount uses any more.
    pub(crate) fn give_back(&mut self, ino: u64, held: &Held, todo: &mut Vec<Effect<R>>) {
        self.tenures.remove(&held.token);
        self.give_back_unknown(held.number, held.key(), todo);
        self.release_links(ino, held, todo);
    }

    /// Releases the former lease with the number of the lease that was just granted. The former
    /// lease is over, or `mv` has moved it away; in either case no owner uses it any more.
    pub(crate) fn let_go_of_former(&mut self, granted: &Held, ino: u64, todo: &mut Vec<Effect<R>>) {
        let file = self.files.get_mut(&ino);
        let held = file.and_then(|file| file.held_mut(granted.number));
        let Some(held) = held.filter(|held| held.token != granted.token) else { return };
        let former = held.clone();
        if held.name != granted.name {
            // All owners that share the former lease, such as those of byte ranges, continue on the
            // new one.
            (held.name, held.token) = (granted.name.clone(), granted.token);
        }
        self.give_back(ino, &former, todo);
    }

    /// Releases a lease of this session that no owner of this mount holds: nothing else would ever
    /// release it. `number` is its lease number.
    pub(crate) fn give_back_unknown(
        &mut self,
        number: u64,
        key: LeaseKey,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(token) = key.token else { return };
        let is_held = self.tenures.contains_key(&token);
        if !is_held && !self.over.contains(&token) && !self.released.contains(&(number, token)) {
            self.released.push((number, token));
            todo.push(self.release(number, key));
        }
    }

    /// Returns the effect that releases the lease with this number, whatever name `mv` has given
    /// it.
    pub(crate) fn release(&self, number: u64, key: LeaseKey) -> Effect<R> {
        let open = OpenId { session: self.session, number };
        // If the table still has a lease with this number, the lease in `key` is a second one: `mv`
        // had moved the first before the next request with the number reached the engine. Only the
        // token tells the two apart, so the release names the token.
        let is_second = self.key_of(number).is_some();
        let open = Some(open).filter(|_| !is_second);
        Effect::Tell(Box::new(Op::Release(Release { open, ..Release::of(key) })), None)
    }

    pub(crate) fn asking(&mut self, number: u64) -> Option<&mut Asking<R>> {
        let file = self.files.get_mut(self.numbers.get(&number)?)?;
        let File { asks, queue, behind, .. } = file;
        let mut all = asks.iter_mut().chain(queue).chain(behind);
        all.find(|asking| asking.number == number && asking.is_wanted())
    }

    pub(crate) fn unclaimed(&self, number: u64) -> Option<&Held> {
        let file = self.files.get(self.numbers.get(&number)?)?;
        file.holds.iter().find(|held| held.number == number && held.unclaimed)
    }
}

/// Returns the effect that leaves the queue of the lock `name`. The engine may still grant the lock
/// to the waiter, until an event confirms that the waiter has left.
pub(crate) fn leave<R>(name: LockName, ticket: Ticket) -> Effect<R> {
    Effect::Tell(Box::new(Op::Leave(Leave { name, ticket, why: LeaveReason::Gone })), None)
}
