//! The HTTP server: the seed's API, the same for any lock, sessions, events, metrics, a page.
//!
//! Alone it names axum and hyper. Each request is decided through the one door, on the thread
//! that read it; no rule of locks is here.
//!
//! Where to look: `server` begins and ends it; `connection` carries requests, with its limits;
//! `routes` is the table of what can be asked, from which the router and the document are made;
//! `problem` is the table of errors; `access` says who may do what.

pub mod access;
mod app;
mod call;
mod connection;
mod health;
mod peers;
mod problem;
mod routes;
mod server;

pub use server::{HttpConfig, Server, StartError};
