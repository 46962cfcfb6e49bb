//! Restores an engine from the records of the state directory, and encodes new ones. The engine is
//! deterministic, so replaying the commands of the journal yields the same state.

use super::clock_mapping::ClockMapping;
use crate::engine::codec::{self, FORMAT_OLDEST, FORMAT_VERSION, Malformed};
use crate::engine::{Command, EndSession, Engine, Interner, Op, Rules, SessionEnd};
use crate::storage::{Records, Recovered, Sealed, StateError};
use crate::time::{Time, boot_now};

/// The tag of a journal record that contains a command in the format [`FORMAT_OLDEST`].
const OLD_COMMAND: u8 = 0;
/// The tag of a journal record with a command. The number of the command's format follows the tag.
const COMMAND: u8 = 2;
/// The tag of a journal record that describes a start of the daemon. The start may have raised the
/// next token, so a replay without the record would yield other tokens for the commands after it.
const START: u8 = 1;
/// The tag of a journal record that describes a start of the daemon. After that start nobody knows
/// how the tenures ended that have set handovers.
const ENDS_UNKNOWN: u8 = 3;

/// The state of a backend at its start, as restored from the files.
pub(super) struct Restored {
    pub(super) engine: Engine,
    pub(super) timeline: ClockMapping,
    pub(super) tokens_reserved: u64,
    /// The first records to write to the journal.
    pub(super) start_records: Vec<Vec<u8>>,
}

/// An engine during its replay, and the latest mapping between the boot clock and engine time.
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
    let Recovered { tokens_reserved, snapshot, records, same_boot, clean } = recovered;
    let mut replay = JournalReplay::begin(snapshot)?;
    for record in records {
        replay.step(&record?)?;
    }
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
        start_records.insert(0, vec![ENDS_UNKNOWN]);
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
        replay.step(record)?;
    }
    Ok(Restored { engine: replay.engine, timeline, tokens_reserved, start_records })
}

/// Builds the next snapshot from the previous one and the journal records after it.
pub(super) fn rebuild(
    before: Option<Vec<u8>>,
    records: &mut Records,
) -> Result<Vec<u8>, StateError> {
    let mut replay = JournalReplay::begin(before)?;
    for record in records {
        replay.step(&record?)?;
    }
    let never = ClockMapping::starting_at(boot_now(), replay.engine.clock());
    Ok(snapshot(&replay.engine, replay.anchor.unwrap_or(never)))
}

/// Encodes a snapshot of the engine and of the mapping between the boot clock and engine time.
pub(super) fn snapshot(engine: &Engine, timeline: ClockMapping) -> Vec<u8> {
    let mut body = vec![codec::state_format(engine)];
    put_anchor(timeline, &mut body);
    body.extend_from_slice(&codec::encode_engine(engine));
    body
}

/// Appends the record of a command to `out`.
pub(super) fn put_command(at: Time, command: &Command, out: &mut Vec<u8>) {
    out.extend_from_slice(&[COMMAND, command.format()]);
    codec::encode_command(at, command, out);
}

fn start_record(timeline: ClockMapping, token_floor: u64, rules: &Rules) -> Vec<u8> {
    let mut record = vec![START];
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
    fn begin(snapshot: Option<Vec<u8>>) -> Result<Self, StateError> {
        let Some(body) = snapshot else {
            let (engine, known) = (Engine::default(), Interner::default());
            return Ok(Self { engine, anchor: None, known });
        };
        let unreadable = |_| StateError::Unreadable(format!("the snapshot: {Malformed}"));
        let (version, body) = body.split_first().ok_or(Malformed).map_err(unreadable)?;
        if *version > FORMAT_VERSION {
            let why = format!("the snapshot has format {version}, this is {FORMAT_VERSION}");
            return Err(StateError::Unreadable(why));
        }
        let (anchor, body) = take_anchor(body).ok_or(Malformed).map_err(unreadable)?;
        let engine = codec::decode_engine(*version, body).map_err(unreadable)?;
        Ok(Self { engine, anchor: Some(anchor), known: Interner::default() })
    }

    fn step(&mut self, record: &[u8]) -> Result<(), StateError> {
        let unreadable = |_| StateError::Unreadable(format!("a record: {Malformed}"));
        match record {
            [OLD_COMMAND, body @ ..] => self.carry_out(FORMAT_OLDEST, body).map_err(unreadable),
            [COMMAND, format, body @ ..] => self.carry_out(*format, body).map_err(unreadable),
            [START, body @ ..] => {
                let (anchor, body) = take_anchor(body).ok_or(Malformed).map_err(unreadable)?;
                let (floor, body) =
                    body.split_first_chunk().ok_or(Malformed).map_err(unreadable)?;
                let rules = codec::decode_rules(body).map_err(unreadable)?;
                self.engine.raise_tokens(u64::from_le_bytes(*floor));
                self.engine.set_rules(rules);
                self.anchor = Some(anchor);
                Ok(())
            }
            [ENDS_UNKNOWN] => {
                self.engine.forget_ends();
                Ok(())
            }
            _ => Err(unreadable(Malformed)),
        }
    }

    fn carry_out(&mut self, format: u8, command: &[u8]) -> Result<(), Malformed> {
        let (at, mut command) = codec::decode_command(format, command)?;
        self.known.share(&mut command);
        // The events are dropped: before the restart, they were published and the command was
        // answered.
        let _ = self.engine.apply(at, &command, &mut Vec::new());
        Ok(())
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
