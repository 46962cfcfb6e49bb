//! What a control request needs of the front end that got it.

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

/// How a wait in a queue ends.
#[derive(Debug)]
pub(crate) enum ControlWaitEnd {
    /// The lock was granted.
    Granted(Tenure),
    /// The request failed.
    Failed(RequestError),
    /// The front end refused it by this answer.
    Refused(Value),
    /// The place in the queue is gone: its time was over, or its client was reset.
    Left,
    /// The caller is gone, and nobody reads the answer.
    Abandoned,
}

/// The front end for which a request is carried out, in the name of one client.
pub(crate) trait ControlHost: Sync {
    /// A process to which a lease can be bound.
    type Process: Send + Sync;

    /// Returns the client that asks.
    fn client(&self) -> &ClientId;
    /// Whether the caller may ask for this at all; a sentence says why not.
    fn allows(&self, operation: Operation) -> Result<(), String>;
    /// Describes the daemon or the connection to the server.
    fn about(&self) -> Map<String, Value>;
    /// Converts an engine time to wall-clock time.
    fn wall(&self, at: Time) -> Wall;
    /// Returns the process `pid`, if the caller may bind leases to it, or the answer that refuses.
    fn process(&self, name: &LockName, pid: u32) -> Result<Self::Process, Value>;
    /// Returns the process to which leases are bound if a request names none.
    fn default_process(&self) -> Option<Self::Process>;
    /// Returns the process as the details of a lease name it, if the daemon is to find it again.
    fn detail_of(&self, process: &Self::Process) -> Option<Process>;
    /// Returns how long a lease lasts, if it is bound to `process`, or to none.
    fn terms(&self, options: &LeaseOptions, process: Option<&Self::Process>) -> LeaseTerms;
    /// Returns the details of a new lease, for the caller or its parent process.
    fn details(&self, options: &LeaseOptions, for_parent: bool) -> Patch;
    /// Has a lease last as long as a process.
    fn bind(&self, key: LeaseKey, life: Lifetime, process: &Self::Process);
    /// Has a lease outlive the process that it was bound to. Returns its terms from now on.
    fn unbind(&self, token: Token) -> Option<LeaseTerms>;
    /// A tenure goes on under this token.
    fn continued(&self, name: &LockName, token: Token);
    /// Records that a request failed.
    fn failed(&self, name: &LockName, failure: RequestError);

    /// Has the service decide.
    fn decide(&self, op: Op) -> impl Future<Output = Result<Outcome, RequestError>> + Send;
    /// Shows a lock.
    fn view(&self, name: &LockName) -> impl Future<Output = Result<LockView, Unavailable>> + Send;
    /// Shows a page of locks.
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
