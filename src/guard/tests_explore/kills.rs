//! Explores all interleavings of the steps of two guards, the ticks of the clock and the kills,
//! and checks each state that is reached.
//!
//! A guard that is killed at each of its steps, and its successor that is killed at each of its
//! own.
//!
//! A power failure after each step of a guard: of the changes that were not synced, any part is on
//! the storage.

use super::storage::{FOLDER, LOST, STAGES, Storage, StorageChange};
use super::world::{Model, ModelMove, World};
use super::{SETUP, Scenario, Setup};
use crate::guard::tests_explore::guard_program::Step;
use crate::guard::tests_explore::world::{folder, version};
use foldhash::quality::{FoldHasher, RandomState};
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher};

/// The result of an exploration.
#[derive(Debug)]
pub(super) struct ExploredStates {
    pub(super) states: usize,
    pub(super) transitions: usize,
    pub(super) ends: usize,
    /// The first violation, with the moves that lead to it.
    pub(super) violation: Option<String>,
}

pub(super) struct Explorer {
    setup: Setup,
    model: Model,
    seen: HashSet<u128>,
    hashers: [RandomState; 2],
    explored: ExploredStates,
}

struct StateVisit {
    world: World,
    /// The move that led here; `None` at the start.
    came_by: Option<ModelMove>,
    moves: Vec<ModelMove>,
}

/// Makes a digest of twice 64 bits, so that no two of some million states have the same.
struct WideHasher([FoldHasher<'static>; 2]);

impl Hasher for WideHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|half| half.write(bytes));
    }

    fn finish(&self) -> u64 {
        self.0[0].finish()
    }
}

/// Explores all runs of a setup, until a state violates a guarantee.
pub(super) fn explore(setup: Setup) -> ExploredStates {
    let mut explorer = Explorer {
        setup,
        model: Model::new(setup),
        seen: HashSet::new(),
        hashers: [RandomState::default(), RandomState::default()],
        explored: ExploredStates { states: 0, transitions: 0, ends: 0, violation: None },
    };
    explorer.run();
    explorer.explored
}

impl Explorer {
    fn run(&mut self) {
        let start = self.model.start();
        let mut path = Vec::new();
        if let Err(violation) = self.visit(&mut path, start, None) {
            self.explored.violation = Some(violation);
        }
        while let Some(visit) = path.last_mut() {
            let Some(next) = visit.moves.pop() else {
                path.pop();
                continue;
            };
            let mut world = visit.world.clone();
            self.explored.transitions += 1;
            let done = self.model.make_move(&mut world, next);
            if let Err(violation) = done.and_then(|()| self.visit(&mut path, world, Some(next))) {
                let moves = path.iter().filter_map(|visit| visit.came_by).chain([next]);
                self.explored.violation = Some(self.trace_of(moves, &violation));
                return;
            }
        }
    }

    /// Makes the moves that lead to a violation once more, and returns it with what they did.
    fn trace_of(&self, moves: impl Iterator<Item = ModelMove>, violation: &str) -> String {
        let mut model = Model::new(self.setup);
        model.begin_trace();
        let mut world = model.start();
        for next in moves {
            if model.make_move(&mut world, next).is_err() {
                break;
            }
        }
        model.report(violation)
    }

    fn digest(&self, world: &World) -> u128 {
        let mut hasher = WideHasher(self.hashers.each_ref().map(BuildHasher::build_hasher));
        world.hash(&mut hasher);
        let [low, high] = hasher.0.map(|half| u128::from(half.finish()));
        high << 64 | low
    }

    /// Adds a state to the path, unless it was visited before.
    fn visit(
        &mut self,
        path: &mut Vec<StateVisit>,
        world: World,
        came_by: Option<ModelMove>,
    ) -> Result<(), String> {
        if !self.seen.insert(self.digest(&world)) {
            return Ok(());
        }
        let moves = self.model.moves(&world);
        if moves.is_empty() {
            if !self.model.is_ended(&world) {
                return Err("a guard waits for ever".to_owned());
            }
            self.explored.ends += 1;
        }
        self.explored.states += 1;
        path.push(StateVisit { world, came_by, moves });
        Ok(())
    }
}

/// Returns the worlds before each step of a guard that runs alone to its end, and the world after
/// its last step.
fn worlds_of(model: &mut Model, mut world: World, guard: usize) -> Vec<World> {
    let mut worlds = vec![world.clone()];
    model.begin_trace();
    while model.next_step(&world, guard).is_some() {
        // A tick ends the lease of a guard that was killed before.
        if model.moves(&world).contains(&ModelMove::Tick) && world.guards[guard].tenure == 0 {
            model.make_move(&mut world, ModelMove::Tick).expect("a tick");
        }
        if let Err(violation) = model.step(&mut world, guard) {
            panic!("{}", model.report(&violation));
        }
        worlds.push(world.clone());
    }
    worlds
}

