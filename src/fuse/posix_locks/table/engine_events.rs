//! The lock table's input from the engine: answers to lock requests, and events.
//!
//! Conflicts between lock owners of this mount: for `F_GETLK`, for `rm` of a lock, and for deadlock
//! detection.
//!
//! Lock requests for a part of a file, and for the whole of a file of which parts are locked. One
//! lease of the engine (the *bundle*) covers all locked ranges of a file.
//!
//! Releases locks and gives up waits of programs: on unlock, on close, and after a signal.

use crate::engine::{
    Acquire, Answer, ClientId, LeaseKey, Leave, LeaveReason, LockName, Mode, Op, OpenId, Outcome,
    Ownership, Release, Ticket, Token,
};
use crate::fuse::posix_locks::byte_ranges::{ByteRange, PosixOwner};
use crate::fuse::posix_locks::table::table_state::{
    Ask, Asking, Attempt, Call, Early, Effect, File, Found, Held, LinkedLeases, No, Recall, Table,
    Waits, Wants, answer,
};
use kernel::interrupts::WaitStatus;
use std::collections::HashSet;

impl<R> Table<R> {
    /// Returns the first lock of this mount that conflicts with a request of the owner `id`, for
    /// `F_GETLK`. The table knows no holders outside of this mount. A lock that was granted after
    /// its waiter was interrupted conflicts with nothing.
    pub(crate) fn conflict(
        &self,
        ino: u64,
        id: u64,
        span: ByteRange,
        mode: Mode,
    ) -> Option<(ByteRange, Mode, u32)> {
        let file = self.files.get(&ino)?;
        let clash = |held: &&Held| {
            !held.unclaimed
                && held.owner.id != id
                && (held.mode == Mode::Exclusive || mode == Mode::Exclusive)
        };
        if let Some(held) = file.holds.iter().find(clash) {
            return Some((ByteRange::WHOLE, held.mode, held.owner.pid));
        }
        let range = file.bundle.as_ref()?.ranges.conflict(id, span, mode)?;
        Some((range.span, range.mode, range.owner.pid))
    }

