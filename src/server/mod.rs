//! server.

pub mod http;
pub mod line;
