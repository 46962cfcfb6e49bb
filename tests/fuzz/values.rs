//! Generators of values that latchfs encodes: commands, engines, batches and their answers.

use latchfs::engine::values::command::{Annotate, EndHoldOff, EndSession};
use latchfs::engine::values::details::{Patch, TextPatch};
use latchfs::engine::values::event::SessionEnd;
use latchfs::engine::values::lease::GRACE_DEFAULT;
use latchfs::engine::{
    Acquire, ClientId, Command, Digest, Engine, Firm, Forget, Grace, Handover, IdempotencyKey,
    IfExists, LeaseKey, LeaseTerms, LockName, Mode, Move, Op, OpenId, OpenSession, Ownership,
    QueuePolicy, Release, Renew, RequestId, RequestKey, RequestNumber, Reset, ResetPart,
    ResetScope, Rules, Seats, SessionId, Steal, StealReason, Token, Ttl,
};
use latchfs::service::batch::batch_messages::{
    BatchItem, BatchNumbers, BatchResponse, Frame, ItemReply, RequestBatch, Stamp, Submission,
    SubmissionKey,
};
use latchfs::service::{
    About, BackendKind, Children, Contact, EventPlace, List, ListPage, Unavailable,
};
use latchfs::time::{Span, Time, Wall};
use proptest::prelude::*;
use std::sync::Arc;

pub(crate) fn name() -> impl Strategy<Value = LockName> {
    "[a-c](/[a-c])?".prop_map(|text| LockName::parse(&text).expect("a name"))
}

pub(crate) fn client() -> impl Strategy<Value = ClientId> {
    "[a-c](:[a-c])?".prop_map(|text| ClientId::parse(&text).expect("a client"))
}

pub(crate) fn term() -> impl Strategy<Value = LeaseTerms> {
    let own = (1..=86_400_u64, 0..=86_400_u64).prop_map(|(ttl, grace)| {
        let ttl = Ttl::new(Span::from_secs(ttl)).expect("within bounds");
        LeaseTerms::Own(ttl, Grace::new(Span::from_secs(grace)).expect("within bounds"))
    });
    prop_oneof![3 => own, 1 => (1..9_u64).prop_map(|id| LeaseTerms::Session(SessionId::named(id)))]
}

pub(crate) fn patch() -> impl Strategy<Value = Patch> {
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

pub(crate) fn key() -> impl Strategy<Value = LeaseKey> {
    let token = proptest::option::of((1..9_u64).prop_map(Token::named));
    (name(), client(), token).prop_map(|(name, client, token)| LeaseKey { name, client, token })
}

fn handover() -> impl Strategy<Value = Option<Handover>> {
    proptest::option::of(
        ("[a-z]{0,9}", 0..9_u64)
            .prop_map(|(text, counter)| Handover { text: text.into(), counter }),
    )
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let seats = (1..=1_000_u64).prop_map(|max| Mode::Seats(Seats::new(max).expect("valid")));
    let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), seats];
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
    let over = proptest::option::of((1..9_u64).prop_map(Token::named));
    let over = (over, any::<bool>());
    let acquire = (name(), client(), mode, hold, term(), line, patch(), over).prop_map(
        |(name, client, mode, hold, term, line, patch, (takes_over, remember))| {
            let acquire = Acquire::new(name, client, term);
            Op::Acquire(Acquire { mode, hold, line, patch, takes_over, remember, ..acquire })
        },
    );
    let firm = prop_oneof![Just(Firm::Keep), Just(Firm::Make)];
    let renew = (key(), proptest::option::of(term()), firm, patch()).prop_map(
        |(key, term, firm, patch)| Op::Renew(Renew { key, term, firm, patch, acquires: false }),
    );
    let over = prop_oneof![Just(IfExists::Replace), Just(IfExists::Refuse)];
    let moved =
        (key(), name(), over).prop_map(|(from, to, over)| Op::Move(Move { from, to, over }));
    let only = proptest::option::of((1..9_u64).prop_map(Token::named));
    let steal = (name(), only, client(), term(), patch());
    let steal = steal.prop_map(|(name, only, client, term, patch)| {
        let reason = StealReason::parse("because").expect("a reason");
        Op::Steal(Steal { name, only, client, reason, term, patch, at_once: false })
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
        2 => (key(), handover()).prop_map(|(key, handover)| {
            Op::Release(Release { handover, ..Release::of(key) })
        }),
        1 => (key(), open()).prop_map(|(key, open)| Op::Release(Release::of_open_file(open, key))),
        2 => (key(), patch(), handover()).prop_map(|(key, patch, handover)| {
            Op::Annotate(Annotate { key, patch, handover })
        }),
        1 => (name(), client()).prop_map(|(name, by)| Op::Forget(Forget { name, by })),
        1 => client().prop_map(hold_off_ended),
        1 => moved,
        1 => steal,
        1 => opened,
        1 => (1..9_u64).prop_map(|id| Op::KeepAlive(SessionId::named(id))),
        1 => ended,
        1 => (spared(), client(), any::<bool>(), reset_part()).prop_map(
            |(kept, by, all, part)| {
                let reason = StealReason::parse("because").expect("a reason");
                let whose = if all { ResetScope::AllBut(kept) } else { ResetScope::Of(by.clone()) };
                Op::Reset(Reset { part, whose, by, reason })
            }
        ),
        1 => Just(Op::Settle),
    ]
}

