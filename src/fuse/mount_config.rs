//! The configuration of a mount.

use crate::engine::{ClientId, Grace, Ttl};
use crate::shares::SharePercent;
pub use kernel::machine_facts::Users;
use std::path::PathBuf;

/// The configuration of one mount.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// The mount point.
    pub dir: PathBuf,
    /// The host part of the name of every client of this mount.
    pub client: ClientId,
    /// Which callers are one client, besides the host.
    pub owner: ClientScope,
    /// The ttl of a lease unless a program sets one.
    pub ttl: Ttl,
    /// The grace of a lease unless a program sets one.
    pub grace: Grace,
    /// The content that reads of a lock's file return.
    pub content: ReadContent,
    /// The users that the mount serves.
    pub users: Users,
    /// How the mount keeps a lease alive that a program took by a file operation.
    pub hold: HoldBy,
    /// Whether to mount on a directory that has entries, without sealing it.
    pub nonempty: bool,
    /// The part of the engine's locks, queues and sessions that one user may take.
    pub share: SharePercent,
}

/// How the callers of a mount are mapped to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientScope {
    /// One client for all users: the host.
    Host,
    /// One client per user.
    User,
    /// One client per user and login session.
    Session,
}

/// The content that a read of a lock's file returns, for example by `cat NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadContent {
    /// A read returns the status of the lock as JSON, unless a program has stored content to be
    /// read back.
    Status,
    /// A read always returns the content that programs have written to the file, and never the
    /// status.
    Note,
}

/// How the mount keeps a lease alive that a program took by a file operation, unless the program
/// chooses otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldBy {
    /// The mount does not renew the lease: the program must renew it.
    Renewal,
    /// The mount renews the lease for as long as the leader of the login session lives in which the
    /// lease was taken.
    Session,
}
