//! A client: it asks any node, gives up and asks another one under the same request id, keeps a
//! session alive, waits in line, and counts its own deadlines on its own clock, from before it
//! sent what an answer answers. What it sees goes into the history.

use super::belief::{Held, Session, less};
use super::clock::Clock;
use super::history::{Lock, Place, What, Who};
use super::kind::{now, sleep};
use super::net::End;
use super::node::{Reply, Request};
use super::planted::{Bug, planted};
use super::world::World;
use crate::cluster::kind::NodeId;
use crate::engine::{
    Acquire, Answer, ClientId, Command, Digest, EndSession, Grace, Hold, LeaseKey, Leave, Life,
    Line, LockName, LockView, Mode, Op, OpenSession, Outcome, Patch, Reason, Release, Renew,
    RequestId, SessionEnd, Steal, StealReason, Tenure, Term, Ticket, Token, Ttl, Why,
};
use crate::time::{Span, Time};
use std::sync::Arc;

/// How many locks all clients want.
pub(super) const LOCKS: usize = 3;
/// How long a client waits for an answer before it asks another node.
const PATIENCE: Span = Span::from_millis(400);
/// How often it asks.
const TRIES: u32 = 8;
/// How long a waiter lets pass before it looks again.
const LOOK_AGAIN: Span = Span::from_millis(80);

/// A client process.
pub(super) struct Client {
    pub(super) world: Arc<World>,
    end: End,
    pub(super) clock: Clock,
    /// The name of this life.
    pub(super) who: Who,
    life: u32,
    requests: u64,
    /// Whom it asks first.
    node: NodeId,
    pub(super) session: Option<Session>,
    pub(super) held: Vec<Held>,
}

/// What came of a request.
struct Came {
    /// When it was first sent: on the client's clock, and in virtual time.
    sent: Time,
    from: Time,
    to: Time,
    /// `None`: no answer.
    answer: Option<Answer>,
}

impl Client {
    pub(super) fn new(world: &Arc<World>, number: u64) -> Self {
        let clock = Clock::new(&world.dice);
        let node = *world.dice.pick(&world.nodes());
        let (end, who) = (100 + number, format!("c{number}.0").into());
        let world = Arc::clone(world);
        Self { world, end, clock, who, life: 0, requests: 0, node, session: None, held: vec![] }
    }

    pub(super) const fn end(number: u64) -> End {
        100 + number
    }

    /// Asks for this and that until then.
    pub(super) async fn live(mut self, until: Time) {
        while now() < until {
            self.keep_up().await;
            self.drop_the_late();
            let dice = self.world.dice.clone();
            let lock = dice.index(LOCKS);
            match dice.below(100) {
                0..35 => self.acquire(lock, Line::Skip).await,
                35..60 => {
                    let patience = dice.millis(500, 4_000);
                    self.acquire(lock, Line::Join(Some(patience))).await;
                }
                60..63 => self.steal(lock).await,
                63..78 => self.renew_one().await,
                78..82 => self.die_or_end().await,
                _ => drop(self.look(lock).await),
            }
            sleep(dice.millis(1, 60)).await;
            if !self.held.is_empty() && dice.percent(45) {
                self.give_back_one().await;
            }
        }
        self.forget_all();
    }

    /// Looks at all locks once.
    pub(super) async fn look_at_all(mut self) {
        for lock in 0..LOCKS {
            if self.look(lock).await.is_none() {
                self.world.record.violation(format_args!("lock {lock} can't be seen at the end"));
            }
        }
    }

    /// Asks for something until there is an answer, or it has asked often enough.
    async fn ask(&mut self, op: Op) -> Came {
        let (sent, from) = (self.clock.read(), now());
        self.requests += 1;
        let mut key: Arc<str> = self.requests.to_string().into();
        for attempt in 0..TRIES {
            if attempt > 0 && planted(Bug::NewIdOnRetry) {
                key = format!("{}-{attempt}", self.requests).into();
            }
            let id = RequestId { caller: Arc::clone(&self.who), key: Arc::clone(&key) };
            // Each key is for one request.
            let request = crate::engine::Request { id, digest: Digest(0) };
            let command = Command { request: Some(request), op: op.clone() };
            let reply =
                self.world.ask(self.end, self.node, Request::Submit(command), PATIENCE).await;
            let sent = if planted(Bug::DeadlineFromReply) { self.clock.read() } else { sent };
            if let Some(Reply::Answered(answer)) = reply {
                self.world.record.note(format_args!("{} {op:?}: {answer:?}", self.who));
                self.world.record.history(|history| history.answered += 1);
                let answer = answer.map(Outcome::first);
                return Came { sent, from, to: now(), answer: Some(answer) };
            }
            self.turn_to(reply).await;
        }
        self.world.record.note(format_args!("{} {op:?}: no answer", self.who));
        self.world.record.history(|history| history.unknown += 1);
        Came { sent, from, to: now(), answer: None }
    }

