//! The moves of the model: what machines, programs, sync tool and lock service do next.
//!
//! The moves by which machines write markers.
//!
//! The moves of a tenure that is not ready yet: the shipped code decides whether it is.

use super::super::arrival_target::Barrier;
use super::super::chain::ChainBase;
use super::super::coverage::CoverageReport;
use super::super::handover::{Handover, HandoverEnd, HandoverKind, MarkerCounts, Remembered};
use super::super::ledger::{Ledger, LedgerEntry};
use super::super::marker::{Acceptance, Change, PathState};
use super::super::marking::{MarkerHead, TenureMarking};
use super::super::ready::{Arrived, Decision};
use super::BarrierMutant;
use super::world::{
    BarrierWorld, Decided, ENGINE, Machine, ModelState, NAMES, TenurePhase, Written, tenure,
};
use crate::folder_path::DigestCache;
use crate::marker::{MarkerKind, MarkerLink};
use crate::marking::{LateMarker, LateStep, late_step};
use crate::tests_explore::world::{
    Contents, ModelFolder, PATHS, digest, known, number, path, stamp,
};
use engine::Token;
use engine::time::Time;
use std::collections::BTreeSet;
use std::rc::Rc;

pub(super) const STALE: &str = "a machine is ready without the last version";
const UNSEEN: &str = "a last version is overwritten unseen";

/// One move.
pub(super) struct Made {
    pub(super) what: &'static str,
    /// The machine that moves, or to which the sync tool carries something.
    pub(super) machine: u8,
    pub(super) state: ModelState,
    pub(super) violation: Option<&'static str>,
}

/// The moves from one state.
pub(super) struct Moves<'a> {
    pub(super) world: &'a mut BarrierWorld,
    pub(super) from: ModelState,
    made: Vec<Made>,
}

impl BarrierWorld {
    /// Returns the moves from a state.
    pub(super) fn moves(&mut self, state: &ModelState) -> Vec<Made> {
        let machines = self.setup.machines;
        let mut moves = Moves { world: self, from: *state, made: Vec::new() };
        for at in 0..machines {
            match state.machines[at].tenure {
                None => moves.without_tenure(at),
                Some((_, TenurePhase::Arriving)) => moves.arriving(at),
                Some((_, TenurePhase::Ready(marking))) => moves.ready(at, marking),
            }
            moves.expire(at);
            moves.foreign(at);
            moves.image(at);
            for other in (0..machines).filter(|other| *other != at) {
                moves.sync(at, other);
            }
        }
        moves.restore();
        moves.made
    }
}

