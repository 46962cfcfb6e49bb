//! The HTTP server: the seed's API, the same for any lock, sessions, events, metrics, a page.
//!
//! Alone it names axum and hyper. Each request is decided through the one door, on the thread
//! that read it; no rule of locks is here.
//!
//! Where to look: `server` begins and ends it; `workers` are its threads, and `quiet` the one
//! for those who only keep a session alive; `connection` carries requests, with its limits;
//! `routes` is the table of what can be asked, from which the document is made, and by which
//! `dispatch` finds what a request asks for; `problem` is the table of errors. Who may do what is
//! said by [`access`](crate::auth).

mod parameters;
mod schema;
mod problem;
mod caller;
mod history;
mod app_state;
pub mod ca;
mod request_context;
mod grant_response;
mod listener;
mod options;
mod page;
mod metrics;
mod list;
mod health;
mod events;
mod keep_alive;
mod socket;
mod batch_endpoint;
mod connection;
mod event_replay;
mod lock_resource;
mod single_lock_api;
mod sessions;
mod routes;
mod dispatch;
mod openapi;
mod cluster;
mod backup_routes;
mod wait_for_lock;
mod workers;
mod server;

pub(crate) use batch_endpoint::batch_requests;
pub use listener::{Listen, UserGrants};
pub(crate) use routes::requests;
pub use server::{HttpConfig, HttpServer, HttpStartError};
