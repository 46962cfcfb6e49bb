//! What makes entries: one at a time, with all that was asked while the one before was on its
//! way, and the time at which the engine is to carry it out.
//!
//! When a deadline passes and nobody asks for anything, an entry says only that. A node on which
//! nothing happens writes nothing.

use super::clock::Carried;
use super::desk::{ANSWER_DEADLINE, Batch, Desk, Next, Waiting};
use super::kind::{Answers, Commands, Proposal, Raft};
use super::replica::Replica;
use super::trouble::Trouble;
use crate::engine::Op;
use crate::locks::Unavailable;
use crate::time::{Span, Time, steady_now};
use std::pin::pin;
use std::sync::Arc;

/// How often it is looked for requests for which nobody waits any more, while an entry takes long.
const LATE_LOOK: Span = Span::from_millis(250);

/// Proposes entries.
pub(super) struct Proposer {
    pub(super) raft: Raft,
    pub(super) replica: Arc<Replica>,
    pub(super) desk: Arc<Desk>,
    pub(super) clock: Carried,
    pub(super) trouble: Trouble,
}

impl Proposer {
    /// Proposes what is asked, until the desk is closed and empty. If the log fails: why.
    pub(super) async fn run(&self) -> Result<(), Arc<str>> {
        loop {
            match self.desk.next(self.clock) {
                Next::Batch(batch) => self.carry_out(batch).await?,
                Next::Closed => return Ok(()),
                Next::Nothing => self.rest().await?,
            }
        }
    }

    /// Waits until something is asked or due; carries out what is due.
    async fn rest(&self) -> Result<(), Arc<str>> {
        let Some(due) = self.replica.next_deadline() else {
            self.desk.rings().await;
            return Ok(());
        };
        let wait = self.clock.until(due, steady_now());
        if wait == Span::ZERO {
            return self.tick().await;
        }
        tokio::select! {
            () = self.desk.rings() => {}
            () = tokio::time::sleep(wait.as_duration()) => {}
        }
        Ok(())
    }

    /// Carries out what is due.
    async fn tick(&self) -> Result<(), Arc<str>> {
        let now = self.clock.at(steady_now());
        let commands = Arc::new(Commands { now, commands: vec![Op::Settle.into()] });
        self.write(commands, &mut None).await.map(drop)
    }

    async fn carry_out(&self, batch: Batch) -> Result<(), Arc<str>> {
        let Batch { commands, waiting } = batch;
        let mut waiting = Some(waiting);
        let answered = if !commands.commands.is_empty() {
            self.write(commands, &mut waiting).await
        } else if self.replica.next_deadline().is_some_and(|due| due <= commands.now) {
            // Who only looks is to see what is due as done.
            self.tick().await.map(|()| vec![])
        } else {
            Ok(vec![])
        };
        self.desk.landed();
        match (answered, waiting) {
            (Ok(answers), Some(waiting)) => waiting.answer(answers),
            (Err(why), waiting) => {
                let failed = Unavailable::Log { why: Arc::clone(&why) };
                if let Some(waiting) = waiting {
                    waiting.refuse(&failed);
                }
                return Err(why);
            }
            // All have given up.
            (Ok(_), None) => {}
        }
        Ok(())
    }

    /// Has an entry written and carried out: what its commands came to. If that takes too long,
    /// those who wait are told, and taken away.
    async fn write(
        &self,
        commands: Arc<Commands>,
        waiting: &mut Option<Waiting>,
    ) -> Result<Answers, Arc<str>> {
        let began = steady_now();
        let mut entry = pin!(self.raft.client_write(Proposal::Commands(commands)));
        let written = loop {
            tokio::select! {
                written = &mut entry => break written,
                () = tokio::time::sleep(LATE_LOOK.as_duration()) => {
                    self.give_up_on_the_late(began, waiting);
                }
            }
        };
        written
            .map(|done| done.data)
            .map_err(|error| self.trouble.first().unwrap_or_else(|| error.to_string().into()))
    }

    /// Answers those who have waited as long as anybody does. The entry may still be carried out.
    fn give_up_on_the_late(&self, began: Time, waiting: &mut Option<Waiting>) {
        let now = steady_now();
        let late = Unavailable::Log { why: format!("no sync within {ANSWER_DEADLINE}").into() };
        let is_late = now.since(began) >= ANSWER_DEADLINE;
        if let Some(waiting) = waiting.take_if(|_| is_late) {
            waiting.refuse(&late);
        }
        self.desk.expire(now, &late);
    }
}
