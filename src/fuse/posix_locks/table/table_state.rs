//! The lock table of a mount: which files are locked or waited for, and how a lock request is
//! processed.

use crate::engine::{
    Acquire, LeaseKey, LeaseTerms, LockName, Mode, OpenId, Ownership, Patch, QueuePolicy, Reason,
    Refusal, SessionId, Ticket, Token,
};
use crate::fuse::kernel::hash_maps::{Numbered, Numbers};
use crate::fuse::posix_locks::byte_ranges::{Ranges, Span};
use crate::fuse::posix_locks::table::linked_leases::LinkedLeases;
use crate::fuse::posix_locks::table::locked_file::{
    Asking, Bundle, File, Held, Placed, Turn, Wants, answer,
};
use crate::fuse::posix_locks::table::messages::{Ask, Call, Effect, No, Waits};
use std::collections::BTreeSet;

/// The first lease number that is not a file handle. The lease number is the `number` of an
/// [`OpenId`], which tells apart the leases of one session. An open file's lease has the file
/// handle as its number; the lease of a second owner of the same open file, and the lease that
/// covers a file's byte ranges, get a number from here on.
pub(super) const EXTRA_NUMBERS: u64 = 1 << 62;

/// All files of one mount that are locked or waited for. `R` is the type of a reply to a program.
#[derive(Debug)]
pub(crate) struct Table<R> {
    pub(super) session: SessionId,
    pub(super) files: Numbered<File<R>>,
    /// The inode of each lease number (the `number` of an [`OpenId`]) that is in use.
    pub(super) numbers: Numbered<u64>,
    /// The inode that is locked under each fencing token.
    pub(super) tenures: Numbered<u64, Token>,
    /// The inodes at which a lock request waits for another owner of this mount, or extends a lease
    /// that its owner already has.
    pub(super) queued: Numbers,
    /// The inode whose waiting requests are being retried, and whether they must be retried once
    /// more.
    pub(super) serving: Option<(u64, bool)>,
    /// The inode of each place in a lock's wait queue that was given up, until an event confirms
    /// that the place is gone.
    pub(super) leaving: Numbered<u64, Ticket>,
    /// The token of the lease that `mv` moved last. The next lease that is granted without a wait
    /// is the same lease under its new name.
    pub(super) moved: Option<Token>,
    /// The file handles that must not become lease numbers any more: an open file with this handle
    /// was granted a lock, or gave up a request. A release names its lease by number and may reach
    /// the engine late, so it could end a later lease with the same number.
    pub(super) spent: Numbers,
    /// The number and token of each lease that was released, until an event announces the end of
    /// the lease.
    pub(super) released: Vec<(u64, Token)>,
    /// The number of requests that the engine has not answered.
    pub(super) unanswered: usize,
    /// The tokens of leases that ended while requests are unanswered, so that a late answer does
    /// not bring back a lease that is over.
    pub(super) over: BTreeSet<Token>,
    /// The leases that `ln` of a locked file has made.
    pub(super) links: LinkedLeases,
    pub(super) next_extra: u64,
    pub(super) next_cookie: u64,
}

impl<R> Table<R> {
    pub(crate) fn new(session: SessionId) -> Self {
        let (files, numbers, tenures, leaving) = Default::default();
        let (queued, spent, released, over, links) = Default::default();
        let (unanswered, next_extra, next_cookie) = (0, EXTRA_NUMBERS, 1);
        let (serving, moved) = (None, None);
        Self {
            session,
            files,
            numbers,
            tenures,
            queued,
            serving,
            leaving,
            moved,
            spent,
            released,
            unanswered,
            over,
            links,
            next_extra,
            next_cookie,
        }
    }

    /// Returns the session to which the leases are attached.
    pub(crate) const fn session(&self) -> SessionId {
        self.session
    }

