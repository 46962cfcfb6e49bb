//! The protocol between a client of latchfs and its server.
//!
//! `batch_messages` are the messages; `batch_server` answers them, and knows the answers to batches
//! that are sent again.

pub mod batch_messages;
pub mod batch_server;
