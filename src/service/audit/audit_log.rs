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
//!
//! The chain of the file of administrative acts, and its head.

use crate::audit_chain::{
    AUDIT_NAME, AuditChain, AuditHead, ChainEntry, ChainLink, first_event, last_link,
};
use crate::engine::{
    ClientId, EndHoldOff, Event, EventKind, LockName, Op, StealReason, TenureEnd, Token,
};
use crate::service::audit::refusal_log::{RefusalSummary, RefusedRequest, log_line};
use crate::service::call::{Call, Replier};
use crate::storage::atomic_file::{Durable, replace};
use crate::time::{Span, Time, Wall, boot_now};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, io};

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
        let (files, [audited, expired]) = AuditFiles::open(dir)?;
        let audited = audited.or_else(|| last_place(&dir.join(format!("{AUDIT_FILE}.1"))));
        let applied = applied.map(|index| (index, u64::MAX));
        let written = [audited.or(applied), expired.or(applied)];
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
            if !self.are_there() {
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
                self.append(1, &mut expired);
            }
            if acts.len() >= ACTS_PIECE {
                self.append_acts(&mut acts);
            }
        }
        self.append_acts(&mut acts);
        self.append(1, &mut expired);
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
        if self.are_there() {
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

/// The files with their highest lengths. At that length a file is renamed to `NAME.log.1`. Any
/// client can have leases expire and requests refused, so these are not in the file of acts.
const FILES: [(&str, u64); 3] = [
    (AUDIT_FILE, AUDIT_BYTES_MAX),
    (EXPIRED_FILE, EXPIRED_BYTES_MAX),
    ("refused.log", REFUSED_BYTES_MAX),
];

/// The index of the file for refused requests.
pub(super) const REFUSED: usize = 2;

/// How many bytes of lines are written at a time.
pub(super) const PIECE: usize = 256 << 10;

/// How many acts are written at a time.
pub(super) const ACTS_PIECE: usize = 512;

/// The place of a line: the log entry that caused it, and its number among the lines of that entry
/// in its file.
pub(in crate::service) type LinePlace = (u64, u64);

/// The files of the audit log; none of them if records go to the ordinary log only.
#[derive(Default)]
pub(in crate::service) struct AuditFiles {
    dir: Option<PathBuf>,
    /// The files for which any client can cause records are opened at their first record.
    files: [Option<AuditFile>; 3],
}

impl AuditFiles {
    /// Opens the files in `dir`. Also returns the places of the last lines of the first two.
    pub(in crate::service) fn open(dir: &Path) -> io::Result<(Self, [Option<LinePlace>; 2])> {
        let mut opened = Self { dir: Some(dir.to_path_buf()), files: [const { None }; 3] };
        let mut places = [None; 2];
        for (file, place) in places.iter_mut().enumerate() {
            let path = dir.join(FILES[file].0);
            if file == 0 || path.exists() {
                let (audit, last) = AuditFile::open(&path, FILES[file].1)?;
                (opened.files[file], *place) = (Some(audit), last);
            }
        }
        if let Some(acts) = &mut opened.files[0] {
            acts.chain = Some(ActChain::open(dir)?);
        }
        Ok((opened, places))
    }

    /// Whether there are files.
    pub(super) const fn are_there(&self) -> bool {
        self.dir.is_some()
    }

    /// Appends lines to a file, and empties `lines`.
    pub(in crate::service) fn append(&mut self, file: usize, lines: &mut Vec<u8>) {
        if lines.is_empty() {
            return;
        }
        if let Err(error) = self.file(file).and_then(|file| file.append(lines)) {
            let lost = String::from_utf8_lossy(lines);
            let (count, first) = (lost.lines().count(), lost.lines().next().unwrap_or_default());
            log::error!("{count} audit records can't be written ({error}); the first is: {first}");
        }
        lines.clear();
    }

    /// Appends administrative acts to their file, as lines of its chain, and empties `acts`.
    pub(super) fn append_acts(&mut self, acts: &mut Vec<Value>) {
        let Some(first) = acts.first() else { return };
        if let Err(error) = self.file(0).and_then(|file| file.append_acts(acts)) {
            let count = acts.len();
            log::error!("{count} audit records can't be written ({error}); the first is: {first}");
        }
        acts.clear();
    }

    /// Syncs the file of administrative acts to the disk, and then the head of its chain.
    pub(in crate::service) fn sync(&self) {
        if let Some(audit) = &self.files[0]
            && let Err(error) = audit.sync()
        {
            log::error!("{AUDIT_FILE} can't be synced ({error}); its last lines may be lost");
        }
    }

    fn file(&mut self, file: usize) -> io::Result<&mut AuditFile> {
        let (place, (name, limit)) = (&mut self.files[file], FILES[file]);
        if place.is_none() {
            let dir = self.dir.as_deref().ok_or(ErrorKind::NotFound)?;
            *place = Some(AuditFile::open(&dir.join(name), limit)?.0);
        }
        place.as_mut().ok_or_else(|| ErrorKind::NotFound.into())
    }
}

/// An open file of the audit log.
struct AuditFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// At this length the file is renamed, and a new one begun.
    limit: u64,
    /// The chain of the file's lines, if they form one.
    chain: Option<ActChain>,
}

