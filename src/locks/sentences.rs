//! Why there is no outcome, in sentences.

use super::{Failure, Unavailable};
use std::fmt;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Unavailable(unavailable) => unavailable.fmt(f),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State { why, .. } => write!(
                f,
                "the state directory can't be written ({why}), so nothing is granted or changed \
                 that a restart would forget; make room or mend it, and try again"
            ),
            Self::Closing => write!(f, "the daemon is being stopped; try again when it is back"),
            Self::NoAnswer { server } => write!(
                f,
                "the server {server} does not answer, so the outcome is unknown; see whether it \
                 runs and can be reached, and try again"
            ),
            Self::Log { why } => write!(
                f,
                "the log gives no answer ({why}), so the outcome is unknown; mend that, and try \
                 again when the node is back"
            ),
            Self::NoQuorum { why } => write!(
                f,
                "the nodes give no answer ({why}), so the outcome is unknown; see 'latchfs cluster \
                 status', and try again"
            ),
            Self::Denied { why } => f.write_str(why),
        }
    }
}

impl std::error::Error for Unavailable {}
