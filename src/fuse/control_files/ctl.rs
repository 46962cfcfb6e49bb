//! The control file: requests and answers as JSON, for the command line. One write is one request;
//! what is read is what was not yet read of the answers.

use crate::fuse::ops::ancestors;
use crate::fuse::control_files::ctl_list as list;
use crate::fuse::errno::Act;
use crate::fuse::process::process_handle::{self, Living};
use crate::fuse::queue_wait::{self, Ended, Held};
use crate::fuse::ops::create::looks;
use crate::fuse::write_message::{self, Options};
use crate::fuse::open_files::Open;
use crate::fuse::credentials::{Caller, parent_of};
use crate::fuse::control_files::pages;
use crate::fuse::process::bindings;
use crate::fuse::control_files::requests::{CtlRequest, why_denied};
use crate::fuse::shared::{Fs, flat};
use crate::fuse::kernel::user_shares::Pool;
use crate::engine::lease_terms::parse_span;
use crate::engine::{
    Acquire, FileType, Firm, LeaseKey, LeaseTerms, LockName, Mode, Op, Outcome, Ownership, Patch,
    QueuePolicy, RefusalKind, Release, Renew, Steal, StealReason, Token,
};
use crate::service::{List, RequestError};
use crate::status::status_of;
use crate::time::Span;
use fuser::{ReplyData, ReplyWrite};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A request is a few names and a note of 1 KiB.
pub(crate) const REQUEST_BYTES_MAX: usize = 8_192;
/// Waiters shown in the answer to a request that waited: the answers to all who wait for one lock
/// must not take the square of their number.
pub(crate) const WAITERS_SHOWN_MAX: usize = 16;

/// Where an answer goes.
pub(crate) type Then = Box<dyn FnOnce(Value) + Send>;

/// Reads what was not yet read; while an answer is still to come, and nothing else is there, the
/// read waits for it.
pub(crate) fn read(fs: &Fs, caller: &Caller, fh: u64, open: &Open, size: u32, reply: ReplyData) {
    let mut state = open.state.lock();
    if !state.answers.is_empty() || state.pending == 0 {
        let bytes = state.answers.take(size);
        drop(state);
        return reply.data(&bytes);
    }
    if let Err(full) = fs.shares.room(Pool::Threads, caller.uid) {
        drop(state);
        return reply.error(fs.refuse_full(caller, Act::Read, None, full));
    }
    waiting::hold(fs, fh, state, (size, caller.pid), reply);
}

/// Answers the request in `data`. The write has done its work when the answer can be read; that
/// of a request that waits is done at once, and the read waits.
pub(crate) fn request(
    fs: &Fs,
    caller: &Caller,
    fh: u64,
    open: &Arc<Open>,
    data: &[u8],
    reply: ReplyWrite,
) {
    let length = data.len() as u32;
    // Before anything is done: a program that never reads learns of nothing that it does.
    if let Err(full) = fs.shares.room(Pool::Bytes, open.uid) {
        return reply.error(fs.refuse_full(caller, Act::Control, None, full));
    }
    let request = parse(data);
    let waits = request.as_ref().is_ok_and(Request::waits);
    let reply = if waits {
        open.state.lock().pending += 1;
        reply.written(length);
        None
    } else {
        Some((reply, length))
    };
    let (shared, open, you) = (Arc::clone(fs), Arc::clone(open), caller.client.clone());
    let then: Then = Box::new(move |mut answer: Value| {
        // Who asks can find itself among holders and waiters.
        answer["you"] = you.as_str().into();
        tell(&shared, &open, answer, reply);
    });
    match request {
        Ok(request) => answer(fs, caller, fh, &request, then),
        Err(sentence) => then(wrong(RefusalKind::Invalid, &sentence)),
    }
}

