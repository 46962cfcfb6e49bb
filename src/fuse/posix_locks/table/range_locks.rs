//! Lock requests for a part of a file, and for the whole of a file of which parts are locked. One
//! lease of the engine (the *bundle*) covers all locked ranges of a file.

use crate::engine::Mode;
use crate::fuse::posix_locks::byte_ranges::Span;
use crate::fuse::posix_locks::table::locked_file::{Asking, Turn, Wants, answer};
use crate::fuse::posix_locks::table::messages::{Ask, Call, Effect, No, Waits};
use crate::fuse::posix_locks::table::table_state::Table;
use crate::fuse::posix_locks::table::unlock::leave;

impl<R> Table<R> {
    /// Locks a byte range of the file for the request's owner. If parts of the file are locked,
    /// also locks the whole file, as one range.
    pub(super) fn lock_range(
        &mut self,
        mut asking: Asking<R>,
        turn: Turn,
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
            let waits = bundles().next().is_some() || turn == Turn::New && !file.queue.is_empty();
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
                    bundle.ranges.unlock(owner.id, Span::WHOLE);
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
