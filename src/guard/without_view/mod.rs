//! The guard of a folder that has no view: programs change the folder directly, and a Unix socket
//! takes the requests of `latchfs guard`. Lock, sync barrier and markers are those of a view;
//! nothing keeps a program from writing without the lock.
//!
//! The modules in reading order:
//!
//! - `peer` says which user is at the other end of a socket.
//! - `connection` reads the request of a client and writes the answer, both with bounds.
//! - `event_board` wakes the threads that wait for news of the guard.
//! - `request_count` counts the requests that are under way.
//! - `plain_guard` carries out the requests.
//! - `listener` accepts the connections.

mod peer;
mod connection;
mod event_board;
mod request_count;
pub(crate) mod plain_guard;
pub(crate) mod listener;
