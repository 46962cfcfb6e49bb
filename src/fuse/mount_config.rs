//! How a directory is mounted, and for whom.

use crate::engine::{ClientId, Grace, Ttl};
use std::path::PathBuf;

/// How one directory is mounted.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// The mount point.
    pub dir: PathBuf,
    /// The host part of every client of this mount.
    pub client: ClientId,
    /// What else distinguishes clients.
    pub owner: Owner,
    /// How long a lease lasts unless a program says otherwise.
    pub ttl: Ttl,
    /// How long its grace is.
    pub grace: Grace,
    /// What readers get.
    pub content: Content,
    /// Whether other users may use the mount.
    pub users: Users,
    /// What keeps a lease alive that a program made by file.
    pub hold: HoldBy,
    /// Whether to mount on a directory with entries, and leave it as it is.
    pub nonempty: bool,
}

/// What makes two callers two clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Nothing: the host is the client.
    Host,
    /// The user.
    User,
    /// The user and the login session.
    Session,
}

/// What `cat NAME` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The status as JSON.
    Status,
    /// The text, always.
    Note,
}

/// What keeps a lease alive that a program made by file, unless the program says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldBy {
    /// The program renews it.
    Renewal,
    /// The login session in which it was made, as long as its leader lives.
    Session,
}

/// Whom the mount serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Who mounted it.
    Mounter,
    /// Everybody.
    All,
}
