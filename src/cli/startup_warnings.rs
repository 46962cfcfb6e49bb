//! Warnings at the start of `mount` and `serve`: no state is stored, or the kernel limits how long
//! a program can wait for a lock.

use super::output;
use crate::fuse::kernel::request_timeout::request_timeout;

/// Prints the warnings about storage and about the kernel's limit on requests, which a user should
/// read before relying on the mount or server.
pub(super) fn warn(of_state: Option<String>) {
    if let Some(warning) = of_state {
        output::warn(&warning);
    }
    if let Some(limit) = request_timeout() {
        output::warn(&format!(
            "{limit}: a program that waits longer for a lock ends the whole mount; set it to 0 by \
             'sysctl {}=0'",
            limit.setting
        ));
    }
}