    /// Asks another node from now on: the one that was named, or any.
    async fn turn_to(&mut self, reply: Option<Reply>) {
        match reply {
            Some(Reply::NotLeader(Some(leader))) => self.node = leader,
            _ => self.node = *self.world.dice.pick(&self.world.nodes()),
        }
        sleep(self.world.dice.millis(1, 50)).await;
    }

    /// Opens a session if there is none, and keeps it alive if it is time.
    async fn keep_up(&mut self) {
        let Some(Session { id, ttl, kept, .. }) = self.session else { return self.open().await };
        let third = Span::from_nanos(ttl.span().as_nanos() / 3);
        if self.clock.read().since(kept) < third {
            return;
        }
        let came = self.ask(Op::KeepAlive(id)).await;
        match came.answer {
            Some(Ok(_)) => {
                let until = came.sent + less(ttl.span());
                let session = self.session.as_mut().expect("it is open");
                session.until = until.max(session.until);
                session.kept = came.sent;
                let secured = came.from + less(ttl.span());
                let held = self.held.iter().filter(|held| held.until.is_none());
                self.world.record.history(|history| {
                    held.for_each(|held| history.secure(held.token, secured));
                });
            }
            Some(Err(_)) => self.lose_session(),
            None => {}
        }
    }

    async fn open(&mut self) {
        let client = ClientId::parse(&self.who).expect("a valid name");
        let ttl = Ttl::new(self.world.dice.millis(1_000, 3_000)).expect("long enough");
        let grace = self.grace();
        let came = self.ask(Op::OpenSession(OpenSession { client, ttl: Some(ttl), grace })).await;
        if let Some(Ok(Outcome::SessionOpened(id))) = came.answer {
            let until = came.sent + less(ttl.span());
            self.session = Some(Session { id, ttl, until, kept: came.sent });
        }
    }

    /// Half of them have none, so that what comes too late is seen.
    fn grace(&self) -> Grace {
        let dice = &self.world.dice;
        let span = if dice.percent(50) { Span::ZERO } else { dice.millis(0, 600) };
        Grace::new(span).expect("short enough")
    }

    async fn acquire(&mut self, lock: Lock, line: Line) {
        if self.held.iter().any(|held| held.lock == lock) {
            return;
        }
        let ttl = Ttl::new(self.world.dice.millis(1_000, 2_500)).expect("long enough");
        let grace = self.grace();
        let term = match &self.session {
            Some(session) if self.world.dice.percent(60) => Term::Session(session.id),
            _ => Term::Own(ttl, grace),
        };
        let came = self
            .ask(Op::Acquire(Acquire {
                name: name(lock),
                client: ClientId::parse(&self.who).expect("a valid name"),
                mode: Mode::Exclusive,
                hold: Hold::Loose,
                term,
                line,
                patch: Patch::default(),
            }))
            .await;
        match &came.answer {
            Some(Ok(Outcome::Granted(tenure))) => self.granted(lock, &came, *tenure, ttl),
            Some(Ok(Outcome::Renewed(tenure))) => self.kept(lock, &came, *tenure, ttl),
            Some(Ok(Outcome::Waiting { ticket, .. })) => {
                self.wait(lock, &came, *ticket, ttl).await;
            }
            Some(Err(refusal)) => self.refused(lock, &came, &refusal.reason),
            _ => self.left_open(lock, came.from),
        }
    }

    fn granted(&mut self, lock: Lock, came: &Came, tenure: Tenure, ttl: Ttl) {
        let token = tenure.token.as_u64();
        self.world.record.history(|history| {
            history.tenure(lock, token, &self.who);
            history.act(lock, came.from, Some(came.to), What::Granted(token));
        });
        self.hold(lock, came, tenure, ttl);
    }

    fn kept(&mut self, lock: Lock, came: &Came, tenure: Tenure, ttl: Ttl) {
        let token = tenure.token.as_u64();
        self.world.record.history(|history| {
            history.tenure(lock, token, &self.who);
            history.act(lock, came.from, Some(came.to), What::Kept(token));
        });
        self.hold(lock, came, tenure, ttl);
    }

