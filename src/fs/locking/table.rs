//! Who holds and who waits through this mount's open files. Pure: what is to be done comes out
//! as a list of effects, and what came of it goes in again.
//!
//! A lock on the whole file is a hold of the engine, one for each owner: so the line is the
//! engine's, fair across mounts. Byte ranges are this machine's affair: the first range takes the
//! whole lock from the engine for the *bundle* of all ranges of that file, and from then on
//! owners of this mount settle among themselves, first come first served, until the last range is
//! gone.
//!
//! The kernel's numbers for owners are used again as soon as an owner is gone, so nothing is kept
//! under one after FLUSH or RELEASE.

use super::ranges::{Owner, Ranges, Span};
use crate::engine::{
    Acquire, Answer, ClientId, Hold, LeaseKey, Leave, Line, LockName, Mode, Op, OpenId, Outcome,
    Patch, Reason, Refusal, Release, SessionId, Term, Ticket, Token, Why,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

/// Holds that are no open file's own number (a second owner of the same open file, a bundle) have
/// numbers from here on.
const EXTRA_NUMBERS: u64 = 1 << 62;

/// What a program asks for.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) ino: u64,
    pub(super) owner: Owner,
    /// The thread that waits, to be watched for signals.
    pub(super) tid: u32,
    pub(super) span: Span,
    pub(super) mode: Mode,
    /// The lock that the open file speaks of.
    pub(super) name: LockName,
    pub(super) client: ClientId,
    /// What the lease is to say.
    pub(super) patch: Patch,
    pub(super) line: Waits,
    /// flock(2) gives its lock back before it takes it in another mode; fcntl(2) does not.
    pub(super) call: CallOf,
}

/// Whether a program waits for a lock that is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    Yes,
    No,
}

/// The system call that a lock came by, where it makes a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Flock,
    Fcntl,
}

/// Finds the call out, while the program still waits in it. Asked only when it matters: it costs
/// as much as the whole lock does otherwise.
#[derive(Clone)]
pub(super) struct CallOf(Arc<dyn Fn() -> Call + Send + Sync>);

impl CallOf {
    pub(super) fn new(find: impl Fn() -> Call + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }
}

impl fmt::Debug for CallOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallOf")
    }
}

/// Why a program does not get a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum No {
    /// Somebody has it: EAGAIN.
    Busy(Option<Box<Refusal>>),
    /// A signal came: EINTR.
    Interrupted,
    /// Whoever has it waits for the asker: EDEADLK.
    Deadlock,
    /// The engine refused for another reason.
    Refused(Box<Refusal>),
}

/// What is to be done now.
#[derive(Debug)]
pub(super) enum Effect<R> {
    /// Ask the engine, and bring the answer back by [`Table::answered`] under this cookie.
    Submit {
        /// Brings the answer back to the request.
        cookie: u64,
        /// So does this.
        ino: u64,
        /// What to ask.
        ask: Acquire,
    },
    /// Tell the engine; nothing depends on the answer.
    Tell(Op),
    /// Answer the program.
    Reply(R, Result<(), No>),
    /// The open file speaks for this tenure from now on.
    Speaks(u64, Token),
    /// This number waits: look after its thread until it has been answered.
    Watch(u64, u32),
    /// Events were lost: find out what this number holds of this lock, and say it by
    /// [`Table::recalled`].
    Recall((u64, LockName)),
}

/// All open files of one mount that lock or wait. `R` is how a program is answered.
#[derive(Debug)]
pub(super) struct Table<R> {
    session: SessionId,
    files: HashMap<u64, File<R>>,
    /// The file of each number in use.
    numbers: HashMap<u64, u64>,
    /// The file that each tenure is of.
    tenures: HashMap<Token, u64>,
    /// The files whose queue is not empty.
    queued: HashSet<u64>,
    next_extra: u64,
    next_cookie: u64,
}

