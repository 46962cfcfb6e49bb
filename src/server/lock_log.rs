//! Logs what happens to locks and sessions: grants, releases, expiries, steals, and numbers of
//! renewals.
//!
//! A thread of its own makes the lines, so that no request waits for the log. It gathers the events
//! and the refusals of `GATHER`, and writes them in their order, each with its own time. In a
//! cluster only the leader logs the events, so that each has one line.
//!
//! Entries of front ends in the audit log: administrative acts, and refused requests, each with the
//! credential and the address of the caller.

use crate::auth::connection_limits::ConnectionOrigin;
use crate::auth::permissions::{AccessRequest, Operation};
use crate::auth::{Credential, Grant};
use crate::engine::{ClientId, Event, EventKind, Op, Reset, ResetScope, SessionEnd, TenureEnd};
use crate::service::audit::audit_log::is_audited;
use crate::service::audit::refusal_log::{LOCKS_LOG as LOCKS, RefusalQueue};
use crate::service::event_log::EventWatch;
use crate::service::{ActionTarget, AdminAction, AuditEntry, LockService, RefusedRequest};
use crate::time::{Span, Time, boot_now};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

/// How long events are gathered before their lines are written: the thread that decides a request
/// wakes the log at most so often.
const GATHER: Duration = Duration::from_millis(100);

/// How long renewals are counted before a line has their number.
const RENEWALS_SPAN: Span = Span::from_secs(60);

/// Maximum number of clients whose renewals are counted apart. All their lines are written at once,
/// so it is below the limit of lines of one kind in a second, which would leave out the others.
const RENEWERS_MAX: usize = 50;

/// Number of events taken from the event log at a time.
const BATCH: usize = 512;

