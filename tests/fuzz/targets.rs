//! One test for each decoder that is reachable from outside: none panics, none takes memory out of
//! proportion to its input, what was encoded is decoded as it was, and a value has one encoding.

use crate::harness::{Source, Target};
use crate::values::{batch, batch_response, command, lived};
use latchfs::auth::{ClientPattern, grant_of};
use latchfs::engine::codec::state_codec;
use latchfs::engine::codec::state_codec::FORMAT_VERSION;
use latchfs::engine::{ClientId, Command, Engine, Rules};
use latchfs::fuse::fuzz as mount;
use latchfs::raft::fuzz as node;
use latchfs::server::http::fuzz as http;
use latchfs::server::line::fuzz as line;
use latchfs::service::batch::batch_messages::{
    decode_batch, decode_response, encode_batch, encode_frame, encode_response, take_frame,
};
use latchfs::service::{fuzz as recovery, replay};
use latchfs::storage::StateDir;
use latchfs::time::{Span, Time, Wall};
use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, SanType};
use std::fs;
use std::path::{Path, PathBuf};

/// Memory that a decoder of the binary encoding may take: a value takes up to this many times its
/// encoding, and a list reserves room for its first items.
fn room(bytes: usize) -> usize {
    (512 << 10) + 1_500 * bytes
}

/// Memory that a parser of text may take.
fn text_room(bytes: usize) -> usize {
    (16 << 10) + 64 * bytes
}

/// Asserts that a value that was decoded from `bytes` is encoded to the same bytes. A message may
/// claim a newer version than it needs, in its first byte.
fn same_after_version(reencoded: &[u8], bytes: &[u8]) {
    assert_eq!(&reencoded[1..], &bytes[1..], "a value has one encoding");
}

fn numbers(source: &mut Source) -> [u64; 4] {
    [(); 4].map(|()| source.random.number())
}

/// A history of an engine: each command, and the time since the one before in milliseconds.
fn history(most: usize) -> impl Strategy<Value = Vec<(u64, Command)>> {
    proptest::collection::vec((0..20_000_u64, command()), 0..most)
}

#[test]
fn commands() {
    let check = |bytes: &[u8]| {
        let read = state_codec::decode_command(state_codec::known_version(), bytes);
        if let Ok((at, command)) = &read {
            let mut reencoded = Vec::new();
            state_codec::encode_command(*at, command, &mut reencoded);
            assert_eq!(reencoded, bytes, "a value has one encoding");
        }
        let _rules = state_codec::decode_rules(state_codec::known_version(), bytes);
        (read.is_ok(), room(bytes.len()))
    };
    let command = command();
    Target { name: "commands", words: &[], check: &check }.run(|source| {
        let (at, command) = (Time::from_nanos(source.random.number()), source.draw(&command));
        let mut bytes = Vec::new();
        state_codec::encode_command(at, &command, &mut bytes);
        assert_eq!(
            state_codec::decode_command(state_codec::known_version(), &bytes),
            Ok((at, command))
        );
        vec![bytes]
    });
}

#[test]
fn engines() {
    let check = |bytes: &[u8]| {
        let read = state_codec::decode_engine(state_codec::known_version(), bytes);
        if let Ok(engine) = &read {
            assert_eq!(
                state_codec::encode_engine(state_codec::known_version(), engine),
                bytes,
                "a value has one encoding"
            );
        }
        (read.is_ok(), room(bytes.len()))
    };
    let history = history(30);
    Target { name: "engines", words: &[], check: &check }.run(|source| {
        let engine = lived(&source.draw(&history));
        let bytes = state_codec::encode_engine(state_codec::known_version(), &engine);
        assert_eq!(
            state_codec::decode_engine(state_codec::known_version(), &bytes).as_ref(),
            Ok(&engine)
        );
        vec![bytes]
    });
}

#[test]
fn batches() {
    let check = |bytes: &[u8]| {
        let read = decode_batch(bytes);
        if let Ok(batch) = &read {
            assert_eq!(encode_batch(batch), bytes, "a batch has one encoding");
        }
        (read.is_ok(), room(bytes.len()))
    };
    let batch = batch();
    Target { name: "batches", words: &[], check: &check }.run(|source| {
        let batch = source.draw(&batch);
        let bytes = encode_batch(&batch);
        assert_eq!(decode_batch(&bytes), Ok(batch));
        vec![bytes]
    });
}

