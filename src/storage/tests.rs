//! Tests of recovery: the crashes that the files survive, and the damage that a start reports.

use super::atomic_file::crash;
use super::journal::{Journal, JournalSpace, LastJournal};
use super::*;
use crate::storage::journal::RESERVE_BYTES;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory of one test, which is removed at its end.
struct StateScratch(PathBuf);

impl StateScratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("latchfs-state-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("the temporary directory can be written");
        Self(path)
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.state().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.state()).expect("it is there");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("it can be read").file_name().into_string().expect("ASCII"))
            .filter(|name| !matches!(name.as_str(), "README" | "lock" | "tokens"))
            .collect();
        names.sort();
        names
    }

    /// Copies the directory, for a step that must not change the original.
    fn copy(&self) -> Self {
        let copy = Self::new();
        fs::create_dir(copy.state()).expect("it is new");
        for entry in fs::read_dir(self.state()).expect("it is there") {
            let path = entry.expect("it can be read").path();
            let name = path.file_name().expect("it has a name");
            fs::copy(&path, copy.state().join(name)).expect("it can be copied");
        }
        copy
    }

    fn open(&self) -> Result<(StateDir, Recovered), StateError> {
        StateDir::open(&self.state())
    }

    /// Opens the directory, reads everything, and drops it without closing it, as after `kill -9`.
    fn read(&self) -> Read {
        let (state, found) = self.open().expect("the directory is sound");
        let (same_boot, clean, tokens) = (found.same_boot, found.clean, found.tokens_reserved);
        let snapshot = found.snapshot.map(|bytes| String::from_utf8(bytes).expect("text"));
        let records = found.records.map(|record| text(record.expect("it is whole"))).collect();
        drop(state);
        Read { snapshot, records, same_boot, clean, tokens }
    }

    fn refusal(&self) -> String {
        self.open().map(drop).expect_err("the directory is not sound").to_string()
    }

    /// Returns the recovered state as one line: `[snapshot] a b c`.
    fn said(&self) -> String {
        let read = self.read();
        let snapshot = read.snapshot.map(|text| format!("[{text}] ")).unwrap_or_default();
        snapshot + &read.records.join(" ")
    }

    /// Makes all files look as if they were written before the last start of the machine.
    fn restart_machine(&self) {
        restart_machine(&self.state());
    }
}

