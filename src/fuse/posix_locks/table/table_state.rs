//! The lock table of a mount: which files are locked or waited for, and how a lock request is
//! processed.
//!
//! The messages of the lock table: the requests of programs that it handles, and the effects that
//! its caller must perform.
//!
//! One file in the lock table: the leases by which owners hold it, its locked byte ranges, and its
//! pending requests.
//!
//! The leases that `ln` of a locked file has made: they end with the lock of the open file.

use crate::engine::{
    Acquire, ClientId, LeaseKey, LeaseTerms, LockName, Mode, Op, OpenId, Ownership, Patch,
    QueuePolicy, Reason, Refusal, Release, SessionId, Ticket, Token,
};
use crate::fuse::posix_locks::byte_ranges::{ByteRange, PosixOwner, Ranges};
use kernel::handles::{Numbered, Numbers};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A program's request for a lock.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) ino: u64,
    pub(crate) owner: PosixOwner,
    /// The thread that makes the request, to be watched for signals while it waits.
    pub(crate) tid: u32,
    pub(crate) span: ByteRange,
    pub(crate) mode: Mode,
    /// The name of the lock whose file is locked.
    pub(crate) name: LockName,
    pub(crate) client: ClientId,
    /// The changes to the details of the lease, such as its holder id.
    pub(crate) patch: Patch,
    /// The token of a lease that the program has made or written through the same open file, and
    /// which this request takes over. Such a request waits for no other: all of them wait for that
    /// lease.
    pub(crate) takes_over: Option<Token>,
    pub(crate) line: Waits,
    /// Finds out which system call makes the request: to change the mode, flock(2) releases the old
    /// lock before it takes the new one, and fcntl(2) does not.
    pub(crate) call: CallOf,
}

/// Whether a program waits for a lock that is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    Yes,
    No,
}

/// The system call that requests a lock. flock(2) and fcntl(2) change the mode of a lock in
/// different ways, and only the owners of traditional fcntl(2) locks are processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Flock,
    Fcntl,
    /// fcntl(2) with `F_OFD_SETLKW`.
    Ofd,
}

/// A function that returns the system call of a thread, while the program still waits in it. It is
/// called only when the result matters, because it costs as much as the rest of the lock request.
pub(crate) type CallOf = fn(tid: u32) -> Call;

/// The reason why a lock request fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum No {
    /// Another owner holds the lock: EAGAIN.
    Busy(Option<Box<Refusal>>),
    /// A signal arrived: EINTR.
    Interrupted,
    /// The holder waits for the requesting owner: EDEADLK.
    Deadlock,
    /// The file has the maximum number of locked ranges: ENOLCK.
    Full,
    /// The engine refused for another reason.
    Refused(Box<Refusal>),
}

/// A query to the engine after events or an answer were lost: which lease of the session has this
/// lease number on the lock `name`, and which waiters the lock has.
#[derive(Debug, Clone)]
pub(crate) struct Recall {
    pub(crate) number: u64,
    pub(crate) name: LockName,
    /// The token of the lease with this number when the query was made, if it had one. The answer
    /// can end only the lease with this token: an event that arrived in between may be newer than
    /// the answer.
    pub(crate) token: Option<Token>,
}

/// The engine's reply to a [`Recall`], the query that is made after events or an answer were lost.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The lease with the number of the query, if the engine has one.
    pub(crate) lease: Option<LeaseKey>,
    /// The tickets of all waiters in the queue of the lock that was queried.
    pub(crate) tickets: Vec<Ticket>,
}

