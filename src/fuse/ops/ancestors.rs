//! Who may make a name below a lock. Its holder could not remove a directory that others fill, so
//! the permission bits of a directory that is held decide, as in other file systems. A directory
//! that is only shown belongs to nobody, and everybody may make names in it.

use crate::fuse::file_attrs;
use crate::fuse::errno::Act;
use crate::fuse::posix_locks::{self, Request};
use crate::fuse::credentials::{Caller, groups_of};
use crate::fuse::shared::{Fs, Shared, views};
use crate::engine::{Lease, LockName, RefusalKind};
use fuser::{Errno, ReplyEmpty};

/// Write and search, for others.
const WRITE: u16 = 0o3;

/// Asks whether the caller may make `name`, as far as the nearest lock above it is concerned.
pub(crate) fn check(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    name: &LockName,
    then: impl FnOnce(&Fs, &Caller, Result<(), Errno>) + Send + 'static,
) {
    let above: Vec<_> = ancestors(name).collect();
    if above.is_empty() {
        return then(fs, caller, Ok(()));
    }
    let verdict = move |fs: &Shared, caller: &Caller, name: &LockName, may: bool| {
        let refuse = || fs.refuse_own(caller, act, Some(name), Errno::EACCES, sentence(name));
        may.then_some(()).ok_or_else(refuse)
    };
    if let Some(may) = may_here(fs, caller, &above) {
        return then(fs, caller, verdict(fs, caller, name, may));
    }
    let (caller, name) = (caller.clone(), name.clone());
    views(fs, &caller.clone(), act, &above, move |fs, views| {
        let may = views.map(|views| {
            let nearest = views.iter().find(|view| !view.holders.is_empty());
            nearest.is_none_or(|view| {
                may_write(fs, &caller, view.holders.iter().map(|holder| &holder.lease))
            })
        });
        then(fs, &caller, may.and_then(|may| verdict(fs, &caller, &name, may)));
    });
}

/// The same for a request through the control file: why not is said in a sentence.
pub(crate) fn check_said(
    fs: &Fs,
    caller: &Caller,
    name: &LockName,
    then: impl FnOnce(&Fs, &Caller, Result<(), (RefusalKind, String)>) + Send + 'static,
) {
    let asked = name.clone();
    check(fs, caller, Act::Control, name, move |fs, caller, allowed| {
        let allowed = allowed.map_err(|errno| {
            if errno == Errno::EACCES {
                (RefusalKind::Denied, sentence(&asked))
            } else {
                let sentence = format!("what lies above '{asked}' can't be seen now; try again");
                (RefusalKind::ConsistencyUnavailable, sentence)
            }
        });
        then(fs, caller, allowed);
    });
}

/// `flock`, fcntl: locks in the name of the user who opened the file, who may have to wait for a
/// name that is free by now.
pub(crate) fn lock(fs: &Fs, caller: &Caller, asked: &Request, sleep: bool, reply: ReplyEmpty) {
    let open = fs.opens.get(asked.fh).filter(|_| asked.kind != libc::F_UNLCK);
    let Some((open, name)) = open.as_ref().and_then(|open| Some((open, open.lock()?))) else {
        return locking::set(fs, caller, asked, sleep, reply);
    };
    let opener = Caller { client: open.client.clone(), uid: open.uid, ..caller.clone() };
    let (caller, asked) = (caller.clone(), *asked);
    check(fs, &opener, Act::Lock, name, move |fs, _, allowed| match allowed {
        Ok(()) => locking::set(fs, &caller, &asked, sleep, reply),
        Err(errno) => reply.error(errno),
    });
}

/// Why a name below another's lock can't be made.
fn sentence(name: &LockName) -> String {
    format!(
        "'{name}' lies below a lock of another user, whose mode lets nobody else make locks \
         there; choose another name, or have its holder open it by 'chmod a+rwx'"
    )
}

/// The names above a name, the nearest first.
fn ancestors(name: &LockName) -> impl Iterator<Item = LockName> {
    let above = |name: &LockName| LockName::parse(name.as_str().rsplit_once('/')?.0).ok();
    std::iter::successors(above(name), above)
}

/// Whether the nearest lock above lets the caller; `None`: what decides is elsewhere.
fn may_here(fs: &Fs, caller: &Caller, above: &[LockName]) -> Option<bool> {
    for name in above {
        let may = fs.locks.glance(name, |lock| {
            let leases = lock.leases();
            (!leases.is_empty()).then(|| may_write(fs, caller, leases.iter()))
        })?;
        if may.is_some() {
            return may;
        }
    }
    Some(true)
}

/// Whether the caller may make names below a lock that is held so. Root of another machine is
/// nobody here, as over NFS.
fn may_write<'a>(
    fs: &Shared,
    caller: &Caller,
    mut leases: impl Iterator<Item = &'a Lease> + Clone,
) -> bool {
    let mut holders = leases.clone();
    let Some(lease) = leases.next() else { return true };
    if holders.any(|lease| lease.holder == caller.client) {
        return true;
    }
    let looks = lease.details.looks();
    let local = fs.owners.is_local(&lease.holder);
    let bits = attr::permissions(looks.face, looks.mode);
    let writes = |bits: u16| bits & WRITE == WRITE;
    match local {
        true if caller.is_root() => true,
        true if looks.uid == caller.uid => writes(bits >> 6),
        // The group is asked for only where it makes a difference.
        true if writes(bits >> 3) != writes(bits) => {
            let own = looks.gid == caller.gid || groups_of(caller.pid).contains(&looks.gid);
            writes(if own { bits >> 3 } else { bits })
        }
        _ => writes(bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_come_nearest_first() {
        let name = |text| LockName::parse(text).expect("valid");
        let above: Vec<_> = ancestors(&name("a/b/c")).collect();
        assert_eq!(above, [name("a/b"), name("a")]);
        assert_eq!(ancestors(&name("a")).count(), 0);
    }
}
