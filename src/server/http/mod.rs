//! The HTTP server: the API for locks, sessions, events and metrics, the compatible single-lock
//! API, and a status page.
//!
//! Only this module uses axum and the server side of hyper. The lock service decides each request;
//! the module has no lock semantics of its own.
//!
//! Where to look: `response`, `problem` (the table of errors), `options`, `long_answer` and
//! `request_context` are shared by all handlers; an `endpoint` is one method at a path, and
//! `routes` is the table of all endpoints, by which `dispatch` finds the handler of a request;
//! `workers` are the threads; `connection` serves one connection within its limits; `server` starts
//! and stops the server; `fuzz` gives `tests/fuzz` access to the parsers. The rights of callers are
//! the subject of [`auth`](crate::auth).

mod response;
mod long_answer;
mod parameters;
mod schema;
mod problem;
mod caller;
mod history;
mod request_counts;
mod server_session;
mod app_state;
mod request_context;
mod options;
mod endpoint;
mod grant_response;
mod session_json;
mod event_replay;
mod lock_grant;
mod wait_for_lock;
mod list;
mod release_all;
mod previous;
mod lock_resource;
mod single_lock_api;
mod sessions;
mod events;
mod batch_endpoint;
mod health;
mod page;
mod cluster;
mod backup_routes;
mod metrics;
mod openapi;
mod routes;
mod access_log;
mod dispatch;
pub mod ca;
mod listener;
mod connection;
mod workers;
mod server;
#[doc(hidden)]
pub mod fuzz;

pub(crate) use batch_endpoint::batch_requests;
pub use listener::{Listen, PeerUser, UserGrants};
pub(crate) use routes::requests;
pub use server::{HttpConfig, HttpServer, HttpStartError};