/// An action that the table has decided and that the table's caller must perform.
#[derive(Debug)]
pub(crate) enum Effect<R> {
    /// Submit an acquire to the engine, and pass the answer to [`Table::answered`] with this
    /// cookie.
    Submit {
        /// Identifies the request when the answer comes.
        cookie: u64,
        /// The inode of the lock request. It is passed back to the table together with the cookie.
        ino: u64,
        /// The request to the engine. Boxed, so that `Effect` stays small.
        ask: Box<Acquire>,
    },
    /// Submit a release or a departure from a queue to the engine, and ignore the answer. If a
    /// reply is given, a program waits for it: send the reply once the operation is decided, or
    /// once the time limit for answers has passed.
    Tell(Box<Op>, Option<R>),
    /// Reply to the program's lock request.
    Reply(R, Result<(), No>),
    /// The lease on the lock of this name was renewed, and has this fencing token, which an upgrade
    /// to exclusive mode changes.
    Continues(LockName, Token),
    /// From now on, writes through the open file with this handle count as writes by the holder of
    /// this fencing token.
    Speaks(u64, Token),
    /// A request waits for the lease with this number (unique within the session): watch the thread
    /// with this id for signals until the request has been answered.
    Watch(u64, u32),
    /// Events or an answer were lost: query the engine, and pass the result to [`Table::recalled`].
    Recall(Recall),
    /// Events were lost: compare the leases that are attached to the session with those in the
    /// table, and pass each lease that the table does not know to [`Table::found_stray`].
    Compare,
}

/// The state of one inode. `R` is the type of a reply to a program.
#[derive(Debug)]
pub(crate) struct File<R> {
    /// The leases on the whole file, one for each owner.
    pub(crate) holds: Vec<Held>,
    /// Lock requests that were submitted to the engine: for the whole file, or for the one lease
    /// that covers the file's byte ranges.
    pub(crate) asks: Vec<Asking<R>>,
    pub(crate) bundle: Option<Bundle>,
    /// Lock requests that wait for an owner of this mount.
    pub(crate) queue: VecDeque<Asking<R>>,
    /// Lock requests that can't be decided before the engine has answered another request.
    pub(crate) behind: Vec<Asking<R>>,
    /// The lease numbers (of [`Held`] and [`Asking`]) that belong to this file. Some of them may be
    /// unused since the last cleanup.
    pub(crate) numbers: Vec<u64>,
}

/// A hold: a lease of the engine that one owner has on a whole file, or that covers the byte ranges
/// of all owners. Its `number` identifies the lease within the session.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) number: u64,
    pub(crate) owner: PosixOwner,
    pub(crate) name: LockName,
    pub(crate) client: ClientId,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    /// Whether the lock was granted to a waiter that a signal had just interrupted, and whose
    /// system call was not restarted yet.
    pub(crate) unclaimed: bool,
}

/// The one lease of the engine that covers all locked byte ranges of a file, together with these
/// ranges.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) held: Held,
    pub(crate) ranges: Ranges,
}

/// A lock request that is not decided yet.
#[derive(Debug)]
pub(crate) struct Asking<R> {
    pub(crate) number: u64,
    /// Distinguishes this request from other requests for a lease with the same number. The
    /// engine's answer is passed to the table with this cookie.
    pub(crate) cookie: u64,
    pub(crate) ask: Ask,
    /// The channel of the reply to the program; `None` after a signal has interrupted the wait. The
    /// request's queue place is then kept for a moment, because a restarted system call repeats the
    /// request.
    pub(crate) reply: Option<R>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) wants: Wants,
    /// Whether the program gave up the request, perhaps before the request reached the engine. The
    /// number of the requested lease stays in use until the outcome is known: the outcome of a
    /// second request with the same number would look the same.
    pub(crate) gone: bool,
    /// The lease with the number of this request, if an event, or a query after lost events,
    /// reported the lease before the answer to the request came.
    pub(crate) early: Option<Early>,
    /// Whether the lock has changed since the request was submitted. The engine may have decided
    /// the request before the change.
    pub(crate) news: bool,
    /// Whether the engine has refused the request, and would refuse it as long as the lock does not
    /// change.
    pub(crate) refused: bool,
}

/// A lease that an event reported before the answer to the lock request came.
#[derive(Debug)]
pub(crate) struct Early {
    /// The ticket of the waiter to which the lease was granted; `None` if the request did not wait.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) key: LeaseKey,
}

/// Whether a lock request is new, or has waited in the file's queue before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    New,
    Next,
}

/// The change that a lock request makes in the table when it is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    Hold,
    Bundle,
    /// The owner's lease on the whole file is downgraded to shared mode. No program waits for the
    /// answer.
    Less,
}

/// Whether the lease of a granted request could be entered in the table.
#[derive(Debug)]
pub(crate) enum Placed<R> {
    Yes(Asking<R>),
    /// The granted lease no longer fits the table, and the request must be made again.
    Again(Asking<R>),
}

