//! The HTTP server: the seed's API, the same for any lock, sessions, events, metrics, a page.
//!
//! Alone it names axum and hyper. Each request is decided through the one door, on the thread
//! that read it; no rule of locks is here.
//!
//! Where to look: `server` begins and ends it; `workers` are its threads, and `quiet` the one
//! for those who only keep a session alive; `connection` carries requests, with its limits;
//! `routes` is the table of what can be asked, from which the document is made, and by which
//! `dispatch` finds what a request asks for; `problem` is the table of errors. Who may do what is
//! said by [`access`](crate::access).

mod admin;
mod answer;
mod app;
pub mod ca;
mod call;
mod chronicle;
mod cluster;
mod connection;
mod dispatch;
mod door;
mod events;
mod health;
mod list;
mod listen;
mod lock;
mod metrics;
mod openapi;
mod options;
mod page;
mod problem;
mod quiet;
mod replay;
mod routes;
mod schema;
mod seed;
mod server;
mod sessions;
mod shape;
mod socket;
mod waiting;
mod who;
mod workers;

pub(crate) use door::batch_requests;
pub use listen::{Listen, Users};
pub(crate) use routes::requests;
pub use server::{HttpConfig, Server, StartError};
