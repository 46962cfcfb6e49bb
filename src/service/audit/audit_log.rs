//! The audit log. `audit.log` records each steal and reset of a held lock with its reason, and each
//! administrative act with the credential and the address of its caller. `expired.log` records each
//! lease that has expired, and the client that took the lock over in the same step. `refused.log`
//! records refused requests, summed up once a second. Each record is one line of JSON, and the
//! length of each file is limited. Without a state directory, records go to the ordinary log.
//!
//! A thread of its own writes the records, so that no command waits for the disk. The request of an
//! administrator is answered when its records are on disk. In a cluster, each record names the log
//! entry that caused it: a restart replays entries, and writes only the records that are missing.
//!
//! The files of the audit log: lines of JSON, which are appended, and which a restart continues.

use crate::audit_chain::{AUDIT_NAME, ChainEntry, ChainedLog, RotatedFile, last_line_of};
use crate::engine::{
    ClientId, EndHoldOff, Event, EventKind, LockName, Op, StealReason, TenureEnd, Token,
};
use crate::service::audit::refusal_log::{RefusalSummary, RefusedRequest, log_line};
use crate::service::call::{Call, Replier};
use crate::storage::atomic_file::Durable;
use crate::time::{Span, Time, Wall, boot_now};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// The highest number of records that wait for the thread. Expired leases beyond it are not
/// recorded; steals and resets always are, since the log or journal has each of their requests.
const WAITING_MAX: usize = 1 << 17;

/// How many summaries of refused requests are also in the ordinary log at a time.
const LOGGED_MAX: usize = 16;

/// How often to check whether engine time can be converted to wall-clock time, while records wait
/// for that.
const CLOCK_CHECK: Duration = Duration::from_millis(100);

/// An entry that a front end adds to the audit log.
#[derive(Debug, Clone, Copy)]
pub enum AuditEntry<'a> {
    /// An administrative action that has begun or ended.
    Act(AdminAction<'a>),
    /// A request that was refused.
    Refused(RefusedRequest<'a>),
}

/// An administrative action. A change of the cluster is logged when it begins and when it ends.
#[derive(Debug, Clone, Copy)]
pub struct AdminAction<'a> {
    /// The name of the action.
    pub what: &'a str,
    /// The node, lock or client that the action affects, as the request names it.
    pub target: Option<ActionTarget<'a>>,
    /// The name of the credential that authorized the action.
    pub by: &'a str,
    /// The kind of the credential that authorized the action.
    pub credential: &'a str,
    /// The address from which the request came.
    pub address: &'a str,
    /// The progress of the action: that it has begun, or how it ended.
    pub outcome: &'a str,
}

/// The node, lock or client that an administrative action affects.
#[derive(Debug, Clone, Copy)]
pub enum ActionTarget<'a> {
    /// A node of the cluster.
    Node(u64),
    /// A lock.
    Lock(&'a LockName),
    /// All that a client has.
    Client(&'a ClientId),
}

impl AdminAction<'_> {
    fn record(&self, at: Wall) -> Value {
        let mut act = json!({
            "timestamp": at.to_string(),
            "operation": self.what,
            "actor": self.by,
            "credential": self.credential,
            "address": self.address,
            "outcome": self.outcome,
        });
        match self.target {
            Some(ActionTarget::Node(id)) => act["node"] = id.into(),
            Some(ActionTarget::Lock(name)) => act["name"] = name.as_str().into(),
            Some(ActionTarget::Client(client)) => act["client"] = client.as_str().into(),
            None => {}
        }
        act
    }
}

impl AuditEntry<'_> {
    /// Writes the entry to the ordinary log, where there is no audit log.
    pub(in crate::service) fn log(&self) {
        match self {
            Self::Act(act) => log_act(&act.record(Wall::now())),
            // Clients decide how many requests are refused.
            Self::Refused(refused) => log::debug!("refused a request: {refused:?}"),
        }
    }
}

fn log_act(act: &Value) {
    log::warn!("administrative act: {act}");
}

/// Converts engine time to wall-clock time, or returns `None` while that is not possible yet.
type AuditClock = Box<dyn Fn(Time) -> Option<Wall> + Send + Sync>;