    /// Whether the table is empty, so that no event or answer of the engine could concern it.
    pub(crate) fn is_idle(&self) -> bool {
        let is_known = self.files.is_empty() && self.leaving.is_empty() && self.unanswered == 0;
        is_known && self.released.is_empty() && self.links.is_empty()
    }

    /// Handles a program's request for a lock.
    pub(crate) fn lock(&mut self, mut ask: Ask, reply: R, todo: &mut Vec<Effect<R>>) {
        // A lease in the table is an open file's already.
        ask.takes_over = ask.takes_over.filter(|token| !self.tenures.contains_key(token));
        if self.may_resume(&ask) {
            self.reattach(&ask, reply, todo);
            return;
        }
        // After an interrupted wait, the program returned with a different request. So the queue
        // place or the lock that was kept for a restart of the interrupted call is released.
        let (ino, id) = (ask.ino, ask.owner.id);
        // A request that does not wait would be refused because of any such place or lock, even if
        // the lock is free. So it makes the interrupted waiters of all owners give up theirs.
        let gives_up = |of: u64| of == id || ask.line == Waits::No;
        self.abandon(ino, |a| a.reply.is_none() && gives_up(a.ask.owner.id), todo);
        self.drop_holds(ino, |held| held.unclaimed && gives_up(held.owner.id), todo);
        self.begin(Asking::new(ask, Some(reply), Wants::Hold), Turn::New, todo);
    }

    /// Decides a lock request within this mount if it can, and otherwise submits it to the engine.
    pub(super) fn begin(&mut self, mut asking: Asking<R>, turn: Turn, todo: &mut Vec<Effect<R>>) {
        let Ask { ino, owner, span, mode, .. } = asking.ask;
        let file = self.file(ino);
        if file.is_awaited_by(owner.id) {
            return file.behind.push(asking);
        }
        let first = turn == Turn::Next || asking.ask.takes_over.is_some() || file.queue.is_empty();
        if span != Span::WHOLE || file.bundle.is_some() || !first {
            return self.lock_range(asking, turn, todo);
        }
        if let Some(place) = file.holds.iter().position(|held| held.owner.id == owner.id) {
            if file.is_asked(file.holds[place].number) {
                return file.behind.push(asking);
            }
            let held = &mut file.holds[place];
            // `mv` may have renamed the lock that the open file holds, so the request gets the
            // present name.
            asking.ask.name = held.name.clone();
            if mode == Mode::Shared {
                // This is a downgrade to shared mode. Other readers may share the lock as soon as
                // the engine has processed the request, which may be before the answer comes.
                held.mode = mode;
            }
        }
        asking.number = self.number_for(&asking.ask);
        asking.wants = Wants::Hold;
        self.submit(asking, todo);
    }

    /// Submits a lock request to the engine.
    pub(super) fn submit(&mut self, mut asking: Asking<R>, todo: &mut Vec<Effect<R>>) {
        let Asking { number, ask, .. } = &asking;
        if ask.line == Waits::Yes && self.would_wait_for_itself(ask) {
            let ino = ask.ino;
            answer(asking, Err(No::Deadlock), todo);
            return self.tidy(ino);
        }
        let line = match ask.line {
            Waits::Yes => QueuePolicy::Join(None),
            Waits::No => QueuePolicy::Skip,
        };
        // One lease covers all byte ranges of a file. It stays under the name and client of the
        // owner that locked the first range, even if another owner needs the lease in another mode.
        let bundle = self.files.get(&ask.ino).and_then(|file| file.bundle.as_ref());
        let bundle = bundle.map(|bundle| &bundle.held).filter(|held| held.number == *number);
        let (name, client, patch) = match bundle {
            Some(held) => (held.name.clone(), held.client.clone(), Patch::default()),
            None => (ask.name.clone(), ask.client.clone(), ask.patch.clone()),
        };
        asking.ask.name = name.clone();
        let ask = &asking.ask;
        let acquire = Acquire {
            mode: ask.mode,
            hold: Ownership::OpenFile(OpenId { session: self.session, number: asking.number }),
            line,
            patch,
            takes_over: ask.takes_over,
            ..Acquire::new(name, client, LeaseTerms::Session(self.session))
        };
        self.next_cookie += 1;
        let (cookie, ino) = (self.next_cookie, ask.ino);
        todo.push(Effect::Submit { cookie, ino, ask: Box::new(acquire) });
        (asking.cookie, asking.ticket, asking.early) = (self.next_cookie, None, None);
        asking.news = false;
        self.unanswered += 1;
        let file = self.files.entry(ino).or_default();
        debug_assert!(!file.is_asked(asking.number), "one request at a time for each number");
        file.asks.push(asking);
        if file.is_growing() {
            self.queued.insert(ino);
        }
    }

