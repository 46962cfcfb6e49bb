//! Random commands for the model check of the engine: few names and clients, short leases, and
//! times close to deadlines, so that commands often affect each other.

use engine::time::{Span, Time};
use engine::values::command::{
    Acquire, Annotate, Answer, Command, Digest, EndHoldOff, EndSession, Firm, Forget,
    IdempotencyKey, IfExists, LeaseKey, Leave, Move, Op, OpenSession, Outcome, QueuePolicy,
    Release, Renew, RequestId, RequestKey, RequestNumber, Reset, ResetPart, ResetScope, Steal,
};
use engine::values::details::{FileAttrs, FileType, Process};
use engine::values::details::{Patch, TextPatch};
use engine::values::event::{LeaveReason, SessionEnd};

use engine::values::lease::{Grace, Ttl};
use engine::values::lease::{
    LeaseTerms, Mode, OpenId, Ownership, Seats, SessionId, StealReason, Ticket, Token,
};
use engine::{ClientId, Engine, Handover, LockName, Rules};

const NAMES: [&str; 5] = ["a", "b", "b/x", "c", "b!"];
/// Those among the names that have seats now and then.
const SEATED: [&str; 2] = ["c", "b!"];
const CLIENTS: [&str; 3] = ["ann", "bob", "cy"];