/// The audit log, and the thread that writes it. A simulation has neither.
pub struct Audit {
    shared: Arc<AuditShared>,
    thread: Option<JoinHandle<()>>,
    /// The last record in each file at the start: earlier ones are not written again.
    written: [Option<LinePlace>; 2],
}

#[derive(Default)]
struct AuditShared {
    queue: Mutex<AuditQueue>,
    /// Notified when records are added, or when a caller waits for them.
    added: Condvar,
    /// Notified when records have been written.
    done: Condvar,
    clock: OnceLock<AuditClock>,
}

#[derive(Default)]
struct AuditQueue {
    waiting: VecDeque<AuditRecord>,
    refusals: RefusalSummary,
    /// How many records were added, and how many of them were written.
    added: u64,
    written: u64,
    /// How many expired leases were not recorded, since too many records waited.
    dropped: u64,
    /// Callbacks, each with the number of records that must be written before it is called.
    awaited: Vec<(u64, Replier<()>)>,
    /// Whether records are written even if the clock is not known yet.
    hurry: bool,
    closed: bool,
}

/// One record that is yet to be written.
struct AuditRecord {
    /// The engine time, and the wall-clock time if the clock is not known in time.
    at: Time,
    guess: Wall,
    place: Option<LinePlace>,
    what: AuditWhat,
}

enum AuditWhat {
    Stolen { name: LockName, from: ClientId, token: Token, by: ClientId, reason: StealReason },
    Expired { name: LockName, from: ClientId, token: Token, by: Option<ClientId> },
    HoldOffEnded(EndHoldOff),
    Act(Value),
}

impl AuditWhat {
    /// Returns the index of the file of the record.
    const fn file(&self) -> usize {
        match self {
            Self::Stolen { .. } | Self::HoldOffEnded(_) | Self::Act(_) => 0,
            Self::Expired { .. } => 1,
        }
    }
}

/// Whether an operation is answered only when its audit records are on disk.
pub(crate) const fn is_audited(op: &Op) -> bool {
    matches!(op, Op::Steal(_) | Op::Reset(_) | Op::Forget(_) | Op::EndHoldOff(_))
}

impl Audit {
    /// Opens the audit log in `dir`, and continues it. `applied` is the last log entry that was
    /// applied before this start: if a file has no record of an entry, that is where it continues.
    pub(crate) fn open(dir: &Path, applied: Option<u64>) -> io::Result<Self> {
        let files = AuditFiles::open(dir)?;
        let last = |file: &str| last_line_of(&dir.join(file), place_of);
        let audited = match last(AUDIT_FILE)? {
            Some(place) => Some(place),
            None => last(&format!("{AUDIT_FILE}.1"))?,
        };
        let applied = applied.map(|index| (index, u64::MAX));
        let written = [audited.or(applied), last(EXPIRED_FILE)?.or(applied)];
        Self::start(files, written)
    }

    /// Returns an audit log that writes its records to the ordinary log.
    pub(crate) fn to_log() -> io::Result<Self> {
        Self::start(AuditFiles::default(), [None; 2])
    }

    /// Returns an audit log that records nothing, for a simulation.
    pub fn off() -> Self {
        Self { shared: Arc::default(), thread: None, written: [None; 2] }
    }

    fn start(files: AuditFiles, written: [Option<LinePlace>; 2]) -> io::Result<Self> {
        let shared = Arc::<AuditShared>::default();
        let writing = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let thread = Some(thread.spawn(move || writing.run(files))?);
        Ok(Self { shared, thread, written })
    }

    /// Sets the clock for the times of records.
    pub(crate) fn set_clock(&self, clock: impl Fn(Time) -> Option<Wall> + Send + Sync + 'static) {
        // The clock that was set first stays.
        let _ = self.shared.clock.set(Box::new(clock));
        self.shared.added.notify_one();
    }

    /// Adds a record for each event that says that a lock was taken from its holder, or that a
    /// lease has expired. `entry` is the log entry that caused the events. `guess` returns the time
    /// of an event if the clock is not known in time.
    pub(crate) fn enter(&self, entry: Option<u64>, events: &[Event], guess: impl Fn(Time) -> Wall) {
        if self.thread.is_none() {
            return;
        }
        let mut lines = [0; 2];
        let mut records = Vec::new();
        for (index, event) in events.iter().enumerate() {
            let Some(what) = recorded(event, &events[index + 1..]) else { continue };
            let file = what.file();
            lines[file] += 1;
            let place = entry.map(|entry| (entry, lines[file]));
            if place.is_some() && place <= self.written[file] {
                continue;
            }
            records.push(AuditRecord { at: event.at, guess: guess(event.at), place, what });
        }
        if !records.is_empty() {
            self.shared.add(records);
        }
    }

