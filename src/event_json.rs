//! Renders an event as one line of JSON, for `.latchfs/events` and `latchfs events --json`. The
//! number and the time come first, then the kind of the event, then its lock, client and other
//! fields.

use crate::engine::{Event, EventKind, LeaveReason, SessionEnd, TenureEnd, Token};
use crate::time::{Span, Time, Wall};
use serde_json::{Map, Value, json};

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
    fn a_grant_tells_how_long_the_client_waited() {
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
