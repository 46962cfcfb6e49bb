//! Restores an engine from the records of the state directory, and encodes new ones. The engine is
//! deterministic, so replaying the commands of the journal yields the same state.

use super::clock_mapping::ClockMapping;
use crate::engine::codec::{self, DecodeError, Malformed, check_version, known_version};
use crate::engine::{Command, EndSession, Engine, Interner, Op, Rules, SessionEnd};
use crate::storage::{Records, Recovered, Sealed, StateError};
use crate::time::{Time, boot_now};

/// The tag of a journal record with a command. The version of the encoding precedes the tag of each
/// record.
const COMMAND: u8 = 0;
/// The tag of a journal record that describes a start of the daemon. The start may have raised the
/// next token, so a replay without the record would yield other tokens for the commands after it.
const START: u8 = 1;
/// The tag of a journal record that describes a start of the daemon. After that start nobody knows
/// how the tenures ended that have set handovers.
const ENDS_UNKNOWN: u8 = 2;

/// The state of a backend at its start, as restored from the files.
pub(super) struct Restored {
    pub(super) engine: Engine,
    pub(super) timeline: ClockMapping,
    pub(super) tokens_reserved: u64,
    /// The first records to write to the journal.
    pub(super) start_records: Vec<Vec<u8>>,
}

/// An engine during its replay, and the latest mapping between the boot clock and engine time.
#[derive(Default)]
struct JournalReplay {
    engine: Engine,
    anchor: Option<ClockMapping>,
    known: Interner,
}

/// Restores the engine, and its mapping between the boot clock and engine time, from the files of a
/// state directory.
///
/// Within one boot, leases keep their remaining time. After a reboot the remaining time counts from
/// now, since it is unknown how long the machine was off: a lease may last longer than promised,
/// never shorter.
pub(super) fn restore(recovered: Recovered, rules: Rules) -> Result<Restored, StateError> {
    let Recovered { tokens_reserved, snapshot, mut records, same_boot, clean } = recovered;
    let mut replay = JournalReplay::of(snapshot, &mut records)?;
    let timeline = match replay.anchor {
        Some(anchor) if same_boot => anchor,
        _ => ClockMapping::going_on_at(replay.engine.clock()),
    };
    // Unless the shutdown was clean, the last records may be missing, and with them the record of
    // tokens that clients hold. So the next token is raised above all that may have been issued.
    let floor = if clean { 0 } else { tokens_reserved };
    let mut start_records = vec![start_record(timeline, floor, &rules)];
    // A later handover of the same tenure or of another one may be among the missing records. Its
    // client had been told that it was set.
    if !clean && !same_boot && replay.engine.remembered() > 0 {
        start_records.insert(0, vec![known_version(), ENDS_UNKNOWN]);
    }
    let at = timeline.now().max(replay.engine.clock());
    // Sessions without a ttl belonged to the daemon's old process and end with it. Their leases
    // enter grace, so that a client process that still runs can be rebound to its lease.
    for session in replay.engine.unending_sessions() {
        let end = EndSession { session, end: SessionEnd::Expired };
        let mut record = Vec::new();
        put_command(at, &Op::EndSession(end).into(), &mut record);
        start_records.push(record);
    }
    for record in &start_records {
        replay.apply(record).map_err(|error| unreadable(&records, "a record", error))?;
    }
    Ok(Restored { engine: replay.engine, timeline, tokens_reserved, start_records })
}

/// Builds the next snapshot from the previous one and the journal records after it.
pub(super) fn rebuild(
    before: Option<Vec<u8>>,
    records: &mut Records,
) -> Result<Vec<u8>, StateError> {
    let replay = JournalReplay::of(before, records)?;
    let never = ClockMapping::starting_at(boot_now(), replay.engine.clock());
    Ok(snapshot(&replay.engine, replay.anchor.unwrap_or(never)))
}

/// Encodes a snapshot of the engine and of the mapping between the boot clock and engine time.
pub(super) fn snapshot(engine: &Engine, timeline: ClockMapping) -> Vec<u8> {
    let mut body = vec![known_version()];
    put_anchor(timeline, &mut body);
    body.extend_from_slice(&codec::encode_engine(known_version(), engine));
    body
}

/// Appends the record of a command to `out`.
pub(super) fn put_command(at: Time, command: &Command, out: &mut Vec<u8>) {
    out.extend_from_slice(&[known_version(), COMMAND]);
    codec::encode_command(at, command, out);
}

fn start_record(timeline: ClockMapping, token_floor: u64, rules: &Rules) -> Vec<u8> {
    let mut record = vec![known_version(), START];
    put_anchor(timeline, &mut record);
    record.extend_from_slice(&token_floor.to_le_bytes());
    codec::encode_rules(rules, &mut record);
    record
}

fn put_anchor(timeline: ClockMapping, out: &mut Vec<u8>) {
    let (boot, engine) = timeline.readings();
    out.extend_from_slice(&boot.as_nanos().to_le_bytes());
    out.extend_from_slice(&engine.as_nanos().to_le_bytes());
}

