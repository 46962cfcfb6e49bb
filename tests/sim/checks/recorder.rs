//! The record of a running simulation: its trace, the entries that each node has applied, and the
//! votes. It also reports the violations that can be detected during the run.
//!
//! The kinds of events and operations that a simulation counts, to show what the run exercised.

use super::handover_history::HandoverHistory;
use crate::machines::virtual_disk::DiskCrash;
use crate::machines::virtual_environment::{Leader, now};
use latchfs::engine::{
    Acquire, Answer, Command, Mode, Op, Outcome, Patch, Reason, RequestId, RequestKey,
    RequestNumber,
};
use latchfs::raft::store::snapshot::{Commands, LogId, NodeId, Vote};
use latchfs::time::{Span, Time};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;
use testing::client_history::{History, Lock, SafetyProperty, Violation};

/// The lock that has seats, and their number.
pub const SEATS: (Lock, usize) = (1, 2);

/// Number of lines kept from the end of the trace, to show how a violation came about.
const TAIL_LINES: usize = 60;
/// The states of all nodes are compared after each entry whose index is a multiple of this number.
const STATE_EVERY: u64 = 16;
/// Maximum number of violations kept for one promise: further ones would tell nothing new.
const VIOLATIONS_MAX: usize = 5;
/// The tolerance of the check that engine time advances no faster than real time: by how much it
/// may advance further between two entries, in addition to 0.1 % for the clock rates.
const TIME_AHEAD_MAX: Span = Span::from_nanos(10_000);

/// The time from which the reading or writing of a snapshot counts as slow.
const SLOW: Span = Span::from_secs(1);

/// The record of one run.
pub struct Record(Mutex<RecorderState>);

struct RecorderState {
    digest: Sha256,
    lines: u64,
    tail: VecDeque<String>,
    /// The whole trace, if the options request it.
    whole: Option<Vec<String>>,
    violations: Vec<Violation>,
    applied: BTreeMap<u64, Applied>,
    /// The first outcome of each request that carries a request id.
    outcomes: BTreeMap<RequestId, Outcome>,
    /// The ids of requests whose answers a later request has acknowledged.
    acknowledged: BTreeSet<RequestId>,
    /// The request ids of acquires that took effect, by the caller and the holder id of the
    /// acquire.
    marks: BTreeMap<(Arc<str>, Arc<str>), RequestId>,
    /// The highest vote that each node has synced, or granted in an answer.
    votes: BTreeMap<NodeId, Vote>,
    /// The last entry that each node has acknowledged. Lowered when the node truncates its log.
    promised: BTreeMap<NodeId, LogId>,
    /// The real time at which a leader first stamped a proposal with an engine time, by the
    /// leader's term and node id and that engine time.
    stamps: BTreeMap<(u64, NodeId, Time), Time>,
    /// The last entry with commands: its engine time, the real time at which it was stamped, and
    /// the term and node id of its leader.
    stamped: Option<(Time, Time, (u64, NodeId))>,
    /// The nodes that have been leader.
    led: BTreeSet<NodeId>,
    commands: u64,
    parts: BTreeMap<CoveragePoint, u64>,
    history: History,
    handovers: HandoverHistory,
}

/// The result of an entry on the node that applied it first: the answers to the commands of the
/// entry and, for some entries, a checksum of the state.
struct Applied {
    id: LogId,
    answers: Vec<Answer>,
    state: Option<u32>,
}

/// The finished trace of a run, with the violations and the counters.
pub struct Trace {
    pub digest: String,
    pub lines: Vec<String>,
    pub count: u64,
    pub violations: Vec<Violation>,
    pub entries: u64,
    pub commands: u64,
    pub parts: BTreeMap<CoveragePoint, u64>,
}

impl Record {
    pub fn new(whole: bool) -> Self {
        Self(Mutex::new(RecorderState {
            digest: Sha256::new(),
            lines: 0,
            tail: VecDeque::new(),
            whole: whole.then(Vec::new),
            violations: Vec::new(),
            applied: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            marks: BTreeMap::new(),
            votes: BTreeMap::new(),
            promised: BTreeMap::new(),
            stamps: BTreeMap::new(),
            stamped: None,
            led: BTreeSet::new(),
            commands: 0,
            parts: BTreeMap::new(),
            history: History::with_seats([SEATS]),
            handovers: HandoverHistory::default(),
        }))
    }

