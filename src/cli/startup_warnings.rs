//! Warnings at the start of `mount` and `serve`: no state is kept, or the kernel limits waiting.

use super::output;

/// Requests that wait longer than this many seconds abort the mount; 0 is never.
const REQUEST_TIMEOUT: &str = "/proc/sys/fs/fuse/default_request_timeout";

/// Says what the user should know before relying on this mount.
pub(super) fn warn(of_state: Option<String>) {
    if let Some(warning) = of_state {
        output::say(&warning);
    }
    if let Some(seconds) = request_timeout() {
        output::say(&format!(
            "fs.fuse.default_request_timeout is {seconds}: a program that waits longer for a \
             lock ends the whole mount; set it to 0 by 'sysctl fs.fuse.default_request_timeout=0'"
        ));
    }
}

/// The seconds after which the kernel aborts a mount whose request has no answer, if it does.
pub(super) fn request_timeout() -> Option<u64> {
    limit_in(&std::fs::read_to_string(REQUEST_TIMEOUT).ok()?)
}

fn limit_in(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&seconds| seconds > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_waiting_is_found() {
        assert_eq!(limit_in("0\n"), None);
        assert_eq!(limit_in("15\n"), Some(15));
    }
}