#[test]
fn answers_to_batches() {
    let check = |bytes: &[u8]| {
        let read = decode_response(bytes);
        if let Ok(response) = &read {
            same_after_version(&encode_response(response), bytes);
        }
        (read.is_ok(), room(bytes.len()))
    };
    let history = history(20);
    Target { name: "answers_to_batches", words: &[], check: &check }.run(|source| {
        let (response, _) = batch_response(&source.draw(&history));
        let bytes = encode_response(&response);
        assert_eq!(decode_response(&bytes), Ok(response));
        vec![bytes]
    });
}

#[test]
fn frames_of_events() {
    let check = |bytes: &[u8]| {
        let mut left = bytes.to_vec();
        let read = take_frame(&mut left);
        if let Ok(Some(frame)) = &read {
            let reencoded = encode_frame(1, frame);
            assert_eq!(bytes.len(), reencoded.len() + left.len());
            assert_eq!(reencoded[..4], bytes[..4]);
            same_after_version(&reencoded[4..], &bytes[4..reencoded.len()]);
        } else {
            assert_eq!(left, bytes, "nothing is removed");
        }
        (matches!(read, Ok(Some(_))), room(bytes.len()))
    };
    let history = history(20);
    Target { name: "frames_of_events", words: &[], check: &check }.run(|source| {
        let (_, frame) = batch_response(&source.draw(&history));
        let bytes = encode_frame(1, &frame);
        // Two frames that arrive in two parts, cut anywhere, are decoded like whole ones.
        let whole = bytes.repeat(2);
        let cut = source.random.below(whole.len());
        let (mut got, mut read) = (whole[..cut].to_vec(), vec![]);
        for rest in [&whole[cut..], &[]] {
            while let Some(frame) = take_frame(&mut got).expect("as sent") {
                read.push(frame);
            }
            got.extend(rest);
        }
        assert_eq!(read, [frame.clone(), frame]);
        vec![bytes]
    });
}

#[test]
fn calls_between_nodes() {
    // The first byte of an input is the index of the call's name.
    const NAMES: [&str; 11] = [
        "append", "vote", "prevote", "snapshot", "transfer", "forward", "read", "change", "status",
        "join", "enroll",
    ];
    let check = |bytes: &[u8]| {
        let Some((name, bytes)) = bytes.split_first() else { return (false, 0) };
        let name = NAMES[*name as usize % NAMES.len()];
        let (_, memory) = node::call_limits(name, bytes.len()).expect("there is such a call");
        let reencoded = node::call(name, bytes);
        if let Some(reencoded) = &reencoded {
            same_after_version(reencoded, bytes);
        }
        // Encoding takes as much as the bytes once more, and a vector that grows twice as much.
        (reencoded.is_some(), memory + 4 * bytes.len() + (1 << 10))
    };
    let commands = proptest::collection::vec(command(), 0..6);
    Target { name: "calls_between_nodes", words: &[], check: &check }.run(|source| {
        let (numbers, commands) = (numbers(source), source.draw(&commands));
        let calls = node::calls(numbers, &commands, &source.random.bytes(40));
        let named = |(name, bytes): (&str, Vec<u8>)| {
            let at = NAMES.iter().position(|other| *other == name).expect("it is listed");
            [&[at as u8][..], &bytes].concat()
        };
        calls.into_iter().map(named).collect()
    });
}

#[test]
fn answers_between_nodes() {
    let check = |bytes: &[u8]| {
        let reencoded = node::answer(bytes);
        if let Some(reencoded) = &reencoded {
            same_after_version(reencoded, bytes);
        }
        (reencoded.is_some(), room(bytes.len()))
    };
    let commands = proptest::collection::vec(command(), 0..6);
    Target { name: "answers_between_nodes", words: &[], check: &check }.run(|source| {
        let (mut engine, mut events) = (Engine::new(Rules::default()), vec![]);
        let commands = source.draw(&commands);
        let answers = commands.iter().map(|op| engine.apply(Time::ZERO, op, &mut events)).collect();
        node::answers(numbers(source), answers)
    });
}

#[test]
fn log_entries() {
    let check = |bytes: &[u8]| {
        let reencoded = node::entry(bytes);
        if let Some(reencoded) = &reencoded {
            same_after_version(reencoded, bytes);
        }
        (reencoded.is_some(), room(bytes.len()))
    };
    let commands = proptest::collection::vec(command(), 0..6);
    Target { name: "log_entries", words: &[], check: &check }.run(|source| {
        let commands = source.draw(&commands);
        node::entries(numbers(source), commands)
    });
}

