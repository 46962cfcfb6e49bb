//! The status of one lock as JSON, for `cat`, the control file and `latchfs status`. The fields of
//! the single-lock HTTP API come first.
//!
//! The fields of a waiter are a table. Everything that shows a waiter goes through it: the JSON and
//! its schema, the tables of the commands, and the page of the server.
//!
//! Renders an event as one line of JSON, for `.latchfs/events` and `latchfs events --json`. The
//! number and the time come first, then the kind of the event, then its lock, client and other
//! fields.

use crate::engine::{
    Ends, Event, EventKind, HoldOff, Holder, Lease, LeaveReason, LockView, Ownership, Phase,
    Previous, QueuePlace, SessionEnd, TenureEnd, Token, WaiterView,
};
use crate::time::{Span, Time, Wall};
use serde_json::{Map, Value, json};

/// Returns the status of a lock. `wall` converts an engine time to wall-clock time, for display.
pub fn status_of(view: &LockView, wall: impl Fn(Time) -> Wall) -> Value {
    let wall = &wall;
    let shown = |at: Time| Value::from(wall(at).to_string());
    // A lease without a deadline, such as that of an open file, has the expiry `Time::NEVER`, which
    // is shown as null.
    let ending = |at: Time| if at == Time::NEVER { Value::Null } else { shown(at) };
    let mut status = Map::with_capacity(16);
    let mut put = |key: &str, value: Value| status.insert(key.to_owned(), value);
    put("name", view.name.as_str().into());
    let Some(holder) = view.holder() else {
        put("holder", "".into());
        put("is_expired", true.into());
        put("phase", Phase::Free.as_str().into());
        if !view.waiters.is_empty() {
            put("waiters", waiters_of(view, wall));
        }
        if let Some(hold_off) = &view.hold_off {
            put("hold_off", hold_off_of(*hold_off, view.at, wall));
        }
        if let Some(previous) = &view.previous {
            put("previous", previous_of(previous, wall));
        }
        return Value::Object(status);
    };
    let (lease, ends) = (&holder.lease, &holder.ends);
    let phase = view.phase();
    put("holder", lease.holder.as_str().into());
    put("expires_at", ending(ends.expires_at));
    put("is_expired", (phase != Phase::Held).into());
    put("grace_until", ending(ends.grace_until));
    put("phase", phase.as_str().into());
    put("mode", view.mode.as_str().into());
    if let (Some(max), Some(seat)) = (view.mode.seats(), lease.seat) {
        put("max", max.into());
        put("seat", seat.into());
    }
    put("token", lease.token.as_u64().into());
    put("expires_in_ms", left(ends, view.at));
    if lease.acquired_at > view.at {
        put("begins_in_ms", millis(lease.acquired_at.since(view.at)));
    }
    if let Some(lasts) = lasting(holder) {
        put("lasts", lasts.into());
    }
    put("acquired_at", shown(lease.acquired_at));
    put("held_ms", millis(view.at.since(lease.acquired_at)));
    put("renewed_at", shown(lease.renewed_at));
    put("ttl_ms", millis(ends.ttl.span()));
    put("grace_ms", millis(ends.grace.span()));
    put("holder_id", holder_id(lease).into());
    put("note", lease.details.note().map_or("", |note| note).into());
    put("waiters", waiters_of(view, wall));
    if view.holders.len() > 1 || view.mode.seats().is_some() {
        put("holders", holders_of(view));
    }
    if let Some(hold_off) = &view.hold_off {
        put("hold_off", hold_off_of(*hold_off, view.at, wall));
    }
    if let Some(previous) = &view.previous {
        put("previous", previous_of(previous, wall));
    }
    Value::Object(status)
}

