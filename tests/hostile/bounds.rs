//! Bounds on one request: each length field of a batch at its maximum and one above it, and the
//! memory that the bodies of many concurrent requests take together.

use crate::floods::{
    FLOOD_KIB, acquire, ask_at_socket, beside_victim, peak_kib, send, send_batch,
    serves_the_victim, start, submit,
};
use latchfs::engine::values::details::{
    HANDOVER_BYTES_MAX, HOLDER_ID_BYTES_MAX, NOTE_BYTES_MAX, REQUEST_KEY_BYTES_MAX, SPARED_MAX,
    TEXT_BYTES_MAX,
};
use latchfs::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use latchfs::engine::{
    Acquire, Annotate, ClientId, Handover, LeaseKey, LeaseTerms, LockName, Op, Patch, Reset,
    ResetScope, Steal, StealReason, TextPatch,
};
use latchfs::service::List;
use latchfs::service::batch::batch_messages;
use latchfs::service::batch::batch_messages::{
    BatchItem, ItemReply, RequestBatch, Submission, encode_batch,
};
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;
use testing::{Scratch, Server, run_latchfs};

/// Returns a command whose field `part` has `count` bytes, or `count` elements if it is a list.
fn with_part(part: &str, count: usize) -> Submission {
    let text = || "x".repeat(count);
    let of = |patch| match acquire("eve", "short") {
        Op::Acquire(ask) => Op::Acquire(Acquire { patch, ..ask }),
        other => other,
    };
    let client = || ClientId::parse("eve").expect("a client");
    let op = match part {
        "note" => of(Patch { note: Some(text().into()), ..Patch::default() }),
        "holder id" => of(Patch { holder_id: Some(text().into()), ..Patch::default() }),
        "text" => {
            let set = TextPatch::Set(text().into_bytes().into());
            of(Patch { text: Some(set), ..Patch::default() })
        }
        "spared" => {
            let (whose, reason) = (vec![client(); count], StealReason::parse("why"));
            let (whose, reason) = (ResetScope::AllBut(whose), reason.expect("a reason"));
            Op::Reset(Reset::new(whose, client(), reason))
        }
        "handover" => {
            let (name, token) = (LockName::parse("eve").expect("a name"), None);
            let key = LeaseKey { name, client: client(), token };
            let handover = Some(Handover { text: text().into(), counter: 1 });
            Op::Annotate(Annotate { key, patch: Patch::default(), handover })
        }
        "key" => acquire("eve", "short"),
        other => panic!("no such part: {other}"),
    };
    let key = if part == "key" { Some(text().as_str().into()) } else { None };
    Submission { key, op }
}

/// Each part of a command in a batch has a bound: the maximum is accepted, one more is refused, and
/// the refused command has no effect.
#[test]
fn every_length_in_a_batch_has_a_bound() {
    let scratch = Scratch::new();
    let socket = scratch.path().join("http.sock");
    let listen = format!("127.0.0.1:0,unix:{}", socket.display());
    let server = Server::at(&listen, &["--memory", "--grant-at-once"]);
    for (part, max) in [
        ("note", NOTE_BYTES_MAX),
        ("holder id", HOLDER_ID_BYTES_MAX),
        ("text", TEXT_BYTES_MAX),
        ("key", REQUEST_KEY_BYTES_MAX),
        ("spared", SPARED_MAX),
        ("handover", HANDOVER_BYTES_MAX),
    ] {
        for (over, count) in [(1, max + 1), (0, max)] {
            let parts = vec![BatchItem::Submit(with_part(part, count))];
            let replies = ask_at_socket(&socket, parts);
            let [ItemReply::Answered(answer)] = &replies[..] else { panic!("{part}: {replies:?}") };
            match answer {
                Ok(_) => assert_eq!(over, 0, "{part} of {count}"),
                // The name is not remembered, which is found out only after its length.
                Err(refusal) if over == 0 => {
                    assert_eq!(
                        (part, refusal.to_string().contains("remembered")),
                        ("handover", true)
                    );
                }
                Err(refusal) => {
                    assert_eq!((over, refusal.kind().as_str()), (1, "E_INVALID"), "{part}");
                    let free = server.curl(&["/locks/eve"]).is(200);
                    assert!(part != "note" || free["phase"] == "free", "{part}: {free}");
                }
            }
            serves_the_victim(&server);
        }
    }
}

