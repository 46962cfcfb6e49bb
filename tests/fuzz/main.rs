//! Property tests of everything that parses bytes or text: names, durations, the journal and
//! snapshots of the engine, and the batches and events between a client and its server.
//!
//! Parsers that belong to a single layer (messages, requests) have such tests in their own modules.

use latchfs::engine::command::{Annotate, EndSession};
use latchfs::engine::details::{Patch, TextPatch};
use latchfs::engine::event::SessionEnd;
use latchfs::engine::lease_terms::{GRACE_DEFAULT, looks_like_a_duration, parse_span};
use latchfs::engine::{
    AcknowledgedKeys, Acquire, ClientId, Command, Digest, Engine, Firm, Grace, IdempotencyKey,
    IfExists, LeaseKey, LeaseTerms, LockName, Mode, Move, Op, OpenId, OpenSession, Ownership,
    QueuePolicy, Release, Renew, RequestId, RequestOrder, Reset, ResetScope, Rulebook, Rules,
    SessionId, Steal, StealReason, Token, Ttl, codec,
};
use latchfs::service::batch_messages::{
    BatchItem, BatchResponse, Frame, ItemReply, PROTOCOL, PROTOCOL_BASE, RequestBatch, Stamp,
    Submission, decode_batch, decode_told, encode_batch, encode_frame, encode_told, take_frame,
};
use latchfs::service::{About, BackendKind, Children, Contact, List, ListPage, Unavailable};
use latchfs::time::{Span, Time, Wall};
use proptest::prelude::*;
use std::sync::Arc;

/// Generates byte strings of which some are valid names, and many almost are.
fn nearly_names() -> impl Strategy<Value = Vec<u8>> {
    let text = r"(\.latchfs|\.\.|\.|/|[a-z]{1,8}|é|\x7f|\n){0,8}".prop_map(String::into_bytes);
    let long = (0..6_usize, 250..260_usize, any::<bool>()).prop_map(|(parts, bytes, slash)| {
        let part = "x".repeat(bytes);
        [vec![part.as_str(); parts].join("/"), "/".repeat(usize::from(slash))].concat().into_bytes()
    });
    prop_oneof![text, long, proptest::collection::vec(any::<u8>(), 0..300)]
}

fn name() -> impl Strategy<Value = LockName> {
    "[a-c](/[a-c])?".prop_map(|text| LockName::parse(&text).expect("a name"))
}

fn client() -> impl Strategy<Value = ClientId> {
    "[a-c](:[a-c])?".prop_map(|text| ClientId::parse(&text).expect("a client"))
}

fn term() -> impl Strategy<Value = LeaseTerms> {
    let own = (1..=86_400_u64, 0..=86_400_u64).prop_map(|(ttl, grace)| {
        let ttl = Ttl::new(Span::from_secs(ttl)).expect("within bounds");
        LeaseTerms::Own(ttl, Grace::new(Span::from_secs(grace)).expect("within bounds"))
    });
    prop_oneof![3 => own, 1 => (1..9_u64).prop_map(|id| LeaseTerms::Session(SessionId::named(id)))]
}

fn patch() -> impl Strategy<Value = Patch> {
    let text = proptest::collection::vec(any::<u8>(), 0..20).prop_map(Arc::<[u8]>::from);
    let text = (any::<bool>(), text).prop_map(|(append, text)| {
        if append { TextPatch::Append(text) } else { TextPatch::Set(text) }
    });
    let word = || proptest::option::of("[a-z]{0,9}".prop_map(Arc::<str>::from));
    (word(), word(), proptest::option::of(text)).prop_map(|(holder_id, note, text)| Patch {
        holder_id,
        note,
        text,
        ..Patch::default()
    })
}

