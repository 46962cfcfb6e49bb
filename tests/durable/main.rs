//! A durable server (`--data`): runs the tests of every server, `tests/server`, on it, and tests
//! the guarantees that only a server with a log on disk gives.

#[path = "../server/ending.rs"]
mod ending;
#[path = "../server/events.rs"]
mod events;
#[path = "../server/handovers.rs"]
mod handovers;
#[path = "../server/limits.rs"]
mod limits;
#[path = "../server/listing.rs"]
mod listing;
#[path = "../server/locks.rs"]
mod locks;
#[path = "../server/problems.rs"]
mod problems;
#[path = "../seeds/seed_000.rs"]
mod seed_000;
#[path = "../server/sessions.rs"]
mod sessions;
#[path = "../server/waiting.rs"]
mod waiting;

mod faults;
mod full_disk;
mod killed;
mod power;
mod shim;
