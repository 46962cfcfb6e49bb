//! The interface between control requests and the front end that received them.

use super::lease_options::LeaseOptions;
use crate::auth::permissions::Operation;
use crate::engine::{
    Acquire, ClientId, LeaseKey, LeaseTerms, Lifetime, LockName, LockView, Op, Outcome, Patch,
    Process, Tenure, Token,
};
use crate::service::{List, ListPage, RequestError, Unavailable};
use crate::time::{Span, Time, Wall};
use serde_json::{Map, Value};
use std::future::Future;

/// The result of a wait in a queue.
#[derive(Debug)]
pub(crate) enum ControlWaitEnd {
    /// The lock was granted.
    Granted(Tenure),
    /// The request failed.
    Failed(RequestError),
    /// The front end refused the request with this answer.
    Refused(Value),
    /// The place in the queue is lost: the wait timed out, or the client was reset.
    Left,
    /// The caller is gone, and nobody reads the answer.
    Abandoned,
}

/// The front end on whose behalf a request is executed, for one client.
pub(crate) trait ControlHost: Sync {
    /// A process to which a lease can be bound.
    type Process: Send + Sync;

    /// Returns the client that sent the request.
    fn client(&self) -> &ClientId;
    /// Checks whether the caller may request this operation at all; the error is a sentence that
    /// says why not.
    fn allows(&self, operation: Operation) -> Result<(), String>;
    /// Describes the daemon or the connection to the server.
    fn about(&self) -> Map<String, Value>;
    /// Converts an engine time to wall-clock time.
    fn wall(&self, at: Time) -> Wall;
    /// Returns the process `pid`, or an answer with the reason why the caller may not bind leases
    /// to it.
    fn process(&self, name: &LockName, pid: u32) -> Result<Self::Process, Value>;
    /// Returns the process to which leases are bound by default, if a request names none.
    fn default_process(&self) -> Option<Self::Process>;
    /// Returns the process in the form stored in the details of a lease, if the daemon must find it
    /// again after a restart.
    fn detail_of(&self, process: &Self::Process) -> Option<Process>;
    /// Returns the terms of a lease that is bound to `process`, or to no process.
    fn terms(&self, options: &LeaseOptions, process: Option<&Self::Process>) -> LeaseTerms;
    /// Returns the details of a new lease, for the caller or its parent process.
    fn details(&self, options: &LeaseOptions, for_parent: bool) -> Patch;
    /// Binds a lease to a process: the lease ends with the process.
    fn bind(&self, key: LeaseKey, life: Lifetime, process: &Self::Process);
    /// Unbinds a lease from its process, so that the lease outlives it. Returns the new terms of
    /// the lease.
    fn unbind(&self, token: Token) -> Option<LeaseTerms>;
    /// Records that a renewal has continued a tenure under this token.
    fn continued(&self, name: &LockName, token: Token);
    /// Records that a request failed.
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