/// Returns until when no lock is granted, and why. `now` is the engine's time; `wall` converts an
/// engine time to wall-clock time, for display.
pub fn hold_off_of(hold_off: HoldOff, now: Time, wall: impl Fn(Time) -> Wall) -> Value {
    let until = wall(hold_off.until);
    json!({
        "until": until.to_string(),
        "left_ms": millis(hold_off.until.since(now)),
        "because": hold_off.cause.as_str(),
        "detail": hold_off.sentence(until),
    })
}

/// Returns what is remembered of the name of a lock: the number of its grants, and the last
/// handover with the tenure that set it, once there is one. `wall` converts an engine time to
/// wall-clock time, for display.
pub fn previous_of(previous: &Previous, wall: impl Fn(Time) -> Wall) -> Value {
    let Some(last) = &previous.last else {
        return json!({ "seq": previous.seq });
    };
    json!({
        "seq": previous.seq,
        "token": last.token.as_u64(),
        "client": last.client.as_str(),
        "at": last.at.map(|at| wall(at).to_string()),
        "end": last.end.as_str(),
        "handover": &*last.handover.text,
        "counter": last.handover.counter,
    })
}

/// Returns how long a hold lasts that no deadline ends, in words; `None` for a hold that expires.
/// Every front end shows these words in place of an expiry time.
pub fn lasting(holder: &Holder) -> Option<String> {
    if holder.ends.expires_at != Time::NEVER {
        return None;
    }
    let process = holder.lease.details.process();
    Some(match (process, holder.lease.hold) {
        (Some(process), _) => format!("while process {} runs", process.pid),
        (None, Ownership::OpenFile(_)) => "while the file is open".to_owned(),
        (None, Ownership::Client | Ownership::Exclusive(_)) => "while the session lasts".to_owned(),
    })
}

/// Returns `value` as indented lines of JSON with a newline at the end.
pub fn pretty(value: &Value) -> String {
    // The format `{:#}` pretty-prints a `serde_json::Value`, and unlike `to_string_pretty` returns
    // no `Result`.
    format!("{value:#}\n")
}

fn holder_id(lease: &Lease) -> &str {
    lease.details.holder_id().map_or("", |id| id)
}

fn left(ends: &Ends, now: Time) -> Value {
    if ends.expires_at == Time::NEVER { Value::Null } else { millis(ends.left(now)) }
}

fn millis(span: Span) -> Value {
    span.as_millis().into()
}

/// The fields of a waiter, in their order.
pub const WAITER_FIELDS: &[WaiterField] = &[
    WaiterField {
        name: "client",
        kind: FieldKind::Text,
        meaning: "the client that waits",
        words: None,
        value: |row| row.waiter.client.as_str().into(),
    },
    WaiterField {
        name: "position",
        kind: FieldKind::Count,
        meaning: "the number of its place in the queue, from 1 on; 1 is served next",
        words: None,
        value: |row| row.place.position.into(),
    },
    WaiterField {
        name: "ahead",
        kind: FieldKind::Count,
        meaning: "how many before it must have had the lock and given it up, or have left the \
                  queue, before it has the lock; not the holders, and not waiters that will share \
                  the lock with it or have other seats",
        words: Some("{} ahead"),
        value: |row| row.place.ahead.into(),
    },
    WaiterField {
        name: "waited_ms",
        kind: FieldKind::Millis,
        meaning: "how long it has waited",
        words: Some("for {}"),
        value: |row| row.at.since(row.waiter.since).as_millis().into(),
    },
    WaiterField {
        name: "since",
        kind: FieldKind::Time,
        meaning: "when it joined the queue",
        words: Some("since {}"),
        value: |row| row.since.to_string().into(),
    },
];

/// One field of a waiter.
pub struct WaiterField {
    /// The name of the field in JSON.
    pub name: &'static str,
    /// What kind of values the field has.
    pub kind: FieldKind,
    /// What the field says, for the documents.
    pub meaning: &'static str,
    /// How people read a value, which takes the place of `{}`, behind the client. `None` if they do
    /// not read it there.
    pub words: Option<&'static str>,
    value: fn(&WaiterRow<'_>) -> Value,
}

/// The kind of the values of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// A text.
    Text,
    /// A moment of wall-clock time.
    Time,
    /// A span in milliseconds that grows as time passes.
    Millis,
    /// A number of things. People do not read that there are none.
    Count,
}

