//! The data directory of a node: its lock, and the identity of the node.
//!
//! ```text
//! node       the ids of the cluster and of this node, and its stage (new, begun, removed)
//! log/       the Raft log
//! snapshot   the state of the engine at one entry of the log
//! cluster-name the name of the cluster, if it has one
//! peers.json the last known addresses of other nodes: only a hint
//! audit.log  administrative actions such as a steal: the actor, the lock and the reason
//! expired.log leases that have expired, and the clients that took over
//! refused.log callers whose requests were refused, and how many
//! home/      the certificate authority of a server that machines join, and their list
//! socket     the Unix socket of such a server
//! lock       locked (flock) by the daemon that uses this directory
//! ```
//!
//! A node whose stage is "begun" but whose log is missing has lost its votes and acknowledged
//! entries. If it took part again it could break Raft's guarantees, so it refuses to start.
//!
//! The errors that keep a node from starting or running, and their messages: an unusable data
//! directory, a fatal error later on, and a peer configuration that can't work.
//!
//! Records the first fatal disk error of a node. Later errors are not recorded, and nothing is
//! retried.

use crate::base::said;
use crate::net::certificates::PemError;
use crate::raft::store::snapshot::{ClusterId, NodeId};
use crate::storage::atomic_file::{Durable, make_dir, replace, with_sum};
use crate::storage::locked_dir::{DirLock, LockedDirError, Role};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{error, fmt, fs, io};

/// The version of the directory. A node that finds another one refuses to start.
const VERSION: u32 = 1;
/// The id of the first node of a cluster. A node that joins later gets the index of a log entry as
/// its id, which is always higher.
pub(in crate::raft) const FIRST_NODE: NodeId = 1;

/// The contents of the file `README` in the directory.
const README: &str = "\
This is the data of a latchfs node: all that it has promised, on the disk before it was said.

  node       which cluster and node this is
  log/       what was decided, in order
  snapshot   all locks at one entry of the log
  cluster-name the name of the cluster, if it has one
  peers.json where other nodes were found
  audit.log  who took a live lock away from whom, and why
  audit.head the last line of audit.log, so that a cut end is found
  expired.log which leases expired, and who took their locks over
  refused.log whose requests were refused, and how many
  home/      the certificate authority of 'serve --home', and the machines that have joined
  socket     where root and the server's user invite machines, while 'serve --home' runs
  lock       locked (flock) by the daemon that uses this directory; holds its process id

Don't edit or copy these files while a daemon runs, and never start two nodes from one copy.
";

/// An open data directory, locked against other processes.
#[derive(Debug)]
pub(in crate::raft) struct Data {
    path: PathBuf,
    pub(in crate::raft) identity: NodeIdentity,
    _lock: DirLock,
}

/// The persistent identity of a node, as stored in the file `node`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::raft) struct NodeIdentity {
    pub(in crate::raft) cluster: ClusterId,
    pub(in crate::raft) node: NodeId,
    pub(in crate::raft) stage: NodeStage,
}

/// The stage in the life of a node: it decides whether the node may start, and whether a log must
/// exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::raft) enum NodeStage {
    /// The node has not voted or acknowledged an entry yet, so it may start without a log.
    New,
    /// The node may have voted or acknowledged an entry, so it must not start without its log.
    Begun,
    /// The cluster has removed this node from its membership, so it never starts again.
    Removed,
}

impl NodeStage {
    const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Begun => "begun",
            Self::Removed => "removed",
        }
    }
}

