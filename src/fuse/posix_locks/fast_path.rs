//! The usual case in one step: a whole file that nobody of this mount has or waits for, while
//! what decides is here. It says and does what the table would, without the table's way of
//! waiting for an answer that may be late; whatever is not usual is left to the table.

use crate::fuse::posix_locks::on_events;
use crate::fuse::posix_locks::perform;
use crate::fuse::posix_locks::table::{Ask, No, Table, Waits};
use crate::fuse::posix_locks::{Request, Running};
use crate::engine::{
    Acquire, Answer, Command, LeaseTerms, Op, OpenId, Outcome, Ownership, QueuePolicy, Reason,
    SessionId, Token,
};
use crate::fuse::shared::Fs;
use crate::service::Unavailable;
use fuser::ReplyEmpty;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

thread_local! {
    /// The mount, by its session, for which this thread has just asked for what it will enter
    /// into an empty table itself: then no event can tell that table anything.
    static DEAF: Cell<Option<SessionId>> = const { Cell::new(None) };
}

/// Whether this thread need not tell the table of that session of events.
pub(crate) fn is_deaf(session: SessionId) -> bool {
    DEAF.get() == Some(session)
}

/// What came of it.
#[allow(clippy::large_enum_variant)] // Handed over once; a box would cost more.
pub(crate) enum Direct {
    /// It is held, under this token.
    Had(Token),
    /// It is not to be had, and nobody waits.
    Not(No),
    /// The table is to decide.
    Unusual(Ask),
}

/// A program wants a lock.
pub(crate) fn lock(fs: &Fs, running: &Arc<Running>, mut ask: Ask) -> Direct {
    let begun = running.desk.claim(|table| {
        let was_idle = table.is_idle();
        let begun = table.begin_direct(&ask);
        if begun {
            // Others are heard from now on: what they end is known when this is entered.
            running.idle.store(false, Ordering::Release);
        }
        begun.then_some(was_idle)
    });
    let Some(was_idle) = begun else { return Direct::Unusual(ask) };
    let acquire = acquire_of(running, &mut ask);
    DEAF.set(was_idle.then_some(running.session));
    let command = Command::from(Op::Acquire(acquire));
    let answer = fs.locks.submit_here(&command);
    DEAF.set(None);
    let entered = |table: &Table<ReplyEmpty>| {
        running.idle.store(table.is_idle(), Ordering::Release);
    };
    let perform = |effect| perform(fs, running, effect);
    match answer {
        Some(Ok(Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)))) => {
            let mut had = tenure.token;
            let learn = |table: &mut Table<ReplyEmpty>| {
                had = table.end_direct(Some((ask, tenure.token))).unwrap_or(had);
                entered(table);
            };
            running.desk.finish(learn, perform);
            Direct::Had(had)
        }
        answer => {
            let learn = |table: &mut Table<ReplyEmpty>| {
                table.end_direct(None);
                entered(table);
            };
            running.desk.finish(learn, perform);
            not_had(answer, ask, command)
        }
    }
}

fn not_had(answer: Option<Result<Answer, Unavailable>>, mut ask: Ask, command: Command) -> Direct {
    if let Some(Ok(Err(refusal))) = answer
        && ask.line == Waits::No
        && matches!(*refusal.reason, Reason::Conflict(_))
    {
        return Direct::Not(No::Busy(Some(Box::new(refusal))));
    }
    if let Op::Acquire(acquire) = command.op {
        ask.patch = acquire.patch;
    }
    Direct::Unusual(ask)
}

/// Takes the patch out of `ask`.
fn acquire_of(running: &Running, ask: &mut Ask) -> Acquire {
    let (session, number) = (running.session, ask.owner.fh);
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
pub(crate) fn unlock(fs: &Fs, running: &Arc<Running>, asked: &Request) -> bool {
    let given = running.desk.claim(|table| {
        let release = table.give_back_alone(asked.ino, asked.owner, asked.span())?;
        // Others are heard until it is over: one may be moving it.
        running.idle.store(false, Ordering::Release);
        Some((release, table.is_idle_but_for(1)))
    });
    let Some((release, is_all)) = given else { return false };
    let token = release.key.token;
    DEAF.set(is_all.then_some(running.session));
    let command = Command::from(Op::Release(release));
    let answer = fs.locks.submit_here(&command);
    DEAF.set(None);
    let is_decided = matches!(answer, Some(Ok(_)));
    if !is_decided {
        // As soon as the journal takes it; events tell what became of it.
        fs.locks.give_back(command.op);
    }
    let is_over = matches!(answer, Some(Ok(Ok(Outcome::Released))));
    let learn = |table: &mut Table<ReplyEmpty>| {
        if let Some(token) = token.filter(|_| is_over) {
            table.gone(token);
        }
        running.idle.store(table.is_idle(), Ordering::Release);
    };
    running.desk.finish(learn, |effect| perform(fs, running, effect));
    if is_decided && !is_over {
        // Lost, or moved, a moment before: events tell which.
        on_events(&Arc::downgrade(fs), running);
    }
    true
}