/// The facts from which the fields of a waiter are made.
struct WaiterRow<'a> {
    waiter: &'a WaiterView,
    place: QueuePlace,
    since: Wall,
    /// The time of the view.
    at: Time,
}

impl WaiterField {
    /// Returns what people read of a value of the field, or `None` if there is nothing to read.
    pub fn in_words(&self, value: &Value) -> Option<String> {
        let shown = match self.kind {
            FieldKind::Text | FieldKind::Time => value.as_str()?.to_owned(),
            FieldKind::Millis => Span::from_millis(value.as_u64()?).to_string(),
            FieldKind::Count => value.as_u64().filter(|count| *count > 0)?.to_string(),
        };
        Some(self.words?.replace("{}", &shown))
    }
}

/// Returns the waiters of a lock as JSON. `wall` converts an engine time to wall-clock time.
fn waiters_of(view: &LockView, wall: impl Fn(Time) -> Wall) -> Value {
    let row = |(waiter, place): (&WaiterView, QueuePlace)| {
        let row = WaiterRow { waiter, place, since: wall(waiter.since), at: view.at };
        let fields = WAITER_FIELDS.iter();
        fields.map(|field| (field.name.to_owned(), (field.value)(&row))).collect::<Map<_, _>>()
    };
    view.queue().map(row).collect()
}

/// Removes the fields of a waiter that change merely because time passes.
pub(crate) fn forget_waiting_time(waiter: &mut Map<String, Value>) {
    for field in WAITER_FIELDS.iter().filter(|field| field.kind == FieldKind::Millis) {
        waiter.remove(field.name);
    }
}

/// Returns, as JSON, each field that the page shows of a waiter: its name, 1 for a span and else 0,
/// and its words. The page leaves out moments, which are long, since it says how long the client
/// has waited.
pub(crate) fn words_for_page() -> Value {
    let fields = WAITER_FIELDS.iter().filter(|field| field.kind != FieldKind::Time);
    let words = |field: &WaiterField| {
        let is_span = u8::from(field.kind == FieldKind::Millis);
        Some(json!([field.name, is_span, field.words?]))
    };
    fields.filter_map(words).collect()
}

/// Returns all holders of a lock that has several. The top-level fields of the status describe the
/// first holder.
fn holders_of(view: &LockView) -> Value {
    let holders = view.holders.iter();
    holders
        .map(|holder| {
            let mut shown = json!({
                "client": holder.lease.holder.as_str(),
                "token": holder.lease.token.as_u64(),
                "expires_in_ms": left(&holder.ends, view.at),
                "holder_id": holder_id(&holder.lease),
            });
            if let Some(seat) = holder.lease.seat {
                shown["seat"] = seat.into();
            }
            if holder.lease.acquired_at > view.at {
                shown["begins_in_ms"] = millis(holder.lease.acquired_at.since(view.at));
            }
            if let Some(lasts) = lasting(holder) {
                shown["lasts"] = lasts.into();
            }
            shown
        })
        .collect()
}

/// Returns the JSON of an event that has the number `number` in the event log. `wall` converts an
/// engine time to wall-clock time.
pub fn event_of(number: u64, event: &Event, wall: impl Fn(Time) -> Wall) -> Value {
    let mut line = Map::with_capacity(10);
    line.insert("n".to_owned(), number.into());
    line.insert("at".to_owned(), wall(event.at).to_string().into());
    if let Value::Object(fields) = fields_of(&event.what) {
        line.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
    }
    Value::Object(line)
}

/// Returns the JSON of the event that tells a slow reader that `count` events were dropped before
/// it read them.
pub fn lost(count: u64) -> Value {
    json!({ "event": "lost", "count": count })
}

