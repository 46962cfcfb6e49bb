//! Executes control requests and builds their answers.
//!
//! The control request `list`: parses its fields, and builds the page of locks in its answer.

use super::control_request::{
    AcquireRequest, ControlRequest, ReleaseRequest, RenewRequest, StealRequest, refusal, text,
};
use crate::control::control_request::{ControlHost, ControlWaitEnd};
use crate::engine::{
    Acquire, Firm, Handover, Holder, LeaseKey, LeaveReason, LockName, LockView, Mode, Op, Outcome,
    Ownership, Patch, QueuePolicy, RefusalKind, Release, Renew, Steal, Token,
};
use crate::service::{List, ListPage, RequestError, Unavailable};
use crate::status::status_of;
use crate::time::{Span, Time, Wall};
use serde_json::{Map, Value, json};

/// Maximum number of waiters shown in the answer to a request that has waited for a lock. Each
/// waiter of the lock gets such an answer, so without a limit their total size would grow with the
/// square of the number of waiters.
pub(crate) const WAITERS_SHOWN_MAX: usize = 16;

/// Executes a control request and returns its answer; `None` if the program that sent the request
/// is gone.
pub(crate) async fn execute<H: ControlHost>(host: &H, request: ControlRequest) -> Option<Value> {
    if let Err(why) = host.allows(request.kind().operation()) {
        return Some(refusal(RefusalKind::Denied, &why));
    }
    let done = match request {
        ControlRequest::About => {
            let mut answer = host.about();
            answer.insert("ok".to_owned(), true.into());
            Ok(answer.into())
        }
        ControlRequest::List(query) => match host.list(query).await {
            Ok(page) => Ok(answer(page, |at| host.wall(at))),
            Err(why) => Ok(unavailable(&why)),
        },
        ControlRequest::Status(name) => Ok(status(host, &name, json!({ "ok": true })).await),
        ControlRequest::Acquire(ask) => return acquire(host, ask).await,
        ControlRequest::Renew(ask) => renew(host, ask).await,
        ControlRequest::Release(ask) => Ok(release(host, ask).await),
        ControlRequest::Steal(ask) => Ok(steal(host, ask).await),
    };
    // `refused` is the answer to a caller who has named a process to which that caller may not bind
    // a lease.
    Some(done.unwrap_or_else(|refused| refused))
}

async fn acquire<H: ControlHost>(host: &H, ask: AcquireRequest) -> Option<Value> {
    let AcquireRequest { name, mut options, reentrant, for_parent, queue, remember } = ask;
    let named = match options.pid.map(|pid| host.process(&name, pid)).transpose() {
        Ok(process) => process,
        Err(refused) => return Some(refused),
    };
    let view = match host.view(&name).await {
        Ok(view) => view,
        Err(why) => return Some(unavailable(&why)),
    };
    let own = view.held_by(host.client()).filter(|_| reentrant);
    let by_name = !reentrant || options.ttl.is_some() || options.grace.is_some() || named.is_some();
    let process = named.or_else(|| host.default_process().filter(|_| own.is_none()));
    let mut patch = match own {
        // The client holds the lock already, so the request renews the lease. Of the details of the
        // lease it changes the note, and the process if the request names one; all others stay.
        Some(_) => Patch { note: options.note.clone(), ..Patch::default() },
        None => host.details(&options, for_parent),
    };
    if let Some(own) = own {
        options.ttl = options.ttl.or(Some(own.ends.ttl));
        options.grace = options.grace.or(Some(own.ends.grace));
    }
    let (mode, is_own) = (options.mode.unwrap_or(Mode::Exclusive), own.is_some());
    let term = host.terms(&options, process.as_ref());
    patch.process = process.as_ref().and_then(|process| host.detail_of(process)).map(Some);
    if is_own && process.is_some() && view.mode == mode && !remember {
        let (key, firm) = (key(host, &name, None), Firm::Make);
        let op = Op::Renew(Renew { key, term: Some(term), firm, patch, acquires: true });
        return Some(decide(host, name, op, process).await);
    }
    // A reentrant request renews a lease of the client, whether the client as a whole or one of its
    // programs or open files owns that lease.
    let hold = if by_name && !is_own { Ownership::Exclusive(None) } else { Ownership::Client };
    let client = host.client().clone();
    let ask = Acquire { mode, hold, patch, remember, ..Acquire::new(name, client, term) };
    match queue {
        QueuePolicy::Join(patience) if !is_own => wait(host, ask, patience, process).await,
        _ => Some(decide(host, ask.name.clone(), Op::Acquire(ask), process).await),
    }
}

async fn wait<H: ControlHost>(
    host: &H,
    ask: Acquire,
    patience: Option<Span>,
    process: Option<H::Process>,
) -> Option<Value> {
    let name = ask.name.clone();
    Some(match host.wait(ask, patience).await {
        ControlWaitEnd::Granted(tenure) => {
            if let Some(process) = &process {
                host.bind(key(host, &name, Some(tenure.token)), tenure.life, process);
            }
            let answer = json!({ "ok": true, "token": tenure.token.as_u64() });
            short_status(host, &name, answer).await
        }
        ControlWaitEnd::Failed(failure) => failed(host, &name, failure),
        ControlWaitEnd::Refused(answer) => answer,
        ControlWaitEnd::Left(why) => {
            let sentence = match (why, patience) {
                (Some(LeaveReason::TimedOut), Some(patience)) => format!(
                    "timed out after {patience} waiting for lock '{name}'; see 'latchfs status \
                     {name}' for its holder, or wait longer"
                ),
                (Some(why), _) => format!("lock '{name}': {}; try again", why.sentence()),
                (None, _) => format!("the place in the queue of lock '{name}' is lost; try again"),
            };
            short_status(host, &name, refusal(RefusalKind::LockConflict, &sentence)).await
        }
        ControlWaitEnd::Abandoned => return None,
    })
}

