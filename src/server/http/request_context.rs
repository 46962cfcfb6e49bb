//! The context of one request: its head, body and caller, and the calls to the lock service that
//! handlers make on behalf of the request.
//!
//! Authenticates the caller of a request by the bearer token in its headers or by its client
//! certificate, or admits it as anonymous; again and again for a request that lasts.
//!
//! An endpoint: one method at a path, with its handler, its permission and its documentation.

use super::app_state::{AppState, ShutdownPhase};
use crate::auth::connection_limits::ConnectionOrigin;
use crate::auth::permissions::{AccessRequest, Operation};
use crate::auth::{AuthenticationError, Authenticator, Grant, UnnamedOwner, unnamed_owners};
use crate::engine::{
    ClientId, Command, IdempotencyKey, Lease, LockName, LockView, Op, Outcome, Previous, Reason,
    Refusal, RefusalKind, RequestId, SessionId, SessionView, Token,
};
use crate::server::http::bodies::parameters::Param;
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::bodies::schema::Schema;
use crate::server::lock_log::AuditedCaller;
use crate::service::audit::refusal_log::{ACCESS_LOG, CommandSubject, LOCKS_LOG};
use crate::service::paging::StaleRead;
use crate::service::{ParentCheck, RequestError, Retry, scoped_views};
use crate::shares::{CommandPermit, Identity, SharedTable, TableShare};
use crate::status::previous_of;
use axum::body::Body;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use log::Level;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The proof of its identity that a caller has sent.
#[derive(Clone)]
pub(super) struct HttpCaller {
    authorization: Option<HeaderValue>,
    pub(super) origin: Arc<ConnectionOrigin>,
}

impl HttpCaller {
    /// Returns the caller that sent these headers.
    pub(super) fn of(headers: &HeaderMap, origin: Arc<ConnectionOrigin>) -> Self {
        Self { authorization: headers.get(AUTHORIZATION).cloned(), origin }
    }

    /// Whether the caller has sent any credentials with the request.
    pub(super) const fn has_sent(&self) -> bool {
        self.authorization.is_some()
    }

    /// Returns the grant that the caller has now.
    pub(super) fn grant(&self, gate: &Authenticator) -> HandlerResult<Arc<Grant>> {
        grant_of(gate, self)
    }
}

/// Returns the permissions (grant) of a caller: by its bearer token, by its certificate, or as
/// anonymous.
fn grant_of(gate: &Authenticator, caller: &HttpCaller) -> HandlerResult<Arc<Grant>> {
    let certified = caller.origin.certified.as_ref();
    let secret = match &caller.authorization {
        Some(header) if gate.knows_tokens() => {
            Some(secret_of(header.as_bytes()).ok_or_else(|| {
                Problem::unknown("credentials are sent as 'Authorization: Bearer TOKEN'")
            })?)
        }
        Some(_) | None => None,
    };
    gate.grant(secret, certified).map_err(|unknown| {
        Problem::unknown(match unknown {
            AuthenticationError::Token => {
                "this token is unknown; ask the operator of the server \
                for one"
            }
            AuthenticationError::Nothing => "send a header 'Authorization: Bearer TOKEN'",
            AuthenticationError::Certificate => {
                "use a client certificate; a server that was started with --home gives one by \
                'latchfs join HOST'"
            }
            AuthenticationError::Unlisted => {
                "this client certificate has no rights here; ask the operator of the server for an \
                entry in the file of --certificate-rights"
            }
            AuthenticationError::Refused => {
                "this client certificate is refused; ask the operator of the server for another"
            }
            AuthenticationError::Removed => {
                "this client certificate is refused, because its machine was removed; run 'latchfs \
                 invite' at the server for a code, and 'latchfs join' here"
            }
        })
    })
}

/// Returns the token in an Authorization header, if its scheme is `Bearer`.
fn secret_of(header: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = header.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| secret.trim_ascii())
}

/// The future of a running handler.
pub(super) type HandlerFuture = Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

/// The command that a request submits, for its log lines; empty until the command is known.
pub(super) type RequestSubject = Arc<OnceLock<CommandSubject>>;

/// Maximum size of a request body, except for batches: several times a note of 1 KiB with names and
/// clients.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

/// Timeout for reading a request body. A body of 64 KiB arrives within a moment on any network; a
/// slower client would occupy a slot that another could use.
pub(super) const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// A body up to this length is not counted: the 4,096 requests that one address may send at once
/// take 16 MiB.
const SHORT_BYTES: usize = 4 << 10;