/// Makes all files of a state directory look as if they were written before the last start of the
/// machine.
pub(crate) fn restart_machine(state: &Path) {
    for entry in fs::read_dir(state).expect("it is there") {
        let path = entry.expect("it can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("ASCII");
        if matches!(name, "README" | "lock" | "tokens" | "clean") || path.is_dir() {
            continue;
        }
        let mut bytes = fs::read(&path).expect("it can be read");
        if bytes.len() >= 64 && bytes[0] != 0 {
            bytes[16..32].copy_from_slice(&[7; 16]);
            let sum = crc32fast::hash(&bytes[..60]);
            bytes[60..64].copy_from_slice(&sum.to_le_bytes());
            fs::write(&path, bytes).expect("it can be written");
        }
    }
}

impl Drop for StateScratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Read {
    snapshot: Option<String>,
    records: Vec<String>,
    same_boot: bool,
    clean: bool,
    tokens: u64,
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

/// Makes a snapshot as the engine would in production: here the state is the text of all records,
/// joined.
fn rebuild(before: Option<Vec<u8>>, records: &mut Records) -> Result<Vec<u8>, StateError> {
    let mut all: Vec<String> = before.map(text).into_iter().collect();
    for record in records {
        all.push(text(record?));
    }
    Ok(all.join("+").into_bytes())
}

fn filled(records: &[&str]) -> StateScratch {
    let scratch = StateScratch::new();
    let (mut state, _) = scratch.open().expect("a new directory");
    for record in records {
        state.append(record.as_bytes()).expect("there is room");
    }
    scratch
}

#[test]
fn a_new_directory_is_private_and_has_a_readme() {
    let scratch = StateScratch::new();
    let read = scratch.read();
    assert!(read.same_boot && read.clean && read.snapshot.is_none() && read.records.is_empty());
    assert_eq!(read.tokens, 0);
    let mode = |path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(scratch.state()), 0o700);
    assert_eq!((mode(scratch.file("journal.1")), mode(scratch.file("tokens"))), (0o600, 0o600));
    let readme = fs::read_to_string(scratch.file("README")).expect("it is there");
    for name in ["tokens", "snapshot.N", "journal.N", "clean", "audit.log", "lock"] {
        assert!(readme.contains(&format!("\n  {name} ")), "{name}");
    }
}

#[test]
fn records_survive_a_kill() {
    let scratch = filled(&["a", "b"]);
    let (mut state, found) = scratch.open().expect("sound");
    assert!(found.same_boot && !found.clean);
    assert_eq!(found.records.count(), 2);
    state.append(b"c").expect("room");
    drop(state);
    assert_eq!(scratch.said(), "a b c");
    assert_eq!(scratch.names(), ["journal.1"]);
}

/// A killed daemon leaves unused allocated space in the journal, and the next daemon uses it.
#[test]
fn unused_allocated_space_is_no_damage() {
    let scratch = filled(&["a", "b"]);
    let journal = scratch.file("journal.1");
    let bytes = || fs::metadata(&journal).expect("it is there").len();
    let file = OpenOptions::new().write(true).open(&journal).expect("it is ours");
    let length = bytes() + 2 * RESERVE_BYTES;
    file.set_len(length).expect("room");
    let (mut state, found) = scratch.open().expect("sound");
    assert_eq!((found.records.count(), bytes()), (2, length));
    state.append(b"c").expect("room");
    assert_eq!(bytes(), length);
    drop(state);
    assert_eq!(scratch.said(), "a b c");
}

/// Appends records of the maximum length over several steps of allocation.
#[test]
fn records_continue_across_allocation_steps() {
    let scratch = StateScratch::new();
    let (mut state, _) = scratch.open().expect("new");
    let record = |number: usize| vec![b'a' + (number % 26) as u8; RECORD_BYTES_MAX - number * 7];
    let count = 6 * RESERVE_BYTES as usize / RECORD_BYTES_MAX;
    for number in 0..count {
        state.append(&record(number)).expect("room");
    }
    drop(state);
    let read = scratch.read().records;
    assert_eq!(read.len(), count);
    assert!(read.into_iter().enumerate().all(|(number, read)| read.into_bytes() == record(number)));
}

#[test]
fn a_record_taken_back_is_replaced_by_the_next() {
    let scratch = filled(&["a"]);
    let (mut state, _) = scratch.open().expect("sound");
    state.append("long".repeat(1_000).as_bytes()).expect("room");
    state.take_back();
    // A second `take_back` in a row has no effect: the record before the removed one stays.
    state.take_back();
    state.append(b"b").expect("room");
    state.append(b"c").expect("room");
    state.take_back();
    let left = fs::read(scratch.file("journal.1")).expect("it is there");
    drop(state);
    assert_eq!(scratch.said(), "a b");
    // After a kill, the taken-back record `c` is still in the file. This is harmless: a record that
    // is taken back does not change the state when it is replayed.
    fs::write(scratch.file("journal.1"), left).expect("room");
    assert_eq!(scratch.said(), "a b c");
    let (mut state, _) = scratch.open().expect("sound");
    state.append(b"d").expect("room");
    drop(state);
    assert_eq!(scratch.said(), "a b c d");
}

#[test]
fn records_have_a_maximum_length() {
    let scratch = filled(&[]);
    let (mut state, _) = scratch.open().expect("sound");
    assert!(state.append(b"").is_err());
    assert!(state.append(&vec![b'x'; RECORD_BYTES_MAX + 1]).is_err());
    state.append(&vec![b'x'; RECORD_BYTES_MAX]).expect("just right");
    drop(state);
    assert_eq!(scratch.said().len(), RECORD_BYTES_MAX);
}

#[test]
fn a_tail_torn_at_any_byte_is_truncated() {
    let whole = filled(&["first", "second", "third"]);
    let bytes = fs::read(whole.file("journal.1")).expect("it is there");
    for cut in 0..bytes.len() - 64 {
        for restarted in [false, true] {
            let torn = whole.copy();
            fs::write(torn.file("journal.1"), &bytes[..bytes.len() - cut]).expect("room");
            if restarted {
                torn.restart_machine();
            }
            let expected = match cut {
                0 => "first second third",
                1..=21 => "first second",
                22..=43 => "first",
                _ => "",
            };
            assert_eq!(torn.said(), expected, "cut by {cut}");
            let (mut state, _) = torn.open().expect("it was mended");
            state.append(b"next").expect("room");
            drop(state);
            assert_eq!(torn.said(), format!("{expected} next").trim_start());
        }
    }
}

/// A flipped bit in the last record looks like a torn write; one before it is damage.
#[test]
fn a_flipped_bit_is_damage_unless_no_record_follows() {
    let whole = filled(&["first", "second", "third"]);
    let bytes = fs::read(whole.file("journal.1")).expect("it is there");
    let last = bytes.len() - 21;
    for restarted in [false, true] {
        for at in 0..bytes.len() {
            let flipped = whole.copy();
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            fs::write(flipped.file("journal.1"), changed).expect("room");
            if restarted && at >= 64 {
                flipped.restart_machine();
            }
            if at >= last {
                assert_eq!(flipped.said(), "first second", "byte {at}");
                continue;
            }
            let said = flipped.refusal();
            assert!(said.contains("journal.1 "), "byte {at}: {said}");
            let version = (8..12).contains(&at);
            let expected = if version { "this latchfs knows version 1" } else { "is damaged at" };
            assert!(said.contains(expected), "byte {at}: {said}");
        }
    }
}

#[test]
fn a_flipped_bit_in_a_snapshot_is_damage() {
    let scratch = filled(&["a"]);
    let (state, _) = scratch.open().expect("sound");
    state.close(b"the state").expect("room");
    let bytes = fs::read(scratch.file("snapshot.2")).expect("it is there");
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        fs::write(scratch.file("snapshot.2"), &changed).expect("room");
        assert!(scratch.refusal().contains("snapshot.2 "), "byte {at}");
        fs::write(scratch.file("snapshot.2"), &changed[..at]).expect("room");
        assert!(scratch.refusal().contains("snapshot.2 is damaged"), "cut at {at}");
    }
}