    /// Returns the first lock of the owner `id` itself that overlaps `span`.
    pub(crate) fn own_lock(
        &self,
        ino: u64,
        id: u64,
        span: ByteRange,
    ) -> Option<(ByteRange, Mode, u32)> {
        let file = self.files.get(&ino)?;
        if let Some(held) = file.holds.iter().find(|held| !held.unclaimed && held.owner.id == id) {
            return Some((ByteRange::WHOLE, held.mode, held.owner.pid));
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
    pub(crate) fn holder(&self, token: Token) -> Option<PosixOwner> {
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

impl<R> Table<R> {
    /// Locks a byte range of the file for the request's owner. If parts of the file are locked,
    /// also locks the whole file, as one range.
    pub(super) fn lock_range(
        &mut self,
        mut asking: Asking<R>,
        turn: Attempt,
        todo: &mut Vec<Effect<R>>,
    ) {
        let ino = asking.ask.ino;
        let Ask { owner, span, mode, .. } = asking.ask;
        self.bundle_up(ino, owner.id, todo);
        let file = self.files.entry(ino).or_default();
        let Some(bundle) = &file.bundle else {
            let bundles = || file.asks.iter().filter(|other| other.wants == Wants::Bundle);
            if bundles().any(|other| other.gone || other.ticket.is_none()) {
                return file.behind.push(asking);
            }
            let waits =
                bundles().next().is_some() || turn == Attempt::New && !file.queue.is_empty();
            if waits && asking.ask.takes_over.is_none() {
                return self.enqueue(asking, todo);
            }
            asking.number = self.number_for(&asking.ask);
            asking.wants = Wants::Bundle;
            return self.submit(asking, todo);
        };
        if bundle.ranges.conflict(owner.id, span, mode).is_some() {
            if bundle.ranges.has(owner.id) && (asking.ask.call)(asking.ask.tid) == Call::Flock {
                // A flock covers the whole file, and changing its mode is not atomic (see
                // [`Table::refused`]): the old lock is released before the request waits for the
                // new one.
                if let Some(bundle) = &mut file.bundle {
                    bundle.ranges.unlock(owner.id, ByteRange::WHOLE);
                }
                self.enqueue(asking, todo);
                return self.fit_bundle(ino, todo);
            }
            return self.enqueue(asking, todo);
        }
        if mode == Mode::Exclusive && bundle.held.mode == Mode::Shared {
            // A range in exclusive mode needs the file's lease in exclusive mode, and only the
            // engine can grant that.
            if file.is_asked(bundle.held.number) {
                return file.behind.push(asking);
            }
            asking.number = bundle.held.number;
            asking.wants = Wants::Bundle;
            return self.submit(asking, todo);
        }
        if bundle.ranges.is_full() {
            return answer(asking, Err(No::Full), todo);
        }
        let token = bundle.held.token;
        if let Some(bundle) = &mut file.bundle {
            bundle.ranges.lock(owner, span, mode);
        }
        todo.push(Effect::Speaks(owner.fh, token));
        answer(asking, Ok(()), todo);
        self.fit_bundle(ino, todo);
    }

    /// Converts the lease that the owner `id` has on the whole file into a locked byte range: an
    /// owner with a whole-file lease and a range would conflict with itself.
    pub(super) fn bundle_up(&mut self, ino: u64, id: u64, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let spare = file.bundle_up(id);
        if let (Some(spare), Some(bundle)) = (&spare, &file.bundle) {
            todo.push(Effect::Speaks(spare.owner.fh, bundle.held.token));
        }
        if let (Some(spare), Some(bundle)) = (&spare, &file.bundle) {
            let (before, number) = (spare.number, bundle.held.number);
            self.links.change_lock(ino, before, number);
        }
        self.withdraw_covered(ino, todo);
        if let Some(spare) = spare {
            self.give_back(ino, &spare, todo);
        }
    }

    /// Takes all requests for a lease that is to cover the file's byte ranges out of the queue of
    /// the engine, if a lease covers them.
    pub(super) fn withdraw_covered(&mut self, ino: u64, todo: &mut Vec<Effect<R>>) {
        let waits = |asking: &Asking<R>| {
            asking.is_wanted() && asking.ticket.is_some() && asking.wants == Wants::Bundle
        };
        while let Some(file) = self.files.get_mut(&ino)
            && file.bundle.is_some()
            && let Some(asking) = file.take(waits)
        {
            self.withdraw(asking, todo);
        }
    }

    /// Takes a request for the lease that is to cover the file's byte ranges out of the queue of
    /// the engine, and decides it within this mount from now on, where a lease covers them: in the
    /// queue the request would wait until the whole file is unlocked.
    pub(super) fn withdraw(&mut self, mut asking: Asking<R>, todo: &mut Vec<Effect<R>>) {
        let ino = asking.ask.ino;
        let reply = asking.reply.take();
        if let Some(ticket) = asking.ticket {
            self.leaving.insert(ticket, ino);
            todo.push(leave(asking.ask.name.clone(), ticket));
        }
        asking.spend(&mut self.spent);
        asking.gone = true;
        let file = self.file(ino);
        if reply.is_some() {
            file.behind.push(Asking::new(asking.ask.clone(), reply, Wants::Hold));
        }
        file.asks.push(asking);
    }

    /// Queues a lock request until another owner of this mount unlocks its ranges, or fails the
    /// request if its program does not wait.
    pub(super) fn enqueue(&mut self, asking: Asking<R>, todo: &mut Vec<Effect<R>>) {
        if asking.ask.line == Waits::No {
            self.tidy(asking.ask.ino);
            return answer(asking, Err(No::Busy(None)), todo);
        }
        if self.would_wait_for_itself(&asking.ask) {
            return answer(asking, Err(No::Deadlock), todo);
        }
        let mut asking = asking;
        asking.wants = Wants::Hold;
        asking.number = self.extra_number(asking.ask.ino);
        todo.push(Effect::Watch(asking.number, asking.ask.tid));
        self.queued.insert(asking.ask.ino);
        self.files.entry(asking.ask.ino).or_default().queue.push_back(asking);
    }

    /// Releases the lease that covers the byte ranges of a file when no range is left, and
    /// downgrades it when shared mode suffices. Does neither while a request for this lease is
    /// unanswered.
    pub(super) fn fit_bundle(&mut self, ino: u64, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let settled = file.bundle.as_ref().is_some_and(|b| !file.is_asked(b.held.number));
        if let Some(bundle) = file.bundle.as_mut().filter(|_| settled) {
            if bundle.ranges.is_empty() {
                if let Some(bundle) = file.bundle.take() {
                    self.give_back(ino, &bundle.held, todo);
                }
            } else if bundle.ranges.mode() == Mode::Shared && bundle.held.mode == Mode::Exclusive {
                bundle.held.mode = Mode::Shared;
                let less = bundle.held.less(ino);
                self.submit(less, todo);
            }
        }
        self.requeue(ino, todo);
    }
}

impl<R> Table<R> {
    /// Unlocks the byte range `span` for the owner `id`.
    pub(crate) fn unlock(&mut self, ino: u64, id: u64, span: ByteRange, todo: &mut Vec<Effect<R>>) {
        if span != ByteRange::WHOLE {
            // After an interrupted wait, the program returned with a different request. What was
            // kept for a restart of the interrupted call must not become a range that it holds.
            self.abandon(ino, |a| a.reply.is_none() && a.ask.owner.id == id, todo);
            self.drop_holds(ino, |held| held.unclaimed && held.owner.id == id, todo);
            self.bundle_up(ino, id, todo);
        }
        if span == ByteRange::WHOLE {
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
        ino: u64,
        id: u64,
        span: ByteRange,
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
        self.unlock(ino, id, ByteRange::WHOLE, todo);
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
        let reply_interrupted = |asking: &mut Asking<R>, todo: &mut Vec<Effect<R>>| {
            if let Some(reply) = asking.reply.take() {
                todo.push(Effect::Reply(reply, Err(No::Interrupted)));
            }
        };
        let wanted = |asking: &&mut Asking<R>| asking.is_wanted();
        for asking in file.asks.iter_mut().filter(wanted).filter(|asking| gone(asking)) {
            reply_interrupted(asking, todo);
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
                reply_interrupted(asking, todo);
            }
            !goes
        });
        file.behind.retain_mut(|asking| {
            let goes = gone(asking);
            if goes {
                reply_interrupted(asking, todo);
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

/// The maximum number of ended leases whose tokens are remembered while an answer is pending. At
/// 1,000 ends a second, which many machines together may cause, that lasts as long as any lock
/// service lets a request wait for its answer.
const OVER_MAX: usize = 8_192;

/// The lease that an acquire request is about, for its answer.
#[derive(Debug, Clone)]
pub(crate) struct RequestedLease {
    hold: Ownership,
    name: LockName,
    client: ClientId,
}

impl RequestedLease {
    /// Returns the lease of an acquire request.
    pub(crate) fn of(ask: &Acquire) -> Self {
        Self { hold: ask.hold, name: ask.name.clone(), client: ask.client.clone() }
    }
}

impl<R> Table<R> {
    /// Handles the engine's answer to the lock request that was submitted with the number `cookie`.
    pub(crate) fn answered(
        &mut self,
        cookie: u64,
        ino: u64,
        of: RequestedLease,
        answered: Answer,
        todo: &mut Vec<Effect<R>>,
    ) {
        let asking = self.files.get_mut(&ino).and_then(|file| file.take(|a| a.cookie == cookie));
        let Some(mut asking) = asking else { return Self::unasked(of, &answered, todo) };
        let number = asking.number;
        let early = asking.early.as_ref().map(|early| early.key.clone());
        let mut renewed = None;
        if let Ok(Outcome::Renewed(tenure)) = &answered {
            // An upgrade to exclusive mode gives the lease a new token, and `mv` may have renamed
            // the lock and renamed it back.
            self.renamed(number, tenure.token, &asking.ask.name);
            todo.push(Effect::Continues(asking.ask.name.clone(), tenure.token));
            renewed = self.key_of(number);
        }
        match answered {
            Ok(Outcome::Waiting { ticket, .. }) => self.in_line(asking, ticket, todo),
            Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) if asking.is_wanted() => {
                let key = renewed.unwrap_or_else(|| asking.latest(tenure.token));
                self.grant(asking, key, todo);
            }
            Err(refusal) if asking.is_wanted() => {
                self.refused(asking, refusal, todo);
                self.fit_bundle(ino, todo);
            }
            answered => {
                self.undo(asking, &answered, todo);
                self.fit_bundle(ino, todo);
            }
        }
        if let Some(key) = early {
            // An event may have reported a lease with the number of this request that does not
            // belong to the request: a former lease, which `mv` moved and which was released while
            // the request was pending.
            self.found_stray(number, key, todo);
        }
        self.answer_came();
    }

    /// Releases the lock, or leaves the queue, if the answer to a request that the table no longer
    /// knows is a grant or a queue place: no owner would ever release it.
    fn unasked(
        RequestedLease { hold, name, client }: RequestedLease,
        answered: &Answer,
        todo: &mut Vec<Effect<R>>,
    ) {
        match answered {
            Ok(Outcome::Granted(tenure)) => {
                let key = LeaseKey { name, client, token: Some(tenure.token) };
                let release = Release { open: hold.open(), ..Release::of(key) };
                todo.push(Effect::Tell(Box::new(Op::Release(release)), None));
            }
            Ok(Outcome::Waiting { ticket, .. }) => todo.push(leave(name, *ticket)),
            Ok(_) | Err(_) => {}
        }
    }

    /// Handles the answer that a request waits in the queue of its lock. The event that the lock
    /// was granted to this waiter may have come before the answer.
    pub(super) fn in_line(
        &mut self,
        mut asking: Asking<R>,
        ticket: Ticket,
        todo: &mut Vec<Effect<R>>,
    ) {
        let ino = asking.ask.ino;
        asking.ticket = Some(ticket);
        match asking.early.take() {
            Some(early) if early.ticket == Some(ticket) => {
                return self.served(asking, early.key, todo);
            }
            // The reported lease is an earlier one with the same number, which `mv` moved while the
            // request was under way.
            Some(early) => self.give_back_unknown(asking.number, early.key, todo),
            None => {}
        }
        if asking.gone {
            self.leaving.insert(ticket, ino);
            todo.push(leave(asking.ask.name.clone(), ticket));
        } else if asking.wants == Wants::Bundle && self.file(ino).is_covered_beside(asking.number) {
            // The lease of another owner was converted while the request was under way.
            self.withdraw(asking, todo);
            return self.requeue(ino, todo);
        } else {
            todo.push(Effect::Watch(asking.number, asking.ask.tid));
            if asking.news {
                // The lock may have changed before this answer came, and the event of the grant may
                // have been lost.
                todo.push(Effect::Recall(asking.recall()));
            }
        }
        let file = self.files.entry(ino).or_default();
        file.asks.push(asking);
        if !file.behind.is_empty() {
            self.requeue(ino, todo);
        }
    }

    /// Handles the grant of the lock to a waiting request.
    pub(super) fn served(&mut self, asking: Asking<R>, key: LeaseKey, todo: &mut Vec<Effect<R>>) {
        let ino = asking.ask.ino;
        if let Some(ticket) = asking.ticket {
            self.leaving.remove(&ticket);
        }
        match key.token {
            Some(_) if !asking.gone => self.grant(asking, key, todo),
            _ => {
                self.give_back_unknown(asking.number, key, todo);
                self.requeue(ino, todo);
            }
        }
    }

    /// Handles the engine's answer to a lock request that its program has given up, or to a
    /// downgrade: releases a lock that was granted to the request.
    pub(super) fn undo(
        &mut self,
        mut asking: Asking<R>,
        answered: &Answer,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) = answered else { return };
        let held = self.files.get(&asking.ask.ino).and_then(|file| file.held(asking.number));
        let Some(held) = held.filter(|held| held.token >= tenure.token) else {
            let number = asking.number;
            let key = asking.latest(tenure.token);
            if held.is_none() && matches!(answered, Ok(Outcome::Renewed(_))) {
                // The request renewed a lease that was released after it. No event of the end is
                // awaited, since the token may be an earlier one of that lease.
                return self.found_stray(number, key, todo);
            }
            return self.give_back_unknown(number, key, todo);
        };
        let key = held.key();
        // The request changed the mode of a lease that its owner still uses: record the new mode.
        asking.reply = None;
        if asking.wants != Wants::Less {
            self.grant(asking, key, todo);
        }
    }

    pub(crate) fn answer_came(&mut self) {
        self.unanswered -= 1;
        if self.unanswered == 0 {
            self.over.clear();
        }
    }

    /// Handles the event that the lease `key` of this session was granted. `number` is the lease
    /// number (the `number` of its [`OpenId`](crate::engine::OpenId)). `waited` is the ticket of
    /// the waiter to which the lock was granted; `None` if the request did not wait.
    pub(crate) fn granted(
        &mut self,
        number: u64,
        waited: Option<Ticket>,
        key: LeaseKey,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(token) = key.token else { return };
        let moved = if waited.is_none() { self.moved.take() } else { None };
        // A lease with this number and a lower token was moved or upgraded: it has the new token
        // now, so no event announces the end of the old one.
        self.released.retain(|(of, earlier)| *of != number || *earlier >= token);
        let goes_on = |name: &LockName, token: Option<Token>| {
            *name == key.name || token.is_some() && moved == token
        };
        let file = self.numbers.get(&number).and_then(|ino| self.files.get_mut(ino));
        let Some(file) = file.filter(|file| file.uses(number)) else {
            // The table does not know the lease number: an answer was lost or came too late.
            return self.give_back_unknown(number, key, todo);
        };
        if let Some(ticket) = waited
            && let Some(asking) = file.take(|a| a.number == number && a.ticket == Some(ticket))
        {
            return self.served(asking, key, todo);
        }
        let held = file.held(number);
        if held.is_some_and(|held| goes_on(&held.name, Some(held.token))) {
            return self.renamed(number, token, &key.name);
        }
        let is_held = held.is_some();
        let mut asks = file.asks.iter_mut();
        match asks.find(|asking| asking.number == number && asking.ticket.is_none()) {
            // The answer to the pending request will tell whether the new lease belongs to this
            // request.
            Some(asking) if !is_held || asking.may_begin(goes_on) => {
                let before = asking.early.take();
                let ticket = waited.or(before.as_ref().and_then(|early| early.ticket));
                // If the pending request was given up, a lease that was reported for it earlier
                // belongs to no owner, and is released. The exception is a lease that the new event
                // reports under another name or token.
                let other = before.map(|early| early.key);
                let other =
                    other.filter(|key| !asking.is_wanted() && !goes_on(&key.name, key.token));
                asking.early = Some(Early { ticket, key });
                if let Some(other) = other {
                    self.give_back_unknown(number, other, todo);
                }
            }
            _ => self.give_back_unknown(number, key, todo),
        }
    }

    /// Updates the token and name of the lease with this number, as after `mv`, unless it has a
    /// later token already.
    pub(crate) fn renamed(&mut self, number: u64, token: Token, name: &LockName) {
        let Some(&ino) = self.numbers.get(&number) else { return };
        let held = self.files.get_mut(&ino).and_then(|file| file.held_mut(number));
        let Some(held) = held.filter(|held| held.token < token) else { return };
        self.tenures.remove(&held.token);
        self.tenures.insert(token, ino);
        (held.token, held.name) = (token, name.clone());
    }

    /// Remembers that the lease with this token has ended, so that a late answer does not bring it
    /// back.
    pub(super) fn remember_over(&mut self, token: Token) {
        if self.unanswered > 0 {
            self.over.insert(token);
            if self.over.len() > OVER_MAX {
                self.over.pop_first();
            }
        }
    }

    /// Handles the event that a lease has ended: it was lost, was stolen, or its lock was removed
    /// by name.
    pub(crate) fn ended(&mut self, token: Token, todo: &mut Vec<Effect<R>>) {
        self.remember_over(token);
        self.released.retain(|(_, other)| *other != token);
        self.links.ended(token);
        let Some(ino) = self.tenures.remove(&token) else { return };
        let file = self.files.entry(ino).or_default();
        file.holds.retain(|held| held.token != token);
        if file.bundle.as_ref().is_some_and(|bundle| bundle.held.token == token) {
            file.bundle = None;
        }
        self.requeue(ino, todo);
    }

    /// Handles the event that `mv` has moved the lease with this token. The event of the grant
    /// under the new name follows; it names the lease number, by which [`Table::granted`] finds the
    /// moved lease.
    pub(crate) fn moved(&mut self, token: Token, name: &LockName, todo: &mut Vec<Effect<R>>) {
        self.moved = Some(token);
        self.changed(name, todo);
    }

    /// Handles a change of the lock `name`: requests that wait because the engine has refused them
    /// are tried again.
    pub(crate) fn changed(&mut self, name: &LockName, todo: &mut Vec<Effect<R>>) {
        let waits = |ino: &&u64| self.files.get(ino).is_some_and(|file| file.speaks_of(name));
        let inos: Vec<_> = self.queued.iter().filter(waits).copied().collect();
        for ino in inos {
            if let Some(file) = self.files.get_mut(&ino) {
                file.mark_changed();
            }
            self.requeue(ino, todo);
        }
    }

    /// Handles the event that a waiter has left the queue of the lock `name`, on its own or by its
    /// timeout.
    pub(crate) fn left(&mut self, ticket: Ticket, name: &LockName, todo: &mut Vec<Effect<R>>) {
        if let Some(ino) = self.leaving.remove(&ticket) {
            let file = self.files.get_mut(&ino);
            file.and_then(|file| file.take(|asking| asking.ticket == Some(ticket)));
            self.requeue(ino, todo);
        }
        self.changed(name, todo);
    }

    /// Handles a lock request that got no answer and whose outcome is unknown. Returns the reply
    /// channel of the program; the caller must report the failure on it.
    pub(crate) fn unanswered(
        &mut self,
        cookie: u64,
        ino: u64,
        todo: &mut Vec<Effect<R>>,
    ) -> Option<R> {
        let asking = self.files.get_mut(&ino)?.take(|asking| asking.cookie == cookie)?;
        // The request may have been applied, or may still be applied.
        todo.push(Effect::Recall(asking.recall()));
        asking.spend(&mut self.spent);
        if let Some(Early { key, .. }) = asking.early {
            self.give_back_unknown(asking.number, key, todo);
        }
        self.answer_came();
        self.fit_bundle(ino, todo);
        asking.reply
    }

    /// Handles a loss of events: queries the engine for all leases and pending requests in the
    /// table.
    pub(crate) fn missed(&mut self, todo: &mut Vec<Effect<R>>) {
        self.released.clear();
        self.moved = None;
        todo.extend(self.known().into_iter().map(Effect::Recall));
        todo.push(Effect::Compare);
    }

    /// Returns queries for all leases and submitted requests in the table.
    pub(super) fn known(&self) -> Vec<Recall> {
        let of_file = |file: &File<R>| {
            let bundle = file.bundle.iter().map(|bundle| &bundle.held);
            let held = file.holds.iter().chain(bundle);
            let held = held.map(|held| {
                let (number, name, token) = (held.number, held.name.clone(), Some(held.token));
                Recall { number, name, token }
            });
            held.chain(file.asks.iter().map(Asking::recall)).collect::<Vec<_>>()
        };
        self.files.values().flat_map(of_file).collect()
    }

    /// Handles the engine's reply to a [`Recall`], the query for a lease after events or an answer
    /// were lost.
    pub(crate) fn recalled(&mut self, asked: &Recall, found: &Found, todo: &mut Vec<Effect<R>>) {
        let number = asked.number;
        let lease = found.lease.clone();
        if let Some(key) = lease.clone().filter(|_| self.is_unknown(number)) {
            return self.found_stray(number, key, todo);
        }
        let Some(ino) = self.numbers.get(&number).copied() else { return };
        let Some(file) = self.files.get_mut(&ino) else { return };
        file.mark_changed();
        match (file.held(number).map(|held| (held.token, &held.name)), lease) {
            (Some((token, name)), None) if *name == asked.name && Some(token) == asked.token => {
                self.ended(token, todo);
            }
            // The query was for another name or token than the lease has now: the lock was granted
            // after the query, or `mv` has moved it.
            (Some(_), None) => {}
            (Some((token, name)), Some(key)) if *name == key.name || key.token <= Some(token) => {
                self.renamed(number, key.token.unwrap_or(token), &key.name);
            }
            (_, lease) => {
                let in_line =
                    |asking: &Asking<R>| asking.number == number && asking.ticket.is_some();
                let asking = file.take(in_line);
                match (asking, lease) {
                    (Some(asking), Some(key)) => self.served(asking, key, todo),
                    (Some(asking), None) => self.stands(asking, &found.tickets, todo),
                    (None, Some(key)) => file.granted_early(number, key),
                    (None, None) => {}
                }
            }
        }
        self.fit_bundle(ino, todo);
    }

    /// Keeps a waiting request if its ticket is still in the queue of the lock. If the ticket is
    /// gone although the program has not given up the wait, submits the request again, because the
    /// program still waits.
    pub(super) fn stands(
        &mut self,
        mut asking: Asking<R>,
        tickets: &[Ticket],
        todo: &mut Vec<Effect<R>>,
    ) {
        let ino = asking.ask.ino;
        let Some(ticket) = asking.ticket else { return };
        if tickets.contains(&ticket) {
            self.files.entry(ino).or_default().asks.push(asking);
        } else if asking.gone {
            self.leaving.remove(&ticket);
        } else {
            // The engine may have a lease with the request's former lease number under another
            // name, so the request gets a new number.
            asking.spend(&mut self.spent);
            asking.number = self.extra_number(ino);
            self.submit(asking, todo);
        }
    }

    /// Handles a lease of this session that the engine has reported: releases it if no lease and no
    /// request in the table has its number.
    pub(crate) fn found_stray(&mut self, number: u64, key: LeaseKey, todo: &mut Vec<Effect<R>>) {
        // An event may have announced the end of the lease before, so the table does not wait for
        // one.
        let is_released = |token| self.released.contains(&(number, token));
        if self.is_unknown(number) && !key.token.is_some_and(is_released) {
            todo.push(self.release(number, key));
        }
    }

    /// Returns the present name and token of the lease with this number (unique within the
    /// session).
    pub(super) fn key_of(&self, number: u64) -> Option<LeaseKey> {
        let file = self.files.get(self.numbers.get(&number)?)?;
        Some(file.held(number)?.key())
    }

    /// Whether no lease and no submitted request in the table has this lease number (unique within
    /// the session).
    pub(super) fn is_unknown(&self, number: u64) -> bool {
        let file = self.numbers.get(&number).and_then(|ino| self.files.get(ino));
        !file.is_some_and(|file| file.uses(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SessionId;

    #[test]
    fn a_limited_number_of_ended_leases_is_remembered_for_late_answers() {
        let mut table = Table::<()>::new(SessionId::named(1));
        table.ended(Token::named(7), &mut Vec::new());
        assert!(table.over.is_empty(), "no answer can bring it back");
        table.unanswered = 1;
        for number in 0..=OVER_MAX as u64 {
            table.ended(Token::named(number), &mut Vec::new());
        }
        let oldest = table.over.first().copied();
        assert_eq!((table.over.len(), oldest), (OVER_MAX, Some(Token::named(1))));
        table.answer_came();
        assert!(table.over.is_empty());
    }
}