/// The name of this front end in the id of a caller.
pub(super) const FRONT_END: &str = "http";

/// One request, with the state that its handler needs.
pub(super) struct RequestContext {
    pub(super) app: Arc<AppState>,
    /// The permissions of the caller.
    pub(super) grant: Arc<Grant>,
    /// The proof of the caller's identity.
    pub(super) caller: HttpCaller,
    /// The identity to which the request is charged.
    pub(super) identity: Identity,
    /// The parameters that the endpoint accepts.
    pub(super) params: &'static [Param],
    pub(super) head: Parts,
    /// The body of the request. The mutex is never contended; it only makes the request `Sync`.
    pub(super) body: Mutex<Body>,
    /// The command that the request submits, for its log lines.
    pub(super) subject: RequestSubject,
}

/// Whether the log has lines about refusals or about requests.
fn is_logged() -> bool {
    log::log_enabled!(target: LOCKS_LOG, Level::Info)
        || log::log_enabled!(target: ACCESS_LOG, Level::Debug)
}

impl RequestContext {
    /// Reads the whole request body; fails if it is longer than `max` bytes or takes too long. The
    /// body counts against the share of the caller as long as the second result exists.
    pub(super) async fn bytes(
        &mut self,
        max: usize,
    ) -> HandlerResult<(axum::body::Bytes, Option<TableShare>)> {
        let body = std::mem::take(self.body.get_mut());
        // A body without a Content-Length takes the maximum length from the memory budget.
        let length = body.size_hint().exact().map_or(max, |length| length as usize);
        let long = Some(length.min(max)).filter(|length| *length > SHORT_BYTES);
        let memory = match long {
            Some(length) => Some(self.share(&self.app.bodies, length)?),
            None => None,
        };
        let whole = tokio::time::timeout(BODY_PATIENCE, Limited::new(body, max).collect());
        match whole.await {
            Ok(Ok(body)) => Ok((body.to_bytes(), memory)),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::plain(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("a body has at most {max} bytes here"),
            )),
            Ok(Err(error)) => Err(Problem::invalid(format!("the body can't be read: {error}"))),
            Err(_) => Err(Problem::plain(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not come within {} s", BODY_PATIENCE.as_secs()),
            )),
        }
    }
}