    /// Enters the lease of a granted request in the table and replies to the program. If the lease
    /// no longer fits the table, begins the request again.
    pub(super) fn grant(&mut self, asking: Asking<R>, key: LeaseKey, todo: &mut Vec<Effect<R>>) {
        let Some(token) = key.token else { return };
        let Ask { ino, owner, .. } = asking.ask;
        todo.push(Effect::Speaks(owner.fh, token));
        asking.spend(&mut self.spent);
        match self.place(asking, (key.name, token), todo) {
            Placed::Yes(asking) => answer(asking, Ok(()), todo),
            // Another owner of this mount took the lock while the engine processed the request.
            Placed::Again(asking) if asking.reply.is_some() => {
                self.begin(asking, Turn::Next, todo);
            }
            Placed::Again(_) => {}
        }
        if self.files.get(&ino).is_some_and(|file| file.holds_tenure(token)) {
            self.tenures.insert(token, ino);
        }
        if self.over.contains(&token) {
            return self.ended(token, todo);
        }
        self.withdraw_covered(ino, todo);
        self.fit_bundle(ino, todo);
    }

    /// Enters the lease of a granted request in the table: as an owner's lease on the whole file,
    /// or as the lease that covers the byte ranges of the file.
    pub(super) fn place(
        &mut self,
        asking: Asking<R>,
        (name, token): (LockName, Token),
        todo: &mut Vec<Effect<R>>,
    ) -> Placed<R> {
        let number = asking.number;
        let Ask { ino, owner, mode, span, .. } = asking.ask;
        // A request without a reply was interrupted by a signal: its program was told that it did
        // not get the lock.
        let claimed = asking.reply.is_some();
        let client = asking.ask.client.clone();
        let mut held = Held { number, owner, name, client, token, mode, unclaimed: !claimed };
        self.let_go_of_former(&held, ino, todo);
        let file = self.files.entry(ino).or_default();
        match &mut file.bundle {
            // The request may have been for a lock on the whole file. Since then, that lease has
            // become the one that covers the file's byte ranges.
            Some(bundle) if bundle.held.number == number => {
                if bundle.held.token < token {
                    // A higher token means that the earlier lease, which covered the file's byte
                    // ranges, was lost, and the locked ranges with it.
                    self.tenures.remove(&bundle.held.token);
                    (bundle.held.token, bundle.ranges) = (token, Ranges::default());
                }
                bundle.held.mode = mode;
                if claimed && !bundle.ranges.lock_if_free(owner, span, mode) {
                    return Placed::Again(asking);
                }
            }
            // Another lease already covers the byte ranges of this file, so the granted one is
            // released.
            Some(_) if asking.wants == Wants::Bundle => {
                self.give_back(ino, &held, todo);
                return Placed::Again(asking);
            }
            None if asking.wants == Wants::Bundle => {
                let mut ranges = Ranges::default();
                if claimed {
                    ranges.lock(owner, span, mode);
                }
                file.bundle = Some(Bundle { held, ranges });
            }
            Some(_) | None => {
                if let Some(place) = file.holds.iter().position(|other| other.number == number) {
                    let before = file.holds.remove(place);
                    self.tenures.remove(&before.token);
                    // If a signal interrupted only an upgrade to exclusive mode, the program still
                    // holds the lock in its former mode.
                    held.unclaimed &= before.unclaimed;
                    if !claimed && !held.unclaimed && before.mode == Mode::Shared {
                        let more = std::mem::replace(&mut held.mode, Mode::Shared);
                        if more == Mode::Exclusive {
                            let less = held.less(ino);
                            file.holds.push(held);
                            self.submit(less, todo);
                            return Placed::Yes(asking);
                        }
                    }
                }
                file.holds.push(held);
            }
        }
        Placed::Yes(asking)
    }

