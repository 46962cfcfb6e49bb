//! Starts what the integration tests run: latchfs and other programs, servers, mounts, guards,
//! machines (network namespaces) and clusters. All of it ends with the value that stands for it,
//! whatever the result of the test.
//!
//! Nothing here waits for a fixed time: programs report when they are ready, commands end or are
//! killed at a limit, and [`poll`] alone sleeps between two looks.
//!
//! - `command` runs programs to their end, `scratch` makes the directories of tests, and `disk`
//!   small disks.
//! - `server` is a server and requests to it, `http` and `line` are connections to it, and
//!   `loopback` is a cluster of servers.
//! - `mount` is a mount of the program itself or, by `backend`, of a server or a cluster; `python`
//!   has what the Python programs of tests share.
//! - `guard` is a guard and its view.
//! - `net` are machines that exchange packets, and `nodes` clusters on them.
//! - `client_history` is what the clients of a cluster saw, real or simulated, and `promises`
//!   checks that the cluster broke none.

#![allow(clippy::new_without_default)] // a `new` here starts or creates something

mod backend;
pub mod client_history;
mod command;
mod disk;
mod guard;
mod http;
mod line;
mod local_user;
mod loopback;
mod mount;
pub mod net;
pub mod nodes;
pub mod promises;
mod python;
mod scratch;
mod server;

pub use backend::Behind;
pub use command::{
    COMMAND_LIMIT, Output, close, drain, eventually, eventually_in_cluster, free_port, is_durable,
    latchfs, latchfs_path, lines, poll, python_tool, remove_tree, rounds, run, run_latchfs,
    run_within, signal, soon,
};
pub use disk::SmallDisk;
pub use guard::{Guard, Stopped, no_other_stops, pause, python, shell};
pub use http::HttpConnection;
pub use line::{LineConnection, Lines};
pub use local_user::{LocalUser, Squatter};
pub use loopback::Loopback;
pub use mount::{ALICE, BOB, Mount, Setup, json, memory_kb, mount, text, tools, users};
pub use python::{PRELUDE, dedent};
pub use scratch::{Scratch, mounts};
pub use server::{Event, Open, Reply, Server};
