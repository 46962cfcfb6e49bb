//! The single table that maps failures to errnos, depending on the operation of the program.

use crate::engine::{NameError, Reason, RefusalKind};
use crate::fuse::kernel::values::Errno;
use crate::service::RequestError;

/// The file operation of a program. It determines the errno to which a refusal is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// A lookup of a name.
    Lookup,
    /// A read of attributes: `stat`.
    Stat,
    /// A change of times: `touch`, utimensat.
    Touch,
    /// A change of permissions or owner: chmod, chown.
    Chmod,
    /// A truncation: truncate, or an open with `O_TRUNC`.
    Truncate,
    /// A read of a symlink: readlink.
    Readlink,
    /// The creation of a directory: `mkdir`.
    Mkdir,
    /// An open with `O_CREAT` but without `O_EXCL`.
    Create,
    /// An open with `O_CREAT` and `O_EXCL`.
    CreateNew,
    /// The creation of a symlink: `ln -s`.
    Symlink,
    /// The creation of a hard link: `ln`.
    Link,
    /// A rename that may replace its target: `mv`.
    Rename,
    /// A rename that must not replace its target (`RENAME_NOREPLACE`).
    RenameNew,
    /// The removal of a file: `rm`.
    Unlink,
    /// The removal of a directory: `rmdir`.
    Rmdir,
    /// An open of an existing file.
    Open,
    /// A read of a file.
    Read,
    /// A write to a file.
    Write,
    /// A close of a file descriptor.
    Close,
    /// A lock on a file: flock, fcntl.
    Lock,
    /// A directory listing: `ls`.
    List,
    /// A read of extended attributes: getfattr.
    GetXattr,
    /// A change of an extended attribute: setfattr.
    SetXattr,
    /// A request written to the control file `.latchfs/ctl`.
    Control,
    /// An operation that locks don't support.
    Other,
}

impl Act {
    /// The number of variants of [`Act`].
    pub(crate) const COUNT: usize = Self::Other as usize + 1;

    /// All variants of [`Act`], in order of declaration.
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::Lookup,
        Self::Stat,
        Self::Touch,
        Self::Chmod,
        Self::Truncate,
        Self::Readlink,
        Self::Mkdir,
        Self::Create,
        Self::CreateNew,
        Self::Symlink,
        Self::Link,
        Self::Rename,
        Self::RenameNew,
        Self::Unlink,
        Self::Rmdir,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Close,
        Self::Lock,
        Self::List,
        Self::GetXattr,
        Self::SetXattr,
        Self::Control,
        Self::Other,
    ];

    /// Returns the name of the operation, as `.latchfs/why` and the metrics show it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Stat => "stat",
            Self::Touch => "touch",
            Self::Chmod => "chmod",
            Self::Truncate => "truncate",
            Self::Readlink => "readlink",
            Self::Mkdir => "mkdir",
            Self::Create => "create",
            Self::CreateNew => "create_new",
            Self::Symlink => "symlink",
            Self::Link => "link",
            Self::Rename => "rename",
            Self::RenameNew => "rename_new",
            Self::Unlink => "unlink",
            Self::Rmdir => "rmdir",
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Close => "close",
            Self::Lock => "lock",
            Self::List => "list",
            Self::GetXattr => "getxattr",
            Self::SetXattr => "setxattr",
            Self::Control => "control",
            Self::Other => "other",
        }
    }

    /// Whether the operation removes an entry, and so releases a lock.
    const fn removes(self) -> bool {
        matches!(self, Self::Unlink | Self::Rmdir)
    }
}

/// Returns the errno for a failed request: a refusal, or no answer from the lock service.
pub(crate) fn errno_of(failure: &RequestError, act: Act) -> Errno {
    if let RequestError::Refused(refusal) = failure {
        match &*refusal.reason {
            Reason::TextTooLong(_) => return Errno::EFBIG,
            // A lock that is free does not exist as a file, so removing or renaming it fails with
            // ENOENT.
            Reason::NotHeld { holder: None, .. } if act.removes() => return Errno::ENOENT,
            Reason::NotHeld { holder: None, .. } if matches!(act, Act::Rename | Act::RenameNew) => {
                return Errno::ENOENT;
            }
            // `touch` of a free lock creates its file. So times of a free lock are changed only
            // through a file that was opened before, by a program that has lost the lock since:
            // ESTALE.
            Reason::NotHeld { holder: None, .. } if act == Act::Touch => return Errno::ESTALE,
            _ => {}
        }
    }
    errno_of_kind(failure.kind(), act)
}

/// Returns the errno for a kind of refusal.
pub(crate) fn errno_of_kind(kind: RefusalKind, act: Act) -> Errno {
    match kind {
        RefusalKind::LockConflict => errno_of_conflict(act),
        RefusalKind::LockNotHeld => errno_of_not_held(act),
        RefusalKind::LockExpired | RefusalKind::FencingMismatch => Errno::ESTALE,
        RefusalKind::ClockSkewExceeded => Errno::from_i32(libc::ETIME),
        RefusalKind::ConsistencyUnavailable => Errno::ETIMEDOUT,
        RefusalKind::Invalid => Errno::EINVAL,
        RefusalKind::Limit => Errno::ENOSPC,
        RefusalKind::Denied => Errno::EACCES,
    }
}