impl<R> Default for File<R> {
    fn default() -> Self {
        let (holds, asks, queue) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { holds, asks, bundle: None, queue, behind: Vec::new(), numbers: Vec::new() }
    }
}

impl<R> File<R> {
    /// Converts the whole-file lease of the owner `id` into a locked byte range. If another lease
    /// already covers the byte ranges of this file, the owner's own lease is returned, so that the
    /// caller releases it.
    pub(crate) fn bundle_up(&mut self, id: u64) -> Option<Held> {
        let place = self.holds.iter().position(|held| held.owner.id == id)?;
        let held = self.holds.remove(place);
        if let Some(bundle) = &mut self.bundle {
            bundle.ranges.lock_if_free(held.owner, ByteRange::WHOLE, held.mode);
            return Some(held);
        }
        let mut ranges = Ranges::default();
        ranges.lock(held.owner, ByteRange::WHOLE, held.mode);
        self.bundle = Some(Bundle { held, ranges });
        None
    }

    /// Removes and returns the first request that `which` selects among those that were submitted
    /// to the engine.
    pub(crate) fn take(&mut self, which: impl Fn(&Asking<R>) -> bool) -> Option<Asking<R>> {
        let place = self.asks.iter().position(which)?;
        Some(self.asks.remove(place))
    }

    pub(crate) fn holds_tenure(&self, token: Token) -> bool {
        self.held_under(token).is_some()
    }

    /// Returns the lease with this token: an owner's lease on the whole file, or the lease that
    /// covers the byte ranges.
    pub(crate) fn held_under(&self, token: Token) -> Option<&Held> {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).find(|held| held.token == token)
    }

    /// Whether a lease with another number than this one covers the file's byte ranges.
    pub(crate) fn is_covered_beside(&self, number: u64) -> bool {
        self.bundle.as_ref().is_some_and(|bundle| bundle.held.number != number)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.bundle.is_none() && self.is_quiet()
    }

    /// Returns the lease with this number: an owner's lease on the whole file, or the lease that
    /// covers the byte ranges.
    pub(crate) fn held(&self, number: u64) -> Option<&Held> {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).find(|held| held.number == number)
    }

    pub(crate) fn held_mut(&mut self, number: u64) -> Option<&mut Held> {
        let bundle = self.bundle.iter_mut().map(|bundle| &mut bundle.held);
        self.holds.iter_mut().chain(bundle).find(|held| held.number == number)
    }

    /// Whether a request with this lease number was submitted and is pending. There must not be two
    /// with the same number: their answers could arrive in either order, and the earlier request
    /// would seem to undo the later one.
    pub(crate) fn is_asked(&self, number: u64) -> bool {
        self.asks.iter().any(|asking| asking.number == number)
    }

    /// Whether a lease of this file, or a submitted request for one, has this number (unique within
    /// the session).
    pub(crate) fn uses(&self, number: u64) -> bool {
        self.held(number).is_some() || self.is_asked(number)
    }

    /// Records, for the unanswered request with this lease number, that the engine already has the
    /// lease `key` with the same number.
    pub(crate) fn granted_early(&mut self, number: u64, key: LeaseKey) {
        let mut own = self.asks.iter_mut().filter(|asking| asking.number == number);
        if let Some(asking) = own.find(|asking| asking.early.is_none()) {
            asking.early = Some(Early { ticket: None, key });
        }
    }

    /// Whether the outcome of an earlier request of the owner `id` is still unknown. If the owner's
    /// next request were decided now, the owner could conflict with itself.
    pub(crate) fn is_awaited_by(&self, id: u64) -> bool {
        self.asks.iter().any(|asking| {
            let open = asking.gone || asking.ticket.is_none();
            open && asking.ask.owner.id == id && asking.wants != Wants::Less
        })
    }

    /// Whether this file has no pending request.
    pub(crate) fn is_quiet(&self) -> bool {
        self.asks.is_empty() && self.queue.is_empty() && self.behind.is_empty()
    }

    /// Whether an event about the lock `name` may concern this file: a lease on it or a pending
    /// request has that name.
    pub(crate) fn speaks_of(&self, name: &LockName) -> bool {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| &held.name);
        let asks = self.queue.iter().chain(&self.asks).map(|asking| &asking.ask.name);
        held.chain(asks).any(|other| other == name)
    }

    /// Records that the lock of this file has changed, so that refused requests are tried again.
    pub(crate) fn mark_changed(&mut self) {
        self.asks.iter_mut().for_each(|asking| asking.news = true);
        self.queue.iter_mut().for_each(|asking| asking.refused = false);
    }

    /// Whether a waiting request would extend a lease that its owner already has, or one that it
    /// takes over. The engine refuses such a request and does not queue it.
    pub(crate) fn is_growing(&self) -> bool {
        let waits = |asking: &&Asking<R>| asking.ask.line == Waits::Yes && asking.ticket.is_none();
        let has = |asking: &Asking<R>| {
            asking.ask.takes_over.is_some() || self.held(asking.number).is_some()
        };
        self.asks.iter().filter(waits).any(has)
    }

    /// Returns the lease numbers of all leases and pending requests of this file.
    pub(crate) fn used(&self) -> Numbers {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| held.number);
        let asks = self.asks.iter().chain(&self.queue).chain(&self.behind);
        held.chain(asks.map(|asking| asking.number)).collect()
    }

    /// Whether a request in the queue may proceed: if it were retried now, it would not only be
    /// queued for the same reason as before.
    pub(crate) fn may_retry(&self, asking: &Asking<R>) -> bool {
        if asking.refused || asking.reply.is_none() {
            return false;
        }
        let Ask { owner, span, mode, .. } = asking.ask;
        let others = self.holds.iter().any(|held| {
            held.owner.id != owner.id && (held.mode == Mode::Exclusive || mode == Mode::Exclusive)
        });
        // A request for the lease that is to cover the byte ranges goes first, unless it waits for
        // this very owner, which already holds the whole file.
        let own = self.holds.iter().any(|held| held.owner.id == owner.id);
        let bundle_comes = self.asks.iter().any(|other| other.wants == Wants::Bundle) && !own;
        match &self.bundle {
            Some(bundle) => bundle.ranges.conflict(owner.id, span, mode).is_none(),
            None => !others && !bundle_comes,
        }
    }
}

