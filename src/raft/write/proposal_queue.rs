//! The queue of requests that wait for the next log entry. A front end adds a request and never
//! blocks.
//!
//! A read of a lock sees the effect of every earlier request for that lock on this node, even of
//! one that is not answered yet: the read waits in the same queue, behind that request. A read
//! makes no log entry.
//!
//! Size limits: how many bytes of commands one log entry may hold, and how many bytes of entries
//! one RPC call may carry, by the weight of each command.

use crate::engine::{Answer, Command, LockName};
use crate::raft::cluster_types::RpcError;
use crate::raft::node_environment::NodeEnvironment;
use crate::raft::store::snapshot::{Answers, Commands, Entry, Payload, Proposal};
use crate::service::backend_status::{PendingRequest, PendingStage};
use crate::service::{Call, Replier, Unavailable};
use crate::time::Time;
use common::task::{Pending, Promise, pending};
use openraft::EntryPayload;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// The highest number of requests in one entry: more than arrive during one sync if a thousand
/// clients send, and few enough that they do not delay each other's answers.
pub(in crate::raft) const REQUESTS_MAX: usize = 512;

/// A queued request with its deadline.
struct QueuedProposal {
    what: ProposalKind,
    /// Deadline of the answer, on the steady clock.
    until: Time,
}

/// A queued request, and the sender of its answer.
#[allow(clippy::large_enum_variant)] // Nearly all of them are the large one.
enum ProposalKind {
    Command(Command, Replier<Answer>),
    Forwarded(Vec<Command>, ForwardReply),
    Read(PendingRead),
}

/// A read, which gets the engine time to read at, once all earlier requests have been applied.
pub(crate) type PendingRead = Replier<Time>;

/// The sender of the answer to commands that another node has forwarded for its clients: the index
/// of their entry, and their answers.
pub(in crate::raft) type ForwardReply = Promise<Result<(u64, Answers), RpcError>>;

/// The requests that wait for the next entry, and the commands of the entry in flight.
pub struct ProposalQueue {
    state: Mutex<ProposalQueueState>,
    notify: Notify,
    environment: Arc<dyn NodeEnvironment>,
}

#[derive(Default)]
struct ProposalQueueState {
    asked: VecDeque<QueuedProposal>,
    in_flight: Option<InFlight>,
    /// The reason why new requests are refused, once the queue is closed.
    closed: Option<Unavailable>,
}

/// The commands of the entry in flight.
struct InFlight {
    commands: Arc<Commands>,
    /// The arrival time of each command, on the steady clock.
    came: Vec<Time>,
}

impl ProposalQueueState {
    /// Returns how many of the oldest requests fit one entry: at least one, if there is one.
    fn fitting(&self) -> usize {
        let mut sum = 0;
        let fits = self.asked.iter().take(REQUESTS_MAX).take_while(|asked| {
            let is_first = sum == 0;
            sum += asked.what.weight();
            is_first || sum <= ENTRY_WEIGHT_MAX
        });
        fits.count()
    }
}

impl ProposalKind {
    /// Returns the commands of the request; a read has none.
    fn commands(&self) -> &[Command] {
        match self {
            Self::Command(command, _) => std::slice::from_ref(command),
            Self::Forwarded(commands, _) => commands,
            Self::Read(_) => &[],
        }
    }

    /// Returns how much the request adds to the weight of an entry, which has a maximum. A read
    /// adds nothing to the entry, but counts as 1, so that the number of reads is limited too.
    fn weight(&self) -> usize {
        match self {
            Self::Command(command, _) => command.weight(),
            Self::Forwarded(commands, _) => weight_of_all(commands).max(1),
            Self::Read(_) => 1,
        }
    }
}

/// The work that the proposer takes from the queue next.
pub(in crate::raft) enum NextBatch {
    /// Requests to propose as one entry.
    Batch(ProposalBatch),
    /// The queue is empty at the moment.
    Nothing,
    /// The queue is empty and closed.
    Closed,
}

/// The commands of one entry, and the senders of its answers.
pub(in crate::raft) struct ProposalBatch {
    pub(in crate::raft) commands: Arc<Commands>,
    pub(in crate::raft) waiting: BatchWaiters,
}

/// The senders of the answers to the requests in an entry.
#[derive(Default)]
pub(in crate::raft) struct BatchWaiters {
    /// One sender per caller or forwarding node, in the order of the commands.
    callers: Vec<BatchWaiter>,
    reads: Vec<PendingRead>,
    /// The deadline of the oldest request in the batch.
    pub(in crate::raft) until: Option<Time>,
}