/// Keeps an answer to be read, and ends the write, or the reads that wait for it.
fn tell(fs: &Fs, open: &Open, mut answer: Value, reply: Option<(ReplyWrite, u32)>) {
    let mut state = open.state.lock();
    if let Err(full) = state.answers.add(&fs.shares, open.uid, &format!("{answer}\n")) {
        // What was done is told in any case; what it looks like can be asked again.
        if answer.get("locks").is_some() {
            answer = wrong(RefusalKind::Limit, &full.to_string());
        } else if let Value::Object(fields) = &mut answer {
            fields.remove("status");
        }
        state.answers.add_always(&fs.shares, open.uid, &format!("{answer}\n"));
    }
    if let Some((reply, length)) = reply {
        drop(state);
        return reply.written(length);
    }
    state.pending -= 1;
    let held = std::mem::take(&mut state.held);
    let told = held.into_iter().map(|Held { size, reply, .. }| (reply, state.answers.take(size)));
    let told: Vec<_> = told.collect();
    drop(state);
    for (reply, bytes) in told {
        reply.data(&bytes);
    }
}

/// A request, before its parts are looked at.
pub(crate) struct Request {
    what: String,
    pub(crate) fields: Map<String, Value>,
}

impl Request {
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, String> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("'{key}' is a text, not {other}")),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, String> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(format!("'{key}' is true or false, not {other}")),
        }
    }

    /// Whether the answer may take as long as the line is.
    fn waits(&self) -> bool {
        self.what == CtlRequest::Acquire.as_str() && matches!(self.line(), Ok(QueuePolicy::Join(_)))
    }

    /// How long to wait in line: not at all, for ever, or so long.
    fn line(&self) -> Result<QueuePolicy, String> {
        match self.fields.get("wait") {
            None | Some(Value::Null | Value::Bool(false)) => Ok(QueuePolicy::Skip),
            Some(Value::Bool(true)) => Ok(QueuePolicy::Join(None)),
            Some(Value::String(text)) => match parse_span(text) {
                Ok(span) => Ok(QueuePolicy::Join(Some(span))),
                Err(error) => Err(format!("'wait': {error}")),
            },
            Some(other) => Err(format!("'wait' is true or a duration, not {other}")),
        }
    }

    pub(crate) fn name(&self) -> Result<LockName, String> {
        let text = self.text("name")?.ok_or("the request lacks a 'name'")?;
        LockName::parse(text).map_err(|error| {
            let shown = message::short(&text.escape_debug().to_string());
            format!("'{shown}' can't be the name of a lock: {error}")
        })
    }
}

pub(crate) fn parse(data: &[u8]) -> Result<Request, String> {
    if data.len() > REQUEST_BYTES_MAX {
        return Err(format!("a request has at most {REQUEST_BYTES_MAX} bytes"));
    }
    let value: Value = serde_json::from_slice(data)
        .map_err(|error| format!("a request is a JSON object, and this is none: {error}"))?;
    let Value::Object(fields) = value else {
        return Err("a request is a JSON object such as {\"do\":\"about\"}".to_owned());
    };
    match fields.get("do") {
        Some(Value::String(what)) => Ok(Request { what: what.clone(), fields }),
        _ => Err("a request says in 'do' what to do".to_owned()),
    }
}

pub(crate) fn wrong(kind: RefusalKind, sentence: &str) -> Value {
    json!({ "ok": false, "kind": kind.as_str(), "message": sentence })
}

