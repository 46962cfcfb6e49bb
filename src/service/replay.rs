//! Restores an engine from the records of the state directory, and encodes new ones. The engine is
//! deterministic, so replaying the commands of the journal yields the same state.
//!
//! Maps engine time to the boot clock. Engine time advances with the boot clock, and continues
//! after a reboot where it stopped.
//!
//! The format of backups: the state of an engine in one file whose checksum reveals damage.
//!
//! ```text
//! latchfs backup 1
//! taken 2026-01-15T10:30:00.000Z
//! engine 0123456789abcdef
//! bytes 1234
//! sum (SHA-256 of all above and of the state)
//!
//! (the state)
//! ```

use crate::engine::codec::state_codec;
use crate::engine::codec::state_codec::{
    DecodeError, Malformed, UnknownVersion, check_version, known_version,
};
use crate::engine::{Command, EndSession, Engine, Interner, Op, Rules, SessionEnd};
use crate::storage::{Records, Recovered, Sealed, StateError};
use crate::time::{Time, Wall, boot_now};
use sha2::{Digest, Sha256};
use std::fmt;

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
    // client had got the answer that it was set.
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
    body.extend_from_slice(&state_codec::encode_engine(known_version(), engine));
    body
}

/// Appends the record of a command to `out`.
pub(super) fn put_command(at: Time, command: &Command, out: &mut Vec<u8>) {
    out.extend_from_slice(&[known_version(), COMMAND]);
    state_codec::encode_command(at, command, out);
}

fn start_record(timeline: ClockMapping, token_floor: u64, rules: &Rules) -> Vec<u8> {
    let mut record = vec![known_version(), START];
    put_anchor(timeline, &mut record);
    record.extend_from_slice(&token_floor.to_le_bytes());
    state_codec::encode_rules(rules, &mut record);
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
        let engine = state_codec::decode_engine(*version, body)?;
        Ok(Self { engine, anchor: Some(anchor), known: Interner::default() })
    }

    fn apply(&mut self, record: &[u8]) -> Result<(), DecodeError> {
        let (version, record) = record.split_first().ok_or(Malformed)?;
        check_version(*version)?;
        match record {
            [COMMAND, body @ ..] => {
                let (at, mut command) = state_codec::decode_command(*version, body)?;
                self.known.share(&mut command);
                // The events are dropped: before the restart, they were published and the command
                // was answered.
                let _ = self.engine.apply(at, &command, &mut Vec::new());
            }
            [START, body @ ..] => {
                let (anchor, body) = take_anchor(body).ok_or(Malformed)?;
                let (floor, body) = body.split_first_chunk().ok_or(Malformed)?;
                let rules = state_codec::decode_rules(*version, body)?;
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

/// A moment of which both the boot-clock time and the engine time are known. From then on, both
/// clocks advance at the same speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClockMapping {
    /// The boot-clock time of a moment at which both clocks were read, in the current boot.
    boot: Time,
    /// The engine time at the same moment as `boot`.
    engine: Time,
}

impl ClockMapping {
    pub(super) const fn starting_at(boot: Time, engine: Time) -> Self {
        Self { boot, engine }
    }

    /// Returns a mapping by which the engine's time is `engine` now, and goes on from there: leases
    /// keep the time that they had left.
    pub(super) fn going_on_at(engine: Time) -> Self {
        Self { boot: boot_now(), engine }
    }

    /// Returns the boot-clock time and the engine time of one moment, from which both clocks
    /// advance at the same speed.
    pub(super) const fn readings(self) -> (Time, Time) {
        (self.boot, self.engine)
    }

    /// Returns the engine time now.
    pub(super) fn now(self) -> Time {
        self.engine + boot_now().since(self.boot)
    }

    /// Converts an engine time to boot-clock time; 0 for times before this boot.
    pub(super) fn boot(self, at: Time) -> Time {
        if at >= self.engine {
            self.boot + at.since(self.engine)
        } else {
            self.boot - self.engine.since(at)
        }
    }
}

/// The magic text at the start of a backup, before its version.
const MAGIC: &str = "latchfs backup ";
/// The maximum length in bytes of the lines before the state: five short ones.
const HEAD_BYTES_MAX: usize = 1_024;
/// The maximum length of a backup in bytes: several times that of a million locks of 400 bytes.
pub const BACKUP_BYTES_MAX: usize = 4 << 30;

/// A decoded backup.
#[derive(Debug)]
pub struct Backup {
    /// The time of the backup, by the server's wall clock.
    pub taken: String,
    /// The id of the engine; 0 if it has none.
    pub engine_id: u64,
    /// The state of the engine.
    pub engine: Engine,
}

/// Why a file cannot be used as a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupError {
    /// The file is not a backup.
    Foreign,
    /// Another version of latchfs wrote the file.
    Version(UnknownVersion),
    /// The file is truncated: the number of bytes present and expected.
    CutOff(usize, usize),
    /// The checksum does not match, or the state cannot be decoded.
    Damaged,
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(
                f,
                "it is not a backup; name a file that 'latchfs cluster \
                backup' has written"
            ),
            Self::Version(unknown) => write!(
                f,
                "another version of latchfs wrote it: it has {unknown}; restore it with that one"
            ),
            Self::CutOff(have, want) => {
                write!(f, "it is cut off: {have} bytes of {want} are there; take another one")
            }
            Self::Damaged => write!(f, "it is damaged: its sum is wrong; take another one"),
        }
    }
}

