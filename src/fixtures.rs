//! One fixture of each container, in `tests/fixtures/formats`: a test fails when the bytes of one
//! change. Until the first release a change of bytes rewrites its fixture in the same commit, by
//! `UPDATE=1 cargo test --lib fixtures`, and the version stays 1. After it, a change of bytes needs
//! a new version.

use crate::audit_chain::{AuditChain, AuditHead, ChainEntry};
use crate::engine::ClientId;
use crate::engine::codec::state_codec::encode_state;
use crate::engine::values::lease::GRACE_DEFAULT;
use crate::engine::{
    AcknowledgedKeys, Acquire, Annotate, Command, Digest, EndHoldOff, EndSession, Engine,
    FileAttrs, Firm, Forget, Grace, Handover, HoldOff, HoldOffCause, IdempotencyKey, IfExists,
    LeaseKey, LeaseTerms, Leave, LeaveReason, LockName, Mode, Move, Op, OpenId, OpenSession,
    Ownership, Patch, Process, QueuePolicy, Release, Renew, RequestId, RequestOrder, Reset,
    ResetScope, Rules, Seats, SessionEnd, SessionId, Steal, StealReason, TextPatch, Ticket, Token,
    Ttl,
};
use crate::guard::barrier::folder_path::ContentDigest;
use crate::guard::barrier::handover::HandoverId;
use crate::guard::barrier::ledger::Ledger;
use crate::guard::barrier::test_markers::{TestMarkers, is};
use crate::guard::folder_snapshot::descriptor::{EntryKind, ManifestEntry, manifest_text};
use crate::guard::folder_snapshot::descriptor::{
    SnapshotConsistency, SnapshotDescriptor, SnapshotReady,
};
use crate::raft::fuzz as raft;
use crate::service::batch::batch_messages::{
    BatchItem, BatchResponse, Frame, ItemReply, RequestBatch, Stamp, Submission, encode_batch,
    encode_frame, encode_response,
};
use crate::service::{EventPlace, fuzz as service, replay};
use crate::storage::fuzz as storage;
use crate::time::{Span, Time, Wall};
use std::fs;
use std::path::Path;

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("valid")
}

fn client(text: &str) -> ClientId {
    ClientId::parse(text).expect("valid")
}

fn own() -> LeaseTerms {
    LeaseTerms::Own(Ttl::new(Span::from_secs(30)).expect("valid"), GRACE_DEFAULT)
}

fn patch() -> Patch {
    let process = Some(Some(Process { pid: 7, start: 70, boot: 700 }));
    let text = Some(TextPatch::Set(b"text".as_slice().into()));
    let attrs = Some(FileAttrs { uid: 1_000, mode: 0o640, ..FileAttrs::default() });
    Patch { holder_id: Some("a:7".into()), note: Some("note".into()), text, process, attrs }
}

/// Returns an acquire with all of its fields.
fn acquire(open: OpenId) -> Acquire {
    Acquire {
        mode: Mode::Shared,
        hold: Ownership::OpenFile(open),
        line: QueuePolicy::Join(Some(Span::from_secs(5))),
        patch: patch(),
        takes_over: Some(Token::named(4)),
        remember: true,
        ..Acquire::new(name("x"), client("a"), own())
    }
}