    pub(super) fn refused(
        &mut self,
        mut asking: Asking<R>,
        refusal: Refusal,
        todo: &mut Vec<Effect<R>>,
    ) {
        let number = asking.number;
        let ino = asking.ask.ino;
        match &*refusal.reason {
            Reason::Conflict(_) => {}
            Reason::HoldOff { .. } => {
                return answer(asking, Err(No::Busy(Some(Box::new(refusal)))), todo);
            }
            _ => return answer(asking, Err(No::Refused(Box::new(refusal))), todo),
        }
        let file = self.files.entry(ino).or_default();
        let own = file.holds.iter().position(|held| held.number == number);
        let (owner, tid, call) = (asking.ask.owner.id, asking.ask.tid, asking.ask.call);
        let bundle = file.bundle.as_mut().filter(|bundle| bundle.held.number == number);
        if let Some(bundle) = bundle.filter(|bundle| bundle.ranges.has(owner))
            && call(tid) == Call::Flock
        {
            // As below: the caller then releases the lease if no range is left.
            bundle.ranges.unlock(owner, Span::WHOLE);
        }
        match own.map(|place| (place, (asking.ask.call)(asking.ask.tid))) {
            Some((place, Call::Flock)) => {
                // Changing the mode of an flock is not atomic, as flock(2) documents: the old lock
                // is released before the lock is requested in the new mode.
                let held = file.holds.remove(place);
                self.give_back(ino, &held, todo);
                asking.number = self.extra_number(ino);
                self.submit(asking, todo);
            }
            // The conflicting holder may have released the lock before the refusal came. `news`
            // tells whether the lock has changed since the request was submitted.
            _ if asking.ask.line == Waits::Yes => {
                asking.refused = !asking.news;
                self.enqueue(asking, todo);
            }
            _ => answer(asking, Err(No::Busy(Some(Box::new(refusal)))), todo),
        }
    }

    /// Retries the requests in `behind`, which wait until the engine has answered another request,
    /// then those in `queue`, which wait for an owner of this mount, in order. A request that still
    /// cannot proceed keeps waiting.
    pub(super) fn requeue(&mut self, ino: u64, todo: &mut Vec<Effect<R>>) {
        if let Some((_, again)) = self.serving.as_mut().filter(|(file, _)| *file == ino) {
            *again = true;
            return;
        }
        let outer = self.serving.replace((ino, true));
        while let Some((_, again)) = &mut self.serving
            && std::mem::take(again)
        {
            self.serve_queue(ino, todo);
        }
        self.serving = outer;
        self.tidy(ino);
    }

    pub(super) fn serve_queue(&mut self, ino: u64, todo: &mut Vec<Effect<R>>) {
        let behind = self.files.get_mut(&ino).map(|file| std::mem::take(&mut file.behind));
        for asking in behind.unwrap_or_default() {
            if asking.reply.is_some() {
                self.begin(asking, Turn::New, todo);
            } else {
                self.files.entry(ino).or_default().behind.push(asking);
            }
        }
        while let Some(file) = self.files.get_mut(&ino) {
            let place = file.queue.iter().position(|asking| file.may_go_on(asking));
            let Some(place) = place else { break };
            let Some(asking) = file.queue.remove(place) else { break };
            self.begin(asking, Turn::Next, todo);
        }
    }

