//! The HTTP server: the seed's API, the same for any lock, sessions, events, metrics, a page.
//!
//! It alone names axum and hyper. Each request is decided by the lock service, on the thread that
//! read it; no rule of locks is here.
//!
//! Where to look: `response`, `problem` (the table of errors), `options`, `body_memory` and
//! `request_context` are what all handlers share; `endpoint` is one method at a path, and `routes`
//! the table of all, from which `dispatch` finds the handler of a request; `workers` are the
//! threads; `connection` carries requests, with its limits; `server` starts and ends it.
//! [`auth`](crate::auth) says what a caller may do.

mod response;
mod parameters;
mod schema;
mod problem;
mod caller;
mod history;
mod request_counts;
mod wait_slots;
mod server_session;
mod body_memory;
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
mod dispatch;
pub mod ca;
mod listener;
mod connection;
mod workers;
mod server;

pub(crate) use batch_endpoint::batch_requests;
pub use listener::{Listen, PeerUser, UserGrants};
pub(crate) use routes::requests;
pub use server::{HttpConfig, HttpServer, HttpStartError};
