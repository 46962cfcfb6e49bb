//! The state in which the folder should be, as far as the handover and the markers say it.

use super::chain::{self, Chain, ChainBase, ChainError};
use super::coverage::{Coverage, CoveredFiles};
use super::handover::{Handover, HandoverError, HandoverKind, MarkerCounts, PreviousTenure};
use super::handover::{HandoverEnd, Remembered};
use super::ignored::IgnoreRules;
use super::ledger::Ledger;
use crate::chain::MarkerFiles;
use crate::folder_path::FolderTree;
use crate::marker::{MarkerKind, MarkerLink};
use crate::tenure_id::TenureId;
use std::collections::BTreeMap;
use std::fmt;
use std::io;

/// All that decides whether the folder is ready, but for the folder itself.
#[derive(Debug, Clone, Copy)]
pub struct Barrier<'a> {
    /// The lock service's answer about the last tenure.
    pub previous: &'a PreviousTenure,
    /// The engine that issued the tokens.
    pub engine: u64,
    /// The ledger of this machine.
    pub ledger: &'a Ledger,
    /// The markers that are here.
    pub markers: &'a MarkerFiles,
    /// Which paths are ignored.
    pub rules: &'a IgnoreRules,
    /// The wall clock in nanoseconds since 1970: tells content that is still changing.
    pub now: i128,
}

impl<'a> Barrier<'a> {
    /// Returns which paths are covered in the wanted state of the folder `target`; without one, the
    /// paths that this machine covers by what it knows itself.
    pub(super) fn coverage(&self, target: Option<&'a Target>) -> Coverage<'a> {
        let chain = target.map(|target| &target.chain);
        Coverage::of(self.rules, self.ledger).with_chain(chain)
    }

    /// Returns the covered files of the folder.
    pub fn covered_files(&self, tree: &mut dyn FolderTree) -> io::Result<CoveredFiles> {
        self.coverage(self.target().ok().as_ref()).covered_files(tree)
    }
}

/// Why nobody can say what should be here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsure {
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
    /// The last tenure has not said what it changed. Its client has the name of this machine, whose
    /// ledger does not know the tenure.
    OwnName {
        /// The client that held the lock.
        client: String,
        /// The last tenure.
        tenure: TenureId,
    },
    /// A marker is here of a tenure that came after the one that the lock service remembers.
    Forgotten(TenureId),
    /// The markers can't be followed.
    Chain(ChainError),
}

impl Unsure {
    /// Returns the reason as it is for a machine with this client name.
    #[must_use]
    pub fn seen_from(self, own: &str) -> Self {
        match self {
            Self::Dirty { client, tenure, .. } if client == own => Self::OwnName { client, tenure },
            other => other,
        }
    }

    /// Returns what a person can do about this reason, besides accepting the folder as it stands.
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::Dirty { .. } => "wait until that machine is back and its files are here",
            Self::OwnName { .. } => {
                "wait until the other machine of this name is back and its files are here (give \
                 one of the two another name by --client), or put the state directory back, if it \
                 was moved"
            }
            Self::NoHandover | Self::Damaged(_) | Self::Restored | Self::Forgotten(_) => {
                "see whether the last changes of each machine are here"
            }
            Self::Chain(_) => "let the sync tool bring the markers of the other machines",
        }
    }
}

impl fmt::Display for Unsure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHandover => f.write_str("the lock service does not know the folder"),
            Self::Damaged(error) => write!(f, "the lock service remembers no handover: {error}"),
            Self::Restored => f.write_str(
                "the lock service does not know how the last tenure ended: it was restored from a \
                 backup, or the lock was stolen with --now",
            ),
            Self::Dirty { client, tenure, .. } => write!(
                f,
                "{client} (token {}) changed the folder, and has not said what it changed",
                tenure.token.as_u64()
            ),
            Self::OwnName { client, tenure } => write!(
                f,
                "{client} (token {}) changed the folder, and has not said what it changed; that is \
                 the name of this machine, whose state directory does not know of it: the state \
                 directory was lost, or another machine has the same name",
                tenure.token.as_u64()
            ),
            Self::Forgotten(tenure) => write!(
                f,
                "a marker of the tenure {} is here, which the lock service does not know any more: \
                 an older copy of its data was put back",
                tenure.token.as_u64()
            ),
            Self::Chain(error) => error.fmt(f),
        }
    }
}