fn answer(fs: &Fs, caller: &Caller, fh: u64, request: &Request, then: Then) {
    let Some(what) = CtlRequest::named(&request.what) else {
        let what = message::short(&request.what);
        let sentence = format!("there is no request '{what}'; see .latchfs/README");
        return then(wrong(RefusalKind::Invalid, &sentence));
    };
    if let Err(denial) = caller.grant(fs.mounter).may_begin(what.operation()) {
        return then(wrong(RefusalKind::Denied, &why_denied(&denial)));
    }
    let done = match what {
        CtlRequest::About => return then(about(fs)),
        CtlRequest::List => list::asked(request).map(Asked::List),
        CtlRequest::Status => request.name().map(Asked::Status),
        CtlRequest::Acquire => acquiring(request).map(Asked::Acquire),
        CtlRequest::Renew => match renewing(fs, caller, request) {
            Ok((name, op, process)) => return decide_bound(fs, caller, name, op, process, then),
            Err(refused) => return then(refused),
        },
        CtlRequest::Release => release_of(caller, request).map(Asked::Op),
        CtlRequest::Steal => steal_of(fs, caller, request).map(Asked::Op),
    };
    match done {
        Ok(Asked::List(query)) => list::answer(fs, query, then),
        Ok(Asked::Status(name)) => status(fs, &name, json!({ "ok": true }), then),
        Ok(Asked::Acquire(ask)) => match process_of(fs, caller, &ask.options, &ask.name) {
            Ok(process) => {
                let name = ask.name.clone();
                below::check_said(fs, caller, &name, move |fs, caller, may| match may {
                    Ok(()) => acquire(fs, caller, fh, ask, process, then),
                    Err((kind, sentence)) => then(wrong(kind, &sentence)),
                });
            }
            Err(refused) => then(refused),
        },
        Ok(Asked::Op((name, op))) => decide_bound(fs, caller, name, op, None, then),
        Err(sentence) => then(wrong(RefusalKind::Invalid, &sentence)),
    }
}

/// What a request comes down to.
enum Asked {
    List(List),
    Status(LockName),
    Acquire(Acquiring),
    Op((LockName, Op)),
}

fn about(fs: &Fs) -> Value {
    let mut answer = json!({ "ok": true });
    if let (Value::Object(answer), Value::Object(server)) = (&mut answer, pages::server(fs)) {
        answer.extend(server);
    }
    answer
}

/// The process that a request names, or the answer that refuses it.
fn process_of(
    fs: &Fs,
    caller: &Caller,
    options: &Options,
    name: &LockName,
) -> Result<Option<Living>, Value> {
    let Some(pid) = options.pid else { return Ok(None) };
    living::named(fs, caller, pid).map(Some).map_err(|(errno, why)| {
        let sentence = format!("lock '{name}': {why}");
        fs.refuse_own(caller, Act::Control, Some(name), errno, sentence.clone());
        wrong(living::kind_of(errno), &sentence)
    })
}

fn decide_bound(
    fs: &Fs,
    caller: &Caller,
    name: LockName,
    op: Op,
    process: Option<Living>,
    then: Then,
) {
    let (shared, caller) = (Arc::clone(fs), caller.clone());
    fs.locks.submit(op, move |answer| {
        let answer = flat(answer);
        if let (Some(living), Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure))) =
            (&process, &answer)
        {
            let key = key_of(&caller, &name, Some(tenure.token));
            process::bind(&shared, key, tenure.life, living);
        }
        if let Ok(Outcome::Renewed(tenure)) = &answer {
            shared.tree.lock().continued(&name, tenure.token);
        }
        let answer = match answer {
            // Of a shared lock the status shows the first holder, and the caller may be another.
            Ok(
                Outcome::Granted(tenure)
                | Outcome::Renewed(tenure)
                | Outcome::Moved(tenure)
                | Outcome::Stolen(tenure),
            ) => json!({ "ok": true, "token": tenure.token.as_u64() }),
            Ok(_) => json!({ "ok": true }),
            Err(failure) => {
                let answer = wrong(failure.kind(), &failure.to_string());
                let silent = matches!(failure, RequestError::Unavailable(_)); // nor for the status
                shared.refuse(&caller, Act::Control, Some(&name), failure);
                if silent {
                    return then(answer);
                }
                answer
            }
        };
        status(&shared, &name, answer, then);
    });
}

/// Adds the status of a lock to an answer.
fn status(fs: &Fs, name: &LockName, answer: Value, then: Then) {
    status_with(fs, name, usize::MAX, answer, then);
}

/// The same with so many waiters at most.
fn status_with(fs: &Fs, name: &LockName, waiters: usize, mut answer: Value, then: Then) {
    let shared = Arc::clone(fs);
    fs.locks.view(name, move |view| match view {
        Ok(mut view) => {
            view.waiters.truncate(waiters);
            answer["status"] = status_of(&view, |at| shared.locks.wall(at));
            then(answer);
        }
        Err(why) => then(wrong(RefusalKind::ConsistencyUnavailable, &why.to_string())),
    });
}

