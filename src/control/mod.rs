//! The request protocol behind `.latchfs/ctl` and `--server`: one JSON object asks, one answers.
//!
//! [`control_kind`] names the requests and the permission that each needs, [`control_request`] takes
//! one apart, [`lease_options`] are the options that requests and writes to lock files share.
//! [`control_executor`] carries a request out for a [`ControlHost`]: the mount, or the command line
//! where it uses a server without one.

pub(crate) mod control_kind;
pub(crate) mod lease_options;
pub(crate) mod control_request;
pub(crate) mod lock_page;
pub(crate) mod control_host;
pub(crate) mod control_executor;

pub(crate) use control_executor::{WAITERS_SHOWN_MAX, execute};
pub(crate) use control_host::{ControlHost, ControlWaitEnd};
pub(crate) use control_kind::{ControlKind, why_denied};
pub(crate) use control_request::{ControlRequest, parse, refusal};