    /// Adds an entry of a front end. It is on disk later: see [`Audit::written`].
    pub(crate) fn enter_entry(&self, entry: &AuditEntry<'_>) {
        match entry {
            AuditEntry::Act(act) => log_act(&self.enter_act(act)),
            AuditEntry::Refused(refused) => self.shared.refuse(refused),
        }
    }

    /// Adds an administrative action, and returns its record.
    pub(crate) fn enter_act(&self, act: &AdminAction<'_>) -> Value {
        let guess = Wall::now();
        let act = act.record(guess);
        let what = AuditWhat::Act(act.clone());
        self.shared.add(vec![AuditRecord { at: Time::ZERO, guess, place: None, what }]);
        act
    }

    /// Returns when all records that were added before are on disk.
    pub(crate) fn flush(&self) {
        if self.thread.is_none() {
            return;
        }
        let mut queue = self.shared.queue.lock();
        let upto = queue.added;
        while queue.written < upto {
            queue.hurry = true;
            self.shared.added.notify_one();
            self.shared.done.wait(&mut queue);
        }
    }

    /// Returns a call that is answered when all records that were added before are on disk: at
    /// once, or on the thread that writes them.
    pub(crate) fn written(&self) -> Call<()> {
        let mut queue = self.shared.queue.lock();
        if self.thread.is_none() || queue.written == queue.added {
            return Call::answered(Ok(()));
        }
        let upto = queue.added;
        let (replier, call) = Call::expected();
        queue.awaited.push((upto, replier));
        queue.hurry = true;
        drop(queue);
        self.shared.added.notify_one();
        call
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.added.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of the audit log has panicked; records may be missing");
        }
    }
}

/// Returns the record of an event, if it needs one. `next` are the events that follow it.
fn recorded(event: &Event, next: &[Event]) -> Option<AuditWhat> {
    if let EventKind::HoldOffEnded { by: Some(ask) } = &event.what {
        return Some(AuditWhat::HoldOffEnded(ask.clone()));
    }
    let EventKind::Ended { name, holder, token, end, .. } = &event.what else { return None };
    let (name, from, token) = (name.clone(), holder.clone(), *token);
    match end {
        TenureEnd::Stolen { by, reason } => {
            let (by, reason) = (by.clone(), reason.clone());
            Some(AuditWhat::Stolen { name, from, token, by, reason })
        }
        TenureEnd::Lapsed => {
            let by = next_holder(&name, next).cloned();
            Some(AuditWhat::Expired { name, from, token, by })
        }
        TenureEnd::Released | TenureEnd::Moved { .. } | TenureEnd::Replaced => None,
    }
}

/// Returns the client that was served right after the end of a tenure, if there is one. Waiters
/// that are gone may have left before it.
fn next_holder<'a>(ended: &LockName, next: &'a [Event]) -> Option<&'a ClientId> {
    for event in next {
        match &event.what {
            EventKind::Granted { name, holder, .. } if name == ended => return Some(holder),
            EventKind::Left { name, .. } if name == ended => {}
            _ => return None,
        }
    }
    None
}

impl AuditShared {
    fn add(&self, mut records: Vec<AuditRecord>) {
        let mut queue = self.queue.lock();
        if queue.waiting.len() + records.len() > WAITING_MAX {
            let before = records.len();
            records.retain(|record| !matches!(record.what, AuditWhat::Expired { .. }));
            queue.dropped += (before - records.len()) as u64;
        }
        queue.added += records.len() as u64;
        if queue.waiting.is_empty() {
            queue.waiting = records.into();
        } else {
            queue.waiting.extend(records);
        }
        drop(queue);
        self.added.notify_one();
    }

    fn refuse(&self, refused: &RefusedRequest<'_>) {
        if self.queue.lock().refusals.add(refused, boot_now()) {
            self.added.notify_one();
        }
    }