#[test]
fn a_damage_report_names_the_file_the_offset_and_the_remedy() {
    let scratch = filled(&["first", "second"]);
    let file = OpenOptions::new().write(true).open(scratch.file("journal.1")).expect("there");
    file.write_all_at(b"F", 80).expect("room");
    let said = scratch.refusal();
    assert!(said.contains("journal.1 is damaged at byte 64: record 1 can't be read"), "{said}");
    assert!(said.contains("move its files journal.* and snapshot.* away"), "{said}");
    // The error message advises to move the journal away. After that the directory can be opened.
    fs::remove_file(scratch.file("journal.1")).expect("it is there");
    let read = scratch.read();
    assert!(read.records.is_empty() && !read.clean);
}

/// A client writes bytes that look like a record into a record that `take_back` then removes.
#[test]
fn bytes_in_a_record_are_never_read_as_a_record() {
    let scratch = filled(&[]);
    let (mut state, _) = scratch.open().expect("sound");
    let forged = |seq| {
        let mut bytes = vec![b'-'; 2];
        bytes.extend_from_slice(&3_u32.to_le_bytes());
        bytes.extend_from_slice(&journal::sum(0, seq, b"bad").to_le_bytes());
        bytes.extend_from_slice(&u64::to_le_bytes(seq));
        bytes.extend_from_slice(b"bad");
        bytes
    };
    state.append(&forged(2)).expect("room");
    state.take_back();
    state.append(b"ok").expect("room");
    drop(state);
    assert_eq!(scratch.said(), "ok");
}

