//! Starts and runs a node: its data directory, log, state machine and tasks, and the thread on
//! which openraft runs.

use super::membership::MembershipTask;
use super::membership::{Members, best};
use super::node_pipeline::{PipelineParts, PipelineTasks, RequestPipeline};
use super::peer_service::PeerService;
use crate::engine::codec::state_codec::known_version;
use crate::engine::{Baseline, EndSession, Op, Rules, SessionEnd};
use crate::raft::leadership::{LeadershipRole, Metrics, alone, metrics};
use crate::raft::node::cluster_admin::{Gauges, Reporter};
use crate::raft::node_environment::{NodeEnvironment, SystemEnvironment};
use crate::raft::rpc::accept;
use crate::raft::rpc::mutual_tls::PeerTls;
use crate::raft::rpc::network::Network;
use crate::raft::rpc::network::RpcIdentity;
use crate::raft::rpc::peer_config::PeerStore;
use crate::raft::rpc::peer_config::{ElectionPace, ListeningPeers, Peering};
use crate::raft::store::data_dir;
use crate::raft::store::data_dir::FatalError;
use crate::raft::store::data_dir::{Data, FIRST_NODE, NodeStage};
use crate::raft::store::data_dir::{DataError, PeerError, Stop};
use crate::raft::store::log::LogStore;
use crate::raft::store::snapshot;
use crate::raft::store::snapshot::{
    ClusterId, Commands, InheritedState, NodeId, Proposal, TypeConfig,
};
use crate::raft::write::proposer::Forwarder;
use crate::raft::write::proposer::Proposer;
use crate::raft::write::state_machine::Raft;
use crate::raft::write::state_machine::Replica;
use crate::raft::write::state_machine::StateMachine;
use crate::service::Unavailable;
use crate::service::audit::audit_log::Audit;
use crate::time::{Span, Wall, boot_now};
use openraft::impls::BasicNode;
use openraft::{ChangeMembers, Config, ServerState, SnapshotPolicy};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::runtime::Handle;
use tokio::sync::Mutex as Turn;

/// The number of entries between two snapshots: few enough that a start replays them quickly.
pub(in crate::raft) const ENTRIES_A_SNAPSHOT: u64 =
    if cfg!(feature = "planted-version") { 100 } else { 10_000 };
/// The number of entries that stay in the log after a snapshot, so that a follower that is slightly
/// behind needs no snapshot.
const ENTRIES_KEPT: u64 = 1_000;
/// How long a lone node waits at its start to become leader, and then, counted anew, to have
/// applied its log.
const START_PATIENCE: Span = Span::from_secs(60);
/// How long a shutdown waits for another node to take over leadership.
const HANDOVER_PATIENCE: Span = Span::from_secs(1);

/// Callback that receives the reason when the node can't go on.
pub(in crate::raft) type OnFailure = Box<dyn FnOnce(Stop) + Send>;

/// A started node, and the thread that runs it.
pub(in crate::raft) struct NodeHandle {
    pub(in crate::raft) shared: RunningNode,
    pub(in crate::raft) thread: JoinHandle<()>,
    /// Registers a callback for the failure of the node.
    pub(in crate::raft) failures: mpsc::Sender<OnFailure>,
}

/// The parts of a running node that the front ends use.
#[derive(Clone)]
pub(in crate::raft) struct RunningNode {
    pub(in crate::raft) requests: RequestPipeline<TypeConfig>,
    pub(in crate::raft) members: Arc<Members>,
    pub(super) reporter: Arc<Reporter>,
    /// A connection to the leader, for rare requests.
    pub(in crate::raft) leader: Arc<Turn<Forwarder<TypeConfig>>>,
    pub(in crate::raft) runtime: Handle,
    /// The reason why the node has stopped, if it has failed.
    pub(in crate::raft) stopped: Arc<Mutex<Option<Stop>>>,
    pub(super) peer_tls: Option<PeerTls>,
}

/// The opened files and sockets with which the node's thread begins.
struct NodeParts {
    data: Data,
    /// The state that this node takes over if it begins a new cluster in place of a lost one:
    /// limits, the first token and queue ticket, and for how long no lock is granted.
    inherited: Option<InheritedState>,
    log: LogStore,
    machine: StateMachine,
    fatal_error: FatalError,
    peers: Option<ListeningPeers>,
}

