//! Counters of requests and refusals of a mount, the last refusals for `.latchfs/why`, and the
//! records of denied requests in the audit log.
//!
//! The last refusal of each client, for `.latchfs/why`. It is stored as values, and formatted when
//! the file is read.
//!
//! The single table that maps failures to errnos, depending on the operation of the program.

use crate::auth::Grant;
use crate::engine::{
    ClientId, Conflict, LockName, LockView, NameError, Phase, Reason, Refusal, RefusalKind, Way,
};
use crate::fuse::credentials::Caller;
use crate::service::{AuditEntry, LockService, RefusedRequest, RequestError};
use crate::time::Wall;
use kernel::file_system::Errno;
use kernel::handles::{Full, Named};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of errnos that are counted: more than Linux has.
const ERRNOS: usize = 134;

/// The counters and last refusals of one mount.
pub(crate) struct Refusals {
    last: LastRefusals,
    acts: [AtomicU64; Act::COUNT],
    errnos: [AtomicU64; ERRNOS],
    /// The lock service whose audit log has the denied requests, and the path of the mount.
    audited: Option<(Arc<dyn LockService>, String)>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            last: LastRefusals::default(),
            acts: [const { AtomicU64::new(0) }; Act::COUNT],
            errnos: [const { AtomicU64::new(0) }; ERRNOS],
            audited: None,
        }
    }
}

impl Refusals {
    /// Returns the counters of the mount at `dir`, which records denied requests in the audit log
    /// of `service`.
    pub(crate) fn audited(service: Arc<dyn LockService>, dir: &Path) -> Self {
        Self { audited: Some((service, dir.display().to_string())), ..Self::default() }
    }