fn hold_off_ended(by: ClientId) -> Op {
    Op::EndHoldOff(EndHoldOff { by, reason: StealReason::parse("because").expect("a reason") })
}

pub(crate) fn command() -> impl Strategy<Value = Command> {
    let of_session = (1..9_u64, number())
        .prop_map(|(id, number)| RequestNumber { session: SessionId::named(id), number });
    let key = prop_oneof![
        "[a-c]".prop_map(|key| RequestKey::from(&*key)),
        of_session.prop_map(RequestKey::Number),
    ];
    let request = ("[a-c]", key, any::<u128>()).prop_map(|(caller, key, digest)| {
        let id = RequestId { caller: caller.into(), key };
        IdempotencyKey { id, digest: Digest(digest) }
    });
    (proptest::option::of(request), op(), number())
        .prop_map(|(request, op, answered_below)| Command { request, op, answered_below })
}

/// Returns any number of a request, rather a low one.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..9_u64, any::<u64>()]
}

/// Returns an engine that has applied these commands, each after the given time in milliseconds.
pub(crate) fn lived(commands: &[(u64, Command)]) -> Engine {
    let mut engine = Engine::new(Rules::default());
    let (mut at, mut events) = (Time::ZERO, vec![]);
    for (later, command) in commands {
        at = at + Span::from_millis(*later);
        let _answer = engine.apply(at, command, &mut events);
    }
    engine
}

pub(crate) fn batch() -> impl Strategy<Value = RequestBatch> {
    let text = || proptest::option::of("[a-z/]{0,9}");
    let list = ("[a-z/]{0,9}", proptest::option::of(name()), any::<usize>())
        .prop_map(|(prefix, after, limit)| BatchItem::List(List { prefix, after, limit }));
    let children = (proptest::option::of(name()), text(), any::<usize>()).prop_map(
        |(parent, cursor, limit)| BatchItem::Children(Children { parent, cursor, limit }),
    );
    let key = prop_oneof![
        "[a-c]".prop_map(|key| SubmissionKey::from(&*key)),
        number().prop_map(SubmissionKey::Number),
    ];
    let ask = prop_oneof![
        4 => (op(), proptest::option::of(key)).prop_map(|(op, key)| {
            BatchItem::Submit(Submission { key, op })
        }),
        2 => name().prop_map(BatchItem::View),
        1 => list,
        1 => children,
        1 => Just(BatchItem::About),
        1 => Just(BatchItem::Now),
    ];
    let numbers = (any::<u64>().prop_map(SessionId::named), number())
        .prop_map(|(session, answered_below)| BatchNumbers { session, answered_below });
    let asks = proptest::collection::vec(ask, 0..9);
    (any::<u64>(), proptest::option::of(numbers), asks)
        .prop_map(|(engine, numbers, asks)| RequestBatch { engine, numbers, asks })
}

/// Returns a server's answers to these commands, and the events that it sends.
pub(crate) fn batch_response(commands: &[(u64, Command)]) -> (BatchResponse, Frame) {
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
    let place = Some(EventPlace { entry: 5, number: 1 });
    (BatchResponse { stamp, replies }, Frame::Events(3, (9..).zip(events).collect(), place))
}

fn spared() -> impl Strategy<Value = Vec<ClientId>> {
    proptest::collection::vec(client(), 0..3)
}

fn reset_part() -> impl Strategy<Value = ResetPart> {
    prop_oneof![
        2 => Just(ResetPart::ALL),
        1 => (name(), name()).prop_map(|(first, last)| ResetPart::Names(first, last)),
        1 => (0..9_usize, 1..9_usize).prop_map(|(holds, waits)| ResetPart::Rest { holds, waits }),
    ]
}
