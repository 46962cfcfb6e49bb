//! The decision whether the folder is ready: everything that the markers name is here, byte for
//! byte, or somebody must wait or accept.

use super::super::tenure::TenureId;
use super::chain::{self, Chain, ChainBase, ChainError};
use super::comparison::{Comparison, compare};
use super::folder_path::FolderPath;
use super::handover::{Handover, HandoverError, HandoverKind, MarkerCounts, PreviousTenure};
use super::handover::{Remembered, TenureEnd};
use super::ignored::IgnoreRules;
use super::ledger::{Ledger, LedgerUpdate};
use super::marker_files::MarkerFiles;
use super::marker_name::{MarkerKind, MarkerLink};
use super::tree::{DigestCache, FolderTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;

/// All that decides whether the folder is ready, but for the folder itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier<'a> {
    /// What the lock service says about the last tenure.
    pub(crate) previous: &'a PreviousTenure,
    /// The engine that issued the tokens.
    pub(crate) engine: u64,
    /// What this machine knows.
    pub(crate) ledger: &'a Ledger,
    /// The markers that are here.
    pub(crate) markers: &'a MarkerFiles,
    /// Which paths are ignored.
    pub(crate) rules: &'a IgnoreRules,
    /// The wall clock in nanoseconds since 1970: tells content that is still changing.
    pub(crate) now: i128,
}

/// A version, as a message names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionName {
    /// The client that published the version; `None` if its marker is no longer here.
    pub(crate) holder: Option<String>,
    /// The tenure in which it was published.
    pub(crate) tenure: TenureId,
}

impl fmt::Display for VersionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.tenure.token.as_u64();
        match &self.holder {
            Some(holder) => write!(f, "{holder}'s version ({token})"),
            None => write!(f, "the version of tenure {token}"),
        }
    }
}

/// Why a path has not arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MissingBecause {
    /// No file has the path.
    NotHere,
    /// The sync tool keeps a placeholder in place of the content.
    NotDownloaded,
    /// The content is not the wanted one, and was changed in the last seconds.
    Changing,
    /// The file is gone elsewhere, and a known version still stands here.
    NotYetDeleted,
    /// A known other version stands where this one should be.
    Superseded {
        /// The version that stands here.
        stands: VersionName,
        /// The version that should be here; `None` if this machine changed the path and no marker
        /// names it yet.
        wanted: Option<VersionName>,
    },
    /// The content is one that no guard knows.
    Foreign,
    /// The wanted content stands under the name of a conflict copy.
    Overwritten {
        /// The conflict copy.
        copy: FolderPath,
    },
    /// Two files have names that differ by Unicode normalization alone.
    TwoNames,
}

impl fmt::Display for MissingBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHere => f.write_str("is not here yet"),
            Self::NotDownloaded => f.write_str("is not downloaded"),
            Self::Changing => f.write_str("is still being changed"),
            Self::NotYetDeleted => f.write_str("is not deleted yet, which may take a minute"),
            Self::Superseded { stands, wanted: Some(wanted) } => {
                write!(f, "{stands} stands where {wanted} should be")
            }
            Self::Superseded { stands, wanted: None } => {
                write!(f, "{stands} stands where the version of this machine should be")
            }
            Self::Foreign => f.write_str("was changed by a program that is no guard"),
            Self::Overwritten { copy } => {
                write!(f, "was overwritten from elsewhere; '{copy}' has the wanted content")
            }
            Self::TwoNames => f.write_str("has two names that differ by normalization alone"),
        }
    }
}

/// A path that has not arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingPath {
    /// The path.
    pub(crate) path: FolderPath,
    /// Why it has not arrived.
    pub(crate) because: MissingBecause,
    /// The size of the wanted content.
    pub(crate) bytes: u64,
}

/// What has not arrived.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NotArrived {
    /// A marker that is not here. Nothing is known of the paths that it names.
    pub(crate) marker: Option<MarkerLink>,
    /// Whether `.latchfs/ignore` is not the one of the newest marker.
    pub(crate) is_other_ignore: bool,
    /// The first of the paths.
    pub(crate) paths: Vec<MissingPath>,
    /// The number of all paths that have not arrived.
    pub(crate) count: u64,
    /// The bytes of their wanted content.
    pub(crate) bytes: u64,
    /// The number of paths that had to arrive.
    pub(crate) of: u64,
}

impl NotArrived {
    fn of_marker(marker: MarkerLink) -> Self {
        Self { marker: Some(marker), ..Self::default() }
    }

    /// Whether everything has arrived.
    pub(super) fn is_nothing(&self) -> bool {
        self.marker.is_none() && !self.is_other_ignore && self.count == 0
    }
}

/// Why nobody can say what should be here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unsure {
    /// The lock service does not know the folder.
    NoHandover,
    /// The lock service remembers a text that is no handover.
    Damaged(HandoverError),
    /// The lock service was restored, and tenures that came later may be lost.
    Restored,
    /// The last tenure has not said what it changed.
    Dirty {
        /// The client that held the lock.
        client: String,
        /// The last tenure.
        tenure: TenureId,
        /// The least number of the marker that would say so.
        number: u64,
    },
    /// The markers can't be followed.
    Chain(ChainError),
}

impl fmt::Display for Unsure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHandover => f.write_str("the lock service does not know the folder"),
            Self::Damaged(error) => write!(f, "the lock service remembers no handover: {error}"),
            Self::Restored => f.write_str(
                "the lock service was restored, and does not know the changes since its backup",
            ),
            Self::Dirty { client, tenure, .. } => write!(
                f,
                "{client} (token {}) changed the folder, and has not said what it changed",
                tenure.token.as_u64()
            ),
            Self::Chain(error) => error.fmt(f),
        }
    }
}