    /// Adds a line to the trace.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        self.0.lock().note(what);
    }

    /// Increments a coverage counter.
    pub fn count(&self, part: CoveragePoint) {
        self.0.lock().count(part);
    }

    /// Increments a coverage counter if the operation that began at `began` was slow.
    pub fn took(&self, part: CoveragePoint, began: Time) {
        if now().since(began) >= SLOW {
            self.count(part);
        }
    }

    /// Reports a violation.
    pub fn violation(&self, promise: SafetyProperty, what: fmt::Arguments<'_>) {
        self.0.lock().violation(promise, what);
    }

    /// Reports the violations that a check found.
    pub fn violations(&self, found: Vec<Violation>) {
        let mut record = self.0.lock();
        for Violation { promise, what, .. } in found {
            record.violation(promise, format_args!("{what}"));
        }
    }

    /// Runs `act` on the history of the clients.
    pub fn history<T>(&self, act: impl FnOnce(&mut History) -> T) -> T {
        act(&mut self.0.lock().history)
    }

    /// Runs `act` on the history of handovers.
    pub fn handovers<T>(&self, act: impl FnOnce(&mut HandoverHistory) -> T) -> T {
        act(&mut self.0.lock().handovers)
    }

    /// Records that a node has applied an entry. The result must be the same on every node.
    pub fn applied(
        &self,
        node: NodeId,
        id: LogId,
        body: Option<&Commands>,
        answers: &[Answer],
        state: impl FnOnce() -> Arc<[u8]>,
    ) {
        let state = id.index.is_multiple_of(STATE_EVERY).then(|| crc32fast::hash(&state()));
        let mut record = self.0.lock();
        record.note(format_args!("node {node} applies {id}: {} answers", answers.len()));
        let Some(first) = record.applied.get(&id.index) else {
            if let Some(body) = body {
                record.first_time(id, body, answers);
            }
            let applied = Applied { id, answers: answers.to_vec(), state };
            record.applied.insert(id.index, applied);
            return;
        };
        let differs = if first.id != id {
            Some(format!("entry {} is {} there", id.index, first.id))
        } else if first.answers != answers {
            Some(format!("entry {id} came to {:?} there, {answers:?} here", first.answers))
        } else if first.state != state {
            Some(format!("the state after entry {id} is another there"))
        } else {
            None
        };
        if let Some(differs) = differs {
            let what = format_args!("node {node} has diverged from another: {differs}");
            record.violation(SafetyProperty::SameState, what);
        }
    }

    /// Records that a node has installed a snapshot.
    pub fn installed(&self, node: NodeId, upto: Option<LogId>) {
        self.count(CoveragePoint::SnapshotInstalled);
        self.note(format_args!("node {node} installs a snapshot of {upto:?}"));
    }

    /// Records a vote that a node has synced, or granted in an answer.
    pub fn voted(&self, node: NodeId, vote: Vote) {
        let mut record = self.0.lock();
        let last = record.votes.entry(node).or_insert(vote);
        if order(vote) > order(*last) {
            *last = vote;
        }
    }

    /// Records that a node has acknowledged all entries up to `last`.
    pub fn promised(&self, node: NodeId, last: LogId) {
        let mut record = self.0.lock();
        let promised = record.promised.entry(node).or_insert(last);
        if promised.index < last.index {
            *promised = last;
        }
    }

    /// Records that a node truncates its log after `last`: it may forget the entries that follow.
    pub fn truncated(&self, node: NodeId, last: Option<LogId>) {
        let mut record = self.0.lock();
        match (record.promised.get_mut(&node), last) {
            (Some(promised), Some(last)) if promised.index > last.index => *promised = last,
            (Some(_), None) => drop(record.promised.remove(&node)),
            _ => {}
        }
    }

    /// Checks that a node which starts still has on its disk its vote and every entry that it
    /// acknowledged.
    pub fn remembers(
        &self,
        node: NodeId,
        known: Option<Vote>,
        last: Option<LogId>,
        crash: DiskCrash,
    ) {
        let mut record = self.0.lock();
        let promised = record.promised.get(&node).copied();
        if promised.map(|id| id.index) > last.map(|id| id.index) {
            let what = format_args!(
                "node {node} has lost entries that it acknowledged: up to {promised:?}, and on its \
                 disk is {last:?}; {}",
                why_lost(promised, last, crash)
            );
            record.violation(SafetyProperty::EntriesAreKept, what);
        }
        let voted = record.votes.get(&node).copied();
        if voted.map(order) > known.map(order) {
            let what = format_args!(
                "node {node} has forgotten its vote: {voted:?}, and on its disk is {known:?}"
            );
            record.violation(SafetyProperty::VotesAreKept, what);
        }
    }

    /// Checks, when a node answers a request, that some node has applied its entry.
    pub fn answered(&self, node: NodeId, request: Option<&RequestId>, answer: &Answer) {
        let Some(id) = request.filter(|_| answer.is_ok()) else { return };
        let mut record = self.0.lock();
        if !record.outcomes.contains_key(id) {
            let RequestId { caller, key } = id;
            let what = format_args!(
                "node {node} has answered request {key} of {caller}, and no node has applied it"
            );
            record.violation(SafetyProperty::AnswersAreApplied, what);
        }
    }

    /// Records that a leader stamps a proposal with this engine time now.
    pub fn stamped(&self, leader: Leader, stamp: Time) {
        let by = (leader.term, leader.node_id, stamp);
        self.0.lock().stamps.entry(by).or_insert_with(now);
    }

    /// Ends the record and returns the trace.
    pub fn close(&self) -> Trace {
        let mut record = self.0.lock();
        let digest = std::mem::take(&mut record.digest).finalize();
        let digest = digest.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("memory suffices");
            text
        });
        let lines = record.whole.take().unwrap_or_else(|| record.tail.drain(..).collect());
        Trace {
            digest,
            lines,
            count: record.lines,
            violations: std::mem::take(&mut record.violations),
            entries: record.applied.len() as u64,
            commands: record.commands,
            parts: std::mem::take(&mut record.parts),
        }
    }
}

