//! The client: a lock service that sends requests to a server over HTTP, or to any node of a
//! cluster.
//!
//! No call waits longer than [`REPLY_DEADLINE`], or a reset than 10 s, unless it asks to be
//! repeated until it is answered. A request is retried within that time, and has one effect however
//! often it is sent: the server recognizes a batch by its number, and if the server is killed in
//! between, the engine recognizes a request that must not be repeated by its id.
//!
//! The modules in reading order:
//!
//! - `transport`, the connection to a server; `http_transport` over HTTP; `api_request`, `download`
//!   and `server_probe` for single requests of the command line; `failover` over several servers;
//!   `server_events` for the events that the command line follows.
//! - `server_clock`, `sequence_mapping` (event numbers of the server and local ones),
//!   `request_queue`, `request_keys`, `session_state`, `connection_state`; `shared_state`, the data
//!   that the threads share.
//! - Three threads, each with its own connection: `request_pipeline` sends requests in order;
//!   `session_keep_alive` keeps the session alive; `event_stream` reads the events.
//! - `remote`, the lock service.

pub mod http_transport;
pub mod api_request;
pub mod server_clock;
mod failover;
pub mod server_events;
mod request_queue;
mod shared_state;
mod session_keep_alive;
mod request_pipeline;
mod event_stream;
mod remote;

pub use crate::client::session_keep_alive::Terms;
pub use failover::{Failover, MakeServer, SERVERS_MAX};
pub use remote::Remote;
pub use request_queue::REPLY_DEADLINE;

#[cfg(test)]
mod tests;
