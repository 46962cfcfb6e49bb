//! Mounting and unmounting.

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

/// Whom the mount serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Who mounted it.
    Mounter,
    /// Everybody.
    All,
}