#[test]
fn tokens_persist_and_never_restart() {
    let scratch = StateScratch::new();
    let (mut state, _) = scratch.open().expect("new");
    state.reserve_tokens(4_096).expect("room");
    state.reserve_tokens(8_192).expect("room");
    state.reserve_tokens(5).expect("nothing to do");
    drop(state);
    assert_eq!(scratch.read().tokens, 8_192);

    fs::write(scratch.file("tokens"), "latchfs tokens 1\nreserved 1\nsum 00000000\n").expect("ok");
    let said = scratch.refusal();
    assert!(said.contains("/tokens is damaged, so the next fencing token is not known"), "{said}");
    fs::write(scratch.file("tokens"), "").expect("ok");
    assert!(scratch.refusal().contains("/tokens is damaged"));
    fs::write(scratch.file("tokens"), "latchfs tokens 9\n").expect("ok");
    let said = scratch.refusal();
    assert!(said.contains("tokens has version 9, and this latchfs knows version 1"), "{said}");
    fs::remove_file(scratch.file("tokens")).expect("it is there");
    let said = scratch.refusal();
    assert!(said.contains("/tokens is missing, so the next fencing token is not known"), "{said}");
}

#[test]
fn a_clean_shutdown_is_recognized() {
    let scratch = filled(&["a", "b"]);
    let (state, _) = scratch.open().expect("sound");
    state.close(b"ab").expect("room");
    assert_eq!(scratch.names(), ["clean", "journal.2", "snapshot.2"]);
    let (mut state, found) = scratch.open().expect("sound");
    assert!(found.clean && found.same_boot);
    assert_eq!(found.snapshot.as_deref(), Some(&b"ab"[..]));
    // The mark of a clean shutdown, the file `clean`, is removed when the directory is opened,
    // before a record can be appended.
    assert_eq!(scratch.names(), ["journal.2", "snapshot.2"]);
    state.append(b"c").expect("room");
    drop((state, found.records));
    assert!(!scratch.read().clean);
    assert_eq!(scratch.said(), "[ab] c");
}

#[test]
fn the_mark_of_an_earlier_shutdown_is_ignored() {
    let scratch = filled(&["a"]);
    let (state, _) = scratch.open().expect("sound");
    state.close(b"a").expect("room");
    let mark = fs::read(scratch.file("clean")).expect("it is there");
    let (mut state, _) = scratch.open().expect("sound");
    state.append(b"b").expect("room");
    drop(state);
    fs::write(scratch.file("clean"), mark).expect("room");
    assert!(!scratch.read().clean);
}

#[test]
fn a_restart_of_the_machine_is_detected_once() {
    let scratch = filled(&["a"]);
    scratch.restart_machine();
    let (mut state, found) = scratch.open().expect("sound");
    assert!(!found.same_boot && !found.clean);
    assert_eq!(scratch.names(), ["journal.1", "journal.2"]);
    state.append(b"b").expect("room");
    drop((state, found));
    assert!(scratch.read().same_boot);
    assert_eq!(scratch.said(), "a b");
}

#[test]
fn a_second_daemon_learns_the_process_id_of_the_first() {
    let scratch = StateScratch::new();
    let (state, _) = scratch.open().expect("new");
    let expected = format!("is in use by process {}; stop that one", std::process::id());
    let said = scratch.refusal();
    assert!(said.contains(&expected), "{said}");
    drop(state);
    scratch.read();
}

#[test]
fn a_path_that_is_no_directory_is_reported() {
    let scratch = StateScratch::new();
    fs::write(scratch.state(), "").expect("room");
    assert!(scratch.refusal().contains("is not a directory"));
    let below = StateDir::open(&scratch.state().join("below")).expect_err("below a file");
    assert!(below.to_string().contains("is not a directory"), "{below}");
}

