//! Explores all interleavings of the steps of two guards, the ticks of the clock and the kills,
//! and checks each state that is reached.

use super::Setup;
use super::world::{Model, Move, World};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// The result of an exploration.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) transitions: usize,
    pub(super) ends: usize,
    /// The first violation, with the moves that lead to it.
    pub(super) violation: Option<String>,
}

pub(super) struct Explorer {
    model: Model,
    seen: HashSet<u128>,
    hashers: [RandomState; 2],
    explored: Explored,
}

struct Visit {
    world: World,
    moves: Vec<Move>,
    made: Vec<String>,
}

/// Explores all runs of a setup, until a state violates a guarantee.
pub(super) fn explore(setup: Setup) -> Explored {
    let mut explorer = Explorer {
        model: Model::new(setup),
        seen: HashSet::new(),
        hashers: [RandomState::new(), RandomState::new()],
        explored: Explored { states: 0, transitions: 0, ends: 0, violation: None },
    };
    explorer.run();
    explorer.explored
}

impl Explorer {
    fn run(&mut self) {
        let start = self.model.start();
        let mut path = vec![self.visit(start, Vec::new())];
        while let Some(visit) = path.last_mut() {
            let Some(next) = visit.moves.pop() else {
                path.pop();
                continue;
            };
            let mut world = visit.world.clone();
            let mut made = Vec::new();
            self.explored.transitions += 1;
            let done = self.model.make_move(&mut world, next, &mut made);
            if let Err(violation) = done.and_then(|()| self.check_end(&world)) {
                let moves = path.iter().flat_map(|visit| &visit.made).chain(&made);
                let moves: Vec<_> = moves.map(String::as_str).collect();
                self.explored.violation = Some(format!("{violation}\n{}", moves.join("\n")));
                return;
            }
            if self.seen.insert(self.digest(&world)) {
                let visit = self.visit(world, made);
                path.push(visit);
            }
        }
    }

    fn digest(&self, world: &World) -> u128 {
        let [low, high] = [0, 1].map(|at: usize| u128::from(self.hashers[at].hash_one(world)));
        high << 64 | low
    }

    fn visit(&mut self, world: World, made: Vec<String>) -> Visit {
        self.explored.states += 1;
        let moves = self.model.moves(&world);
        self.explored.ends += usize::from(moves.is_empty());
        Visit { world, moves, made }
    }

    fn check_end(&self, world: &World) -> Result<(), String> {
        if self.model.moves(world).is_empty() && !self.model.is_ended(world) {
            return Err("a guard waits for ever".to_owned());
        }
        Ok(())
    }
}
