//! Lists of locks through the control file.

use crate::engine::{Holder, LockName, LockView, RefusalKind};
use crate::fuse::control_files::ctl_request::{WrittenRequest, wrong};
use crate::fuse::lock_access::LockAccess;
use crate::service::List;
use crate::status::status_of;
use serde_json::{Value, json};

/// Locks in one answer: everybody waits while it is made, and the next page can be asked for.
const LIST_MAX: usize = 512;
/// And so many bytes, about, when they have long names, notes and queues.
const LIST_BYTES_MAX: usize = 1 << 20;

/// Answers with a page of locks.
pub(crate) async fn answer(locks: &LockAccess, query: List) -> Value {
    let page = match locks.list(query).await {
        Ok(page) => page,
        Err(why) => return wrong(RefusalKind::ConsistencyUnavailable, &why.to_string()),
    };
    let shown = cut(&page.items, LIST_BYTES_MAX);
    let last = shown.last().map(|last| last.name.to_string());
    let next = if shown.len() < page.items.len() { last } else { page.next };
    let status = |view| status_of(view, |at| locks.service().wall(at));
    let locks: Vec<Value> = shown.iter().map(status).collect();
    json!({ "ok": true, "locks": locks, "next": next })
}

/// The first of `views`, one at least, that take about `max` bytes to show.
fn cut(views: &[LockView], max: usize) -> &[LockView] {
    /// Bytes of a status without the texts that clients choose, and bytes per waiter or holder.
    const STATUS_BYTES: usize = 400;
    const CLIENT_BYTES: usize = 100;
    let bytes = |view: &LockView| {
        let said = |holder: &Holder| {
            let details = &holder.lease.details;
            let note = details.note().map_or(0, |note| note.len());
            note + details.holder_id().map_or(0, |id| id.len())
        };
        let clients = view.waiters.len() + view.holders.len();
        let texts = view.name.as_str().len() + view.holders.iter().map(said).sum::<usize>();
        STATUS_BYTES + texts + clients * CLIENT_BYTES
    };
    let mut left = max;
    let fits = views.iter().take_while(|view| {
        let fits = left > 0;
        left = left.saturating_sub(bytes(view));
        fits
    });
    &views[..fits.count()]
}

/// Which locks a request asks for.
pub(crate) fn asked(request: &WrittenRequest) -> Result<List, String> {
    let after = match request.text("after")? {
        None => None,
        Some(text) => Some(LockName::parse(text).map_err(|error| format!("'after': {error}"))?),
    };
    let limit = match request.fields.get("limit") {
        None | Some(Value::Null) => LIST_MAX,
        Some(value) => value
            .as_u64()
            .filter(|limit| *limit > 0)
            .map(|limit| usize::try_from(limit).unwrap_or(LIST_MAX).min(LIST_MAX))
            .ok_or_else(|| format!("'limit' is a number from 1, not {value}"))?,
    };
    Ok(List { prefix: request.text("prefix")?.unwrap_or("").to_owned(), after, limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::control_files::ctl_request::parse;

    #[test]
    fn a_list_has_bounds() {
        let list = |text: &str| asked(&parse(text.as_bytes()).expect("a request"));
        assert_eq!(list(r#"{"do":"list"}"#).expect("fine").limit, LIST_MAX);
        assert_eq!(list(r#"{"do":"list","limit":5,"after":"a"}"#).expect("fine").limit, 5);
        assert_eq!(list(r#"{"do":"list","limit":99999999}"#).expect("fine").limit, LIST_MAX);
        assert!(list(r#"{"do":"list","limit":0}"#).is_err());
        assert!(list(r#"{"do":"list","after":"a//b"}"#).is_err());
    }
}
