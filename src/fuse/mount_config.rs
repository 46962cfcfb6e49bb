//! How a directory is mounted, and for whom.

use crate::engine::{ClientId, Grace, Ttl};
pub use crate::fuse::kernel::mount_users::Users;
use std::path::PathBuf;

/// How one directory is mounted.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// The mount point.
    pub dir: PathBuf,
    /// The host part of every client of this mount.
    pub client: ClientId,
    /// The parts of a caller that distinguish clients, besides the host.
    pub owner: Owner,
    /// How long a lease lasts unless a program says otherwise.
    pub ttl: Ttl,
    /// How long its grace is.
    pub grace: Grace,
    /// The text that readers get.
    pub content: Content,
    /// Whether other users may use the mount.
    pub users: Users,
    /// The means that keeps a lease alive that a program made by file.
    pub hold: HoldBy,
    /// Whether to mount on a directory with entries, and leave it as it is.
    pub nonempty: bool,
}

/// How callers are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Nothing: the host is the client.
    Host,
    /// The user.
    User,
    /// The user and the login session.
    Session,
}

/// The text that `cat NAME` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The status as JSON.
    Status,
    /// The text, always.
    Note,
}

/// The means that keeps a lease alive that a program made by file, unless the program says
/// otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldBy {
    /// The program renews it.
    Renewal,
    /// The login session in which it was made, as long as its leader lives.
    Session,
}