    /// It has a lock, by an answer.
    fn hold(&mut self, lock: Lock, came: &Came, tenure: Tenure, ttl: Ttl) {
        let token = tenure.token.as_u64();
        if self.is_of_another_session(&tenure.life) {
            return;
        }
        let (until, ttl, secured) = match tenure.life {
            Life::Own { ttl, .. } => {
                (Some(came.sent + less(ttl.span())), ttl, came.from + less(ttl.span()))
            }
            Life::Session(_) => (None, ttl, self.session_secured()),
        };
        self.world.record.history(|history| history.secure(token, secured));
        if let Some(held) = self.held.iter_mut().find(|held| held.token == token) {
            held.until = until;
        } else {
            let runs_out = until.is_some() && self.world.dice.percent(40);
            self.held.push(Held { lock, token, from: came.to, until, ttl, runs_out });
        }
    }

    fn refused(&mut self, lock: Lock, came: &Came, reason: &Reason) {
        if let Reason::Conflict(conflict) = reason {
            let token = conflict.token.as_u64();
            let who: Who = conflict.holder.as_str().into();
            self.world.record.history(|history| {
                history.tenure(lock, token, &who);
                history.act(lock, came.from, Some(came.to), What::Seen(Some(token)));
            });
        }
        // A copy of the request may still be on its way, and a refusal is not remembered.
        self.left_open(lock, came.from);
    }

    fn left_open(&self, lock: Lock, since: Time) {
        self.world.record.history(|history| history.left_open(lock, &self.who, since));
    }

    /// Waits until served, or long enough.
    async fn wait(&mut self, lock: Lock, joined: &Came, ticket: Ticket, ttl: Ttl) {
        let (who, told, number) = (Arc::clone(&self.who), joined.to, ticket.as_u64());
        let mut place = Place { lock, who, told, ticket: number, served: None };
        let enough = now() + self.world.dice.millis(300, 5_000);
        while now() < enough {
            sleep(LOOK_AGAIN).await;
            self.keep_up().await;
            let from = joined.from;
            let Some((sent, view, at)) = self.look(lock).await else { continue };
            let mine = view.held_by(&ClientId::parse(&self.who).expect("a valid name"));
            if let Some(holder) = mine {
                let token = holder.lease.token;
                place.served = Some(token.as_u64());
                self.served(
                    lock,
                    from,
                    token,
                    &holder.lease.life,
                    (sent, holder.ends.expires_at.since(at)),
                    ttl,
                );
                break;
            }
            if !view.waiters.iter().any(|waiter| waiter.ticket == ticket) {
                break;
            }
        }
        if place.served.is_none() {
            self.left_open(lock, joined.from);
            let why = Why::Asked;
            self.ask(Op::Leave(Leave { name: name(lock), ticket, why })).await;
        }
        self.world.record.history(|history| history.places.push(place));
    }

    /// It was served from the line, as it sees by looking. `left`: what was left of its lease,
    /// counted from when it sent the question.
    fn served(
        &mut self,
        lock: Lock,
        from: Time,
        token: Token,
        life: &Life,
        left: (Time, Span),
        ttl: Ttl,
    ) {
        let (token, (sent, left)) = (token.as_u64(), left);
        let until = match life {
            Life::Own { .. } => Some(sent + less(left)),
            Life::Session(_) => None,
        };
        let elsewhere = self.is_of_another_session(life);
        self.world.record.history(|history| {
            if !history.granted.contains(&token) {
                history.act(lock, from, Some(now()), What::Granted(token));
            }
            let secured = match until {
                _ if elsewhere => Time::ZERO,
                Some(_) => self.clock.virtual_at(sent) + less(left),
                None => self.session_secured(),
            };
            history.secure(token, secured);
        });
        if !elsewhere && !self.held.iter().any(|held| held.token == token) {
            self.held.push(Held { lock, token, from: now(), until, ttl, runs_out: false });
        }
    }

    /// Looks at a lock. When it asked, on its clock; what it saw; and at what time at the latest.
    async fn look(&mut self, lock: Lock) -> Option<(Time, LockView, Time)> {
        for _ in 0..TRIES {
            let (sent, from) = (self.clock.read(), now());
            let request = Request::View(name(lock));
            let reply = self.world.ask(self.end, self.node, request, PATIENCE).await;
            if let Some(Reply::Seen(view, at)) = reply {
                self.saw(lock, from, &view);
                return Some((sent, *view, at));
            }
            self.turn_to(reply).await;
        }
        None
    }

