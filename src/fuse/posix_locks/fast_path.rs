//! The usual case in one step: a whole file that nobody of this mount has or waits for, while
//! the engine is here. It says and does what the table would, without the table's way of
//! waiting for an answer that may be late; an unusual case is left to the table.

use crate::engine::{
    Acquire, Answer, Command, LeaseTerms, Op, OpenId, Outcome, Ownership, QueuePolicy, Reason,
    Token,
};
use crate::fuse::kernel::values::LockRequest;
use crate::fuse::posix_locks::byte_ranges::{Owner, Span};
use crate::fuse::posix_locks::lock_session::{LockSession, LockTable};
use crate::fuse::posix_locks::own_requests::deaf_to;
use crate::fuse::posix_locks::table::{Ask, No, Waits};
use crate::service::Unavailable;
use std::sync::Arc;

/// The result of a lock that was asked for in one step.
#[allow(clippy::large_enum_variant)] // Handed over once; a box would cost more.
pub(crate) enum LockedNow {
    /// It is held, under this token.
    Had(Token),
    /// It is not to be had, and nobody waits.
    Not(No),
    /// The table is to decide.
    Unusual(Ask),
}

impl LockSession {
    /// A program wants a lock.
    pub(crate) fn lock_now(self: &Arc<Self>, mut ask: Ask) -> LockedNow {
        let begun = self.queue.claim(|table| {
            let was_idle = table.is_idle();
            let begun = table.begin_direct(&ask);
            if begun {
                // Others are heard from now on: what they end is known when this is entered.
                self.listen_always();
            }
            begun.then_some(was_idle)
        });
        let Some(was_idle) = begun else { return LockedNow::Unusual(ask) };
        let acquire = self.acquire_of(&mut ask);
        let check = self.parts().parents.check_of_open(&acquire);
        let command = Command::from(Op::Acquire(acquire));
        let own = was_idle.then_some(self.session);
        let submit = || self.service().submit_checked_here(&command, check.as_ref());
        let answer = deaf_to(own, submit);
        let perform = |effect| self.perform(effect);
        match answer {
            Some(Ok(Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)))) => {
                let mut had = tenure.token;
                let learn = |table: &mut LockTable| {
                    had = table.end_direct(Some((ask, tenure.token))).unwrap_or(had);
                    self.listen(table);
                };
                self.queue.finish(learn, perform);
                LockedNow::Had(had)
            }
            answer => {
                let learn = |table: &mut LockTable| {
                    table.end_direct(None);
                    self.listen(table);
                };
                self.queue.finish(learn, perform);
                not_had(answer, ask, command)
            }
        }
    }

    /// Takes the patch out of `ask`.
    fn acquire_of(&self, ask: &mut Ask) -> Acquire {
        let (session, number) = (self.session, ask.owner.fh);
        Acquire {
            name: ask.name.clone(),
            client: ask.client.clone(),
            mode: ask.mode,
            hold: Ownership::OpenFile(OpenId { session, number }),
            term: LeaseTerms::Session(session),
            line: QueuePolicy::Skip,
            patch: std::mem::take(&mut ask.patch),
        }
    }

    /// A program gives a lock back. False: the table is to decide.
    pub(crate) fn unlock_now(self: &Arc<Self>, asked: &LockRequest) -> bool {
        let given = self.queue.claim(|table| {
            let release = table.give_back_alone(asked.ino, asked.owner, span_of(asked))?;
            // Others are heard until it is over: one may be moving it.
            self.listen_always();
            Some((release, table.is_idle_but_for(1)))
        });
        let Some((release, is_all)) = given else { return false };
        let token = release.key.token;
        let command = Command::from(Op::Release(release));
        let own = is_all.then_some(self.session);
        let answer = deaf_to(own, || self.service().submit_here(&command));
        let is_decided = matches!(answer, Some(Ok(_)));
        if !is_decided {
            // As soon as the journal takes it; events tell what became of it.
            self.service().give_back(command.op);
        }
        let is_over = matches!(answer, Some(Ok(Ok(Outcome::Released))));
        let learn = |table: &mut LockTable| {
            if let Some(token) = token.filter(|_| is_over) {
                table.gone(token);
            }
            self.listen(table);
        };
        self.queue.finish(learn, |effect| self.perform(effect));
        if is_decided && !is_over {
            // Lost, or moved, a moment before: events tell which.
            self.on_events();
        }
        true
    }
}

fn not_had(
    answer: Option<Result<Answer, Unavailable>>,
    mut ask: Ask,
    command: Command,
) -> LockedNow {
    if let Some(Ok(Err(refusal))) = answer
        && ask.line == Waits::No
        && matches!(*refusal.reason, Reason::Conflict(_))
    {
        return LockedNow::Not(No::Busy(Some(Box::new(refusal))));
    }
    if let Op::Acquire(acquire) = command.op {
        ask.patch = acquire.patch;
    }
    LockedNow::Unusual(ask)
}

/// Returns the bytes that a request is about.
pub(crate) const fn span_of(asked: &LockRequest) -> Span {
    Span { start: asked.start, end: asked.end }
}

/// Returns the owner of a lock as the kernel numbers it.
pub(crate) const fn owner_of(asked: &LockRequest) -> Owner {
    Owner { id: asked.owner, fh: asked.fh, pid: asked.pid }
}