#[test]
fn snapshots_of_nodes() {
    // The first byte of an input says whether the rest is a file, or a state in a file with the
    // right checksum.
    let file = |bytes: &[u8]| match bytes.split_first() {
        Some((0, state)) => node::snapshot_file([3, 2, 9, 0], state),
        _ => bytes.get(1..).unwrap_or_default().to_vec(),
    };
    let check = |bytes: &[u8]| {
        let bytes = file(bytes);
        let read = node::snapshot(&bytes);
        if let Some((reencoded, state)) = &read {
            assert_eq!(*reencoded, bytes, "a value has one encoding");
            // States of older formats are encoded in the present one.
            let is_current = state.as_ref().is_some_and(|state| state[..40] == bytes[..40]);
            assert!(!is_current || state.as_deref() == Some(&bytes[..]), "one encoding");
        }
        (read.is_some_and(|(_, state)| state.is_some()), room(bytes.len()))
    };
    let history = history(20);
    Target { name: "snapshots_of_nodes", words: &[], check: &check }.run(|source| {
        let state = node::snapshot_state(&lived(&source.draw(&history)));
        let file = node::snapshot_file(numbers(source), &state);
        vec![[&[0], &state[..]].concat(), [&[1], &file[..]].concat()]
    });
}

#[test]
fn backups() {
    // As above: an encoded engine in a backup with the right checksum, or a whole backup.
    let check = |bytes: &[u8]| {
        let Some((kind, bytes)) = bytes.split_first() else { return (false, 0) };
        let wall = Wall { secs: 0, nanos: 0 };
        let bytes = if *kind == 0 { replay::write(7, wall, bytes) } else { bytes.to_vec() };
        let read = replay::read(&bytes);
        if let Ok(read) = &read {
            let state = state_codec::encode_engine(state_codec::known_version(), &read.engine);
            assert!(bytes.ends_with(&state), "a value has one encoding");
        }
        (read.is_ok(), room(bytes.len()))
    };
    let words: [&[u8]; 7] =
        [b"\n", b"\n\n", b"sum ", b"bytes ", b"engine ", b"taken ", b"latchfs backup "];
    let history = history(20);
    Target { name: "backups", words: &words, check: &check }.run(|source| {
        let engine = lived(&source.draw(&history));
        let state = state_codec::encode_state(state_codec::known_version(), &engine);
        let wall = Wall { secs: 1_800_000_000, nanos: 0 };
        let whole = replay::write(source.random.next(), wall, &state);
        assert_eq!(replay::read(&whole).expect("as written").engine, engine);
        vec![[&[0], &state[..]].concat(), [&[1], &whole[..]].concat()]
    });
}

