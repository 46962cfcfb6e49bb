//! The errors that keep a node from starting or running, and their messages: an unusable data
//! directory, a fatal error later on, and a peer configuration that can't work.

use crate::base::said;
use crate::net::certificates::PemError;
use crate::storage::locked_dir::{PlaceError, Role};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{error, fmt};

/// An error that keeps a node from starting with its data directory.
#[derive(Debug)]
pub enum DataError {
    /// The directory can't be locked, read or written.
    Place(PlaceError),
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
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Role::Data.io(path, error).into()
    }

    /// Wraps an error of the log about its directory: another version, damage, or an error
    /// of the operating system.
    pub(super) fn of_log(dir: &Path, error: io::Error) -> Self {
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

    pub(super) fn damaged(file: &Path, why: impl Into<String>) -> Self {
        Self::Damaged { file: file.to_path_buf(), why: why.into() }
    }
}

/// The advice in a message about lost or damaged data.
const BEGIN_ANEW: &str = "put back a backup of the whole directory; or move the directory away and \
    begin with an empty one, and know that no lock is held then and tokens begin at 1 again";

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(error) => error.fmt(f),
            Self::Foreign(path) => write!(
                f,
                "{} is there, so this is no data directory; if it is a state directory, name it \
                 with --state DIR, else name an empty one with --data DIR",
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

impl From<PlaceError> for DataError {
    fn from(error: PlaceError) -> Self {
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