fn term_of(fs: &Fs, options: &Options) -> LeaseTerms {
    let (ttl, grace) = (options.ttl, options.grace);
    LeaseTerms::Own(ttl.unwrap_or(fs.config.ttl), grace.unwrap_or(fs.config.grace))
}

fn patch_of(fs: &Fs, caller: &Caller, options: &Options, for_parent: bool) -> Patch {
    let parent = parent_of(caller.pid).filter(|_| for_parent);
    let maker = Caller { pid: parent.unwrap_or(caller.pid), ..caller.clone() };
    Patch {
        holder_id: Some(fs.owners.holder_id(&maker)),
        note: options.note.clone(),
        looks: Some(looks(caller, FileType::File, 0o644)),
        ..Patch::default()
    }
}

/// The request of an `acquire` line. Whether a reentrant one renews is known only when the lock has
/// been looked at; any other is granted only what nobody holds.
struct Acquiring {
    name: LockName,
    options: Options,
    reentrant: bool,
    /// The lease is for the process above the caller, which is a shell.
    for_parent: bool,
    line: QueuePolicy,
}

fn acquiring(request: &Request) -> Result<Acquiring, String> {
    let (name, options) = (request.name()?, message::options_of(&request.fields)?);
    let reentrant = request.flag("reentrant")?;
    let for_parent = request.flag("parent")?;
    Ok(Acquiring { name, options, reentrant, for_parent, line: request.line()? })
}

fn acquire(fs: &Fs, caller: &Caller, fh: u64, ask: Acquiring, process: Option<Living>, then: Then) {
    let (shared, caller) = (Arc::clone(fs), caller.clone());
    fs.locks.view(&ask.name.clone(), move |view| {
        let view = match view {
            Ok(view) => view,
            Err(why) => return then(wrong(RefusalKind::ConsistencyUnavailable, &why.to_string())),
        };
        let Acquiring { name, mut options, reentrant, for_parent, line } = ask;
        let own = view.held_by(&caller.client).filter(|_| reentrant);
        let by_name =
            !reentrant || options.ttl.is_some() || options.grace.is_some() || process.is_some();
        let process =
            process.or_else(|| process::by_default(&shared, &caller).filter(|_| own.is_none()));
        let mut patch = match own {
            // What it says about itself, and how it looks, outlives a renewal.
            Some(_) => Patch { note: options.note.clone(), ..Patch::default() },
            None => patch_of(&shared, &caller, &options, for_parent),
        };
        if let Some(own) = own {
            options.ttl = options.ttl.or(Some(own.ends.ttl));
            options.grace = options.grace.or(Some(own.ends.grace));
        }
        let mode = options.mode.unwrap_or(Mode::Exclusive);
        patch.process = process.as_ref().map(|living| Some(living.process));
        if own.is_some() && process.is_some() && view.mode == mode {
            let (key, firm) = (key_of(&caller, &name, None), Firm::Make);
            let term = Some(term_of(&shared, &options));
            let op = Op::Renew(Renew { key, term, firm, patch, acquires: true });
            return decide_bound(&shared, &caller, name, op, process, then);
        }
        let is_own = own.is_some();
        let ask = Acquire {
            name: name.clone(),
            client: caller.client.clone(),
            mode,
            // A loose acquire renews in whatever way the lock is held.
            hold: if by_name && !is_own { Ownership::Exclusive(None) } else { Ownership::Client },
            term: term_of(&shared, &options),
            line: QueuePolicy::Skip,
            patch,
        };
        match line {
            QueuePolicy::Join(patience) if !is_own => {
                wait(&shared, &caller, fh, patience, ask, process, then);
            }
            _ => decide_bound(&shared, &caller, name, Op::Acquire(ask), process, then),
        }
    });
}

