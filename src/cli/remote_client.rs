//! Commands on a server, without any mount: the requests that `.latchfs/ctl` takes, decided by that
//! server. A lease that lasts as long as this process hangs on a session of its own, which a
//! keep-alive thread renews.

use super::exit::{CliError, CliResult, Exit};
use super::mount_client::LockClient;
use super::name_argument::not_a_name;
use super::server_options;
use crate::client::http_transport::ServerAccess;
use crate::client::{Remote, Terms};
use crate::engine::lease_terms::{GRACE_DEFAULT, TTL_DEFAULT, parse_span};
use crate::engine::{
    Acquire, ClientId, Firm, Grace, LeaseKey, LeaseTerms, LeaveReason, LockName, LockView, Mode,
    Op, OpenId, Outcome, Ownership, Patch, QueuePolicy, RefusalKind, Release, Renew, Steal,
    StealReason, Token, Ttl,
};
use crate::holder_id::Maker;
use crate::service::queue_waits::{Entered, QueueWaits, WaitEnd};
use crate::service::{self, List, LockService, Locks, Retry, SessionOwner};
use crate::status::status_of;
use crate::time::Span;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::process::parent_id;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};

/// Open files of this process, of which there is one: the wait in line.
const NUMBER: u64 = 1;

/// A client of a server, for one process.
pub(super) struct RemoteClient {
    access: ServerAccess,
    client: ClientId,
    remote: OnceLock<Arc<Remote>>,
}

impl RemoteClient {
    pub(super) fn new(access: ServerAccess, client: ClientId) -> Self {
        Self { access, client, remote: OnceLock::new() }
    }

    /// The door, connected at the first request; `session` is how long what it asks for lasts
    /// when this process is gone.
    fn remote(&self, session: Option<Ttl>) -> CliResult<&Arc<Remote>> {
        if let Some(remote) = self.remote.get() {
            return Ok(remote);
        }
        let (client, grace) = (self.client.clone(), GRACE_DEFAULT);
        let terms = session.map(|ttl| Terms { client, ttl, grace });
        let remote = server_options::connect(&self.access, terms)?;
        Ok(self.remote.get_or_init(|| remote))
    }

    /// The door, for whoever follows events, from `since` on.
    pub(super) fn locks(&self, since: Option<u64>) -> CliResult<Locks> {
        Ok(Locks::new(server_options::connect_since(&self.access, None, since)? as _))
    }

    fn decide(remote: &Remote, op: Op) -> CliResult<Outcome> {
        let (send, answer) = channel();
        remote.submit(
            op.into(),
            Retry::Never,
            Box::new(move |answer| {
                // The receiver waits for this answer below.
                let _ = send.send(answer);
            }),
        );
        let answer = received(&answer)?;
        answer.map_err(|refusal| failed(&service::RequestError::Refused(refusal)))
    }

    fn view(remote: &Remote, name: &LockName) -> CliResult<LockView> {
        let (send, view) = channel();
        remote.view(name, Retry::Never, Box::new(move |view| drop(send.send(view))));
        received(&view).map(|seen| seen.view)
    }

    fn shown(&self, remote: &Remote, name: &LockName, token: Option<Token>) -> CliResult<Value> {
        let view = Self::view(remote, name)?;
        let mut answer = json!({ "ok": true, "you": self.client.as_str() });
        if let Some(token) = token {
            answer["token"] = token.as_u64().into();
        }
        answer["status"] = status_of(&view, |at| remote.wall(at));
        Ok(answer)
    }

    fn list(&self, request: &ControlRequest<'_>) -> CliResult<Value> {
        let remote = self.remote(None)?;
        let query = List {
            prefix: request.text("prefix").unwrap_or_default().to_owned(),
            after: request.text("after").and_then(|after| LockName::parse(after).ok()),
            limit: request.number("limit").and_then(|n| n.try_into().ok()).unwrap_or(1_000),
        };
        let (send, page) = channel();
        remote.list(
            query,
            Box::new(move |page| {
                let _ = send.send(page);
            }),
        );
        let page = received(&page)?;
        let statuses = page.items.iter().map(|view| status_of(view, |at| remote.wall(at)));
        let statuses: Vec<Value> = statuses.collect();
        let you = self.client.as_str();
        Ok(json!({ "ok": true, "locks": statuses, "next": page.next, "you": you }))
    }