/// The tasks that run on the node's thread.
struct NodeTasks {
    proposer: Proposer<TypeConfig>,
    begun: RunningNode,
    data: Arc<Mutex<Data>>,
    membership_task: Option<MembershipTask>,
}

/// Starts the node whose data is in a directory, or a new one. Returns once it accepts requests.
pub(in crate::raft) fn start(
    path: &Path,
    peering: Option<Peering>,
    inherited: Option<InheritedState>,
) -> Result<NodeHandle, DataError> {
    let peers = peering.map(Peering::begin).transpose()?;
    let parts = open(path, peers, inherited)?;
    let path = parts.data.path().to_path_buf();
    let (say, said) = mpsc::channel();
    let (failures, on_failure) = mpsc::channel();
    let work = move || work(parts, &say, &on_failure);
    let thread = std::thread::Builder::new().name("log".to_owned()).spawn(work);
    let thread = thread.map_err(|error| DataError::io(&path, error))?;
    match said.recv() {
        Ok(Ok(shared)) => Ok(NodeHandle { shared, thread, failures }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(DataError::Stopped(path, "its thread has panicked".to_owned())),
    }
}

fn open(
    path: &Path,
    peers: Option<ListeningPeers>,
    inherited: Option<InheritedState>,
) -> Result<NodeParts, DataError> {
    let data = Data::open(path, || begin_or_join(path, peers.as_ref()))?;
    if inherited.is_some() && data.identity.stage == NodeStage::Begun {
        return Err(DataError::Foreign(data.path().join("node")));
    }
    // A snapshot of another version is refused before the log is opened, which truncates a torn
    // write.
    let known = snapshot::load(&data.snapshot())?;
    let fatal_error = FatalError::default();
    let log = LogStore::open(&data.log(), &fatal_error)?;
    if let Some(name) = peers.as_ref().and_then(|peers| peers.name.as_ref()) {
        name.keep(data.path())?;
    }
    if log.is_new() && data.identity.stage == NodeStage::Begun {
        return Err(DataError::damaged(
            &data.log(),
            "the log is empty, and something was promised",
        ));
    }
    let audit = Audit::open(data.path(), log.committed());
    let audit = audit.map_err(|error| DataError::io(data.path(), error))?;
    let machine =
        StateMachine::new(&data.snapshot(), known, audit, &fatal_error, log.version.clone());
    if log.purged() > machine.applied() {
        // The entries that were purged from the log exist only in a snapshot, and the snapshot on
        // disk ends before the last of them.
        return Err(DataError::Missing(data.snapshot()));
    }
    Ok(NodeParts { data, inherited, log, machine, fatal_error, peers })
}

/// Returns the cluster id and the node id of a new node: the first of a new cluster, or one that
/// joins the cluster of its seeds.
fn begin_or_join(
    path: &Path,
    peers: Option<&ListeningPeers>,
) -> Result<(ClusterId, NodeId), DataError> {
    match peers {
        Some(peers) if !peers.initial.is_empty() => peers.bootstrap(path),
        Some(peers) if !peers.seeds.is_empty() => peers.join(path),
        // Any other new node that has peers but no seeds is refused. It may be a former member that
        // has lost its data, which must not begin a cluster of its own.
        Some(peers) if !peers.begins => Err(PeerError::Nobody(path.to_path_buf()).into()),
        Some(_) | None => Ok(data_dir::first()),
    }
}

/// Runs the node on its thread until it ends.
fn work(
    parts: NodeParts,
    say: &mpsc::Sender<Result<RunningNode, DataError>>,
    on_failure: &mpsc::Receiver<OnFailure>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return drop(say.send(Err(DataError::io(parts.data.path(), error)))),
    };
    // The value `data` holds the lock of the data directory. It lives until every task that writes
    // to the directory has ended.
    let NodeTasks { proposer, begun, data, membership_task } = match runtime.block_on(begin(parts))
    {
        Ok(works) => works,
        Err(error) => return drop(say.send(Err(error))),
    };
    // Sending fails only if the thread that starts the node has panicked.
    let _ = say.send(Ok(begun.clone()));
    let ended = runtime.block_on(async {
        let removed = async {
            match &membership_task {
                Some(membership_task) => Box::pin(membership_task.run(&data)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = proposer.run() => ended.map_err(Stop::Log),
            stop = removed => Err(stop),
        }
    });
    match &ended {
        Ok(()) => {
            runtime.block_on(hand_over(&proposer.raft));
            begun.requests.reads.fail(&Unavailable::Closing);
        }
        Err(stop) => {
            log::error!("the node stops: {stop}");
            let why = match stop {
                Stop::Log(why) => Arc::clone(why),
                other => other.to_string().into(),
            };
            let why = Unavailable::Log { why };
            proposer.queue.fail(&why);
            begun.requests.reads.fail(&why);
            *begun.stopped.lock() = Some(stop.clone());
            for on_stop in on_failure.try_iter() {
                on_stop(stop.clone());
            }
        }
    }
    // A failure of openraft was reported above, so an error of its shutdown is ignored.
    let _ = runtime.block_on(proposer.raft.shutdown());
    begun.requests.replica.audit.flush();
    drop(data);
}

/// Transfers leadership to another voter, if there is one, so that no request has to wait for an
/// election timeout.
async fn hand_over(raft: &Raft) {
    let metrics = metrics::<TypeConfig>(raft);
    let (true, Some(to)) = (raft.is_leader(), best(&metrics)) else { return };
    let patience = Some(HANDOVER_PATIENCE.as_duration());
    if raft.trigger().transfer_leader(to).await.is_ok() {
        let leads = |now: &Metrics| now.current_leader == Some(to);
        // If the transfer takes too long, the other nodes elect a leader by themselves.
        let _ = raft.wait(patience).metrics(leads, "another leads").await;
    }
}

/// Starts openraft, restores the node's state, and builds its tasks.
async fn begin(parts: NodeParts) -> Result<NodeTasks, DataError> {
    let NodeParts { data, inherited, log, machine, fatal_error, peers } = parts;
    let replica = Arc::clone(&machine.replica);
    let path = data.path().to_path_buf();
    let stopped = |why: String| {
        let why = fatal_error.first().map_or(why, |first| first.to_string());
        DataError::Stopped(path.clone(), why)
    };
    let (fresh, identity) = (log.is_empty(), data.identity);
    let caller =
        peers.as_ref().map(|peers| Arc::new(peers.caller(identity, replica.version.clone())));
    let removed = Arc::<AtomicBool>::default();
    let gauges = Gauges::of(&log);
    let network = Network {
        caller: caller.clone(),
        replica: Arc::clone(&replica),
        removed: Arc::clone(&removed),
    };
    let pace = peers.as_ref().map_or(ElectionPace::Lan, |peers| peers.pace);
    let raft = Raft::new(identity.node, Arc::new(config(pace)), network, log, machine)
        .await
        .map_err(|error| stopped(error.to_string()))?;
    let data = Arc::new(Mutex::new(data));
    if fresh && identity.node == FIRST_NODE {
        let addr = peers.as_ref().map_or_else(String::new, |peers| peers.station.to_string());
        let members = BTreeMap::from([(identity.node, BasicNode { addr })]);
        raft.initialize(members).await.map_err(|error| stopped(error.to_string()))?;
    }
    // The membership is read from openraft's state: its metrics show it only a moment later.
    let known = raft.with_raft_state(|state| state.membership_state.effective().clone()).await;
    let known = known.map_err(|error| stopped(error.to_string()))?;
    let is_alone = known.nodes().map(|(id, _)| *id).eq([identity.node]);
    if !is_alone && peers.is_none() {
        return Err(PeerError::Deaf.into());
    }
    let mut stand = LeadershipRole::Waits;
    if is_alone {
        if let (Some(peers), Some(caller)) = (&peers, &caller) {
            peers.refuse_strangers(caller).await?;
        }
        stand = begin_alone(&raft, &replica, &data, peers.as_ref(), inherited, &stopped).await?;
    } else {
        raft.runtime_config().tick(true);
        if known.voter_ids().eq([identity.node]) {
            // The only voter calls an election at once, without waiting for the timeout.
            raft.trigger().elect(false).await.map_err(|error| stopped(error.to_string()))?;
        }
    }
    replica.go_live();
    Ok(NodeComponents {
        raft,
        replica,
        data,
        fatal_error,
        gauges,
        caller,
        removed,
        peers,
        is_alone,
        stand,
    }
    .put_together(identity.cluster, identity.node))
}

/// The components of which a node is built.
struct NodeComponents {
    raft: Raft,
    replica: Arc<Replica>,
    data: Arc<Mutex<Data>>,
    fatal_error: FatalError,
    gauges: Gauges,
    caller: Option<Arc<RpcIdentity>>,
    removed: Arc<AtomicBool>,
    peers: Option<ListeningPeers>,
    is_alone: bool,
    stand: LeadershipRole,
}

impl NodeComponents {
    fn put_together(self, cluster: ClusterId, node: NodeId) -> NodeTasks {
        let Self { raft, replica, data, fatal_error, stand, is_alone, .. } = self;
        let Self { caller, removed, peers, gauges, .. } = self;
        let parts = PipelineParts {
            raft,
            replica,
            transport: caller.clone().unwrap_or_else(|| Arc::new(RpcIdentity::nobody(None, None))),
            environment: Arc::new(SystemEnvironment),
            elections: Arc::clone(&gauges.elections),
            fatal: fatal_error,
            role: stand,
            is_alone,
        };
        let (requests, PipelineTasks { watcher, proposer }) = parts.build();
        let reporter = Arc::new(Reporter {
            cluster,
            raft: requests.raft.clone(),
            replica: Arc::clone(&requests.replica),
            gauges,
            caller: caller.clone(),
            reader: Arc::clone(&requests.reader),
        });
        let clock = Arc::clone(&requests.leader_clock);
        requests.replica.audit.set_clock(move |at| clock.boot_time(at).map(Wall::at_boot_time));
        tokio::spawn(watcher.run());
        tokio::spawn(requests.clone().answer_reads());
        let alone = Arc::clone(&requests.alone);
        let declared = peers.as_ref().map_or(0, |peers| peers.initial.len());
        let version = requests.replica.version.clone();
        let members = Arc::new(Members::new(requests.raft.clone(), alone, declared, version));
        let peer_tls = peers.as_ref().map(|peers| peers.tls.clone());
        let membership_task = peers.zip(caller).map(|(peers, caller)| {
            let reception = PeerService {
                cluster,
                node,
                requests: requests.clone(),
                members: Arc::clone(&members),
                reporter: Arc::clone(&reporter),
                data: Arc::clone(&data),
                name: peers.name.clone(),
            };
            let book = PeerStore::open(data.lock().path(), cluster, boot_now());
            let ListeningPeers { listener, station, seeds, tls, .. } = peers;
            tokio::spawn(accept::accept(listener, tls, Arc::new(reception)));
            let (requests, members) = (requests.clone(), Arc::clone(&members));
            let book = Mutex::new(book);
            MembershipTask { requests, members, caller, station, seeds, removed, book }
        });
        let begun = RunningNode {
            peer_tls,
            leader: Arc::new(Turn::new(requests.forwarder())),
            requests,
            members,
            reporter,
            runtime: Handle::current(),
            stopped: Arc::default(),
        };
        NodeTasks { proposer, begun, data, membership_task }
    }
}

/// Makes a lone node the leader, and writes its first entries: the beginning of a new cluster, a
/// changed address, and the end of the sessions of the previous process.
async fn begin_alone(
    raft: &Raft,
    replica: &Arc<Replica>,
    data: &Mutex<Data>,
    peers: Option<&ListeningPeers>,
    inherited: Option<InheritedState>,
    stopped: &impl Fn(String) -> DataError,
) -> Result<LeadershipRole, DataError> {
    lead(raft).await.map_err(stopped)?;
    let write = async |proposal| {
        let written = raft.client_write(proposal).await;
        written.map(drop).map_err(|error| stopped(error.to_string()))
    };
    let identity = data.lock().identity;
    let cluster = replica.state().cluster;
    match cluster {
        None => {
            let cluster = identity.cluster;
            match inherited {
                None => {
                    let wall = Wall::now();
                    let baseline = Baseline::by_clock(Rules::default(), wall);
                    let baseline = baseline.ok_or_else(|| stopped(unset_clock(wall)))?;
                    write(Proposal::Inherit(cluster, baseline)).await?;
                }
                Some(inherited) => {
                    for proposal in inherited.proposals(cluster) {
                        write(proposal).await?;
                    }
                }
            }
        }
        Some(cluster) if cluster != identity.cluster => {
            let why = format!("it names cluster {}, the log {cluster}", identity.cluster);
            return Err(DataError::damaged(&data.lock().path().join("node"), why));
        }
        Some(_) => {}
    }
    data.lock().has_begun()?;
    // A lone node is the only one that must know a version.
    while replica.version.get() < known_version() {
        write(Proposal::Raise(replica.version.get() + 1)).await?;
    }
    let known = metrics::<TypeConfig>(raft).membership_config.get_node(&identity.node).cloned();
    if let Some(peers) = peers
        && known != Some(peers.station.to_node())
    {
        // The membership has a former address of this node, which the present one replaces.
        let nodes = BTreeMap::from([(identity.node, peers.station.to_node())]);
        let changed = raft.change_membership(ChangeMembers::SetNodes(nodes), true).await;
        changed.map_err(|error| stopped(error.to_string()))?;
    }
    let reign = alone::<TypeConfig>(raft, replica, &SystemEnvironment);
    let reign = reign.ok_or_else(|| stopped("it does not lead".to_owned()))?;
    // Sessions without a ttl belonged to the previous process of the daemon. They expire, and their
    // leases are in grace, so that a process which still lives can be bound again.
    let end = |session| Op::EndSession(EndSession { session, end: SessionEnd::Expired }).into();
    let commands: Vec<_> = replica.orphans().into_iter().map(end).collect();
    if !commands.is_empty() {
        let now = SystemEnvironment.stamp(reign.id, reign.clock);
        write(Proposal::Commands(Arc::new(Commands { now, commands }))).await?;
    }
    Ok(LeadershipRole::Leads(reign))
}

/// Returns why a new cluster can't begin at this time of the wall clock. Its first token follows
/// from the clock, so that a cluster that replaces one whose disk is lost repeats no token.
fn unset_clock(wall: Wall) -> String {
    format!("the clock shows {wall}, and the first token of a new data directory follows from it")
}

/// Waits until this node leads, and has applied all entries of its log.
async fn lead(raft: &Raft) -> Result<(), String> {
    raft.trigger().elect(false).await.map_err(|error| error.to_string())?;
    let patience = Some(START_PATIENCE.as_duration());
    let leads = raft.wait(patience).state(ServerState::Leader, "to lead").await;
    leads.map_err(|error| error.to_string())?;
    let recovered = raft.wait_for_recovery(patience).await;
    recovered.map(drop).map_err(|error| error.to_string())
}

fn config(pace: ElectionPace) -> Config {
    let (heartbeat, soonest, latest) = match pace {
        // The heartbeat interval, and the shortest and longest election timeout in milliseconds.
        // After a leader is killed, a request waits for twice the longest timeout: below 2 s.
        ElectionPace::Lan => (100, 400, 800),
        ElectionPace::Wifi => (250, 1_000, 1_500),
    };
    Config {
        cluster_name: "latchfs".to_owned(),
        heartbeat_interval: heartbeat,
        election_timeout_min: soonest,
        election_timeout_max: latest,
        // A leader that has lost its quorum pauses its heartbeats now and then, so that it does not
        // keep the other nodes from an election for ever.
        quorum_loss_probe_interval: Some(2 * latest),
        // A lone node sends and awaits no heartbeats: it is elected when it starts, and sleeps
        // while nothing happens.
        enable_tick: false,
        enable_pre_vote: Some(true),
        // After a restart a leader must win an election again, once it has restored its state.
        enable_leader_restore: Some(false),
        // openraft answers an old snapshot with success as soon as it has received the entries of
        // it, before they are synced. If the follower then loses them in a crash, the leader has to
        // send them again. They are committed, so other nodes have them.
        allow_log_reversion: Some(true),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(ENTRIES_A_SNAPSHOT),
        max_in_snapshot_log_to_keep: ENTRIES_KEPT,
        ..Config::default()
    }
}
