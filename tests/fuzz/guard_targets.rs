//! One test for each reader of what a sync tool or a lock service delivers to a guard of a folder:
//! none panics, none takes memory out of proportion to its input, none names a path outside the
//! folder, and what is read is written again as the same bytes.

use crate::harness::{Source, Target};
use latchfs::guard::fuzz as guard;
use std::path::{Component, Path};

/// Memory that a reader may take.
fn room(bytes: usize) -> usize {
    (16 << 10) + 64 * bytes
}

const WORDS: [&[u8]; 20] = [
    b"\"path\":\"",
    b"../",
    b"/",
    b"//",
    b".latchfs/",
    b"\\u0000",
    b"cafe\xcc\x81",
    b"\"type\":\"gone\"",
    b"\"type\":\"file\"",
    b"\"whole\":true,",
    b"\"later\":[{}],",
    b"null",
    b"\"size\":",
    b"18446744073709551615",
    b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    b"checkpoint-",
    b"clean",
    b"dirty",
    b"**",
    b"!",
];

fn digest(source: &mut Source) -> String {
    let [one, two, three, four] = [(); 4].map(|()| source.random.next());
    format!("{one:016x}{two:016x}{three:016x}{four:016x}")
}

fn name(source: &mut Source) -> String {
    let kind = ["", "checkpoint-"][source.random.below(2)];
    let (engine, token) = (source.random.next(), source.random.number());
    format!("{kind}{engine:016x}-{token}-{}", source.random.number())
}

fn path(source: &mut Source) -> String {
    let parts = ["a", "b.txt", "caf\u{e9}", "cafe\u{301}", "...", "x y", "\u{344}"];
    let count = 1 + source.random.below(3);
    let all: Vec<_> = (0..count).map(|_| parts[source.random.below(parts.len())]).collect();
    all.join("/")
}

