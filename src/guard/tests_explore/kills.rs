//! A guard that is killed at each of its steps, and its successor that is killed at each of its
//! own.

use super::guarantees::{folder, version};
use super::storage::{FOLDER, LOST, STAGES};
use super::world::{Model, Move, World};
use super::{SETUP, Scenario, Setup};

/// Returns the worlds before each step of a guard that runs alone to its end, and the world after
/// its last step.
fn worlds_of(model: &mut Model, mut world: World, guard: usize) -> Vec<World> {
    let mut worlds = vec![world.clone()];
    let mut made = Vec::new();
    while model.next_step(&world, guard).is_some() {
        // The lease of a killed guard ends.
        if model.moves(&world).contains(&Move::Tick) && world.guards[guard].tenure == 0 {
            model.make_move(&mut world, Move::Tick, &mut made).expect("a tick");
        }
        if let Err(violation) = model.step(&mut world, guard, &mut made) {
            panic!("{violation}\n{}", made.join("\n"));
        }
        worlds.push(world.clone());
    }
    worlds
}

fn killed(model: &mut Model, world: &World, guard: usize) -> World {
    let mut world = world.clone();
    model.make_move(&mut world, Move::Kill(guard), &mut Vec::new()).expect("a kill");
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