    fn acquire(&self, request: &ControlRequest<'_>) -> CliResult<Value> {
        let (name, line) = (request.name()?, request.line()?);
        let lives_with_us = request.number("pid").is_some();
        let leans = lives_with_us || matches!(line, QueuePolicy::Join(_));
        let ttl = request.ttl()?.unwrap_or(TTL_DEFAULT);
        let remote = self.remote(leans.then_some(ttl))?;
        let attempt = match remote.own_session() {
            Ok(SessionOwner::Kept(session)) => Some(OpenId { session, number: NUMBER }),
            _ => None,
        };
        let view = Self::view(remote, &name)?;
        let own = view.held_by(&self.client).filter(|_| request.0["reentrant"] == true);
        let own_term = |before: Option<&crate::engine::Holder>| {
            let ttl = request.ttl()?.or(before.map(|own| own.ends.ttl)).unwrap_or(TTL_DEFAULT);
            let grace = request.grace()?.or(before.map(|own| own.ends.grace));
            Ok(LeaseTerms::Own(ttl, grace.unwrap_or(GRACE_DEFAULT)))
        };
        let term = match attempt.filter(|_| lives_with_us) {
            Some(open) => LeaseTerms::Session(open.session),
            None => own_term(own)?,
        };
        let says_more = own.is_none();
        let ask = Acquire {
            name: name.clone(),
            client: self.client.clone(),
            mode: request.mode()?,
            hold: match attempt {
                Some(open) if leans => Ownership::Exclusive(Some(open)),
                _ if own.is_some() => Ownership::Client,
                _ => Ownership::Exclusive(None),
            },
            term,
            line,
            patch: Patch {
                note: request.text("note").map(Into::into),
                holder_id: says_more.then(|| self.holder_id(request)),
                ..Patch::default()
            },
        };
        let patience = match line {
            QueuePolicy::Join(patience) => patience,
            QueuePolicy::Skip => None,
        };
        let token = match Self::take_or_wait(remote, &ask)? {
            Ok(token) => token,
            // Without a limit it left the queue because its session is over.
            Err(LeaveReason::TimedOut) if patience.is_some() => {
                return Err(too_long(&name, patience.unwrap_or_default()));
            }
            Err(_) => return Err(place_lost()),
        };
        self.shown(remote, &name, Some(token))
    }

    /// Takes a lock, or waits for it in its queue. `Err`: it left the queue without the lock.
    fn take_or_wait(remote: &Arc<Remote>, ask: &Acquire) -> CliResult<Result<Token, LeaveReason>> {
        let waits = QueueWaits::new(Locks::new(Arc::clone(remote) as _));
        let ((on_end, end), (then, answer)) = (channel(), channel());
        let told_end = move |end| {
            // The receiver waits for this below.
            let _ = on_end.send(end);
        };
        waits.enter(ask.clone(), None, told_end, move |answer| drop(then.send(answer)));
        let place = match received(&answer)? {
            Ok(Entered::Waits(place)) => place,
            Ok(Entered::Decided(Outcome::Granted(tenure) | Outcome::Renewed(tenure))) => {
                return Ok(Ok(tenure.token));
            }
            Ok(Entered::Decided(_)) => {
                return Err(CliError::unavailable("the server answered what was not asked"));
            }
            Err(refusal) => return Err(failed(&service::RequestError::Refused(refusal))),
        };
        let end = end.recv().map_err(|_| place_lost())?;
        place.claim();
        match end {
            WaitEnd::Granted(grant) => Ok(Ok(grant.token)),
            WaitEnd::Left(why) => Ok(Err(why)),
            WaitEnd::Unknown => Err(place_lost()),
        }
    }

    fn renew(&self, request: &ControlRequest<'_>) -> CliResult<Value> {
        let (remote, name) = (self.remote(None)?, request.name()?);
        let (ttl, grace) = (request.ttl()?, request.grace()?);
        let changes = ttl.is_some() || grace.is_some();
        let term = LeaseTerms::Own(ttl.unwrap_or(TTL_DEFAULT), grace.unwrap_or(GRACE_DEFAULT));
        let note = request.text("note").map(Into::into);
        let renewed = Self::decide(
            remote,
            Op::Renew(Renew {
                key: self.key(request, &name),
                term: changes.then_some(term),
                firm: if changes { Firm::Make } else { Firm::Keep },
                patch: Patch { note, ..Patch::default() },
                acquires: false,
            }),
        )?;
        let token = match renewed {
            Outcome::Renewed(tenure) => Some(tenure.token),
            _ => None,
        };
        self.shown(remote, &name, token)
    }

    fn release(&self, request: &ControlRequest<'_>) -> CliResult<Value> {
        let (remote, name) = (self.remote(None)?, request.name()?);
        let key = self.key(request, &name);
        Self::decide(remote, Op::Release(Release::of(key)))?;
        self.shown(remote, &name, None)
    }

