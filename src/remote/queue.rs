//! What is asked and not yet answered: in order, each with the time until which somebody waits.

use crate::engine::{LeaseKey, Leave, Op, Outcome, Release, Why};
use crate::locks::Unavailable;
use crate::locks::wire::{ASKS_MAX, Ask, Reply, Stamp};
use crate::time::Time;
use std::collections::VecDeque;

/// Releases that are kept for a server that can't be reached: more open files than a machine has.
const OWED_MAX: usize = 1 << 16;

/// A reply, and when it was given.
pub(super) type Got = Result<(Reply, Stamp), Unavailable>;

/// Where a reply goes.
pub(super) type Then = Box<dyn FnOnce(Got) + Send>;

/// Something that was asked.
pub(super) struct Asked {
    pub(super) ask: Ask,
    /// Until when an answer is waited for.
    pub(super) until: Time,
    /// `None`: nobody waits any more, or nobody ever did.
    pub(super) then: Option<Then>,
}

/// What is asked, first asked first.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Asked>);

impl Asked {
    /// Whether it is to be done even when nobody waits for the answer any more: what a program
    /// has given back must not stay held because the network was away just then.
    pub(super) fn is_owed(&self) -> bool {
        match &self.ask {
            Ask::Submit(command) => match &command.op {
                // Without its token it could hit a newer tenure.
                Op::Release(release) => release.key.token.is_some(),
                Op::Leave(_) => true,
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether its outcome has to be known: it may have taken something, or must be done.
    pub(super) fn leaves_traces(&self) -> bool {
        let takes = match &self.ask {
            Ask::Submit(command) => matches!(command.op, Op::Acquire(_) | Op::Steal(_)),
            _ => false,
        };
        takes || self.is_owed()
    }

    /// What takes back what was done, if that gave something to somebody who waits no longer.
    pub(super) fn undone_by(&self, reply: &Reply) -> Option<Op> {
        let (Ask::Submit(command), Reply::Answered(Ok(outcome))) = (&self.ask, reply) else {
            return None;
        };
        let (name, client) = match &command.op {
            Op::Acquire(ask) => (ask.name.clone(), ask.client.clone()),
            Op::Steal(ask) => (ask.name.clone(), ask.client.clone()),
            _ => return None,
        };
        match outcome {
            Outcome::Granted(tenure) | Outcome::Stolen(tenure) => {
                let key = LeaseKey { name, client, token: Some(tenure.token) };
                Some(Op::Release(Release { key }))
            }
            Outcome::Waiting { ticket, .. } => {
                Some(Op::Leave(Leave { name, ticket: *ticket, why: Why::Gone }))
            }
            _ => None,
        }
    }
}

impl Queue {
    pub(super) fn push(&mut self, asked: Asked) {
        self.0.push_back(asked);
    }

    /// To be asked before all others.
    pub(super) fn push_first(&mut self, asked: Asked) {
        self.0.push_front(asked);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As much as goes in one batch.
    pub(super) fn take(&mut self) -> Vec<Asked> {
        let count = self.0.len().min(ASKS_MAX);
        self.0.drain(..count).collect()
    }

    /// Takes out everything; gives who waits, to be told that there is no answer.
    pub(super) fn clear(&mut self) -> Vec<Then> {
        self.0.drain(..).filter_map(|asked| asked.then).collect()
    }

    /// Takes out all who wait, to be told that there is no answer; what is owed stays.
    pub(super) fn give_up(&mut self) -> Vec<Then> {
        let mut told = Vec::new();
        self.0.retain_mut(|asked| {
            told.extend(asked.then.take());
            asked.is_owed()
        });
        let excess = self.0.len().saturating_sub(OWED_MAX);
        self.0.drain(..excess);
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, LockName, Token};

    fn asked(ask: Ask) -> Asked {
        Asked { ask, until: Time::ZERO, then: Some(Box::new(|_| {})) }
    }

    fn release(token: Option<u64>) -> Ask {
        let name = LockName::parse("build").expect("valid");
        let client = ClientId::parse("a").expect("valid");
        let key = LeaseKey { name, client, token: token.map(Token::named) };
        Ask::Submit(Op::Release(Release { key }).into())
    }

    #[test]
    fn what_was_given_back_is_owed_until_the_server_knows() {
        let mut queue = Queue::default();
        for ask in [Ask::Now, release(Some(7)), release(None), Ask::About] {
            queue.push(asked(ask));
        }
        assert_eq!(queue.give_up().len(), 4, "all are told");
        let left: Vec<_> = queue.take().into_iter().map(|asked| asked.ask).collect();
        assert_eq!(left, [release(Some(7))]);
    }
}