impl<R> Asking<R> {
    pub(crate) const fn new(ask: Ask, reply: Option<R>, wants: Wants) -> Self {
        let (number, cookie, ticket, early) = (0, 0, None, None);
        let (gone, news, refused) = (false, false, false);
        Self { number, cookie, ask, reply, ticket, wants, gone, early, news, refused }
    }

    pub(crate) fn key(&self, token: Token) -> LeaseKey {
        let (name, client) = (self.ask.name.clone(), self.ask.client.clone());
        LeaseKey { name, client, token: Some(token) }
    }

    /// Returns the lease that the engine's answer to this request granted under the fencing token
    /// `token`. If `mv` has renamed the lease before the answer came, returns its new name and
    /// token.
    pub(crate) fn latest(&mut self, token: Token) -> LeaseKey {
        let early = self.early.take().map(|early| early.key);
        early.filter(|key| key.token > Some(token)).unwrap_or_else(|| self.key(token))
    }

    /// Whether a lease that an event announced belongs to this pending request, if a lease with the
    /// same number is already held. Otherwise the event reports that `mv` has moved the held lease.
    /// `goes_on` tells whether the announced lease continues one with the given name and token.
    pub(crate) fn may_begin(&self, goes_on: impl Fn(&LockName, Option<Token>) -> bool) -> bool {
        let early = self.early.as_ref().map(|early| &early.key);
        goes_on(&self.ask.name, None) || early.is_some_and(|key| goes_on(&key.name, key.token))
    }

    /// Whether a program waits for the lock, or may restart its interrupted system call to wait for
    /// it.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.gone && self.wants != Wants::Less
    }

    /// Adds the file handle of the open file to `spent`, if it is the lease number of this request:
    /// a later request through the same open file must get another number.
    pub(crate) fn spend(&self, spent: &mut Numbers) {
        if self.wants != Wants::Less && self.number == self.ask.owner.fh && !self.gone {
            spent.insert(self.number);
        }
    }

    /// Returns the query that finds out the outcome of this request after an answer or events were
    /// lost.
    pub(crate) fn recall(&self) -> Recall {
        Recall { number: self.number, name: self.ask.name.clone(), token: None }
    }

    pub(crate) fn is_parked_for(&self, ask: &Ask) -> bool {
        self.reply.is_none()
            && !self.gone
            && self.wants != Wants::Less
            && self.ask.line == ask.line
            && self.ask.owner.id == ask.owner.id
            && self.ask.mode == ask.mode
            && self.ask.span == ask.span
    }
}