#[test]
fn missing_files_are_reported() {
    let scratch = filled(&["a"]);
    let (mut state, _) = scratch.open().expect("sound");
    state.rotate().expect("room").compact(rebuild).expect("room");
    state.append(b"b").expect("room");
    drop(state.rotate().expect("room"));
    drop(state);
    assert_eq!(scratch.names(), ["journal.2", "journal.3", "snapshot.2"]);
    let without = |gone: &[&str]| {
        let copy = scratch.copy();
        for name in gone {
            fs::remove_file(copy.file(name)).expect("it is there");
        }
        copy.refusal()
    };
    assert!(without(&["journal.2"]).contains("journal.2 is missing"));
    assert!(without(&["snapshot.2"]).contains("snapshot.2 is missing"));
    assert!(without(&["journal.2", "journal.3"]).contains("journal.2 is missing"));
    assert!(without(&["tokens"]).contains("tokens is missing"));
    let copy = scratch.copy();
    fs::copy(copy.file("journal.3"), copy.file("journal.4")).expect("room");
    assert!(copy.refusal().contains("journal.4 is damaged at byte 32"), "{}", copy.refusal());
    // Truncates a journal that is followed by another.
    let copy = scratch.copy();
    let file = OpenOptions::new().write(true).open(copy.file("journal.2")).expect("there");
    file.set_len(70).expect("it can be cut");
    assert!(copy.refusal().contains("journal.2 is damaged at byte 64"), "{}", copy.refusal());
}

#[test]
fn files_of_other_programs_stay() {
    let scratch = filled(&["a"]);
    for name in ["notes.txt", "journal.01", "journal.x", "notes.tmp", "snapshot."] {
        fs::write(scratch.file(name), "mine").expect("room");
    }
    for name in ["journal.7.tmp", "snapshot.2.tmp", "tokens.tmp", "clean.tmp"] {
        fs::write(scratch.file(name), "left over").expect("room");
    }
    assert_eq!(scratch.said(), "a");
    let names = ["journal.01", "journal.1", "journal.x", "notes.tmp", "notes.txt", "snapshot."];
    assert_eq!(scratch.names(), names);
}

#[test]
fn appends_continue_during_a_compaction() {
    let scratch = filled(&["a", "b"]);
    let (mut state, _) = scratch.open().expect("sound");
    state.append(b"refused").expect("room");
    state.take_back();
    let sealed = state.rotate().expect("room");
    assert!(state.rotate().is_err(), "one at a time");
    state.append(b"c").expect("room");
    let compacting = std::thread::spawn(move || sealed.compact(rebuild));
    state.append(b"d").expect("room");
    compacting.join().expect("no panic").expect("room");
    state.append(b"e").expect("room");
    drop(state);
    assert_eq!(scratch.names(), ["journal.2", "snapshot.2"]);
    assert_eq!(scratch.said(), "[a+b] c d e");
}

#[test]
fn a_failed_compaction_loses_nothing() {
    let scratch = filled(&["a"]);
    let (mut state, _) = scratch.open().expect("sound");
    let failed = state
        .rotate()
        .expect("room")
        .compact(|_, _| Err(StateError::Unreadable("record 1 has no verb".to_owned())));
    assert!(failed.expect_err("it said so").to_string().contains("record 1 has no verb"));
    state.append(b"b").expect("room");
    drop(state.rotate().expect("the claim was given back"));
    state.append(b"c").expect("room");
    assert_eq!(scratch.names(), ["journal.1", "journal.2", "journal.3"]);
    state.rotate().expect("room").compact(rebuild).expect("room");
    drop(state);
    assert_eq!(scratch.names(), ["journal.4", "snapshot.4"]);
    assert_eq!(scratch.said(), "[a+b+c] ");
}

#[test]
fn rotation_depends_on_the_lengths_of_journal_and_snapshot() {
    let scratch = filled(&[]);
    let (mut state, _) = scratch.open().expect("sound");
    let record = vec![b'x'; RECORD_BYTES_MAX];
    let fill = |state: &mut StateDir| {
        let mut count = 0;
        while !state.wants_rotation() {
            state.append(&record).expect("room");
            count += 1;
        }
        count
    };
    assert_eq!(fill(&mut state), 128);
    let sealed = state.rotate().expect("room");
    assert!(!state.wants_rotation());
    sealed.compact(|_, _| Ok(vec![b's'; JOURNAL_BYTES_MIN as usize])).expect("room");
    assert_eq!(fill(&mut state), 256);
}

