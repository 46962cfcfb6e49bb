//! Releases holds and gives up waits: on unlock, on close, and after a signal.

use crate::engine::{LeaseKey, Leave, LeaveReason, LockName, Op, OpenId, Release, Ticket};
use crate::fuse::kernel::interrupts::WaitStatus;
use crate::fuse::posix_locks::byte_ranges::Span;
use crate::fuse::posix_locks::table::locked_file::{Asking, File, Held};
use crate::fuse::posix_locks::table::messages::{Effect, No, Waits};
use crate::fuse::posix_locks::table::table_state::Table;

impl<R> Table<R> {
    /// Releases `span` for the owner `id`.
    pub(crate) fn unlock(&mut self, ino: u64, id: u64, span: Span, todo: &mut Vec<Effect<R>>) {
        if span != Span::WHOLE {
            self.bundle_up(ino, id, todo);
        }
        let Some(file) = self.files.get_mut(&ino) else { return };
        if let Some(bundle) = &mut file.bundle {
            bundle.ranges.unlock(id, span);
        }
        // An interrupted request on the same hold would continue with the hold that is released
        // here.
        let held = file.holds.iter().find(|held| held.owner.id == id).map(|held| held.number);
        let cut = |asking: &Asking<R>| asking.reply.is_none() && Some(asking.number) == held;
        self.abandon(ino, cut, todo);
        self.drop_holds(ino, |held| held.owner.id == id, todo);
    }

    /// As [`Table::unlock`], and replies to the program once the engine has decided the release.
    pub(crate) fn unlock_and_reply(
        &mut self,
        (ino, id, span): (u64, u64, Span),
        reply: R,
        todo: &mut Vec<Effect<R>>,
    ) {
        let mut released = Vec::new();
        self.unlock(ino, id, span, &mut released);
        // The engine decides releases in their order.
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

    /// FLUSH: releases all that a process holds by fcntl in a file of which it has closed a
    /// descriptor.
    pub(crate) fn flushed(&mut self, ino: u64, id: u64, todo: &mut Vec<Effect<R>>) {
        self.abandon(ino, |asking| asking.reply.is_none() && asking.ask.owner.id == id, todo);
        self.unlock(ino, id, Span::WHOLE, todo);
    }

    /// RELEASE: releases all that was locked through an open file which is gone. For OFD locks no
    /// other message comes.
    pub(crate) fn closed(&mut self, ino: u64, fh: u64, todo: &mut Vec<Effect<R>>) {
        if let Some(bundle) = self.files.get_mut(&ino).and_then(|file| file.bundle.as_mut()) {
            bundle.ranges.drop_file(fh);
        }
        self.abandon(ino, |asking| asking.ask.owner.fh == fh, todo);
        self.drop_holds(ino, |held| held.owner.fh == fh, todo);
        self.spent.remove(&fh);
    }

    /// Cancels the waits of a program on an open file.
    pub(crate) fn give_up(&mut self, ino: u64, fh: u64, todo: &mut Vec<Effect<R>>) {
        let waits = |asking: &Asking<R>| asking.ask.owner.fh == fh && asking.ask.line == Waits::Yes;
        let Some(file) = self.files.get_mut(&ino) else { return };
        let File { asks, queue, behind, .. } = file;
        let all = asks.iter_mut().chain(queue).chain(behind);
        // Replies EAGAIN, not EINTR: without a pending signal the kernel would return a number of
        // its own.
        let no = all.filter(|asking| waits(asking)).filter_map(|asking| asking.reply.take());
        todo.extend(no.map(|reply| Effect::Reply(reply, Err(No::Busy(None)))));
        self.abandon(ino, waits, todo);
        self.drop_holds(ino, |held| held.unclaimed && held.owner.fh == fh, todo);
    }

    /// Ends the wait of `number` after a signal. The place is kept for a while: see
    /// [`Table::expire`].
    pub(crate) fn interrupt(&mut self, number: u64, todo: &mut Vec<Effect<R>>) {
        let reply = self.asking(number).and_then(|asking| asking.reply.take());
        if let Some(reply) = reply {
            todo.push(Effect::Reply(reply, Err(No::Interrupted)));
        }
    }

    /// Returns the state of the wait of `number`: waiting, interrupted with its place kept, or
    /// over.
    pub(crate) fn is_waiting(&mut self, number: u64) -> WaitStatus {
        match self.asking(number).map(|asking| asking.reply.is_some()) {
            Some(true) => WaitStatus::Asks,
            Some(false) => WaitStatus::Parked,
            None if self.unclaimed(number).is_some() => WaitStatus::Unclaimed,
            None => WaitStatus::Over,
        }
    }

    /// Gives up the place, or the lock granted meanwhile, of an interrupted waiter that has not
    /// returned.
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
        let all = |file: File<R>| file.asks.into_iter().chain(file.queue).chain(file.behind);
        let waiting = self.files.drain().flat_map(|(_, file)| all(file));
        waiting.filter_map(|asking| asking.reply).collect()
    }

    /// Gives up requests for which no program waits any more. The caller drops holds next, which
    /// also tidies up.
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

    /// Releases the whole-file holds that `gone` selects.
    pub(crate) fn drop_holds(
        &mut self,
        ino: u64,
        gone: impl Fn(&Held) -> bool,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let dropped: Vec<Held> = file.holds.extract_if(.., |held| gone(held)).collect();
        for held in &dropped {
            self.give_back(held, todo);
        }
        self.fit_bundle(ino, todo);
    }

    /// Releases a hold that no owner of this mount uses any more.
    pub(crate) fn give_back(&mut self, held: &Held, todo: &mut Vec<Effect<R>>) {
        self.tenures.remove(&held.token);
        self.give_back_unknown(held.number, held.key(), todo);
    }

    /// Releases the former tenure of a number that was granted a new one. The former one is over,
    /// or `mv` has moved it away; in either case no owner uses it any more.
    pub(crate) fn let_go_of_former(&mut self, granted: &Held, ino: u64, todo: &mut Vec<Effect<R>>) {
        let file = self.files.get_mut(&ino);
        let held = file.and_then(|file| file.held_mut(granted.number));
        let Some(held) = held.filter(|held| held.token != granted.token) else { return };
        let former = held.clone();
        if held.name != granted.name {
            // All owners that share this hold, as the ranges of a bundle do, continue on the new
            // tenure.
            (held.name, held.token) = (granted.name.clone(), granted.token);
        }
        self.give_back(&former, todo);
    }

    /// Releases a lease of `number` that no owner of this mount holds: nothing else would ever
    /// release it.
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

    /// Returns the effect that releases the lease of a number, whatever name `mv` has given it.
    pub(crate) fn release(&self, number: u64, key: LeaseKey) -> Effect<R> {
        let open = OpenId { session: self.session, number };
        // If the number still has a hold, `mv` had moved that hold before the number's next request
        // reached the engine, which began a second lease. Only the token tells the two apart.
        let is_second = self.key_of(number).is_some();
        let open = Some(open).filter(|_| !is_second);
        Effect::Tell(Box::new(Op::Release(Release { key, acquisition: None, open })), None)
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

/// Returns the effect that gives up a queue place. The place may still be served until an event
/// confirms it.
pub(crate) fn leave<R>(name: LockName, ticket: Ticket) -> Effect<R> {
    Effect::Tell(Box::new(Op::Leave(Leave { name, ticket, why: LeaveReason::Gone })), None)
}
