//! The protocol of control requests, which `.latchfs/ctl` and commands with `--server` use: each
//! request and each answer is one JSON object.
//!
//! [`control_kind`] lists the requests and the permission that each needs, [`control_request`]
//! parses them, [`lease_options`] holds the options that requests and writes to lock files share.
//! [`control_executor`] executes a request for a [`ControlHost`]: the mount, or a command that
//! talks to a server without a mount.

pub(crate) mod control_kind;
pub(crate) mod lease_options;
pub(crate) mod control_request;
pub(crate) mod lock_page;
pub(crate) mod control_host;
pub(crate) mod control_executor;

#[cfg(target_os = "linux")]
pub(crate) use control_executor::WAITERS_SHOWN_MAX;
pub(crate) use control_executor::execute;
pub(crate) use control_host::{ControlHost, ControlWaitEnd};
pub(crate) use control_kind::ControlKind;
#[cfg(target_os = "linux")]
pub(crate) use control_kind::why_denied;
#[cfg(target_os = "linux")]
pub(crate) use control_request::parse;
pub(crate) use control_request::{ControlRequest, refusal};