/// Simulates a crash between any two steps of `work`, and checks the state that a restart finds.
fn crash_anywhere(start: &StateScratch, work: impl Fn(StateDir) -> Result<(), StateError>) -> u32 {
    let allowed = ["", "a b", "[a+b] ", "a b c", "[a+b] c", "[a+b+c] "];
    for points in 0..100 {
        let scratch = start.copy();
        crash::after(Some(points));
        let result = scratch.open().and_then(|(state, _)| work(state));
        crash::after(None);
        let said = scratch.said();
        assert!(allowed.contains(&said.as_str()), "after {points} steps: {said}");
        assert!(said.matches('c').count() <= 1, "after {points} steps: {said}");
        // The directory can be used after the recovery.
        let (mut state, _) = scratch.open().expect("sound");
        state.append(b"z").expect("room");
        state.rotate().expect("room").compact(rebuild).expect("room");
        drop(state);
        let all = scratch.said();
        let expected = said.replace(['[', ']'], "").trim().replace(' ', "+") + "+z";
        assert_eq!(all, format!("[{}] ", expected.trim_start_matches('+')));
        if result.is_ok() {
            return points;
        }
    }
    panic!("the work has an end");
}

#[test]
fn a_crash_between_any_two_steps_loses_nothing() {
    let started = filled(&["a", "b"]);
    let io = |error| StateError::io(Path::new("state"), error);
    let steps = crash_anywhere(&started, |mut state| {
        let sealed = state.rotate().map_err(io)?;
        state.append(b"c").map_err(io)?;
        sealed.compact(rebuild)?;
        state.close(b"a+b+c")
    });
    assert!(steps > 20, "{steps} steps are not all");
    // Opening the directory after a restart of the machine writes to the disk, so the test also
    // simulates crashes between these writes.
    started.restart_machine();
    crash_anywhere(&started, |mut state| {
        state.append(b"c").map_err(io)?;
        state.rotate().map_err(io)?.compact(rebuild)
    });
    let empty = StateScratch::new();
    fs::create_dir(empty.state()).expect("new");
    crash_anywhere(&empty, |_| Ok(()));
}

#[test]
fn a_crash_while_tokens_are_reserved_keeps_the_old_or_the_new_ceiling() {
    let start = filled(&[]);
    let (mut state, _) = start.open().expect("sound");
    state.reserve_tokens(100).expect("room");
    drop(state);
    for points in 0.. {
        let scratch = start.copy();
        let (mut state, _) = scratch.open().expect("sound");
        crash::after(Some(points));
        let reserved = state.reserve_tokens(200);
        crash::after(None);
        drop(state);
        let found = scratch.read().tokens;
        assert!(found == 200 || (found == 100 && reserved.is_err()), "{found}");
        if reserved.is_ok() {
            break;
        }
    }
}

/// Returns a journal of three pages, and its bytes.
fn paged() -> (StateScratch, Vec<u8>) {
    let scratch = filled(&[]);
    let (mut state, _) = scratch.open().expect("sound");
    for letter in b'a'..=b'l' {
        state.append(&vec![letter; 1_000]).expect("room");
    }
    drop(state);
    let bytes = fs::read(scratch.file("journal.1")).expect("it is there");
    assert_eq!(bytes.len(), 64 + 12 * 1_016);
    (scratch, bytes)
}

#[test]
fn pages_lost_in_a_power_failure_truncate_the_journal() {
    let (scratch, bytes) = paged();
    // The second page of the file, or its second half, did not reach the disk, and the third page
    // did.
    for from in [4_096, 4_100, 6_000, 8_192 - 16] {
        let mut lost = bytes.clone();
        lost[from..8_192].fill(0);
        fs::write(scratch.file("journal.1"), &lost).expect("room");
        let same_boot = scratch.copy();
        assert!(same_boot.refusal().contains("is damaged at"), "no power failure here");
        let restarted = scratch.copy();
        restarted.restart_machine();
        assert_eq!(restarted.read().records.len(), (from - 64) / 1_016, "zeros from {from}");
    }
}