/// The recipient of the answers to one or more commands of an entry.
enum BatchWaiter {
    /// A local caller, for one command.
    Caller(Replier<Answer>),
    /// Another node, which has forwarded the contained number of commands.
    Node(usize, ForwardReply),
}

impl ProposalQueue {
    pub(in crate::raft) fn new(environment: Arc<dyn NodeEnvironment>) -> Self {
        Self { state: Mutex::default(), notify: Notify::new(), environment }
    }

    /// Adds a command, or refuses it at once if the queue is closed.
    pub fn submit(&self, command: Command) -> Call<Answer> {
        let (replier, call) = Call::expected();
        self.take(ProposalKind::Command(command, replier));
        call
    }

    /// Adds a read, or refuses it at once if the queue is closed.
    pub(in crate::raft) fn read(&self) -> Call<Time> {
        let (read, call) = Call::expected();
        self.take(ProposalKind::Read(read));
        call
    }

    /// Adds commands that another node has forwarded, or refuses them at once if the queue is
    /// closed.
    pub(in crate::raft) fn forward(
        &self,
        commands: Vec<Command>,
    ) -> Pending<Result<(u64, Answers), RpcError>> {
        let (delivery, delivered) = pending();
        self.take(ProposalKind::Forwarded(commands, delivery));
        delivered
    }

    fn take(&self, what: ProposalKind) {
        let until = self.environment.steady_now() + self.environment.timeouts().answer;
        let mut state = self.state.lock();
        if let Some(why) = state.closed.clone() {
            drop(state);
            return what.refuse(why);
        }
        state.asked.push_back(QueuedProposal { what, until });
        let first = state.asked.len() == 1;
        drop(state);
        if first {
            self.notify.notify_one();
        }
    }

    /// Takes the oldest requests that fit into one entry, stamped with the time that `now` returns.
    pub(in crate::raft) fn next(&self, now: impl FnOnce() -> Time) -> NextBatch {
        let mut state = self.state.lock();
        let count = state.fitting();
        if count == 0 {
            return if state.closed.is_some() { NextBatch::Closed } else { NextBatch::Nothing };
        }
        let (mut commands, mut waiting) = (Vec::with_capacity(count), BatchWaiters::default());
        let mut came = Vec::with_capacity(count);
        waiting.until = state.asked.front().map(|asked| asked.until);
        for asked in state.asked.drain(..count) {
            let arrived = self.arrival(asked.until);
            match asked.what {
                ProposalKind::Command(command, replier) => {
                    commands.push(command);
                    came.push(arrived);
                    waiting.callers.push(BatchWaiter::Caller(replier));
                }
                ProposalKind::Forwarded(parcel, delivery) => {
                    waiting.callers.push(BatchWaiter::Node(parcel.len(), delivery));
                    came.resize(came.len() + parcel.len(), arrived);
                    commands.extend(parcel);
                }
                ProposalKind::Read(read) => waiting.reads.push(read),
            }
        }
        // Stamp the entry after its last request has arrived: no lease may start before the
        // request for it.
        let commands = Arc::new(Commands { now: now(), commands });
        state.in_flight = Some(InFlight { commands: Arc::clone(&commands), came });
        NextBatch::Batch(ProposalBatch { commands, waiting })
    }

    /// Returns when a request with this deadline arrived, on the steady clock.
    fn arrival(&self, until: Time) -> Time {
        until - self.environment.timeouts().answer
    }

    /// Returns the commands that have no answer yet, in their order, at most `max`. `in_flight` is
    /// the stage of those that are in the entry in flight.
    pub(in crate::raft) fn pending(
        &self,
        max: usize,
        in_flight: PendingStage,
    ) -> Vec<PendingRequest> {
        let now = self.environment.steady_now();
        let state = self.state.lock();
        let of_entry = state.in_flight.iter().flat_map(|entry| {
            let commands = entry.commands.commands.iter().zip(&entry.came);
            commands.map(|(command, came)| (command, in_flight, *came))
        });
        let queued = state.asked.iter().flat_map(|asked| {
            let came = self.arrival(asked.until);
            asked.what.commands().iter().map(move |command| (command, PendingStage::Queued, came))
        });
        let all = of_entry.chain(queued).take(max);
        all.map(|(command, stage, came)| PendingRequest::of(&command.op, stage, now.since(came)))
            .collect()
    }

    /// Notes that no entry is in flight any more.
    pub(super) fn landed(&self) {
        self.state.lock().in_flight = None;
    }