/// One file, by its inode.
#[derive(Debug)]
struct File<R> {
    /// Whole-file holds.
    holds: Vec<Held>,
    /// Whole-file requests, and a bundle's, that the engine has.
    asks: Vec<Asking<R>>,
    bundle: Option<Bundle>,
    /// Requests that wait for an owner of this mount.
    queue: VecDeque<Asking<R>>,
    /// The numbers that are in use, or were a moment ago.
    numbers: Vec<u64>,
}

/// A hold of the engine for one owner.
#[derive(Debug, Clone)]
struct Held {
    number: u64,
    owner: Owner,
    name: LockName,
    client: ClientId,
    token: Token,
    mode: Mode,
    /// Granted to a waiter whose wait a signal had just interrupted, and that has not come back.
    unclaimed: bool,
}

/// The hold of the engine for all byte ranges of a file.
#[derive(Debug)]
struct Bundle {
    held: Held,
    ranges: Ranges,
}

/// A request on its way.
#[derive(Debug)]
struct Asking<R> {
    number: u64,
    /// What tells this request from others under the same number: the answer brings it back.
    cookie: u64,
    ask: Ask,
    /// Gone when a signal has interrupted the wait: the place is kept for a moment, because a
    /// restarted system call asks again.
    reply: Option<R>,
    ticket: Option<Ticket>,
    wants: Wants,
}

/// Whether a request has just come, or has waited until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    New,
    Next,
}

/// What a granted request becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    Hold,
    Bundle,
}

impl<R> Default for File<R> {
    fn default() -> Self {
        let (holds, asks, queue) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { holds, asks, bundle: None, queue, numbers: Vec::new() }
    }
}

impl<R> Table<R> {
    pub(super) fn new(session: SessionId) -> Self {
        let (files, numbers, tenures) = (HashMap::new(), HashMap::new(), HashMap::new());
        let queued = HashSet::new();
        Self { session, files, numbers, tenures, queued, next_extra: EXTRA_NUMBERS, next_cookie: 1 }
    }

    /// A program wants a lock.
    pub(super) fn lock(&mut self, mut ask: Ask, reply: R, todo: &mut Vec<Effect<R>>) {
        if self.resume(&ask, &reply) {
            self.reattach(ask, reply, todo);
            return;
        }
        // It came back for something else: what was kept for it is not wanted any more.
        let (ino, id) = (ask.ino, ask.owner.id);
        self.abandon(ino, |asking| asking.reply.is_none() && asking.ask.owner.id == id, todo);
        self.drop_holds(ino, |held| held.unclaimed && held.owner.id == id, todo);
        let number = self.number_for(&ask);
        let file = self.files.entry(ask.ino).or_default();
        if let Some(held) = file.holds.iter().find(|held| held.number == number) {
            // `mv` may have carried it over: an open file speaks of the lock that it holds.
            ask.name = held.name.clone();
        }
        let (reply, wants) = (Some(reply), Wants::Hold);
        let asking = Asking { number, cookie: 0, ask, reply, ticket: None, wants };
        let whole = asking.ask.span == Span::WHOLE;
        if whole && file.bundle.is_none() && file.queue.is_empty() {
            self.submit(asking, todo);
        } else {
            self.lock_range(asking, Turn::New, todo);
        }
    }

    /// Asks the engine.
    fn submit(&mut self, mut asking: Asking<R>, todo: &mut Vec<Effect<R>>) {
        let Asking { number, ask, .. } = &asking;
        if ask.line == Waits::Yes && self.would_wait_for_itself(ask) {
            let ino = ask.ino;
            answer(asking, Err(No::Deadlock), todo);
            return self.tidy(ino);
        }
        let line = match ask.line {
            Waits::Yes => Line::Join(None),
            Waits::No => Line::Skip,
        };
        let acquire = Acquire {
            name: ask.name.clone(),
            client: ask.client.clone(),
            mode: ask.mode,
            hold: Hold::Open(OpenId { session: self.session, number: *number }),
            term: Term::Session(self.session),
            line,
            patch: ask.patch.clone(),
        };
        self.next_cookie += 1;
        let (cookie, ino) = (self.next_cookie, ask.ino);
        todo.push(Effect::Submit { cookie, ino, ask: acquire });
        (asking.cookie, asking.ticket) = (self.next_cookie, None);
        self.files.entry(asking.ask.ino).or_default().asks.push(asking);
    }

