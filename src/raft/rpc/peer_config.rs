//! The peer configuration of a node: its listen address, its public peer address, its credentials
//! and the seeds, and the request by which a new node joins the cluster of the seeds.
//!
//! Stores the last known addresses of other nodes in `peers.json`, so that a node which was offline
//! can reach the cluster again. The file is only a hint: the voters are always those in the log.
//!
//! Log lines about the other nodes: whether they can be reached.

use crate::base::{jittered, said};
use crate::net::connections::listen;
use crate::raft::node_environment::{ClusterName, ClusterVersion, NodeAddress, host_and_port};
use crate::raft::rpc::messages::{ANYBODY, RpcError, RpcRequest, RpcResponse};
use crate::raft::rpc::mutual_tls::{PeerFiles, PeerTls};
use crate::raft::rpc::network::{RpcConnection, RpcFailure, RpcIdentity};
use crate::raft::store::data_dir::{DataError, NodeIdentity, PeerError};
use crate::raft::store::snapshot::{ClusterId, NodeId};
use crate::storage::atomic_file::{Durable, replace};
use crate::time::{Span, Time, Wall, boot_now, steady_now};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};
use tokio::time::sleep;

/// The peer configuration of a node, as given on the command line.
#[derive(Debug, Clone)]
pub struct Peering {
    /// The address on which the node listens for its peers.
    pub listen: SocketAddr,
    /// The `HOST:PORT` at which peers reach the node, if it differs from `listen`.
    pub address: Option<String>,
    /// The URL of the node's server for clients.
    pub url: String,
    /// The name of the node, for display only.
    pub name: String,
    /// The addresses of the nodes through which a new node joins a cluster.
    pub seeds: Vec<String>,
    /// The addresses of all nodes with which a declared cluster begins, this one included; empty if
    /// the cluster is not declared.
    pub initial: Vec<String>,
    /// Whether a node without data, seeds and a declared cluster begins a new cluster: it is
    /// certain that the node has none yet.
    pub begins: bool,
    /// The name of the cluster, if it has one.
    pub cluster_name: Option<ClusterName>,
    /// The credentials with which nodes authenticate each other. A node without them does not
    /// start.
    pub tls: Option<PeerFiles>,
    /// The heartbeat interval and the election timeouts, chosen for the latency of the network.
    pub pace: ElectionPace,
}

/// A choice of heartbeat interval and election timeouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionPace {
    /// Short timeouts, for servers on a local network.
    Lan,
    /// Longer timeouts, for laptops on a wireless network.
    Wifi,
}

/// How long a new node tries to join.
const JOIN_PATIENCE: Span = Span::from_secs(30);
/// Timeout of one call to one seed or other node.
const SEED_PATIENCE: Span = Span::from_secs(5);
/// The pause between two rounds of calls to all addresses, before jitter.
const JOIN_PAUSE: Span = Span::from_millis(250);

/// A peer configuration whose socket listens and whose certificates are loaded.
pub(in crate::raft) struct ListeningPeers {
    pub(in crate::raft) listener: TcpListener,
    pub(in crate::raft) station: NodeAddress,
    /// The addresses of other nodes: the seeds and those of the declared cluster.
    pub(in crate::raft) seeds: Vec<String>,
    /// The addresses of all declared nodes, sorted.
    pub(in crate::raft) initial: Vec<String>,
    pub(in crate::raft) begins: bool,
    pub(in crate::raft) name: Option<ClusterName>,
    pub(in crate::raft) tls: PeerTls,
    pub(in crate::raft) pace: ElectionPace,
}

impl Peering {
    /// Loads the certificates and opens the listening socket. No connection is accepted yet.
    pub(in crate::raft) fn begin(self) -> Result<ListeningPeers, PeerError> {
        let files = self.tls.as_ref().ok_or(PeerError::Open(self.listen))?;
        let tls = PeerTls::load(files)?;
        for seed in self.seeds.iter().chain(&self.initial) {
            host_and_port(seed).ok_or_else(|| PeerError::Address(seed.clone()))?;
        }
        let refused = |error| PeerError::Listen(self.listen, error);
        let listener = listen(self.listen).map_err(refused)?;
        let heard = listener.local_addr().map_err(refused)?;
        let address = match self.address {
            Some(address) => address,
            // The unspecified addresses 0.0.0.0 and [::] are valid for listening, but other nodes
            // can't connect to them.
            None if heard.ip().is_unspecified() => {
                return Err(PeerError::Address(heard.to_string()));
            }
            None => heard.to_string(),
        };
        let station =
            NodeAddress::new(&address, &self.url, &self.name).ok_or(PeerError::Address(address))?;
        let Self { mut seeds, mut initial, begins, cluster_name: name, pace, .. } = self;
        initial.sort_unstable();
        initial.dedup();
        let is_declared = initial.iter().any(|listed| **listed == *station.address);
        if !initial.is_empty() && (!is_declared || initial.len() == 1) {
            let address = station.address.to_string();
            return Err(PeerError::Unlisted { address, initial: initial.join(",") });
        }
        seeds.extend(initial.iter().cloned());
        seeds.retain(|seed| **seed != *station.address);
        Ok(ListeningPeers { listener, station, seeds, initial, begins, name, tls, pace })
    }
}

