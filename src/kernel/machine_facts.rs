//! Facts about this machine and its user that systems without FUSE need as well: the names of the
//! device and of its helper, the users that a mount serves, and the kernel's limit on the time of a
//! request.

use std::fmt;
use std::fs;

/// The device through which the kernel and a FUSE daemon communicate.
pub const DEVICE: &str = "/dev/fuse";
/// The setuid helper that mounts for users other than root.
pub const HELPER: &str = "fusermount3";

/// The users who may access the mount (`allow_other` or not).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Only the user who mounted the file system.
    Mounter,
    /// All users of the machine.
    All,
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    own_uid() == 0
}

/// Returns the effective user id of this process.
#[allow(unsafe_code)]
pub fn own_uid() -> u32 {
    // SAFETY: geteuid only reads the effective user id, and can't fail.
    unsafe { libc::geteuid() }
}

/// The directory of the settings.
const SETTINGS: &str = "/proc/sys/fs/fuse";

/// A limit, with the setting that gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTimeout {
    /// The name of the setting for `sysctl`.
    pub setting: &'static str,
    /// The limit in seconds.
    pub seconds: u64,
}

impl fmt::Display for RequestTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.setting, self.seconds)
    }
}

/// Returns the limit of a mount that is made now, if there is one.
pub fn request_timeout() -> Option<RequestTimeout> {
    let read = |name: &str| fs::read_to_string(format!("{SETTINGS}/{name}")).unwrap_or_default();
    limit_of(&read("default_request_timeout"), &read("max_request_timeout"))
}

/// Returns the limit that follows from the texts of both settings. The maximum also holds for a
/// mount that asks for no limit, as those of latchfs do.
fn limit_of(default: &str, max: &str) -> Option<RequestTimeout> {
    let limit = |setting, text: &str| {
        let seconds = text.trim().parse().ok().filter(|seconds| *seconds > 0)?;
        Some(RequestTimeout { setting, seconds })
    };
    let limits = [
        limit("fs.fuse.default_request_timeout", default),
        limit("fs.fuse.max_request_timeout", max),
    ];
    limits.into_iter().flatten().min_by_key(|limit| limit.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_of_both_settings_is_the_limit() {
        let text = |default, max| limit_of(default, max).map(|limit| limit.to_string());
        assert_eq!((text("0\n", "0\n"), text("", "")), (None, None));
        assert_eq!(text("15\n", "0\n").as_deref(), Some("fs.fuse.default_request_timeout is 15"));
        assert_eq!(text("0\n", "60\n").as_deref(), Some("fs.fuse.max_request_timeout is 60"));
        assert_eq!(text("90\n", "60\n").as_deref(), Some("fs.fuse.max_request_timeout is 60"));
    }
}