impl Data {
    /// Opens and locks the directory, and reads the identity of its node. A missing or empty
    /// directory becomes that of a new node, with the ids that `begin` returns.
    pub(in crate::raft) fn open(
        path: &Path,
        begin: impl FnOnce() -> Result<(ClusterId, NodeId), DataError>,
    ) -> Result<Self, DataError> {
        let at = |error| DataError::io(path, error);
        match fs::metadata(path) {
            Ok(found) if !found.is_dir() => return Err(Role::Data.not_a_directory(path).into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_dir(path).map_err(at)?,
            Err(error) => return Err(at(error)),
        }
        let (path, lock) = Role::Data.take(path)?;
        for foreign in ["tokens", "journal.1"].map(|name| path.join(name)) {
            if foreign.exists() {
                return Err(DataError::Foreign(foreign));
            }
        }
        let identity = match read_identity(&path)? {
            Some(identity) => identity,
            None if path.join("log").exists() => return Err(DataError::Missing(path.join("node"))),
            None => {
                let (cluster, node) = begin()?;
                settle(&path, cluster, node)?
            }
        };
        if identity.stage == NodeStage::Removed {
            return Err(DataError::Removed(path));
        }
        let data = Self { path, identity, _lock: lock };
        let log = data.log();
        if !log.exists() {
            if identity.stage != NodeStage::New {
                return Err(DataError::Missing(log));
            }
            make_dir(&log).map_err(|error| DataError::io(&log, error))?;
        }
        Ok(data)
    }

    pub(in crate::raft) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the log directory.
    pub(in crate::raft) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Returns the path of the snapshot.
    pub(in crate::raft) fn snapshot(&self) -> PathBuf {
        self.path.join("snapshot")
    }

    /// Records that the node may have voted or acknowledged an entry: from now on it does not start
    /// without its log.
    pub(in crate::raft) fn has_begun(&mut self) -> Result<(), DataError> {
        if self.identity.stage == NodeStage::New {
            self.enter(NodeStage::Begun)?;
        }
        Ok(())
    }

    /// Records that the cluster has removed this node: it never starts again.
    pub(in crate::raft) fn is_removed(&mut self) -> Result<(), DataError> {
        self.enter(NodeStage::Removed)
    }

    fn enter(&mut self, stage: NodeStage) -> Result<(), DataError> {
        write_identity(&self.path, NodeIdentity { stage, ..self.identity })?;
        self.identity.stage = stage;
        Ok(())
    }
}

/// Returns the ids of a new cluster and of its first node.
pub(in crate::raft) fn first() -> (ClusterId, NodeId) {
    // `RandomState` has random keys, so its hashes are random enough for an id.
    let random = |n: u64| u128::from(RandomState::new().hash_one(n));
    (ClusterId(random(1) << 64 | random(2)), FIRST_NODE)
}

/// Stores the identity of a new node in its directory.
fn settle(path: &Path, cluster: ClusterId, node: NodeId) -> Result<NodeIdentity, DataError> {
    let identity = NodeIdentity { cluster, node, stage: NodeStage::New };
    write_identity(path, identity)?;
    // The README is only for human readers, so an error is ignored.
    let _ = fs::write(path.join("README"), README);
    Ok(identity)
}

/// Returns the content of the file `node`: readable text with a checksum.
fn identity_text(NodeIdentity { cluster, node, stage }: NodeIdentity) -> String {
    let stage = stage.as_str();
    let text = format!("latchfs data {VERSION}\ncluster {cluster}\nnode {node}\nstage {stage}\n");
    with_sum(&text)
}

fn write_identity(path: &Path, identity: NodeIdentity) -> Result<(), DataError> {
    let file = path.join("node");
    let written = replace(&file, &[identity_text(identity).as_bytes()], Durable::Yes);
    written.map(drop).map_err(|error| DataError::io(&file, error))
}

fn read_identity(path: &Path) -> Result<Option<NodeIdentity>, DataError> {
    let file = path.join("node");
    let text = match fs::read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::io(&file, error)),
    };
    let text = String::from_utf8(text).unwrap_or_default();
    let version = text.lines().next().and_then(|line| line.strip_prefix("latchfs data "));
    match version.and_then(|version| version.parse::<u32>().ok()) {
        Some(version) if version != VERSION => {
            let why = format!("it has version {version}, and this latchfs knows version {VERSION}");
            return Err(DataError::OtherVersion { file, why });
        }
        _ => {}
    }
    let identity = parse_identity(&text);
    identity.map(Some).ok_or_else(|| DataError::damaged(&file, "it has the wrong sum"))
}

fn parse_identity(text: &str) -> Option<NodeIdentity> {
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let cluster = ClusterId(u128::from_str_radix(field("cluster")?, 16).ok()?);
    let stages = [NodeStage::New, NodeStage::Begun, NodeStage::Removed];
    let stage = stages.into_iter().find(|stage| Some(stage.as_str()) == field("stage"))?;
    let identity = NodeIdentity { cluster, node: field("node")?.parse().ok()?, stage };
    // Each identity has exactly one encoding. So the comparison of the text with the encoding of
    // the parsed identity checks the checksum and every space.
    (identity_text(identity) == text).then_some(identity)
}

/// An error that keeps a node from starting with its data directory.
#[derive(Debug)]
pub enum DataError {
    /// The directory can't be locked, read or written.
    Place(LockedDirError),
    /// The directory contains a file that belongs to another kind of directory, such as the
    /// journal of a node without Raft.
    Foreign(PathBuf),
    /// The directory in which a new cluster is to begin contains something.
    NotEmpty(PathBuf),
    /// A file is damaged: its checksum is wrong, or it can't be decoded.
    Damaged {
        /// The path of the damaged file, or the log directory.
        file: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// A file or directory that must be there is missing.
    Missing(PathBuf),
    /// A file has a version that this latchfs does not know.
    OtherVersion {
        /// The path of the file, or the log directory.
        file: PathBuf,
        /// A message with the version found and the one supported.
        why: String,
    },
    /// Raft stopped before the node had started: the data directory, and the cause.
    Stopped(PathBuf, String),
    /// The cluster has removed the node of this directory from its membership.
    Removed(PathBuf),
    /// The node can't communicate with other nodes.
    Peers(PeerError),
}

impl DataError {
    /// Wraps an error of the operating system about `path`.
    pub(in crate::raft) fn io(path: &Path, error: io::Error) -> Self {
        Role::Data.io(path, error).into()
    }

