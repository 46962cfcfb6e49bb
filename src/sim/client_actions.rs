//! The operations of a simulated client besides acquire and release: it changes the mode or the
//! name of a lease, acquires a lock again without waiting for the answer to its release, steals,
//! restarts, and resets locks as an administrator.
//!
//! The engine does not store refusals under a request id, so a late copy of a refused request may
//! still take effect. A client that cannot know the state of its lease therefore releases it.

use super::client::{LOCKS, PATIENCE, RequestResult, SimClient, name};
use super::client_history::{Lock, ObservedReset, Sharing, StepKind, Who};
use super::client_leases::{ClientLease, less, sharing};
use super::node_messages::NodeRequest;
use super::sim_types::{SimTypeConfig, now, sleep};
use crate::engine::{
    Acquire, ClientId, EndSession, Grace, IfExists, LeaseTerms, Mode, Move, Op, Outcome, Ownership,
    Patch, QueuePolicy, Release, Reset as Sweep, ResetScope, SessionEnd, Steal, StealReason, Ttl,
};
use crate::time::Time;
use openraft::type_config::TypeConfigExt;
use std::sync::Arc;

/// The client id under which resets are sent.
const ADMIN: &str = "admin";

impl SimClient {
    /// Changes the lease of an open file from exclusive to shared, or back.
    pub(super) async fn change_mode(&mut self) {
        let of_file = |held: &ClientLease| matches!(held.hold, Ownership::OpenFile(_));
        let Some(at) = self.held.iter().position(of_file) else { return };
        let Some(session) = self.session.as_ref().map(|session| session.id) else { return };
        let ClientLease { lock, token, hold, mode, .. } = self.held[at];
        let mode = if mode == Mode::Shared { Mode::Exclusive } else { Mode::Shared };
        if mode == Mode::Shared {
            // The client no longer relies on an exclusive lock, even before it has an answer: as
            // soon as the lease is shared, the lock may be granted to other sharers as well.
            let held = self.held[at].clone();
            self.believed(&held);
            (self.held[at].mode, self.held[at].from) = (mode, now());
        }
        let (name, client) = (name(lock), self.id());
        let ask =
            Acquire { mode, hold, ..Acquire::new(name, client, LeaseTerms::Session(session)) };
        let came = self.ask(Op::Acquire(ask)).await;
        let Some(Ok(Outcome::Renewed(tenure))) = &came.answer else {
            return self.mode_unknown(lock, token, mode, &came).await;
        };
        let to = tenure.token.as_u64();
        self.world.record.history(|history| {
            history.tenure(lock, to, &self.who);
            let what = StepKind::Changed { from: token, to, mode: sharing(mode) };
            history.act(lock, came.from, Some(came.to), what);
        });
        self.lose(token);
        self.hold(lock, &came, tenure, (hold, mode));
    }

    /// Handles a mode change without a success answer: it may have happened, may still happen, or
    /// never will. Releases the lease.
    async fn mode_unknown(&mut self, lock: Lock, token: u64, mode: Mode, came: &RequestResult) {
        self.left_open(lock, came.from);
        self.world.record.history(|history| {
            history.free(token, came.from);
            if mode == Mode::Shared {
                let what = StepKind::Changed { from: token, to: token, mode: Sharing::Shared };
                history.act(lock, came.from, None, what);
            }
        });
        self.close(token).await;
    }

    /// Releases the lease with this token if it is among the leases that the client believes it
    /// holds.
    async fn close(&mut self, token: u64) {
        if let Some(at) = self.held.iter().position(|held| held.token == token) {
            self.give_back(at).await;
        }
    }

    /// Moves a lease to another lock name.
    pub(super) async fn move_one(&mut self, to: Lock) {
        // A lease that the client holds by name is not moved: a late copy of a refused move would
        // take away the lease that the client later acquires again by name.
        let Some(held) = self.held.iter().find(|held| held.hold != Ownership::Client).cloned()
        else {
            return;
        };
        if self.held.iter().any(|held| held.lock == to) {
            return;
        }
        let ClientLease { lock, token, hold, mode, .. } = held;
        // The client no longer relies on the lock under the old name, even before it has an answer:
        // as soon as the lease is moved, another client may acquire the lock.
        self.lose(token);
        let from = self.key(lock, token);
        let came = self.ask(Op::Move(Move { from, to: name(to), over: IfExists::Refuse })).await;
        match &came.answer {
            Some(Ok(Outcome::Moved(tenure))) => {
                let new = tenure.token.as_u64();
                self.world.record.history(|history| {
                    history.tenure(to, new, &self.who);
                    history.act(lock, came.from, Some(came.to), StepKind::Released(token));
                    let what = StepKind::Granted(new, sharing(mode));
                    history.act(to, came.from, Some(came.to), what);
                });
                self.hold(to, &came, tenure, (hold, mode));
            }
            other => {
                if let Some(Err(refusal)) = other {
                    self.refused(to, &came, &refusal.reason);
                }
                self.left_open(to, came.from);
                self.world.record.history(|history| history.free(token, came.from));
                self.held.push(ClientLease { from: now(), ..held });
                self.close(token).await;
            }
        }
    }

