//! The history of handovers: which client set which one, and what each grant reported of the last
//! one; and its check.

use latchfs::engine::{HandoverEnd, LastHandover, SessionId};
use latchfs::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use testing::client_history::{ObservedReset, Token, Who};
use testing::client_history::{SafetyProperty, Violation};
use testing::promises::UNKNOWN_FOR;

/// A handover that a client has sent. Its text is unique, and shared with late copies of it.
#[derive(Debug, Clone)]
pub struct SentHandover {
    /// The number of the name.
    pub name: usize,
    pub who: Who,
    pub token: Token,
    pub counter: u64,
    pub sent: Time,
    /// When the client learned that it was set.
    pub confirmed: Option<Time>,
}

/// A request that ends tenures.
#[derive(Debug, Clone)]
pub struct EndRequest {
    pub kind: EndKind,
    pub sent: Time,
    /// When the client learned that the request was carried out. `None`: the outcome is unknown.
    pub done: Option<Time>,
}

/// The tenures that a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndKind {
    /// A release of the tenure with this token.
    Release(Token),
    /// The end of a session, and of all tenures that depend on it.
    EndSession(SessionId),
    /// A steal of the name with this number, which got the token `by` if that is known.
    Steal { name: usize, by: Option<Token> },
}

/// The last handover, as a grant reported it.
#[derive(Debug)]
pub struct ReportedPrevious {
    pub name: usize,
    /// The token of the grant.
    pub token: Token,
    pub asked: Time,
    pub answered: Time,
    /// The session on which the tenure of the grant depends.
    pub session: Option<SessionId>,
    /// The earliest time at which that tenure may expire.
    pub lasts_until: Time,
    pub last: Option<LastHandover>,
}

/// The restore of a lost cluster from a backup.
#[derive(Debug, Clone, Copy)]
pub struct Restore {
    /// When the backup was requested: it has all that was acknowledged before.
    pub backup_at: Time,
    /// The first token of the restored cluster.
    pub tokens_from: Token,
}

/// All handovers of a simulation, and what the grants reported of them.
#[derive(Debug, Default)]
pub struct HandoverHistory {
    /// The handovers by their text.
    pub sent: BTreeMap<Arc<str>, SentHandover>,
    /// All requests that end tenures.
    pub ends: Vec<EndRequest>,
    pub reports: Vec<ReportedPrevious>,
    pub restore: Option<Restore>,
}

impl EndRequest {
    /// Returns how the tenure of a grant ended if the request has ended it; `None` if the request
    /// does not concern that tenure.
    fn end_of(&self, tenure: &ReportedPrevious) -> Option<HandoverEnd> {
        match self.kind {
            EndKind::Release(token) => (token == tenure.token).then_some(HandoverEnd::Released),
            EndKind::EndSession(id) => (tenure.session == Some(id)).then_some(HandoverEnd::Session),
            EndKind::Steal { name, by } => {
                let is_later = by.is_none_or(|by| by > tenure.token);
                (name == tenure.name && is_later).then_some(HandoverEnd::Stolen)
            }
        }
    }

    /// Whether the request may have taken effect between two times.
    fn may_act(&self, from: Time, to: Time) -> bool {
        self.sent < to && from < self.done.unwrap_or(self.sent + UNKNOWN_FOR)
    }
}

impl HandoverHistory {
    /// Returns every grant that reported another handover than the last one that was set before.
    pub fn check(&self, resets: &[ObservedReset]) -> Vec<Violation> {
        let wrong = self.reports.iter().filter_map(|report| self.wrong(report, resets));
        wrong.map(|what| Violation::new(SafetyProperty::HandoversAreKept, what)).collect()
    }

    /// Whether a handover that was set before a grant must be known to it.
    fn counts(&self, sent: &SentHandover, report: &ReportedPrevious) -> bool {
        let is_known = sent.confirmed.is_some_and(|at| at < report.asked);
        // Handovers that the lost cluster has set after the backup are lost.
        let is_restored = self.restore.is_none_or(|restore| {
            sent.token >= restore.tokens_from
                || sent.confirmed.is_some_and(|at| at < restore.backup_at)
        });
        sent.name == report.name && is_known && is_restored
    }

    fn wrong(&self, report: &ReportedPrevious, resets: &[ObservedReset]) -> Option<String> {
        let ReportedPrevious { name, token, last, .. } = report;
        let of = format!("the grant of name {name} under token {token}");
        let before = self.sent.values().filter(|sent| self.counts(sent, report));
        let newest = before.max_by_key(|sent| (sent.token, sent.counter));
        let Some(last) = last else {
            let SentHandover { token, counter, .. } = newest?;
            return Some(format!("{of} has forgotten handover {counter} of token {token}"));
        };
        let text = &last.handover.text;
        let seen = self.sent.get(text).filter(|sent| {
            let is_same = sent.token == last.token.as_u64() && *sent.who == *last.client.as_str();
            sent.name == *name && is_same && sent.sent < report.answered
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
        let why = self.wrong_end(report, seen, last.end, resets)?;
        Some(format!("{of} tells that {why}: {last:?}"))
    }

    /// Returns what is wrong with the end of the tenure that has set the handover `seen`.
    fn wrong_end(
        &self,
        report: &ReportedPrevious,
        seen: &SentHandover,
        end: HandoverEnd,
        resets: &[ObservedReset],
    ) -> Option<&'static str> {
        let is_lost = self.restore.is_some_and(|restore| seen.token < restore.tokens_from);
        match end {
            HandoverEnd::Unknown if is_lost => return None,
            _ if is_lost => return Some("it knows how a tenure of the lost cluster ended"),
            HandoverEnd::Unknown => return Some("it does not know how a tenure ended"),
            HandoverEnd::Open => return Some("a tenure before it still runs"),
            _ => {}
        }
        let Some(tenure) = self.reports.iter().find(|grant| grant.token == seen.token) else {
            return Some("it knows a tenure that no client had");
        };
        let requests =
            self.ends.iter().filter_map(|request| Some((request, request.end_of(tenure)?)));
        // The first request by which the client itself has ended the tenure and that it knows to be
        // carried out.
        let own = requests.clone().filter(|(_, end)| *end != HandoverEnd::Stolen);
        let known =
            own.filter_map(|(request, end)| Some((request.done?, end))).min_by_key(|of| of.0);
        let known = known.filter(|(at, _)| *at < report.asked);
        // The tenure ended after it had set the handover and before the grant was answered, and at
        // the latest when its client knew that it had ended it.
        let (from, by) = (seen.sent, known.map_or(report.answered, |(at, _)| at));
        let resets = resets.iter().filter(|reset| reset.means(&seen.who));
        let is_reset = resets.filter(|reset| reset.from < by && from < reset.by()).count() > 0;
        let is_requested = requests.clone().any(|(of, how)| how == end && of.may_act(from, by));
        let is_explained = match end {
            HandoverEnd::Expired => tenure.lasts_until < by,
            HandoverEnd::Stolen => is_requested || is_reset,
            _ => is_requested,
        };
        // A release that was carried out has ended the tenure. The end of a session may have found
        // the tenure stolen, and has not found it expired.
        let is_possible = match known {
            Some((_, HandoverEnd::Session)) => {
                matches!(end, HandoverEnd::Session | HandoverEnd::Stolen)
            }
            Some((_, known)) => known == end,
            None => true,
        };
        match (is_possible, is_explained) {
            (false, _) => Some("a tenure ended otherwise"),
            (true, false) => Some("a tenure ended as no request explains"),
            (true, true) => None,
        }
    }
}
