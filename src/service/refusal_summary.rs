//! Sums up refused requests for the audit log, so that a flood of them fills no disk.

use crate::time::{Span, Time, Wall};
use serde_json::{Value, json};
use std::collections::HashMap;

/// How often a record is written for each credential and address that has been refused.
const SUMMARY_EVERY: Span = Span::from_secs(1);

/// Maximum number of credentials and addresses with a record of their own in one summary. All
/// others share one record.
const CALLERS_MAX: usize = 256;

/// Maximum number of characters of a reason in a record: it may contain the name of a lock.
const REASON_CHARS_MAX: usize = 300;

/// A request that was refused, because of its credentials or its origin.
#[derive(Debug, Clone, Copy)]
pub struct RefusedRequest<'a> {
    /// The operation that was requested.
    pub what: &'a str,
    /// The name of the caller's credential.
    pub by: &'a str,
    /// The kind of the caller's credential.
    pub credential: &'a str,
    /// The address from which the request came.
    pub address: &'a str,
    /// The reason for the refusal.
    pub reason: &'a str,
}

/// The refused requests that are not written yet.
#[derive(Debug, Default)]
pub(super) struct RefusalSummary {
    callers: HashMap<[String; 3], CallerRefusals>,
    /// Those of callers beyond [`CALLERS_MAX`].
    others: CallerRefusals,
    /// When the summary is written; `None` if there is nothing to write.
    due: Option<Time>,
}

#[derive(Debug, Default)]
struct CallerRefusals {
    count: u64,
    /// The operation and the reason of the last one.
    what: String,
    reason: String,
}

impl RefusalSummary {
    /// Adds a refused request. Returns whether it is the first of a summary.
    pub(super) fn add(&mut self, refused: &RefusedRequest<'_>, now: Time) -> bool {
        let key = [refused.by, refused.credential, refused.address].map(str::to_owned);
        let is_full = self.callers.len() >= CALLERS_MAX && !self.callers.contains_key(&key);
        let entry = if is_full { &mut self.others } else { self.callers.entry(key).or_default() };
        entry.count += 1;
        if entry.what != refused.what {
            refused.what.clone_into(&mut entry.what);
        }
        entry.reason.clear();
        entry.reason.extend(refused.reason.chars().take(REASON_CHARS_MAX));
        let is_first = self.due.is_none();
        self.due.get_or_insert(now + SUMMARY_EVERY);
        is_first
    }

    /// Returns how long the summary can still wait; `None` if it is empty.
    pub(super) fn left(&self, now: Time) -> Option<Span> {
        self.due.map(|due| due.since(now))
    }

    /// Returns the records of the summary, and empties it.
    pub(super) fn take(&mut self, at: Wall) -> Vec<Value> {
        self.due = None;
        let others = std::mem::take(&mut self.others);
        let mut records: Vec<_> = self.callers.drain().collect();
        records.sort_by(|(one, _), (other, _)| one.cmp(other));
        if others.count > 0 {
            records.push((["other callers", "any", "other addresses"].map(str::to_owned), others));
        }
        let at = at.to_string();
        let record = |([by, credential, address], refused): ([String; 3], CallerRefusals)| {
            json!({
                "at": at,
                "act": "refuse",
                "by": by,
                "credential": credential,
                "address": address,
                "count": refused.count,
                "last": refused.what,
                "reason": refused.reason,
            })
        };
        records.into_iter().map(record).collect()
    }
}

/// Returns the text of a record for the ordinary log.
pub(super) fn log_line(record: &Value) -> String {
    let text = |key: &str| record[key].as_str().unwrap_or_default();
    format!(
        "{} requests by {} ({}) from {} were refused, the last to {}: {}",
        record["count"],
        text("by"),
        text("credential"),
        text("address"),
        text("last"),
        text("reason")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<'a>(by: &'a str, address: &'a str) -> RefusedRequest<'a> {
        let (what, credential, reason) = ("steal a lock", "token", "no right");
        RefusedRequest { what, by, credential, address, reason }
    }

    #[test]
    fn refusals_are_counted_by_credential_and_address() {
        let mut summary = RefusalSummary::default();
        assert_eq!(summary.left(Time::ZERO), None);
        assert!(summary.add(&refused("ann", "::1"), Time::ZERO));
        for _ in 0..9_998 {
            assert!(!summary.add(&refused("ann", "::1"), Time::ZERO));
        }
        assert!(!summary.add(&refused("ann", "::2"), Time::ZERO));
        assert_eq!(summary.left(Time::ZERO), Some(SUMMARY_EVERY));
        let records = summary.take(Wall::now());
        let counts: Vec<_> = records.iter().map(|record| record["count"].as_u64()).collect();
        assert_eq!(counts, [Some(9_999), Some(1)]);
        assert_eq!(records[0]["address"], "::1");
        assert!(summary.take(Wall::now()).is_empty());
    }

    #[test]
    fn refusals_of_many_callers_share_a_record() {
        let mut summary = RefusalSummary::default();
        let long = "x".repeat(5_000);
        for number in 0..10_000 {
            let (by, address) = ("nobody", number.to_string());
            let refused = RefusedRequest { reason: &long, ..refused(by, &address) };
            summary.add(&refused, Time::ZERO);
        }
        let records = summary.take(Wall::now());
        assert_eq!(records.len(), CALLERS_MAX + 1);
        assert_eq!(records[CALLERS_MAX]["count"], 10_000 - CALLERS_MAX);
        assert!(records.iter().all(|record| record.to_string().len() < 600));
    }
}
