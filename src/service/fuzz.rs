//! The recovery of a state directory, for the fuzzer in `tests/fuzz`. Not a part of the library's
//! interface.

use super::replay;
use crate::engine::codec::state_codec::encode_engine;
use crate::engine::{Command, Rules};
use crate::storage::{StateError, fuzz};
use crate::time::Time;
use std::path::Path;

/// Returns the journal record of a command.
pub fn record(at: Time, command: &Command) -> Vec<u8> {
    let mut record = Vec::new();
    replay::put_command(at, command, &mut record);
    record
}

/// Recovers a state directory and replays its records. Returns the encoded engine.
pub fn restore(path: &Path) -> Result<Vec<u8>, StateError> {
    let restored = replay::restore(fuzz::recovered(path)?, Rules::default())?;
    Ok(encode_engine(1, &restored.engine))
}

/// Returns the body of a snapshot of the state directory.
#[cfg(test)]
pub(crate) fn snapshot(engine: &engine::Engine) -> Vec<u8> {
    let anchor = replay::ClockMapping::starting_at(Time::from_secs(5), Time::ZERO);
    replay::snapshot(engine, anchor)
}
