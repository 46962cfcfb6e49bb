//! A node: its directory, its log, its engine, and the thread on which openraft works.

use super::clock::Carried;
use super::data::{Data, Stage};
use super::desk::Desk;
use super::error::DataError;
use super::kind::{Commands, Proposal, Raft};
use super::log::Log;
use super::lone::Lone;
use super::machine::Machine;
use super::proposer::Proposer;
use super::replica::Replica;
use super::trouble::Trouble;
use crate::engine::{EndSession, Heritage, Op, Rules, SessionEnd};
use crate::locks::Unavailable;
use crate::locks::audit::Audit;
use crate::time::{Span, steady_now};
use openraft::impls::BasicNode;
use openraft::{Config, ServerState, SnapshotPolicy};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Entries between snapshots: a start reads them again, in a moment.
pub(super) const ENTRIES_A_SNAPSHOT: u64 = 10_000;
/// Entries kept behind a snapshot, for others who are a little late.
const ENTRIES_KEPT: u64 = 1_000;
/// How long a start waits for the log to be read and the first entry to be on the disk.
const START_PATIENCE: Span = Span::from_secs(60);

/// Who is told when the node can't go on.
pub(super) type OnFailure = Box<dyn FnOnce(Arc<str>) + Send>;

/// What has been started.
pub(super) struct Started {
    pub(super) replica: Arc<Replica>,
    pub(super) desk: Arc<Desk>,
    pub(super) clock: Carried,
    pub(super) thread: JoinHandle<()>,
    /// Takes whoever is to be told of a failure.
    pub(super) failures: mpsc::Sender<OnFailure>,
}

/// What the thread begins with.
struct Parts {
    data: Data,
    /// What a new cluster goes on from, if there was another one.
    heritage: Option<Heritage>,
    log: Log,
    machine: Machine,
    desk: Arc<Desk>,
    trouble: Trouble,
}

/// Starts the node whose data is in a directory, or a new one. Returns when it can be asked.
pub(super) fn start(path: &Path, heritage: Option<Heritage>) -> Result<Started, DataError> {
    let parts = open(path, heritage)?;
    let path = parts.data.path().to_path_buf();
    let (replica, desk) = (Arc::clone(&parts.machine.replica), Arc::clone(&parts.desk));
    let (say, said) = mpsc::channel();
    let (failures, on_failure) = mpsc::channel();
    let work = move || work(parts, &say, &on_failure);
    let thread = std::thread::Builder::new().name("log".to_owned()).spawn(work);
    let thread = thread.map_err(|error| DataError::io(&path, error))?;
    match said.recv() {
        Ok(Ok(clock)) => Ok(Started { replica, desk, clock, thread, failures }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(DataError::Stopped(path, "its thread has panicked".to_owned())),
    }
}

fn open(path: &Path, heritage: Option<Heritage>) -> Result<Parts, DataError> {
    let data = Data::open(path)?;
    if heritage.is_some() && data.identity.stage == Stage::Begun {
        return Err(DataError::Foreign(data.path().join("node")));
    }
    let trouble = Trouble::default();
    let log = Log::open(&data.log(), &trouble)?;
    if log.is_empty() && data.identity.stage == Stage::Begun {
        return Err(DataError::damaged(
            &data.log(),
            "the log is empty, and something was promised",
        ));
    }
    let audit = Audit::open(data.path()).map_err(|error| DataError::io(data.path(), error))?;
    let machine = Machine::open(&data.snapshot(), audit, &trouble)?;
    if log.purged() > machine.applied() {
        // What was forgotten of the log is in a snapshot, or nowhere.
        return Err(DataError::Missing(data.snapshot()));
    }
    Ok(Parts { data, heritage, log, machine, desk: Arc::default(), trouble })
}

/// What the thread does, from the start to the end.
fn work(
    parts: Parts,
    say: &mpsc::Sender<Result<Carried, DataError>>,
    on_failure: &mpsc::Receiver<OnFailure>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return drop(say.send(Err(DataError::io(parts.data.path(), error)))),
    };
    let desk = Arc::clone(&parts.desk);
    // The directory stays locked until all that writes to it is gone.
    let (proposer, _data) = match runtime.block_on(begin(parts)) {
        Ok(begun) => begun,
        Err(error) => return drop(say.send(Err(error))),
    };
    // Nobody waits any more only if the starting thread has panicked.
    let _ = say.send(Ok(proposer.clock));
    drop(desk);
    let ended = runtime.block_on(proposer.run());
    if let Err(why) = ended {
        log::error!("the node stops: {why}");
        proposer.desk.fail(&Unavailable::Log { why: Arc::clone(&why) });
        for tell in on_failure.try_iter() {
            tell(Arc::clone(&why));
        }
    }
    // Whether it had failed before is known already.
    let _ = runtime.block_on(proposer.raft.shutdown());
}