    /// Waits until there are records to write, or until the summary of refusals is due.
    fn wait_for_records(&self, queue: &mut MutexGuard<'_, AuditQueue>) {
        while queue.waiting.is_empty() && queue.awaited.is_empty() && !queue.closed {
            match queue.refusals.left(boot_now()) {
                Some(Span::ZERO) => return,
                Some(left) => drop(self.added.wait_for(queue, left.as_duration())),
                None => self.added.wait(queue),
            }
        }
    }

    /// Writes records until the audit log is closed and all of them are written.
    fn run(&self, mut files: AuditFiles) {
        loop {
            let mut queue = self.queue.lock();
            self.wait_for_records(&mut queue);
            let is_due = queue.refusals.left(boot_now()) == Some(Span::ZERO) || queue.closed;
            let refused = if is_due { queue.refusals.take(Wall::now()) } else { Vec::new() };
            while !queue.waiting.is_empty()
                && !queue.hurry
                && !queue.closed
                && !self.knows_the_clock()
            {
                self.added.wait_for(&mut queue, CLOCK_CHECK);
            }
            let records = std::mem::take(&mut queue.waiting);
            let dropped = std::mem::take(&mut queue.dropped);
            let (upto, closed) = (queue.added, queue.closed);
            queue.hurry = false;
            drop(queue);
            if dropped > 0 {
                log::warn!("{dropped} expired leases are not in {EXPIRED_FILE}: too many at once");
            }
            files.write_refused(&refused);
            files.write(&records, |record| {
                let known = self.clock.get().and_then(|clock| clock(record.at));
                known.unwrap_or(record.guess)
            });
            let mut queue = self.queue.lock();
            queue.written = upto;
            let awaited = std::mem::take(&mut queue.awaited);
            let is_due = |(after, _): &(u64, _)| *after <= upto;
            let (due, later): (Vec<_>, _) = awaited.into_iter().partition(is_due);
            queue.awaited = later;
            let is_over = closed && queue.waiting.is_empty();
            drop(queue);
            self.done.notify_all();
            for (_, replier) in due {
                replier.keep(Ok(()));
            }
            if is_over {
                return;
            }
        }
    }

    fn knows_the_clock(&self) -> bool {
        self.clock.get().is_some_and(|clock| clock(Time::ZERO).is_some())
    }
}

impl AuditFiles {
    /// Writes records, and syncs those of administrators.
    fn write(&mut self, records: &VecDeque<AuditRecord>, at: impl Fn(&AuditRecord) -> Wall) {
        let (mut acts, mut expired) = (Vec::new(), Vec::new());
        for record in records {
            if self.dir.is_none() {
                record.log();
                continue;
            }
            let line = record.line(at(record));
            if record.what.file() == 0 {
                acts.push(line);
            } else {
                expired.extend_from_slice(line.to_string().as_bytes());
                expired.push(b'\n');
            }
            if expired.len() >= PIECE {
                self.append(EXPIRED, &mut expired);
            }
            if acts.len() >= ACTS_PIECE {
                self.append_acts(&mut acts);
            }
        }
        self.append_acts(&mut acts);
        self.append(EXPIRED, &mut expired);
        if records.iter().any(|record| record.what.file() == 0) {
            self.sync();
        }
    }

    /// Writes a summary of refused requests.
    fn write_refused(&mut self, records: &[Value]) {
        for record in records.iter().take(LOGGED_MAX) {
            log::warn!("{}", log_line(record));
        }
        if let more @ 1.. = records.len().saturating_sub(LOGGED_MAX) {
            log::warn!("requests of {more} more callers were refused");
        }
        let mut lines: Vec<u8> =
            records.iter().flat_map(|record| format!("{record}\n").into_bytes()).collect();
        if self.dir.is_some() {
            self.append(REFUSED, &mut lines);
        }
    }
}

impl AuditRecord {
    fn log(&self) {
        if let AuditWhat::Stolen { name, from, by, reason, .. } = &self.what {
            log::warn!("lock '{name}' was taken from {from} by {by}: {}", reason.as_str());
        }
    }

