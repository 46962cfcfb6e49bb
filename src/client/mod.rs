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
//! - `http_transport` is the connection to a server, by HTTP and TLS; `api_request` makes single
//!   requests of the command line, `join_request` joins a server by a code, `failover` goes on at
//!   another server, and `server_events` are the events that the command line follows.
//! - `server_clock` estimates the server's time, `request_queue` holds requests without an answer,
//!   and `shared_state` is the data that the threads share.
//! - Three threads, each with its own connection: `request_pipeline` sends requests in order;
//!   `session_keep_alive` keeps the session alive; `event_stream` reads the events.
//! - `remote` is the lock service.
//!
//! [`line_client`] is a small client of the line protocol, for Rust programs.

pub mod line_client;
pub mod http_transport;
pub mod api_request;
pub(crate) mod join_request;
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
