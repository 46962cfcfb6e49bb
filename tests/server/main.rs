//! Tests of the HTTP server from the outside, with the real program, real connections and curl.
//!
//! Each test starts a server of its own, so that tests run in parallel.

mod fuzz;

mod access;
mod admin;
mod docker;
mod doctor;
mod ending;
mod events;
mod examples;
mod guard_unit;
mod handovers;
mod health;
mod hold_off;
mod http2;
mod launchd;
mod limits;
mod listing;
mod locks;
mod logs;
mod mounting;
mod nodes;
mod page;
mod problems;
mod profiles;
mod prometheus;
mod scale;
mod sentences;
mod sessions;
mod several;
mod targets;
mod tls;
mod units;
mod waiting;