fn key() -> impl Strategy<Value = LeaseKey> {
    let token = proptest::option::of((1..9_u64).prop_map(Token::named));
    (name(), client(), token).prop_map(|(name, client, token)| LeaseKey { name, client, token })
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)];
    let open = || {
        (1..9_u64, 0..3_u64)
            .prop_map(|(id, number)| OpenId { session: SessionId::named(id), number })
    };
    let hold = prop_oneof![
        Just(Ownership::Client),
        Just(Ownership::Exclusive(None)),
        open().prop_map(|open| Ownership::Exclusive(Some(open))),
        open().prop_map(Ownership::OpenFile),
    ];
    let wait = proptest::option::of((0..99_u64).prop_map(Span::from_secs));
    let line = prop_oneof![Just(QueuePolicy::Skip), wait.prop_map(QueuePolicy::Join)];
    let acquire = (name(), client(), mode, hold, term(), line, patch()).prop_map(
        |(name, client, mode, hold, term, line, patch)| {
            Op::Acquire(Acquire { name, client, mode, hold, term, line, patch })
        },
    );
    let firm = prop_oneof![Just(Firm::Keep), Just(Firm::Make)];
    let renew = (key(), proptest::option::of(term()), firm, patch()).prop_map(
        |(key, term, firm, patch)| Op::Renew(Renew { key, term, firm, patch, acquires: false }),
    );
    let over = prop_oneof![Just(IfExists::Replace), Just(IfExists::Refuse)];
    let moved =
        (key(), name(), over).prop_map(|(from, to, over)| Op::Move(Move { from, to, over }));
    let steal = (name(), client(), term(), patch()).prop_map(|(name, client, term, patch)| {
        let reason = StealReason::parse("because").expect("a reason");
        Op::Steal(Steal { name, client, reason, term, patch })
    });
    let ttl = (1..99_u64).prop_map(|ttl| Ttl::new(Span::from_secs(ttl)).expect("within bounds"));
    let opened = (client(), proptest::option::of(ttl)).prop_map(|(client, ttl)| {
        Op::OpenSession(OpenSession { client, ttl, grace: GRACE_DEFAULT })
    });
    let end = prop_oneof![Just(SessionEnd::Closed), Just(SessionEnd::Expired)];
    let ended = ((1..9_u64).prop_map(SessionId::named), end)
        .prop_map(|(session, end)| Op::EndSession(EndSession { session, end }));
    prop_oneof![
        4 => acquire,
        2 => renew,
        2 => key().prop_map(|key| Op::Release(Release::of(key))),
        1 => (key(), open()).prop_map(|(key, open)| Op::Release(Release::of_open_file(open, key))),
        1 => (key(), patch()).prop_map(|(key, patch)| Op::Annotate(Annotate { key, patch })),
        1 => moved,
        1 => steal,
        1 => opened,
        1 => (1..9_u64).prop_map(|id| Op::KeepAlive(SessionId::named(id))),
        1 => ended,
        1 => (proptest::collection::vec(client(), 0..3), client(), any::<bool>()).prop_map(
            |(kept, by, all)| {
                let reason = StealReason::parse("because").expect("a reason");
                let whose = if all { ResetScope::AllBut(kept) } else { ResetScope::Of(by.clone()) };
                Op::Reset(Reset { whose, by, reason })
            }
        ),
        1 => Just(Op::Settle),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let request = ("[a-c]", "[a-c]", any::<u128>()).prop_map(|(caller, key, digest)| {
        let id = RequestId { caller: caller.into(), key: key.into() };
        IdempotencyKey { id, digest: Digest(digest) }
    });
    let rules = prop_oneof![Just(Rulebook::First), Just(Rulebook::Second), Just(Rulebook::Third)];
    let order = (1..9_u64, any::<u64>())
        .prop_map(|(id, number)| RequestOrder { session: SessionId::named(id), number });
    let keys = proptest::option::of(acknowledged());
    (proptest::option::of(request), op(), rules, proptest::option::of(order), keys).prop_map(
        |(request, op, rules, order, acknowledged)| Command {
            request,
            op,
            rules,
            order,
            acknowledged,
        },
    )
}

fn acknowledged() -> impl Strategy<Value = AcknowledgedKeys> {
    ("[a-c]", "[a-c]")
        .prop_map(|(from, below)| AcknowledgedKeys { from: from.into(), below: below.into() })
}

fn decode_command(bytes: &[u8]) -> Result<(Time, Command), codec::Malformed> {
    codec::decode_command(codec::FORMAT_VERSION, bytes)
}

fn decode_engine(bytes: &[u8]) -> Result<Engine, codec::Malformed> {
    codec::decode_engine(codec::FORMAT_VERSION, bytes)
}

/// Returns an engine that has applied the given commands, each the given number of milliseconds
/// after the previous one.
fn lived(commands: &[(u64, Command)]) -> Engine {
    let mut engine = Engine::new(Rules::default());
    let (mut at, mut events) = (Time::ZERO, vec![]);
    for (later, command) in commands {
        at = at + Span::from_millis(*later);
        let _answer = engine.apply(at, command, &mut events);
    }
    engine
}

fn batch() -> impl Strategy<Value = RequestBatch> {
    let text = || proptest::option::of("[a-z/]{0,9}");
    let list = ("[a-z/]{0,9}", proptest::option::of(name()), any::<usize>())
        .prop_map(|(prefix, after, limit)| BatchItem::List(List { prefix, after, limit }));
    let children = (proptest::option::of(name()), text(), any::<usize>()).prop_map(
        |(parent, cursor, limit)| BatchItem::Children(Children { parent, cursor, limit }),
    );
    let ask = prop_oneof![
        4 => (op(), proptest::option::of("[a-c]")).prop_map(|(op, key)| {
            BatchItem::Submit(Submission { key: key.map(Arc::from), op })
        }),
        2 => name().prop_map(BatchItem::View),
        1 => list,
        1 => children,
        1 => Just(BatchItem::About),
        1 => Just(BatchItem::Now),
    ];
    let session = proptest::option::of(any::<u64>().prop_map(SessionId::named));
    let keys = proptest::option::of(acknowledged());
    (any::<u64>(), any::<u64>(), session, keys, proptest::collection::vec(ask, 0..9)).prop_map(
        |(from, number, session, acknowledged, asks)| {
            let engine = from ^ number;
            RequestBatch { engine, from, number, session, acknowledged, asks }
        },
    )
}