    /// Forgets the lease numbers of a file that no lease and no request uses any more, and the file
    /// itself if it is neither locked nor waited for.
    pub(super) fn tidy(&mut self, ino: u64) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if !self.queued.is_empty() && file.queue.is_empty() && !file.is_growing() {
            self.queued.remove(&ino);
        }
        if file.is_idle() {
            for number in file.numbers.drain(..) {
                self.numbers.remove(&number);
            }
            self.files.remove(&ino);
            return;
        }
        if file.numbers.len() == 1 {
            // A file with one lease number and a lease or request still uses that number.
            return;
        }
        // Unused numbers are removed in one pass: with a thousand waiters, a pass for each number
        // would take a million steps.
        let (used, index) = (file.used(), &mut self.numbers);
        file.numbers.retain(|number| {
            let stays = used.contains(number);
            if !stays {
                index.remove(number);
            }
            stays
        });
    }

    /// Returns the table's entry for an inode, a new one if there is none yet.
    pub(super) fn file(&mut self, ino: u64) -> &mut File<R> {
        self.files.entry(ino).or_default()
    }

    /// Returns the lease number for a request of `ask.owner` for the whole file: the number of the
    /// lease that the owner has, else the file handle. If another owner uses the file handle as its
    /// number, or the handle is in `spent`, returns a new number. Only under its file handle can an
    /// open file take over the lock that it was created with.
    pub(super) fn number_for(&mut self, ask: &Ask) -> u64 {
        let file = self.files.entry(ask.ino).or_default();
        if let Some(held) = file.holds.iter().find(|held| held.owner.id == ask.owner.id) {
            return held.number;
        }
        if self.numbers.contains_key(&ask.owner.fh) || self.spent.contains(&ask.owner.fh) {
            return self.extra_number(ask.ino);
        }
        self.use_number(ask.owner.fh, ask.ino);
        ask.owner.fh
    }

    pub(super) fn extra_number(&mut self, ino: u64) -> u64 {
        self.next_extra += 1;
        self.use_number(self.next_extra, ino);
        self.next_extra
    }

    pub(super) fn use_number(&mut self, number: u64, ino: u64) {
        self.numbers.insert(number, ino);
        self.files.entry(ino).or_default().numbers.push(number);
    }

    /// Whether `ask` repeats a request that a signal interrupted, as a restarted system call does:
    /// the interrupted request still waits, or the lock was granted to it meanwhile.
    pub(super) fn may_resume(&self, ask: &Ask) -> bool {
        let Some(file) = self.files.get(&ask.ino) else { return false };
        let parked = file.asks.iter().chain(&file.queue).chain(&file.behind);
        parked.into_iter().any(|asking| asking.is_parked_for(ask))
            || file.holds.iter().any(|held| {
                held.unclaimed && held.owner.id == ask.owner.id && held.mode == ask.mode
            })
    }

    pub(super) fn reattach(&mut self, ask: &Ask, reply: R, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ask.ino) else { return };
        let unclaimed = file
            .holds
            .iter_mut()
            .find(|held| held.unclaimed && held.owner.id == ask.owner.id && held.mode == ask.mode);
        if let Some(held) = unclaimed {
            held.unclaimed = false;
            todo.push(Effect::Reply(reply, Ok(())));
            return;
        }
        let File { asks, queue, behind, .. } = file;
        let mut parked = asks.iter_mut().chain(queue).chain(behind);
        if let Some(asking) = parked.find(|asking| asking.is_parked_for(ask)) {
            asking.reply = Some(reply);
            asking.ask.tid = ask.tid;
            todo.push(Effect::Watch(asking.number, ask.tid));
        }
        self.break_circle(ask, todo);
        // The interrupted request may have become the first of the queue before its system call was
        // restarted.
        self.requeue(ask.ino, todo);
    }
}