/// A small generator of random numbers (splitmix64): the same seed gives the same run.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Draws random commands. Remembers the ids of sessions, queue places and leases that earlier
/// answers contained, so that later commands can name them.
pub(super) struct Draw {
    dice: Dice,
    renewals: Dice,
    /// The random numbers that choose the open file which a release command names. They come from a
    /// separate generator, so that these choices do not change the other random choices of a seed.
    opens: Dice,
    acquisitions: Dice,
    takeovers: Dice,
    orders: Dice,
    acknowledgements: Dice,
    handovers: Dice,
    seats: Dice,
    /// The highest request number drawn so far, for any session.
    numbered: u64,
    names: Vec<LockName>,
    clients: Vec<ClientId>,
    sessions: Vec<SessionId>,
    tickets: Vec<(LockName, Ticket)>,
    tokens: Vec<(LockName, ClientId, Token)>,
    last: Option<Command>,
    now: Time,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        let name = |text: &&str| LockName::parse(text).expect("a name");
        let client = |text: &&str| ClientId::parse(text).expect("a client");
        Self {
            dice: Dice::new(seed),
            renewals: Dice::new(!seed),
            opens: Dice::new(seed.rotate_left(17)),
            acquisitions: Dice::new(seed.rotate_left(32)),
            takeovers: Dice::new(seed.rotate_left(24)),
            orders: Dice::new(seed.rotate_left(16)),
            acknowledgements: Dice::new(seed.rotate_left(48)),
            handovers: Dice::new(seed.rotate_left(40)),
            seats: Dice::new(seed.rotate_left(48)),
            numbered: 0,
            names: NAMES.iter().map(name).collect(),
            clients: CLIENTS.iter().map(client).collect(),
            sessions: vec![],
            tickets: vec![],
            tokens: vec![],
            last: None,
            now: Time::ZERO,
        }
    }

    /// Returns the limits of a run, such as the maximum number of locks: so high that the commands
    /// never reach them, or so low that they reach them sometimes or often.
    pub(super) fn rules(&mut self) -> Rules {
        let (requests_kept, steal_grace) = (Span::from_secs(5), Span::from_secs(1));
        let roomy = Rules { requests_kept, steal_grace, ..Rules::default() };
        match self.dice.below(3) {
            0 => roomy,
            1 => Rules { locks_max: 4, waiters_max: 4, holders_max: 3, sessions_max: 5, ..roomy },
            _ => Rules { locks_max: 2, waiters_max: 2, holders_max: 2, requests_max: 2, ..roomy },
        }
    }

    pub(super) fn next(&mut self, engine: &Engine) -> (Time, Command) {
        self.now = self.time(engine);
        if let Some(last) = &self.last
            && self.dice.one_in(12)
        {
            return (self.now, last.clone());
        }
        let op = self.op();
        let key = self.dice.one_in(8).then(|| self.dice.pick(&["1", "2", "3"]).into());
        let number = self.number();
        let answered_below = number.map_or(0, |number| self.answered_below(number.number));
        let key = number.map(RequestKey::Number).or(key);
        let request = key.map(|key| self.request(key, &op));
        let command = Command { request, op, answered_below };
        self.last = Some(command.clone());
        (self.now, command)
    }

    /// Records the sessions, tickets (ids of queue places) and tokens that an answer contains, so
    /// that later commands can refer to them.
    pub(super) fn learn(&mut self, command: &Command, answer: &Answer) {
        let (name, client) = match &command.op {
            Op::Acquire(ask) => (&ask.name, &ask.client),
            Op::Renew(ask) => (&ask.key.name, &ask.key.client),
            Op::Move(ask) => (&ask.to, &ask.from.client),
            Op::Steal(ask) => (&ask.name, &ask.client),
            _ => (&self.names[0], &self.clients[0]),
        };
        match answer {
            Ok(Outcome::SessionOpened(id)) => self.sessions.push(*id),
            Ok(Outcome::Waiting { ticket, .. }) => self.tickets.push((name.clone(), *ticket)),
            Ok(
                Outcome::Granted(tenure)
                | Outcome::Renewed(tenure)
                | Outcome::Moved(tenure)
                | Outcome::Stolen(tenure),
            ) => self.tokens.push((name.clone(), client.clone(), tenure.token)),
            _ => {}
        }
    }

    /// Returns the time of the next command: usually a little later, often exactly at a deadline or
    /// a nanosecond beside it.
    fn time(&mut self, engine: &Engine) -> Time {
        let (now, tick) = (engine.clock(), Span::from_nanos(1));
        let due = engine.next_deadline().unwrap_or(now);
        match self.dice.below(20) {
            0..=6 => now,
            7..=9 => now + Span::from_millis(100 * (self.dice.next() % 10)),
            10 | 11 => now + Span::from_secs(1),
            12..=14 => due,
            15 => due - tick,
            16 => due + tick,
            // Up to 8 s pass without any command, so that many deadlines pass at once.
            17 => now + Span::from_millis(self.dice.next() % 8_000),
            18 if self.dice.one_in(20) => now + Span::from_secs(100),
            18 => now + tick,
            // The time of the next command may be up to 3 s before that of the previous command, as
            // if the clock had gone backwards.
            _ => now - Span::from_millis(self.dice.next() % 3_000),
        }
    }

    fn op(&mut self) -> Op {
        match self.dice.below(41) {
            0..=16 => Op::Acquire(self.acquire()),
            17..=20 => {
                let term = self.dice.one_in(2).then(|| self.term());
                let firm = self.dice.pick(&[Firm::Keep, Firm::Keep, Firm::Make]);
                let acquires = self.renewals.one_in(3);
                Op::Renew(Renew { key: self.key(), term, firm, patch: self.patch(), acquires })
            }
            21 => self.annotate(),
            22..=25 => {
                let key = self.key();
                let (acquisition, open) = (self.acquisition(), self.open_to_release());
                let handover = self.handover(6);
                let acknowledges = self.handovers.one_in(3);
                let key = if acknowledges && self.handovers.one_in(2) {
                    self.lately_lost(key)
                } else {
                    self.with_token(key, handover.as_ref())
                };
                Op::Release(Release { key, acquisition, open, handover, acknowledges })
            }
            26..=28 => Op::Leave(self.leave()),
            29 | 30 => {
                let over =
                    self.dice.pick(&[IfExists::Replace, IfExists::Replace, IfExists::Refuse]);
                Op::Move(Move { from: self.key(), to: self.name(), over })
            }
            31 | 32 => {
                let reason = StealReason::parse("it must be").expect("a reason");
                let (name, client) = (self.name(), self.client());
                let (term, patch) = (self.term(), self.patch());
                let at_once = self.handovers.one_in(3);
                let only = self.seats.one_in(3).then(|| self.recent_token(&name)).flatten();
                Op::Steal(Steal { name, only, client, reason, term, patch, at_once })
            }
            33 | 34 => {
                let ttl = (!self.dice.one_in(4)).then(|| self.ttl());
                Op::OpenSession(OpenSession { client: self.client(), ttl, grace: self.grace() })
            }
            35..=37 => Op::KeepAlive(self.session()),
            38 => {
                let ends = [SessionEnd::Closed, SessionEnd::Expired, SessionEnd::Revoked];
                let end = self.dice.pick(&ends);
                Op::EndSession(EndSession { session: self.session(), end })
            }
            39 => Op::Reset(self.reset()),
            _ if self.handovers.one_in(2) => {
                Op::Forget(Forget { name: self.name(), by: self.client() })
            }
            _ if self.handovers.one_in(4) => {
                let reason = StealReason::parse("none is left").expect("a reason");
                Op::EndHoldOff(EndHoldOff { by: self.client(), reason })
            }
            _ => Op::Settle,
        }
    }

    fn annotate(&mut self) -> Op {
        let (key, patch) = (self.key(), self.patch());
        let handover = if self.handovers.one_in(4) { None } else { self.handover(1) };
        Op::Annotate(Annotate { key: self.with_token(key, handover.as_ref()), patch, handover })
    }

    /// Returns a handover in one of `n` cases: with a low counter, so that the counters of a tenure
    /// often repeat, and sometimes with a text that is too long.
    fn handover(&mut self, n: usize) -> Option<Handover> {
        if !self.handovers.one_in(n) {
            return None;
        }
        let text = self.handovers.pick(&["dirty", "clean", ""]);
        let length = if self.handovers.one_in(20) { 257 } else { text.len() };
        let text = format!("{text:x>length$}").into();
        Some(Handover { text, counter: self.handovers.next() % 4 })
    }

    /// Returns the key of one of the last tenures of a lock.
    fn lately_lost(&mut self, key: LeaseKey) -> LeaseKey {
        let of_lock = self.tokens.iter().rev().filter(|(name, ..)| *name == key.name);
        let last: Vec<_> = of_lock.take(3).cloned().collect();
        if last.is_empty() {
            return key;
        }
        let (name, client, token) = self.handovers.pick(&last);
        LeaseKey { name, client, token: Some(token) }
    }

    /// A handover names the token of its tenure in most cases, as it must.
    fn with_token(&mut self, key: LeaseKey, handover: Option<&Handover>) -> LeaseKey {
        let newest = self.tokens.iter().rev().find(|(name, ..)| *name == key.name).cloned();
        match newest {
            Some((name, client, token)) if handover.is_some() && self.handovers.one_in(2) => {
                LeaseKey { name, client, token: Some(token) }
            }
            _ => key,
        }
    }

    /// Returns a command that takes the locks and queue places of many clients. In half of the
    /// cases it applies to a single client, because a reset of all clients leaves few locks for
    /// later commands.
    fn reset(&mut self) -> Reset {
        let reason = StealReason::parse("they have left").expect("a reason");
        let whose = match self.dice.below(6) {
            0 => ResetScope::AllBut(vec![]),
            1 | 2 => ResetScope::AllBut(vec![self.client(), self.client()]),
            _ => ResetScope::Of(self.client()),
        };
        let part = match self.dice.below(4) {
            0 => ResetPart::Names(self.name(), self.name()),
            1 => ResetPart::Rest { holds: 1, waits: 2 },
            _ => ResetPart::ALL,
        };
        Reset { part, whose, by: self.client(), reason }
    }

    fn acquire(&mut self) -> Acquire {
        let (name, client) = (self.name(), self.client());
        let mode = self.dice.pick(&[Mode::Exclusive, Mode::Shared]);
        let (name, mode) = if self.seats.one_in(3) { self.seat() } else { (name, mode) };
        let (hold, term) = self.hold();
        let patience = |dice: &mut Dice| Span::from_secs(dice.pick(&[0, 1, 1, 2, 5]));
        let line = match self.dice.below(5) {
            0 | 1 => QueuePolicy::Skip,
            2 | 3 => QueuePolicy::Join(None),
            _ => QueuePolicy::Join(Some(patience(&mut self.dice))),
        };
        let patch = self.patch();
        let ask = Acquire { mode, hold, line, patch, ..Acquire::new(name, client, term) };
        // The names that have seats are rarely remembered: a remembered name has none.
        let has_seats = SEATED.contains(&ask.name.as_str());
        let remember = self.handovers.one_in(3) && (!has_seats || self.seats.one_in(20));
        self.taking_over(Acquire { remember, ..ask })
    }

    /// Returns a lock with two seats in most cases, otherwise with three.
    fn seat(&mut self) -> (LockName, Mode) {
        let name = LockName::parse(self.seats.pick(&SEATED)).expect("a name");
        let max = if self.seats.one_in(6) { 3 } else { 2 };
        (name, Mode::Seats(Seats::new(max).expect("a number of seats")))
    }

    /// Returns one of the last tokens of a lock; `None` if it had no tenure yet.
    fn recent_token(&mut self, name: &LockName) -> Option<Token> {
        let of_lock = self.tokens.iter().rev().filter(|(known, ..)| known == name);
        let last: Vec<Token> = of_lock.take(3).map(|(_, _, token)| *token).collect();
        (!last.is_empty()).then(|| self.seats.pick(&last))
    }

    /// An acquire by an open file may name the token of a lease of its client to take over. In half
    /// of the acquires by open files, names a recent token, in most cases with its lock and client.
    fn taking_over(&mut self, ask: Acquire) -> Acquire {
        let is_file = matches!(ask.hold, Ownership::OpenFile(_));
        if !is_file || self.tokens.is_empty() || self.takeovers.one_in(2) {
            return ask;
        }
        let recent = self.tokens.len().saturating_sub(6);
        let (name, client, token) = self.takeovers.pick(&self.tokens[recent..]);
        let takes_over = Some(token);
        match self.takeovers.below(8) {
            0 => Acquire { takes_over, ..ask },
            1 => Acquire { name, takes_over, ..ask },
            _ => Acquire { name, client, takes_over, ..ask },
        }
    }

    /// Returns the owner of a new lease (the client, one program of the client, or an open file),
    /// and what keeps the lease alive. In half of the cases the owner is the client. The lease of
    /// an open file is kept alive by the file's session in most cases, and otherwise has a ttl of
    /// its own.
    fn hold(&mut self) -> (Ownership, LeaseTerms) {
        let session = self.session();
        let open = OpenId { session, number: 1 + self.dice.next() % 2 };
        let of_file = if self.dice.one_in(4) { self.own() } else { LeaseTerms::Session(session) };
        match self.dice.below(10) {
            0..=4 => (Ownership::Client, self.term()),
            5 => (Ownership::Exclusive(None), self.term()),
            6 => (Ownership::Exclusive(Some(open)), of_file),
            _ => (Ownership::OpenFile(open), of_file),
        }
    }

    fn leave(&mut self) -> Leave {
        let why = self.dice.pick(&[LeaveReason::Asked, LeaveReason::Gone]);
        let (name, ticket) = match &self.tickets[..] {
            [] => (self.name(), Ticket::named(1)),
            // The ticket is the number of a queue place. In one of eight cases, the lock name is
            // drawn anew, so that the ticket may belong to the queue of another lock.
            known => {
                let (name, ticket) = self.dice.pick(&known[known.len().saturating_sub(4)..]);
                (if self.dice.one_in(8) { self.name() } else { name }, ticket)
            }
        };
        Leave { name, ticket, why }
    }

    /// Returns the key by which a renew or release command identifies a lease: the lock name, the
    /// client, and sometimes the token. In most cases it is the key of a recently granted lease.
    fn key(&mut self) -> LeaseKey {
        if self.tokens.is_empty() || self.dice.one_in(5) {
            return LeaseKey { name: self.name(), client: self.client(), token: None };
        }
        let recent = self.tokens.len().saturating_sub(6);
        let (name, client, token) = self.dice.pick(&self.tokens[recent..]);
        let client = if self.dice.one_in(8) { self.client() } else { client };
        LeaseKey { name, client, token: self.dice.one_in(2).then_some(token) }
    }

    /// A release command may name the one acquire that it undoes, since a client can acquire a lock
    /// again that it holds: each lease counts its acquires. Returns `None` in half of the cases,
    /// and otherwise a count from 0 to 2, which may differ from the count of the lease.
    fn acquisition(&mut self) -> Option<u32> {
        let drawn = self.acquisitions.below(6);
        u32::try_from(drawn).ok().filter(|drawn| *drawn < 3)
    }

    /// A release command may name the open file that owns the lease. Returns `None` in most cases,
    /// and otherwise an open file of one of the latest sessions, which may hold no lock.
    fn open_to_release(&mut self) -> Option<OpenId> {
        if self.sessions.is_empty() || !self.opens.one_in(3) {
            return None;
        }
        let recent = self.sessions.len().saturating_sub(3);
        let session = self.opens.pick(&self.sessions[recent..]);
        Some(OpenId { session, number: 1 + self.opens.next() % 2 })
    }

    /// A command may name its session and a request number, which rises within the session, so that
    /// the engine recognizes a copy. Returns `None` in most cases. Otherwise returns a session,
    /// which sometimes never existed, and a number: one higher than all drawn before, or an
    /// arbitrary one, as late copies have.
    fn number(&mut self) -> Option<RequestNumber> {
        if !self.orders.one_in(12) {
            return None;
        }
        let session = if self.sessions.is_empty() || self.orders.one_in(20) {
            SessionId::named(self.orders.next() % 50)
        } else {
            let recent = self.sessions.len().saturating_sub(3);
            self.orders.pick(&self.sessions[recent..])
        };
        let number = if self.orders.one_in(3) {
            self.orders.next() % (self.numbered + 2)
        } else {
            self.numbered + if self.orders.one_in(50) { 600 } else { 1 }
        };
        self.numbered = self.numbered.max(number);
        Some(RequestNumber { session, number })
    }

    /// Returns the number below which a request with this number acknowledges the answers: just
    /// below it, or further away, up to more than a session may have unanswered.
    fn answered_below(&mut self, number: u64) -> u64 {
        let distance = match self.acknowledgements.below(4) {
            0 => number,
            1 => self.acknowledgements.next() % 600,
            _ => self.acknowledgements.next() % 5,
        };
        (number + 1).saturating_sub(distance)
    }

    /// Returns an idempotency key of a random client. Its digest is the sum of the bytes of the
    /// command, so that different commands rarely have the same digest.
    fn request(&mut self, key: RequestKey, op: &Op) -> IdempotencyKey {
        let caller = self.client().as_str().into();
        let digest = Digest(format!("{op:?}").bytes().map(u128::from).sum());
        IdempotencyKey { id: RequestId { caller, key }, digest }
    }

    fn name(&mut self) -> LockName {
        // At least half of the lock names are the first or the second one, so that commands
        // conflict.
        let end = if self.dice.one_in(2) { 2 } else { self.names.len() };
        let place = self.dice.below(end);
        self.names[place].clone()
    }

    fn client(&mut self) -> ClientId {
        let place = self.dice.below(self.clients.len());
        self.clients[place].clone()
    }

    /// Returns the id of one of the latest sessions in most cases, and sometimes an id that no
    /// session ever had.
    fn session(&mut self) -> SessionId {
        let recent = self.sessions.len().saturating_sub(3);
        if self.sessions.is_empty() || self.dice.one_in(40) {
            return SessionId::named(self.dice.next() % 50);
        }
        self.dice.pick(&self.sessions[recent..])
    }

    fn ttl(&mut self) -> Ttl {
        Ttl::new(Span::from_secs(self.dice.pick(&[1, 2, 3, 9]))).expect("a ttl")
    }

    fn grace(&mut self) -> Grace {
        Grace::new(Span::from_secs(self.dice.pick(&[0, 1, 2]))).expect("a grace")
    }

    fn own(&mut self) -> LeaseTerms {
        LeaseTerms::Own(self.ttl(), self.grace())
    }

    fn term(&mut self) -> LeaseTerms {
        if self.dice.one_in(4) { LeaseTerms::Session(self.session()) } else { self.own() }
    }

    fn patch(&mut self) -> Patch {
        if !self.dice.one_in(4) {
            return Patch::default();
        }
        let text = match self.dice.below(4) {
            0 => Some(TextPatch::Set(vec![b'x'; self.dice.below(3)].into())),
            // Appending 4,097 bytes always exceeds the maximum length of a lock's content.
            1 => Some(TextPatch::Append(vec![b'y'; self.dice.pick(&[1, 2_000, 4_097])].into())),
            _ => None,
        };
        let too_long = "x".repeat(1_025);
        let process = Process { pid: 7, start: 70, boot: 700 };
        let attrs =
            FileAttrs { file_type: FileType::Directory, uid: 1_000, ..FileAttrs::default() };
        Patch {
            holder_id: self.dice.one_in(3).then(|| "host:ann:7:70".into()),
            note: self.dice.one_in(3).then(|| self.dice.pick(&["", "busy", &too_long]).into()),
            text,
            process: self.dice.one_in(4).then(|| self.dice.pick(&[None, Some(process)])),
            attrs: self.dice.one_in(4).then_some(attrs),
        }
    }
}
