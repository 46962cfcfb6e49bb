//! The commands that a client sends: each under an id, and with its place among the requests of the
//! client's session.

use super::client::SimClient;
use crate::engine::{Answer, Command, Digest, IdempotencyKey, Op, Reason, RequestId, RequestOrder};
use std::sync::Arc;

impl SimClient {
    /// Whether to ask again, and then under another `order`: the answer says only that there was no
    /// place for the request, and an earlier copy may have been carried out.
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

    /// The place of the last request among those of the session.
    pub(super) fn order(&self) -> Option<RequestOrder> {
        let session = self.session.as_ref()?.id;
        Some(RequestOrder { session, number: self.requests })
    }

    /// A command under this key, which is for no other.
    pub(super) fn command(&self, key: &Arc<str>, op: Op, order: Option<RequestOrder>) -> Command {
        let id = RequestId { caller: Arc::clone(&self.who), key: Arc::clone(key) };
        let request = IdempotencyKey { id, digest: Digest(0) };
        Command { request: Some(request), order, ..op.into() }
    }
}