/// Returns, for a violation report, how a node can have lost the entries up to `promised`, which it
/// had acknowledged.
fn why_lost(promised: Option<LogId>, last: Option<LogId>, crash: DiskCrash) -> &'static str {
    let index = |id: Option<LogId>| id.map(|id| id.index);
    match last {
        _ if crash.had_failed => "a sync of the disk had failed",
        _ if index(crash.synced) < index(promised) => "they had not been synced",
        None => "the disk is empty",
        Some(_) => "they had been synced",
    }
}

/// Returns a sort key for votes: a later vote has a higher term, or in the same term a higher
/// candidate id.
fn order(vote: Vote) -> (u64, NodeId) {
    (vote.leader_id.term, vote.leader_id.node_id)
}

/// Returns the coverage points that an operation with this outcome counts for.
fn parts_of(op: &Op, outcome: &Outcome) -> Vec<CoveragePoint> {
    match (op, outcome) {
        (Op::Acquire(ask), Outcome::Granted(_)) => {
            let shared = match ask.mode {
                Mode::Exclusive => None,
                Mode::Shared => Some(CoveragePoint::SharedGrant),
                Mode::Seats(_) => Some(CoveragePoint::SeatGrant),
            };
            let of_file = ask.hold.open().map(|_| CoveragePoint::OpenFileGrant);
            shared.into_iter().chain(of_file).collect()
        }
        (Op::Acquire(ask), Outcome::Renewed(_)) if ask.hold.open().is_some() => {
            vec![CoveragePoint::ModeChange]
        }
        (Op::Acquire(_), Outcome::Waiting { .. }) => vec![CoveragePoint::Wait],
        (Op::Move(_), _) => vec![CoveragePoint::Move],
        (Op::Steal(_), _) => vec![CoveragePoint::Steal],
        (Op::Reset(_), Outcome::ResetPart { .. }) => vec![CoveragePoint::ResetPart],
        (Op::Reset(_), _) => vec![CoveragePoint::Reset],
        _ => vec![],
    }
}

/// Whether the number of a request shows that it is a late copy, or its session is over.
fn is_late_copy(answer: &Answer) -> bool {
    let Err(refusal) = answer else { return false };
    matches!(*refusal.reason, Reason::LateCopy(_) | Reason::NoSession(_))
}