impl AuditFile {
    /// Opens a file, which is created if it is not there, and removes a line that a crash has cut.
    /// Also returns the place of its last line that has one.
    fn open(path: &Path, limit: u64) -> io::Result<(Self, Option<LinePlace>)> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        let length = file.metadata()?.len();
        let from = length.saturating_sub(END_BYTES_MAX);
        let mut end = vec![0; (length - from) as usize];
        file.read_exact_at(&mut end, from)?;
        let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let is_ours = from == 0 || whole > 0;
        let length = if is_ours { from + whole as u64 } else { length };
        file.set_len(length)?;
        let last = end[..whole].split(|byte| *byte == b'\n').rev().find_map(place_of);
        Ok((Self { path: path.to_path_buf(), file, length, limit, chain: None }, last))
    }

    /// Renames the file, and begins a new one. Its last lines may have no sync yet, and after this
    /// call only the new file is synced; so they are on disk first, and then both names.
    fn rotate(&mut self) -> io::Result<()> {
        if let Some(chain) = &mut self.chain {
            chain.rotate();
        }
        self.sync()?;
        match fs::rename(&self.path, self.path.with_extension("log.1")) {
            // An earlier rotation has renamed it, and could not make the new file.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        let opened = Self::open(&self.path, self.limit)?.0;
        *self = Self { chain: self.chain.take(), ..opened };
        let dir = self.path.parent().ok_or(ErrorKind::NotFound)?;
        File::open(dir)?.sync_all()
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.chain.as_ref().map_or(Ok(()), ActChain::write_head)
    }

    /// Appends acts as lines of the chain. If that fails, file and chain stay as they were before.
    fn append_acts(&mut self, acts: &[Value]) -> io::Result<()> {
        let Some(mut chain) = self.chain.clone() else {
            return Err(ErrorKind::NotFound.into());
        };
        let lines: String = acts.iter().map(|act| chain.add(act)).collect();
        self.append(lines.as_bytes())?;
        if let Some(own) = &mut self.chain {
            own.advance(chain);
        }
        Ok(())
    }

    /// Appends whole lines. If that fails, the file stays as it was before.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let length = self.length + lines.len() as u64;
        if self.length > 0 && length > self.limit {
            self.rotate()?;
        }
        if let Err(error) = self.file.write_all(lines) {
            // The part of the lines that was written is cut off: it would spoil the next line.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += lines.len() as u64;
        Ok(())
    }
}

/// Returns the place of the last line of a file that has one.
pub(in crate::service) fn last_place(path: &Path) -> Option<LinePlace> {
    let file = File::open(path).ok()?;
    let from = file.metadata().ok()?.len().saturating_sub(END_BYTES_MAX);
    let mut end = Vec::new();
    (&file).seek(SeekFrom::Start(from)).ok()?;
    file.take(END_BYTES_MAX).read_to_end(&mut end).ok()?;
    end.split(|byte| *byte == b'\n').rev().find_map(place_of)
}

/// Returns the place of a line, if it has one: the lines of administrative acts have none.
fn place_of(line: &[u8]) -> Option<LinePlace> {
    let line: Value = serde_json::from_slice(line).ok()?;
    Some((line.get("entry")?.as_u64()?, line.get("line")?.as_u64()?))
}

/// How much of the end of a file a start reads, in search of the last line of a log entry.
pub(super) const END_BYTES_MAX: u64 = 1 << 20;

/// The chain of `audit.log` in one directory.
#[derive(Clone)]
pub(in crate::service) struct ActChain {
    head: PathBuf,
    chain: AuditChain,
    /// The number of the first line that must be there.
    first: u64,
    /// The number of the first line in the newest file.
    own_first: Option<u64>,
}

impl ActChain {
    /// Continues the chain of the log in `dir`, or begins one.
    pub(in crate::service) fn open(dir: &Path) -> io::Result<Self> {
        let (log, rotated) = (dir.join(AUDIT_NAME), dir.join(format!("{AUDIT_NAME}.1")));
        let head_path = dir.join(AuditHead::NAME);
        let head = match fs::read(&head_path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => AuditHead::parse(&text?)?,
        };
        let own_first = first_of(&log)?;
        let last = match last_of(&log)? {
            Some(last) => Some(last),
            None => last_of(&rotated)?,
        };
        let first = match &head {
            Some(head) => head.first,
            None => first_of(&rotated)?.or(own_first).unwrap_or(1),
        };
        let has_head = head.is_some();
        let chain = AuditChain::resume(head.map(|head| head.last), last);
        let opened = Self { head: head_path, chain, first, own_first };
        // Without a head nothing would show that the end of the log was cut.
        if !has_head {
            opened.write_head()?;
        }
        Ok(opened)
    }