/// What becomes known when the folder is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// The marker up to which everything is here; `None` if the handover is this machine's own.
    pub(super) top: Option<MarkerLink>,
    /// The last checkpoint at or before that marker.
    pub(super) checkpoint: Option<MarkerLink>,
    /// The markers since that checkpoint.
    pub(super) counts: MarkerCounts,
    /// The versions that the ledger does not know yet.
    pub(super) updates: Vec<LedgerUpdate>,
    /// Conflict copies, which keep nobody from being ready.
    pub(crate) strays: Vec<FolderPath>,
}

/// Whether programs may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Everything is here.
    Ready(Arrived),
    /// It is known what should be here, and some of it is not.
    NotArrived(NotArrived),
    /// It is not known what should be here.
    Unsure(Unsure),
}

/// What should be here.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The newest marker; `None` if the handover is this machine's own.
    pub(super) top: Option<MarkerLink>,
    /// What the markers say.
    pub(super) chain: Chain,
    checkpoint: Option<MarkerLink>,
    counts: MarkerCounts,
}

impl Barrier<'_> {
    /// Decides whether the folder is ready.
    pub(crate) fn decide(
        &self,
        tree: &mut dyn FolderTree,
        cache: &mut DigestCache,
    ) -> io::Result<Decision> {
        let target = match self.target() {
            Ok(target) => target,
            Err(decision) => return Ok(*decision),
        };
        let compared = compare(self, &target, &BTreeSet::new(), tree, cache)?;
        Ok(Self::decision(&target, compared))
    }

    pub(super) fn decision(target: &Target, compared: Comparison) -> Decision {
        if !compared.missing.is_nothing() {
            return Decision::NotArrived(compared.missing);
        }
        let (checkpoint, counts) = (target.checkpoint, target.counts);
        let (updates, strays) = (compared.updates, compared.strays);
        Decision::Ready(Arrived { top: target.top, checkpoint, counts, updates, strays })
    }

    /// Returns what should be here, as far as the handover and the markers say it.
    pub(super) fn target(&self) -> Result<Target, Box<Decision>> {
        let unsure = |why| Box::new(Decision::Unsure(why));
        let handover = match self.previous.handover {
            Remembered::Nothing => return Err(unsure(Unsure::NoHandover)),
            Remembered::Damaged(error) => return Err(unsure(Unsure::Damaged(error))),
            Remembered::Handover(handover) => handover,
        };
        if self.previous.end == TenureEnd::Unknown {
            return Err(unsure(Unsure::Restored));
        }
        if self.ledger.is_own(handover.id) {
            let (checkpoint, counts) = self.ledger.since_checkpoint();
            let chain = Chain { wanted: BTreeMap::new(), base: ChainBase::Ledger };
            return Ok(Target { top: None, chain, checkpoint, counts });
        }
        let top = self.newest_marker(&handover)?;
        let chain = chain::walk(self.markers, top, self.ledger.verified());
        let chain = chain.map_err(|error| match error {
            ChainError::Missing(link) => {
                Box::new(Decision::NotArrived(NotArrived::of_marker(link)))
            }
            error => unsure(Unsure::Chain(error)),
        })?;
        let (checkpoint, counts) = self.checkpoint_of(top, &handover);
        Ok(Target { top: Some(top), chain, checkpoint, counts })
    }

    /// Returns the marker that names what the last tenure left.
    fn newest_marker(&self, handover: &Handover) -> Result<MarkerLink, Box<Decision>> {
        if let (HandoverKind::Clean, Some(marker)) = (handover.kind, handover.marker) {
            return Ok(marker);
        }
        let tenure = TenureId { engine: self.engine, token: self.previous.token };
        let unsure = |why| Box::new(Decision::Unsure(why));
        match chain::last_of(self.markers, tenure, handover.next) {
            Ok(Some(last)) => Ok(last),
            Ok(None) => {
                let (client, number) = (self.previous.client.clone(), handover.next);
                Err(unsure(Unsure::Dirty { client, tenure, number }))
            }
            Err(error) => Err(unsure(Unsure::Chain(error))),
        }
    }

    /// Returns the last checkpoint at or before a marker, and the markers since then.
    fn checkpoint_of(
        &self,
        top: MarkerLink,
        handover: &Handover,
    ) -> (Option<MarkerLink>, MarkerCounts) {
        if top.name.kind == MarkerKind::Checkpoint {
            return (Some(top), MarkerCounts::default());
        }
        let Some(marker) = self.markers.get(&top) else {
            return (self.ledger.since_checkpoint().0, handover.counts);
        };
        let mut counts = handover.counts;
        if handover.kind != HandoverKind::Clean {
            counts.markers = counts.markers.saturating_add(1);
            counts.paths = counts.paths.saturating_add(marker.changes.len() as u64);
        }
        (marker.checkpoint, counts)
    }
}

impl Ledger {
    /// Records that the folder is ready.
    pub(crate) fn adopt(&mut self, arrived: Arrived) {
        self.update(arrived.updates);
        if let Some(top) = arrived.top {
            self.verified = Some(top);
            self.checkpoint = arrived.checkpoint;
            self.counts = arrived.counts;
            // Another tenure went on after the changes of this log: 'late' has put them aside.
            self.log.clear();
            self.accepted = None;
        }
    }
}
