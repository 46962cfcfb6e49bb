//! Tests of servers from the outside, with the real program and real connections. Each test starts
//! servers of its own, so that tests run in parallel.
//!
//! `LATCHFS_TESTS_DATA=1` has servers that may keep their state anywhere keep it in a data
//! directory. `contrib/test` runs the modules whose answers could depend on it a second time so,
//! with those of `durable`.

mod agent_hook;
mod durable;
mod http;
mod joining;
mod line;
mod machine_locks;
mod own_locks;
mod seeds;