    fn line(&self, at: Wall) -> Value {
        let (act, tenure, by) = match &self.what {
            AuditWhat::Act(act) => return act.clone(),
            AuditWhat::HoldOffEnded(ask) => ("grant-now", None, Some(&ask.by)),
            AuditWhat::Stolen { name, from, token, by, .. } => {
                ("steal", Some((name, from, token)), Some(by))
            }
            AuditWhat::Expired { name, from, token, by } => {
                ("expire", Some((name, from, token)), by.as_ref())
            }
        };
        let mut line = json!({ "timestamp": at.to_string(), "operation": act });
        if let Some((entry, number)) = self.place {
            line["entry"] = entry.into();
            line["line"] = number.into();
        }
        if let Some((name, from, token)) = tenure {
            line["name"] = name.as_str().into();
            line["from"] = from.as_str().into();
            line["fencing_token"] = token.as_u64().into();
        }
        line["actor"] = by.map(ClientId::as_str).into();
        match &self.what {
            AuditWhat::Stolen { reason, .. } => line["reason"] = reason.as_str().into(),
            AuditWhat::HoldOffEnded(ask) => line["reason"] = ask.reason.as_str().into(),
            AuditWhat::Expired { .. } | AuditWhat::Act(_) => {}
        }
        line
    }
}

/// The name of the file for steals, resets and other administrative acts.
pub(super) const AUDIT_FILE: &str = AUDIT_NAME;

/// The name of the file for expired leases.
pub(super) const EXPIRED_FILE: &str = "expired.log";

/// The highest length of the file of administrative acts.
const AUDIT_BYTES_MAX: u64 = 64 << 20;

/// The highest length of the file of expired leases.
const EXPIRED_BYTES_MAX: u64 = 16 << 20;

/// The highest length of the file of refused requests.
const REFUSED_BYTES_MAX: u64 = 16 << 20;

/// The files without a chain, with their highest lengths. At that length a file is renamed to
/// `NAME.log.1`. Any client can have leases expire and requests refused, so these are not in the
/// file of acts.
const OTHER_FILES: [(&str, u64); 2] =
    [(EXPIRED_FILE, EXPIRED_BYTES_MAX), ("refused.log", REFUSED_BYTES_MAX)];

/// The index of the file for expired leases.
const EXPIRED: usize = 0;
/// The index of the file for refused requests.
const REFUSED: usize = 1;

/// How many bytes of lines are written at a time.
pub(super) const PIECE: usize = 256 << 10;

/// How many acts are written at a time.
pub(super) const ACTS_PIECE: usize = 512;

/// The place of a line: the log entry that caused it, and its number among the lines of that entry
/// in its file.
type LinePlace = (u64, u64);

/// The files of the audit log; none of them if records go to the ordinary log only.
#[derive(Default)]
struct AuditFiles {
    dir: Option<PathBuf>,
    /// The administrative acts.
    acts: Option<ChainedLog>,
    /// The files for which any client can cause records are opened at their first record.
    others: [Option<RotatedFile>; 2],
}

impl AuditFiles {
    fn open(dir: &Path) -> io::Result<Self> {
        let acts = Some(ChainedLog::open(dir, AUDIT_BYTES_MAX)?);
        Ok(Self { dir: Some(dir.to_path_buf()), acts, ..Self::default() })
    }

    /// Appends lines to a file, and empties `lines`.
    fn append(&mut self, file: usize, lines: &mut Vec<u8>) {
        if lines.is_empty() {
            return;
        }
        if let Err(error) = self.other(file).and_then(|file| file.append(lines)) {
            let lost = String::from_utf8_lossy(lines);
            let (count, first) = (lost.lines().count(), lost.lines().next().unwrap_or_default());
            log::error!("{count} audit records can't be written ({error}); the first is: {first}");
        }
        lines.clear();
    }

    /// Appends administrative acts to their file, as lines of its chain, and empties `acts`.
    fn append_acts(&mut self, acts: &mut Vec<Value>) {
        let (Some(first), Some(log)) = (acts.first(), &mut self.acts) else { return };
        if let Err(error) = log.append(acts.iter().map(entry_of), Durable::No) {
            let count = acts.len();
            log::error!("{count} audit records can't be written ({error}); the first is: {first}");
        }
        acts.clear();
    }

    /// Syncs the file of administrative acts to the disk, and then the head of its chain.
    fn sync(&self) {
        if let Some(acts) = &self.acts
            && let Err(error) = acts.sync()
        {
            log::error!("{AUDIT_FILE} can't be synced ({error}); its last lines may be lost");
        }
    }