fn killed(model: &mut Model, world: &World, guard: usize) -> World {
    let mut world = world.clone();
    model.make_move(&mut world, ModelMove::Kill(guard)).expect("a kill");
    world
}

/// Checks a folder at rest: all files are whole, and no stage and no lost name is left over.
fn check_rest(world: &World) {
    let files = folder(&world.storage);
    for (name, (_, content)) in &files {
        assert!(version(content).is_some(), "{name} is {content:?}");
    }
    for (file, saved) in &world.saved {
        let is_renamed = *file == "B.new";
        let now = files.get(*file).and_then(|(_, content)| version(content));
        assert!(is_renamed || now >= Some(*saved), "{file} is {now:?}, {saved} was saved");
    }
    assert!(world.storage.names_in(STAGES).is_empty(), "{:?}", world.storage.names_in(STAGES));
    assert!(world.storage.names_in(FOLDER).len() <= 4);
    for name in world.storage.files_in(LOST).keys() {
        let number = name.trim_end_matches(".json");
        assert!(number.parse::<u64>().is_ok(), "{name}");
    }
}

fn kill_at_each_step(scenario: Scenario) {
    let setup = Setup { scenario, kills: 2, is_synced: true, ..SETUP };
    let mut model = Model::new(setup);
    let start = model.start();
    let first = worlds_of(&mut model, start, 0);
    check_rest(first.last().expect("an end"));
    let (mut starts, mut is_lost) = (0, false);
    let held = |world: &&World| world.guards[0].tenure == 1;
    for world in first.iter().filter(held) {
        for successor in [0, 1] {
            let killed_once = killed(&mut model, world, 0);
            let second = worlds_of(&mut model, killed_once, successor);
            check_rest(second.last().expect("an end"));
            let held = |world: &&World| world.guards[successor].tenure == 2;
            for world in second.iter().filter(held) {
                let killed_twice = killed(&mut model, world, successor);
                let third = worlds_of(&mut model, killed_twice, 0);
                let end = third.last().expect("an end");
                check_rest(end);
                is_lost |= !end.storage.names_in(LOST).is_empty();
                starts += 1;
            }
        }
    }
    let steps = first.iter().filter(held).count();
    println!("{scenario:?}: {steps} steps of the first guard, {starts} starts after two kills");
    assert!(steps > 20 && starts > 1_000);
    assert!(is_lost || scenario == Scenario::InPlace, "no run keeps a staged file");
}

#[test]
fn a_kill_at_each_step_of_a_whole_save_leaves_the_old_or_the_new_file() {
    kill_at_each_step(Scenario::Whole);
}

#[test]
fn a_kill_at_each_step_of_a_rename_leaves_the_old_or_the_new_file() {
    kill_at_each_step(Scenario::Renamed);
}

#[test]
fn a_kill_at_each_step_of_a_change_in_place_lets_the_next_tenure_begin() {
    kill_at_each_step(Scenario::InPlace);
}

/// The promise of a file system about names that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameOrder {
    /// Nothing: any of them may be on the storage.
    Any,
    /// A journal: they are on the storage in their order, and a sync of a directory syncs all.
    Journal,
}

/// The storage as it certainly is, and the changes since.
struct PowerRecord {
    order: NameOrder,
    durable: Storage,
    unsynced: Vec<StorageChange>,
}

impl PowerRecord {
    fn record(&mut self, step: &Step, before: &Storage, after: &Storage) {
        self.unsynced.extend(after.changes_since(before));
        let is_synced = |change: &StorageChange| match (step, change) {
            (Step::SyncFile(file), StorageChange::Content(changed, _)) => changed == file,
            (Step::SyncDir(dir), StorageChange::Names(names)) => {
                self.order == NameOrder::Journal || names.iter().any(|(at, _)| at.dir == *dir)
            }
            _ => false,
        };
        let (synced, rest): (Vec<_>, Vec<_>) = self.unsynced.drain(..).partition(is_synced);
        for change in &synced {
            self.durable.redo(change);
        }
        self.unsynced = rest;
    }