impl RequestContext {
    /// Returns the caller for the audit log.
    pub(super) fn audited(&self) -> AuditedCaller<'_> {
        AuditedCaller { grant: &self.grant, origin: &self.caller.origin }
    }

    /// Takes places of a limited table for the caller.
    pub(super) fn share(&self, table: &SharedTable, amount: usize) -> HandlerResult<TableShare> {
        let share = table.take(&self.identity, amount);
        share.map_err(|full| Problem::of(RefusalKind::Limit, full.to_string()))
    }

    /// Checks that the caller has room for what `op` adds to the engine. A request that waits or
    /// was granted adds nothing when it is repeated under its id. The command is pending until the
    /// permit is dropped.
    pub(super) fn admit(&self, op: &Op, id: Option<&RequestId>) -> Result<CommandPermit, Refusal> {
        self.app.locks.admit(op, |engine| match id {
            Some(id) if engine.remembers(id) => Ok(Vec::new()),
            _ => self.app.shares.admit(&self.grant, op, engine),
        })
    }

    /// Checks whether the caller may make `request`. The check is complete only for requests that
    /// name no session and no queue place, whose owners would have to be looked up.
    fn may(&self, request: &AccessRequest<'_>) -> HandlerResult<()> {
        self.grant.may(request, &[]).map_err(|denial| Problem::denied(&denial))
    }

    /// Returns the state of one lock (a linearizable read), if the caller may see it.
    pub(super) async fn view(&self, name: &LockName) -> HandlerResult<LockView> {
        self.may(&AccessRequest::of_lock(Operation::ShowLock, name))?;
        Ok(self.app.locks.view(name, Retry::Never).await?.view)
    }

    /// Returns the state of one lock as this node has applied it (a stale read), if the caller may
    /// see the lock.
    pub(super) async fn known(&self, name: &LockName) -> HandlerResult<StaleRead<LockView>> {
        self.may(&AccessRequest::of_lock(Operation::ShowLock, name))?;
        Ok(scoped_views::known_view(&*self.app.locks, name).await?)
    }

    /// Submits a command to the lock service and returns its outcome, if the caller may submit it.
    pub(super) async fn decide(
        &self,
        op: Op,
        request: Option<IdempotencyKey>,
    ) -> HandlerResult<Outcome> {
        self.name_subject(|| CommandSubject::named_in(&op));
        if op.needs_room() {
            self.grants()?;
        }
        self.check(&op).await?;
        let id = request.as_ref().map(|key| &key.id);
        let permit = self.admit(&op, id).map_err(RequestError::Refused)?;
        if !id.is_some_and(|id| self.app.locks.remembers(id)) {
            self.audited().commands(&self.app.locks, &op);
        }
        let check = parent_check(&self.grant, &op);
        let command = Command::from(op).with_request(request);
        let answer =
            Arc::clone(&self.app.locks).submit_checked(command, check).keeping(permit).await?;
        answer.map_err(|refusal| self.problem_of(refusal))
    }

    /// Converts a refusal to a problem. A conflict names the request of the winner, if it had an
    /// Idempotency-Key, and tells what is remembered of the name of the lock.
    fn problem_of(&self, refusal: Refusal) -> Problem {
        let conflict = match &*refusal.reason {
            Reason::Conflict(conflict) => Some((conflict.token, conflict.previous.clone())),
            _ => None,
        };
        let until = match &*refusal.reason {
            Reason::HoldOff { hold_off, .. } => Some(self.app.locks.wall(hold_off.until)),
            _ => None,
        };
        let problem = Problem::from(RequestError::Refused(refusal));
        if let Some(until) = until {
            return problem.with("until", until.to_string());
        }
        let Some((winner, previous)) = conflict else { return problem };
        let problem = self.with_previous(previous.as_deref(), problem);
        self.with_request_of(winner, problem)
    }

    /// Adds what is remembered of the name of a lock.
    pub(super) fn with_previous(&self, known: Option<&Previous>, problem: Problem) -> Problem {
        match known {
            Some(known) => {
                problem.with("previous", previous_of(known, |at| self.app.locks.wall(at)))
            }
            None => problem,
        }
    }

    /// Adds the Idempotency-Key of the HTTP request that was granted a lock under this token, if it
    /// is remembered. A key is no secret: it is bound to its credential and to a digest of the
    /// whole request, so that no other credential and no other request gets an answer by it.
    pub(super) fn with_request_of(&self, token: Token, problem: Problem) -> Problem {
        match self.app.locks.request_of(token) {
            Some(id) if id.caller.starts_with(FRONT_END) => {
                problem.with("request", id.key.to_string())
            }
            Some(_) | None => problem,
        }
    }

    /// Fails if the server is shutting down, and so grants no more locks.
    pub(super) fn grants(&self) -> HandlerResult<()> {
        if self.app.phase() == ShutdownPhase::Serving { Ok(()) } else { Err(Problem::closing()) }
    }

    /// Notes the command of the request for its log lines. A request that submits several commands
    /// is logged with its first one.
    pub(super) fn name_subject(&self, subject: impl FnOnce() -> CommandSubject) {
        if is_logged() {
            let _ = self.subject.get_or_init(subject);
        }
    }

    /// Checks whether the caller may submit the command `op`, after looking up the owners of the
    /// sessions and queue places that it names.
    pub(super) async fn check(&self, op: &Op) -> HandlerResult<()> {
        self.name_subject(|| CommandSubject::named_in(op));
        self.check_as(&self.grant, op).await
    }

    /// Checks whether the caller, with the grant that it has now, may still submit `op`.
    pub(super) async fn recheck(&self, op: &Op) -> HandlerResult<()> {
        let grant = self.caller.grant(&self.app.gate)?;
        if grant == self.grant { Ok(()) } else { self.check_as(&grant, op).await }
    }

    /// Waits until the caller may not submit `op` any more, and returns the reason.
    pub(super) async fn revoked(&self, op: &Op) -> Problem {
        let mut reloads = self.app.gate.follow_reloads();
        loop {
            if let Err(problem) = self.recheck(op).await {
                return problem;
            }
            if reloads.changed().await.is_err() {
                // The server has ended.
                return Problem::closing();
            }
        }
    }

    async fn check_as(&self, grant: &Grant, op: &Op) -> HandlerResult<()> {
        let mut actors = Vec::new();
        for owner in unnamed_owners(op) {
            actors.push(match self.known_actor(&owner) {
                Some(client) => client,
                None => Box::pin(self.actor(owner)).await?,
            });
        }
        grant.may_submit(op, &actors).map_err(|denial| Problem::denied(&denial))
    }

    /// Returns the owner of a session; `None` if no session has this id.
    pub(super) async fn owner_of(&self, id: SessionId) -> HandlerResult<Option<ClientId>> {
        match self.known_actor(&UnnamedOwner::Session(id)) {
            Some(client) => Ok(Some(client)),
            None => self.client_of(id).await,
        }
    }

    /// Returns the owner of a session if this server knows it, without a query to the engine. The
    /// server usually knows the owner, because most sessions are kept alive through the server that
    /// opened them.
    fn known_actor(&self, owner: &UnnamedOwner) -> Option<ClientId> {
        match owner {
            UnnamedOwner::Session(id) => self.app.chronicle.client_of(*id),
            UnnamedOwner::Place(..) => None,
        }
    }

    /// Returns the owner of a session or of a place in a queue.
    async fn actor(&self, owner: UnnamedOwner) -> HandlerResult<ClientId> {
        let reason = match owner {
            UnnamedOwner::Session(id) => match self.client_of(id).await? {
                Some(client) => return Ok(client),
                None => Reason::NoSession(id),
            },
            UnnamedOwner::Place(name, ticket) => {
                let view = self.view(&name).await?;
                let mut waiters = view.waiters.into_iter();
                match waiters.find(|waiter| waiter.ticket == ticket) {
                    Some(waiter) => return Ok(waiter.client),
                    None => Reason::NotInLine(name),
                }
            }
        };
        let refusal = Refusal { at: self.app.locks.now(), reason: Box::new(reason) };
        Err(RequestError::Refused(refusal).into())
    }

    /// Queries the owner of a session that this server does not know, because the session was
    /// opened on another node or before a restart, and remembers the owner.
    async fn client_of(&self, id: SessionId) -> HandlerResult<Option<ClientId>> {
        let client = self.session(id).await?.map(|session| session.client);
        if let Some(client) = &client {
            self.app.chronicle.open(id, client.clone());
        }
        Ok(client)
    }

    /// Returns the state of a session; `None` if no session has this id.
    pub(super) async fn session(&self, id: SessionId) -> HandlerResult<Option<SessionView>> {
        Ok(self.app.locks.session(id).await?)
    }
}

