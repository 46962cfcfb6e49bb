//! Requests of commands to a server, without a mount: executes the requests that `.latchfs/ctl`
//! takes by calls to the server's lock service. A lease that lasts as long as this process is bound
//! to a session of the process, which a keep-alive thread renews.

use super::machine_locks::MachineLocks;
use super::mount_client::{LockClient, understand};
use crate::auth::permissions::Operation;
use crate::cli::connect::credential_options;
use crate::cli::exit::{CliError, CliResult};
use crate::client::http_transport::ServerAccess;
use crate::client::server_events::ServerEvents;
use crate::client::{Remote, Terms};
use crate::control::control_request::LeaseOptions;
use crate::control::{ControlHost, ControlRequest, ControlWaitEnd, execute, refusal};
use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use crate::engine::{
    Acquire, ClientId, LeaseKey, LeaseTerms, Lifetime, LockName, LockView, Op, OpenId, Outcome,
    Ownership, Patch, Process, QueuePolicy, RefusalKind, Token,
};
use crate::holder_id::Maker;
use crate::service::queue_waits::{Entered, QueueWaits, WaitEnd};
use crate::service::{
    List, ListPage, ListedNames, LockService, RequestError, Retry, SessionOwner, Unavailable,
};
use crate::time::{Span, Time, Wall};
use common::task::block_on;
use serde_json::{Map, Value};
use std::os::unix::process::parent_id;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};

/// The attempt number in an [`OpenId`], the id of an acquire attempt within a session. It is always
/// 1, because this process makes one acquire.
const NUMBER: u64 = 1;

/// The error message if a request was not sent to the server.
const NOT_ASKED: &str = "the server was not asked; try again";

/// The error message if the session has expired while this process waited, and with it the place in
/// the lock's queue.
const PLACE_LOST: &str =
    "the server was away for so long that the place in the queue is lost; try again";

/// The client of a server, used by one process.
pub(in crate::cli) struct RemoteClient {
    access: ServerAccess,
    client: ClientId,
    remote: OnceLock<Arc<Remote>>,
}

impl RemoteClient {
    pub(in crate::cli) fn new(access: ServerAccess, client: ClientId) -> Self {
        Self { access, client, remote: OnceLock::new() }
    }

    /// Returns the connection to the server, which the first request opens. If `session` is given,
    /// the connection also opens a session with that ttl and grace: leases in it last that long
    /// after this process has ended.
    fn remote(&self, session: Option<&LeaseOptions>) -> CliResult<&Arc<Remote>> {
        if let Some(remote) = self.remote.get() {
            return Ok(remote);
        }
        let terms = session.map(|wanted| Terms {
            client: self.client.clone(),
            ttl: wanted.ttl.unwrap_or(TTL_DEFAULT),
            grace: wanted.grace.unwrap_or(GRACE_DEFAULT),
        });
        let remote = credential_options::connect(&self.access, terms)?;
        Ok(self.remote.get_or_init(|| remote))
    }

    /// Opens the server's events, from event `since` on.
    pub(in crate::cli) fn events(&self, since: Option<u64>) -> CliResult<ServerEvents> {
        credential_options::events(&self.access, since)
    }

    /// Returns the executor of one request. Its connection to the server has a session if the lease
    /// or the queue place that the request asks for must end with this process.
    fn host(&self, request: &ControlRequest) -> CliResult<RemoteHost<'_>> {
        let session = match request {
            ControlRequest::Acquire(ask) if ask.options.pid.is_some() || request.waits() => {
                Some(&ask.options)
            }
            _ => None,
        };
        Ok(RemoteHost { client: &self.client, remote: self.remote(session)? })
    }
}

impl LockClient for RemoteClient {
    fn request(&self, request: &ControlRequest) -> CliResult<Value> {
        let mut request = request.clone();
        if let Some(machine) = MachineLocks::at(&self.access.url)? {
            machine.map_request(&mut request)?;
        }
        let host = self.host(&request)?;
        let answer = block_on(execute(&host, request));
        let mut answer = answer.ok_or_else(|| CliError::unavailable(NOT_ASKED))?;
        answer["you"] = self.client.as_str().into();
        understand(answer)
    }

    fn wait(&self, request: &ControlRequest) -> CliResult<Value> {
        self.request(request)
    }

    fn request_connected(&self, request: &ControlRequest) -> CliResult<Value> {
        match self.remote.get() {
            Some(_) => self.request(request),
            None => Err(CliError::unavailable(NOT_ASKED)),
        }
    }

    fn close(&self) {
        if let Some(remote) = self.remote.get() {
            remote.close();
        }
    }
}

/// Executes control requests by calls to a server, on behalf of this process.
struct RemoteHost<'a> {
    client: &'a ClientId,
    remote: &'a Arc<Remote>,
}

