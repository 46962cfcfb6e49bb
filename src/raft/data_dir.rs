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
//! lock       locked (flock) by the daemon that uses this directory
//! ```
//!
//! A node whose stage is "begun" but whose log is missing has lost its votes and acknowledged
//! entries. If it took part again it could break Raft's guarantees, so it refuses to start.

use super::data_dir_error::DataError;
use super::types::{ClusterId, NodeId};
use crate::storage::atomic_file::{Durable, make_dir, replace, with_sum};
use crate::storage::locked_dir::Role;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

/// The version of the directory. A node that finds another one refuses to start.
const VERSION: u32 = 1;
/// The id of the first node of a cluster. A node that joins later gets the index of a log entry as
/// its id, which is always higher.
pub(super) const FIRST_NODE: NodeId = 1;

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
  lock       locked (flock) by the daemon that uses this directory; holds its process id

Don't edit or copy these files while a daemon runs, and never start two nodes from one copy.
";

/// An open data directory, locked against other processes.
#[derive(Debug)]
pub(super) struct Data {
    path: PathBuf,
    pub(super) identity: Identity,
    /// The file that holds the flock of the directory: closing it releases the lock.
    _lock: File,
}

/// The persistent identity of a node, as stored in the file `node`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) stage: NodeStage,
}

/// The stage in the life of a node: it decides whether the node may start, and whether a log must
/// exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeStage {
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
    pub(super) fn open(
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
            None => settle(&path, begin()?)?,
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

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the log directory.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Returns the path of the snapshot.
    pub(super) fn snapshot(&self) -> PathBuf {
        self.path.join("snapshot")
    }

    /// Records that the node may have voted or acknowledged an entry: from now on it does not start
    /// without its log.
    pub(super) fn has_begun(&mut self) -> Result<(), DataError> {
        if self.identity.stage == NodeStage::New {
            self.enter(NodeStage::Begun)?;
        }
        Ok(())
    }

    /// Records that the cluster has removed this node: it never starts again.
    pub(super) fn is_removed(&mut self) -> Result<(), DataError> {
        self.enter(NodeStage::Removed)
    }

    fn enter(&mut self, stage: NodeStage) -> Result<(), DataError> {
        write_identity(&self.path, Identity { stage, ..self.identity })?;
        self.identity.stage = stage;
        Ok(())
    }
}

/// Returns the ids of a new cluster and of its first node.
pub(super) fn first() -> (ClusterId, NodeId) {
    // `RandomState` has random keys, so its hashes are random enough for an id.
    let random = |n: u64| u128::from(RandomState::new().hash_one(n));
    (ClusterId(random(1) << 64 | random(2)), FIRST_NODE)
}

/// Stores the identity of a new node in its directory.
fn settle(path: &Path, (cluster, node): (ClusterId, NodeId)) -> Result<Identity, DataError> {
    let identity = Identity { cluster, node, stage: NodeStage::New };
    write_identity(path, identity)?;
    // The README is only for human readers, so an error is ignored.
    let _ = fs::write(path.join("README"), README);
    Ok(identity)
}

/// Returns the content of the file `node`: readable text with a checksum.
fn identity_text(Identity { cluster, node, stage }: Identity) -> String {
    let stage = stage.as_str();
    let text = format!("latchfs data {VERSION}\ncluster {cluster}\nnode {node}\nstage {stage}\n");
    with_sum(&text)
}

/// Returns the bytes of the file `node` of a node that has begun, for a fixture.
#[cfg(test)]
pub(super) fn node_file(cluster: ClusterId, node: NodeId) -> Vec<u8> {
    identity_text(Identity { cluster, node, stage: NodeStage::Begun }).into_bytes()
}

fn write_identity(path: &Path, identity: Identity) -> Result<(), DataError> {
    let file = path.join("node");
    let written = replace(&file, &[identity_text(identity).as_bytes()], Durable::Yes);
    written.map(drop).map_err(|error| DataError::io(&file, error))
}

fn read_identity(path: &Path) -> Result<Option<Identity>, DataError> {
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

fn parse_identity(text: &str) -> Option<Identity> {
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let cluster = ClusterId(u128::from_str_radix(field("cluster")?, 16).ok()?);
    let stages = [NodeStage::New, NodeStage::Begun, NodeStage::Removed];
    let stage = stages.into_iter().find(|stage| Some(stage.as_str()) == field("stage"))?;
    let identity = Identity { cluster, node: field("node")?.parse().ok()?, stage };
    // Each identity has exactly one encoding. So the comparison of the text with the encoding of
    // the parsed identity checks the checksum and every space.
    (identity_text(identity) == text).then_some(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_read_back_and_a_changed_text_is_rejected() {
        let identity = Identity { cluster: ClusterId(7), node: 12, stage: NodeStage::Begun };
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