    /// A request for a part of the file, or for a file of which parts are locked.
    fn lock_range(&mut self, mut asking: Asking<R>, turn: Turn, todo: &mut Vec<Effect<R>>) {
        let ino = asking.ask.ino;
        let file = self.files.entry(ino).or_default();
        file.bundle_up(asking.ask.owner.id);
        let Ask { owner, span, mode, .. } = asking.ask;
        let Some(bundle) = &mut file.bundle else {
            let on_its_way = file.asks.iter().any(|other| other.wants == Wants::Bundle);
            if on_its_way || (turn == Turn::New && !file.queue.is_empty()) {
                return self.enqueue(asking, todo);
            }
            asking.number = self.extra_number(ino);
            asking.wants = Wants::Bundle;
            return self.submit(asking, todo);
        };
        if bundle.ranges.conflict(owner.id, span, mode).is_some() {
            return self.enqueue(asking, todo);
        }
        if mode == Mode::Exclusive && bundle.held.mode == Mode::Shared {
            // The bundle needs the lock for itself; only the engine can say whether it may.
            asking.number = bundle.held.number;
            asking.wants = Wants::Bundle;
            return self.submit(asking, todo);
        }
        bundle.ranges.lock(owner, span, mode);
        let token = bundle.held.token;
        todo.push(Effect::Speaks(owner.fh, token));
        answer(asking, Ok(()), todo);
        self.fit_bundle(ino, todo);
    }