impl RemoteHost<'_> {
    /// Returns the id of this process's acquire attempt: its session and the attempt number. `None`
    /// if the process has no session.
    fn attempt(&self) -> Option<OpenId> {
        match self.remote.own_session() {
            Ok(SessionOwner::Kept(session)) => Some(OpenId { session, number: NUMBER }),
            _ => None,
        }
    }

    fn locks(&self) -> Arc<dyn LockService> {
        Arc::clone(self.remote) as _
    }
}

impl ControlHost for RemoteHost<'_> {
    /// A lease can only be bound to this process, because a server can't watch other processes.
    type Process = ();

    fn client(&self) -> &ClientId {
        self.client
    }

    fn allows(&self, _: Operation) -> Result<(), String> {
        // Every operation is allowed here, because the server checks the permissions of the
        // caller's credentials.
        Ok(())
    }

    fn about(&self) -> Map<String, Value> {
        let contact = self.remote.contact().as_str();
        Map::from_iter([("contact".to_owned(), contact.into())])
    }

    fn wall(&self, at: Time) -> Wall {
        self.remote.wall(at)
    }

    fn process(&self, _: &LockName, _: u32) -> Result<(), Value> {
        Ok(())
    }

    fn default_process(&self) -> Option<()> {
        None
    }

    fn detail_of(&self, (): &()) -> Option<Process> {
        None
    }

    fn terms(&self, options: &LeaseOptions, process: Option<&()>) -> LeaseTerms {
        match self.attempt().filter(|_| process.is_some()) {
            Some(open) => LeaseTerms::Session(open.session),
            None => LeaseTerms::Own(
                options.ttl.unwrap_or(TTL_DEFAULT),
                options.grace.unwrap_or(GRACE_DEFAULT),
            ),
        }
    }

    fn details(&self, options: &LeaseOptions, for_parent: bool) -> Patch {
        let pid = if for_parent { parent_id() } else { std::process::id() };
        let holder_id = format!("{}:{}", self.client, Maker::running(pid));
        let (holder_id, note) = (Some(holder_id.into()), options.note.clone());
        Patch { holder_id, note, ..Patch::default() }
    }

    fn bind(&self, _: LeaseKey, _: Lifetime, (): &()) {
        // A lease bound to this process needs no renewals: it is attached to the session of this
        // process, which the keep-alive thread keeps alive.
    }

    fn unbind(&self, _: Token) -> Option<LeaseTerms> {
        None
    }

    fn continued(&self, _: &LockName, _: Token) {}

    fn failed(&self, _: &LockName, _: RequestError) {}

    async fn decide(&self, op: Op) -> Result<Outcome, RequestError> {
        self.remote.submit(op.into(), Retry::Never).outcome().await
    }

    async fn view(&self, name: &LockName) -> Result<LockView, Unavailable> {
        self.remote.view(name, Retry::Never).await.map(|seen| seen.view)
    }

    async fn list(&self, query: List) -> Result<ListPage<LockView>, Unavailable> {
        self.remote.list(ListedNames::InUse, query).await
    }

    async fn wait(&self, mut ask: Acquire, patience: Option<Span>) -> ControlWaitEnd {
        ask.hold = Ownership::Exclusive(self.attempt());
        ask.line = QueuePolicy::Join(patience);
        let term = ask.term;
        let waits = QueueWaits::new(self.locks());
        let (on_end, end) = channel();
        let notify_end = move |end| {
            // The send fails only if the receiver is gone: this function drops it early if the lock
            // was granted at once or the request was refused.
            let _ = on_end.send(end);
        };
        let place = match waits.enter(ask, None, notify_end).await {
            Ok(Ok(Entered::Waits(place))) => place,
            Ok(Ok(Entered::Decided(Outcome::Granted(tenure) | Outcome::Renewed(tenure)))) => {
                return ControlWaitEnd::Granted(tenure);
            }
            Ok(Ok(Entered::Decided(_))) => return ControlWaitEnd::Abandoned,
            Ok(Err(refusal)) => return ControlWaitEnd::Failed(RequestError::Refused(refusal)),
            Err(why) => return ControlWaitEnd::Failed(RequestError::Unavailable(why)),
        };
        let end = end.recv().unwrap_or(WaitEnd::Unknown);
        place.claim();
        match end {
            WaitEnd::Granted(grant) => ControlWaitEnd::Granted(grant.tenure(term)),
            WaitEnd::Left(why) => ControlWaitEnd::Left(Some(why)),
            WaitEnd::Unknown => {
                ControlWaitEnd::Refused(refusal(RefusalKind::ConsistencyUnavailable, PLACE_LOST))
            }
        }
    }
}
