//! The configuration of a mount.

use crate::engine::{ClientId, Grace, Ttl};
pub use crate::fuse::kernel::mount_users::Users;
use crate::shares::SharePercent;
use std::path::PathBuf;

/// The configuration of one mount.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// The mount point.
    pub dir: PathBuf,
    /// The host part of every client of this mount.
    pub client: ClientId,
    /// How callers are mapped to clients, besides the host.
    pub owner: Owner,
    /// The ttl of a lease unless a program sets one.
    pub ttl: Ttl,
    /// The grace of a lease unless a program sets one.
    pub grace: Grace,
    /// The content that reads of a lock's file return.
    pub content: Content,
    /// The users that the mount serves.
    pub users: Users,
    /// How a lease that a program made by file is kept alive.
    pub hold: HoldBy,
    /// Whether to mount on a directory that has entries, without sealing it.
    pub nonempty: bool,
    /// The part of the engine's locks, queues and sessions that one user may take.
    pub share: SharePercent,
}

/// How callers are mapped to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// One client for all users: the host.
    Host,
    /// One client per user.
    User,
    /// One client per user and login session.
    Session,
}

/// The content that `cat NAME` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The status as JSON.
    Status,
    /// The text that was written to the file, always.
    Note,
}

/// How a lease that a program made by file is kept alive, unless the program says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldBy {
    /// The program renews the lease.
    Renewal,
    /// The mount renews the lease for as long as the leader of the login session in which it was
    /// made lives.
    Session,
}