    /// Wraps an error of the log about its directory: another version, damage, or an error
    /// of the operating system.
    pub(in crate::raft) fn of_log(dir: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::Unsupported => {
                Self::OtherVersion { file: dir.to_path_buf(), why: error.to_string() }
            }
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::Other => {
                Self::damaged(dir, error.to_string())
            }
            _ => Self::io(dir, error),
        }
    }

    pub(in crate::raft) fn damaged(file: &Path, why: impl Into<String>) -> Self {
        Self::Damaged { file: file.to_path_buf(), why: why.into() }
    }
}

/// The advice in a message about lost or damaged data.
const BEGIN_ANEW: &str = "put back a backup of the whole directory; or move the directory away and \
    begin with an empty one, and know that no lock is held then; its tokens are higher, unless the \
    clock was set back";

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(error) => error.fmt(f),
            Self::Foreign(path) => write!(
                f,
                "{} is there, so this is no data directory; name an empty one with --data DIR; the \
                 locks of a state directory stay where they are, and 'latchfs mount --state DIR' \
                 finds them",
                path.display()
            ),
            Self::NotEmpty(path) => write!(
                f,
                "{} is not empty, and a new cluster begins in an empty directory; name another \
                 one, or remove this one if an earlier attempt has left it and no server was \
                 started with it",
                path.display()
            ),
            Self::Damaged { file, why } => {
                write!(f, "{} is damaged: {why}; {BEGIN_ANEW}", file.display())
            }
            Self::Missing(file) => write!(f, "{} is missing; {BEGIN_ANEW}", file.display()),
            Self::OtherVersion { file, why } => write!(
                f,
                "{} was written by another version of latchfs: {why}; start that one, or name \
                 another data directory with --data DIR",
                file.display()
            ),
            Self::Stopped(path, why) => write!(
                f,
                "the node in {} stopped before it could begin: {why}; mend that, and start again",
                path.display()
            ),
            Self::Removed(path) => write!(
                f,
                "the node in {} was removed from its cluster, or 'latchfs cluster recover' has \
                 begun a new cluster with its data, so it never takes part again; move the \
                 directory away, and join as a new node with --seed",
                path.display()
            ),
            Self::Peers(error) => error.fmt(f),
        }
    }
}

impl From<LockedDirError> for DataError {
    fn from(error: LockedDirError) -> Self {
        Self::Place(error)
    }
}

/// The reason for which a running node stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The node can't write its log.
    Log(Arc<str>),
    /// The cluster has removed this node from its membership.
    Removed,
    /// The nodes that this node has reached belong to another cluster. The text is the error with
    /// which one of them answered.
    Stranger(Arc<str>),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(why) => write!(
                f,
                "{why}; nothing more is decided, and the daemon ends; what was answered is in the \
                 log; mend the disk or make room, and start it again"
            ),
            Self::Removed => write!(
                f,
                "this node was removed from its cluster, and ends; to take part again, move its \
                 data directory away, and join as a new node with --seed"
            ),
            Self::Stranger(why) => write!(
                f,
                "the nodes that this one was told of don't know it ({why}), and it ends; see that \
                 --seed and --data are those of one cluster"
            ),
        }
    }
}

/// A peer configuration with which a node can't communicate with other nodes.
#[derive(Debug)]
pub enum PeerError {
    /// A certificate, key or secret file can't be used: its path, and the cause.
    File(PathBuf, String),
    /// The node can't listen on this address.
    Listen(SocketAddr, io::Error),
    /// The node would listen on this address without peer credentials, so any host that reaches
    /// it could act as a node.
    Open(SocketAddr),
    /// Other nodes can't use this text as the address of a node.
    Address(String),
    /// None of the seed nodes let this node join.
    Join {
        /// The addresses of the seed nodes that were tried.
        seeds: String,
        /// The error of the last seed node that was tried.
        why: String,
    },
    /// The declared cluster does not have the address of this node, or no other address.
    Unlisted {
        /// The address of this node for others.
        address: String,
        /// The addresses of the declared cluster.
        initial: String,
    },
    /// Another node is declared with other addresses than this one.
    Declared {
        /// The address of the other node.
        address: String,
        /// The addresses with which the other node was started.
        other: String,
        /// The addresses with which this node was started.
        declared: String,
    },
    /// The data directory is of a cluster with another name.
    Named {
        /// The data directory.
        dir: PathBuf,
        /// The name of the cluster of the directory.
        name: String,
        /// The name that the node was started with.
        given: String,
    },
    /// The data directory is empty, and no seed node was named.
    Nobody(PathBuf),
    /// The seed node at this address belongs to another cluster than the data directory.
    Settled(String),
    /// The cluster has other nodes, and no address to listen for them was configured.
    Deaf,
}