#[test]
fn damage_after_a_restart_of_the_machine_is_still_damage() {
    let (scratch, bytes) = paged();
    let mut damaged = bytes;
    damaged[5_000..5_010].fill(0);
    fs::write(scratch.file("journal.1"), &damaged).expect("room");
    scratch.restart_machine();
    assert!(scratch.refusal().contains("journal.1 is damaged at byte 4128"));
}

/// The power fails during a compaction: the old journal has lost its end, and the journal after it
/// is complete.
#[test]
fn a_journal_is_removed_if_its_predecessor_lost_its_end() {
    for cut in [0, 1, 1_000, 2_000] {
        let (scratch, bytes) = paged();
        let (mut state, _) = scratch.open().expect("sound");
        drop(state.rotate().expect("room"));
        state.append(b"later").expect("room");
        drop(state);
        let file = OpenOptions::new().write(true).open(scratch.file("journal.1")).expect("there");
        file.set_len(bytes.len() as u64 - cut).expect("it can be cut");
        scratch.restart_machine();
        let read = scratch.read();
        let (whole, names) = match cut {
            0 => (13, ["journal.1", "journal.2", "journal.3"].to_vec()),
            1 | 1_000 => (11, ["journal.1", "journal.2"].to_vec()),
            _ => (10, ["journal.1", "journal.2"].to_vec()),
        };
        assert_eq!(
            (read.records.len(), scratch.names()),
            (whole, names.into_iter().map(String::from).collect())
        );
        let (mut state, _) = scratch.open().expect("mended");
        state.append(b"next").expect("room");
        drop(state);
        assert_eq!(scratch.read().records.len(), whole + 1);
    }
}

#[test]
fn a_journal_without_header_after_a_power_failure_is_ignored() {
    for content in [&[][..], &[0; 64]] {
        let scratch = filled(&["a"]);
        let (mut state, _) = scratch.open().expect("sound");
        drop(state.rotate().expect("room"));
        drop(state);
        fs::write(scratch.file("journal.2"), content).expect("room");
        assert!(scratch.copy().refusal().contains("journal.2 is damaged at byte 0"));
        scratch.restart_machine();
        assert_eq!(scratch.said(), "a");
    }
}

/// A small file system that is unmounted when dropped.
struct TestMount(PathBuf);

impl TestMount {
    fn run(arguments: &[&str], at: &Path) {
        let status = Command::new("mount").args(arguments).arg(at).status();
        let done = status.expect("mount(8) is installed").success();
        assert!(done, "mount {arguments:?} works, for which this test must run as root");
    }

