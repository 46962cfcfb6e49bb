//! The commands that a simulated client sends. Each has a request id, and a sequence number among
//! the requests of the client's session.

use super::client::SimClient;
use crate::engine::{Answer, Command, Digest, IdempotencyKey, Op, Reason, RequestId, RequestOrder};
use std::sync::Arc;

impl SimClient {
    /// Whether the request must be sent again because the engine has refused its sequence number
    /// `order` as late. If so, sets `order` to the next sequence number of the session. The request
    /// id stays the same, since an earlier copy of the request may have been applied.
    pub(super) fn reorder(&mut self, order: &mut Option<RequestOrder>, answer: &Answer) -> bool {
        let (Some(RequestOrder { session, .. }), Err(refusal)) = (*order, answer) else {
            return false;
        };
        match *refusal.reason {
            Reason::LateCopy(_) => {
                self.requests += 1;
                *order = self.order();
                true
            }
            Reason::NoSession(id) if id == session => {
                *order = None;
                true
            }
            _ => false,
        }
    }

    /// Returns the sequence number of the last request in the session, if there is a session.
    pub(super) fn order(&self) -> Option<RequestOrder> {
        let session = self.session.as_ref()?.id;
        Some(RequestOrder { session, number: self.requests })
    }

    /// Returns the command for the operation `op`. Its request id consists of the client's id and
    /// `key`, which no other command of the client may use.
    pub(super) fn command(&self, key: &Arc<str>, op: Op, order: Option<RequestOrder>) -> Command {
        let id = RequestId { caller: Arc::clone(&self.who), key: Arc::clone(key) };
        let request = IdempotencyKey { id, digest: Digest(0) };
        Command { request: Some(request), order, ..op.into() }
    }
}
