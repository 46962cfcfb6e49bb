//! The users of this machine that a mount serves.

/// The users that the mount serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// The user who mounted it.
    Mounter,
    /// Everybody.
    All,
}