/// Returns the fields that are specific to the kind of event. Fields without a value are null.
fn fields_of(what: &EventKind) -> Value {
    match what {
        EventKind::Granted { name, holder, token, mode, hold: _, waited } => json!({
            "event": "granted",
            "name": name.as_str(),
            "holder": holder.as_str(),
            "token": token.as_u64(),
            "mode": mode.as_str(),
            "ticket": waited.map(|(ticket, _)| ticket.as_u64()),
            "waited_ms": waited.map(|(_, span)| span.as_millis()),
        }),
        EventKind::Renewed { name, holder, token } => {
            of_tenure("renewed", name.as_str(), Some(holder.as_str()), *token)
        }
        EventKind::Annotated { name, token } => of_tenure("annotated", name.as_str(), None, *token),
        EventKind::Expired { name, holder, token } => {
            of_tenure("expired", name.as_str(), Some(holder.as_str()), *token)
        }
        EventKind::Ended { name, holder, token, held, end } => with_end(
            of_tenure(kind_of_end(end), name.as_str(), Some(holder.as_str()), *token),
            *held,
            end,
        ),
        EventKind::Joined { name, client, ticket } => json!({
            "event": "joined",
            "name": name.as_str(),
            "client": client.as_str(),
            "ticket": ticket.as_u64(),
        }),
        EventKind::Left { name, client, ticket, why } => json!({
            "event": "left",
            "name": name.as_str(),
            "client": client.as_str(),
            "ticket": ticket.as_u64(),
            "why": why_of(*why),
        }),
        EventKind::SessionOpened { session, client } => json!({
            "event": "session_opened",
            "session": session.as_u64(),
            "client": client.as_str(),
        }),
        EventKind::SessionKept { session } => json!({
            "event": "session_kept",
            "session": session.as_u64(),
        }),
        EventKind::SessionOver { session, client, end } => json!({
            "event": "session_over",
            "session": session.as_u64(),
            "client": client.as_str(),
            "why": match end {
                SessionEnd::Closed | SessionEnd::Revoked => "closed",
                SessionEnd::Expired => "expired",
            },
        }),
        EventKind::HoldOffEnded { by } => json!({
            "event": "hold_off_ended",
            "by": by.as_ref().map(|ask| ask.by.as_str()),
            "reason": by.as_ref().map(|ask| ask.reason.as_str()),
        }),
    }
}

fn of_tenure(event: &str, name: &str, holder: Option<&str>, token: Token) -> Value {
    json!({ "event": event, "name": name, "holder": holder, "token": token.as_u64() })
}

/// Returns the name of the event that tells of an end of a tenure.
pub(crate) const fn kind_of_end(end: &TenureEnd) -> &'static str {
    match end {
        TenureEnd::Released => "released",
        TenureEnd::Lapsed => "lapsed",
        TenureEnd::Moved { .. } => "moved",
        TenureEnd::Replaced => "replaced",
        TenureEnd::Stolen { .. } => "stolen",
    }
}

/// Adds to `line` how long a tenure lasted, and what else is known of its end.
pub(crate) fn with_end(mut line: Value, held: Span, end: &TenureEnd) -> Value {
    line["held_ms"] = held.as_millis().into();
    match end {
        TenureEnd::Moved { to } => line["to"] = to.as_str().into(),
        TenureEnd::Stolen { by, reason } => {
            line["by"] = by.as_str().into();
            line["reason"] = reason.as_str().into();
        }
        TenureEnd::Released | TenureEnd::Lapsed | TenureEnd::Replaced => {}
    }
    line
}