/// Returns one command of each kind, with all of its fields.
fn commands() -> Vec<Command> {
    let (ttl, reason) = (Ttl::new(Span::from_secs(60)), StealReason::parse("gone"));
    let (ttl, reason) = (Some(ttl.expect("valid")), reason.expect("valid"));
    let key = |token| LeaseKey { name: name("x"), client: client("a"), token };
    let token = Some(Token::named(2));
    let handover = Some(Handover { text: "clean".into(), counter: 3 });
    let open = OpenId { session: SessionId::named(1), number: 9 };
    let steal = Steal {
        name: name("x"),
        only: token,
        client: client("b"),
        reason: reason.clone(),
        term: own(),
        patch: Patch::default(),
        at_once: true,
    };
    let seat = Acquire::new(name("y"), client("a"), own());
    let ops = [
        Op::OpenSession(OpenSession { client: client("a"), ttl, grace: Grace::NONE }),
        Op::Acquire(Acquire { remember: true, ..Acquire::new(name("x"), client("a"), own()) }),
        Op::Acquire(acquire(open)),
        Op::Acquire(Acquire { mode: Mode::Seats(Seats::new(3).expect("valid")), ..seat }),
        Op::Renew(Renew {
            key: key(None),
            term: Some(own()),
            firm: Firm::Make,
            patch: patch(),
            acquires: true,
        }),
        Op::Annotate(Annotate { key: key(token), patch: patch(), handover: handover.clone() }),
        Op::Acquire(Acquire {
            line: QueuePolicy::Join(None),
            ..Acquire::new(name("x"), client("b"), own())
        }),
        Op::Leave(Leave { name: name("x"), ticket: Ticket::named(9), why: LeaveReason::Gone }),
        Op::Move(Move { from: key(token), to: name("y"), over: IfExists::Replace }),
        Op::Steal(steal),
        Op::Release(Release {
            acquisition: Some(1),
            open: Some(open),
            handover,
            acknowledges: true,
            ..Release::of(key(token))
        }),
        Op::KeepAlive(SessionId::named(1)),
        Op::Acquire(Acquire {
            term: LeaseTerms::Session(SessionId::named(1)),
            ..Acquire::new(name("z"), client("a"), own())
        }),
        Op::Forget(Forget { name: name("w"), by: client("root") }),
        Op::EndHoldOff(EndHoldOff { by: client("root"), reason: reason.clone() }),
        Op::Reset(Reset::new(ResetScope::Of(client("c")), client("root"), reason)),
        Op::EndSession(EndSession { session: SessionId::named(8), end: SessionEnd::Revoked }),
        Op::Settle,
    ];
    let keyed = |(number, op): (u64, Op)| {
        let key = format!("k-{number:02}");
        let id = RequestId { caller: "http:a".into(), key: key.as_str().into() };
        let request = Some(IdempotencyKey { id, digest: Digest(number.into()) });
        let order = (number == 10).then_some(RequestOrder { session: SessionId::named(1), number });
        let acknowledged = Some(AcknowledgedKeys { from: "k-".into(), below: "k-01".into() });
        Command { request, op, order, acknowledged: acknowledged.filter(|_| order.is_some()) }
    };
    (0..).zip(ops).map(keyed).collect()
}

/// Returns an engine that has applied all commands, and its answers as a batch server sends them.
fn engine() -> (Engine, Vec<ItemReply>) {
    let mut engine = Engine::new(Rules::default());
    let mut replies = Vec::new();
    for (number, command) in (0..).zip(commands()) {
        let at = Time::ZERO + Span::from_millis(100 * number);
        replies.push(ItemReply::Answered(engine.apply(at, &command, &mut Vec::new())));
    }
    replies.push(ItemReply::Viewed(engine.view(&name("x"), engine.clock())));
    let until = engine.clock() + Span::from_secs(9);
    engine.begin_hold_off(HoldOff { until, cause: HoldOffCause::Restored });
    engine.check();
    (engine, replies)
}

fn batch() -> RequestBatch {
    let submit = |command: Command| {
        let key = command.request.map(|request| request.id.key);
        BatchItem::Submit(Submission { key, op: command.op })
    };
    RequestBatch {
        engine: 7,
        from: 8,
        number: 9,
        session: Some(SessionId::named(1)),
        acknowledged: Some(AcknowledgedKeys { from: "a".into(), below: "b".into() }),
        asks: commands().into_iter().map(submit).chain([BatchItem::Now]).collect(),
    }
}

