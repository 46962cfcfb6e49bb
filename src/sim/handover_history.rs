//! The history of handovers: which client set which one, and what each grant told of the last one;
//! and its check.

use super::client_history::{Token, Who};
use super::violation::{Promise, Violation};
use crate::engine::{HandoverEnd, LastHandover};
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A handover that a client has sent. Its text is unique, and shared with late copies of it.
#[derive(Debug, Clone)]
pub(super) struct SentHandover {
    /// The number of the name.
    pub(super) name: usize,
    pub(super) who: Who,
    pub(super) token: Token,
    pub(super) counter: u64,
    pub(super) sent: Time,
    /// When the client learned that it was set.
    pub(super) told: Option<Time>,
}

/// The last handover, as a grant told of it.
#[derive(Debug)]
pub(super) struct ToldPrevious {
    pub(super) name: usize,
    /// The token of the grant.
    pub(super) token: Token,
    pub(super) asked: Time,
    pub(super) answered: Time,
    pub(super) last: Option<LastHandover>,
}

/// The restore of a lost cluster from a backup.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restore {
    /// When the backup was requested: it has all that was acknowledged before.
    pub(super) backup_at: Time,
    /// The first token of the restored cluster.
    pub(super) tokens_from: Token,
}

/// All handovers of a simulation, and what the grants told of them.
#[derive(Debug, Default)]
pub(super) struct HandoverHistory {
    /// The handovers by their text.
    pub(super) sent: BTreeMap<Arc<str>, SentHandover>,
    /// The tenures of which a client knows how they ended, and since when.
    pub(super) ends: BTreeMap<Token, (HandoverEnd, Time)>,
    pub(super) told: Vec<ToldPrevious>,
    pub(super) restore: Option<Restore>,
}

impl HandoverHistory {
    /// Returns every grant that told another handover than the last one that was set before.
    pub(super) fn check(&self) -> Vec<Violation> {
        let wrong = self.told.iter().filter_map(|told| self.wrong(told));
        wrong.map(|what| Violation::new(Promise::HandoversAreKept, what)).collect()
    }

    /// Whether a handover that was set before a grant must be known to it.
    fn counts(&self, sent: &SentHandover, told: &ToldPrevious) -> bool {
        let is_known = sent.told.is_some_and(|at| at < told.asked);
        // Handovers that the lost cluster has set after the backup are lost.
        let is_restored = self.restore.is_none_or(|restore| {
            sent.token >= restore.tokens_from || sent.told.is_some_and(|at| at < restore.backup_at)
        });
        sent.name == told.name && is_known && is_restored
    }

    fn wrong(&self, told: &ToldPrevious) -> Option<String> {
        let ToldPrevious { name, token, last, .. } = told;
        let of = format!("the grant of name {name} under token {token}");
        let before = self.sent.values().filter(|sent| self.counts(sent, told));
        let newest = before.max_by_key(|sent| (sent.token, sent.counter));
        let Some(last) = last else {
            let SentHandover { token, counter, .. } = newest?;
            return Some(format!("{of} has forgotten handover {counter} of token {token}"));
        };
        let text = &last.handover.text;
        let seen = self.sent.get(text).filter(|sent| {
            let is_same = sent.token == last.token.as_u64() && *sent.who == *last.client.as_str();
            sent.name == *name && is_same && sent.sent < told.answered
        });
        let Some(seen) = seen else {
            return Some(format!("{of} tells a handover that no client has set: {last:?}"));
        };
        if let Some(newest) = newest.filter(|newest| newest.token > seen.token) {
            let SentHandover { token, counter, .. } = newest;
            return Some(format!(
                "{of} has forgotten handover {counter} of token {token}, and tells {last:?}"
            ));
        }
        if newest.is_some_and(|newest| newest.token == seen.token && newest.counter > seen.counter)
        {
            return Some(format!("{of} tells a handover older than the last one: {last:?}"));
        }
        self.wrong_end(told, last).map(|why| format!("{of} tells that {why}: {last:?}"))
    }

    /// Returns what is wrong with the end of the tenure that has set a handover.
    fn wrong_end(&self, told: &ToldPrevious, last: &LastHandover) -> Option<&'static str> {
        let token = last.token.as_u64();
        let is_lost = self.restore.is_some_and(|restore| token < restore.tokens_from);
        match last.end {
            HandoverEnd::Unknown if is_lost => None,
            _ if is_lost => Some("it knows how a tenure of the lost cluster ended"),
            HandoverEnd::Unknown => Some("it does not know how a tenure ended"),
            HandoverEnd::Open if token != told.token => Some("a tenure before it still runs"),
            end => {
                let known = self.ends.get(&token).filter(|(_, at)| *at < told.asked);
                known.filter(|(known, _)| *known != end).map(|_| "a tenure ended otherwise")
            }
        }
    }
}