/// Returns the name of the reason why a waiter left a queue.
pub(crate) const fn why_of(why: LeaveReason) -> &'static str {
    match why {
        LeaveReason::Asked => "asked",
        LeaveReason::Gone => "gone",
        LeaveReason::TimedOut => "timed_out",
        LeaveReason::SessionOver => "session_over",
        LeaveReason::Reset => "reset",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{
        ClientId, Details, HoldOffCause, Lifetime, LockName, Mode, Process, Ticket,
    };
    use std::sync::Arc;

    fn wall(at: Time) -> Wall {
        Wall { secs: 1_705_314_570 + (at.as_nanos() / 1_000_000_000) as i64, nanos: 0 }
    }

    fn free(name: &str) -> LockView {
        LockView {
            name: LockName::parse(name).expect("valid"),
            at: Time::from_secs(10),
            mode: Mode::Exclusive,
            holders: Vec::new(),
            waiters: Vec::new(),
            has_below: false,
            previous: None,
            hold_off: None,
        }
    }

    fn held(name: &str) -> LockView {
        let (ttl, grace) = (TTL_DEFAULT, GRACE_DEFAULT);
        let expires_at = Time::from_secs(30);
        let lease = Lease {
            holder: ClientId::parse("laptop1:alice").expect("valid"),
            token: Token::named(7),
            hold: Ownership::Client,
            life: Lifetime::Own { ttl, grace, expires_at },
            acquired_at: Time::ZERO,
            renewed_at: Time::ZERO,
            acquisition: 0,
            seat: None,
            details: Arc::new(Details::default().with_note(Some("hi".into()))),
        };
        let ends = Ends { expires_at, grace_until: Time::from_secs(35), ttl, grace };
        LockView { holders: vec![Holder { lease, ends }], ..free(name) }
    }

    #[test]
    fn a_free_lock_shows_only_its_name_and_state() {
        let status = status_of(&free("build"), wall).to_string();
        let want = r#"{"name":"build","holder":"","is_expired":true,"phase":"free"}"#;
        assert_eq!(status, want);
    }

    #[test]
    fn a_lock_that_is_not_granted_yet_says_until_when_and_why() {
        let hold_off = HoldOff { until: Time::from_secs(40), cause: HoldOffCause::Recovered };
        let status = status_of(&LockView { hold_off: Some(hold_off), ..free("build") }, wall);
        let want = json!({
            "until": "2024-01-15T10:30:10.000Z", "left_ms": 30_000, "because": "recovered",
            "detail": "nothing is granted before 2024-01-15T10:30:10.000Z, because the cluster was \
                       begun again by a node that was left",
        });
        assert_eq!((&status["phase"], &status["hold_off"]), (&json!("free"), &want));
    }

    #[test]
    fn a_held_lock_shows_all_fields_in_order() {
        let status = status_of(&held("build"), wall).to_string();
        let want = concat!(
            r#"{"name":"build","holder":"laptop1:alice","expires_at":"2024-01-15T10:30:00.000Z","#,
            r#""is_expired":false,"grace_until":"2024-01-15T10:30:05.000Z","phase":"held","#,
            r#""mode":"exclusive","token":7,"expires_in_ms":20000,"#,
            r#""acquired_at":"2024-01-15T10:29:30.000Z","held_ms":10000,"#,
            r#""renewed_at":"2024-01-15T10:29:30.000Z","ttl_ms":30000,"grace_ms":5000,"#,
            r#""holder_id":"","note":"hi","waiters":[]}"#
        );
        assert_eq!(status, want);
    }

    #[test]
    fn a_lock_in_grace_is_expired_and_not_free() {
        let mut view = held("build");
        view.at = Time::from_secs(31);
        let status = status_of(&view, wall);
        assert_eq!((&status["phase"], &status["is_expired"]), (&json!("grace"), &json!(true)));
        assert_eq!(status["expires_in_ms"], 0);
    }

    #[test]
    fn waiters_are_shown_with_how_long_they_have_waited() {
        let mut view = held("build");
        let client = ClientId::parse("laptop2:bob").expect("valid");
        let (mode, since) = (Mode::Exclusive, Time::from_secs(4));
        let first = WaiterView { client, ticket: Ticket::named(3), mode, since };
        view.waiters = vec![first.clone(), first];
        let status = status_of(&view, wall);
        assert_eq!(
            status["waiters"][0].to_string(),
            r#"{"client":"laptop2:bob","position":1,"ahead":0,"waited_ms":6000,"#.to_owned()
                + r#""since":"2024-01-15T10:29:34.000Z"}"#
        );
        assert_eq!(status["waiters"][1]["position"], 2);
        let in_words = |waiter: &Value| {
            let fields = WAITER_FIELDS.iter();
            fields.filter_map(|field| field.in_words(&waiter[field.name])).collect::<Vec<_>>()
        };
        let since = "since 2024-01-15T10:29:34.000Z";
        assert_eq!(in_words(&status["waiters"][0]), ["for 6s", since]);
        assert_eq!(in_words(&status["waiters"][1]), ["1 ahead", "for 6s", since]);
    }

    #[test]
    fn each_field_is_in_the_document() {
        let document = include_str!("../contrib/doc/http.md");
        let row = |field: &WaiterField| format!("| `{}` | {} |\n", field.name, field.meaning);
        let rows: String = WAITER_FIELDS.iter().map(row).collect();
        let head = "| field of a waiter | meaning |\n|---|---|\n";
        assert!(document.contains(&format!("{head}{rows}\n")), "contrib/doc/http.md needs\n{rows}");
    }

    #[test]
    fn a_hold_without_expiry_has_words_and_no_times() {
        let mut view = held("build");
        view.holders[0].ends =
            Ends { expires_at: Time::NEVER, grace_until: Time::NEVER, ..view.holders[0].ends };
        let of_process = |process| {
            let details = Details::default().with_process(process);
            let mut view = view.clone();
            view.holders[0].lease.details = Arc::new(details);
            status_of(&view, wall)
        };
        let status = of_process(None);
        assert_eq!(status["lasts"], "while the session lasts");
        for field in ["expires_at", "grace_until", "expires_in_ms"] {
            assert_eq!(status[field], Value::Null, "{field}");
        }
        let mut shared = view.clone();
        shared.holders.push(held("build").holders[0].clone());
        let shared = status_of(&shared, wall);
        assert_eq!(shared["holders"][0]["lasts"], "while the session lasts");
        assert_eq!(shared["holders"][1]["lasts"], Value::Null);
        let process = Process { pid: 7, start: 1, boot: 2 };
        assert_eq!(of_process(Some(process))["lasts"], "while process 7 runs");
        assert_eq!(status_of(&held("build"), wall)["lasts"], Value::Null);
    }

    #[test]
    fn pretty_status_is_indented_lines() {
        let text = pretty(&status_of(&free("build"), wall));
        assert_eq!(text.lines().count(), 6);
        assert!(text.ends_with("}\n"));
    }
}