impl ListeningPeers {
    /// Returns the identity with which this node calls others.
    pub(in crate::raft) fn caller(&self, of: NodeIdentity, version: ClusterVersion) -> RpcIdentity {
        let (cluster, node) = (Some(of.cluster), of.node);
        let (tls, name) = (Some(self.tls.clone()), self.name.clone());
        RpcIdentity { cluster, node, tls, name, version, contacts: Arc::default() }
    }

    /// Requests a node id in the cluster of the seeds.
    pub(in crate::raft) fn join(&self, path: &Path) -> Result<(ClusterId, NodeId), DataError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DataError::io(path, error))?;
        let caller = Arc::new(RpcIdentity::nobody(Some(self.tls.clone()), self.name.clone()));
        let call = RpcRequest::Join(self.station.clone());
        let response = runtime.block_on(ask_leader(&caller, &self.seeds, &call, JOIN_PATIENCE));
        match response {
            Ok(RpcResponse::Joined(cluster, node)) => Ok((cluster, node)),
            Ok(_) => Err(self.not_joined("it sent an unexpected answer")),
            Err(failure) => Err(self.not_joined(&failure.to_string())),
        }
    }

    /// Fails if a seed belongs to another cluster than this node, which is the only member of its
    /// own: the seeds show that the node was meant to join theirs. A node of the declared cluster
    /// may belong to another one that has no leader: to that before `latchfs cluster recover`.
    pub(in crate::raft) async fn refuse_strangers(
        &self,
        caller: &Arc<RpcIdentity>,
    ) -> Result<(), DataError> {
        let nobody = Arc::new(RpcIdentity::nobody(Some(self.tls.clone()), self.name.clone()));
        for seed in &self.seeds {
            let status = RpcRequest::Status(false);
            let response = caller.line(ANYBODY, seed).call(status.clone(), SEED_PATIENCE).await;
            let Err(RpcFailure::Turned(RpcError::OtherCluster)) = response else { continue };
            if self.initial.contains(seed) {
                let response = nobody.line(ANYBODY, seed).call(status, SEED_PATIENCE).await;
                if matches!(response, Ok(RpcResponse::Status(member)) if member.leader.is_none()) {
                    continue;
                }
            }
            return Err(PeerError::Settled(seed.clone()).into());
        }
        Ok(())
    }

    fn not_joined(&self, why: &str) -> DataError {
        PeerError::Join { seeds: self.seeds.join(", "), why: why.to_owned() }.into()
    }
}

/// Calls the nodes at `addresses`, and the leaders that they name, until the leader answers. The
/// leader may receive the call more than once. Nodes of another cluster are passed over, unless no
/// other node answers.
pub(in crate::raft) async fn ask_leader(
    caller: &Arc<RpcIdentity>,
    addresses: &[String],
    call: &RpcRequest,
    patience: Span,
) -> Result<RpcResponse, RpcFailure> {
    let until = steady_now() + patience;
    let (mut has_stranger, mut has_own) = (false, false);
    loop {
        let mut last = None;
        let mut ways: VecDeque<String> = addresses.iter().cloned().collect();
        // Redirects are limited: a node that has just lost its leader may name the previous one.
        let mut hints_left = addresses.len() + 1;
        while let Some(address) = ways.pop_front() {
            let mut line: RpcConnection = caller.line(ANYBODY, &address);
            match line.call(call.clone(), SEED_PATIENCE).await {
                Ok(response) => return Ok(response),
                Err(RpcFailure::Turned(RpcError::NotLeader(Some(leader)))) if hints_left > 0 => {
                    hints_left -= 1;
                    ways.push_front(leader.to_string());
                }
                Err(failure @ RpcFailure::Turned(RpcError::Refused(_) | RpcError::Removed)) => {
                    return Err(failure);
                }
                Err(RpcFailure::Turned(RpcError::OtherCluster)) => has_stranger = true,
                Err(failure) => {
                    has_own |= matches!(failure, RpcFailure::Turned(_));
                    log::info!("{address}: {}", said(&failure));
                    last = Some(failure);
                }
            }
        }
        let is_over = steady_now() >= until;
        if has_stranger && !has_own && (is_over || last.is_none()) {
            return Err(RpcFailure::Turned(RpcError::OtherCluster));
        }
        if is_over {
            let nobody = || RpcFailure::Unsent("there is nobody to ask".to_owned());
            return Err(last.unwrap_or_else(nobody));
        }
        sleep(jittered(JOIN_PAUSE).as_duration()).await;
    }
}

