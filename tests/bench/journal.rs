//! Measures the journal in a state directory alone.

use crate::Effort;
use crate::engine::{acquire, release, term};
use crate::report::{Table, median, micros_each, own_micros_each, seconds};
use crate::scratch::Scratch;
use latchfs::engine::codec::state_codec::encode_command;
use latchfs::storage::StateDir;
use latchfs::time::{Span, Time};

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    let scratch = Scratch::new()?;
    let (mut state, found) = StateDir::open(scratch.path()).map_err(|error| error.to_string())?;
    drop(found);
    let term = term(Span::from_secs(30), Span::from_secs(5));
    let record = |command| {
        let mut record = Vec::new();
        encode_command(Time::from_secs(1), &command, &mut record);
        record
    };
    let records = [record(acquire(1, term, None)), record(release(1))];
    let bytes = records.iter().map(Vec::len).max().unwrap_or_default();
    let mut table = Table::new("The journal alone", &["", "measured", "wanted", ""]);

    let count = effort.of(50_000);
    let mut rounds = Vec::new();
    for _ in 0..effort.rounds {
        rounds.push(own_micros_each(count, |turn| {
            state.append(&records[turn % 2]).expect("there is room");
        }));
    }
    let what = format!("append, records of up to {bytes} bytes (processor time)");
    table.limit(&what, median(&rounds), "us", 3.0);
    let taken_back = own_micros_each(count, |_| {
        state.append(&records[0]).expect("there is room");
        state.take_back();
    });
    table.shown("append and take back", taken_back, "us");
    let reserved = micros_each(20, |turn| {
        state.reserve_tokens(1 + turn as u64).expect("there is room");
    });
    table.shown("reserve a block of tokens", reserved / 1e3, "ms");
    let (rotated, sealed) = seconds(|| state.rotate());
    table.shown("begin the next journal", rotated * 1e3, "ms");
    drop(sealed.map_err(|error| error.to_string())?);
    drop(state);
    let appended = (count * effort.rounds) as f64;
    let (read, found) = seconds(|| {
        let (_, found) = StateDir::open(scratch.path()).expect("it is sound");
        found.records.filter(|record| record.as_ref().is_ok_and(|bytes| !bytes.is_empty())).count()
    });
    let what = format!("read {found} records again");
    assert!(found as f64 >= appended, "all are there");
    table.shown(&what, read, "s");
    Ok(())
}
