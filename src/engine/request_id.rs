//! The ids and numbers of requests, by which the engine recognizes repeats and late copies of them.

use super::lease::SessionId;
use std::sync::Arc;

/// An idempotency key (rule 10): the id of a request, and a digest of its whole content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The id of the request.
    pub id: RequestId,
    /// Tells a repeat of the request from a different request under the same id.
    pub digest: Digest,
}

/// A request id that the caller chooses. Ids of different callers are independent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The front end and the credential that it has authenticated, at most
    /// [`super::limits::CALLER_BYTES_MAX`] bytes. The server sets it; it is never read from a
    /// request.
    pub caller: Arc<str>,
    /// The key that the caller chose, at most [`super::limits::REQUEST_KEY_BYTES_MAX`] bytes.
    pub key: Arc<str>,
}

/// 128 bits of a cryptographic hash over a whole request, computed by the front end that received
/// it. It covers the lock and the options as they were sent, before defaults and the state of the
/// lock complete them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u128);

/// A range of request keys. Their caller has received the answers, and repeats none of the
/// requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcknowledgedKeys {
    /// The first key of the range.
    pub from: Arc<str>,
    /// The first key after the range.
    pub below: Arc<str>,
}

/// The number of a request in the order in which one session sends its requests. A session has one
/// sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestOrder {
    /// The session of the sender.
    pub session: SessionId,
    /// The number of the request, which rises with each request from 1 on. The engine applies each
    /// number once, and refuses every number up to the last one applied: the sender has sent later
    /// requests since.
    pub number: u64,
}