/// Returns a server's response to a batch of the given commands, and the frame of the events that
/// the commands cause.
fn told(commands: &[(u64, Command)]) -> (BatchResponse, Frame) {
    let mut engine = Engine::new(Rules::default());
    let (mut at, mut events, mut replies) = (Time::ZERO, vec![], vec![]);
    for (later, command) in commands {
        at = at + Span::from_millis(*later);
        replies.push(ItemReply::Answered(engine.apply(at, command, &mut events)));
    }
    let items: Vec<_> = engine.list("", None, 99, at).collect();
    replies.extend(items.iter().cloned().map(ItemReply::Viewed));
    replies.push(ItemReply::Listed(ListPage { items, next: Some("a".to_owned()) }));
    let (items, next) = engine.children(None, None, 2);
    replies.push(ItemReply::Found(ListPage { items, next }));
    let (kind, state) = (BackendKind::Server, "somewhere".to_owned());
    let (contact, locks, waiters, sessions) = (Contact::Jeopardy, 1, 2, 3);
    replies.push(ItemReply::About(About { kind, contact, state, locks, waiters, sessions }));
    replies.extend([
        ItemReply::Now,
        ItemReply::Unavailable(Unavailable::Closing),
        ItemReply::Unavailable(Unavailable::State { full: true, why: "full".into() }),
        ItemReply::Unavailable(Unavailable::NoAnswer { server: "box".into() }),
        ItemReply::Unavailable(Unavailable::Denied { why: "no".into() }),
    ]);
    let wall = Wall { secs: -5, nanos: 7 };
    let stamp = Stamp { engine: 3, start: 7, now: at, wall, next_event: events.len() as u64 };
    (BatchResponse { stamp, replies }, Frame::Events(3, (9..).zip(events).collect()))
}

