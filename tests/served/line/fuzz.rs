//! Fuzzing of the line protocol: every whole line gets exactly one reply, and the server survives.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use testing::Lines;

const WORDS: [&str; 8] = [
    "SUCCESS",
    "FAIL",
    "NONE",
    "ERROR",
    "TIMEOUT",
    "INVALID_FORMAT",
    "INVALID_COMMAND",
    "NOT_LEADER",
];

#[test]
fn each_line_has_one_answer() {
    let lines = Lines::start(&[]);
    let word = prop_oneof!["LOCK", "UNLOCK", "OWN", "RENEW", "REGISTER", "AUTH", "SYNC", ".{0,9}"];
    let part = prop_oneof!["[a-c]", ".{0,20}", "1s", Just(String::new())];
    let good = (word, proptest::collection::vec(part, 0..5))
        .prop_map(|(word, parts)| [vec![word], parts].concat().join(",").into_bytes());
    let line = prop_oneof![good, proptest::collection::vec(any::<u8>(), 0..60)];
    let batches = proptest::collection::vec(line, 1..20);
    let mut runner = TestRunner::new(Config { cases: 200, ..Config::default() });
    let tried = runner.run(&batches, |batch| {
        let batch: Vec<Vec<u8>> = batch
            .into_iter()
            .map(|line| line.into_iter().filter(|byte| *byte != b'\n').collect())
            .collect();
        let mut talk = lines.connect();
        // A connection whose first line is none ends.
        talk.send(b"OWN,never-named,x\n");
        for line in &batch {
            talk.send(&[line, &b"\n"[..]].concat());
        }
        talk.finish();
        let answered = String::from_utf8(talk.rest()).expect("words are text");
        prop_assert_eq!(answered.lines().count(), batch.len() + 1, "{:?}", answered);
        prop_assert!(answered.ends_with('\n'));
        Ok(())
    });
    tried.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(lines.request("OWN,never-named,x"), WORDS[2], "it goes on");
}

#[test]
fn endless_line_ends_the_connection() {
    let lines = Lines::start(&[]);
    let mut talk = lines.connect();
    talk.send(&vec![b'x'; 100_000]);
    let said = String::from_utf8_lossy(&talk.rest()).into_owned();
    // The server closes the connection while it has unread input, so TCP resets the connection, and
    // the server's answer may be lost.
    assert!(said == "INVALID_FORMAT\n" || said.is_empty(), "{said}");
    assert_eq!(lines.request("OWN,build,x"), "NONE");
}