/// A state directory in memory, removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = Path::new("/dev/shm").join(format!("latchfs-fuzz-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("memory for files");
        Self(dir)
    }

    /// Removes all files.
    fn clear(&self) {
        for entry in fs::read_dir(&self.0).expect("ours") {
            fs::remove_file(entry.expect("ours").path()).expect("ours");
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Memory that the recovery of a directory may take: the buffer of a reader and the longest record,
/// for the check and for the replay.
fn recovery_room(bytes: usize) -> usize {
    (2 << 20) + room(bytes)
}

/// Appends a record to the journal `file`, which has this salt in its header.
fn append(file: &mut Vec<u8>, salt: u32, number: u64, record: &[u8]) {
    let length = (record.len() as u32).to_le_bytes();
    let mut sum = crc32fast::Hasher::new_with_initial(salt);
    for part in [&length[..], &number.to_le_bytes(), record] {
        sum.update(part);
    }
    file.extend(length);
    file.extend(sum.finalize().to_le_bytes());
    file.extend(number.to_le_bytes());
    file.extend(record);
}

/// The records of an input are lengths of two bytes and that many bytes. They have the right
/// checksums in the journal.
#[test]
fn journal_records() {
    let dir = Dir::new("records");
    let (state, _) = StateDir::open(&dir.0).expect("a new directory");
    drop(state);
    let journal = dir.0.join("journal.1");
    let header = fs::read(&journal).expect("ours")[..64].to_vec();
    let salt = u32::from_le_bytes(header[12..16].try_into().expect("four bytes"));
    let check = |bytes: &[u8]| {
        let (mut rest, mut file) = (bytes, header.clone());
        for number in 1.. {
            let Some((length, more)) = rest.split_first_chunk() else { break };
            let length = usize::from(u16::from_le_bytes(*length)).min(more.len());
            append(&mut file, salt, number, &more[..length]);
            rest = &more[length..];
        }
        fs::write(&journal, file).expect("ours");
        let restored = recovery::restore(&dir.0);
        if let Err(error) = &restored {
            assert!(error.to_string().contains(' '), "{error}");
        }
        (restored.is_ok(), recovery_room(bytes.len()))
    };
    let history = history(8);
    Target { name: "journal_records", words: &[], check: &check }.run(|source| {
        let (mut at, mut bytes) = (Time::ZERO, vec![]);
        for (later, command) in source.draw(&history) {
            at = at + Span::from_millis(later);
            let record = recovery::record(at, &command);
            bytes.extend((record.len() as u16).to_le_bytes());
            bytes.extend(record);
        }
        vec![bytes]
    });
}

/// The files of an input are the index of a name, a length of two bytes, and that many bytes.
#[test]
fn state_directories() {
    const NAMES: [&str; 7] =
        ["tokens", "clean", "journal.1", "journal.2", "snapshot.2", "journal.3", "snapshot.3"];
    let (dir, made) = (Dir::new("files"), Dir::new("made"));
    let check = |bytes: &[u8]| {
        dir.clear();
        let mut rest = bytes;
        while let Some(([name, low, high], more)) = rest.split_first_chunk() {
            let name = NAMES[usize::from(*name) % NAMES.len()];
            let length = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
            fs::write(dir.0.join(name), &more[..length]).expect("ours");
            rest = &more[length..];
        }
        let restored = recovery::restore(&dir.0);
        if let Err(error) = &restored {
            assert!(error.to_string().contains(' '), "{error}");
        }
        // A directory that was recovered once is recovered again.
        assert!(restored.is_err() || recovery::restore(&dir.0).is_ok());
        (restored.is_ok(), 2 * recovery_room(bytes.len()))
    };
    let history = history(4);
    Target { name: "state_directories", words: &[], check: &check }.run(|source| {
        made.clear();
        let (mut state, _) = StateDir::open(&made.0).expect("a new directory");
        for (later, command) in source.draw(&history) {
            let record = recovery::record(Time::from_nanos(later), &command);
            state.append(&record).expect("there is room");
        }
        state.reserve_tokens(source.random.next() >> 12).expect("there is room");
        if source.random.below(2) == 0 {
            // Without the clock mapping: the snapshot is refused, or damaged by chance.
            let anchor = [&[FORMAT_VERSION][..], &[0; 16]].concat();
            let engine = state_codec::encode_engine(
                state_codec::known_version(),
                &lived(&source.draw(&history)),
            );
            state.close(&[anchor, engine].concat()).expect("there is room");
        } else {
            drop(state);
        }
        let mut bytes = Vec::new();
        for (index, name) in NAMES.iter().enumerate() {
            let Ok(text) = fs::read(made.0.join(name)) else { continue };
            bytes.push(index as u8);
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text);
        }
        vec![bytes]
    });
}

#[test]
fn lines() {
    let check = |bytes: &[u8]| {
        let read = line::line(bytes);
        if let Ok((reencoded, _)) = &read {
            assert!(
                !reencoded.contains(&b'\n') || bytes.contains(&b'\n'),
                "a line break is made up"
            );
            // One carriage return ends a line; a secret may have more of them.
            let whole = [&reencoded[..], b"\r"].concat();
            assert_eq!(line::line(&whole).map(|(line, _)| line).as_ref(), Ok(reencoded));
        }
        (read.is_ok(), text_room(bytes.len()))
    };
    let words: [&[u8]; 16] = [
        b"token",
        b"stale",
        b"LOCK",
        b"UNLOCK",
        b"OWN",
        b"RENEW",
        b"REGISTER",
        b"AUTH",
        b",",
        b"\r",
        b"\n",
        b" ",
        b"/",
        b"..",
        b".latchfs",
        b"1m30s",
    ];
    Target { name: "lines", words: &words, check: &check }.run(|source| {
        let random = &mut source.random;
        let name = random.pick(&["a", "a/b", "\u{e9}", "team/build.lock"]);
        let client = random.pick(&["x", "host:user", "\u{1f512}"]);
        let ttl = random.pick(&["", ",1s", ",1.5h", ",90000ms"]);
        let token = random.pick(&["", ",7"]);
        let (stale, word) = (random.pick(&["", ",stale"]), random.pick(&["", ",token"]));
        let end = random.pick(&["", "\r"]);
        let address = random.pick(&["127.0.0.1:80", "[::1]:65535"]);
        let valid = [
            format!("LOCK,{name},{client}{ttl}{word}{end}"),
            format!("RENEW,{name},{client}{ttl}{token}{end}"),
            format!("UNLOCK,{name},{client}{token}{end}"),
            format!("OWN,{name},{client}{stale}{word}{end}"),
            format!("REGISTER,{address}{end}"),
            format!("AUTH,{name}{end}"),
        ];
        valid.map(String::into_bytes).into()
    });
}

/// Words of requests: in queries, in JSON and in the texts that are written into a mount.
const WORDS: [&[u8]; 34] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"&",
    b"=",
    b"%",
    b"+",
    b"null",
    b"true",
    b"-1",
    b"1e9",
    b"9007199254740992",
    b"0.5",
    b"\\u0000",
    b"\\ud800",
    b"1s",
    b"25h",
    b"500ms",
    b"exclusive",
    b"shared",
    b"..",
    b".latchfs",
    b"name",
    b"client",
    b"ttl",
    b"checks",
    b"token",
    b"pid=",
    b"do",
    b"wait",
];