    fn tmpfs(at: PathBuf, kib: u32) -> Self {
        Self::run(&["-t", "tmpfs", "-o", &format!("size={kib}k"), "latchfs-test"], &at);
        Self(at)
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_an_error_until_there_is_room() {
    let scratch = StateScratch::new();
    fs::create_dir(scratch.state()).expect("new");
    let mounted = TestMount::tmpfs(scratch.state(), 2_048);
    let (mut state, _) = scratch.open().expect("new");
    state.reserve_tokens(100).expect("room");
    let ballast = scratch.file("ballast");
    let fill = || fs::write(&ballast, vec![b'b'; 2 << 20]).expect_err("it does not fit");
    fill();
    let record = [b'r'; 1_000];
    let mut count = 0;
    let error = loop {
        match state.append(&record) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(count > 50 && state.append(&record).is_err());
    assert!(state.reserve_tokens(200).is_err() && state.rotate().is_err());
    // The disk is full for ordinary records. Records that only end leases or waits may still use
    // the reserved space.
    for _ in 0..RESERVE_BYTES / 1_016 {
        state.append_reserved(&record).expect("it is reserved");
        count += 1;
    }
    let error = loop {
        match state.append_reserved(&record) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    // Once the disk has free space, records that only end leases succeed, and so do ordinary ones
    // after a moment. The reserved space is allocated again.
    fs::remove_file(&ballast).expect("it is there");
    state.append_reserved(&record).expect("there is room again");
    while state.append(&record).is_err() {}
    state.reserve_tokens(300).expect("room");
    fill();
    while state.append(&record).is_ok() {
        count += 1;
    }
    state.append_reserved(&record).expect("it is reserved");
    count += 2;
    let error = state.close(b"state").expect_err("no room").to_string();
    assert!(error.starts_with("no room to write "), "{error}");
    // A daemon can start on a full disk with the existing state.
    let read = scratch.read();
    assert_eq!((read.records.len(), read.tokens), (count + 1, 300));
    drop(mounted);
}

#[test]
fn a_full_disk_at_the_start_is_reported() {
    let scratch = StateScratch::new();
    fs::create_dir(scratch.state()).expect("new");
    let mounted = TestMount::tmpfs(scratch.state(), 16);
    let _ = fs::write(scratch.file("ballast"), vec![b'b'; 64 << 10]);
    let said = scratch.refusal();
    assert!(said.starts_with("no room to write ") && said.contains("no space left"), "{said}");
    drop(mounted);
}

#[test]
fn a_read_only_file_system_is_reported() {
    let scratch = filled(&["a"]);
    TestMount::run(&["--bind", scratch.state().to_str().expect("ASCII")], &scratch.state());
    let mounted = TestMount(scratch.state());
    TestMount::run(&["-o", "remount,ro,bind"], &scratch.state());
    let said = scratch.refusal();
    assert!(said.contains("can't write ") && said.contains("read-only file system"), "{said}");
    drop(mounted);
    assert_eq!(scratch.said(), "a");
}

/// A journal that can't be truncated after a failed write accepts no more records: nothing may
/// follow the possible remains of that write.
#[test]
#[allow(unsafe_code)]
fn a_journal_that_cannot_be_truncated_accepts_no_more_records() {
    use std::os::fd::FromRawFd;
    // SAFETY: the name ends with a zero byte; the result is checked.
    let fd = unsafe { libc::memfd_create(c"journal".as_ptr(), libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0, "the kernel has memfd_create(2)");
    // SAFETY: the descriptor is new, and nothing else owns it.
    let file = unsafe { fs::File::from_raw_fd(fd) };
    file.set_len(100).expect("memory");
    // SAFETY: the descriptor is open; the call takes a number.
    let sealed =
        unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_GROW | libc::F_SEAL_SHRINK) };
    assert_eq!(sealed, 0, "a memfd can be sealed");
    let last = LastJournal { generation: 1, salt: 5, end: 64, allocated: 100, next_seq: 1 };
    let mut journal = Journal::at(file, PathBuf::from("journal.1"), &last);
    for space in [JournalSpace::Reserve, JournalSpace::Ordinary] {
        let first = journal.append(&[b'x'; 100], space).expect_err("it may not grow").to_string();
        let next = journal.append(b"y", space).expect_err("it is broken").to_string();
        assert!(next.starts_with(&first) && next.contains("could not be cut back"), "{next}");
    }
}

/// Changes the user id for the file operations of this thread only, so no child process is needed.
#[test]
#[allow(unsafe_code)]
fn a_directory_of_another_user_is_reported() {
    let scratch = filled(&["a"]);
    let path = scratch.state();
    let said = std::thread::spawn(move || {
        // SAFETY: the call takes a number, and changes this thread only.
        unsafe { libc::setfsuid(65_534) };
        let taken = StateDir::open(&path).map(drop).expect_err("it is not ours").to_string();
        let made = StateDir::open(Path::new("/latchfs-state-of-nobody")).map(drop);
        [taken, made.expect_err("the root directory is not ours").to_string()]
    });
    for said in said.join().expect("no panic") {
        assert!(said.starts_with("can't write ") && said.contains("(permission denied)"), "{said}");
    }
}