/// Brings openraft up, and the node to where it was.
async fn begin(parts: Parts) -> Result<(Proposer, Data), DataError> {
    let Parts { mut data, heritage, log, machine, desk, trouble } = parts;
    let replica = Arc::clone(&machine.replica);
    let path = data.path().to_path_buf();
    let stopped = |why: String| {
        let why = trouble.first().map_or(why, |first| first.to_string());
        DataError::Stopped(path.clone(), why)
    };
    let fresh = log.is_empty();
    let node = data.identity.node;
    let raft = Raft::new(node, Arc::new(config()), Lone, log, machine)
        .await
        .map_err(|error| stopped(error.to_string()))?;
    if fresh {
        let members = BTreeMap::from([(node, BasicNode { addr: String::new() })]);
        raft.initialize(members).await.map_err(|error| stopped(error.to_string()))?;
    }
    lead(&raft).await.map_err(&stopped)?;
    let write = async |proposal| {
        let written = raft.client_write(proposal).await;
        written.map(drop).map_err(|error| stopped(error.to_string()))
    };
    let cluster = replica.look().cluster;
    match cluster {
        None => {
            let cluster = data.identity.cluster;
            write(match heritage {
                None => Proposal::Begin(cluster, Rules::default()),
                Some(heritage) => Proposal::Inherit(cluster, heritage),
            })
            .await?;
        }
        Some(cluster) if cluster != data.identity.cluster => {
            let why = format!("it names cluster {}, the log {cluster}", data.identity.cluster);
            return Err(DataError::damaged(&path.join("node"), why));
        }
        Some(_) => {}
    }
    if data.identity.stage == Stage::New {
        data.has_begun()?;
    }
    let clock = Carried::on(replica.look().engine.clock(), steady_now());
    // Who lived in the daemon's process is gone with it; what it held is in grace, so that a
    // process which still lives can be bound again.
    let end = |session| Op::EndSession(EndSession { session, end: SessionEnd::Expired }).into();
    let commands: Vec<_> = replica.orphans().into_iter().map(end).collect();
    if !commands.is_empty() {
        let now = clock.at(steady_now());
        write(Proposal::Commands(Arc::new(Commands { now, commands }))).await?;
    }
    replica.go_live();
    Ok((Proposer { raft, replica, desk, clock, trouble }, data))
}

/// Waits until this node leads, and has carried out all that the log holds.
async fn lead(raft: &Raft) -> Result<(), String> {
    raft.trigger().elect(false).await.map_err(|error| error.to_string())?;
    let patience = Some(START_PATIENCE.as_duration());
    let leads = raft.wait(patience).state(ServerState::Leader, "to lead").await;
    leads.map_err(|error| error.to_string())?;
    let recovered = raft.wait_for_recovery(patience).await;
    recovered.map(drop).map_err(|error| error.to_string())
}

fn config() -> Config {
    Config {
        cluster_name: "latchfs".to_owned(),
        // Who is alone has nobody to give signs of life to, or to miss them of: it is elected
        // when it starts. So it sleeps while nothing happens.
        enable_tick: false,
        enable_pre_vote: Some(true),
        // A leader that comes back leads by a vote, when its state is what it was.
        enable_leader_restore: Some(false),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(ENTRIES_A_SNAPSHOT),
        max_in_snapshot_log_to_keep: ENTRIES_KEPT,
        ..Config::default()
    }
}