fn errno_of_conflict(act: Act) -> Errno {
    match act {
        // Programs that lock by creating an entry expect EEXIST for a held lock, and retry.
        Act::Mkdir | Act::CreateNew | Act::Symlink | Act::Link | Act::RenameNew => Errno::EEXIST,
        Act::Unlink | Act::Rmdir | Act::Chmod => Errno::EPERM,
        Act::Lock => Errno::EAGAIN,
        Act::Lookup
        | Act::Stat
        | Act::Touch
        | Act::Truncate
        | Act::Readlink
        | Act::Create
        | Act::Rename
        | Act::Open
        | Act::Read
        | Act::Write
        | Act::Close
        | Act::List
        | Act::GetXattr
        | Act::SetXattr
        | Act::Control
        | Act::Other => Errno::EBUSY,
    }
}

fn errno_of_not_held(act: Act) -> Errno {
    match act {
        // The program wants to renew or change a lock that another client holds, so the file is
        // busy.
        Act::Touch | Act::Truncate | Act::Write | Act::Close | Act::SetXattr | Act::Create => {
            Errno::EBUSY
        }
        Act::Lookup
        | Act::Stat
        | Act::Lock
        | Act::Chmod
        | Act::Readlink
        | Act::Mkdir
        | Act::CreateNew
        | Act::Symlink
        | Act::Link
        | Act::Rename
        | Act::RenameNew
        | Act::Unlink
        | Act::Rmdir
        | Act::Open
        | Act::Read
        | Act::List
        | Act::GetXattr
        | Act::Control
        | Act::Other => Errno::EPERM,
    }
}

/// Returns the errno for an invalid name when a program creates or changes an entry.
pub(crate) fn errno_of_name(error: NameError) -> Errno {
    match error {
        NameError::TooLong => Errno::ENAMETOOLONG,
        NameError::Empty
        | NameError::NotUtf8
        | NameError::Control
        | NameError::Invisible
        | NameError::Dots
        | NameError::Reserved => Errno::EINVAL,
    }
}

/// Returns the errno for an invalid name in a lookup: such a name does not exist. The call that
/// creates an entry under it, which the kernel sends next, fails with EINVAL.
pub(crate) fn errno_of_lookup(error: NameError) -> Errno {
    match error {
        NameError::TooLong => Errno::ENAMETOOLONG,
        NameError::Empty
        | NameError::NotUtf8
        | NameError::Control
        | NameError::Invisible
        | NameError::Dots
        | NameError::Reserved => Errno::ENOENT,
    }
}

/// Returns the symbolic name of an errno.
pub(crate) fn name_of(errno: Errno) -> &'static str {
    match errno.code() {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EIO => "EIO",
        libc::EAGAIN => "EAGAIN",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::ENOTTY => "ENOTTY",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::ERANGE => "ERANGE",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ENODATA => "ENODATA",
        libc::ETIME => "ETIME",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ESTALE => "ESTALE",
        libc::ENOTSUP => "ENOTSUP",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, LockName, Refusal, Token};
    use crate::time::Time;

    fn refused(reason: Reason) -> RequestError {
        RequestError::Refused(Refusal { at: Time::ZERO, reason: Box::new(reason) })
    }

    #[test]
    fn errno_of_a_refusal_depends_on_the_act() {
        let of = |kind, act| errno_of_kind(kind, act).code();
        assert_eq!(of(RefusalKind::LockConflict, Act::Mkdir), libc::EEXIST);
        assert_eq!(of(RefusalKind::LockConflict, Act::Rename), libc::EBUSY);
        assert_eq!(of(RefusalKind::LockConflict, Act::RenameNew), libc::EEXIST);
        assert_eq!(of(RefusalKind::LockNotHeld, Act::Touch), libc::EBUSY);
        assert_eq!(of(RefusalKind::LockNotHeld, Act::Write), libc::EBUSY);
        assert_eq!(of(RefusalKind::LockNotHeld, Act::Unlink), libc::EPERM);
        assert_eq!(of(RefusalKind::LockExpired, Act::Write), libc::ESTALE);
        assert_eq!(of(RefusalKind::FencingMismatch, Act::Write), libc::ESTALE);
        assert_eq!(of(RefusalKind::Limit, Act::Mkdir), libc::ENOSPC);
        assert_eq!(of(RefusalKind::ClockSkewExceeded, Act::Mkdir), libc::ETIME);
        assert_eq!(of(RefusalKind::ConsistencyUnavailable, Act::Mkdir), libc::ETIMEDOUT);
        assert_eq!(of(RefusalKind::Denied, Act::Control), libc::EACCES);
    }

    #[test]
    fn some_reasons_override_the_errno_of_their_kind() {
        let name = LockName::parse("build").expect("valid");
        let client = ClientId::parse("c").expect("valid");
        let free = Reason::NotHeld { name: name.clone(), client, holder: None };
        assert_eq!(errno_of(&refused(free.clone()), Act::Rmdir).code(), libc::ENOENT);
        assert_eq!(errno_of(&refused(free.clone()), Act::Touch).code(), libc::ESTALE);
        assert_eq!(errno_of(&refused(free), Act::Write).code(), libc::EBUSY);
        let long = Reason::TextTooLong(name.clone());
        assert_eq!(errno_of(&refused(long), Act::Write).code(), libc::EFBIG);
        let over = Reason::Expired { name, token: Token::named(1) };
        assert_eq!(errno_of(&refused(over), Act::Write).code(), libc::ESTALE);
    }

    #[test]
    fn the_list_of_acts_is_in_order() {
        for (index, act) in Act::ALL.iter().enumerate() {
            assert_eq!(*act as usize, index, "{}", act.as_str());
        }
    }
}