    /// Steals a lock from its holder. The client does not count it as held afterwards.
    pub(super) async fn steal(&mut self, lock: Lock) {
        if self.held.iter().any(|held| held.lock == lock) {
            return;
        }
        let ttl = Ttl::new(self.world.dice.millis(1_000, 1_500)).expect("long enough");
        let steal = Steal {
            name: name(lock),
            client: self.id(),
            reason: reason(),
            term: LeaseTerms::Own(ttl, Grace::NONE),
            patch: Patch::default(),
            at_once: false,
        };
        let came = self.ask(Op::Steal(steal)).await;
        match came.answer {
            Some(Ok(Outcome::Stolen(tenure))) => {
                let token = tenure.token.as_u64();
                self.world.record.history(|history| {
                    history.tenure(lock, token, &self.who);
                    history.act(lock, came.from, Some(came.to), StepKind::Stolen(token));
                    history.steals.push((lock, came.from, token));
                    history.secure(token, came.from + less(ttl.span()));
                });
            }
            Some(Ok(_) | Err(_)) => {}
            None => self.world.record.history(|history| {
                history.steals.push((lock, came.from, u64::MAX));
                history.act(lock, came.from, None, StepKind::AllEnded);
                history.left_open(lock, &self.who, came.from);
            }),
        }
    }

    /// Resets the locks: ends every lease and queue place, except for those of a random set of
    /// clients.
    pub(super) async fn reset(&mut self) {
        let dice = self.world.dice.clone();
        let holders = self.world.record.history(|history| history.tenures.clone());
        let mut kept: Vec<Who> = holders.into_values().map(|(_, who)| who).collect();
        kept.sort_unstable();
        kept.dedup();
        kept.retain(|_| dice.percent(50));
        let ids = kept.iter().map(|who| ClientId::parse(who).expect("a valid name"));
        let whose = ResetScope::AllBut(ids.collect());
        let by = ClientId::parse(ADMIN).expect("a valid name");
        let came = self.ask(Op::Reset(Sweep::new(whose, by, reason()))).await;
        // The administrator counts as a client whose leases the reset keeps, because it is the
        // holder of the locks during the steal grace.
        kept.push(ADMIN.into());
        let to: Option<Time> = matches!(came.answer, Some(Ok(_))).then_some(came.to);
        self.world.record.history(|history| {
            history.resets.push(ObservedReset { from: came.from, to, kept });
            for lock in 0..LOCKS {
                history.left_open(lock, &Arc::from(ADMIN), came.from);
            }
        });
    }

    /// Simulates a restart of the client process, with or without closing its session. The client
    /// comes back under another id.
    pub(super) async fn die_or_end(&mut self) {
        let Some(session) = &self.session else { return };
        let id = session.id;
        self.forget_all();
        if self.world.dice.percent(50) {
            let from = now();
            self.world.record.history(|history| {
                // All tenures of the client may end with the session. The client does not know
                // which ones: a late copy of a refused request may have tied a lease to the
                // session.
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

    /// Ends the session of the client, and returns the answer; `None` if there is none.
    pub(super) async fn end_session(&mut self) -> Option<RequestResult> {
        let session = self.session.as_ref()?.id;
        let end = EndSession { session, end: SessionEnd::Closed };
        let came = self.ask(Op::EndSession(end)).await;
        self.lose_session();
        Some(came)
    }

    /// Sends a release, and acquires the lock again without waiting for the answer: the release may
    /// arrive before the acquire, after it, or never.
    pub(super) async fn change_its_mind(&mut self, lock: Lock, release: Release) {
        self.requests += 1;
        let key = self.requests.to_string().into();
        // The release has no sequence number ([`RequestOrder`](crate::engine::RequestOrder)),
        // because the acquire is in flight at the same time and may overtake it: the engine would
        // then refuse the release as a late copy.
        let request = NodeRequest::Submit(self.command(&key, Op::Release(release), None).into());
        let (world, end, node) = (Arc::clone(&self.world), self.end, self.node);
        let later = world.dice.millis(0, 100);
        SimTypeConfig::spawn(async move {
            sleep(later).await;
            world.ask(end, node, request, PATIENCE).await;
        });
        let ask = self.by_name(lock, QueuePolicy::Skip);
        self.take(lock, ask).await;
    }
}

fn reason() -> StealReason {
    StealReason::parse("to see what comes of it").expect("a reason")
}
