//! The protocol of control requests, which `.latchfs/ctl` and commands with `--server` use: each
//! request and each answer is one JSON object.
//!
//! [`control_request`] parses requests: their kinds, the permission that each needs, and the
//! options of a lease. [`control_executor`] executes a request for a host: the mount, or a command
//! that talks to a server without a mount.

pub(crate) mod control_request;
pub(crate) mod control_executor;

pub(crate) use crate::control::control_request::ControlKind;
#[cfg(target_os = "linux")]
pub(crate) use crate::control::control_request::why_denied;
pub(crate) use crate::control::control_request::{ControlHost, ControlWaitEnd};
#[cfg(target_os = "linux")]
pub(crate) use control_executor::WAITERS_SHOWN_MAX;
pub(crate) use control_executor::execute;
#[cfg(target_os = "linux")]
pub(crate) use control_request::parse;
pub(crate) use control_request::{ControlRequest, refusal};