/// Returns the name of each fixture and its bytes.
fn all() -> Vec<(&'static str, Vec<u8>)> {
    let ((engine, replies), wall) = (engine(), Wall { secs: 1_800_000_000, nanos: 5_000_000 });
    let stamp = Stamp { engine: 1, start: 2, now: engine.clock(), wall, next_event: 3 };
    let mut events = Vec::new();
    let mut other = Engine::new(Rules::default());
    for command in commands() {
        let _ = other.apply(Time::from_secs(1), &command, &mut events);
    }
    let events = (0..).zip(events).collect();
    let place = Some(EventPlace { entry: 7, number: 1 });
    let records: Vec<_> = commands().iter().map(|it| service::record(Time::ZERO, it)).collect();
    let numbers = [3, 1, 40, 5_000];
    vec![
        ("journal", storage::journal(&records)),
        ("snapshot", storage::snapshot(&service::snapshot(&engine))),
        ("tokens", storage::tokens(8_192)),
        ("log", raft::stored_entries(numbers, commands())),
        ("node", raft::node()),
        ("raft-snapshot", raft::snapshot_file(numbers, &raft::snapshot_state(&engine))),
        ("backup", replay::write(7, wall, &encode_state(1, &engine))),
        ("batch", encode_batch(&batch())),
        ("batch-answer", encode_response(&BatchResponse { stamp, replies })),
        ("frame", encode_frame(1, &Frame::Events(1, events, place))),
        ("rpc", raft::calls(numbers, &commands(), &[1]).into_iter().flat_map(|it| it.1).collect()),
        ("rpc-answer", raft::answers(numbers, vec![]).concat()),
        ("marker", marker()),
        ("ledger", ledger()),
        ("manifest", manifest()),
        ("audit", audit()),
    ]
}

#[test]
fn each_container_has_the_bytes_of_its_fixture() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/formats");
    let all = all();
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(&dir).expect("the tree can be written");
        for (name, bytes) in &all {
            fs::write(dir.join(name), bytes).expect("room");
        }
    }
    let there = fs::read_dir(&dir).expect("the fixtures are there").count();
    assert_eq!(there, all.len(), "one fixture of each container");
    for (name, bytes) in &all {
        let fixture = fs::read(dir.join(name)).unwrap_or_default();
        let same = fixture.iter().zip(bytes).take_while(|(one, other)| one == other).count();
        assert!(
            fixture == *bytes,
            "{name} has changed at byte {same}; if this is right: \
             UPDATE=1 cargo test --lib fixtures"
        );
    }
}

/// Returns the bytes of a marker.
fn marker() -> Vec<u8> {
    let first = TestMarkers::made(6, 1, None, &[]).link().expect("it can be written");
    let marker = TestMarkers::made(7, 2, Some(first), &[is("a", b"one"), is("b/c", b"two")]);
    marker.write().expect("it can be written")
}

/// Returns the bytes of a ledger.
fn ledger() -> Vec<u8> {
    let mut ledger = Ledger::default();
    ledger.record_own(HandoverId(9));
    ledger.save()
}

/// Returns the descriptor, the manifest and the last file of a snapshot.
fn manifest() -> Vec<u8> {
    let digest = ContentDigest::of(b"abc");
    let path = "a:b".into();
    let mut entries = [ManifestEntry { kind: EntryKind::File, path, mode: 0o644, size: 3, digest }];
    let text = manifest_text(&mut entries);
    let consistency = SnapshotConsistency::Quiesced;
    let mut descriptor = SnapshotDescriptor::new("20260115T103000-0000002a", consistency);
    descriptor.root = ContentDigest::of(text.as_bytes()).to_string();
    let ready = SnapshotReady::of(&descriptor).bytes();
    [descriptor.bytes(), text.into_bytes(), ready].concat()
}

/// Returns a line of an audit log, and its head.
fn audit() -> Vec<u8> {
    let mut chain = AuditChain::resume(None, None);
    let line = chain.add(ChainEntry {
        timestamp: "2026-01-15T10:30:00.000Z".to_owned(),
        operation: "steal",
        actor: "laptop1",
        target: Some("build".to_owned()),
        fencing_token: Some(7),
        session_id: Some("3".to_owned()),
        reason: Some("gone"),
        ..ChainEntry::default()
    });
    (line + &AuditHead::of(&chain, 1).to_text()).into_bytes()
}
