//! Acceptance: a person goes on without what has not arrived.

use super::comparison::{compare, standing};
use super::folder_path::FolderPath;
use super::handover::{Handover, HandoverId, HandoverKind};
use super::ledger::Ledger;
use super::marker::Acceptance;
use super::ready::{Arrived, Barrier, Decision};
use super::strays::original_of;
use super::tree::{DigestCache, FileStamp, FolderTree};
use std::collections::BTreeSet;
use std::io;

/// What a person accepts. It takes effect when the lock service has the handover.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    /// What has arrived beside the accepted paths; `None` if the whole folder is accepted.
    arrived: Option<Arrived>,
    /// Each accepted path as it stands.
    paths: Vec<(FolderPath, Option<FileStamp>)>,
    /// Who accepts it, for the next marker.
    acceptance: Acceptance,
}

impl Barrier<'_> {
    /// Accepts the whole folder as it stands. The next marker is a checkpoint.
    pub(crate) fn accept_all(
        &self,
        tree: &mut dyn FolderTree,
        acceptance: Acceptance,
    ) -> io::Result<Accepted> {
        let found = standing(self, tree, &mut Vec::new())?;
        let wanted = match self.target() {
            Ok(target) => target.chain.wanted.into_keys().collect::<Vec<_>>(),
            Err(_) => Vec::new(),
        };
        let known = self.ledger.paths().chain(self.ledger.log().paths()).chain(&wanted);
        let mut gone: Vec<_> = known.filter(|path| !found.contains_key(path)).collect();
        gone.sort();
        gone.dedup();
        let mut paths: Vec<_> = gone.into_iter().map(|path| (path.clone(), None)).collect();
        for (path, found_here) in &found {
            let is_known = self.ledger.entry(path).is_some()
                || self.ledger.log().get(path).is_some()
                || wanted.binary_search(path).is_ok();
            if is_known || original_of(path, |at| found.contains_key(at)).is_none() {
                paths.push((path.clone(), Some(found_here.stamp)));
            }
        }
        Ok(Accepted { arrived: None, paths, acceptance })
    }

    /// Accepts some paths as they stand, or returns what has not arrived beside them.
    pub(crate) fn accept_paths(
        &self,
        paths: &BTreeSet<FolderPath>,
        tree: &mut dyn FolderTree,
        cache: &mut DigestCache,
        acceptance: Acceptance,
    ) -> io::Result<Result<Accepted, Decision>> {
        let target = match self.target() {
            Ok(target) => target,
            Err(decision) => return Ok(Err(*decision)),
        };
        let compared = compare(self, &target, paths, tree, cache)?;
        let stamp = |path: &FolderPath| compared.found.get(path).map(|found| found.stamp);
        let paths = paths.iter().map(|path| (path.clone(), stamp(path))).collect();
        Ok(match Self::decision(&target, compared) {
            Decision::Ready(arrived) => Ok(Accepted { arrived: Some(arrived), paths, acceptance }),
            decision => Err(decision),
        })
    }
}

impl Ledger {
    /// Returns the handover of an acceptance, which is sent at once, and records its id.
    pub(crate) fn begin_acceptance(&mut self, accepted: &Accepted, next: u64) -> Handover {
        let id: HandoverId = accepted.acceptance.handover;
        self.record_own(id);
        let (marker, counts) = (self.verified, self.counts);
        Handover { id, kind: HandoverKind::Accepted, next, marker, counts }
    }

    /// Records an acceptance that the lock service has: the folder is ready.
    pub(crate) fn accept(&mut self, accepted: Accepted) {
        match accepted.arrived {
            Some(arrived) => self.adopt(arrived),
            None => self.log.accept_whole(),
        }
        for (path, found) in accepted.paths {
            self.log.accept(&path, found);
        }
        self.accepted = Some(accepted.acceptance);
    }
}