    /// Whether a command that may change this lock (or any lock, for `None`) is queued or in
    /// flight.
    pub(in crate::raft) fn is_busy_with(&self, name: Option<&LockName>) -> bool {
        let state = self.state.lock();
        let concerns =
            |command: &Command| name.is_none_or(|name| command.op.subject().may_change(name));
        let in_flight = state.in_flight.iter().flat_map(|entry| &entry.commands.commands);
        // Commands that other nodes have forwarded are left out: only reads on the nodes that
        // forwarded them must see their effect.
        let waiting = state.asked.iter().filter_map(|asked| match &asked.what {
            ProposalKind::Command(command, _) => Some(command),
            ProposalKind::Forwarded(..) | ProposalKind::Read(_) => None,
        });
        in_flight.chain(waiting).any(concerns)
    }

    /// Waits until a request may have been added, or the queue closed.
    pub(super) async fn rings(&self) {
        self.notify.notified().await;
    }

    /// Returns the reason why the queue refuses new requests, if it is closed.
    pub(in crate::raft) fn closed(&self) -> Option<Unavailable> {
        self.state.lock().closed.clone()
    }

    /// Closes the queue: new requests are refused, queued ones are still processed.
    pub(in crate::raft) fn close(&self, why: Unavailable) {
        self.state.lock().closed.get_or_insert(why);
        self.notify.notify_one();
    }

    /// Closes the queue, and refuses the queued requests with `why`.
    pub fn fail(&self, why: &Unavailable) {
        let asked = {
            let mut state = self.state.lock();
            state.closed = Some(why.clone());
            std::mem::take(&mut state.asked)
        };
        for asked in asked {
            asked.what.refuse(why.clone());
        }
    }

    /// Refuses the queued commands that other nodes have forwarded, because this node does not lead
    /// any more. If they stayed, the node that leads now might wait for their answers before it
    /// takes the requests that this node forwards to it, and both would wait until a timeout.
    pub(in crate::raft) fn turn_away_forwarded(&self) {
        let forwarded = {
            let is_forwarded =
                |asked: &QueuedProposal| matches!(asked.what, ProposalKind::Forwarded(..));
            let mut state = self.state.lock();
            if !state.asked.iter().any(is_forwarded) {
                return;
            }
            let asked = std::mem::take(&mut state.asked);
            let (forwarded, stays) = asked.into_iter().partition::<VecDeque<_>, _>(is_forwarded);
            state.asked = stays;
            forwarded
        };
        for asked in forwarded {
            asked.what.refuse(Unavailable::NoQuorum { why: "another node is leader now".into() });
        }
    }

    /// Refuses, with `why`, the queued requests whose deadline has passed at `now`.
    pub(in crate::raft) fn expire(&self, now: Time, why: &Unavailable) {
        let late: Vec<_> = {
            let mut state = self.state.lock();
            let late = state.asked.partition_point(|asked| asked.until <= now);
            state.asked.drain(..late).collect()
        };
        for asked in late {
            asked.what.refuse(why.clone());
        }
    }
}

impl ProposalKind {
    fn refuse(self, why: Unavailable) {
        match self {
            Self::Command(_, replier) => replier.keep(Err(why)),
            Self::Forwarded(_, delivery) => delivery.keep(Err(RpcError::NotLeader(None))),
            Self::Read(read) => read.keep(Err(why)),
        }
    }
}

impl ProposalBatch {
    /// Refuses, with the error `turned`, the commands of the batch that other nodes have forwarded
    /// to this node, because a node never forwards a command a second time. Keeps all other
    /// requests of the batch.
    pub(in crate::raft) fn turn_away(self, turned: &RpcError) -> Self {
        self.keep(|_| true, |delivery| delivery.keep(Err(turned.clone())), |_| {})
    }

    /// Refuses with `why` the commands that must not be repeated, since they may have been applied
    /// already. Keeps reads, and commands with an idempotency key.
    pub(super) fn refuse_unrepeatable(self, why: &Unavailable) -> Self {
        self.keep(
            |command| command.request.is_some(),
            |delivery| delivery.keep(Err(RpcError::Unknown)),
            |replier| replier.keep(Err(why.clone())),
        )
    }

