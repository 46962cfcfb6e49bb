//! Warnings at the start of `mount` and `serve`: no state is stored, or the kernel limits how long
//! a program can wait for a lock.

use super::output;

/// The file that holds the kernel's limit on a FUSE request in seconds, after which the kernel
/// aborts the mount; 0 means no limit.
const REQUEST_TIMEOUT: &str = "/proc/sys/fs/fuse/default_request_timeout";

/// Prints the warnings about storage and about the kernel's limit on requests, which a user should
/// read before relying on the mount or server.
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

/// Returns after how many seconds the kernel aborts a mount whose request has no answer, if it has
/// such a limit.
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
    fn request_timeout_is_parsed() {
        assert_eq!(limit_in("0\n"), None);
        assert_eq!(limit_in("15\n"), Some(15));
    }
}