/// Returns how a wait in a queue has ended, if `answer` to a repetition of the waiting request
/// tells that: the lock was granted, or the client has left the queue for good.
fn end_of_wait(first: &Outcome, op: &Op, answer: &Answer) -> Option<Outcome> {
    let (waits, has_left) =
        (matches!(first, Outcome::Waiting { .. }), matches!(first, Outcome::Left));
    match (op, answer) {
        (Op::Acquire(_), Ok(Outcome::Granted(_))) if waits => answer.clone().ok(),
        (Op::Acquire(_), Err(refusal)) if waits || has_left => {
            matches!(*refusal.reason, Reason::NotInLine(_)).then_some(Outcome::Left)
        }
        _ => None,
    }
}

impl RecorderState {
    fn count(&mut self, part: CoveragePoint) {
        *self.parts.entry(part).or_default() += 1;
    }

    fn note(&mut self, what: fmt::Arguments<'_>) {
        let micros = now().as_nanos() / 1_000;
        let line = format!("{:>3}.{:06} {what}", micros / 1_000_000, micros % 1_000_000);
        self.digest.update(line.as_bytes());
        self.digest.update(b"\n");
        self.lines += 1;
        if let Some(whole) = &mut self.whole {
            return whole.push(line);
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }

    fn violation(&mut self, promise: SafetyProperty, what: fmt::Arguments<'_>) {
        self.note(format_args!("WRONG: {promise:?}: {what}"));
        let of_kind = self.violations.iter().filter(|violation| violation.promise == promise);
        if of_kind.count() < VIOLATIONS_MAX {
            let what = what.to_string();
            self.violations.push(Violation { promise, at: Some(now()), what });
        }
    }

    /// Checks that engine time advances no faster than real time, except for the difference of the
    /// clock rates.
    fn time_passes(&mut self, id: LogId, stamp: Time) {
        let by = (id.leader_id.term, id.leader_id.node_id, stamp);
        let Some(at) = self.stamps.get(&by).copied() else { return };
        let leadership = (id.leader_id.term, id.leader_id.node_id);
        let has_led = !self.led.insert(id.leader_id.node_id);
        if let Some((before, then, last)) = self.stamped {
            let (passed, truly) = (stamp.since(before), at.since(then));
            let most = truly + Span::from_nanos(truly.as_nanos() / 1_000) + TIME_AHEAD_MAX;
            if passed > most {
                self.violation(
                    SafetyProperty::TimeIsNotAhead,
                    format_args!(
                        "the time of the entries advanced by {passed} within {truly}, {}",
                        match has_led {
                            _ if last == leadership => "while one node led",
                            true => "when a node led that had led before",
                            false => "when a node led for the first time",
                        }
                    ),
                );
            }
        }
        if self.stamped.is_none_or(|(before, ..)| before < stamp) {
            self.stamped = Some((stamp, at, leadership));
        }
    }

    /// Checks that a client's acquire, identified by its holder id, takes effect under one request
    /// id only.
    fn one_id(&mut self, id: &RequestId, op: &Op) {
        let Op::Acquire(Acquire { patch: Patch { holder_id: Some(mark), .. }, .. }) = op else {
            return;
        };
        let RequestId { caller, key } = id;
        let of = (Arc::clone(caller), Arc::clone(mark));
        let first = self.marks.entry(of).or_insert_with(|| id.clone()).key.clone();
        if first != *key {
            let what = format_args!(
                "request {mark} of {caller} had an effect under two ids: {first}, {key}"
            );
            self.violation(SafetyProperty::OneEffect, what);
        }
    }

    /// Notes the answers that a command acknowledges, also if it is refused.
    fn acknowledge(&mut self, command: &Command) {
        let (Some(RequestNumber { session, .. }), Some(request)) =
            (command.number(), &command.request)
        else {
            return;
        };
        let id = |number| {
            let key = RequestKey::Number(RequestNumber { session, number });
            RequestId { caller: Arc::clone(&request.id.caller), key }
        };
        let meant = self.outcomes.range(id(0)..id(command.answered_below));
        let meant = meant.map(|(id, _)| id.clone());
        self.acknowledged.extend(meant);
    }

    /// Records an entry that no node has applied before. A repeated request must have the same
    /// outcome as the first time.
    fn first_time(&mut self, id: LogId, body: &Commands, answers: &[Answer]) {
        self.time_passes(id, body.now);
        for (command, answer) in body.commands.iter().zip(answers) {
            self.commands += 1;
            self.acknowledge(command);
            let Some(request) = &command.request else { continue };
            let RequestId { caller, key } = &request.id;
            let answer = answer.clone().map(Outcome::first);
            match (self.outcomes.get(&request.id), answer) {
                (None, Ok(outcome)) => {
                    self.one_id(&request.id, &command.op);
                    for part in parts_of(&command.op, &outcome) {
                        self.count(part);
                    }
                    // A part of a reset is not the outcome of the request, and none follows it.
                    if !command.op.is_part() {
                        self.outcomes.insert(request.id.clone(), outcome);
                    }
                }
                (Some(first), answer) if answer.as_ref() != Ok(first) => {
                    if let Some(end) = end_of_wait(first, &command.op, &answer) {
                        self.outcomes.insert(request.id.clone(), end);
                        continue;
                    }
                    // The caller has acknowledged the answer, so it is forgotten, and this is a
                    // late copy of the request.
                    if is_late_copy(&answer) && self.acknowledged.contains(&request.id) {
                        continue;
                    }
                    let answers = format!("{first:?}, and then {answer:?}");
                    let what =
                        format_args!("request {key} of {caller} was carried out twice: {answers}");
                    self.violation(SafetyProperty::OneEffect, what);
                }
                _ => {}
            }
        }
    }
}

/// A kind of event or operation in a simulation. The report counts each: a kind that never occurs
/// was not tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoveragePoint {
    /// A node began to lead.
    Leader,
    /// A node crashed.
    Crash,
    /// A node stopped because its disk had failed.
    FailedNodeEnd,
    /// A leader applied commands that a follower had forwarded for its clients.
    Forward,
    /// A leader gave a follower the read index that the follower needs for a linearizable read.
    FollowerRead,
    /// A node joined the cluster.
    Join,
    /// A voter was replaced.
    VoterReplaced,
    /// A node installed a snapshot that the leader had sent.
    SnapshotInstalled,
    /// A snapshot took a second or more to be written.
    SlowSnapshotWrite,
    /// A snapshot took a second or more to be read.
    SlowSnapshotRead,
    /// A shared lock was granted.
    SharedGrant,
    /// A seat of a lock was granted.
    SeatGrant,
    /// An open file was granted a lock.
    OpenFileGrant,
    /// The mode of a lease was changed.
    ModeChange,
    /// A client began to wait in a queue.
    Wait,
    /// A lease was moved to another lock name.
    Move,
    /// A lock was stolen.
    Steal,
    /// An administrator reset the locks.
    Reset,
    /// A part of a reset was carried out in an entry of its own.
    ResetPart,
}