    /// Waits for another owner of this mount, if the program waits.
    fn enqueue(&mut self, asking: Asking<R>, todo: &mut Vec<Effect<R>>) {
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

    /// The engine has answered what was submitted under `cookie`.
    pub(super) fn answered(
        &mut self,
        cookie: u64,
        ino: u64,
        of: (LockName, ClientId),
        answered: Answer,
        todo: &mut Vec<Effect<R>>,
    ) {
        let asking = self.files.get_mut(&ino).and_then(|file| file.take(|a| a.cookie == cookie));
        match (answered, asking) {
            (Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)), Some(asking)) => {
                self.grant(asking, tenure.token, todo);
            }
            (Ok(Outcome::Granted(tenure)), None) => {
                let (name, client) = of;
                let key = LeaseKey { name, client, token: Some(tenure.token) };
                self.give_back_unknown(key, todo);
            }
            (Ok(Outcome::Waiting { ticket, .. }), Some(mut asking)) => {
                asking.ticket = Some(ticket);
                todo.push(Effect::Watch(asking.number, asking.ask.tid));
                self.files.entry(ino).or_default().asks.push(asking);
            }
            (Ok(Outcome::Waiting { ticket, .. }), None) => {
                // It was closed meanwhile, or the event that it is served came first: then this
                // is refused, and does no harm.
                let why = Why::Gone;
                todo.push(Effect::Tell(Op::Leave(Leave { name: of.0, ticket, why })));
            }
            (Err(refusal), Some(asking)) => self.refused(asking, refusal, todo),
            (Ok(_) | Err(_), _) => {}
        }
    }

    /// An event: a tenure of this mount's `number` began. `waited`: for a place in line, and not
    /// by an answer of its own.
    pub(super) fn granted(
        &mut self,
        number: u64,
        waited: Option<Ticket>,
        key: LeaseKey,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(token) = key.token else { return };
        let known = self.renamed(number, token, &key.name);
        let Some(ticket) = waited else { return };
        let file = self.numbers.get(&number).and_then(|ino| self.files.get_mut(ino));
        // The event may be here before the answer that brings the ticket.
        let served = |asking: &Asking<R>| {
            asking.number == number && asking.ticket.is_none_or(|own| own == ticket)
        };
        match file.and_then(|file| file.take(served)) {
            Some(asking) if !known => self.grant(asking, token, todo),
            _ if !known => self.give_back_unknown(key, todo),
            _ => {}
        }
    }

    /// Granted while the asker was leaving: nobody else would ever give it back.
    fn give_back_unknown(&self, key: LeaseKey, todo: &mut Vec<Effect<R>>) {
        if key.token.is_some_and(|token| !self.tenures.contains_key(&token)) {
            todo.push(Effect::Tell(Op::Release(Release { key })));
        }
    }

    /// What was asked for is held.
    fn grant(&mut self, asking: Asking<R>, token: Token, todo: &mut Vec<Effect<R>>) {
        let number = asking.number;
        let ino = asking.ask.ino;
        let file = self.files.entry(ino).or_default();
        let Ask { owner, mode, span, .. } = asking.ask;
        let held = Held {
            number,
            owner,
            name: asking.ask.name.clone(),
            client: asking.ask.client.clone(),
            token,
            mode,
            unclaimed: asking.reply.is_none(),
        };
        todo.push(Effect::Speaks(owner.fh, token));
        let mut placed = true;
        match &mut file.bundle {
            // Perhaps asked for as a whole lock, which has become the bundle meanwhile.
            Some(bundle) if bundle.held.number == number => {
                bundle.held.mode = mode;
                placed = bundle.ranges.lock_if_free(owner, span, mode);
            }
            // One bundle is enough: both are shared, or the engine had not granted this one.
            Some(bundle) if asking.wants == Wants::Bundle => {
                todo.push(Effect::Tell(held.release()));
                placed = bundle.ranges.lock_if_free(owner, span, mode);
            }
            None if asking.wants == Wants::Bundle => {
                let mut ranges = Ranges::default();
                if asking.reply.is_some() {
                    ranges.lock(owner, span, mode);
                }
                file.bundle = Some(Bundle { held, ranges });
            }
            Some(_) | None => {
                if let Some(place) = file.holds.iter().position(|other| other.number == number) {
                    let before = file.holds.remove(place);
                    self.tenures.remove(&before.token);
                }
                file.holds.push(held);
            }
        }
        if file.holds_tenure(token) {
            self.tenures.insert(token, ino);
        }
        if placed {
            answer(asking, Ok(()), todo);
        } else {
            // The engine was asked meanwhile, and another owner of this mount came in between.
            self.enqueue(asking, todo);
        }
        self.fit_bundle(ino, todo);
    }

    /// `mv` has carried a hold over, or this is news of what is known. False: of nothing here.
    fn renamed(&mut self, number: u64, token: Token, name: &LockName) -> bool {
        let Some(&ino) = self.numbers.get(&number) else { return false };
        let Some(file) = self.files.get_mut(&ino) else { return false };
        let bundle = file.bundle.iter_mut().map(|bundle| &mut bundle.held);
        let held = file.holds.iter_mut().chain(bundle).find(|held| held.number == number);
        let Some(held) = held else { return false };
        self.tenures.remove(&held.token);
        self.tenures.insert(token, ino);
        held.token = token;
        held.name = name.clone();
        true
    }

    fn refused(&mut self, asking: Asking<R>, refusal: Refusal, todo: &mut Vec<Effect<R>>) {
        let number = asking.number;
        let ino = asking.ask.ino;
        if !matches!(*refusal.reason, Reason::Conflict(_)) {
            self.tidy(ino);
            return answer(asking, Err(No::Refused(Box::new(refusal))), todo);
        }
        let file = self.files.entry(ino).or_default();
        let own = file.holds.iter().position(|held| held.number == number);
        match own.map(|place| (place, (asking.ask.call.0)())) {
            Some((place, Call::Flock)) => {
                // As flock(2) says: the conversion is not atomic, the old lock goes first.
                let held = file.holds.remove(place);
                self.tenures.remove(&held.token);
                todo.push(Effect::Tell(held.release()));
                self.submit(asking, todo);
            }
            _ if asking.ask.line == Waits::Yes => self.enqueue(asking, todo),
            _ => {
                self.tidy(ino);
                answer(asking, Err(No::Busy(Some(Box::new(refusal)))), todo);
            }
        }
    }

    /// A program gives back `span`.
    pub(super) fn unlock(&mut self, ino: u64, id: u64, span: Span, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if span != Span::WHOLE {
            file.bundle_up(id);
        }
        if let Some(bundle) = &mut file.bundle {
            bundle.ranges.unlock(id, span);
        }
        self.drop_holds(ino, |held| held.owner.id == id, todo);
    }

    /// FLUSH: a process has closed the file, and with it goes all that it holds there by fcntl.
    pub(super) fn flushed(&mut self, ino: u64, id: u64, todo: &mut Vec<Effect<R>>) {
        self.abandon(ino, |asking| asking.reply.is_none() && asking.ask.owner.id == id, todo);
        self.unlock(ino, id, Span::WHOLE, todo);
    }

    /// RELEASE: the open file is gone, and with it all that was locked through it. For OFD locks
    /// no other message comes.
    pub(super) fn closed(&mut self, ino: u64, fh: u64, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if let Some(bundle) = &mut file.bundle {
            bundle.ranges.drop_file(fh);
        }
        self.abandon(ino, |asking| asking.ask.owner.fh == fh, todo);
        self.drop_holds(ino, |held| held.owner.fh == fh, todo);
    }

    /// A signal ends the wait of `number`. The place is kept for a while: see
    /// [`Table::expire`].
    pub(super) fn interrupt(&mut self, number: u64, todo: &mut Vec<Effect<R>>) {
        let reply = self.asking(number).and_then(|asking| asking.reply.take());
        if let Some(reply) = reply {
            todo.push(Effect::Reply(reply, Err(No::Interrupted)));
        }
    }

    /// Whether `number` still waits for an answer, or its place is still kept.
    pub(super) fn is_waiting(&mut self, number: u64) -> Waiting {
        match self.asking(number).map(|asking| asking.reply.is_some()) {
            Some(true) => Waiting::Asks,
            Some(false) => Waiting::Parked,
            None if self.unclaimed(number).is_some() => Waiting::Unclaimed,
            None => Waiting::Over,
        }
    }

    /// The interrupted waiter has not come back: its place goes, or what it was granted.
    pub(super) fn expire(&mut self, number: u64, todo: &mut Vec<Effect<R>>) {
        let Some(ino) = self.numbers.get(&number).copied() else { return };
        self.abandon(ino, |asking| asking.number == number && asking.reply.is_none(), todo);
        self.drop_holds(ino, |held| held.number == number && held.unclaimed, todo);
    }

    /// The engine has ended a tenure: lost, stolen, or removed by name.
    pub(super) fn ended(&mut self, token: Token, todo: &mut Vec<Effect<R>>) {
        let Some(ino) = self.tenures.remove(&token) else { return };
        let file = self.files.entry(ino).or_default();
        file.holds.retain(|held| held.token != token);
        if file.bundle.as_ref().is_some_and(|bundle| bundle.held.token == token) {
            file.bundle = None;
        }
        self.requeue(ino, todo);
    }

    /// Something has changed about a lock: who could not become its sole holder may try again.
    pub(super) fn changed(&mut self, name: &LockName, todo: &mut Vec<Effect<R>>) {
        let waits = |ino: &&u64| {
            let queue = self.files.get(ino).map(|file| &file.queue);
            queue.is_some_and(|queue| queue.iter().any(|asking| asking.ask.name == *name))
        };
        let inos: Vec<_> = self.queued.iter().filter(waits).copied().collect();
        for ino in inos {
            self.requeue(ino, todo);
        }
    }

    /// The first lock in the way of `id`, for `F_GETLK`; holds of others are not known here.
    pub(super) fn conflict(
        &self,
        ino: u64,
        id: u64,
        span: Span,
        mode: Mode,
    ) -> Option<(Span, Mode, u32)> {
        let file = self.files.get(&ino)?;
        let clash = |held: &&Held| {
            held.owner.id != id && (held.mode == Mode::Exclusive || mode == Mode::Exclusive)
        };
        if let Some(held) = file.holds.iter().find(clash) {
            return Some((Span::WHOLE, held.mode, held.owner.pid));
        }
        let range = file.bundle.as_ref()?.ranges.conflict(id, span, mode)?;
        Some((range.span, range.mode, range.owner.pid))
    }

    /// Whether the owner itself holds the file, or parts of it.
    #[cfg(test)]
    fn holds(&self, ino: u64, id: u64) -> bool {
        self.files.get(&ino).is_some_and(|file| {
            file.holds.iter().any(|held| held.owner.id == id) || file.bundle.is_some()
        })
    }

    /// The processes that opened or took a hold of this mount, by its token: they may remove it.
    pub(super) fn holder(&self, token: Token) -> Option<Owner> {
        let file = self.files.get(self.tenures.get(&token)?)?;
        let bundle = file.bundle.iter().map(|bundle| &bundle.held);
        file.holds.iter().chain(bundle).find(|held| held.token == token).map(|held| held.owner)
    }

    /// No answer has come, and none will: the outcome is unknown. Gives back whom to tell so.
    pub(super) fn unanswered(&mut self, cookie: u64, ino: u64) -> Option<R> {
        let asking = self.files.get_mut(&ino)?.take(|asking| asking.cookie == cookie);
        self.tidy(ino);
        asking?.reply
    }

    /// All that is held or waited for, with the lock's name.
    pub(super) fn known(&self) -> Vec<(u64, LockName)> {
        let of_file = |file: &File<R>| {
            let bundle = file.bundle.iter().map(|bundle| &bundle.held);
            let held = file.holds.iter().chain(bundle);
            let asks = file.asks.iter().map(|asking| (asking.number, asking.ask.name.clone()));
            held.map(|held| (held.number, held.name.clone())).chain(asks).collect::<Vec<_>>()
        };
        self.files.values().flat_map(of_file).collect()
    }

    /// What the engine says of a number after events were lost: its lease, if it has one.
    pub(super) fn recalled(
        &mut self,
        number: u64,
        lease: Option<LeaseKey>,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(file) = self.numbers.get(&number).and_then(|ino| self.files.get_mut(ino)) else {
            return;
        };
        let bundle = file.bundle.iter().map(|bundle| &bundle.held);
        let held = file.holds.iter().chain(bundle).find(|held| held.number == number);
        match (held.map(|held| held.token), lease) {
            (Some(token), None) => self.ended(token, todo),
            (Some(token), Some(key)) => {
                self.renamed(number, key.token.unwrap_or(token), &key.name);
            }
            (None, Some(LeaseKey { token: Some(token), .. })) => {
                let in_line =
                    |asking: &Asking<R>| asking.number == number && asking.ticket.is_some();
                if let Some(asking) = file.take(in_line) {
                    self.grant(asking, token, todo);
                }
            }
            (None, _) => {}
        }
    }

    // What the above have in common.

    /// A restarted system call asks again for what its owner waits for already.
    fn resume(&mut self, ask: &Ask, _reply: &R) -> bool {
        let Some(file) = self.files.get(&ask.ino) else { return false };
        let parked = file.asks.iter().chain(&file.queue);
        parked.into_iter().any(|asking| asking.is_parked_for(ask))
            || file.holds.iter().any(|held| {
                held.unclaimed && held.owner.id == ask.owner.id && held.mode == ask.mode
            })
    }

    fn reattach(&mut self, ask: Ask, reply: R, todo: &mut Vec<Effect<R>>) {
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
        let parked = file.asks.iter_mut().chain(&mut file.queue);
        if let Some(asking) = parked.into_iter().find(|asking| asking.is_parked_for(&ask)) {
            asking.reply = Some(reply);
            asking.ask.tid = ask.tid;
            todo.push(Effect::Watch(asking.number, ask.tid));
        }
    }

    /// The number of the engine's hold that a whole-file request is about: that of the owner's
    /// hold, else that of the open file, else (another owner has that one) a new one.
    fn number_for(&mut self, ask: &Ask) -> u64 {
        let file = self.files.entry(ask.ino).or_default();
        if let Some(held) = file.holds.iter().find(|held| held.owner.id == ask.owner.id) {
            return held.number;
        }
        if self.numbers.contains_key(&ask.owner.fh) {
            return self.extra_number(ask.ino);
        }
        self.use_number(ask.owner.fh, ask.ino);
        ask.owner.fh
    }

    fn extra_number(&mut self, ino: u64) -> u64 {
        self.next_extra += 1;
        self.use_number(self.next_extra, ino);
        self.next_extra
    }

    fn use_number(&mut self, number: u64, ino: u64) {
        self.numbers.insert(number, ino);
        self.files.entry(ino).or_default().numbers.push(number);
    }

    fn asking(&mut self, number: u64) -> Option<&mut Asking<R>> {
        let file = self.files.get_mut(self.numbers.get(&number)?)?;
        file.asks.iter_mut().chain(&mut file.queue).find(|asking| asking.number == number)
    }

    fn unclaimed(&self, number: u64) -> Option<&Held> {
        let file = self.files.get(self.numbers.get(&number)?)?;
        file.holds.iter().find(|held| held.number == number && held.unclaimed)
    }

    /// Takes requests out that nobody waits for any more.
    fn abandon(&mut self, ino: u64, gone: impl Fn(&Asking<R>) -> bool, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let (left, stay): (Vec<_>, _) = file.asks.drain(..).partition(&gone);
        file.asks = stay;
        file.queue.retain(|asking| !gone(asking));
        for asking in left {
            if let Some(ticket) = asking.ticket {
                let (name, why) = (asking.ask.name.clone(), Why::Gone);
                todo.push(Effect::Tell(Op::Leave(Leave { name, ticket, why })));
            }
            answer(asking, Err(No::Interrupted), todo);
        }
        self.requeue(ino, todo);
    }

    /// Gives whole-file holds back.
    fn drop_holds(&mut self, ino: u64, gone: impl Fn(&Held) -> bool, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let (left, stay): (Vec<_>, _) = file.holds.drain(..).partition(gone);
        file.holds = stay;
        for held in left {
            self.tenures.remove(&held.token);
            todo.push(Effect::Tell(held.release()));
        }
        self.fit_bundle(ino, todo);
    }

    /// The bundle lasts as long as there are ranges, in the mode that they need.
    fn fit_bundle(&mut self, ino: u64, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if let Some(bundle) = &mut file.bundle {
            if bundle.ranges.is_empty() {
                self.tenures.remove(&bundle.held.token);
                todo.push(Effect::Tell(bundle.held.release()));
                file.bundle = None;
            } else if bundle.ranges.mode() == Mode::Shared && bundle.held.mode == Mode::Exclusive {
                bundle.held.mode = Mode::Shared;
                todo.push(Effect::Tell(bundle.held.share(self.session)));
            }
        }
        self.requeue(ino, todo);
    }

    /// Who waited for an owner of this mount tries again, in order; who still cannot, waits on.
    fn requeue(&mut self, ino: u64, todo: &mut Vec<Effect<R>>) {
        while let Some(file) = self.files.get_mut(&ino) {
            let goes_on = |asking: &Asking<R>| asking.reply.is_some() && file.may_go_on(asking);
            let Some(place) = file.queue.iter().position(goes_on) else { break };
            let Some(mut asking) = file.queue.remove(place) else { break };
            if file.bundle.is_some() || asking.ask.span != Span::WHOLE {
                self.lock_range(asking, Turn::Next, todo);
            } else {
                asking.number = self.number_for(&asking.ask);
                self.submit(asking, todo);
            }
        }
        self.tidy(ino);
    }

    /// Numbers that nobody uses any more are forgotten, and a file that nobody locks or waits for.
    fn tidy(&mut self, ino: u64) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let (used, free) =
            std::mem::take(&mut file.numbers).into_iter().partition(|number| file.uses(*number));
        file.numbers = used;
        let free: Vec<u64> = free;
        for number in free {
            self.numbers.remove(&number);
        }
        if file.queue.is_empty() {
            self.queued.remove(&ino);
        }
        if file.is_idle() {
            self.files.remove(&ino);
        }
    }

    /// Whether whoever is in the way waits, over any number of corners, for the asker.
    fn would_wait_for_itself(&self, ask: &Ask) -> bool {
        let mut seen = HashSet::new();
        let mut to_see = self.in_the_way(ask);
        while let Some(id) = to_see.pop() {
            if id == ask.owner.id {
                return true;
            }
            if !seen.insert(id) {
                continue;
            }
            let asks = self.files.values().flat_map(|file| file.asks.iter().chain(&file.queue));
            let waits = asks.filter(|asking| asking.ask.owner.id == id && asking.reply.is_some());
            for asking in waits {
                to_see.extend(self.in_the_way(&asking.ask));
            }
        }
        false
    }

    /// The owners that hold what `ask` wants.
    fn in_the_way(&self, ask: &Ask) -> Vec<u64> {
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

/// How it stands with a number that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// A program waits for its answer.
    Asks,
    /// A signal has interrupted it, and its place is kept.
    Parked,
    /// The same, and its turn has come: it holds the lock, and does not know it yet.
    Unclaimed,
    /// It has been answered.
    Over,
}