/// Rust types keep the reason of a steal, a lock name and a client name within their bounds, so the
/// test edits an encoded batch to make one of them a byte too long. The server refuses the whole
/// batch.
#[test]
fn a_batch_with_a_text_over_its_bound_is_refused() {
    let server = start();
    send_batch(&server, vec![submit(acquire("eve", "held"))]);
    let reason = "r".repeat(NOTE_BYTES_MAX);
    // The longest lock name consists of four components of at most 255 bytes.
    let name =
        ["n".repeat(255), "n".repeat(255), "n".repeat(255), "n".repeat(256 - 3 + 2)].join("/");
    let name = &name[..1_024.min(name.len())];
    let client = "c".repeat(255);
    let steal = |name: &str, client: &str, reason: &str| {
        let op = Op::Steal(Steal {
            name: LockName::parse(name).expect("a name"),
            client: ClientId::parse(client).expect("a client"),
            reason: StealReason::parse(reason).expect("a reason"),
            term: LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
            patch: Patch::default(),
            at_once: false,
            only: None,
        });
        encode_batch(&RequestBatch::new(0, vec![submit(op)]))
    };
    for (part, text, batch) in [
        ("reason", &*reason, steal("eve", "eve", &reason)),
        ("name", name, steal(name, "eve", "why")),
        ("client", &*client, steal("eve", &client, "why")),
    ] {
        assert_eq!(send(&server, &batch).0, 200, "{part} of {} bytes", text.len());
        // In an encoded batch, the length of a text precedes its bytes, as a base-128 varint: seven
        // bits per byte, low bits first.
        let length = |count: usize| vec![count as u8 & 0x7f | 0x80, (count >> 7) as u8];
        let said = [&length(text.len())[..], text.as_bytes()].concat();
        let at = batch.windows(said.len()).position(|window| window == said).expect("it is there");
        let mut over = batch[..at].to_vec();
        over.extend(length(text.len() + 1));
        over.extend(text.as_bytes());
        over.push(*text.as_bytes().last().expect("not empty"));
        over.extend(&batch[at + said.len()..]);
        assert_eq!(send(&server, &over).0, 400, "{part} of {} bytes", text.len() + 1);
        serves_the_victim(&server);
    }
}

/// Names with characters that are invisible or reorder others are refused at each front end.
/// Decoding a batch accepts them, for locks that were made before.
#[test]
fn deceptive_names_are_refused() {
    let server = start();
    for (number, part) in (1..).zip(["%E2%80%8B", "%E2%80%AE", "%EF%BB%BF"]) {
        server.curl(&["-X", "POST", &format!("/locks/pro{part}d?client=eve")]).is(400);
        server.curl(&["-X", "POST", &format!("/locks/prod?client=e{part}ve")]).is(400);
        // Only an older version can encode such a name.
        let text = ["pro\u{200b}d", "pro\u{202e}d", "pro\u{feff}d"][number - 1];
        let asks = vec![submit(acquire("proxyzd", "short"))];
        let mut bytes = encode_batch(&RequestBatch::new(0, asks));
        let at = bytes.windows(7).position(|window| window == b"proxyzd").expect("it is there");
        bytes[at..at + 7].copy_from_slice(text.as_bytes());
        let (code, body) = send(&server, &bytes);
        let replies = batch_messages::decode_response(&body).expect("an answer").replies;
        assert!(code == 200 && matches!(replies[..], [ItemReply::Unavailable(_)]), "{replies:?}");
    }
    let listed = server.curl(&["/locks"]).is(200);
    assert_eq!(listed["locks"].as_array().map(Vec::len), Some(0), "{listed}");
}

