//! Log lines about refused commands: the lock, the client and the reason.
//!
//! Sums up refused requests for the audit log, so that a flood of them fills no disk.

use crate::engine::{ClientId, LockName, Op, OpSubject, Refusal, RefusalKind, Token};
use crate::service::LockService;
use crate::time::{Span, Time, Wall};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The target of all log records about single locks and sessions, which `--log-locks off` leaves
/// out.
pub const LOCKS_LOG: &str = "latchfs::locks";

/// The target of the log records about answered HTTP requests.
pub(crate) const ACCESS_LOG: &str = "latchfs::access";

/// The lock and the client of a command, for the log.
pub(crate) struct CommandSubject {
    lock: Option<LockName>,
    client: Option<ClientId>,
    token: Option<Token>,
}

impl CommandSubject {
    /// Returns the subject of a command; `None` if refusals are not logged.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        log::log_enabled!(target: LOCKS_LOG, log::Level::Info).then(|| Self::named_in(op))
    }

    /// Returns the subject of a command that concerns all that a client has.
    pub(crate) fn of_client(client: &ClientId) -> Self {
        Self { lock: None, client: Some(client.clone()), token: None }
    }

    /// Returns the lock, the client and the token that a command names.
    pub(crate) fn named_in(op: &Op) -> Self {
        let OpSubject { name, client, token, .. } = op.subject();
        Self { lock: name.cloned(), client: client.cloned(), token }
    }

    /// The lock that the command concerns.
    pub(crate) fn lock(&self) -> Option<&str> {
        self.lock.as_ref().map(LockName::as_str)
    }

    /// The client for which the command acts.
    pub(crate) fn client(&self) -> Option<&str> {
        self.client.as_ref().map(ClientId::as_str)
    }

    /// The token that the command names.
    pub(crate) fn token(&self) -> Option<u64> {
        self.token.map(Token::as_u64)
    }

    /// Logs a refusal of the command.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        log_refusal(&RefusalLine {
            lock: self.lock(),
            client: self.client(),
            token: self.token(),
            kind: refusal.kind(),
            reason: &refusal.to_string(),
            request: None,
        });
    }
}

/// The fields of a line about a refusal.
pub(crate) struct RefusalLine<'a> {
    pub(crate) lock: Option<&'a str>,
    pub(crate) client: Option<&'a str>,
    pub(crate) token: Option<u64>,
    pub(crate) kind: RefusalKind,
    pub(crate) reason: &'a str,
    /// The id of the HTTP request.
    pub(crate) request: Option<&'a str>,
}

/// Logs a refusal: at once, or in its order with the events of the engine where these are logged.
pub(crate) fn log_refusal(line: &RefusalLine<'_>) {
    if !log::log_enabled!(target: LOCKS_LOG, log::Level::Info) {
        return;
    }
    let refusal = LoggedRefusal::of(line);
    let ordered = ORDERED.read().clone();
    let left = match ordered {
        Some(queue) => queue.add(refusal),
        None => Some(refusal),
    };
    left.iter().for_each(LoggedRefusal::log);
}

/// The queue of the refusals of this process, while the events of its engine are logged.
static ORDERED: RwLock<Option<Arc<RefusalQueue>>> = RwLock::new(None);

/// The maximum number of refusals that wait for the events before them. In a flood the log leaves
/// out most lines of one kind anyway.
const WAITING_MAX: usize = 1_024;

/// A refusal whose line is still to be written.
pub(crate) struct LoggedRefusal {
    lock: Option<String>,
    client: Option<String>,
    token: Option<u64>,
    kind: RefusalKind,
    reason: String,
    request: Option<String>,
    at: Wall,
}

impl LoggedRefusal {
    fn of(line: &RefusalLine<'_>) -> Self {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Self {
            lock: own(line.lock),
            client: own(line.client),
            token: line.token,
            kind: line.kind,
            reason: line.reason.to_owned(),
            request: own(line.request),
            at: Wall::now(),
        }
    }

    /// Writes the line.
    pub(crate) fn log(&self) {
        let Self { lock, client, token, kind, reason, request, at } = self;
        let (lock, client) = (lock.as_deref(), client.as_deref());
        let (request, event_time) = (request.as_deref(), &*at.to_string());
        log::info!(target: LOCKS_LOG, event_time, lock, client, token = *token,
            kind = kind.as_str(), reason = &**reason, request; "request refused");
    }
}

/// Refusals that wait for the lines of the events before them: a grant is logged before the refusal
/// that it has caused.
pub(crate) struct RefusalQueue {
    locks: Arc<dyn LockService>,
    waiting: Mutex<VecDeque<(u64, LoggedRefusal)>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl RefusalQueue {
    /// Lets the refusals of this process wait in a queue, until [`RefusalQueue::end`]. `wake` is
    /// called when the queue is no longer empty.
    pub(crate) fn start(
        locks: Arc<dyn LockService>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        let queue = Self { locks, waiting: Mutex::default(), wake: Box::new(wake) };
        let queue = Arc::new(queue);
        *ORDERED.write() = Some(Arc::clone(&queue));
        queue
    }

    /// Lets the refusals of this process be logged at once again.
    pub(crate) fn end(self: &Arc<Self>) {
        ORDERED.write().take_if(|queue| Arc::ptr_eq(queue, self));
    }

    /// Adds a refusal, or returns it if too many wait.
    fn add(&self, refusal: LoggedRefusal) -> Option<LoggedRefusal> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX {
            return Some(refusal);
        }
        // The events that have caused the refusal have numbers below this one.
        waiting.push_back((self.locks.next_event(), refusal));
        let is_first = waiting.len() == 1;
        drop(waiting);
        if is_first {
            (self.wake)();
        }
        None
    }

    /// Takes all refusals, each with the number of the first event after it.
    pub(crate) fn take(&self) -> VecDeque<(u64, LoggedRefusal)> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

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
pub(in crate::service) struct RefusalSummary {
    /// The refused requests by the name and the kind of the credential, and the network.
    callers: HashMap<[String; 3], CallerRefusals>,
    /// How many of the callers have no known credential.
    unknown: usize,
    /// The refused requests of callers beyond [`CALLERS_MAX`].
    others: CallerRefusals,
    /// When the summary is written; `None` if there is nothing to write.
    due: Option<Time>,
}

#[derive(Debug, Default)]
struct CallerRefusals {
    count: u64,
    /// The address, the operation and the reason of the last refused request.
    address: String,
    what: String,
    reason: String,
}

impl RefusalSummary {
    /// Adds a refused request. Returns whether it is the first of a summary.
    pub(in crate::service) fn add(&mut self, refused: &RefusedRequest<'_>, now: Time) -> bool {
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
    pub(in crate::service) fn left(&self, now: Time) -> Option<Span> {
        self.due.map(|due| due.since(now))
    }

    /// Returns the records of the summary, and empties it.
    pub(in crate::service) fn take(&mut self, at: Wall) -> Vec<Value> {
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
                "timestamp": at,
                "operation": "refuse",
                "actor": by,
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
        text("actor"),
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
            let of_tokens = |record: &&Value| record["actor"].to_string().contains("token ");
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