fn wait(
    fs: &Fs,
    caller: &Caller,
    fh: u64,
    patience: Option<Span>,
    ask: Acquire,
    process: Option<Living>,
    then: Then,
) {
    let (shared, caller, name) = (Arc::clone(fs), caller.clone(), ask.name.clone());
    waiting::join(fs, (fh, caller.uid), patience, ask, move |ended| match ended {
        Ended::Granted(tenure) => {
            if let Some(living) = &process {
                process::bind(
                    &shared,
                    key_of(&caller, &name, Some(tenure.token)),
                    tenure.life,
                    living,
                );
            }
            let answer = json!({ "ok": true, "token": tenure.token.as_u64() });
            status_with(&shared, &name, WAITERS_SHOWN_MAX, answer, then);
        }
        Ended::Failed(failure) => {
            let answer = wrong(failure.kind(), &failure.to_string());
            shared.refuse(&caller, Act::Control, Some(&name), failure);
            then(answer);
        }
        Ended::NoRoom(full) => {
            shared.refuse_full(&caller, Act::Control, Some(&name), full);
            then(wrong(RefusalKind::Limit, &full.to_string()));
        }
        Ended::TimedOut => {
            let patience = patience.unwrap_or_default();
            let sentence = format!(
                "lock '{name}' was not to be had within {patience}; see 'latchfs status {name}' \
                 for who has it, or wait longer"
            );
            let answer = wrong(RefusalKind::LockConflict, &sentence);
            status_with(&shared, &name, WAITERS_SHOWN_MAX, answer, then);
        }
    });
}

fn key_of(caller: &Caller, name: &LockName, token: Option<Token>) -> LeaseKey {
    LeaseKey { name: name.clone(), client: caller.client.clone(), token }
}

fn renewing(
    fs: &Fs,
    caller: &Caller,
    request: &Request,
) -> Result<(LockName, Op, Option<Living>), Value> {
    let told = |sentence: String| wrong(RefusalKind::Invalid, &sentence);
    let name = request.name().map_err(told)?;
    let options = message::options_of(&request.fields).map_err(told)?;
    let process = process_of(fs, caller, &options, &name)?;
    // What outlives its process, such as a slot that is done.
    let unbinds = request.fields.get("unbind") == Some(&Value::Bool(true));
    let changes = options.ttl.is_some() || options.grace.is_some();
    let unbound = options.token.filter(|_| unbinds);
    let left = unbound.and_then(|token| fs.processes.unbind_for(token, &caller.client));
    let op = Op::Renew(Renew {
        key: key_of(caller, &name, options.token),
        term: if changes { Some(term_of(fs, &options)) } else { left },
        firm: if changes || process.is_some() { Firm::Make } else { Firm::Keep },
        patch: Patch {
            note: options.note.clone(),
            process: match &process {
                Some(living) => Some(Some(living.process)),
                None => unbinds.then_some(None),
            },
            ..Patch::default()
        },
        acquires: false,
    });
    Ok((name, op, process))
}

fn release_of(caller: &Caller, request: &Request) -> Result<(LockName, Op), String> {
    let (name, options) = (request.name()?, message::options_of(&request.fields)?);
    let op = Op::Release(Release::of(key_of(caller, &name, options.token)));
    Ok((name, op))
}

fn steal_of(fs: &Fs, caller: &Caller, request: &Request) -> Result<(LockName, Op), String> {
    let (name, options) = (request.name()?, message::options_of(&request.fields)?);
    let reason = request.text("reason")?.and_then(StealReason::parse);
    let reason =
        reason.ok_or("taking a lock away needs a short 'reason', which its holder will read")?;
    let op = Op::Steal(Steal {
        name: name.clone(),
        client: caller.client.clone(),
        reason,
        term: term_of(fs, &options),
        patch: patch_of(fs, caller, &options, request.flag("parent")?),
    });
    Ok((name, op))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_request_is_told() {
        let long = format!("{{\"do\":\"{}\"}}", "x".repeat(REQUEST_BYTES_MAX));
        for wrong in ["", "about", "[]", "{}", "{\"do\":1}", "{\"do\":\"about\"", &long] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(parse(b"{\"do\":\"about\"}\n").map(|request| request.what), Ok("about".into()));
    }
}