impl Held {
    pub(crate) fn key(&self) -> LeaseKey {
        LeaseKey { name: self.name.clone(), client: self.client.clone(), token: Some(self.token) }
    }

    /// Returns the request that downgrades this lease to shared mode, so that other readers can
    /// share the lock.
    pub(crate) fn less<R>(&self, ino: u64) -> Asking<R> {
        let (name, client) = (self.name.clone(), self.client.clone());
        let ask = Ask {
            ino,
            owner: self.owner,
            tid: 0,
            span: ByteRange::WHOLE,
            mode: Mode::Shared,
            name,
            client,
            patch: Patch::default(),
            takes_over: None,
            line: Waits::No,
            call: |_| Call::Fcntl,
        };
        Asking { number: self.number, ..Asking::new(ask, None, Wants::Less) }
    }
}

pub(crate) fn answer<R>(asking: Asking<R>, result: Result<(), No>, todo: &mut Vec<Effect<R>>) {
    if let Some(reply) = asking.reply {
        todo.push(Effect::Reply(reply, result));
    }
}

/// A lease under another name of a file that was locked when `ln` made that name.
#[derive(Debug)]
struct LinkedLease {
    /// The file that is locked.
    ino: u64,
    /// The number of the lease of the lock from which the link was made.
    of: u64,
    /// The owner of that lock.
    owner: PosixOwner,
    /// The lease that `ln` made, under its present name and token.
    key: LeaseKey,
}

/// The linked leases, by their tokens, and by the files and the lease numbers of their locks: a
/// file that is unlocked or closed checks only its own.
#[derive(Debug, Default)]
pub(crate) struct LinkedLeases {
    leases: BTreeMap<Token, LinkedLease>,
    by_lock: BTreeSet<(u64, u64, Token)>,
}

impl LinkedLeases {
    fn insert(&mut self, token: Token, link: LinkedLease) {
        self.by_lock.insert((link.ino, link.of, token));
        self.leases.insert(token, link);
    }

    /// Removes and returns the linked lease with this token.
    fn remove(&mut self, token: Token) -> Option<LinkedLease> {
        let link = self.leases.remove(&token)?;
        self.by_lock.remove(&(link.ino, link.of, token));
        Some(link)
    }

    /// Returns the linked leases of the locks of a file, oldest first for each lock.
    fn of_file(&self, ino: u64) -> impl Iterator<Item = (Token, &LinkedLease)> {
        let of_file = self.by_lock.range((ino, 0, Token::named(0))..);
        let of_file = of_file.take_while(move |(other, ..)| *other == ino);
        of_file.filter_map(|(.., token)| Some((*token, self.leases.get(token)?)))
    }

    /// Removes a linked lease that has ended.
    pub(super) fn ended(&mut self, token: Token) {
        self.remove(token);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Makes the leases that were linked from the lease `before` of a file last as long as another
    /// lease of that file.
    pub(super) fn change_lock(&mut self, ino: u64, before: u64, of: u64) {
        let moved: Vec<Token> = self.of_lock(ino, before);
        for token in moved {
            if let Some(link) = self.remove(token) {
                self.insert(token, LinkedLease { of, ..link });
            }
        }
    }

    fn of_lock(&self, ino: u64, of: u64) -> Vec<Token> {
        let links = self.of_file(ino).filter(|(_, link)| link.of == of);
        links.map(|(token, _)| token).collect()
    }
}

impl<R> Table<R> {
    /// Records that `ln` of the file that is locked under `token` has made the lease `key`, which
    /// is then released with that lock. Returns false if the file is no longer locked.
    pub(crate) fn linked(&mut self, token: Token, key: LeaseKey) -> bool {
        let (Some(ino), Some(new)) = (self.tenures.get(&token).copied(), key.token) else {
            return false;
        };
        let held = self.files.get(&ino).and_then(|file| file.held_under(token));
        let Some(held) = held else { return false };
        self.links.insert(new, LinkedLease { ino, of: held.number, owner: held.owner, key });
        true
    }