/// A running log of locks and sessions. Dropping it writes the lines that are due, and ends its
/// thread.
pub struct LockLog {
    signal: Arc<LogSignal>,
    refusals: Arc<RefusalQueue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct LogSignal {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    has_events: bool,
    is_over: bool,
}

impl LockLog {
    /// Starts to log what happens to locks and sessions from now on.
    pub fn start(locks: &Arc<dyn LockService>) -> io::Result<Self> {
        let signal = Arc::new(LogSignal::default());
        let mut watch = locks.subscribe(None);
        let wakes = Arc::clone(&signal);
        watch.wake_by(Arc::new(move || wakes.update(|state| state.has_events = true)));
        let wakes = Arc::clone(&signal);
        let refusals = RefusalQueue::start(locks.clone(), move || {
            wakes.update(|state| state.has_events = true);
        });
        let waits = Arc::clone(&signal);
        let mut writer = EventWriter {
            locks: locks.clone(),
            refusals: Arc::clone(&refusals),
            watch,
            started: boot_now(),
            renewals: RenewalCounts::default(),
        };
        let run = move || loop {
            let goes_on = waits.lines_are_due(writer.renewals.due());
            writer.write();
            writer.renewals.write(!goes_on);
            if !goes_on {
                return;
            }
        };
        let thread = thread::Builder::new().name("lock-log".to_owned()).spawn(run)?;
        Ok(Self { signal, refusals, thread: Some(thread) })
    }
}

impl Drop for LockLog {
    fn drop(&mut self) {
        self.refusals.end();
        self.signal.update(|state| state.is_over = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

impl LogSignal {
    fn update(&self, change: impl FnOnce(&mut LogState)) {
        let mut state = self.state.lock();
        let was_idle = !state.has_events;
        change(&mut state);
        if was_idle || state.is_over {
            self.changed.notify_one();
        }
    }

    /// Waits until there are events and [`GATHER`] has passed, numbers of renewals are due, or the
    /// log is over. Returns whether more events may come after those.
    fn lines_are_due(&self, renewals: Option<Span>) -> bool {
        let mut state = self.state.lock();
        let waits = |state: &mut LogState| !state.has_events && !state.is_over;
        match renewals {
            Some(left) => {
                self.changed.wait_while_for(&mut state, waits, left.as_duration());
            }
            None => self.changed.wait_while(&mut state, waits),
        }
        if state.has_events {
            self.changed.wait_while_for(&mut state, |state| !state.is_over, GATHER);
        }
        state.has_events = false;
        !state.is_over
    }
}

struct EventWriter {
    locks: Arc<dyn LockService>,
    refusals: Arc<RefusalQueue>,
    watch: EventWatch,
    /// When the log was started, on the boot clock.
    started: Time,
    renewals: RenewalCounts,
}

impl EventWriter {
    /// Logs the events and the refusals since the last call, in their order. A node that does not
    /// lead drops the events; a node that leads drops those from before its start, which it has
    /// replayed.
    fn write(&mut self) {
        // The refusals are taken first: the events before each of them are then in the event log.
        let mut refusals = self.refusals.take();
        let mut lost = 0;
        loop {
            let batch = self.watch.take(BATCH);
            if batch.events.is_empty() && batch.lost == 0 {
                break;
            }
            if !self.locks.leads() {
                continue;
            }
            lost += batch.lost;
            let (now, runs) = (self.locks.now(), boot_now().since(self.started));
            for (number, event) in &batch.events {
                while refusals.front().is_some_and(|(next, _)| next <= number) {
                    refusals.pop_front().iter().for_each(|(_, refusal)| refusal.log());
                }
                if now.since(event.at) <= runs {
                    log_event(event, &self.locks.wall(event.at).to_string());
                    self.renewals.add(event);
                }
            }
        }
        for (_, refusal) in &refusals {
            refusal.log();
        }
        if lost > 0 {
            log::info!(target: LOCKS, lost; "more events came at once than the log can take");
        }
    }
}

/// Logs an event that happened at `event_time`.
fn log_event(event: &Event, event_time: &str) {
    match &event.what {
        EventKind::Granted { name, holder, token, waited, .. } => {
            let (lock, client, token) = (name.as_str(), holder.as_str(), token.as_u64());
            let waited_ms = waited.map_or(0, |(_, span)| span.as_millis());
            log::info!(target: LOCKS, event_time, lock, client, token, waited_ms; "lock granted");
        }
        EventKind::Renewed { name, holder, token } => {
            let (lock, client, token) = (name.as_str(), holder.as_str(), token.as_u64());
            log::debug!(target: LOCKS, event_time, lock, client, token; "lease renewed");
        }
        EventKind::Expired { name, holder, token } => {
            let (lock, client, token) = (name.as_str(), holder.as_str(), token.as_u64());
            log::info!(target: LOCKS, event_time, lock, client, token;
                "lease expired, grace begins");
        }
        EventKind::Ended { name, holder, token, held, end } => {
            let (lock, client, token) = (name.as_str(), holder.as_str(), token.as_u64());
            log_end(lock, client, token, held.as_millis(), end, event_time);
        }
        EventKind::Joined { name, client, .. } => {
            let (lock, client) = (name.as_str(), client.as_str());
            log::debug!(target: LOCKS, event_time, lock, client; "queue joined");
        }
        EventKind::Left { name, client, why, .. } => {
            let (lock, client, reason) = (name.as_str(), client.as_str(), format!("{why:?}"));
            log::debug!(target: LOCKS, event_time, lock, client, reason = reason.as_str();
                "queue left");
        }
        EventKind::SessionOpened { session, client } => {
            let (session, client) = (session.as_u64(), client.as_str());
            log::info!(target: LOCKS, event_time, session, client; "session opened");
        }
        EventKind::SessionOver { session, client, end } => {
            let (session, client) = (session.as_u64(), client.as_str());
            if matches!(end, SessionEnd::Expired) {
                log::info!(target: LOCKS, event_time, session, client; "session expired");
            } else {
                log::info!(target: LOCKS, event_time, session, client; "session ended");
            }
        }
        // The service itself logs the end of a hold-off.
        EventKind::Annotated { .. }
        | EventKind::SessionKept { .. }
        | EventKind::HoldOffEnded { .. } => {}
    }
}

/// Logs the end of a tenure. Each way to end has a limit of lines of its own.
fn log_end(lock: &str, client: &str, token: u64, held_ms: u64, end: &TenureEnd, event_time: &str) {
    match end {
        TenureEnd::Released => {
            log::info!(target: LOCKS, event_time, lock, client, token, held_ms; "lock released");
        }
        TenureEnd::Lapsed => {
            let reason = "not renewed";
            log::info!(target: LOCKS, event_time, lock, client, token, held_ms, reason;
                "lock lost");
        }
        TenureEnd::Moved { to } => {
            log::info!(target: LOCKS, event_time, lock, client, token, to = to.as_str();
                "lock moved");
        }
        TenureEnd::Replaced => {
            log::info!(target: LOCKS, event_time, lock, client, token, held_ms;
                "lock acquired anew");
        }
        TenureEnd::Stolen { by, reason } => {
            let (by, reason) = (by.as_str(), reason.as_str());
            log::info!(target: LOCKS, event_time, lock, client, token, held_ms, by, reason;
                "lock stolen");
        }
    }
}

/// The numbers of renewals since [`RENEWALS_SPAN`], by client.
#[derive(Default)]
struct RenewalCounts {
    since: Option<Time>,
    by_client: BTreeMap<ClientId, u64>,
    /// The renewals of further clients.
    others: u64,
}

impl RenewalCounts {
    fn add(&mut self, event: &Event) {
        let EventKind::Renewed { holder, .. } = &event.what else { return };
        self.since.get_or_insert_with(boot_now);
        if let Some(count) = self.by_client.get_mut(holder) {
            *count += 1;
        } else if self.by_client.len() < RENEWERS_MAX {
            self.by_client.insert(holder.clone(), 1);
        } else {
            self.others += 1;
        }
    }

    /// Returns the time until the numbers of renewals are due; `None` without renewals.
    fn due(&self) -> Option<Span> {
        self.since.map(|since| (since + RENEWALS_SPAN).since(boot_now()))
    }

    /// Logs the numbers of renewals if they are due, or if the log ends.
    fn write(&mut self, is_end: bool) {
        if self.due().is_none_or(|left| left > Span::ZERO && !is_end) {
            return;
        }
        let counts = std::mem::take(self);
        for (client, renewals) in counts.by_client {
            log::info!(target: LOCKS, client = client.as_str(), renewals; "leases renewed");
        }
        if counts.others > 0 {
            log::info!(target: LOCKS, renewals = counts.others; "leases of more clients renewed");
        }
    }
}

/// The credential and the address of a caller, for the audit log.
#[derive(Clone, Copy)]
pub(crate) struct AuditedCaller<'a> {
    pub(crate) grant: &'a Grant,
    pub(crate) origin: &'a ConnectionOrigin,
}

impl AuditedCaller<'_> {
    /// Records that a request of this caller was refused.
    pub(crate) fn refused(self, locks: &Arc<dyn LockService>, operation: Operation, reason: &str) {
        let (by, credential) = (&*self.grant.name, self.grant.credential.as_str());
        let is_known = !matches!(self.grant.credential, Credential::Missing | Credential::Unneeded);
        let (what, address) = (operation.rule().name, &*self.origin.source.to_string());
        let network = &*self.origin.source.identity().to_string();
        let refused = RefusedRequest { what, by, credential, is_known, address, network, reason };
        locks.audit(&AuditEntry::Refused(refused));
    }

    /// Records an administrative act of this caller that has begun or ended, and returns when the
    /// record is on disk.
    pub(crate) async fn acts(
        self,
        locks: &Arc<dyn LockService>,
        operation: Operation,
        target: Option<ActionTarget<'_>>,
        outcome: &str,
    ) {
        let address = self.origin.source.to_string();
        locks.audit(&AuditEntry::Act(self.act(operation, target, &address, outcome)));
        // The wait fails only if the audit log has ended.
        locks.audited().await.unwrap_or_default();
    }

    /// Records an administrative command before it is submitted, such as a steal. The records of
    /// what it has done follow, and it is answered when all of them are on disk.
    pub(crate) fn commands(self, locks: &Arc<dyn LockService>, op: &Op) {
        if !is_audited(op) {
            return;
        }
        let target = match op {
            Op::Reset(Reset { whose: ResetScope::Of(client), .. }) => {
                Some(ActionTarget::Client(client))
            }
            op => op.subject().name.map(ActionTarget::Lock),
        };
        let operation = AccessRequest::of_op(op).operation;
        let address = self.origin.source.to_string();
        locks.audit(&AuditEntry::Act(self.act(operation, target, &address, "begun")));
    }

    /// Records that this caller ends all that a client has, and returns when the record is on disk.
    /// There is no record unless the caller may also steal: all others release only what belongs to
    /// their own clients, and could push other records out of the audit log.
    pub(crate) async fn ends_all_of(self, locks: &Arc<dyn LockService>, client: &ClientId) {
        if self.grant.may_begin(Operation::Steal).is_ok() {
            let target = Some(ActionTarget::Client(client));
            self.acts(locks, Operation::ReleaseAll, target, "begun").await;
        }
    }

    fn act<'a>(
        &'a self,
        operation: Operation,
        target: Option<ActionTarget<'a>>,
        address: &'a str,
        outcome: &'a str,
    ) -> AdminAction<'a> {
        let (by, credential) = (&*self.grant.name, self.grant.credential.as_str());
        AdminAction { what: operation.rule().name, target, by, credential, address, outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{LockName, Token};

    #[test]
    fn renewals_of_many_clients_take_bounded_memory_and_none_is_missing() {
        let mut counts = RenewalCounts::default();
        for number in 0..5_000_u64 {
            let holder = ClientId::parse(&format!("c{}", number % 2_500)).expect("valid");
            let name = LockName::parse("x").expect("valid");
            let what = EventKind::Renewed { name, holder, token: Token::named(1) };
            counts.add(&Event { at: Time::ZERO, what });
        }
        assert_eq!(counts.by_client.len(), RENEWERS_MAX);
        assert_eq!(counts.by_client.values().sum::<u64>() + counts.others, 5_000);
        counts.write(true);
        assert_eq!(counts.due(), None);
    }
}
