//! The effective user of this process.

/// Whether this process runs as root.
pub fn is_root() -> bool {
    own_uid() == 0
}

/// Returns the effective user id of this process.
#[allow(unsafe_code)]
pub(crate) fn own_uid() -> u32 {
    // SAFETY: geteuid only reads the effective user id, and can't fail.
    unsafe { libc::geteuid() }
}