impl JournalReplay {
    /// Replays the records that follow a snapshot.
    fn of(snapshot: Option<Vec<u8>>, records: &mut Records) -> Result<Self, StateError> {
        let begun = snapshot.map_or_else(|| Ok(Self::default()), |body| Self::begin(&body));
        let mut replay = begun.map_err(|error| unreadable(records, "the snapshot", error))?;
        while let Some(record) = records.next() {
            let applied = replay.apply(&record?);
            applied.map_err(|error| unreadable(records, "a record", error))?;
        }
        Ok(replay)
    }

    fn begin(snapshot: &[u8]) -> Result<Self, DecodeError> {
        let (version, body) = snapshot.split_first().ok_or(Malformed)?;
        check_version(*version)?;
        let (anchor, body) = take_anchor(body).ok_or(Malformed)?;
        let engine = codec::decode_engine(*version, body)?;
        Ok(Self { engine, anchor: Some(anchor), known: Interner::default() })
    }

    fn apply(&mut self, record: &[u8]) -> Result<(), DecodeError> {
        let (version, record) = record.split_first().ok_or(Malformed)?;
        check_version(*version)?;
        match record {
            [COMMAND, body @ ..] => {
                let (at, mut command) = codec::decode_command(*version, body)?;
                self.known.share(&mut command);
                // The events are dropped: before the restart, they were published and the command
                // was answered.
                let _ = self.engine.apply(at, &command, &mut Vec::new());
            }
            [START, body @ ..] => {
                let (anchor, body) = take_anchor(body).ok_or(Malformed)?;
                let (floor, body) = body.split_first_chunk().ok_or(Malformed)?;
                let rules = codec::decode_rules(*version, body)?;
                self.engine.raise_tokens(u64::from_le_bytes(*floor));
                self.engine.set_rules(rules);
                self.anchor = Some(anchor);
            }
            [ENDS_UNKNOWN] => self.engine.forget_ends(),
            _ => return Err(DecodeError::Malformed),
        }
        Ok(())
    }
}

/// Returns the error for a snapshot or a record that is intact and cannot be decoded.
fn unreadable(records: &Records, what: &str, error: DecodeError) -> StateError {
    match error {
        DecodeError::Version(unknown) => StateError::UnknownVersion {
            file: records.place(),
            found: unknown.found.into(),
            known: known_version().into(),
        },
        DecodeError::Malformed => StateError::Unreadable(format!("{what}: {error}")),
    }
}

fn take_anchor(bytes: &[u8]) -> Option<(ClockMapping, &[u8])> {
    let (boot, bytes) = bytes.split_first_chunk()?;
    let (engine, bytes) = bytes.split_first_chunk()?;
    let time = |bytes: &[u8; 8]| Time::from_nanos(u64::from_le_bytes(*bytes));
    Some((ClockMapping::starting_at(time(boot), time(engine)), bytes))
}
/// Starts a thread that replaces a sealed journal by a snapshot: by `copy`, or without it by one
/// that it builds from the journal.
pub(super) fn compact_in_background(sealed: Sealed, copy: Option<Vec<u8>>) {
    let compact = move || {
        let done = match copy {
            Some(body) => sealed.replace_by(&body),
            None => sealed.compact(rebuild),
        };
        if let Err(error) = done {
            log::warn!("the journal could not be cut back, and stays long: {error}");
        }
    };
    let thread = std::thread::Builder::new().name("snapshot".to_owned());
    if let Err(error) = thread.spawn(compact) {
        log::warn!("the journal can't be cut back yet: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::StateDir;
    use std::fs;

    /// A record of another version, and a snapshot of one, are refused by a sentence that names the
    /// file and both versions.
    #[test]
    fn another_version_of_a_record_is_refused() {
        let dir = std::env::temp_dir().join(format!("latchfs-replay-{}", std::process::id()));
        for found in [0, known_version() + 1] {
            let _ = fs::remove_dir_all(&dir);
            let mut command = Vec::new();
            put_command(Time::ZERO, &Op::Settle.into(), &mut command);
            command[0] = found;
            let said = |records: &[&[u8]], snapshot: Option<&[u8]>| {
                let (mut state, _) = StateDir::open(&dir).expect("new");
                for record in records {
                    state.append(record).expect("room");
                }
                match snapshot {
                    Some(snapshot) => state.close(snapshot).expect("room"),
                    None => drop(state),
                }
                let (_, recovered) = StateDir::open(&dir).expect("sound");
                let refused = restore(recovered, Rules::default()).map(drop);
                refused.expect_err("another version").to_string()
            };
            let both = format!("has version {found}, and this latchfs knows version 1");
            let record = said(&[&command], None);
            let journal = dir.join("journal.1").display().to_string();
            assert!(record.starts_with(&journal) && record.contains(&both), "{record}");
            let _ = fs::remove_dir_all(&dir);
            let snapshot = said(&[], Some(&command));
            assert!(snapshot.starts_with(&*dir.to_string_lossy()), "{snapshot}");
            assert!(snapshot.contains(&both), "{snapshot}");
        }
        fs::remove_dir_all(&dir).expect("ours");
    }
}