impl Moves<'_> {
    pub(super) fn add(&mut self, what: &'static str, machine: usize, state: ModelState) {
        self.made.push(Made { what, machine: machine as u8, state, violation: None });
    }

    pub(super) fn add_checked(
        &mut self,
        what: &'static str,
        machine: usize,
        state: ModelState,
        violation: Option<&'static str>,
    ) {
        self.made.push(Made { what, machine: machine as u8, state, violation });
    }

    pub(super) fn is(&self, mutant: BarrierMutant) -> bool {
        self.world.setup.mutant == Some(mutant)
    }

    pub(super) fn ledger(&self, at: usize) -> Rc<Ledger> {
        self.world.ledgers.get(self.from.machines[at].ledger)
    }

    pub(super) fn contents(&self, at: usize) -> Contents {
        self.from.contents(self.from.machines[at].files)
    }

    pub(super) fn handover(&self) -> Handover {
        match self.world.previous.get(self.from.previous).handover {
            Remembered::Handover(handover) => handover,
            other => panic!("the lock service remembers {other:?}"),
        }
    }

    pub(super) fn set_tenure(&mut self, state: &mut ModelState, at: usize, marking: TenureMarking) {
        let marking = self.world.markings.put(marking);
        let token = state.machines[at].tenure.expect("it holds the lock").0;
        state.machines[at].tenure = Some((token, TenurePhase::Ready(marking)));
    }

    /// Returns the state in which a machine has given its lock back. A token that left no trace is
    /// given out again: only whether tokens are the same matters to the barrier, and there are
    /// fewer states.
    pub(super) fn without_lock(&self, at: usize) -> ModelState {
        let mut state = self.from;
        let Some((token, phase)) = state.machines[at].tenure.take() else { return state };
        state.lock = None;
        let has_marked = match phase {
            TenurePhase::Arriving => false,
            TenurePhase::Ready(marking) => self.world.markings.get(marking).next() > 1,
        };
        let previous = self.world.previous.get(state.previous);
        let has_announced = previous.token == Token::named(u64::from(token));
        let is_saved = state.saved.is_some() || self.world.setup.restores > 0;
        if !has_marked && !has_announced && !is_saved && state.token == token {
            state.token -= 1;
        }
        state
    }

    pub(super) fn without_tenure(&mut self, at: usize) {
        if self.from.lock.is_none() {
            let mut state = self.from;
            state.token += 1;
            state.lock = Some(at as u8);
            state.machines[at].tenure = Some((state.token, TenurePhase::Arriving));
            self.add("acquires", at, state);
        }
        self.late(at);
    }

    pub(super) fn is_latest(&self, at: usize, path: usize) -> bool {
        self.contents(at)[path] == self.from.contents(self.from.latest)[path]
    }

    pub(super) fn ready(&mut self, at: usize, marking: u32) {
        let marking = self.world.markings.get(marking);
        if marking.must_announce() {
            if self.from.left.writes > 0 {
                let (mut state, mut marking) = (self.from, TenureMarking::clone(&marking));
                let mut ledger = Ledger::clone(&self.ledger(at));
                let handover = marking.announce(&mut ledger, state.take_id());
                marking.announced();
                state.machines[at].ledger = self.world.ledgers.put(ledger);
                self.world.set_handover(&mut state, at, &handover);
                self.set_tenure(&mut state, at, marking);
                self.add("announces changes", at, state);
            }
            let mut state = self.without_lock(at);
            let token = self.from.machines[at].tenure.map_or(0, |tenure| tenure.0);
            self.end_handover(&mut state, token, HandoverEnd::Released);
            self.add("releases", at, state);
        } else if self.from.left.writes > 0 {
            for path in 0..PATHS {
                self.change(at, path, false);
                if self.world.setup.removes && self.contents(at)[path] != 0 {
                    self.change(at, path, true);
                }
            }
        }
        self.mark(at, &marking);
        self.clean(at, &marking);
    }

    /// A program saves or removes a file.
    pub(super) fn change(&mut self, at: usize, path: usize, is_removed: bool) {
        let mut state = self.from;
        state.left.writes -= 1;
        let before = state.machines[at].files[path];
        let version = state.add_version(before, is_removed);
        let after = stamp(if is_removed { 0 } else { version });
        let mut ledger = Ledger::clone(&self.ledger(at));
        let is_known = known(&ledger, path) == self.contents(at)[path];
        let violation = (is_known && !self.is_latest(at, path)).then_some(UNSEEN);
        let name = crate::tests_explore::world::path(path);
        ledger.log_mut().begin(&name, stamp(self.contents(at)[path]), after);
        ledger.log_mut().end(&name, after);
        state.machines[at].ledger = self.world.ledgers.put(ledger);
        state.machines[at].files[path] = version;
        state.latest[path] = version;
        let what = match (path, is_removed) {
            (0, false) => "saves a",
            (_, false) => "saves b",
            (0, true) => "removes a",
            (_, true) => "removes b",
        };
        self.add_checked(what, at, state, violation);
    }

    pub(super) fn clean(&mut self, at: usize, marking: &TenureMarking) {
        let (mut state, mut marking) = (self.from, marking.clone());
        let mut ledger = Ledger::clone(&self.ledger(at));
        let log = ledger.log().clone();
        if self.is(BarrierMutant::CleanAfterChange) {
            ledger.put_aside();
        }
        let id = state.take_id();
        let Some(handover) = marking.clean(&mut ledger, id) else { return };
        *ledger.log_mut() = log;
        state.machines[at].ledger = self.world.ledgers.put(ledger);
        if state.left.losses > 0 {
            let mut state = state;
            state.left.losses -= 1;
            self.set_tenure(&mut state, at, marking.clone());
            self.add("sends a clean handover that is lost", at, state);
        }
        marking.cleaned();
        self.world.set_handover(&mut state, at, &handover);
        self.set_tenure(&mut state, at, marking);
        self.add("hands over", at, state);
    }

    /// Records that a tenure has ended, if the handover is that of this tenure.
    pub(super) fn end_handover(&mut self, state: &mut ModelState, token: u8, end: HandoverEnd) {
        let mut previous = (*self.world.previous.get(state.previous)).clone();
        if previous.token == Token::named(u64::from(token)) && previous.end == HandoverEnd::Open {
            previous.end = end;
            state.previous = self.world.previous.put(previous);
        }
    }

    pub(super) fn expire(&mut self, at: usize) {
        let Some((token, _)) = self.from.machines[at].tenure else { return };
        if self.from.left.crashes > 0 {
            let mut state = self.without_lock(at);
            state.left.crashes -= 1;
            self.end_handover(&mut state, token, HandoverEnd::Expired);
            self.add("loses its lock by expiry", at, state);
        }
    }

    pub(super) fn foreign(&mut self, at: usize) {
        if self.from.left.foreign == 0 {
            return;
        }
        for (path, what) in [(0, "sees a foreign a"), (1, "sees a foreign b")] {
            let mut state = self.from;
            state.left.foreign -= 1;
            let before = state.machines[at].files[path];
            state.machines[at].files[path] = state.add_version(before, false);
            self.add(what, at, state);
        }
    }

    /// A machine is replaced by an image of itself. Nothing is promised about one
    /// that held a tenure.
    pub(super) fn image(&mut self, at: usize) {
        let machine = self.from.machines[at];
        if self.from.left.images == 0 || machine.tenure.is_some() {
            return;
        }
        let mut state = self.from;
        match machine.image {
            None if self.ledger(at).log().is_empty()
                && self.handover().kind == HandoverKind::Clean =>
            {
                state.machines[at].image = Some((machine.files, machine.ledger));
                self.add("saves an image", at, state);
            }
            None => {}
            Some((files, ledger)) => {
                state.left.images -= 1;
                state.machines[at] = Machine { files, ledger, image: None, ..machine };
                self.add("is replaced by its image", at, state);
            }
        }
    }

    /// The sync tool carries a path or a marker from one machine to another.
    pub(super) fn sync(&mut self, from: usize, to: usize) {
        let (source, target) = (self.from.machines[from], self.from.machines[to]);
        for path in 0..PATHS {
            let (new, old) = (source.files[path], target.files[path]);
            let wins =
                self.from.is_ancestor(old, new) || !self.from.is_ancestor(new, old) && new > old;
            if new != old && wins {
                let mut state = self.from;
                state.machines[to].files[path] = new;
                let what = ["gets a by sync", "gets b by sync"][path];
                self.add(what, to, state);
            }
        }
        let (has, gets) =
            (self.world.sets.get(source.markers), self.world.sets.get(target.markers));
        for marker in has.iter().filter(|marker| !gets.contains(marker)) {
            let mut state = self.from;
            state.machines[to].markers = self.world.with_marker(target.markers, *marker);
            self.add("gets a marker by sync", to, state);
        }
    }

    pub(super) fn restore(&mut self) {
        if self.from.left.restores == 0 {
            return;
        }
        let mut state = self.from;
        let Some(saved) = state.saved.take() else {
            state.saved = Some(state.previous);
            self.add("the lock service is backed up", usize::from(u8::MAX), state);
            return;
        };
        let mut previous = (*self.world.previous.get(saved)).clone();
        previous.end = if self.is(BarrierMutant::RestoredTakenForReleased) {
            HandoverEnd::Released
        } else {
            HandoverEnd::Unknown
        };
        state.previous = self.world.previous.put(previous);
        state.token += 10;
        state.lock = None;
        state.machines.iter_mut().for_each(|machine| machine.tenure = None);
        state.left.restores -= 1;
        self.add("the lock service is restored", usize::from(u8::MAX), state);
    }
}