/// The record of a node that has not answered for this long is deleted.
const FORGET_AFTER: Span = Span::from_secs(24 * 3_600);
/// The interval at which the file is written if only the times have changed.
const WRITE_EVERY: Span = Span::from_secs(600);
/// The highest number of nodes in the file: more than a cluster ever has.
const NODES_MAX: usize = 64;

/// The addresses at which other nodes were last reached.
pub(in crate::raft) struct PeerStore {
    path: PathBuf,
    cluster: ClusterId,
    pages: BTreeMap<NodeId, PeerRecord>,
    written: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PeerRecord {
    station: NodeAddress,
    /// When the node last answered, on the boot clock.
    seen: Time,
}

impl PeerStore {
    /// Reads `peers.json` in a data directory. Every node in it counts as seen now. An unreadable
    /// file counts as empty: the addresses are also in the log, and in the seeds.
    pub(in crate::raft) fn open(dir: &Path, cluster: ClusterId, now: Time) -> Self {
        let path = dir.join("peers.json");
        let pages = match fs::read(&path) {
            Ok(bytes) => read(&bytes, cluster, now).unwrap_or_else(|| {
                log::warn!("{} can't be understood, and is begun anew", path.display());
                BTreeMap::new()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    log::warn!("{}: {}", path.display(), said(&error));
                }
                BTreeMap::new()
            }
        };
        Self { path, cluster, pages, written: None }
    }

    /// Returns the peer addresses of all stored nodes.
    pub(in crate::raft) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.pages.values().map(|page| &*page.station.address)
    }

    /// Notes that a node has answered at this address.
    pub(in crate::raft) fn see(&mut self, id: NodeId, station: NodeAddress, now: Time) {
        let is_known = self.pages.get(&id).is_some_and(|page| page.station == station);
        if is_known || self.pages.len() < NODES_MAX || self.pages.contains_key(&id) {
            self.pages.insert(id, PeerRecord { station, seen: now });
        }
        if !is_known {
            self.written = None;
        }
    }

    /// Deletes the records of nodes that have not answered for long, and writes the file if a
    /// record has changed or a write is due.
    pub(in crate::raft) fn keep(&mut self, now: Time) {
        let before = self.pages.len();
        self.pages.retain(|_, page| now.since(page.seen) < FORGET_AFTER);
        let is_due = self.written.is_none_or(|at| now.since(at) >= WRITE_EVERY);
        if before == self.pages.len() && !is_due {
            return;
        }
        self.written = Some(now);
        let text = format!("{:#}\n", self.to_json(now, Wall::now()));
        if let Err(error) = replace(&self.path, &[text.as_bytes()], Durable::Yes) {
            // The file is only a hint, so an error is not fatal.
            log::warn!("{}: {}", self.path.display(), said(&error));
        }
    }

    fn to_json(&self, now: Time, wall: Wall) -> Value {
        let page = |(id, page): (&NodeId, &PeerRecord)| {
            let ago = i64::try_from(now.since(page.seen).as_millis() / 1_000).unwrap_or(i64::MAX);
            json!({
                "id": id,
                "name": &*page.station.name,
                "address": &*page.station.address,
                "url": &*page.station.url,
                "last_seen": wall.secs.saturating_sub(ago),
            })
        };
        let peers: Vec<_> = self.pages.iter().map(page).collect();
        json!({ "cluster": self.cluster.to_string(), "peers": peers })
    }
}

fn read(bytes: &[u8], cluster: ClusterId, now: Time) -> Option<BTreeMap<NodeId, PeerRecord>> {
    let book: Value = serde_json::from_slice(bytes).ok()?;
    if book["cluster"] != cluster.to_string() {
        return None;
    }
    let page = |page: &Value| {
        let text = |field: &str| page[field].as_str();
        let station = NodeAddress::new(text("address")?, text("url")?, text("name")?)?;
        Some((page["id"].as_u64()?, PeerRecord { station, seen: now }))
    };
    book["peers"].as_array()?.iter().take(NODES_MAX).map(page).collect()
}

/// How long all calls to a node must fail before a line says so.
const PATIENCE: Span = Span::from_secs(2);

/// The calls to each other node, successful or not.
#[derive(Debug, Default)]
pub(in crate::raft) struct PeerContacts(Mutex<BTreeMap<NodeId, PeerContact>>);