impl<R> File<R> {
    /// What `id` holds of the whole file becomes a range like others.
    fn bundle_up(&mut self, id: u64) {
        if self.bundle.is_some() {
            return;
        }
        let Some(place) = self.holds.iter().position(|held| held.owner.id == id) else { return };
        let held = self.holds.remove(place);
        let mut ranges = Ranges::default();
        ranges.lock(held.owner, Span::WHOLE, held.mode);
        self.bundle = Some(Bundle { held, ranges });
    }

    /// Takes a request out that the engine has.
    fn take(&mut self, which: impl Fn(&Asking<R>) -> bool) -> Option<Asking<R>> {
        let place = self.asks.iter().position(which)?;
        Some(self.asks.remove(place))
    }

    fn holds_tenure(&self, token: Token) -> bool {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).any(|held| held.token == token)
    }

    fn is_idle(&self) -> bool {
        let holds_none = self.holds.is_empty() && self.bundle.is_none();
        holds_none && self.asks.is_empty() && self.queue.is_empty()
    }

    fn uses(&self, number: u64) -> bool {
        let asks = self.asks.iter().chain(&self.queue);
        self.holds.iter().any(|held| held.number == number)
            || self.bundle.as_ref().is_some_and(|bundle| bundle.held.number == number)
            || asks.into_iter().any(|asking| asking.number == number)
    }

    /// Whether trying again could end otherwise than by waiting again.
    fn may_go_on(&self, asking: &Asking<R>) -> bool {
        let Ask { owner, span, mode, .. } = asking.ask;
        let others = self.holds.iter().any(|held| {
            held.owner.id != owner.id && (held.mode == Mode::Exclusive || mode == Mode::Exclusive)
        });
        let bundle_comes = self.asks.iter().any(|other| other.wants == Wants::Bundle);
        match &self.bundle {
            Some(bundle) => bundle.ranges.conflict(owner.id, span, mode).is_none(),
            None => !others && !bundle_comes,
        }
    }
}

impl<R> Asking<R> {
    fn is_parked_for(&self, ask: &Ask) -> bool {
        self.reply.is_none()
            && self.ask.owner.id == ask.owner.id
            && self.ask.mode == ask.mode
            && self.ask.span == ask.span
    }
}

impl Held {
    fn key(&self) -> LeaseKey {
        LeaseKey { name: self.name.clone(), client: self.client.clone(), token: Some(self.token) }
    }

    fn release(&self) -> Op {
        Op::Release(Release { key: self.key() })
    }

    /// Others that only read may come in.
    fn share(&self, session: SessionId) -> Op {
        Op::Acquire(Acquire {
            name: self.name.clone(),
            client: self.client.clone(),
            mode: Mode::Shared,
            hold: Hold::Open(OpenId { session, number: self.number }),
            term: Term::Session(session),
            line: Line::Skip,
            patch: Patch::default(),
        })
    }
}

fn answer<R>(asking: Asking<R>, result: Result<(), No>, todo: &mut Vec<Effect<R>>) {
    if let Some(reply) = asking.reply {
        todo.push(Effect::Reply(reply, result));
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