impl Moves<'_> {
    pub(super) fn late(&mut self, at: usize) {
        let previous = self.world.previous.get(self.from.previous);
        let ledger = self.ledger(at);
        let mut step = late_step(&previous, ENGINE, &ledger);
        if self.is(BarrierMutant::LateAfterOthers) && matches!(step, LateStep::PutAside(_)) {
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
                let written = self.write(at, token, late.number, true, kind, Some(&late));
                let state = self.with_written(at, written);
                self.add("writes a late marker", at, state);
            }
        }
    }

    /// Writes a marker, and returns it with the ledger that knows it.
    pub(super) fn write(
        &mut self,
        at: usize,
        token: u8,
        number: u64,
        is_last: bool,
        kind: MarkerKind,
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
        if self.is(BarrierMutant::NamedAsWritten) {
            marker.changes = as_written(&ledger);
        }
        if self.is(BarrierMutant::LateLeavesOut) && is_last {
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
            let written = self.write(at, token, marking.next(), false, *kind, None);
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

impl Moves<'_> {
    pub(super) fn arriving(&mut self, at: usize) {
        let is_dirty = self.ledger(at).is_unfinished(&self.handover());
        let outcome = self.decide(at);
        if let Decided::Ready(ledger) = outcome {
            let mut state = self.from;
            state.machines[at].ledger = ledger;
            let token = state.machines[at].tenure.expect("it holds the lock").0;
            let marking = TenureMarking::new(tenure(token), is_dirty);
            self.set_tenure(&mut state, at, marking);
            let is_stale = (0..PATHS).any(|path| !self.is_latest(at, path));
            self.add_checked("becomes ready", at, state, is_stale.then_some(STALE));
        } else if self.from.left.accepts > 0 {
            self.accept_all(at);
            if outcome == Decided::NotArrived {
                (0..PATHS).for_each(|path| self.accept_one(at, path));
            }
        }
        let mut state = self.without_lock(at);
        if self.is(BarrierMutant::ArrivingSetsHandover)
            && let Some(marker) = self.ledger(at).verified()
        {
            let mut ledger = Ledger::clone(&self.ledger(at));
            let id = state.take_id();
            ledger.record_own(id);
            state.machines[at].ledger = self.world.ledgers.put(ledger);
            let (kind, counts) = (HandoverKind::Clean, self.handover().counts);
            let handover = Handover { id, kind, next: 1, marker: Some(marker), counts };
            let tenure = self.from.machines[at].tenure;
            state.machines[at].tenure = tenure;
            state.token = self.from.token;
            self.world.set_handover(&mut state, at, &handover);
            state.machines[at].tenure = None;
            self.end_handover(
                &mut state,
                tenure.map_or(0, |tenure| tenure.0),
                HandoverEnd::Released,
            );
        }
        self.add("gives up before it is ready", at, state);
    }

    /// Decides whether the folder of a machine is ready, by the shipped code.
    pub(super) fn decide(&mut self, at: usize) -> Decided {
        let machine = self.from.machines[at];
        let contents = self.contents(at);
        let key = (machine.ledger, self.from.previous, machine.markers, contents, at as u8);
        if let Some(outcome) = self.world.decided.get(&key) {
            return *outcome;
        }
        let outcome = match self.decision(at, machine, contents) {
            Decision::Ready(arrived) => {
                let mut ledger = Ledger::clone(&self.ledger(at));
                ledger.adopt(arrived);
                Decided::Ready(self.world.ledgers.put(ledger))
            }
            Decision::NotArrived(_) => Decided::NotArrived,
            Decision::Unsure(_) => Decided::Unsure,
        };
        self.world.decided.insert(key, outcome);
        outcome
    }

    pub(super) fn decision(&mut self, at: usize, machine: Machine, contents: Contents) -> Decision {
        let previous = self.world.previous.get(self.from.previous);
        let markers = self.world.files(machine.markers);
        let mut ledger = Ledger::clone(&self.ledger(at));
        let handover = self.handover();
        if self.is(BarrierMutant::OwnByClient) && previous.client == NAMES[at] {
            ledger.record_own(handover.id);
        }
        let barrier = Barrier {
            previous: &previous,
            engine: ENGINE,
            ledger: &ledger,
            markers: &markers,
            rules: &self.world.rules,
            now: 0,
        };
        let mut tree = ModelFolder { contents, assumed: None };
        match self.world.setup.mutant {
            Some(BarrierMutant::OwnUnchecked) if ledger.is_own(handover.id) => {
                tree.contents = [0, 1].map(|path| known(&ledger, path));
            }
            Some(BarrierMutant::MarkerAlone) if !ledger.is_own(handover.id) => {
                if let Some(marker) = handover.marker
                    && markers.get(&marker).is_some()
                {
                    return Decision::Ready(as_it_stands(marker, contents));
                }
            }
            Some(BarrierMutant::RestUnchecked) => {
                if let Ok(target) = barrier.target()
                    && target.top.is_some()
                    && target.chain.base == ChainBase::Ledger
                {
                    for at in (0..PATHS).filter(|at| !target.chain.wanted.contains_key(&path(*at)))
                    {
                        tree.contents[at] = known(&ledger, at);
                    }
                }
            }
            Some(BarrierMutant::RuleDropsNamed) => {
                let target = barrier.target();
                let wanted = |at: usize| {
                    let state = target.as_ref().ok()?.chain.wanted.get(&path(at))?.state;
                    let versions = 0..=u8::MAX;
                    Some(match state {
                        PathState::File { digest: named, .. } => {
                            versions.into_iter().find(|version| digest(*version) == named)?
                        }
                        PathState::Gone | PathState::Ignored => 0,
                    })
                };
                tree.contents = [0, 1].map(|at| wanted(at).unwrap_or_else(|| known(&ledger, at)));
            }
            Some(BarrierMutant::SizeOnly) => {
                if let Ok(target) = barrier.target() {
                    tree.assumed = Some([0, 1].map(|at| {
                        let wanted = target.chain.wanted.get(&path(at)).map(|it| it.state);
                        match wanted {
                            Some(PathState::File { digest, .. }) => digest,
                            _ => ledger.entry(&path(at)).map_or(digest(0), |entry| entry.digest),
                        }
                    }));
                }
            }
            _ => {}
        }
        barrier.decide(&mut tree, &mut DigestCache::default()).expect("no disk")
    }

    pub(super) fn accept_all(&mut self, at: usize) {
        let mut state = self.from;
        let acceptance = Acceptance { handover: state.take_id(), reason: String::new() };
        let previous = self.world.previous.get(state.previous);
        let markers = self.world.files(state.machines[at].markers);
        let mut ledger = Ledger::clone(&self.ledger(at));
        let (engine, now) = (ENGINE, 0);
        let (ledger_now, rules) = (&ledger, &self.world.rules);
        let barrier = Barrier {
            previous: &previous,
            engine,
            ledger: ledger_now,
            markers: &markers,
            rules,
            now,
        };
        let mut tree = ModelFolder { contents: self.contents(at), assumed: None };
        let accepted = barrier.accept_all(&mut tree, acceptance).expect("no disk");
        state.latest = state.machines[at].files;
        let handover = ledger.begin_acceptance(&accepted, 1);
        ledger.accept(accepted);
        self.accepted("accepts everything", at, state, ledger, handover, None);
    }

    pub(super) fn accept_one(&mut self, at: usize, one: usize) {
        let mut state = self.from;
        let acceptance = Acceptance { handover: state.take_id(), reason: String::new() };
        let previous = self.world.previous.get(state.previous);
        let markers = self.world.files(state.machines[at].markers);
        let mut ledger = Ledger::clone(&self.ledger(at));
        let barrier = Barrier {
            previous: &previous,
            engine: ENGINE,
            ledger: &ledger,
            markers: &markers,
            rules: &self.world.rules,
            now: 0,
        };
        let mut tree = ModelFolder { contents: self.contents(at), assumed: None };
        let (paths, mut cache) = (BTreeSet::from([path(one)]), DigestCache::default());
        let accepted = barrier.accept_paths(&paths, &mut tree, &mut cache, acceptance);
        let Ok(accepted) = accepted.expect("no disk") else { return };
        state.latest[one] = state.machines[at].files[one];
        let handover = ledger.begin_acceptance(&accepted, 1);
        ledger.accept(accepted);
        let is_stale = (0..PATHS).any(|path| path != one && !self.is_latest(at, path));
        let violation = is_stale.then_some(STALE);
        self.accepted("accepts one path", at, state, ledger, handover, violation);
    }

    pub(super) fn accepted(
        &mut self,
        what: &'static str,
        at: usize,
        mut state: ModelState,
        ledger: Ledger,
        handover: Handover,
        violation: Option<&'static str>,
    ) {
        state.left.accepts -= 1;
        let token = state.machines[at].tenure.expect("it holds the lock").0;
        let marking = if self.is(BarrierMutant::AcceptSetsNoHandover) {
            let mut forgotten = Ledger::clone(&ledger);
            forgotten.own.pop_back();
            state.machines[at].ledger = self.world.ledgers.put(forgotten);
            TenureMarking::new(tenure(token), false)
        } else {
            state.machines[at].ledger = self.world.ledgers.put(ledger);
            self.world.set_handover(&mut state, at, &handover);
            TenureMarking::accepted(tenure(token))
        };
        self.set_tenure(&mut state, at, marking);
        self.add_checked(what, at, state, violation);
    }
}

/// Returns what is known of a folder that is taken to be ready as it stands.
fn as_it_stands(marker: MarkerLink, contents: Contents) -> Arrived {
    let entry = |at: usize| {
        let stamp = stamp(contents[at])?;
        Some(LedgerEntry { stamp, digest: digest(contents[at]), from: marker.name })
    };
    Arrived {
        top: Some(marker),
        checkpoint: None,
        counts: MarkerCounts::default(),
        updates: (0..PATHS).map(|at| (path(at), entry(at))).collect(),
        given_up: Vec::new(),
        is_whole: false,
        strays: Vec::new(),
        coverage: CoverageReport::default(),
    }
}