    /// Returns each storage that can be found after a power failure now.
    fn found(&self, now: &Storage) -> HashSet<Storage> {
        let count = self.unsynced.len();
        assert!(count < 16, "{count} changes are not synced");
        let kept = |parts: u32, at: usize| parts & (1 << at) != 0;
        let is_name = |at: usize| matches!(self.unsynced[at], StorageChange::Names(_));
        let is_possible = |parts: &u32| {
            let names: Vec<_> = (0..count).filter(|at| is_name(*at)).collect();
            self.order == NameOrder::Any
                || names.windows(2).all(|two| kept(*parts, two[0]) || !kept(*parts, two[1]))
        };
        let storage = |parts: u32| {
            let mut storage = self.durable.clone();
            for (at, change) in self.unsynced.iter().enumerate() {
                if kept(parts, at) {
                    storage.redo(change);
                }
            }
            storage.after_power_failure(now)
        };
        (0..1 << count).filter(is_possible).map(storage).collect()
    }
}

/// Runs a guard to the end of its tenure, with a power failure after each step. After each failure
/// another guard begins and ends a tenure. Returns how many storages were found.
fn fail_after_each_step(model: &mut Model, mut world: World, order: NameOrder) -> usize {
    let durable = world.storage.clone();
    let mut record = PowerRecord { order, durable, unsynced: Vec::new() };
    let mut all = 0;
    loop {
        let step = model.next_step(&world, 0).expect("the tenure is not over");
        let before = world.storage.clone();
        model.step(&mut world, 0).expect("no violation");
        record.record(&step, &before, &world.storage);
        for storage in record.found(&world.storage) {
            all += 1;
            check_found(&world, &storage);
            start_again(model, &world, storage);
        }
        if *step == Step::Release {
            return all;
        }
    }
}

fn check_found(world: &World, found: &Storage) {
    let files = folder(found);
    for (name, (_, content)) in &files {
        assert!(version(content).is_some(), "{name} is {content:?}");
    }
    let version = |name: &str| files.get(name).and_then(|(_, content)| version(content));
    for (file, saved) in world.saved.iter().filter(|(file, _)| **file == "A") {
        assert!(version(file) >= Some(*saved), "{file} is {:?}", version(file));
    }
    for file in ["A", "B", "C"] {
        assert!(version(file).is_some(), "{file} is gone");
    }
}

/// The machine starts again: another guard takes the lock, and the folder is whole.
fn start_again(model: &mut Model, world: &World, found: Storage) {
    let mut world = World { storage: found, ..world.clone() };
    let saved = world.saved.clone();
    // Neither a rename nor a change in place is synced.
    world.saved.retain(|file, _| *file != "B" && *file != "C");
    model.make_move(&mut world, ModelMove::Kill(0)).expect("a kill");
    let granted = world.service.granted;
    model.begin_trace();
    let mut is_begun = false;
    while world.service.granted == granted || world.guards[0].tenure > 0 {
        if let Err(violation) = model.step(&mut world, 0) {
            panic!("{}", model.report(&violation));
        }
        if world.opened > granted && !is_begun {
            is_begun = true;
            let names = world.storage.names_in(FOLDER);
            let is_there = names.contains(&"B.new") || version_of(&world, "B") >= Some(1);
            assert!(!saved.contains_key("B.new") || is_there, "the synced B.new is not there");
        }
    }
    assert!(is_begun);
    assert!(world.storage.names_in(STAGES).is_empty());
}

fn version_of(world: &World, file: &str) -> Option<u8> {
    folder(&world.storage).get(file).and_then(|(_, content)| version(content))
}

fn power_failures(scenario: Scenario, order: NameOrder) -> usize {
    let setup = Setup { scenario, kills: 1, is_synced: true, ..SETUP };
    let mut model = Model::new(setup);
    let world = model.start();
    fail_after_each_step(&mut model, world, order)
}

#[test]
fn a_synced_save_survives_a_power_failure() {
    let found = power_failures(Scenario::Whole, NameOrder::Any);
    println!("{found} storages after a power failure");
    assert!(found > 100);
}

#[test]
fn a_synced_file_survives_a_power_failure_while_it_is_renamed() {
    let found = power_failures(Scenario::Renamed, NameOrder::Journal);
    println!("{found} storages after a power failure");
    assert!(found > 50);
}

/// The fence gives a file a new inode: its content is synced before it gets the name.
#[test]
fn a_power_failure_during_the_fence_leaves_a_whole_file() {
    let setup = Setup { scenario: Scenario::InPlace, kills: 2, is_synced: true, ..SETUP };
    let mut model = Model::new(setup);
    let mut world = model.start();
    while version_of(&world, "C") == Some(0) {
        model.step(&mut world, 0).expect("no violation");
    }
    model.make_move(&mut world, ModelMove::Kill(0)).expect("a kill");
    let mut found = 0;
    // The write of the second tenure is not synced either.
    for order in [NameOrder::Any, NameOrder::Journal] {
        found += fail_after_each_step(&mut model, world.clone(), order);
    }
    println!("{found} storages after a power failure");
    assert!(found > 100);
}