/// Why it is not known what should be here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoTarget {
    /// A marker is not here yet.
    MarkerMissing(MarkerLink),
    /// Nobody can say what should be here, for this reason.
    Unsure(Unsure),
}

/// The state in which the folder should be.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The newest marker; `None` if the handover is this machine's own.
    pub(super) top: Option<MarkerLink>,
    /// The paths that the markers name, and the state of all others.
    pub(super) chain: Chain,
    /// The last checkpoint at or before that marker.
    pub(super) checkpoint: Option<MarkerLink>,
    /// The markers since that checkpoint.
    pub(super) counts: MarkerCounts,
}

impl Barrier<'_> {
    /// Returns what should be here, as far as the handover and the markers say it.
    pub(super) fn target(&self) -> Result<Target, NoTarget> {
        let handover = match self.previous.handover {
            Remembered::Nothing => return Err(NoTarget::Unsure(Unsure::NoHandover)),
            Remembered::Damaged(error) => return Err(NoTarget::Unsure(Unsure::Damaged(error))),
            Remembered::Handover(handover) => handover,
        };
        if self.previous.end == HandoverEnd::Unknown {
            return Err(NoTarget::Unsure(Unsure::Restored));
        }
        if self.ledger.is_own(handover.id) {
            if let Some(verified) = self.ledger.verified() {
                // A marker of this machine that its ledger does not know was written right before
                // the guard was killed.
                self.check_remembered(verified, Some(&self.previous.client))?;
            }
            let (checkpoint, counts) = self.ledger.since_checkpoint();
            let chain = Chain { wanted: BTreeMap::new(), base: ChainBase::Ledger };
            return Ok(Target { top: None, chain, checkpoint, counts });
        }
        let top = self.newest_marker(&handover)?;
        self.check_remembered(top, None)?;
        let chain = chain::walk(self.markers, top, self.ledger.verified());
        let chain = chain.map_err(|error| match error {
            ChainError::Missing(link) => NoTarget::MarkerMissing(link),
            error => NoTarget::Unsure(Unsure::Chain(error)),
        })?;
        let (checkpoint, counts) = self.checkpoint_of(top, &handover);
        Ok(Target { top: Some(top), chain, checkpoint, counts })
    }

    /// Checks that no marker is here that builds on this one, and whose tenure came after the one
    /// that the lock service remembers. A tenure sets a handover before its first marker, so a
    /// service that does not know the tenure has lost it. The numbers of tenures alone say nothing:
    /// after an acceptance in a service that counts from an earlier number again, old markers with
    /// greater tokens stay. Markers of the client `but` are left out.
    fn check_remembered(&self, last: MarkerLink, but: Option<&str>) -> Result<(), NoTarget> {
        let known = TenureId { engine: self.engine, token: self.previous.token };
        match chain::later_than(self.markers, known, last, but) {
            Some(later) => Err(NoTarget::Unsure(Unsure::Forgotten(later))),
            None => Ok(()),
        }
    }

    /// Returns the marker that names what the last tenure left.
    fn newest_marker(&self, handover: &Handover) -> Result<MarkerLink, NoTarget> {
        if let (HandoverKind::Clean, Some(marker)) = (handover.kind, handover.marker) {
            return Ok(marker);
        }
        let tenure = TenureId { engine: self.engine, token: self.previous.token };
        match chain::last_of(self.markers, tenure, handover.next) {
            Ok(Some(last)) => Ok(last),
            Ok(None) => {
                let (client, number) = (self.previous.client.clone(), handover.next);
                Err(NoTarget::Unsure(Unsure::Dirty { client, tenure, number }))
            }
            Err(error) => Err(NoTarget::Unsure(Unsure::Chain(error))),
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