#[cfg(test)]
mod event_json_tests {
    use super::*;
    use crate::engine::{ClientId, LockName, Mode, Ownership, SessionId, StealReason, Ticket};

    /// Returns the JSON line of an event without the event's number and time, and asserts that
    /// number and time are right.
    fn line(what: EventKind) -> String {
        let wall = |at: Time| Wall { secs: (at.as_nanos() / 1_000_000_000) as i64, nanos: 0 };
        let line = event_of(12, &Event { at: Time::from_secs(3), what }, wall).to_string();
        let head = r#"{"n":12,"at":"1970-01-01T00:00:03.000Z","#;
        line.strip_prefix(head).unwrap_or_else(|| panic!("{line} has another head")).to_owned()
    }

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    fn granted(waited: Option<Span>) -> EventKind {
        let (name, holder, token) = (name("team/build"), client("a"), Token::named(7));
        let waited = waited.map(|span| (Ticket::named(3), span));
        EventKind::Granted {
            name,
            holder,
            token,
            mode: Mode::Shared,
            hold: Ownership::Client,
            waited,
        }
    }

    #[test]
    fn a_grant_reports_how_long_the_client_waited() {
        let alone = r#""event":"granted","name":"team/build","holder":"a","token":7,"#;
        assert_eq!(line(granted(None)), format!(r#"{alone}"mode":"shared"}}"#));
        assert_eq!(
            line(granted(Some(Span::from_millis(1_500)))),
            format!(r#"{alone}"mode":"shared","ticket":3,"waited_ms":1500}}"#)
        );
    }

    #[test]
    fn renewals_and_annotations_name_their_tenure() {
        let (build, token) = (name("build"), Token::named(7));
        let renewed = EventKind::Renewed { name: build.clone(), holder: client("a"), token };
        let of = r#""name":"build","holder":"a","token":7}"#;
        assert_eq!(line(renewed), format!(r#""event":"renewed",{of}"#));
        let expired = EventKind::Expired { name: build.clone(), holder: client("a"), token };
        assert_eq!(line(expired), format!(r#""event":"expired",{of}"#));
        let annotated = EventKind::Annotated { name: build, token };
        assert_eq!(line(annotated), r#""event":"annotated","name":"build","token":7}"#);
    }

    #[test]
    fn tenures_end_in_five_ways() {
        let end = |end| {
            let (name, holder, token) = (name("build"), client("a"), Token::named(7));
            line(EventKind::Ended { name, holder, token, held: Span::from_secs(2), end })
        };
        let of = r#""name":"build","holder":"a","token":7,"held_ms":2000"#;
        assert_eq!(end(TenureEnd::Released), format!(r#""event":"released",{of}}}"#));
        assert_eq!(end(TenureEnd::Lapsed), format!(r#""event":"lapsed",{of}}}"#));
        assert_eq!(end(TenureEnd::Replaced), format!(r#""event":"replaced",{of}}}"#));
        let moved = end(TenureEnd::Moved { to: name("other") });
        assert_eq!(moved, format!(r#""event":"moved",{of},"to":"other"}}"#));
        let reason = StealReason::parse("host died").expect("a reason");
        let stolen = end(TenureEnd::Stolen { by: client("b"), reason });
        assert_eq!(stolen, format!(r#""event":"stolen",{of},"by":"b","reason":"host died"}}"#));
    }

    #[test]
    fn waiters_join_and_leave_with_a_reason() {
        let ticket = Ticket::named(3);
        let of = r#""name":"build","client":"a","ticket":3"#;
        let joined = EventKind::Joined { name: name("build"), client: client("a"), ticket };
        assert_eq!(line(joined), format!(r#""event":"joined",{of}}}"#));
        for (why, said) in [
            (LeaveReason::Asked, "asked"),
            (LeaveReason::Gone, "gone"),
            (LeaveReason::TimedOut, "timed_out"),
            (LeaveReason::SessionOver, "session_over"),
        ] {
            let left = EventKind::Left { name: name("build"), client: client("a"), ticket, why };
            assert_eq!(line(left), format!(r#""event":"left",{of},"why":"{said}"}}"#));
        }
    }

    #[test]
    fn sessions_open_renew_and_end() {
        let session = SessionId::named(5);
        let opened = line(EventKind::SessionOpened { session, client: client("a") });
        assert_eq!(opened, r#""event":"session_opened","session":5,"client":"a"}"#);
        let kept = line(EventKind::SessionKept { session });
        assert_eq!(kept, r#""event":"session_kept","session":5}"#);
        let over = |end| line(EventKind::SessionOver { session, client: client("a"), end });
        let of = r#""event":"session_over","session":5,"client":"a","why":"#;
        assert_eq!(over(SessionEnd::Closed), format!(r#"{of}"closed"}}"#));
        assert_eq!(over(SessionEnd::Expired), format!(r#"{of}"expired"}}"#));
    }

    #[test]
    fn a_slow_reader_learns_how_many_events_it_lost() {
        assert_eq!(lost(5).to_string(), r#"{"event":"lost","count":5}"#);
    }
}
