//! The interface between control requests and the front end that received them: a mount, or a
//! command with `--server`.

use super::lease_options::LeaseOptions;
use crate::auth::permissions::Operation;
use crate::engine::{
    Acquire, ClientId, LeaseKey, LeaseTerms, LeaveReason, Lifetime, LockName, LockView, Op,
    Outcome, Patch, Process, Tenure, Token,
};
use crate::service::{List, ListPage, RequestError, Unavailable};
use crate::time::{Span, Time, Wall};
use serde_json::{Map, Value};
use std::future::Future;

/// The result of a wait in a queue.
#[derive(Debug)]
pub(crate) enum ControlWaitEnd {
    /// The lock was granted to the waiting request.
    Granted(Tenure),
    /// The lock service refused the request, or did not answer.
    Failed(RequestError),
    /// The front end itself refused the request; holds the answer to send.
    Refused(Value),
    /// The request left the queue; `None` if it is not known why.
    Left(Option<LeaveReason>),
    /// The program that sent the request is gone, so no answer is needed.
    Abandoned,
}

/// The front end that executes a control request, on behalf of one client.
pub(crate) trait ControlHost: Sync {
    /// A process to which a lease can be bound.
    type Process: Send + Sync;

    /// Returns the client that sent the request.
    fn client(&self) -> &ClientId;
    /// Checks whether the caller may request this operation on any lock. The error is a sentence
    /// that says why the caller may not.
    fn allows(&self, operation: Operation) -> Result<(), String>;
    /// Returns a description of the daemon, or of the connection to the server.
    fn about(&self) -> Map<String, Value>;
    /// Converts an engine time to wall-clock time.
    fn wall(&self, at: Time) -> Wall;
    /// Returns the process `pid`, or an answer with the reason why the caller may not bind leases
    /// to it.
    fn process(&self, name: &LockName, pid: u32) -> Result<Self::Process, Value>;
    /// Returns the process to which a lease is bound if its request names no process; `None` if the
    /// front end binds no such leases.
    fn default_process(&self) -> Option<Self::Process>;
    /// Returns the form of `process` that is stored in the details of a lease, if the daemon must
    /// find the process again after a restart.
    fn detail_of(&self, process: &Self::Process) -> Option<Process>;
    /// Returns the ttl and grace, or the session, of a lease that is bound to `process`, or to no
    /// process.
    fn terms(&self, options: &LeaseOptions, process: Option<&Self::Process>) -> LeaseTerms;
    /// Returns the details of a new lease, which name the caller or its parent process as the
    /// holder.
    fn details(&self, options: &LeaseOptions, for_parent: bool) -> Patch;
    /// Binds a lease to a process, so that the lease ends with the process.
    fn bind(&self, key: LeaseKey, life: Lifetime, process: &Self::Process);
    /// Unbinds a lease from its process, so that the lease outlives the process. Returns the new
    /// ttl and grace of the lease, if they change.
    fn unbind(&self, token: Token) -> Option<LeaseTerms>;
    /// Records that a client which held the lock `name` still holds it after a renewal, under the
    /// new fencing token `token`.
    fn continued(&self, name: &LockName, token: Token);
    /// Records that a request about the lock `name` failed.
    fn failed(&self, name: &LockName, failure: RequestError);

    /// Submits a command to the lock service.
    fn decide(&self, op: Op) -> impl Future<Output = Result<Outcome, RequestError>> + Send;
    /// Returns the state of a lock.
    fn view(&self, name: &LockName) -> impl Future<Output = Result<LockView, Unavailable>> + Send;
    /// Returns a page of locks.
    fn list(
        &self,
        query: List,
    ) -> impl Future<Output = Result<ListPage<LockView>, Unavailable>> + Send;
    /// Acquires a lock, or waits for it in its queue.
    fn wait(
        &self,
        ask: Acquire,
        patience: Option<Span>,
    ) -> impl Future<Output = ControlWaitEnd> + Send;
}
