//! The moves of a tenure that is not ready yet: the shipped code decides whether it is.

use super::super::arrival_target::Barrier;
use super::super::chain::ChainBase;
use super::super::coverage::CoverageReport;
use super::super::handover::{Handover, HandoverEnd, HandoverKind, MarkerCounts};
use super::super::ledger::{Ledger, LedgerEntry};
use super::super::marker::{Acceptance, PathState};
use super::super::marker_name::MarkerLink;
use super::super::marking::TenureMarking;
use super::super::ready::{Arrived, Decision};
use super::super::tree::DigestCache;
use super::Mutant;
use super::folder::{Contents, ModelFolder, PATHS, digest, known, path, stamp};
use super::moves::{Moves, STALE};
use super::world::{Decided, ENGINE, Machine, ModelState, NAMES, tenure};
use std::collections::BTreeSet;

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
        if self.is(Mutant::ArrivingSetsHandover)
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
        if self.is(Mutant::OwnByClient) && previous.client == NAMES[at] {
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
            Some(Mutant::OwnUnchecked) if ledger.is_own(handover.id) => {
                tree.contents = [0, 1].map(|path| known(&ledger, path));
            }
            Some(Mutant::MarkerAlone) if !ledger.is_own(handover.id) => {
                if let Some(marker) = handover.marker
                    && markers.get(&marker).is_some()
                {
                    return Decision::Ready(as_it_stands(marker, contents));
                }
            }
            Some(Mutant::RestUnchecked) => {
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
            Some(Mutant::RuleDropsNamed) => {
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
            Some(Mutant::SizeOnly) => {
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
        self.accepted("accepts everything", at, state, (ledger, handover), None);
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
        self.accepted("accepts one path", at, state, (ledger, handover), violation);
    }

    pub(super) fn accepted(
        &mut self,
        what: &'static str,
        at: usize,
        mut state: ModelState,
        (ledger, handover): (Ledger, Handover),
        violation: Option<&'static str>,
    ) {
        state.left.accepts -= 1;
        let token = state.machines[at].tenure.expect("it holds the lock").0;
        let marking = if self.is(Mutant::AcceptSetsNoHandover) {
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
