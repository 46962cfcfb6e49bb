//! Reads the extended attributes of files.

use rustix::io::Errno;
use std::ffi::OsStr;

/// The extended attribute with the ACL of a file.
pub(in crate::guard) const ACCESS_ACL: &str = "system.posix_acl_access";
/// The extended attribute with the ACL that new entries of a directory get.
pub(super) const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Whether an extended attribute is an ACL, which some file systems lack.
pub(in crate::guard) fn is_acl(name: &OsStr) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// The sizes of the buffers for extended attributes; the second is the kernel's maximum.
const ATTRIBUTE_SIZES: [usize; 2] = [1 << 10, 1 << 16];

fn filled(read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    for size in ATTRIBUTE_SIZES {
        let mut bytes = vec![0; size];
        match read(&mut bytes) {
            Err(Errno::RANGE) => {}
            length => {
                bytes.truncate(length?);
                return Ok(bytes);
            }
        }
    }
    Err(Errno::RANGE)
}

/// Returns the value of an extended attribute.
pub(crate) fn attribute(path: &str, name: &OsStr) -> rustix::io::Result<Vec<u8>> {
    filled(|bytes| rustix::fs::getxattr(path, name, bytes))
}

/// Returns the names of all extended attributes, each with a zero byte at its end.
pub(crate) fn attribute_names(path: &str) -> rustix::io::Result<Vec<u8>> {
    filled(|bytes| rustix::fs::listxattr(path, bytes))
}