    /// Handles the grant, without a wait, of a lease that belongs to no open file. If `mv` has just
    /// moved a lease that `ln` had linked, the grant is that lease under its new name and token;
    /// otherwise nothing changes.
    pub(crate) fn link_moved(&mut self, name: &LockName, token: Token) {
        let Some(moved) = self.moved.take() else { return };
        if let Some(mut link) = self.links.remove(moved) {
            (link.key.name, link.key.token) = (name.clone(), Some(token));
            self.links.insert(token, link);
        }
    }

    /// Releases the leases that were linked from the lease `held` of a file.
    pub(super) fn release_links(&mut self, ino: u64, held: &Held, todo: &mut Vec<Effect<R>>) {
        let gone = self.links.of_lock(ino, held.number);
        self.release_linked(&gone, todo);
    }

    /// Releases the linked leases of a file whose lock was removed by name before, if `gone`
    /// selects the owner of that lock: an open file that locks a file, links it and removes its
    /// first name holds the second name until it is unlocked or closed.
    pub(super) fn release_orphaned_links(
        &mut self,
        ino: u64,
        gone: impl Fn(&PosixOwner) -> bool,
        todo: &mut Vec<Effect<R>>,
    ) {
        let of_file = self.links.of_file(ino);
        let orphaned = of_file.filter(|(_, link)| gone(&link.owner) && self.is_unknown(link.of));
        let orphaned: Vec<Token> = orphaned.map(|(token, _)| token).collect();
        self.release_linked(&orphaned, todo);
    }

    fn release_linked(&mut self, tokens: &[Token], todo: &mut Vec<Effect<R>>) {
        let gone = tokens.iter().filter_map(|token| self.links.remove(*token));
        let releases = gone.map(|link| Op::Release(Release::of(link.key)));
        todo.extend(releases.map(|release| Effect::Tell(Box::new(release), None)));
    }
}

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
        // A lease in the table belongs to an open file already, so this file can't take it over.
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
        self.begin(Asking::new(ask, Some(reply), Wants::Hold), Attempt::New, todo);
    }

    /// Decides a lock request within this mount if it can, and otherwise submits it to the engine.
    pub(super) fn begin(
        &mut self,
        mut asking: Asking<R>,
        turn: Attempt,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Ask { ino, owner, span, mode, .. } = asking.ask;
        let file = self.file(ino);
        if file.is_awaited_by(owner.id) {
            return file.behind.push(asking);
        }
        let first =
            turn == Attempt::Next || asking.ask.takes_over.is_some() || file.queue.is_empty();
        if span != ByteRange::WHOLE || file.bundle.is_some() || !first {
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
        match self.place(asking, key.name, token, todo) {
            Placed::Yes(asking) => answer(asking, Ok(()), todo),
            // Another owner of this mount took the lock while the engine processed the request.
            Placed::Again(asking) if asking.reply.is_some() => {
                self.begin(asking, Attempt::Next, todo);
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
        name: LockName,
        token: Token,
        todo: &mut Vec<Effect<R>>,
    ) -> Placed<R> {
        let number = asking.number;
        let Ask { ino, owner, mode, span, .. } = asking.ask;
        // A request without a reply was interrupted by a signal: its program got the answer that it
        // does not have the lock.
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
            // As for whole-file locks below, flock(2) gives the old lock up first: the caller then
            // releases the lease if no range is left.
            bundle.ranges.unlock(owner, ByteRange::WHOLE);
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
        if let Some((_, is_stale)) = self.serving.as_mut().filter(|(file, _)| *file == ino) {
            *is_stale = true;
            return;
        }
        let outer = self.serving.replace((ino, true));
        while let Some((_, is_stale)) = &mut self.serving
            && std::mem::take(is_stale)
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
                self.begin(asking, Attempt::New, todo);
            } else {
                self.files.entry(ino).or_default().behind.push(asking);
            }
        }
        while let Some(file) = self.files.get_mut(&ino) {
            let place = file.queue.iter().position(|asking| file.may_retry(asking));
            let Some(place) = place else { break };
            let Some(asking) = file.queue.remove(place) else { break };
            self.begin(asking, Attempt::Next, todo);
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