    fn steal(&self, request: &ControlRequest<'_>) -> CliResult<Value> {
        let (remote, name) = (self.remote(None)?, request.name()?);
        let reason = request.text("reason").and_then(StealReason::parse).ok_or_else(|| {
            CliError::usage("taking a lock away needs a short reason, which its holder will read")
        })?;
        let stolen = Self::decide(
            remote,
            Op::Steal(Steal {
                name: name.clone(),
                client: self.client.clone(),
                reason,
                term: LeaseTerms::Own(request.ttl()?.unwrap_or(TTL_DEFAULT), GRACE_DEFAULT),
                patch: Patch {
                    note: request.text("note").map(Into::into),
                    holder_id: Some(self.holder_id(request)),
                    ..Patch::default()
                },
            }),
        )?;
        let token = match stolen {
            Outcome::Stolen(tenure) | Outcome::Granted(tenure) => Some(tenure.token),
            _ => None,
        };
        self.shown(remote, &name, token)
    }

    /// The process that acquires: this one, or the shell above it if the request says so.
    fn holder_id(&self, request: &ControlRequest<'_>) -> Arc<str> {
        let for_shell = request.0["parent"] == true;
        let pid = if for_shell { parent_id() } else { std::process::id() };
        format!("{}:{}", self.client, Maker::running(pid)).into()
    }

    fn key(&self, request: &ControlRequest<'_>, name: &LockName) -> LeaseKey {
        let token = request.number("token").map(Token::named);
        LeaseKey { name: name.clone(), client: self.client.clone(), token }
    }
}

impl LockClient for RemoteClient {
    fn ask(&self, request: &Value) -> CliResult<Value> {
        let request = ControlRequest(request);
        match request.text("do").unwrap_or_default() {
            "about" => {
                let contact = self.remote(None)?.contact().as_str();
                Ok(json!({ "ok": true, "contact": contact }))
            }
            "list" => self.list(&request),
            "status" => {
                let name = request.name()?;
                self.shown(self.remote(None)?, &name, None)
            }
            "acquire" => self.acquire(&request),
            "renew" => self.renew(&request),
            "release" => self.release(&request),
            "steal" => self.steal(&request),
            other => Err(CliError::usage(format!("a server knows no request '{other}'"))),
        }
    }

    fn wait(&self, request: &Value) -> CliResult<Value> {
        self.ask(request)
    }

    fn close(&self) {
        if let Some(remote) = self.remote.get() {
            remote.close();
        }
    }
}

/// A request in the JSON form of the control file.
struct ControlRequest<'a>(&'a Value);

impl ControlRequest<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.0[key].as_str()
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.0[key].as_u64()
    }

    fn name(&self) -> CliResult<LockName> {
        let text = self.text("name").unwrap_or_default();
        LockName::parse(text).map_err(|error| not_a_name(OsStr::new(text), error))
    }

    fn ttl(&self) -> CliResult<Option<Ttl>> {
        let ttl = self.text("ttl").map(Ttl::parse).transpose();
        ttl.map_err(|error| CliError::usage(error.to_string()))
    }

    fn grace(&self) -> CliResult<Option<Grace>> {
        let grace = self.text("grace").map(Grace::parse).transpose();
        grace.map_err(|error| CliError::usage(error.to_string()))
    }

    fn mode(&self) -> CliResult<Mode> {
        match self.text("mode") {
            None | Some("exclusive") => Ok(Mode::Exclusive),
            Some("shared") => Ok(Mode::Shared),
            Some(other) => Err(CliError::usage(format!("there is no mode '{other}'"))),
        }
    }

    fn line(&self) -> CliResult<QueuePolicy> {
        match &self.0["wait"] {
            Value::Bool(true) => Ok(QueuePolicy::Join(None)),
            Value::String(text) => parse_span(text)
                .map(|span| QueuePolicy::Join(Some(span)))
                .map_err(|error| CliError::usage(error.to_string())),
            _ => Ok(QueuePolicy::Skip),
        }
    }
}

fn received<T>(answer: &Receiver<Result<T, service::Unavailable>>) -> CliResult<T> {
    match answer.recv() {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(why)) => Err(failed(&service::RequestError::Unavailable(why))),
        Err(_) => Err(CliError::unavailable("the server was not asked; try again")),
    }
}

fn failed(failure: &service::RequestError) -> CliError {
    CliError::Said(Exit::of(failure.kind()), failure.to_string())
}

fn place_lost() -> CliError {
    CliError::unavailable(
        "the server was away for so long that the place in line is lost; try again",
    )
}

fn too_long(name: &LockName, patience: Span) -> CliError {
    let sentence = format!(
        "lock '{name}' was not to be had within {patience}; see 'latchfs status {name}' for who \
         has it, or wait longer"
    );
    CliError::Said(Exit::of(RefusalKind::LockConflict), sentence)
}