/// Returns a value for the option `name`, as it stands in JSON.
fn option_value(source: &mut Source, name: &str) -> String {
    let random = &mut source.random;
    match name {
        "ttl" | "grace" | "wait" => random.pick(&["\"1s\"", "\"1m30s\"", "\"24h\""]).to_owned(),
        "token" | "session" | "to" | "limit" | "acquisition" | "pid" => {
            (1 + (random.number() >> 34)).to_string()
        }
        "reentrant" | "force" | "state" | "all" => random.pick(&["true", "false"]).to_owned(),
        "mode" => random.pick(&["\"exclusive\"", "\"shared\""]).to_owned(),
        "consistency" => random.pick(&["\"stale\"", "\"linearizable\"", "\"local\""]).to_owned(),
        "checks" => random.pick(&["[]", r#"[{"name":"a","token":1}]"#]).to_owned(),
        _ => random.pick(&["\"a\"", "\"a/b\"", "\"x:y\"", "\"\\u00e9\""]).to_owned(),
    }
}

/// An input is the index of an endpoint, then four parts that end with a byte 0: the query, the
/// type of the body, the entity tag, and the body.
#[test]
fn options_of_http_requests() {
    let count = http::endpoint_count();
    let check = |bytes: &[u8]| {
        let Some((endpoint, rest)) = bytes.split_first() else { return (false, 0) };
        let mut parts = rest.splitn(4, |byte| *byte == 0);
        let [query, kind, tag, body] = [(); 4].map(|()| parts.next().unwrap_or_default());
        let mut headers = vec![("content-type", kind), ("idempotency-key", &b"k"[..])];
        if !tag.is_empty() {
            headers.push(("if-match", tag));
        }
        let read = http::options(usize::from(*endpoint) % count, query, &headers, body);
        if let Some(Err(code)) = read {
            assert!((400..500).contains(&code), "{code}");
        }
        let path = String::from_utf8_lossy(query);
        if let Err(code) = http::name(&path) {
            assert_eq!(code, 400);
        }
        (matches!(read, Some(Ok(_))), text_room(bytes.len()))
    };
    Target { name: "options_of_http_requests", words: &WORDS, check: &check }.run(|source| {
        let endpoint = source.random.below(count);
        let in_body = ["client", "ttl", "grace", "mode", "note", "wait", "session", "reason"];
        let names = http::parameters(endpoint);
        let has_checks = names.contains(&"checks");
        let names = names.into_iter().filter(|name| in_body.contains(name));
        let mut fields: Vec<_> =
            names.map(|name| format!("\"{name}\":{}", option_value(source, name))).collect();
        if has_checks {
            fields.push(format!("\"checks\":{}", option_value(source, "checks")));
        }
        let json = format!("{{{}}}", fields.join(","));
        let form = fields.iter().filter(|field| !field.contains("checks"));
        let form: Vec<_> = form.map(|field| field.replace('"', "").replacen(':', "=", 1)).collect();
        let form = form.join("&").replace("\\u00e9", "%C3%A9");
        let tag = source.random.pick(&["", "\"7\"", "*"]);
        let input = |query: &str, kind: &str, body: &str| {
            let parts = format!("{query}\0{kind}\0{tag}\0{body}");
            [&[endpoint as u8], parts.as_bytes()].concat()
        };
        vec![
            input(&form, "application/json", ""),
            input("", "application/json; charset=utf-8", &json),
            input("", "application/x-www-form-urlencoded", &form),
        ]
    });
}

#[test]
fn requests_to_ctl() {
    let check = |bytes: &[u8]| {
        let read = mount::control(bytes);
        if let Err(why) = &read {
            assert!(why.contains(' ') && why.len() < 3 * mount::CONTROL_BYTES_MAX, "{why}");
        }
        assert!(read.is_err() || bytes.len() <= mount::CONTROL_BYTES_MAX);
        (read.is_ok(), text_room(bytes.len()))
    };
    Target { name: "requests_to_ctl", words: &WORDS, check: &check }.run(|source| {
        let kinds = ["about", "list", "status", "acquire", "renew", "release", "steal"];
        let mut texts = Vec::new();
        for kind in kinds {
            let mut fields = vec![format!("\"do\":\"{kind}\"")];
            for name in ["name", "reason"] {
                fields.push(format!("\"{name}\":{}", option_value(source, name)));
            }
            for name in ["ttl", "grace", "mode", "note", "wait", "token"] {
                if source.random.below(2) == 0 {
                    fields.push(format!("\"{name}\":{}", option_value(source, name)));
                }
            }
            texts.push(format!("{{{}}}\n", fields.join(",")).into_bytes());
        }
        texts
    });
}

#[test]
fn texts_written_to_locks() {
    let check = |bytes: &[u8]| {
        let read = mount::message(bytes);
        if let Err(why) = &read {
            assert!(why.contains(' '), "{why}");
        }
        (read.is_ok(), text_room(bytes.len()))
    };
    Target { name: "texts_written_to_locks", words: &WORDS, check: &check }.run(|source| {
        let mut fields = Vec::new();
        for name in ["ttl", "grace", "mode", "note", "token", "pid"] {
            if source.random.below(2) == 0 {
                fields.push(format!("\"{name}\":{}", option_value(source, name)));
            }
        }
        let object = format!("{{{}}}\n", fields.join(","));
        vec![object.into_bytes(), b"pid=1\n".to_vec(), b"1m30s\n".to_vec(), b"text".to_vec()]
    });
}

/// A certificate confers the names in it and nothing else, whatever the names are.
#[test]
fn names_in_certificates() {
    let key = KeyPair::generate().expect("random numbers");
    let check = |der: &[u8]| {
        let grant = grant_of(&der.into());
        if let Some(grant) = &grant {
            assert!(grant.steals.is_empty() && !grant.cluster && grant.user.is_none());
            assert!(!grant.name.is_empty() && !grant.clients.is_empty());
            for pattern in &grant.clients {
                let name = match pattern {
                    ClientPattern::Exactly(name) => name,
                    ClientPattern::Beginning(text) => text.strip_suffix(':').expect("a user"),
                };
                assert!(!name.is_empty(), "it would match clients of no host");
                let is_in = der.windows(name.len()).any(|part| part == name.as_bytes());
                assert!(is_in || !name.is_ascii(), "{name:?} is not in the certificate");
            }
            let other = ClientId::parse("\u{1f512}nobody").expect("valid");
            assert!(grant.may_speak_as(&other).is_err());
        }
        let _peers = node::is_peers(der);
        (grant.is_some(), text_room(der.len()))
    };
    let words: [&[u8]; 6] =
        [b"\x0c\x00", b"\x82\x00", b"\x30\x80", b"*", b"\x55\x04\x03", b"\x55\x1d\x11"];
    Target { name: "names_in_certificates", words: &words, check: &check }.run(|source| {
        let random = &mut source.random;
        let mut params = CertificateParams::default();
        let names = ["laptop1", "vm:root", "*", ":", "a.example", "x y", "laptop1:", "\u{e9}"];
        params.distinguished_name.push(DnType::CommonName, random.pick(&names));
        for _ in 0..random.below(3) {
            let name = random.pick(&["box", "*.example", "a.b", "laptop1"]);
            params.subject_alt_names.push(SanType::DnsName(name.try_into().expect("ASCII")));
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.self_signed(&key).expect("sound parameters");
        vec![certificate.der().to_vec()]
    });
}