    fn keep(
        self,
        keeps: impl Fn(&Command) -> bool,
        mut turn: impl FnMut(ForwardReply),
        mut refuse: impl FnMut(Replier<Answer>),
    ) -> Self {
        let Self { commands, waiting } = self;
        let BatchWaiters { callers, reads, until } = waiting;
        let (now, mut kept, mut stays) = (commands.now, Vec::new(), Vec::new());
        let mut commands = commands.commands.iter();
        for caller in callers {
            match caller {
                BatchWaiter::Caller(replier) => match commands.next() {
                    Some(command) if keeps(command) => {
                        kept.push(command.clone());
                        stays.push(BatchWaiter::Caller(replier));
                    }
                    _ => refuse(replier),
                },
                BatchWaiter::Node(count, delivery) => {
                    commands.by_ref().take(count).for_each(drop);
                    turn(delivery);
                }
            }
        }
        let commands = Arc::new(Commands { now, commands: kept });
        Self { commands, waiting: BatchWaiters { callers: stays, reads, until } }
    }

    /// Whether no caller waits for an answer any more.
    pub(in crate::raft) fn is_empty(&self) -> bool {
        self.waiting.callers.is_empty() && self.waiting.reads.is_empty()
    }
}

impl BatchWaiters {
    /// Replies to each command with its answer, from entry `index`, and then lets the reads proceed
    /// at engine time `at`.
    pub(in crate::raft) fn answer(self, index: u64, answers: Answers, at: Time) {
        let mut answers = answers.into_iter();
        for caller in self.callers {
            match caller {
                BatchWaiter::Caller(replier) => {
                    replier.keep(Ok(answers.next().expect("each command has an answer")));
                }
                BatchWaiter::Node(count, delivery) => {
                    let own: Answers = answers.by_ref().take(count).collect();
                    debug_assert_eq!(own.len(), count, "each command has an answer");
                    delivery.keep(Ok((index, own)));
                }
            }
        }
        for read in self.reads {
            read.keep(Ok(at));
        }
    }

    /// Replies to all waiters with the reason why there is no answer.
    pub(in crate::raft) fn refuse(self, why: &Unavailable) {
        for caller in self.callers {
            match caller {
                BatchWaiter::Caller(replier) => replier.keep(Err(why.clone())),
                BatchWaiter::Node(_, delivery) => delivery.keep(Err(RpcError::Unknown)),
            }
        }
        for read in self.reads {
            read.keep(Err(why.clone()));
        }
    }
}

/// The highest weight of the commands in one entry, unless the first command alone exceeds it. For
/// comparison: 512 requests, each with a name, a note and a short text, together weigh a tenth of
/// this limit.
pub(in crate::raft) const ENTRY_WEIGHT_MAX: usize = 4 << 20;

/// The highest weight of the entries in one call, unless the first entry alone exceeds it.
pub(in crate::raft) const CALL_WEIGHT_MAX: usize = ENTRY_WEIGHT_MAX;

/// The weight of an entry without commands, such as a membership entry with its addresses.
const OTHER_WEIGHT: usize = 4 << 10;

/// Returns the total weight of commands in bytes.
pub(in crate::raft) fn weight_of_all(commands: &[Command]) -> usize {
    commands.iter().map(Command::weight).sum()
}

/// Returns the total weight of entries in bytes.
pub(in crate::raft) fn weight_of_entries(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| payload_weight(&entry.payload)).sum()
}

/// Returns how many of `entries` one call may carry, and their total weight: as many as fit into
/// [`CALL_WEIGHT_MAX`], but at least one if there is any.
pub(in crate::raft) fn fitting(entries: &[Entry]) -> (usize, usize) {
    let (mut count, mut sum) = (0, 0);
    for entry in entries {
        let weight = payload_weight(&entry.payload);
        if count > 0 && sum + weight > CALL_WEIGHT_MAX {
            break;
        }
        (count, sum) = (count + 1, sum + weight);
    }
    (count, sum)
}

