//! Visits all states that are reached by at most so many moves, the nearest first.

use super::Setup;
use super::world::{ModelState, World};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// The result of an exploration.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    /// How many moves make a tenure ready without an acceptance.
    pub(super) ready: usize,
    /// The number of moves after which it ended.
    pub(super) moves: u32,
    /// The first violation, with the moves that lead to it.
    pub(super) violation: Option<String>,
}

/// Explores all runs of a setup, until a move violates a guarantee.
pub(super) fn explore(setup: Setup) -> Explored {
    let mut world = World::new(setup);
    let hashers = [RandomState::new(), RandomState::new()];
    let key = |state: &ModelState| {
        let [low, high] = [0, 1].map(|at: usize| u128::from(hashers[at].hash_one(state)));
        high << 64 | low
    };
    let start = world.start();
    let mut seen = HashSet::from([key(&start)]);
    // For each visited state the one before it, and the move between them.
    let mut came_by: Vec<(u32, &'static str, u8)> = vec![(0, "", 0)];
    let mut nearest = vec![(start, 0_u32)];
    let mut explored = Explored { states: 1, ready: 0, moves: 0, violation: None };
    let mut next = Vec::new();
    while explored.moves < setup.moves && !nearest.is_empty() {
        explored.moves += 1;
        for (state, at) in nearest.drain(..) {
            for made in world.moves(&state) {
                explored.ready += usize::from(made.what == "becomes ready");
                if let Some(violation) = made.violation {
                    let mut lines = vec![format!("{} {}", made.machine, made.what)];
                    let mut at = at;
                    while at > 0 {
                        let (before, what, machine) = came_by[at as usize];
                        lines.push(format!("{machine} {what}"));
                        at = before;
                    }
                    lines.push(violation.to_owned());
                    lines.reverse();
                    explored.violation = Some(lines.join("\n"));
                    return explored;
                }
                if seen.insert(key(&made.state)) {
                    explored.states += 1;
                    came_by.push((at, made.what, made.machine));
                    next.push((made.state, came_by.len() as u32 - 1));
                }
            }
        }
        std::mem::swap(&mut nearest, &mut next);
    }
    explored
}