#[derive(Debug, Default)]
struct PeerContact {
    /// Since when calls have failed, if the last one has.
    fails_since: Option<Time>,
    is_lost: bool,
}

/// A change of the contact to another node.
#[derive(Debug, PartialEq, Eq)]
enum ContactChange {
    Lost,
    Back,
}

impl PeerContacts {
    /// Records the result of a call to a node. Logs the loss and the return of the contact.
    pub(in crate::raft) fn called(&self, node: NodeId, failure: Option<&str>) {
        match self.record(node, failure.is_some(), boot_now()) {
            Some(ContactChange::Lost) => log::warn!(node, reason = failure; "peer connection lost"),
            Some(ContactChange::Back) => log::info!(node; "peer connection restored"),
            None => {}
        }
    }

    fn record(&self, node: NodeId, is_failed: bool, now: Time) -> Option<ContactChange> {
        let mut contacts = self.0.lock();
        let contact = contacts.entry(node).or_default();
        if !is_failed {
            contact.fails_since = None;
            return std::mem::take(&mut contact.is_lost).then_some(ContactChange::Back);
        }
        let since = *contact.fails_since.get_or_insert(now);
        if contact.is_lost || now.since(since) < PATIENCE {
            return None;
        }
        contact.is_lost = true;
        Some(ContactChange::Lost)
    }

    /// Forgets nodes that are no members any more.
    pub(in crate::raft) fn keep(&self, is_member: impl Fn(NodeId) -> bool) {
        self.0.lock().retain(|node, _| is_member(*node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(n: u64) -> NodeAddress {
        NodeAddress::new(&format!("10.0.0.{n}:7100"), "http://x:1", "box").expect("sound")
    }

    #[test]
    fn a_node_is_remembered_for_a_day() {
        let dir = std::env::temp_dir().join(format!("latchfs-book-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("the temporary directory can be written");
        let (cluster, hour) = (ClusterId(7), |n: u64| Time::from_secs(n * 3_600));
        let mut book = PeerStore::open(&dir, cluster, hour(1));
        book.see(3, station(3), hour(1));
        book.see(5, station(5), hour(20));
        book.keep(hour(20));
        // Opening the file counts as having seen all nodes in it, so node 3 is not dropped,
        // although it was last seen long ago.
        let mut reread = PeerStore::open(&dir, cluster, hour(30));
        assert_eq!(reread.addresses().collect::<Vec<_>>(), ["10.0.0.3:7100", "10.0.0.5:7100"]);
        reread.see(5, station(6), hour(40));
        reread.keep(hour(54));
        assert_eq!(reread.addresses().collect::<Vec<_>>(), ["10.0.0.6:7100"]);
        let last = PeerStore::open(&dir, cluster, hour(55));
        assert_eq!(last.addresses().count(), 1);
        // The file of another cluster counts as empty.
        assert_eq!(PeerStore::open(&dir, ClusterId(8), hour(55)).addresses().count(), 0);
        fs::write(dir.join("peers.json"), "{").expect("it can be written");
        assert_eq!(PeerStore::open(&dir, cluster, hour(55)).addresses().count(), 0);
        let _ = fs::remove_dir_all(&dir);
    }

    #[test]
    fn the_number_of_nodes_is_limited() {
        let dir = std::env::temp_dir().join(format!("latchfs-nodes-{}", std::process::id()));
        let mut book = PeerStore::open(&dir, ClusterId(7), Time::ZERO);
        for id in 0..=NODES_MAX as NodeId {
            book.see(id, station(id), Time::ZERO);
        }
        assert_eq!(book.addresses().count(), NODES_MAX);
        let mut text = book.to_json(Time::ZERO, Wall::now());
        let last = text["peers"][0].clone();
        text["peers"].as_array_mut().expect("a list").push(last);
        let reread = read(text.to_string().as_bytes(), ClusterId(7), Time::ZERO);
        assert_eq!(reread.map(|pages| pages.len()), Some(NODES_MAX));
    }
}

#[cfg(test)]
mod peer_contacts_tests {
    use super::*;

    #[test]
    fn lost_peer_is_reported_once_and_its_return_once() {
        let contacts = PeerContacts::default();
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        assert_eq!(contacts.record(2, true, at(0)), None);
        assert_eq!(contacts.record(2, false, at(10)), None, "one lost call is no loss");
        let changes: Vec<_> =
            (0..100).filter_map(|n| contacts.record(2, true, at(1_000 + 100 * n))).collect();
        assert_eq!(changes, [ContactChange::Lost]);
        assert_eq!(contacts.record(2, false, at(20_000)), Some(ContactChange::Back));
        assert_eq!(contacts.record(2, false, at(20_001)), None);
        contacts.keep(|_| false);
        assert!(contacts.0.lock().is_empty());
    }
}
