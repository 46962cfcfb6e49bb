//! The control request `list`: parses its fields, and builds the page of locks in its answer.

use super::control_request::text;
use crate::engine::{Holder, LockName, LockView};
use crate::service::{List, ListPage};
use crate::status::status_of;
use crate::time::{Time, Wall};
use serde_json::{Map, Value, json};

/// Maximum number of locks in one answer to a `list` request. All other requests wait while the
/// answer is built, so a client gets a longer list in several pages.
const LIST_MAX: usize = 512;
/// Approximate maximum size in bytes of one answer, which matters for locks with long names, notes
/// and queues.
const LIST_BYTES_MAX: usize = 1 << 20;

/// Returns the answer to a `list` request: the locks of `page`, or as many of them as fit.
pub(super) fn answer(page: ListPage<LockView>, wall: impl Fn(Time) -> Wall) -> Value {
    let shown = cut(&page.items, LIST_BYTES_MAX);
    let last = shown.last().map(|last| last.name.to_string());
    let next = if shown.len() < page.items.len() { last } else { page.next };
    let locks: Vec<Value> = shown.iter().map(|view| status_of(view, &wall)).collect();
    json!({ "ok": true, "locks": locks, "next": next })
}

/// Returns the first of `views`, the states of locks: as many as have JSON statuses of about `max`
/// bytes in total, but at least one.
fn cut(views: &[LockView], max: usize) -> &[LockView] {
    /// The approximate size of a lock's status in JSON, without its name, its notes, its holders
    /// and its waiters.
    const STATUS_BYTES: usize = 400;
    const CLIENT_BYTES: usize = 100;
    let bytes = |view: &LockView| {
        let said = |holder: &Holder| {
            let details = &holder.lease.details;
            let note = details.note().map_or(0, |note| note.len());
            note + details.holder_id().map_or(0, |id| id.len())
        };
        let clients = view.waiters.len() + view.holders.len();
        let last = view.previous.as_ref().and_then(|known| known.last.as_ref());
        let previous = last.map_or(0, |last| CLIENT_BYTES + last.handover.text.len());
        let texts = view.name.as_str().len() + view.holders.iter().map(said).sum::<usize>();
        STATUS_BYTES + previous + texts + clients * CLIENT_BYTES
    };
    let mut left = max;
    let fits = views.iter().take_while(|view| {
        let fits = left > 0;
        left = left.saturating_sub(bytes(view));
        fits
    });
    &views[..fits.count()]
}

/// Parses the range of locks that a `list` request selects.
pub(super) fn query(fields: &Map<String, Value>) -> Result<List, String> {
    let after = match text(fields, "after")? {
        None => None,
        Some(text) => Some(LockName::parse(text).map_err(|error| format!("'after': {error}"))?),
    };
    let limit = match fields.get("limit") {
        None | Some(Value::Null) => LIST_MAX,
        Some(value) => value
            .as_u64()
            .filter(|limit| *limit > 0)
            .map(|limit| usize::try_from(limit).unwrap_or(LIST_MAX).min(LIST_MAX))
            .ok_or_else(|| format!("'limit' is a number from 1, not {value}"))?,
    };
    Ok(List { prefix: text(fields, "prefix")?.unwrap_or("").to_owned(), after, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_size_is_limited() {
        let list = |value: Value| match value {
            Value::Object(fields) => query(&fields),
            _ => panic!("no object"),
        };
        assert_eq!(list(json!({})).expect("valid").limit, LIST_MAX);
        assert_eq!(list(json!({"limit": 5, "after": "a"})).expect("valid").limit, 5);
        assert_eq!(list(json!({"limit": 99_999_999})).expect("valid").limit, LIST_MAX);
        assert!(list(json!({"limit": 0})).is_err());
        assert!(list(json!({"after": "a//b"})).is_err());
    }
}