/// The server does not read the name of the caller from a request: the caller's name is that of its
/// bearer token, and the server checks the length of that name when it reads the token file.
#[test]
fn token_names_have_a_bound() {
    let scratch = Scratch::new();
    let path = scratch.path().join("tokens.toml");
    let serve = |length: usize| {
        let name = "t".repeat(length);
        let secret = "the secret of somebody";
        let text = format!("[[token]]\nname = '{name}'\nsecret = '{secret}'\nclients = ['*']\n");
        fs::write(&path, text).expect("a fresh directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        path.display().to_string()
    };
    let tokens = serve(255);
    let server = Server::start(&["--tokens", &tokens]);
    let auth = ["-H", "Authorization: Bearer the secret of somebody"];
    let keyed = [&auth[..], &["-H", "Idempotency-Key: x", "-X", "POST", "/locks/a?client=b"]];
    server.curl(&keyed.concat()).is(200);
    let tokens = serve(256);
    let none = ["serve", "--listen", "127.0.0.1:0", "--memory", "--tokens", &tokens];
    let (code, said) = run_latchfs(&none);
    assert!(code != Some(0) && said.contains("255"), "{said}");
}

/// Hundreds of connections each send the longest batch or the longest API request without its last
/// byte. The server reads a limited number of bodies at a time and refuses the others before it
/// keeps a byte of them.
#[test]
fn bodies_of_many_requests_share_one_memory_bound() {
    let server = start();
    serves_the_victim(&server);
    let before = peak_kib(server.pid());
    let address = server.url.strip_prefix("http://").expect("plain HTTP");
    let paths = [("/door/v1/ask", batch_messages::BATCH_BYTES_MAX), ("/locks/eve", 64 << 10)];
    let begin = |number: usize| {
        let (path, length) = paths[number % 2];
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a limit");
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        let _ = stream.write_all(head.as_bytes());
        // The client sends all bytes but the last one, or as many as the server reads.
        let _ = stream.write_all(&vec![b' '; length - 1]);
        stream
    };
    let mut held = Vec::new();
    for round in 0..20 {
        let (held, begin) = (&mut held, &begin);
        beside_victim(
            || serves_the_victim(&server),
            move || held.extend((0..16).map(|number| begin(16 * round + number))),
        );
    }
    serves_the_victim(&server);
    let grown = peak_kib(server.pid()) - before;
    assert!(grown < FLOOD_KIB, "{grown} KiB for bodies that never come to their end");
    let refused = held.iter_mut().filter_map(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(10))).ok()?;
        let mut said = [0; 12];
        stream.read_exact(&mut said).ok()?;
        (&said == b"HTTP/1.1 429").then_some(())
    });
    assert!(refused.count() > 0, "some get a refusal");
}

/// A hundred connections each request a page of five megabytes, and read nothing. The server keeps
/// the share of one address, half of 256 MiB, and refuses the others.
#[test]
fn answers_that_are_not_read_have_a_share() {
    let server = start();
    for batch in 0..4 {
        let lock = |number: usize| {
            let text = TextPatch::Set("x".repeat(TEXT_BYTES_MAX).into_bytes().into());
            let note = Some("n".repeat(NOTE_BYTES_MAX).into());
            let patch = Patch { note, text: Some(text), ..Patch::default() };
            match acquire(&format!("lock{batch}-{number}"), "short") {
                Op::Acquire(ask) => submit(Op::Acquire(Acquire { patch, ..ask })),
                other => panic!("{other:?}"),
            }
        };
        let replies = send_batch(&server, (0..250).map(lock).collect());
        assert!(replies.iter().all(|reply| matches!(reply, ItemReply::Answered(Ok(_)))));
    }
    serves_the_victim(&server);
    let before = peak_kib(server.pid());
    let address = server.url.strip_prefix("http://").expect("plain HTTP");
    let request = |_| {
        let list = List { prefix: "lock".to_owned(), after: None, limit: 1_024 };
        let body = encode_batch(&RequestBatch::new(0, vec![BatchItem::List(list)]));
        let head = format!(
            "POST /door/v1/ask HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        stream.write_all(&[head.as_bytes(), &body].concat()).expect("sent");
        let mut status = [0; 12];
        let mut seen = 0;
        while seen < status.len() {
            // Unlike a read, a peek is not begun again after a signal.
            match stream.peek(&mut status) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                peeked => seen = peeked.expect("an answer"),
            }
        }
        (stream, status)
    };
    let held: Vec<_> = (0..100).map(request).collect();
    let count = |status: &[u8; 12]| held.iter().filter(|(_, of)| of == status).count();
    let (sent, refused) = (count(b"HTTP/1.1 200"), count(b"HTTP/1.1 429"));
    assert_eq!(sent + refused, 100);
    assert!((20..30).contains(&sent), "{sent} answers of five megabytes");
    serves_the_victim(&server);
    let grown = peak_kib(server.pid()) - before;
    assert!(grown < (128 << 10) + FLOOD_KIB, "{grown} KiB for answers that nobody reads");
}