impl CoveragePoint {
    /// Returns the key of this counter in the JSON report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leaders",
            Self::Crash => "crashes",
            Self::FailedNodeEnd => "failed_node_ends",
            Self::Forward => "forwards",
            Self::FollowerRead => "follower_reads",
            Self::Join => "joins",
            Self::VoterReplaced => "voters_replaced",
            Self::SnapshotInstalled => "snapshots_installed",
            Self::SlowSnapshotWrite => "slow_snapshot_writes",
            Self::SlowSnapshotRead => "slow_snapshot_reads",
            Self::SharedGrant => "shared_grants",
            Self::SeatGrant => "seat_grants",
            Self::OpenFileGrant => "open_file_grants",
            Self::ModeChange => "mode_changes",
            Self::Wait => "waits",
            Self::Move => "moves",
            Self::Steal => "steals",
            Self::Reset => "resets",
            Self::ResetPart => "reset_parts",
        }
    }

    /// All variants, in the order of their declaration.
    pub const ALL: [Self; 19] = [
        Self::Leader,
        Self::Crash,
        Self::FailedNodeEnd,
        Self::Forward,
        Self::FollowerRead,
        Self::Join,
        Self::VoterReplaced,
        Self::SnapshotInstalled,
        Self::SlowSnapshotWrite,
        Self::SlowSnapshotRead,
        Self::SharedGrant,
        Self::SeatGrant,
        Self::OpenFileGrant,
        Self::ModeChange,
        Self::Wait,
        Self::Move,
        Self::Steal,
        Self::Reset,
        Self::ResetPart,
    ];
}