proptest! {
    #[test]
    fn a_name_is_accepted_exactly_if_it_is_valid(bytes in nearly_names()) {
        let good = |part: &str| {
            (1..=255).contains(&part.len()) && part != "." && part != ".."
                && !part.chars().any(char::is_control)
        };
        let wanted = std::str::from_utf8(&bytes).is_ok_and(|text| {
            text.len() <= 1_024 && text.split('/').all(good) && !text.starts_with(".latchfs")
        });
        let parsed = LockName::parse_bytes(&bytes);
        prop_assert_eq!(parsed.is_ok(), wanted);
        if let Ok(name) = parsed {
            prop_assert_eq!(name.as_str().as_bytes(), &bytes[..]);
        }
    }

    #[test]
    fn a_ttl_is_accepted_exactly_if_it_is_within_bounds(
        text in r"[-+]?([0-9]{0,22}(\.[0-9]{0,22})?[hmsnu ]{0,2}){0,4}",
    ) {
        let span = parse_span(&text);
        prop_assert!(span.is_err() || looks_like_a_duration(&text), "a ttl that no write can say");
        prop_assert_eq!(Ttl::parse(&text).is_ok(), span.is_ok_and(|span| {
            (1_000..=86_400_000).contains(&span.as_millis()) && span >= Span::from_secs(1)
                && span <= Span::from_secs(86_400)
        }));
    }

    #[test]
    fn a_duration_is_the_sum_of_its_parts(
        (h, m, s) in (0..30_u64, 0..60_u64, 0..60_u64),
        ms in 0..1000_u64,
    ) {
        let span = Span::from_millis(((h * 60 + m) * 60 + s) * 1_000 + ms);
        prop_assert_eq!(parse_span(&format!("{h}h{m}m{s}s{ms}ms")), Ok(span));
        prop_assert_eq!(parse_span(&format!("{h}h{m}m{s}.{ms:03}s")), Ok(span));
    }

    #[test]
    fn a_formatted_span_parses_to_itself_or_slightly_more(
        nanos in 0..200_000_000_000_000_u64,
        exact in 0..200_000_u64,
    ) {
        let span = Span::from_nanos(nanos);
        let read = parse_span(&span.to_string()).expect("what is shown can be read");
        prop_assert!(read >= span, "who waits as long as shown has waited long enough");
        prop_assert!(read.as_nanos() - nanos < 1_000_000_000);
        let span = Span::from_secs(exact);
        prop_assert_eq!(parse_span(&span.to_string()), Ok(span));
        let span = Span::from_millis(exact % 100 * 100);
        prop_assert_eq!(parse_span(&span.to_string()), Ok(span));
    }

    #[test]
    fn arbitrary_bytes_decode_canonically(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok((at, command)) = decode_command(&bytes) {
            let mut again = vec![];
            codec::encode_command(at, &command, &mut again);
            prop_assert_eq!(&again, &bytes, "there is one way to write a command");
        }
        let _none = codec::decode_rules(&bytes);
        let _none = decode_engine(&bytes);
    }

    #[test]
    fn a_damaged_command_is_rejected_or_decodes_canonically(
        command in command(),
        at in any::<u64>(),
        place in any::<prop::sample::Index>(),
        bit in 0..8,
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = vec![];
        codec::encode_command(Time::from_nanos(at), &command, &mut bytes);
        prop_assert_eq!(decode_command(&bytes), Ok((Time::from_nanos(at), command)));
        prop_assert!(decode_command(&bytes[..cut.index(bytes.len())]).is_err());
        let at = place.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok((at, command)) = decode_command(&bytes) {
            let mut again = vec![];
            codec::encode_command(at, &command, &mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn a_damaged_snapshot_is_rejected_or_decodes_canonically(
        commands in proptest::collection::vec((0..20_000_u64, command()), 0..60),
        place in any::<prop::sample::Index>(),
        bit in 0..8,
        cut in any::<prop::sample::Index>(),
    ) {
        let engine = lived(&commands);
        let mut bytes = codec::encode_engine(&engine);
        let read = decode_engine(&bytes).expect("as written");
        prop_assert_eq!(&read, &engine);
        prop_assert!(decode_engine(&bytes[..cut.index(bytes.len())]).is_err());
        let at = place.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok(other) = decode_engine(&bytes) {
            prop_assert_eq!(codec::encode_engine(&other), bytes, "there is one way");
        }
    }

    #[test]
    fn any_message_decodes_canonically(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        // The decoder rejects an unknown version at the first byte of its input, so two thirds of
        // the inputs start with a known version. A message may claim a newer version than it needs.
        let of_version = |version: u8| [&[version], &bytes[..]].concat();
        for bytes in [bytes.clone(), of_version(PROTOCOL_BASE), of_version(PROTOCOL)] {
            if let Ok(batch) = decode_batch(&bytes) {
                prop_assert_eq!(&encode_batch(PROTOCOL, &batch)[1..], &bytes[1..], "one way");
            }
            if let Ok(told) = decode_told(&bytes) {
                prop_assert_eq!(&encode_told(&told)[1..], &bytes[1..], "there is one way");
            }
            let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
            framed.extend(&bytes);
            let _none = take_frame(&mut framed);
            let mut raw = bytes.clone();
            let _none = take_frame(&mut raw);
        }
    }

    #[test]
    fn a_damaged_batch_is_rejected_or_decodes_canonically(
        batch in batch(),
        place in any::<prop::sample::Index>(),
        bit in 0..8,
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode_batch(PROTOCOL, &batch);
        prop_assert_eq!(decode_batch(&bytes), Ok(batch));
        prop_assert!(decode_batch(&bytes[..cut.index(bytes.len())]).is_err());
        let at = place.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok(batch) = decode_batch(&bytes) {
            prop_assert_eq!(&encode_batch(PROTOCOL, &batch)[1..], &bytes[1..]);
        }
    }

    #[test]
    fn a_damaged_response_is_rejected_or_decodes_canonically(
        commands in proptest::collection::vec((0..20_000_u64, command()), 0..40),
        place in any::<prop::sample::Index>(),
        bit in 0..8,
        cut in any::<prop::sample::Index>(),
    ) {
        let (told, frame) = told(&commands);
        let mut bytes = encode_told(&told);
        prop_assert_eq!(decode_told(&bytes), Ok(told));
        prop_assert!(decode_told(&bytes[..cut.index(bytes.len())]).is_err());
        let at = place.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok(told) = decode_told(&bytes) {
            prop_assert_eq!(&encode_told(&told)[1..], &bytes[1..]);
        }
        // The test sends two encoded frames of an event stream in two parts, cut at any byte. The
        // decoder must return the same two frames.
        let whole = [encode_frame(&frame), encode_frame(&frame)].concat();
        let cut = cut.index(whole.len());
        let (mut got, mut read) = (whole[..cut].to_vec(), vec![]);
        for rest in [&whole[cut..], &[]] {
            while let Some(frame) = take_frame(&mut got).expect("as sent") {
                read.push(frame);
            }
            got.extend(rest);
        }
        prop_assert_eq!(read, vec![frame.clone(), frame]);
    }
}
