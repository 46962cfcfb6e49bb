//! The usual case in one step: a whole file that nobody of this mount has or waits for, while
//! what decides is here. It says and does what the table would, without the table's way of
//! waiting for an answer that may be late; whatever is not usual is left to the table.

use super::table::{Ask, No, Waits};
use super::{Request, Running, perform};
use crate::engine::{
    Acquire, Answer, Hold, Line, Op, OpenId, Outcome, Reason, SessionId, Term, Token,
};
use crate::fs::shared::Fs;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

thread_local! {
    /// The mount, by its session, for which this thread has just asked for what it will enter
    /// into an empty table itself: then no event can tell that table anything.
    static DEAF: Cell<Option<SessionId>> = const { Cell::new(None) };
}

/// Whether this thread need not tell the table of that session of events.
pub(super) fn is_deaf(session: SessionId) -> bool {
    DEAF.get() == Some(session)
}

/// What came of it.
pub(super) enum Direct {
    /// It is held, under this token.
    Had(Token),
    /// It is not to be had, and nobody waits.
    Not(No),
    /// The table is to decide.
    Unusual,
}

/// A program wants a lock.
pub(super) fn lock(fs: &Fs, running: &Arc<Running>, ask: &Ask) -> Direct {
    let (turn, was_idle) = {
        let mut table = running.table.lock();
        let was_idle = table.is_idle();
        if !running.is_here || !table.begin_direct(ask) {
            return Direct::Unusual;
        }
        let Some(turn) = running.outbox.claim() else {
            table.end_direct(ask, None);
            return Direct::Unusual;
        };
        // Others are heard from now on: what they end is known when this is entered.
        running.idle.store(false, Ordering::Release);
        (turn, was_idle)
    };
    DEAF.set(was_idle.then_some(running.session));
    let answer = fs.locks.submit_here(&Op::Acquire(acquire_of(running, ask)).into());
    DEAF.set(None);
    let direct = direct_of(answer.and_then(Result::ok), ask);
    {
        let mut table = running.table.lock();
        let token = if let Direct::Had(token) = direct { Some(token) } else { None };
        table.end_direct(ask, token);
        running.idle.store(table.is_idle(), Ordering::Release);
    }
    running.outbox.clear(turn, |effect| perform(fs, running, effect));
    direct
}

fn acquire_of(running: &Running, ask: &Ask) -> Acquire {
    let (session, number) = (running.session, ask.owner.fh);
    Acquire {
        name: ask.name.clone(),
        client: ask.client.clone(),
        mode: ask.mode,
        hold: Hold::Open(OpenId { session, number }),
        term: Term::Session(session),
        line: Line::Skip,
        patch: ask.patch.clone(),
    }
}

fn direct_of(answer: Option<Answer>, ask: &Ask) -> Direct {
    match answer {
        Some(Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure))) => Direct::Had(tenure.token),
        Some(Err(refusal))
            if ask.line == Waits::No && matches!(*refusal.reason, Reason::Conflict(_)) =>
        {
            Direct::Not(No::Busy(Some(Box::new(refusal))))
        }
        _ => Direct::Unusual,
    }
}

/// A program gives a lock back. False: the table is to decide.
pub(super) fn unlock(fs: &Fs, running: &Arc<Running>, asked: &Request) -> bool {
    let (release, turn) = {
        let mut table = running.table.lock();
        if !running.is_here || !table.has_alone(asked.ino, asked.owner, asked.span()) {
            return false;
        }
        let Some(turn) = running.outbox.claim() else { return false };
        let release = table.give_back_alone(asked.ino);
        // Before the engine is asked, as ever: see `run`.
        running.idle.store(table.is_idle(), Ordering::Release);
        (release, turn)
    };
    if let Some(release) = release {
        // Nothing depends on the answer.
        fs.locks.submit(release, |_| {});
    }
    running.outbox.clear(turn, |effect| perform(fs, running, effect));
    true
}