async fn renew<H: ControlHost>(host: &H, ask: RenewRequest) -> Result<Value, Value> {
    let RenewRequest { name, options, unbinds } = ask;
    let process = options.pid.map(|pid| host.process(&name, pid)).transpose()?;
    let changes = options.ttl.is_some() || options.grace.is_some();
    let left = options.token.filter(|_| unbinds).and_then(|token| host.unbind(token));
    let op = Op::Renew(Renew {
        key: key(host, &name, options.token),
        term: if changes { Some(host.terms(&options, None)) } else { left },
        firm: if changes || process.is_some() { Firm::Make } else { Firm::Keep },
        patch: Patch {
            note: options.note.clone(),
            process: match &process {
                Some(process) => host.detail_of(process).map(Some),
                None => unbinds.then_some(None),
            },
            ..Patch::default()
        },
        acquires: false,
    });
    Ok(decide(host, name, op, process).await)
}

/// Releases a lock. A handover is the next one of the tenure, and names its token.
async fn release<H: ControlHost>(host: &H, ask: ReleaseRequest) -> Value {
    let ReleaseRequest { name, mut token, handover } = ask;
    let handover = match handover {
        None => None,
        Some(text) => {
            let view = match host.view(&name).await {
                Ok(view) => view,
                Err(why) => return unavailable(&why),
            };
            token = token.or_else(|| view.held_by(host.client()).map(|own| own.lease.token));
            let last = view.previous.as_ref().and_then(|known| known.last.as_ref());
            let last = last.filter(|last| Some(last.token) == token);
            let counter = last.map_or(1, |last| last.handover.counter.saturating_add(1));
            Some(Handover { text, counter })
        }
    };
    let key = key(host, &name, token);
    decide(host, name, Op::Release(Release { handover, ..Release::of(key) }), None).await
}

async fn steal<H: ControlHost>(host: &H, ask: StealRequest) -> Value {
    let StealRequest { name, options, reason, for_parent, at_once } = ask;
    let op = Op::Steal(Steal {
        name: name.clone(),
        only: options.token,
        client: host.client().clone(),
        reason,
        term: host.terms(&options, None),
        patch: host.details(&options, for_parent),
        at_once,
    });
    decide(host, name, op, None).await
}

/// Submits a command to the lock service, binds the granted lease to `process`, and returns the
/// answer with the status of the lock.
async fn decide<H: ControlHost>(
    host: &H,
    name: LockName,
    op: Op,
    process: Option<H::Process>,
) -> Value {
    let answer = host.decide(op).await;
    if let (Some(process), Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure))) =
        (&process, &answer)
    {
        host.bind(key(host, &name, Some(tenure.token)), tenure.life, process);
    }
    if let Ok(Outcome::Renewed(tenure)) = &answer {
        host.continued(&name, tenure.token);
    }
    let answer = match answer {
        // The answer includes the token of the caller's lease, because the status of a shared lock
        // shows only its first holder.
        Ok(outcome) => match outcome.tenure() {
            Some(tenure) => json!({ "ok": true, "token": tenure.token.as_u64() }),
            None => json!({ "ok": true }),
        },
        // The lock service was unavailable for the command, so it would be for the status as well:
        // the answer has no status.
        Err(failure @ RequestError::Unavailable(_)) => return failed(host, &name, failure),
        Err(failure) => failed(host, &name, failure),
    };
    status(host, &name, answer).await
}

/// Tells `host`, the front end that received a request, that the request failed. Returns the answer
/// that reports the failure.
fn failed<H: ControlHost>(host: &H, name: &LockName, failure: RequestError) -> Value {
    let answer = refusal(failure.kind(), &failure.to_string());
    host.failed(name, failure);
    answer
}

fn unavailable(why: &Unavailable) -> Value {
    refusal(why.kind(), &why.to_string())
}

/// Adds the status of the lock `name` to an answer.
async fn status<H: ControlHost>(host: &H, name: &LockName, answer: Value) -> Value {
    with_status(host, name, usize::MAX, answer).await
}

/// Adds the status of a lock, with a limited number of waiters, to the answer to a request that has
/// waited.
async fn short_status<H: ControlHost>(host: &H, name: &LockName, answer: Value) -> Value {
    with_status(host, name, WAITERS_SHOWN_MAX, answer).await
}

async fn with_status<H: ControlHost>(
    host: &H,
    name: &LockName,
    waiters: usize,
    mut answer: Value,
) -> Value {
    match host.view(name).await {
        Ok(mut view) => {
            view.waiters.truncate(waiters);
            answer["status"] = status_of(&view, |at| host.wall(at));
            answer
        }
        Err(why) => unavailable(&why),
    }
}

fn key<H: ControlHost>(host: &H, name: &LockName, token: Option<Token>) -> LeaseKey {
    LeaseKey { name: name.clone(), client: host.client().clone(), token }
}

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
