//! Extended attributes: single facts about a lock, for programs that don't want to parse JSON.

use crate::control::control_request::{checked_note, short};
use crate::engine::{Firm, LockView, Ttl};
use crate::fuse::credentials::Caller;
use crate::fuse::inodes::NodePlace;
use crate::fuse::mount_parts::Mount;
use crate::fuse::ops::lease_change;
use crate::fuse::ops::lease_change::{LeaseChange, TimesChange, meant_by_path};
use crate::fuse::refusals::Act;
use crate::status::lasting;
use kernel::file_system::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const PREFIX: &str = "user.latchfs.";

/// The facts about a lock that listxattr returns as attribute names, in this order.
const FACTS: [&str; 7] = ["token", "holder", "phase", "expires_in_ms", "lasts", "note", "waiters"];

/// Returns the value of the fact `name` about the lock; `None` if the lock has no such value now.
fn value_of(fact: &str, view: &LockView) -> Option<String> {
    if fact == "phase" {
        return Some(view.phase().as_str().to_owned());
    }
    if fact == "waiters" {
        return Some(view.waiters.len().to_string());
    }
    let holder = view.holder()?;
    match fact {
        "token" => Some(holder.lease.token.to_string()),
        "holder" => Some(holder.lease.holder.as_str().to_owned()),
        "expires_in_ms" => match lasting(holder) {
            None => Some(holder.ends.left(view.at).as_millis().to_string()),
            Some(_) => None,
        },
        "lasts" => lasting(holder),
        "note" => holder.lease.details.note().map(|note| &**note).map(str::to_owned),
        // listxattr omits `ttl`, but every attribute that can be set can also be read.
        "ttl" => Some(format!("{}ms", holder.ends.ttl.span().as_millis())),
        _ => None,
    }
}

/// Returns the errno of an absent attribute: ENODATA in the namespace `user.`, and ENOTSUP in all
/// other namespaces. After ENODATA for `system.posix_acl_access`, editors would try to set an ACL.
fn absent(name: &OsStr) -> Errno {
    if name.as_bytes().starts_with(b"user.") { Errno::ENODATA } else { Errno::ENOTSUP }
}

/// Returns the value of an attribute (getxattr).
pub(crate) async fn get(
    mount: &Mount,
    caller: &Caller,
    ino: u64,
    name: &OsStr,
) -> Result<Vec<u8>, Errno> {
    let fact = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    let (Some(fact), Some(node)) = (fact, mount.nodes.lock_node(ino)) else {
        return Err(absent(name));
    };
    let view = mount.nodes.view(caller, Act::GetXattr, &node.name).await?;
    value_of(fact, &view).map(String::into_bytes).ok_or(Errno::ENODATA)
}

/// Returns the names of the attributes, each followed by a NUL byte (listxattr).
pub(crate) async fn list(mount: &Mount, caller: &Caller, ino: u64) -> Result<Vec<u8>, Errno> {
    let Some(node) = mount.nodes.lock_node(ino) else { return Ok(Vec::new()) };
    let view = mount.nodes.view(caller, Act::GetXattr, &node.name).await?;
    let mut names = Vec::new();
    for fact in FACTS.into_iter().filter(|fact| value_of(fact, &view).is_some()) {
        names.extend_from_slice(PREFIX.as_bytes());
        names.extend_from_slice(fact.as_bytes());
        names.push(0);
    }
    Ok(names)
}

/// Sets an extended attribute (setxattr): `ttl` renews the lease with a new ttl, `note` sets
/// the lease's note, and all others are read-only.
pub(crate) async fn set(
    mount: &Mount,
    caller: &Caller,
    ino: u64,
    name: &OsStr,
    value: &[u8],
) -> Result<(), Errno> {
    let place = mount.nodes.place(ino);
    let node = match &place {
        Some(NodePlace::Lock(node)) => Some(node),
        _ => None,
    };
    let lock = node.map(|node| &node.name);
    let refusals = &mount.nodes.refusals;
    let refused = |(errno, sentence): (Errno, String)| {
        refusals.refused(caller, Act::SetXattr, lock, errno, sentence)
    };
    let wanted = change_of(name, value).map_err(refused)?;
    let Some(node) = node else {
        return Err(refused((Errno::EPERM, "only locks have a ttl and a note".to_owned())));
    };
    let meant = meant_by_path(node);
    lease_change::apply(mount, caller, Act::SetXattr, &meant, &wanted).await.map(drop)
}

/// Returns the change of the lease that setting an extended attribute requests.
fn change_of(name: &OsStr, value: &[u8]) -> Result<LeaseChange, (Errno, String)> {
    let Some(fact) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
        return Err((Errno::ENOTSUP, format!("only {PREFIX}ttl and {PREFIX}note can be set")));
    };
    let text = String::from_utf8_lossy(value);
    let text = text.trim_end_matches('\0');
    let wanted = match fact {
        "ttl" => Ttl::parse(text.trim()).map_err(|error| error.to_string()).map(|ttl| {
            let (renews, times) = (Some(Firm::Make), TimesChange::Reset);
            LeaseChange { ttl: Some(ttl), renews, times, ..LeaseChange::default() }
        }),
        "note" => checked_note(text)
            .map(|note| LeaseChange { note: Some(note), ..LeaseChange::default() }),
        _ => {
            let sentence = format!("{PREFIX}{fact} is for reading; set {PREFIX}ttl to renew");
            return Err((Errno::EPERM, sentence));
        }
    };
    wanted.map_err(|sentence| {
        let shown = short(text);
        (Errno::EINVAL, format!("{PREFIX}{fact} can't be '{shown}': {sentence}"))
    })
}

/// Returns the errno of removexattr: no attribute can be removed.
pub(crate) fn remove(name: &OsStr) -> Errno {
    match name.to_str() {
        Some(name) if name.starts_with(PREFIX) => Errno::EPERM,
        _ => absent(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_attribute_errno_depends_on_the_namespace() {
        assert_eq!(absent(OsStr::new("user.mime_type")).code(), libc::ENODATA);
        assert_eq!(absent(OsStr::new("system.posix_acl_access")).code(), libc::ENOTSUP);
        assert_eq!(absent(OsStr::new("security.capability")).code(), libc::ENOTSUP);
        assert_eq!(remove(OsStr::new("user.latchfs.token")).code(), libc::EPERM);
    }
}