impl std::error::Error for BackupError {}

/// Returns the bytes of a backup of the engine state `state`, which was taken at the time `taken`
/// and which [`state_codec::encode_state`] has encoded.
pub fn write(engine_id: u64, taken: Wall, state: &[u8]) -> Vec<u8> {
    let (version, state) = state.split_first().unwrap_or((&0, &[]));
    let bytes = state.len();
    let head = format!("{MAGIC}{version}\ntaken {taken}\nengine {engine_id:016x}\nbytes {bytes}\n");
    let head = format!("{head}sum {}\n\n", sum(head.as_bytes(), state));
    [head.as_bytes(), state].concat()
}

fn sum(head: &[u8], state: &[u8]) -> String {
    let mut digest = Sha256::new();
    digest.update(head);
    digest.update(state);
    format!("{:x}", digest.finalize())
}

/// Decodes a backup that [`write()`] made. Fails unless all of it is intact.
pub fn read(bytes: &[u8]) -> Result<Backup, BackupError> {
    let begin = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    if !begin.starts_with(MAGIC.as_bytes()) {
        return Err(BackupError::Foreign);
    }
    let line = |name: &str| {
        let mut lines = begin.split(|byte| *byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()));
        value.and_then(|value| std::str::from_utf8(value).ok()).ok_or(BackupError::Damaged)
    };
    let number = |name| line(name)?.parse::<usize>().map_err(|_| BackupError::Damaged);
    let version = u8::try_from(number(MAGIC)?).unwrap_or(u8::MAX);
    check_version(version).map_err(BackupError::Version)?;
    let end = begin.windows(2).position(|pair| pair == b"\n\n").ok_or(BackupError::Damaged)?;
    let (head, state) = (&bytes[..=end], &bytes[end + 2..]);
    let want = number("bytes ")?;
    if state.len() < want {
        return Err(BackupError::CutOff(state.len(), want));
    }
    let said = line("sum ")?;
    let summed = head.len().checked_sub("sum \n".len() + said.len()).ok_or(BackupError::Damaged)?;
    if state.len() != want || sum(&head[..summed], state) != said {
        return Err(BackupError::Damaged);
    }
    let engine =
        state_codec::decode_engine(version, state).map_err(|Malformed| BackupError::Damaged)?;
    let engine_id = u64::from_str_radix(line("engine ")?, 16).map_err(|_| BackupError::Damaged)?;
    Ok(Backup { taken: line("taken ")?.to_owned(), engine_id, engine })
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

#[cfg(test)]
mod clock_mapping_tests {
    use super::*;

    #[test]
    fn engine_time_continues_after_a_reboot() {
        let line = ClockMapping::starting_at(Time::from_secs(5), Time::from_secs(100));
        assert_eq!(line.boot(Time::from_secs(110)), Time::from_secs(15));
        assert_eq!(line.boot(Time::from_secs(97)), Time::from_secs(2));
        assert_eq!(line.boot(Time::from_secs(3)), Time::ZERO);
    }
}

#[cfg(test)]
mod backup_tests {
    use super::*;
    use crate::engine::{ClientId, Grace, Op, OpenSession, Ttl};
    use crate::time::Time;

    fn engine() -> Engine {
        let mut engine = Engine::default();
        let client = ClientId::parse("a").expect("valid");
        let ttl = Some(Ttl::parse("1h").expect("valid"));
        let open = Op::OpenSession(OpenSession { client, ttl, grace: Grace::NONE });
        engine.apply(Time::from_secs(7), &open.into(), &mut vec![]).expect("there is room");
        engine
    }

    #[test]
    fn a_backup_is_read_back_and_a_damaged_one_is_rejected() {
        let bytes = write(7, Wall::now(), &state_codec::encode_state(1, &engine()));
        let backup = read(&bytes).expect("as it was written");
        assert_eq!((backup.engine_id, backup.engine), (7, engine()));
        for at in 0..bytes.len() {
            let cut = read(&bytes[..at]).map(drop);
            assert!(cut.is_err(), "cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(read(&changed).is_err(), "changed at {at}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(read(&longer).map(drop), Err(BackupError::Damaged));
    }

    #[test]
    fn a_backup_of_another_version_is_refused() {
        let text = String::from_utf8_lossy(&write(7, Wall::now(), &[1])).into_owned();
        for (other, found) in [("0", 0), ("2", 2), ("999", u8::MAX)] {
            let other = text.replace("latchfs backup 1", &format!("latchfs backup {other}"));
            let refused = read(other.as_bytes()).map(drop).expect_err("another version");
            assert_eq!(refused, BackupError::Version(UnknownVersion { found }));
            let said = refused.to_string();
            let both = format!("version {found}, and this latchfs knows version 1");
            assert!(said.contains(&both), "{said}");
        }
        assert_eq!(read(b"PK").map(drop), Err(BackupError::Foreign));
    }
}