fn payload_weight(payload: &Payload) -> usize {
    match payload {
        EntryPayload::Normal(Proposal::Commands(body)) => {
            weight_of_all(&body.commands) + size_of::<Entry>()
        }
        EntryPayload::Normal(_) | EntryPayload::Blank | EntryPayload::Membership(_) => OTHER_WEIGHT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Op;
    use crate::raft::node_environment::SystemEnvironment;
    use futures_util::FutureExt as _;

    /// A node that does not lead any more refuses what other nodes have forwarded to it, and keeps
    /// the requests of its own clients.
    #[test]
    fn only_forwarded_commands_are_turned_away() {
        let queue = ProposalQueue::new(Arc::new(SystemEnvironment));
        let forward = || queue.forward(vec![Op::Settle.into(), Op::Settle.into()]);
        let first = forward();
        let command = queue.submit(Op::Settle.into());
        let second = forward();
        let read = queue.read();
        queue.turn_away_forwarded();
        for forwarded in [first, second] {
            let turned = forwarded.now_or_never().flatten().expect("it is answered").err();
            assert_eq!(turned, Some(RpcError::NotLeader(None)));
        }
        assert!(command.now_or_never().is_none() && read.now_or_never().is_none(), "they stay");
        let NextBatch::Batch(batch) = queue.next(|| Time::ZERO) else { panic!("two requests") };
        assert_eq!((batch.commands.commands.len(), batch.waiting.reads.len()), (1, 1));
    }
}

#[cfg(test)]
mod entry_weight_tests {
    use super::*;
    use crate::engine::codec::state_codec::Codec;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{
        Acquire, Annotate, ClientId, EndHoldOff, Forget, Handover, IfExists, LeaseKey, LeaseTerms,
        LockName, Move, Op, Patch, Release, Reset, ResetScope, Steal, StealReason, TextPatch,
    };
    use crate::raft::store::snapshot::{Commands, LogId};
    use crate::time::Time;
    use openraft::vote::leader_id_adv::LeaderId;
    use std::sync::Arc;

    fn commands() -> Vec<Command> {
        let name = |part: &str| LockName::parse(&part.repeat(250)).expect("a name");
        let client = || ClientId::parse(&"c".repeat(250)).expect("a client");
        let key = || LeaseKey { name: name("k"), client: client(), token: None };
        let patch = Patch {
            holder_id: Some("h".repeat(500).into()),
            note: Some("n".repeat(1_000).into()),
            text: Some(TextPatch::Set(vec![7; 4_000].into())),
            ..Patch::default()
        };
        let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
        let reason = || StealReason::parse(&"r".repeat(1_000)).expect("a reason");
        let acquire = Acquire { patch: patch.clone(), ..Acquire::new(name("a"), client(), term) };
        let steal = Steal {
            name: name("s"),
            only: None,
            client: client(),
            reason: reason(),
            term,
            patch: patch.clone(),
            at_once: false,
        };
        let whose = ResetScope::AllBut(vec![client(); 1_000]);
        let handover = || Some(Handover { text: "t".repeat(256).into(), counter: u64::MAX });
        [
            Op::Settle,
            Op::Acquire(acquire),
            Op::Annotate(Annotate { key: key(), patch, handover: handover() }),
            Op::Release(Release { handover: handover(), ..Release::of(key()) }),
            Op::Forget(Forget { name: name("f"), by: client() }),
            Op::Move(Move { from: key(), to: name("t"), over: IfExists::Refuse }),
            Op::Steal(steal),
            Op::EndHoldOff(EndHoldOff { by: client(), reason: reason() }),
            Op::Reset(Reset::new(whose, client(), reason())),
        ]
        .map(Command::from)
        .into()
    }

    fn entry(index: u64, commands: Vec<Command>) -> Entry {
        let log_id = LogId { leader_id: LeaderId { term: 1, node_id: 1 }, index };
        let commands = Arc::new(Commands { now: Time::ZERO, commands });
        Entry { log_id, payload: EntryPayload::Normal(Proposal::Commands(commands)) }
    }

    /// The encoding of a command in the log is never longer than the weight of the command.
    #[test]
    fn a_command_weighs_at_least_its_bytes() {
        for command in commands() {
            let mut bytes = engine::codec::state_codec::Encoder::new(1);
            command.put(&mut bytes);
            let weight = command.weight();
            assert!(weight >= bytes.len(), "{weight} for {} bytes: {command:?}", bytes.len());
            assert!(weight < 2 * bytes.len() + 2 * size_of::<Command>(), "{weight}: {command:?}");
        }
    }

    #[test]
    fn a_call_carries_what_fits_and_at_least_one_entry() {
        let heavy = || vec![commands().pop().expect("a reset"); 10];
        let weight = weight_of_all(&heavy());
        let entries: Vec<Entry> = (0..100).map(|index| entry(index, heavy())).collect();
        let (count, sum) = fitting(&entries);
        assert!((1..100).contains(&count) && sum <= CALL_WEIGHT_MAX, "{count} entries of {weight}");
        assert!(sum + weight > CALL_WEIGHT_MAX / 2, "{sum}");
        assert_eq!(fitting(&entries[..1]).0, 1);
        assert_eq!(fitting(&[]), (0, 0));
        let alone = [entry(1, (0..20).flat_map(|_| heavy()).collect()), entry(2, vec![])];
        let (count, sum) = fitting(&alone);
        assert!(count == 1 && sum > CALL_WEIGHT_MAX, "{count} of {sum}");
    }
}
