//! The HTTP server: the API for locks, sessions, events and metrics, the compatible single-lock
//! API, and a status page.
//!
//! Only this module uses axum and the server side of hyper. The lock service decides each request;
//! the module has no lock semantics of its own.
//!
//! Where to look: `bodies` has what requests and answers say, and `request_context` is one request.
//! `handlers` has what each endpoint does, and `routes` the table by which a request finds its
//! handler. `app_state`, `history`, `server_session` and `access_log` are shared by all requests.
//! `connection` serves one connection within its limits, `ca` makes certificates,
//! and `home` keeps the invitations and devices of a server that machines join. `server`
//! starts and stops the server, and `idle_end` ends one that nobody needs. `fuzz` gives
//! `tests/fuzz` access to the parsers. The rights of callers are the subject of
//! [`auth`](crate::auth).

mod server_session;
mod bodies;
mod history;
pub mod ca;
mod home;
mod app_state;
mod request_context;
mod handlers;
mod access_log;
mod routes;
mod connection;
mod idle_end;
mod server;
#[doc(hidden)]
pub mod fuzz;

pub use crate::server::http::connection::{Listen, UserGrants};
pub(crate) use crate::server::http::handlers::batch_endpoint::batch_requests;
pub(crate) use crate::server::http::routes::route_table::requests;
pub use server::{HttpConfig, HttpServer, HttpStartError};
