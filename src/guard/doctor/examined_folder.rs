//! A guarded folder, with what its guard and the lock service say of it.

use super::super::barrier::handover::PreviousTenure;
use super::super::barrier_store::ignore_files::ToolPatterns;
use super::super::disk::Disk;
use super::super::write_policy::PathPatterns;
use crate::time::Wall;

/// The last tenure as the lock service remembers it, and the engine that decides.
#[derive(Debug)]
pub(crate) struct KnownTenures {
    pub(crate) engine: u64,
    pub(crate) previous: PreviousTenure,
    /// Whether a client holds the lock.
    pub(crate) is_held: bool,
}

/// The directories and facts that are examined.
pub(crate) struct ExaminedFolder<'a, D: Disk> {
    pub(crate) disk: &'a D,
    /// How the folder is named in sentences.
    pub(crate) shown: String,
    /// The id of the folder.
    pub(crate) id: &'a str,
    /// The name of this machine.
    pub(crate) client: &'a str,
    pub(crate) folder: D::Dir,
    /// The directory of this machine in the state directory; `None` if no guard has made it yet.
    pub(crate) host: Option<D::Dir>,
    pub(crate) stages: Option<D::Dir>,
    pub(crate) lost: Option<D::Dir>,
    pub(crate) snapshots: Option<D::Dir>,
    /// Whether the guard that runs takes, restores or removes a snapshot at this moment.
    pub(crate) changes_snapshots: &'a dyn Fn() -> bool,
    /// The token of the tenure of the guard that runs.
    pub(crate) tenure: Option<u64>,
    /// Whether a guard of this machine runs for the folder.
    pub(crate) is_guarded: bool,
    /// Whether machines share the storage, and the state directory as well.
    pub(crate) is_shared: bool,
    /// The patterns of files that belong to this machine.
    pub(crate) local: PathPatterns,
    /// The ignore patterns of the sync tool of this machine.
    pub(crate) tool: ToolPatterns,
    /// What the lock service says, if other machines have copies of the folder.
    pub(crate) known: Option<KnownTenures>,
    pub(crate) now: Wall,
}