fn link(source: &mut Source) -> String {
    if source.random.below(2) == 0 {
        return "null".to_owned();
    }
    format!(r#"{{"name":"{}","sha256":"{}"}}"#, name(source), digest(source))
}

/// Returns a marker whose paths differ by their first part.
fn marker(source: &mut Source) -> Vec<u8> {
    let is_whole = source.random.below(2) == 0;
    let mut changes = Vec::new();
    for number in 0..source.random.below(6) {
        let path = format!("{number}/{}", path(source));
        changes.push(if !is_whole && source.random.below(2) == 0 {
            format!(r#"{{"path":"{path}","type":"gone"}}"#)
        } else {
            let (size, digest) = (source.random.number(), digest(source));
            format!(
                r#"{{"path":"{path}","type":"file","size":{size},"sha256":"{digest}","mode":420}}"#
            )
        });
    }
    let (previous, checkpoint) = (link(source), link(source));
    let (engine, token) = (source.random.next(), source.random.number());
    let whole = if is_whole { "\"whole\":true," } else { "" };
    let text =
        format!(
            r#"{{"v":1,"folder":"f","engine":"{engine:016x}","lock":"l","token":{token},"n":3,"#,
        ) + &format!(
            r#""holder":"h","previous":{previous},"checkpoint":{checkpoint},"at":7,"last":false,"#
        ) + &format!(r#""accepted":null,"ignore":null,{whole}"changes":[{}]}}"#, changes.join(","));
    text.into_bytes()
}

/// Whether a path names something in the directory that it is joined to.
fn is_inside(path: &str) -> bool {
    let parts: Vec<_> = Path::new(path).components().collect();
    let is_normal = |part: &Component<'_>| matches!(part, Component::Normal(_));
    !parts.is_empty()
        && parts.iter().all(is_normal)
        && !path.contains('\0')
        && !path.contains("//")
        && !path.starts_with(".latchfs/")
}

#[test]
fn markers_and_checkpoints() {
    let check = |bytes: &[u8]| {
        let read = guard::marker(bytes);
        match &read {
            Ok((reencoded, paths)) => {
                assert!(paths.iter().all(|path| is_inside(path)), "{paths:?}");
                assert!(paths.is_sorted_by(|one, other| one < other), "{paths:?}");
                let once_more = guard::marker(reencoded).expect("what was written can be read");
                assert_eq!(once_more.0, *reencoded, "a marker has one form");
            }
            Err(why) => assert!(why.contains(' '), "{why}"),
        }
        (read.is_ok(), room(bytes.len()))
    };
    let target = Target { name: "markers_and_checkpoints", words: &WORDS, check: &check };
    target.run(|source| {
        let bytes = marker(source);
        let (canonical, _) = guard::marker(&bytes).expect("valid");
        vec![bytes, canonical]
    });
}

#[test]
fn handovers() {
    let check = |bytes: &[u8]| {
        let read = guard::handover(bytes);
        match &read {
            Ok(reencoded) => assert_eq!(reencoded.as_bytes(), bytes, "a handover has one text"),
            Err(why) => assert!(why.contains(' '), "{why}"),
        }
        assert!(read.is_err() || bytes.len() <= 256);
        (read.is_ok(), room(bytes.len()))
    };
    Target { name: "handovers", words: &WORDS, check: &check }.run(|source| {
        let kind = ["clean", "dirty", "accepted"][source.random.below(3)];
        let id = u128::from(source.random.next()) << 64 | u128::from(source.random.next());
        let [next, markers, paths] = [(); 3].map(|()| source.random.number());
        let marker = if kind == "clean" || source.random.below(2) == 0 {
            format!("{} {}", name(source), digest(source))
        } else {
            "- -".to_owned()
        };
        vec![format!("1 {kind} {id:032x} {next} {markers} {paths} {marker}").into_bytes()]
    });
}

#[test]
fn ledgers() {
    let check = |bytes: &[u8]| {
        let read = guard::ledger(bytes);
        match &read {
            Ok(reencoded) => assert_eq!(reencoded, bytes, "a ledger has one encoding"),
            Err(why) => assert!(why.contains(' '), "{why}"),
        }
        (read.is_ok(), room(bytes.len()))
    };
    Target { name: "ledgers", words: &WORDS, check: &check }.run(|source| {
        let mut bytes = b"latchfs ledger 1\n\0\0".to_vec();
        let number = |bytes: &mut Vec<u8>, number: u64| bytes.extend(number.to_le_bytes());
        number(&mut bytes, source.random.number());
        number(&mut bytes, source.random.number());
        bytes.extend([0, 0]);
        number(&mut bytes, 0);
        let files = source.random.below(4);
        number(&mut bytes, files as u64);
        for file in 0..files {
            number(&mut bytes, 1);
            bytes.push(b'a' + file as u8);
            (0..4).for_each(|_| number(&mut bytes, source.random.number()));
            (0..4).for_each(|_| number(&mut bytes, source.random.number()));
            bytes.push(0);
            (0..3).for_each(|_| number(&mut bytes, source.random.number()));
        }
        let given_up = source.random.below(3);
        number(&mut bytes, given_up as u64);
        for path in 0..given_up {
            number(&mut bytes, 1);
            bytes.push(b'k' + path as u8);
        }
        bytes.push(0);
        number(&mut bytes, 1);
        number(&mut bytes, 1);
        number(&mut bytes, 1);
        bytes.push(b'z');
        bytes.extend([0, 1, 0, 0]);
        number(&mut bytes, 1);
        vec![bytes]
    });
}

#[test]
fn ignore_rules() {
    let check = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let read = guard::ignores(&text, "d/a.o");
        // A pattern becomes an automaton, whose size depends on the pattern.
        (read.is_ok() && bytes.is_ascii(), (4 << 20) + 4_096 * bytes.len())
    };
    Target { name: "ignore_rules", words: &WORDS, check: &check }.run(|source| {
        let lines =
            ["*.o", "!d/a.o", "/build/", "**/x", "# no", "(?d)y", "[a-c]?", "{a,b}", "a\\ "];
        let count = 1 + source.random.below(8);
        let all: Vec<_> = (0..count).map(|_| lines[source.random.below(lines.len())]).collect();
        vec![all.join("\n").into_bytes()]
    });
}

#[test]
fn change_logs() {
    let check = |json: &[u8]| {
        let read = guard::change_log(json);
        if let Ok((reencoded, paths)) = &read {
            let once_more = guard::change_log(reencoded).expect("what was written can be read");
            assert_eq!(once_more, (reencoded.clone(), paths.clone()));
            assert!(paths.iter().all(|path| is_inside(path)), "{paths:?}");
        }
        (read.is_ok(), room(json.len()))
    };
    Target { name: "change_logs", words: &WORDS, check: &check }.run(|source| {
        let stamp = |source: &mut Source| {
            let [size, mtime, inode] = [(); 3].map(|()| source.random.number());
            format!("[{size},{mtime},{inode}]")
        };
        // The log names paths in their one form only.
        let names = ["a", "d/b.txt", "caf\u{e9}", ".../x y"];
        let [one, other] = [(); 2].map(|()| names[source.random.below(names.len())]);
        let (before, after) = (stamp(source), stamp(source));
        let id = digest(source);
        let all = [
            format!(r#"{{"how":"begin","path":"{one}","before":{before},"after":{after}}}"#),
            format!(r#"{{"how":"end","path":"{one}","after":{after}}}"#),
            format!(r#"{{"how":"accept","path":"{one}"}}"#),
            r#"{"how":"accept-whole"}"#.to_owned(),
            format!(r#"{{"how":"rename-dir","path":"{one}","to":"{other}"}}"#),
            format!(r#"{{"how":"remove-dir","path":"{one}"}}"#),
            format!(r#"{{"how":"own","id":"{}"}}"#, &id[..32]),
            format!(r#"{{"how":"ledger","id":"{id}"}}"#),
        ];
        all.map(String::into_bytes).to_vec()
    });
}

#[test]
fn lock_records() {
    let check = |text: &[u8]| {
        let read = guard::lock_record(text);
        if let Ok((kept, is_same)) = &read {
            assert!(is_same, "{}", String::from_utf8_lossy(kept));
            assert!(kept.len() <= 1_024, "{}", kept.len());
        }
        (read.is_ok(), room(text.len()))
    };
    Target { name: "lock_records", words: &WORDS, check: &check }.run(|source| {
        let texts = ["n", "caf\u{e9}", "a \\\" b", "0123456789abcdef0123456789abcdef"];
        let [nonce, session] = [(); 2].map(|()| texts[source.random.below(texts.len())]);
        let [seq, token, ttl] = [(); 3].map(|()| source.random.number());
        let times = r#""created_at":"t","last_renewed_at":"t","lease_expires_at":"t""#;
        let text = format!(
            r#"{{"lock_id":"e","worktree_id":"f","holder_id":"h:u:1:2","holder_nonce":"{nonce}","#
        ) + &format!(
            r#""session_id":"{session}","acquire_seq":{seq},"fencing_token":{token},"#
        ) + &format!(
            r#""lease_duration_ms":{ttl},"renew_interval_ms":1,"steal_grace_ms":1,"#
        ) + &format!(r#""max_clock_skew_ms":2000,{times}}}"#);
        vec![text.into_bytes()]
    });
}