impl From<PemError> for PeerError {
    fn from(error: PemError) -> Self {
        Self::File(error.path, error.why)
    }
}

impl From<PeerError> for DataError {
    fn from(error: PeerError) -> Self {
        Self::Peers(error)
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Listen(address, error) => write!(
                f,
                "can't listen for other nodes on {address}: {}; name another address by \
                 --peer-listen",
                said(error)
            ),
            Self::Open(address) => write!(
                f,
                "whoever reaches {address} could act as a node: say who may be one by \
                 --peer-secret-file FILE, made by 'latchfs cert secret' and copied to all nodes, \
                 or by --peer-cert, --peer-key and --peer-ca"
            ),
            Self::Address(address) => write!(
                f,
                "'{address}' is no address that other nodes can use; write HOST:PORT, by \
                 --peer-address if it is not that of --peer-listen"
            ),
            Self::Join { seeds, why } => write!(
                f,
                "no node at {seeds} lets this one join ({why}); see whether they run with \
                 --peer-listen and can be reached, and start again"
            ),
            Self::Unlisted { address, initial } => write!(
                f,
                "--initial-cluster {initial} must name all nodes, this one, which others find at \
                 {address}, and at least one other; write the same address in both, by \
                 --peer-address if it is not that of --peer-listen"
            ),
            Self::Declared { address, other, declared } => write!(
                f,
                "the node at {address} was started with --initial-cluster {other}, and this one \
                 with {declared}; give all nodes the same addresses"
            ),
            Self::Named { dir, name, given } => write!(
                f,
                "the data directory {} is of the cluster '{name}', and --cluster-name says \
                 '{given}'; name the directory of that cluster by --data, or its name",
                dir.display()
            ),
            Self::Nobody(path) => write!(
                f,
                "the data directory {} is empty, and it is not said whom to join; name a node of \
                 the cluster by --seed HOST:PORT, or, to begin a new cluster, all of its nodes by \
                 --initial-cluster",
                path.display()
            ),
            Self::Settled(seed) => write!(
                f,
                "the node at {seed} is of another cluster than this data directory, which has \
                 begun one of its own; name an empty directory by --data to join, or start it \
                 without {seed} in --seed and --initial-cluster"
            ),
            Self::Deaf => write!(
                f,
                "this node has others to speak with; say where it is to listen for them by \
                 --peer-listen"
            ),
        }
    }
}

impl error::Error for PeerError {}

impl error::Error for DataError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Place(error) => error.source(),
            _ => None,
        }
    }
}

/// Holds the first fatal disk error. Clones share it.
#[derive(Clone, Default)]
pub struct FatalError(Arc<Mutex<Option<Arc<str>>>>);

impl FatalError {
    /// Records `error`, which occurred while doing `what`, unless an earlier one is recorded.
    /// Returns `error` unchanged.
    pub(in crate::raft) fn note(&self, what: &str, error: io::Error) -> io::Error {
        let mut first = self.0.lock();
        if first.is_none() {
            *first = Some(format!("{what}: {}", said(&error)).into());
        }
        error
    }

    /// Returns the message of the first error, if any.
    pub(in crate::raft) fn first(&self) -> Option<Arc<str>> {
        self.0.lock().clone()
    }
}

/// Returns the bytes of the file `node` of a node that has begun, for a fixture.
#[cfg(test)]
pub(in crate::raft) fn node_file(cluster: ClusterId, node: NodeId) -> Vec<u8> {
    identity_text(NodeIdentity { cluster, node, stage: NodeStage::Begun }).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_read_back_and_a_changed_text_is_rejected() {
        let identity = NodeIdentity { cluster: ClusterId(7), node: 12, stage: NodeStage::Begun };
        let text = identity_text(identity);
        assert_eq!(parse_identity(&text), Some(identity));
        for at in 0..text.len() {
            assert_eq!(parse_identity(&text[..at]), None, "cut at {at}");
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).expect("ASCII");
            assert_eq!(parse_identity(&changed), None, "{changed}");
        }
    }
}
