//! The moves by which machines write markers.

use super::super::handover::HandoverKind;
use super::super::late::{LateMarker, LateStep, late_step};
use super::super::ledger::Ledger;
use super::super::marker::{Change, PathState};
use super::super::marker_name::MarkerKind;
use super::super::marking::{MarkerHead, TenureMarking};
use super::Mutant;
use super::folder::{ModelFolder, PATHS, digest, known, number, path};
use super::moves::Moves;
use super::world::{ENGINE, ModelState, NAMES, Written, tenure};
use crate::time::Time;

impl Moves<'_> {
    pub(super) fn late(&mut self, at: usize) {
        let previous = self.world.previous.get(self.from.previous);
        let ledger = self.ledger(at);
        let mut step = late_step(&previous, ENGINE, &ledger);
        if self.is(Mutant::LateAfterOthers) && matches!(step, LateStep::PutAside(_)) {
            let (handover, token) = (self.handover(), previous.token);
            let (number, id) = (handover.next, handover.id);
            if handover.kind != HandoverKind::Clean {
                let tenure = tenure(token.as_u64() as u8);
                step = LateStep::Write(LateMarker { tenure, number, handover: id });
            }
        }
        match step {
            LateStep::Nothing | LateStep::Wait => {}
            LateStep::PutAside(_) => {
                let mut ledger = Ledger::clone(&ledger);
                ledger.put_aside();
                let mut state = self.from;
                state.machines[at].ledger = self.world.ledgers.put(ledger);
                self.add("puts its changes aside", at, state);
            }
            LateStep::Write(late) => {
                let token = late.tenure.token.as_u64() as u8;
                let kind = MarkerKind::Marker;
                let written = self.write(at, (token, late.number, true, kind), Some(&late));
                let state = self.with_written(at, written);
                self.add("writes a late marker", at, state);
            }
        }
    }

    /// Writes a marker, and returns it with the ledger that knows it.
    pub(super) fn write(
        &mut self,
        at: usize,
        (token, number, is_last, kind): (u8, u64, bool, MarkerKind),
        late: Option<&LateMarker>,
    ) -> Written {
        let contents = self.contents(at);
        let key = (self.from.machines[at].ledger, contents, token, number, is_last, kind);
        if let Some(written) = self.world.written.get(&key) {
            return *written;
        }
        let mut ledger = Ledger::clone(&self.ledger(at));
        let mut tree = ModelFolder { contents, assumed: None };
        let listing = ledger.list_changes(kind, &self.world.rules, &mut tree);
        let listing = listing.expect("no disk").expect("no file changes meanwhile");
        let tenure = tenure(token);
        let (folder, lock, holder) = ("f", "l", NAMES[at]);
        let head = MarkerHead { folder, lock, holder, at: 0, tenure, number, is_last };
        let mut marker = listing.marker(&ledger, &head);
        let bits = marker.changes.iter().map(|change| 1 << self::number(&change.path));
        let mut names = bits.fold(0, |all, bit: u8| all | bit);
        if marker.name.kind == MarkerKind::Checkpoint {
            names = u8::MAX;
        }
        if self.is(Mutant::NamedAsWritten) {
            marker.changes = as_written(&ledger);
        }
        if self.is(Mutant::LateLeavesOut) && is_last {
            let written = as_written(&ledger);
            marker.changes.retain(|change| written.contains(change));
        }
        let (marker, link) = self.world.put_marker(&marker);
        match late {
            Some(late) => ledger.ended_late(listing, link, late),
            None => ledger.marked(listing, link),
        }
        let ledger = self.world.ledgers.put(ledger);
        let written = Written { marker, ledger, names };
        self.world.written.insert(key, written);
        written
    }

    /// Returns the state in which a marker of a machine is on its disk.
    pub(super) fn with_written(&mut self, at: usize, written: Written) -> ModelState {
        let mut state = self.from;
        let machine = &mut state.machines[at];
        machine.ledger = written.ledger;
        machine.markers = self.world.with_marker(machine.markers, written.marker);
        for path in (0..PATHS).filter(|path| written.names & 1 << path != 0) {
            state.latest[path] = machine.files[path];
        }
        state
    }

    pub(super) fn mark(&mut self, at: usize, marking: &TenureMarking) {
        let ledger = self.ledger(at);
        let is_over = (0..PATHS).any(|path| known(&ledger, path) != self.contents(at)[path]);
        if !marking.may_mark() || ledger.log().is_empty() && !is_over {
            return;
        }
        let token = self.from.machines[at].tenure.expect("it holds the lock").0;
        let both = [MarkerKind::Marker, MarkerKind::Checkpoint];
        let kinds = if self.world.setup.checkpoints { &both[..] } else { &both[..1] };
        for kind in kinds {
            let written = self.write(at, (token, marking.next(), false, *kind), None);
            let mut state = self.with_written(at, written);
            let mut marking = marking.clone();
            marking.marked(Time::ZERO, Time::ZERO);
            self.set_tenure(&mut state, at, marking);
            self.add("writes a marker", at, state);
        }
    }
}

/// Returns the changes of a log as they were made, whatever stands in the folder.
fn as_written(ledger: &Ledger) -> Vec<Change> {
    let of = |at: usize| {
        let after = ledger.log().get(&path(at))?.after;
        let state = after.map_or(PathState::Gone, |stamp| {
            let digest = digest(stamp.inode as u8);
            PathState::File { size: 1, digest, mode: 0o644 }
        });
        Some(Change { path: path(at), state, is_foreign: false })
    };
    (0..PATHS).filter_map(of).collect()
}