    pub(crate) fn count_act(&self, act: Act) {
        self.acts[act as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_errno(&self, errno: Errno) {
        if let Some(count) = usize::try_from(errno.code()).ok().and_then(|n| self.errnos.get(n)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of requests of each kind of file operation.
    pub(crate) fn acts(&self) -> impl Iterator<Item = (Act, u64)> + '_ {
        Act::ALL.iter().map(|act| (*act, self.acts[*act as usize].load(Ordering::Relaxed)))
    }

    /// Returns how often each errno was returned, without errnos that were never returned.
    pub(crate) fn errnos(&self) -> impl Iterator<Item = (Errno, u64)> + '_ {
        let all = self.errnos.iter().enumerate();
        all.map(|(n, count)| (Errno::from_i32(n as i32), count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns the record of each client's last refusal.
    pub(crate) const fn last(&self) -> &LastRefusals {
        &self.last
    }

    /// Records a refusal of the lock service, or a missing answer. Returns the errno for the
    /// program.
    pub(crate) fn failed(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        failure: RequestError,
    ) -> Errno {
        let errno = errno_of(&failure, act);
        self.keep(caller, act, name, errno, RefusedBy::Service(failure))
    }

    /// Records a refusal by the file system itself. Returns the errno for the program.
    pub(crate) fn refused(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        errno: Errno,
        sentence: impl Into<String>,
    ) -> Errno {
        let kind = match errno.code() {
            libc::EPERM => RefusalKind::LockNotHeld,
            libc::EBUSY => RefusalKind::LockConflict,
            libc::EACCES => RefusalKind::Denied,
            libc::EMLINK | libc::ENOSPC => RefusalKind::Limit,
            _ => RefusalKind::Invalid,
        };
        self.keep(caller, act, name, errno, RefusedBy::FileSystem(kind, sentence.into()))
    }

    /// Records that a user has reached a limit. Returns the errno for the program.
    pub(crate) fn full(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        full: &Full,
    ) -> Errno {
        self.refused(caller, act, name, Errno::ENOSPC, full.to_string())
    }

    fn keep(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        errno: Errno,
        by: RefusedBy,
    ) -> Errno {
        match &by {
            RefusedBy::Service(failure) if failure.kind() == RefusalKind::Denied => {
                self.denied(caller, act.as_str(), &failure.to_string());
            }
            RefusedBy::FileSystem(RefusalKind::Denied, why) => {
                self.denied(caller, act.as_str(), why);
            }
            RefusedBy::Service(_) | RefusedBy::FileSystem(..) => {}
        }
        self.last.refused(&caller.client, act, name, errno, by);
        self.count_errno(errno);
        errno
    }

    /// Records in the audit log that a user lacks the right to an operation. The lock of another
    /// client, which the engine protects, is no matter of rights.
    pub(crate) fn denied(&self, caller: &Caller, what: &str, reason: &str) {
        let Some((service, address)) = &self.audited else { return };
        let Grant { credential, name: by, .. } = Grant::of_user(caller.uid, Vec::new(), false);
        let (credential, network) = (credential.as_str(), address);
        // The kernel names the user of each request.
        let (by, is_known) = (&*by, true);
        let refused = RefusedRequest { what, by, credential, is_known, address, network, reason };
        service.audit(&AuditEntry::Refused(refused));
    }
}

/// The maximum number of clients whose last refusal is kept: more than one machine has users, at
/// 300 bytes each.
const OWNERS_MAX: usize = 1_024;

/// The component that refused a request, with its reason.
#[derive(Debug)]
pub(crate) enum RefusedBy {
    /// The lock service refused, or did not answer in time.
    Service(RequestError),
    /// The file system refused the operation itself.
    FileSystem(RefusalKind, String),
}

#[derive(Debug)]
struct LastRefused {
    at: Wall,
    act: Act,
    name: Option<LockName>,
    errno: Errno,
    said: RefusedBy,
}

#[derive(Debug, Default)]
struct OwnersLast {
    refused: Option<LastRefused>,
    /// The lock that a lookup found after the refusal. If a name exists already, the kernel itself
    /// fails `mkdir`, `ln` and the like with EEXIST, and the daemon sees only the lookup that comes
    /// before them.
    met: Option<LockName>,
    turn: u64,
}

/// The last refusal of each client.
#[derive(Debug, Default)]
pub(crate) struct LastRefusals(Mutex<ByOwner>);

#[derive(Debug, Default)]
struct ByOwner {
    /// The client and the lock of the last successful lookup, which is nearly always by the same
    /// client as the one before. Only for another client does a lookup have to update the map
    /// `owners`.
    latest: Option<(ClientId, LockName)>,
    owners: Named<ClientId, OwnersLast>,
    turns: u64,
}

/// The answer of `.latchfs/why` to a client.
pub(crate) enum Why {
    /// No request of the client was refused.
    Nothing,
    /// A request was refused; the JSON value describes the refusal.
    Refused(Value),
    /// A lookup found a lock of this name, which may be why an entry could not be created.
    Met(LockName),
}

impl LastRefusals {
    /// Records a refusal to `client`.
    pub(crate) fn refused(
        &self,
        client: &ClientId,
        act: Act,
        name: Option<&LockName>,
        errno: Errno,
        said: RefusedBy,
    ) {
        let refused = LastRefused { at: Wall::now(), act, name: name.cloned(), errno, said };
        let mut kept = self.0.lock();
        kept.put_latest_away();
        let last = kept.of(client);
        last.met = None;
        last.refused = Some(refused);
    }

    /// Records that a lookup by `client` found a lock.
    pub(crate) fn met(&self, client: &ClientId, name: &LockName) {
        let mut kept = self.0.lock();
        match &mut kept.latest {
            Some((of, latest)) if of == client => *latest = name.clone(),
            _ => {
                kept.put_latest_away();
                kept.latest = Some((client.clone(), name.clone()));
            }
        }
    }

    /// Returns the last refusal of `client`, or the lock that a later lookup found.
    pub(crate) fn of(&self, client: &ClientId) -> Why {
        let mut kept = self.0.lock();
        kept.put_latest_away();
        match kept.owners.get(client) {
            Some(OwnersLast { met: Some(name), .. }) => Why::Met(name.clone()),
            Some(OwnersLast { refused: Some(refused), .. }) => {
                Why::Refused(refused.as_json(client))
            }
            _ => Why::Nothing,
        }
    }
}

impl ByOwner {
    fn put_latest_away(&mut self) {
        let Some((client, name)) = self.latest.take() else { return };
        match self.owners.get_mut(&client) {
            Some(last) => last.met = Some(name),
            None => self.of(&client).met = Some(name),
        }
    }

    fn of(&mut self, client: &ClientId) -> &mut OwnersLast {
        self.turns += 1;
        if self.owners.len() >= OWNERS_MAX && !self.owners.contains_key(client) {
            let oldest = self.owners.iter().min_by_key(|(_, last)| last.turn);
            if let Some(oldest) = oldest.map(|(client, _)| client.clone()) {
                self.owners.remove(&oldest);
            }
        }
        if !self.owners.contains_key(client) {
            self.owners.insert(client.clone(), OwnersLast::default());
        }
        let turn = self.turns;
        let last = self.owners.get_mut(client).expect("it was put there just now");
        last.turn = turn;
        last
    }
}

impl LastRefused {
    fn as_json(&self, client: &ClientId) -> Value {
        let (kind, message) = match &self.said {
            RefusedBy::Service(failure) => (failure.kind(), failure.to_string()),
            RefusedBy::FileSystem(kind, sentence) => (*kind, sentence.clone()),
        };
        json!({
            "client": client.as_str(),
            "at": self.at.to_string(),
            "operation": self.act.as_str(),
            "name": self.name.as_ref().map(LockName::as_str),
            "kind": kind.as_str(),
            "errno": name_of(self.errno),
            "message": message,
        })
    }
}

/// Returns the content of `.latchfs/why` for a client to which nothing was refused.
pub(crate) fn nothing(client: &ClientId) -> Value {
    json!({ "client": client.as_str(), "message": format!("no request was refused to {client}") })
}

/// Returns the content of `.latchfs/why` about a lock that a lookup found: the refusal that a
/// request for this lock would get now.
pub(crate) fn met(client: &ClientId, view: &LockView) -> Value {
    let Some(refusal) = conflict(client, view) else {
        let name = &view.name;
        let message = if view.has_below {
            only_a_way(name)
        } else {
            format!("lock '{name}' was in the way, and is free now; try again")
        };
        return json!({
            "client": client.as_str(),
            "name": view.name.as_str(),
            "message": message,
        });
    };
    json!({
        "client": client.as_str(),
        "at": Wall::now().to_string(),
        "operation": Act::Lookup.as_str(),
        "name": view.name.as_str(),
        "kind": refusal.kind().as_str(),
        "errno": name_of(Errno::EEXIST),
        "message": refusal.to_string(),
    })
}

/// Returns the error message for an operation on a directory that is no lock, and exists only
/// because of locks below it.
pub(crate) fn only_a_way(name: &LockName) -> String {
    format!(
        "'{name}' is not held: this directory exists only because of locks below it; \
         take the lock of that name with 'latchfs acquire {name}'"
    )
}

/// Adds detail to a refusal if another client than `client` holds the lock: until when that client
/// holds it, or that the lock is in grace.
pub(crate) fn in_the_way(
    client: &ClientId,
    view: &LockView,
    failure: RequestError,
) -> RequestError {
    let RequestError::Refused(refusal) = &failure else { return failure };
    match &*refusal.reason {
        Reason::NotHeld { holder: Some(_), .. } if view.held_by(client).is_none() => {
            conflict(client, view).map_or(failure, RequestError::Refused)
        }
        _ => failure,
    }
}

/// Returns the refusal that an acquire of the lock by `client` would get; `None` if the lock is
/// free and is granted.
fn conflict(client: &ClientId, view: &LockView) -> Option<Refusal> {
    let Some(holder) = view.holder() else {
        let (name, waiting) = (view.name.clone(), view.waiters.len());
        let reason = view.hold_off.map(|hold_off| Reason::HoldOff { name, hold_off, waiting })?;
        return Some(Refusal { at: view.at, reason: Box::new(reason) });
    };
    let lease = &holder.lease;
    let way = match holder.ends.phase(view.at) {
        _ if lease.acquired_at > view.at => Way::StealGrace { until: lease.acquired_at },
        _ if lease.holder == *client => Way::Own,
        Phase::Grace => Way::Grace,
        Phase::Held | Phase::Free => Way::Held,
    };
    let conflict = Conflict {
        name: view.name.clone(),
        holder: lease.holder.clone(),
        token: lease.token,
        mode: view.mode,
        ends: holder.ends,
        way,
        waiting: view.waiters.len(),
        previous: view.previous.clone(),
    };
    Some(Refusal { at: view.at, reason: Box::new(Reason::Conflict(conflict)) })
}

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
    use crate::engine::ClientId;
    use crate::fuse::refusals::Why;

    fn caller() -> Caller {
        Caller { uid: 7, gid: 7, pid: 1, client: ClientId::parse("host:a").expect("valid") }
    }

    #[test]
    fn a_refusal_is_counted_and_recorded_for_its_client() {
        let refusals = Refusals::default();
        refusals.count_act(Act::Mkdir);
        let errno = refusals.refused(&caller(), Act::Mkdir, None, Errno::EACCES, "no");
        assert_eq!(errno, Errno::EACCES);
        assert!(refusals.acts().any(|(act, count)| act == Act::Mkdir && count == 1));
        assert_eq!(refusals.errnos().collect::<Vec<_>>(), [(Errno::EACCES, 1)]);
        let Why::Refused(value) = refusals.last().of(&caller().client) else { panic!("kept") };
        assert_eq!((&value["kind"], &value["message"]), (&"E_DENIED".into(), &"no".into()));
    }
}

#[cfg(test)]
mod last_refusal_tests {
    use super::*;

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    #[test]
    fn each_client_reads_its_own_last_refusal() {
        let whys = LastRefusals::default();
        let say = |who: &str, text: &str| {
            let said = RefusedBy::FileSystem(RefusalKind::Invalid, text.into());
            whys.refused(&client(who), Act::Write, None, Errno::EINVAL, said);
        };
        say("a", "first");
        say("a", "second");
        say("b", "other");
        let Why::Refused(value) = whys.of(&client("a")) else { panic!("a was refused") };
        assert_eq!(value["message"], "second");
        assert_eq!((&value["kind"], &value["errno"]), (&json!("E_INVALID"), &json!("EINVAL")));
        assert!(matches!(whys.of(&client("c")), Why::Nothing));
    }

    #[test]
    fn lookup_replaces_an_older_refusal() {
        let whys = LastRefusals::default();
        let said = RefusedBy::FileSystem(RefusalKind::Invalid, "old".into());
        whys.refused(&client("a"), Act::Write, None, Errno::EINVAL, said);
        whys.met(&client("a"), &LockName::parse("build").expect("valid"));
        assert!(matches!(whys.of(&client("a")), Why::Met(name) if name.as_str() == "build"));
    }

    #[test]
    fn the_number_of_clients_is_bounded() {
        let whys = LastRefusals::default();
        for n in 0..OWNERS_MAX + 10 {
            let said = RefusedBy::FileSystem(RefusalKind::Invalid, "no".into());
            whys.refused(&client(&format!("c{n}")), Act::Write, None, Errno::EINVAL, said);
        }
        assert_eq!(whys.0.lock().owners.len(), OWNERS_MAX);
        assert!(matches!(whys.of(&client("c0")), Why::Nothing));
        assert!(matches!(whys.of(&client("c1033")), Why::Refused(_)));
    }
}

#[cfg(test)]
mod errno_tests {
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
