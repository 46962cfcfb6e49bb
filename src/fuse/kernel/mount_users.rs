//! The users of this machine that a mount serves.

/// The users who may access the mount (`allow_other` or not).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Only the user who mounted the file system.
    Mounter,
    /// All users of the machine.
    All,
}
