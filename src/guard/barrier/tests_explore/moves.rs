//! The moves of the model: what machines, programs, sync tool and lock service do next.

use super::super::handover::{Handover, HandoverEnd, HandoverKind, Remembered};
use super::super::ledger::Ledger;
use super::super::marking::TenureMarking;
use super::Mutant;
use super::folder::{Contents, PATHS, known, stamp};
use super::world::{Machine, ModelState, TenurePhase, World};
use crate::engine::Token;
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
    pub(super) world: &'a mut World,
    pub(super) from: ModelState,
    made: Vec<Made>,
}

impl World {
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

    pub(super) fn is(&self, mutant: Mutant) -> bool {
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
        let name = super::folder::path(path);
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
        if self.is(Mutant::CleanAfterChange) {
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
        previous.end = if self.is(Mutant::RestoredTakenForReleased) {
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
