//! The commands that a simulated client sends. Each has a request id, and a sequence number among
//! the requests of the client's session.

use super::client::SimClient;
use crate::engine::{
    AcknowledgedKeys, Answer, Command, Digest, IdempotencyKey, Op, Reason, RequestId, RequestOrder,
    SessionId,
};
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

    /// Returns the key of the last request. The keys of requests with an order begin with their
    /// session, and are in the order of the requests.
    pub(super) fn request_key(&self, order: Option<RequestOrder>) -> Arc<str> {
        match order {
            Some(RequestOrder { session, number }) => format!("{}{number:08}", prefix(session)),
            None => self.requests.to_string(),
        }
        .into()
    }

    /// Returns a command with the request id `key`, which no other command may use. It acknowledges
    /// the answers to all earlier requests of its session: the client sends none of them again.
    pub(super) fn command(&self, key: &Arc<str>, op: Op, order: Option<RequestOrder>) -> Command {
        let id = RequestId { caller: Arc::clone(&self.who), key: Arc::clone(key) };
        let request = IdempotencyKey { id, digest: Digest(0) };
        let from = order.map(|order| prefix(order.session));
        let from = from.filter(|from| key.starts_with(from)).map(Arc::from);
        let acknowledged = from.map(|from| AcknowledgedKeys { from, below: Arc::clone(key) });
        Command { order, acknowledged, ..Command::from(op).with_request(Some(request)) }
    }
}

fn prefix(session: SessionId) -> String {
    format!("{}-", session.as_u64())
}
