//! Sums up refused requests for the audit log, so that a flood of them fills no disk.

use crate::time::{Span, Time, Wall};
use serde_json::{Value, json};
use std::collections::HashMap;

/// How often a record is written for each credential and address that has been refused.
const SUMMARY_EVERY: Span = Span::from_secs(1);

/// Maximum number of credentials and addresses with a record of their own in one summary. All
/// others share one record. Callers without credentials have at most half of these records: they
/// leave the other half to those whose credentials the record names.
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
    /// Whether the caller has proved its credential.
    pub is_known: bool,
    /// The address from which the request came.
    pub address: &'a str,
    /// The network of the address, within which a host chooses its address; for IPv4 the address.
    pub network: &'a str,
    /// The reason for the refusal.
    pub reason: &'a str,
}

/// The refused requests that are not written yet.
#[derive(Debug, Default)]
pub(super) struct RefusalSummary {
    /// By the name and the kind of the credential, and the network.
    callers: HashMap<[String; 3], CallerRefusals>,
    /// How many of the callers have no known credential.
    unknown: usize,
    /// Those of callers beyond [`CALLERS_MAX`].
    others: CallerRefusals,
    /// When the summary is written; `None` if there is nothing to write.
    due: Option<Time>,
}

#[derive(Debug, Default)]
struct CallerRefusals {
    count: u64,
    /// The address, the operation and the reason of the last one.
    address: String,
    what: String,
    reason: String,
}

impl RefusalSummary {
    /// Adds a refused request. Returns whether it is the first of a summary.
    pub(super) fn add(&mut self, refused: &RefusedRequest<'_>, now: Time) -> bool {
        let key = [refused.by, refused.credential, refused.network].map(str::to_owned);
        let is_new = !self.callers.contains_key(&key);
        let is_full = self.callers.len() >= CALLERS_MAX
            || (!refused.is_known && self.unknown >= CALLERS_MAX / 2);
        let entry = if is_new && is_full {
            &mut self.others
        } else {
            self.unknown += usize::from(is_new && !refused.is_known);
            self.callers.entry(key).or_default()
        };
        entry.count += 1;
        refused.address.clone_into(&mut entry.address);
        refused.what.clone_into(&mut entry.what);
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
        (self.due, self.unknown) = (None, 0);
        let mut others = std::mem::take(&mut self.others);
        let mut records: Vec<_> = self.callers.drain().collect();
        records.sort_by(|(one, _), (other, _)| one.cmp(other));
        if others.count > 0 {
            "other addresses".clone_into(&mut others.address);
            records.push((["other callers", "any", ""].map(str::to_owned), others));
        }
        let at = at.to_string();
        let record = |([by, credential, _], refused): ([String; 3], CallerRefusals)| {
            json!({
                "at": at,
                "act": "refuse",
                "by": by,
                "credential": credential,
                "address": refused.address,
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
        let is_known = by != "nobody";
        RefusedRequest { what, by, credential, is_known, address, network: address, reason }
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
            let (by, address) = ("ann", number.to_string());
            let refused = RefusedRequest { reason: &long, ..refused(by, &address) };
            summary.add(&refused, Time::ZERO);
        }
        let records = summary.take(Wall::now());
        assert_eq!(records.len(), CALLERS_MAX + 1);
        assert_eq!(records[CALLERS_MAX]["count"], 10_000 - CALLERS_MAX);
        assert!(records.iter().all(|record| record.to_string().len() < 600));
    }

    /// In an earlier version one host could have all records, by as many addresses.
    #[test]
    fn callers_without_credentials_leave_half_of_the_records_to_others() {
        let mut summary = RefusalSummary::default();
        for _ in 0..2 {
            for number in 0..10_000 {
                summary.add(&refused("nobody", &number.to_string()), Time::ZERO);
            }
            for number in 0..CALLERS_MAX / 2 {
                summary.add(&refused(&format!("token {number}"), "::1"), Time::ZERO);
            }
            let records = summary.take(Wall::now());
            let of_tokens = |record: &&Value| record["by"].to_string().contains("token ");
            assert_eq!(records.iter().filter(of_tokens).count(), CALLERS_MAX / 2);
            assert_eq!(records[CALLERS_MAX]["count"], 10_000 - CALLERS_MAX / 2);
            assert_eq!(records[CALLERS_MAX]["address"], "other addresses");
        }
    }

    #[test]
    fn one_network_has_one_record_with_the_last_address() {
        let mut summary = RefusalSummary::default();
        for number in 1..=300 {
            let address = format!("2001:db8::{number:x}");
            let refused = RefusedRequest { network: "2001:db8::", ..refused("nobody", &address) };
            summary.add(&refused, Time::ZERO);
        }
        let records = summary.take(Wall::now());
        assert_eq!(records.len(), 1);
        assert_eq!(
            (&records[0]["count"], &records[0]["address"]),
            (&300.into(), &"2001:db8::12c".into())
        );
    }
}