    fn saw(&self, lock: Lock, from: Time, view: &LockView) {
        let holder = view.holder().map(|holder| {
            let who: Who = holder.lease.holder.as_str().into();
            (holder.lease.token.as_u64(), who)
        });
        self.world.record.note(format_args!("{} sees lock {lock}: {holder:?}", self.who));
        self.world.record.history(|history| {
            history.answered += 1;
            if let Some((token, who)) = &holder {
                history.tenure(lock, *token, who);
            }
            let seen = What::Seen(holder.map(|(token, _)| token));
            history.act(lock, from, Some(now()), seen);
        });
    }

    async fn renew_one(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.world.dice.index(self.held.len());
        let Held { lock, token, ttl, runs_out, .. } = self.held[at];
        if runs_out {
            return;
        }
        let key = self.key(lock, token);
        let renew =
            Renew { key, term: None, firm: crate::engine::Firm::Keep, patch: Patch::default() };
        let came = self.ask(Op::Renew(renew)).await;
        match &came.answer {
            Some(Ok(Outcome::Renewed(tenure))) => self.kept(lock, &came, *tenure, ttl),
            Some(Err(refusal)) => {
                let not_kept = !matches!(*refusal.reason, Reason::NoSession(_));
                if not_kept {
                    self.not_kept(lock, token, &came);
                }
                self.lose(token);
            }
            _ => {}
        }
    }

    fn not_kept(&self, lock: Lock, token: u64, came: &Came) {
        self.world.record.history(|history| {
            history.act(lock, came.from, Some(came.to), What::NotKept(token));
        });
    }

    fn key(&self, lock: Lock, token: u64) -> LeaseKey {
        let client = ClientId::parse(&self.who).expect("a valid name");
        LeaseKey { name: name(lock), client, token: Some(Token::named(token)) }
    }

    async fn give_back_one(&mut self) {
        let at = self.world.dice.index(self.held.len());
        if self.held[at].runs_out {
            return;
        }
        let held = self.held.swap_remove(at);
        self.believed(&held);
        let Held { lock, token, .. } = held;
        let key = self.key(lock, token);
        let from = now();
        let came = self.ask(Op::Release(Release { key })).await;
        match &came.answer {
            Some(Ok(Outcome::Released)) => self.world.record.history(|history| {
                history.act(lock, came.from, Some(came.to), What::Released(token));
            }),
            Some(_) => self.not_kept(lock, token, &came),
            None => self.world.record.history(|history| history.free(token, from)),
        }
    }

    /// Takes a lock from whoever has it, and does not use it.
    async fn steal(&mut self, lock: Lock) {
        if self.held.iter().any(|held| held.lock == lock) {
            return;
        }
        let ttl = Ttl::new(self.world.dice.millis(1_000, 1_500)).expect("long enough");
        let steal = Steal {
            name: name(lock),
            client: ClientId::parse(&self.who).expect("a valid name"),
            reason: StealReason::parse("to see what comes of it").expect("a reason"),
            term: Term::Own(ttl, Grace::NONE),
            patch: Patch::default(),
        };
        let came = self.ask(Op::Steal(steal)).await;
        match came.answer {
            Some(Ok(Outcome::Stolen(tenure))) => {
                let token = tenure.token.as_u64();
                self.world.record.history(|history| {
                    history.tenure(lock, token, &self.who);
                    history.act(lock, came.from, Some(came.to), What::Stolen(token));
                    history.steals.push((lock, came.from, token));
                    history.secure(token, came.from + less(ttl.span()));
                });
            }
            Some(Ok(_) | Err(_)) => {}
            None => self.world.record.history(|history| {
                history.steals.push((lock, came.from, u64::MAX));
                history.left_open(lock, &self.who, came.from);
            }),
        }
    }

    /// Ends, with or without a word, and comes back under another name.
    async fn die_or_end(&mut self) {
        let Some(session) = &self.session else { return };
        let id = session.id;
        self.forget_all();
        if self.world.dice.percent(50) {
            let from = now();
            self.world.record.history(|history| {
                // Also what it does not know to hold: a copy of a refused request may have made
                // a lock of its own hang on the session.
                let mine = history.tenures.iter().filter(|(_, (_, who))| *who == self.who);
                let mine: Vec<_> = mine.map(|(token, _)| *token).collect();
                for token in mine {
                    history.free(token, from);
                }
            });
            self.ask(Op::EndSession(EndSession { session: id, end: SessionEnd::Closed })).await;
        }
        self.session = None;
        self.life += 1;
        self.who = format!("c{}.{}", self.end - 100, self.life).into();
    }
}

/// The name of a lock.
pub(super) fn name(lock: Lock) -> LockName {
    LockName::parse(&format!("lock{lock}")).expect("a valid name")
}