/// Returns the check of the permissions on held locks above the name that `op` creates, as a file
/// system checks the parent directory. `None` if the caller is not a local user, or if `op` creates
/// no name below another.
pub(super) fn parent_check(grant: &Grant, op: &Op) -> Option<ParentCheck> {
    let user = grant.user.as_ref()?;
    ParentCheck::of(op, |_| {
        let user = Arc::clone(user);
        move |name: &LockName, client: &ClientId, holders: &[Lease]| {
            user.may_make(name, client, holders).map_err(|denial| denial.to_string().into())
        }
    })
}

/// One method at a path: its handler, the operation whose permissions it needs, and its
/// documentation.
pub(super) struct Endpoint {
    pub(super) method: Method,
    pub(super) doc: EndpointDoc,
    /// The operation whose permissions a request needs.
    pub(super) operation: Operation,
    pub(super) run: fn(RequestContext) -> HandlerFuture,
}

/// The documentation of an endpoint in the `OpenAPI` document.
pub(super) struct EndpointDoc {
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) params: &'static [Param],
    /// Status code of a successful response.
    pub(super) code: u16,
    pub(super) schema: Schema,
    /// Status codes of error responses; all of them carry a problem document.
    pub(super) problems: &'static [u16],
}

/// Builds an endpoint.
pub(super) const fn endpoint(
    method: Method,
    operation: Operation,
    run: fn(RequestContext) -> HandlerFuture,
    doc: EndpointDoc,
) -> Endpoint {
    Endpoint { method, doc, operation, run }
}

/// Builds the documentation of an endpoint.
pub(super) const fn doc(
    id: &'static str,
    summary: &'static str,
    params: &'static [Param],
    code: u16,
    schema: Schema,
    problems: &'static [u16],
) -> EndpointDoc {
    EndpointDoc { id, summary, params, code, schema, problems }
}
