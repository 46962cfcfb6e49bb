//! What is written down while a simulation runs: the trace, what every node has applied, who voted
//! for whom; and what is seen at once to be wrong.

use super::history::History;
use super::kind::now;
use crate::cluster::kind::{Commands, LogId, NodeId, Vote};
use crate::engine::{Answer, Outcome, RequestId};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// Lines of the trace that are kept for whoever asks how it came to something.
const TAIL_LINES: usize = 60;
/// At every so manieth entry the states of the nodes are compared.
const STATE_EVERY: u64 = 16;
/// More would say the same again.
const VIOLATIONS_MAX: usize = 20;

/// The record of one run.
pub(super) struct Record(Mutex<State>);

struct State {
    digest: Sha256,
    lines: u64,
    tail: VecDeque<String>,
    /// All of it, if it was asked for.
    whole: Option<Vec<String>>,
    violations: Vec<String>,
    applied: BTreeMap<u64, Applied>,
    /// What each request that carries an id has come to.
    outcomes: BTreeMap<RequestId, Outcome>,
    /// What a node last voted, as far as anybody knows.
    votes: BTreeMap<NodeId, Vote>,
    commands: u64,
    history: History,
}

/// What an entry came to on the node that applied it first.
struct Applied {
    id: LogId,
    answers: Vec<Answer>,
    state: Option<u32>,
}

/// The trace at its end.
pub(super) struct Trace {
    pub(super) digest: String,
    pub(super) lines: Vec<String>,
    pub(super) count: u64,
    pub(super) violations: Vec<String>,
    pub(super) entries: u64,
    pub(super) commands: u64,
}

impl Record {
    pub(super) fn new(whole: bool) -> Self {
        Self(Mutex::new(State {
            digest: Sha256::new(),
            lines: 0,
            tail: VecDeque::new(),
            whole: whole.then(Vec::new),
            violations: Vec::new(),
            applied: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            votes: BTreeMap::new(),
            commands: 0,
            history: History::default(),
        }))
    }

    /// Adds a line to the trace.
    pub(super) fn note(&self, what: fmt::Arguments<'_>) {
        self.0.lock().note(what);
    }

    /// Something is wrong.
    pub(super) fn violation(&self, what: fmt::Arguments<'_>) {
        self.0.lock().violation(what);
    }

    /// What the clients saw.
    pub(super) fn history<T>(&self, act: impl FnOnce(&mut History) -> T) -> T {
        act(&mut self.0.lock().history)
    }

    /// A node has applied an entry: what it came to must be what it came to elsewhere.
    pub(super) fn applied(
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
                record.first_time(body, answers);
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
            record.violation(format_args!("node {node} has diverged from another: {differs}"));
        }
    }

    /// A node goes on from a snapshot.
    pub(super) fn installed(&self, node: NodeId, upto: Option<LogId>) {
        self.note(format_args!("node {node} installs a snapshot of {upto:?}"));
    }

    /// A node has voted, and somebody knows.
    pub(super) fn voted(&self, node: NodeId, vote: Vote) {
        let mut record = self.0.lock();
        let last = record.votes.entry(node).or_insert(vote);
        if order(vote) > order(*last) {
            *last = vote;
        }
    }

    /// A node starts with this vote on its disk: it must know what it has voted.
    pub(super) fn remembers(&self, node: NodeId, known: Option<Vote>) {
        let mut record = self.0.lock();
        let voted = record.votes.get(&node).copied();
        if voted.map(order) > known.map(order) {
            record.violation(format_args!(
                "node {node} has forgotten its vote: {voted:?}, and on its disk is {known:?}"
            ));
        }
    }

    /// The end of the record.
    pub(super) fn close(&self) -> Trace {
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
        }
    }
}

/// A later vote has a higher term, or within it a higher candidate.
fn order(vote: Vote) -> (u64, NodeId) {
    (vote.leader_id.term, vote.leader_id.node_id)
}

impl State {
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

    fn violation(&mut self, what: fmt::Arguments<'_>) {
        self.note(format_args!("WRONG: {what}"));
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(format!("at {}: {what}", now()));
        }
    }

    /// Nobody has applied this entry before. What a request has come to once it comes to again.
    fn first_time(&mut self, body: &Commands, answers: &[Answer]) {
        for (command, answer) in body.commands.iter().zip(answers) {
            self.commands += 1;
            let Some(request) = &command.request else { continue };
            let RequestId { caller, key } = &request.id;
            let answer = answer.clone().map(Outcome::first);
            match (self.outcomes.get(&request.id), answer) {
                (None, Ok(outcome)) => {
                    self.outcomes.insert(request.id.clone(), outcome);
                }
                (Some(first), answer) if answer.as_ref() != Ok(first) => {
                    let again = format!("{first:?}, and then {answer:?}");
                    self.violation(format_args!(
                        "request {key} of {caller} was carried out twice: {again}"
                    ));
                }
                _ => {}
            }
        }
    }
}