    /// Returns the line of an act.
    pub(in crate::service) fn add(&mut self, act: &Value) -> String {
        let text = |field: &str| act[field].as_str();
        let target = match (text("name").or_else(|| text("client")), act["node"].as_u64()) {
            (Some(name), _) => Some(name.to_owned()),
            (None, node) => node.map(|id| format!("node {id}")),
        };
        self.chain.add(ChainEntry {
            timestamp: text("timestamp").unwrap_or_default().to_owned(),
            operation: text("operation").unwrap_or_default(),
            actor: text("actor").unwrap_or_default(),
            target,
            fencing_token: act["fencing_token"].as_u64(),
            session_id: None,
            reason: text("reason"),
            more: act.as_object().cloned().unwrap_or_default(),
        })
    }

    /// Takes over the lines that another value of the same chain has added, and that are written.
    pub(in crate::service) fn advance(&mut self, to: Self) {
        let begins = self.chain.last().event + 1;
        self.chain = to.chain;
        if self.chain.last().event >= begins {
            self.own_first.get_or_insert(begins);
        }
    }

    /// Notes that the newest file is about to replace the older one.
    pub(in crate::service) const fn rotate(&mut self) {
        if let Some(first) = self.own_first.take() {
            self.first = first;
        }
    }

    /// Writes the head, after the lines were synced.
    pub(in crate::service) fn write_head(&self) -> io::Result<()> {
        let text = AuditHead::of(&self.chain, self.first).to_text();
        replace(&self.head, &[text.as_bytes()], Durable::Yes).map(drop)
    }
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Returns the number of the first line of a file.
fn first_of(path: &Path) -> io::Result<Option<u64>> {
    let Some(file) = open(path)? else { return Ok(None) };
    first_event(BufReader::new(file).split(b'\n'))
}

/// Returns the last line of a file that belongs to the chain.
fn last_of(path: &Path) -> io::Result<Option<ChainLink>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let from = file.metadata()?.len().saturating_sub(END_BYTES_MAX);
    file.seek(SeekFrom::Start(from))?;
    let mut end = Vec::new();
    file.take(END_BYTES_MAX).read_to_end(&mut end)?;
    last_link(&end)
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

#[cfg(test)]
mod audit_file_tests {
    use super::*;

    /// In an earlier version the last lines of a full file were said to be on disk without a sync.
    #[test]
    fn full_file_is_synced_before_it_is_renamed() {
        let path = std::env::temp_dir().join(format!("latchfs-sync-{}.log", std::process::id()));
        fs::write(&path, "{}\n").expect("a fresh name");
        // A device on which each sync fails.
        let file = OpenOptions::new().write(true).open("/dev/null").expect("it is there");
        let mut full = AuditFile { path: path.clone(), file, length: 100, limit: 100, chain: None };
        assert!(full.append(b"{}\n").is_err());
        assert!(path.exists(), "the file was renamed without a sync");
        fs::remove_file(&path).expect("ours");
    }

    /// A start after a rotation finds the last entry of a log in the file before.
    #[test]
    fn full_file_is_renamed_and_still_read() {
        let dir = std::env::temp_dir().join(format!("latchfs-audit-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a fresh name");
        let (path, before) = (dir.join("audit.log"), dir.join("audit.log.1"));
        let entry = |number: u64| format!("{{\"entry\":{number},\"line\":1}}\n");
        let (mut file, none) = AuditFile::open(&path, 100).expect("new");
        assert_eq!(none, None);
        for number in 1..=20 {
            file.append(entry(number).as_bytes()).expect("written");
            assert!(fs::metadata(&path).expect("a file").len() <= 100);
        }
        file.append(&[b' '; 99]).expect("written");
        file.append(b"\n{}\n").expect("written");
        assert_eq!(AuditFile::open(&path, 100).expect("there").1, None);
        let last = last_place(&before);
        assert!(last.is_none(), "only the file before is kept: {last:?}");
        file.append(entry(21).as_bytes()).expect("written");
        file.append(&[b'{'; 90]).expect("written");
        assert_eq!(last_place(&before), Some((21, 1)));
        // The file is renamed, as if the new one could not be made after a rotation.
        fs::rename(&path, &before).expect("it is there");
        file.append(entry(22).repeat(6).as_bytes()).expect("written to a new file");
        assert_eq!(last_place(&path), Some((22, 1)));
        fs::remove_dir_all(&dir).expect("ours");
    }
}
