//! A random run of a test: its random number generator, its seed, and its kind.

/// A random number generator with a seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % limit
    }
}

/// A seed that is printed if the test panics before this value is dropped.
pub(super) struct Seed(pub(super) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LATCHFS_SEED={} repeats it, and tells it", self.0);
        }
    }
}

/// The operations and faults that a random run contains besides locking whole files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Whole,
    /// Programs also lock parts of the file.
    Parts,
    /// Other programs move the lock to another name and back, whichever program holds it. Then a
    /// program that locks the first name does not conflict with one that locks the second.
    Moves,
    /// Events and answers are lost. The remaining answers come in order, as from a server.
    Losses,
    /// Other programs move the lock as in [`Kind::Moves`], and the engine is behind a server.
    ServerMoves,
}

impl Kind {
    /// Whether the engine is behind a server, so that events and answers may be lost and answers
    /// come in order.
    pub(super) fn is_remote(self) -> bool {
        matches!(self, Self::Losses | Self::ServerMoves)
    }

    pub(super) fn has_moves(self) -> bool {
        matches!(self, Self::Moves | Self::ServerMoves)
    }
}