    fn other(&mut self, file: usize) -> io::Result<&mut RotatedFile> {
        let (place, (name, limit)) = (&mut self.others[file], OTHER_FILES[file]);
        if place.is_none() {
            let dir = self.dir.as_deref().ok_or(ErrorKind::NotFound)?;
            *place = Some(RotatedFile::open(&dir.join(name), limit)?);
        }
        place.as_mut().ok_or_else(|| ErrorKind::NotFound.into())
    }
}

/// Returns the place of a line, if it has one: the lines of administrative acts have none.
fn place_of(line: &[u8]) -> Option<LinePlace> {
    let line: Value = serde_json::from_slice(line).ok()?;
    Some((line.get("entry")?.as_u64()?, line.get("line")?.as_u64()?))
}

/// Returns an act as an entry of the chain.
fn entry_of(act: &Value) -> ChainEntry<'_> {
    let text = |field: &str| act[field].as_str();
    let target = match (text("name").or_else(|| text("client")), act["node"].as_u64()) {
        (Some(name), _) => Some(name.to_owned()),
        (None, node) => node.map(|id| format!("node {id}")),
    };
    ChainEntry {
        timestamp: text("timestamp").unwrap_or_default().to_owned(),
        operation: text("operation").unwrap_or_default(),
        actor: text("actor").unwrap_or_default(),
        target,
        fencing_token: act["fencing_token"].as_u64(),
        session_id: None,
        reason: text("reason"),
        more: act.as_object().cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    fn record(number: usize, reason: Option<StealReason>) -> AuditRecord {
        let client = |text| ClientId::parse(text).expect("valid");
        let name = LockName::parse(&format!("n{number}")).expect("valid");
        let (from, token) = (client("ann"), Token::named(1));
        let what = match reason {
            Some(reason) => AuditWhat::Stolen { name, from, token, by: client("bob"), reason },
            None => AuditWhat::Expired { name, from, token, by: None },
        };
        AuditRecord { at: Time::ZERO, guess: Wall::now(), place: None, what }
    }

    /// Clients decide how many leases expire, but only those who may steal cause records of steals.
    #[test]
    fn a_limited_number_of_expired_leases_waits_for_the_disk() {
        // No thread writes these records.
        let shared = AuditShared::default();
        for number in 0..=WAITING_MAX {
            shared.add(vec![record(number, None)]);
        }
        let reason = StealReason::parse("it left").expect("valid");
        shared.add(vec![record(0, None), record(1, Some(reason))]);
        let queue = shared.queue.lock();
        assert_eq!((queue.waiting.len(), queue.dropped), (WAITING_MAX + 1, 2));
        assert!(matches!(queue.waiting.back(), Some(last) if last.what.file() == 0));
    }

    /// In an earlier version an act blocked its caller, a worker of the HTTP server, for the disk.
    #[test]
    fn act_does_not_wait_for_the_thread_that_writes() {
        let act = AdminAction {
            what: "back up all locks",
            target: None,
            by: "admin",
            credential: "token",
            address: "::1",
            outcome: "done",
        };
        let audit = Arc::new(Audit::to_log().expect("it starts"));
        let _ = audit.enter_act(&act);
        let (resume, stalled) = channel::<()>();
        let (stalled, calls) = (Mutex::new(stalled), AtomicUsize::new(0));
        // The thread asks whether the clock is known, and then for the time of the record: that
        // stalls it.
        audit.set_clock(move |_| {
            if calls.fetch_add(1, Ordering::Relaxed) > 0 {
                let _ = stalled.lock().recv();
            }
            Some(Wall::now())
        });
        let (say, said) = channel();
        let adding = Arc::clone(&audit);
        let adds = std::thread::spawn(move || {
            adding.enter_entry(&AuditEntry::Act(act));
            say.send("added").expect("the test waits");
            assert_eq!(adding.written().wait(), Ok(()));
            say.send("written").expect("the test waits");
        });
        let next = || said.recv_timeout(Duration::from_secs(10));
        let first = next();
        drop(resume);
        assert_eq!(first, Ok("added"), "the act waited");
        assert_eq!(next(), Ok("written"));
        adds.join().expect("no panic");
    }
}
