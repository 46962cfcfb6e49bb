//! The table of permissions that each operation needs, whichever front end receives the request.
//! `Grant::may` decides by this table alone.
//!
//! Decides whether a local user may create a name below a lock that is held.
//!
//! A lock `backup/x` appears inside the directory `backup`, and the holder of the lock `backup`
//! could not remove another user's `backup/x` from it. So the permission bits of a held lock decide
//! who may create names below it, as those of a directory do in other file systems. Below a name
//! that is not held every user may create names. The user id of a caller on another machine, or of
//! one with a bearer token, is unknown: only the name prefixes of its credentials restrict it.
//!
//! The table of rights to a guarded folder: for each request to a guard, through its view or
//! through the socket of a guard without a view, what root, the user who started the guard, the
//! owner of the tenure and any other user may do. Everything that the table does not allow is
//! refused.

use super::grant::Denial;
use crate::engine::{ClientId, FileAttrs, Lease, LockName, Op, OpKind, OpSubject};
use std::fmt;

/// The permissions that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The description of the operation in documentation and logs.
    pub name: &'static str,
    /// The client that the caller must be allowed to act for.
    pub client: ClientRule,
    /// The locks that the caller must be allowed to see and change.
    pub locks: LockRule,
    /// The right that the credentials must have.
    pub right: Right,
}

/// The client that the caller must be allowed to act for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRule {
    /// The caller may be any client, or none, because the operation acts for no client.
    Any,
    /// The client that the request names, and the owner of the session that it names, if any.
    Named,
    /// The owner of the session or of the place in the queue that the request names.
    Owner,
}

/// The locks that the caller must be allowed to see and change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockRule {
    /// The operation concerns no lock, so the caller needs no access to any lock.
    Any,
    /// The lock, or each of the locks, that the request names.
    Named,
    /// The operation concerns no particular lock. Its answer leaves out all locks that the caller
    /// may not see.
    Visible,
    /// The caller must be allowed to see and change every lock.
    All,
    /// The caller must be allowed to see and change every lock, or have the right `cluster`.
    AllOrCluster,
}

/// The right that credentials must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// The operation is public: the caller needs neither a right nor credentials.
    Public,
    /// The caller needs no particular right, but credentials that the server knows, if the server
    /// requires credentials.
    Known,
    /// The right to take a live lock from its holder.
    Steal,
    /// The same right of a caller who has credentials, or whom the kernel identifies at a Unix
    /// socket. At an open port of a server without credentials nobody has it.
    Admin,
    /// The right to add and remove cluster nodes, and to transfer leadership.
    Cluster,
    /// The right to call as a cluster node. No token and no client certificate has it.
    Peer,
}

macro_rules! operations {
    ($($operation:ident $name:literal $client:ident $locks:ident $right:ident;)+) => {
        /// An operation that a client can request from a front end.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Operation {
            $(#[doc = $name] $operation,)+
        }

        impl Operation {
            /// All operations, in the order of the table of permissions.
            pub const ALL: &[Self] = &[$(Self::$operation,)+];

            /// Returns the permissions that the operation needs.
            pub const fn rule(self) -> Rule {
                match self {
                    $(Self::$operation => Rule {
                        name: $name,
                        client: ClientRule::$client,
                        locks: LockRule::$locks,
                        right: Right::$right,
                    },)+
                }
            }
        }
    };
}

// The table of permissions. Each row has the name of an operation, its client rule, its lock rule,
// and the right that it needs.
operations! {
    ShowLock        "show a lock"                 Any    Named         Known;
    LookUpLock      "look up a lock"              Any    Visible       Known;
    ListLocks       "list locks"                  Any    Visible       Known;
    FollowEvents    "follow events"               Any    Visible       Known;
    ShowHistory     "show ended tenures"          Any    Visible       Known;
    CheckToken      "check a fencing token"       Any    Named         Known;
    Acquire         "acquire a lock or wait"      Named  Named         Known;
    Renew           "renew a lock"                Named  Named         Known;
    Annotate        "change a lock's note"        Named  Named         Known;
    Release         "release a lock"              Named  Named         Known;
    LeaveQueue      "leave a queue"               Owner  Named         Known;
    ReleaseAll      "end all of a client"         Named  Visible       Known;
    MoveLock        "move a hold to another lock" Named  Named         Known;
    Steal           "steal a lock"                Named  Named         Steal;
    ForgetName      "forget a remembered name"    Named  Named         Steal;
    OpenSession     "open a session"              Named  Any           Known;
    ShowSession     "show a session"              Owner  Any           Known;
    KeepAlive       "keep a session alive"        Owner  Any           Known;
    EndSession      "end a session"               Owner  Any           Known;
    Reset           "reset locks"                 Named  All           Admin;
    GrantNow        "end a hold-off"              Named  All           Steal;
    BackUp          "back up all locks"           Any    All           Steal;
    FollowAll       "register a follower"         Any    All           Known;
    ShowMetrics     "show metrics"                Any    All           Known;
    ShowCluster     "show the cluster"            Any    AllOrCluster  Known;
    ShowPending     "show pending requests"       Any    All           Known;
    TransferLeader  "transfer leadership"         Any    Any           Cluster;
    PromoteNode     "promote a node"              Any    Any           Cluster;
    RemoveNode      "remove a node"               Any    Any           Cluster;
    Invite          "invite a device"             Any    Any           Admin;
    ManageDevices   "list or remove devices"      Any    Any           Admin;
    RenewDevice     "renew a certificate"         Any    Any           Known;
    ShowCounts      "show counts"                 Any    Visible       Known;
    ShowTime        "show the time"               Any    Any           Known;
    ListNodes       "list the cluster's URLs"     Any    Any           Known;
    ShowCaller      "show the caller's rights"    Any    Any           Known;
    SendBatch       "send a batch"                Any    Any           Known;
    Authenticate    "show a credential"           Any    Any           Public;
    Join            "join by a code"              Any    Any           Public;
    ShowHealth      "show the server's health"    Any    Any           Public;
    ShowPage        "show the page for people"    Any    Any           Public;
    ShowDocument    "show the API document"       Any    Any           Public;
    CallPeer        "call as a node"              Any    Any           Peer;
}

/// A request reduced to the fields on which authorization depends: the operation, and the client
/// and the locks that it names.
#[derive(Debug, Clone, Copy)]
pub struct AccessRequest<'a> {
    /// The requested operation.
    pub operation: Operation,
    /// The client that the request names.
    pub client: Option<&'a ClientId>,
    /// The lock that the request names, or the source and the target of a move.
    pub locks: [Option<&'a LockName>; 2],
}

impl<'a> AccessRequest<'a> {
    /// Returns a request that names one lock and no client.
    pub const fn of_lock(operation: Operation, lock: &'a LockName) -> Self {
        Self { operation, client: None, locks: [Some(lock), None] }
    }

    /// Returns a request that names neither a client nor a lock.
    pub const fn of_nothing(operation: Operation) -> Self {
        Self { operation, client: None, locks: [None, None] }
    }

    /// Returns the request that corresponds to an engine command.
    pub fn of_op(op: &'a Op) -> Self {
        let OpSubject { kind, name, new_name, client, .. } = op.subject();
        Self { operation: Operation::of_kind(kind), client, locks: [name, new_name] }
    }
}

impl Operation {
    /// Returns the operation in the table of permissions to which a kind of command corresponds.
    const fn of_kind(kind: OpKind) -> Self {
        match kind {
            OpKind::Settle => Self::ShowTime,
            OpKind::Acquire => Self::Acquire,
            OpKind::Renew => Self::Renew,
            OpKind::Annotate => Self::Annotate,
            OpKind::Release => Self::Release,
            OpKind::Leave => Self::LeaveQueue,
            OpKind::Move => Self::MoveLock,
            OpKind::Steal => Self::Steal,
            OpKind::OpenSession => Self::OpenSession,
            OpKind::KeepAlive => Self::KeepAlive,
            OpKind::EndSession => Self::EndSession,
            OpKind::Forget => Self::ForgetName,
            OpKind::Reset => Self::Reset,
            OpKind::EndHoldOff => Self::GrantNow,
            #[cfg(feature = "planted-version")]
            OpKind::Planted => Self::LookUpLock,
        }
    }
}

impl fmt::Display for ClientRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Any => "-",
            Self::Named => "named",
            Self::Owner => "owner",
        })
    }
}

impl fmt::Display for LockRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Any => "-",
            Self::Named => "named",
            Self::Visible => "visible",
            Self::All => "all",
            Self::AllOrCluster => "all, or cluster",
        })
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Public => "none",
            Self::Known => "known",
            Self::Steal => "steal",
            Self::Admin => "admin",
            Self::Cluster => "cluster",
            Self::Peer => "node",
        })
    }
}

/// The permission bits for write and search, as they stand for "others".
const WRITE: u16 = 0o3;

/// The user at the other end of a Unix socket, as identified by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerUser {
    /// The effective user id of the peer.
    pub uid: u32,
    /// All groups of the peer, where the kernel reports them (Linux).
    pub groups: Option<Vec<u32>>,
    /// The process that has connected, if this process can see it.
    pub pid: Option<u32>,
}

/// A user of this machine, as identified by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalUser {
    /// The user id.
    pub uid: u32,
    /// All groups of the user. `None`: the groups are unknown, and no right follows from them.
    pub groups: Option<Vec<u32>>,
    /// The host parts of client ids (`laptop1` in `laptop1:alice`) under which the mounts of this
    /// machine act. Locks of these hosts count as locks of this machine.
    pub hosts: Vec<ClientId>,
}

impl LocalUser {
    /// Checks whether this user may create `name` as `client`. `holders` hold the nearest ancestor
    /// of `name` that is held.
    pub fn may_make(
        &self,
        name: &LockName,
        client: &ClientId,
        holders: &[Lease],
    ) -> Result<(), Denial> {
        let Some(first) = holders.first() else { return Ok(()) };
        let holds = holders.iter().any(|lease| lease.holder == *client);
        let may = holds || self.may_write(first);
        may.then_some(()).ok_or_else(|| Denial::Below(name.clone()))
    }

    /// Whether the permission bits of a held lock let this user create names below it. Uids of
    /// different machines are unrelated: for a lock of another machine, all users including root
    /// are "others", as with root squash on NFS.
    fn may_write(&self, lease: &Lease) -> bool {
        let attrs = lease.details.attrs();
        let bits = FileAttrs::permissions(attrs.file_type, attrs.mode);
        let writes = |bits: u16| bits & WRITE == WRITE;
        if !self.hosts.iter().any(|host| lease.holder.is_of_host(host)) {
            return writes(bits);
        }
        match &self.groups {
            _ if self.uid == 0 => true,
            _ if attrs.uid == self.uid => writes(bits >> 6),
            Some(groups) if groups.contains(&attrs.gid) => writes(bits >> 3),
            Some(_) => writes(bits),
            None => writes(bits >> 3) && writes(bits),
        }
    }
}

/// Whether [`LocalUser::may_make`] depends on the groups of the user if a lock is held by
/// `holders`.
pub fn depends_on_groups(holders: &[Lease]) -> bool {
    holders.first().is_some_and(|lease| {
        let attrs = lease.details.attrs();
        let bits = FileAttrs::permissions(attrs.file_type, attrs.mode);
        (bits >> 3) & WRITE != bits & WRITE
    })
}

/// How much of a request a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The user may make the whole request.
    Yes,
    /// The user may make the request, and sees no names of files unless the folder belongs to the
    /// user.
    Short,
    /// The user may make the request about things that belong to the user.
    Own,
    /// The user may do what the modes and ACLs of the files permit.
    Modes,
    /// The user may not make the request.
    No,
}

impl Extent {
    /// Whether the request may concern something. `is_own`: it belongs to the user.
    #[cfg(target_os = "linux")]
    pub(crate) const fn includes(self, is_own: bool) -> bool {
        match self {
            Self::Yes => true,
            Self::Own => is_own,
            Self::Short | Self::Modes | Self::No => false,
        }
    }

    /// Returns the word that the printed table of permissions has for this extent.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Short => "short",
            Self::Own => "own",
            Self::Modes => "modes",
            Self::No => "no",
        }
    }
}

/// The users who may make one kind of request of a guard, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolderRule {
    /// The request as a verb, as in "only root may ...".
    pub(crate) name: &'static str,
    /// The requests that do this: through the file `ctl` of a view, through the socket of a guard
    /// without a view, by reading a file in `.latchfs`, or by an act on a file in `.latchfs/locks`.
    pub(crate) requests: &'static [&'static str],
    /// The permission of root.
    pub(crate) root: Extent,
    /// The permission of the user who started the guard.
    pub(crate) guard: Extent,
    /// The permission of the owner of the tenure, if the tenure is not held for all programs.
    pub(crate) owner: Extent,
    /// The permission of any other user.
    pub(crate) other: Extent,
}

macro_rules! folder_acts {
    ($($act:ident $name:literal $root:ident $guard:ident $owner:ident $other:ident
        [$($request:literal)+];)+) => {
        /// The kinds of requests to a guard.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum FolderAct {
            $(#[doc = $name] $act,)+
        }

        impl FolderAct {
            /// All acts, in the order of the table.
            pub(crate) const ALL: &[Self] = &[$(Self::$act,)+];

            /// Returns the rights to the act.
            pub(crate) const fn rule(self) -> FolderRule {
                match self {
                    $(Self::$act => FolderRule {
                        name: $name,
                        requests: &[$($request,)+],
                        root: Extent::$root,
                        guard: Extent::$guard,
                        owner: Extent::$owner,
                        other: Extent::$other,
                    },)+
                }
            }
        }
    };
}

// The table of rights. Each row has what a request does; how much of that root, the user who
// started the guard, the owner of the tenure and any other user may do; and the requests.
folder_acts! {
    ShowState      "show the state"               Yes Yes Short Short
        ["ctl status" "socket status" "read status"];
    ReadRefusals   "read why changes were refused" Yes Own Own Own ["read why"];
    FollowEvents   "follow the events"            Yes Yes Short Short
        ["read events" "socket events"];
    ShowMissing    "show what is missing"         Yes Yes Short Short ["read missing"];
    WaitReady      "wait until it is ready"       Yes Yes Yes Yes ["read ready" "socket wait"];
    Take           "take the lock"                Yes Yes Yes No
        ["ctl take" "socket take" "locks create"];
    Renew          "renew the tenure"             Yes Yes Yes No ["locks renew"];
    Give           "give the lock up"             Yes Yes Yes Own
        ["ctl give" "socket give" "locks remove"];
    TakeAlong      "take the lock along"          Yes Yes No No ["ctl take-for" "socket take-for"];
    Steal          "steal an expired lock"        Yes Yes No No
        ["locks prepare" "locks steal" "locks remove-prepared"];
    Accept         "accept the folder as it is"   Yes Yes No No
        ["ctl accept" "ctl accept-from" "socket accept" "socket accept-from"];
    Use            "use the lock for a program"   Yes Yes Yes No ["ctl use" "socket use"];
    EndUse         "end a use of the lock"        Own Own Own Own ["ctl end-use" "socket end-use"];
    ListLost       "list lost files"              Yes Yes Own Own ["ctl lost"];
    RestoreLost    "restore a lost file"          Yes Yes Own Own ["ctl restore"];
    DropLost       "drop a lost file"             Yes Yes Own Own ["ctl drop"];
    ListSnapshots  "list snapshots"               Yes Yes Short Short ["ctl snapshot-list"];
    ShowSnapshot   "show a snapshot"              Yes Yes Short Short ["ctl snapshot-show"];
    ReadSnapshot   "read a snapshot"              Modes Modes Modes Modes ["read snapshots"];
    TakeSnapshot   "take a snapshot"              Yes Yes No No ["ctl snapshot-take"];
    VerifySnapshot "check a snapshot"             Yes Yes No No ["ctl snapshot-verify"];
    RemoveSnapshot "remove a snapshot"            Yes Yes No No ["ctl snapshot-remove"];
    ReadRecord     "read the lock record"         Yes Yes Yes Yes ["locks read"];
}

/// The owner of the current tenure, as seen from the user who makes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code))] // a tenure without a view has no owner
pub(crate) enum TenureOf {
    /// The tenure is held for the programs of this user, or of this login session, alone.
    Caller,
    /// The tenure is held for another login session of the same user.
    SameUser,
    /// There is no tenure, or it is held for all programs of the machine or for somebody else.
    Nobody,
}

/// A user of this machine who requests something of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolderUser {
    /// The uid of the caller, as the kernel names it.
    pub(crate) uid: u32,
    /// The uid of the guard's process.
    pub(crate) guard: u32,
    /// Whether the current tenure is the caller's.
    pub(crate) tenure: TenureOf,
}

impl FolderUser {
    /// Whether the user is root or has started the guard.
    #[cfg(target_os = "linux")]
    pub(crate) const fn is_administrator(self) -> bool {
        self.uid == 0 || self.uid == self.guard
    }

    /// Returns how much of an act the user may do.
    pub(crate) const fn extent(self, act: FolderAct) -> Extent {
        let rule = act.rule();
        if self.uid == 0 {
            rule.root
        } else if self.uid == self.guard {
            rule.guard
        } else if matches!(self.tenure, TenureOf::Caller) {
            rule.owner
        } else {
            rule.other
        }
    }

    /// Returns how much of an act the user may do, or a sentence that says who may if that is
    /// nothing.
    pub(crate) fn check(self, act: FolderAct) -> Result<Extent, String> {
        // There is one tenure at a time, so it is the user's own or not.
        let has_own = act != FolderAct::Give || self.tenure == TenureOf::SameUser;
        match self.extent(act) {
            Extent::No => Err(refusal(act)),
            Extent::Own if !has_own => Err(refusal(act)),
            extent => Ok(extent),
        }
    }

    /// Whether the answer to an act may name all files, also those in directories that the user may
    /// not read.
    pub(crate) fn sees_names(
        self,
        act: FolderAct,
        owner_of_folder: impl FnOnce() -> Option<u32>,
    ) -> bool {
        match self.extent(act) {
            Extent::Yes => true,
            Extent::Short => owner_of_folder() == Some(self.uid),
            Extent::Own | Extent::Modes | Extent::No => false,
        }
    }
}

/// Returns the sentence for a user who may not do something.
fn refusal(act: FolderAct) -> String {
    let FolderRule { name, owner, .. } = act.rule();
    match owner {
        Extent::No => format!("only root and the user who started the guard may {name}"),
        _ => format!(
            "only root, the user who started the guard and the owner of the tenure may {name}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Details, FileType, Lifetime, Ownership, SessionId, Token};
    use crate::time::Time;
    use std::sync::Arc;

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    /// Returns a lease on a directory that belongs to user 7 and group 70.
    fn held(holder: &str, mode: u16) -> Lease {
        let (file_type, mode) = (FileType::Directory, mode | FileAttrs::MODE_CHOSEN);
        let attrs = FileAttrs { file_type, mode, uid: 7, gid: 70, ..FileAttrs::default() };
        Lease {
            holder: client(holder),
            token: Token::named(1),
            hold: Ownership::Exclusive(None),
            life: Lifetime::Session(SessionId::named(1)),
            acquired_at: Time::ZERO,
            renewed_at: Time::ZERO,
            acquisition: 0,
            seat: None,
            details: Arc::new(Details::default().with_attrs(attrs)),
        }
    }

    fn user(uid: u32, groups: Option<&[u32]>) -> LocalUser {
        let groups = groups.map(<[u32]>::to_vec);
        LocalUser { uid, groups, hosts: vec![client("box"), client("box2")] }
    }

    #[track_caller]
    fn decides(user: &LocalUser, who: &str, lease: &Lease, expected: bool) {
        let name = LockName::parse("backup/x").expect("valid");
        let may = user.may_make(&name, &client(who), std::slice::from_ref(lease));
        let denied = Err(Denial::Below(name));
        assert_eq!(may, if expected { Ok(()) } else { denied }, "{user:?} as {who}: {lease:?}");
    }

    #[test]
    fn anybody_may_create_below_a_free_name() {
        let name = LockName::parse("backup/x").expect("valid");
        assert_eq!(user(8, None).may_make(&name, &client("box:bob"), &[]), Ok(()));
    }

    #[test]
    fn permission_bits_decide() {
        let (alice, bob) = (user(7, Some(&[71])), user(8, Some(&[80])));
        let (member, unknown) = (user(8, Some(&[80, 70])), user(8, None));
        for (mode, alices, bobs, members, unknowns) in [
            (0o755, true, false, false, false),
            (0o777, true, true, true, true),
            (0o775, true, false, true, false),
            (0o707, true, true, false, false),
            (0o077, false, true, true, true),
            (0o666, false, false, false, false),
        ] {
            let lease = held("box:alice", mode);
            // The clients `box:alice` and `box:alice2` both belong to the user id 7. The permission
            // bits restrict only `box:alice2`, since `box:alice` holds the lock.
            decides(&alice, "box:alice2", &lease, alices);
            decides(&alice, "box:alice", &lease, true);
            decides(&bob, "box:bob", &lease, bobs);
            decides(&member, "box:bob", &lease, members);
            decides(&unknown, "box:bob", &lease, unknowns);
            decides(&user(0, None), "box:root", &lease, true);
        }
        assert!(depends_on_groups(&[held("box:alice", 0o775)]));
        assert!(!depends_on_groups(&[held("box:alice", 0o755)]));
    }

    #[test]
    fn local_users_are_others_to_a_lock_of_another_machine() {
        let lease = held("boxes:alice", 0o755);
        decides(&user(7, None), "box:alice", &lease, false);
        decides(&user(0, None), "box:root", &lease, false);
        decides(&user(0, None), "box:root", &held("boxes:alice", 0o757), true);
        decides(&user(0, None), "box:root", &held("box2:alice", 0o755), true);
    }
}

#[cfg(test)]
mod folder_rights_tests {
    use super::*;
    use std::collections::HashSet;

    fn user(uid: u32, tenure: TenureOf) -> FolderUser {
        FolderUser { uid, guard: 5, tenure }
    }

    /// The acts of an administrator of the folder, which concern other users.
    const ADMINISTRATION: [FolderAct; 6] = [
        FolderAct::TakeAlong,
        FolderAct::Steal,
        FolderAct::Accept,
        FolderAct::TakeSnapshot,
        FolderAct::VerifySnapshot,
        FolderAct::RemoveSnapshot,
    ];

    #[cfg(target_os = "linux")]
    #[test]
    fn the_owner_of_a_tenure_is_no_administrator_of_the_folder() {
        let owner = user(6, TenureOf::Caller);
        for act in ADMINISTRATION {
            for uid in [0, 5] {
                assert_eq!(user(uid, TenureOf::Nobody).check(act), Ok(Extent::Yes), "{act:?}");
            }
            let refused = owner.check(act).expect_err("the folder is not the owner's");
            assert!(refused.starts_with("only root and the user who started"), "{refused}");
        }
        for act in [FolderAct::ListLost, FolderAct::RestoreLost, FolderAct::DropLost] {
            let extent = owner.extent(act);
            assert!(extent.includes(true) && !extent.includes(false), "{act:?}");
        }
    }

    #[test]
    fn nobody_has_more_rights_without_a_tenure_than_with_it() {
        let rank = |extent| match extent {
            Extent::No => 0,
            Extent::Own | Extent::Short | Extent::Modes => 1,
            Extent::Yes => 2,
        };
        for act in FolderAct::ALL {
            let rule = act.rule();
            assert!(rank(rule.owner) >= rank(rule.other), "{}", rule.name);
            assert!(rank(rule.guard) >= rank(rule.owner), "{}", rule.name);
            assert!(rank(rule.root) >= rank(rule.guard), "{}", rule.name);
        }
    }

    #[test]
    fn each_request_is_in_one_row() {
        let mut seen = HashSet::new();
        for request in FolderAct::ALL.iter().flat_map(|act| act.rule().requests) {
            assert!(seen.insert(request), "{request} is in two rows");
        }
    }

    #[test]
    fn a_tenure_is_given_up_by_its_owner_and_by_administrators() {
        for (uid, tenure, may) in [
            (0, TenureOf::Nobody, true),
            (5, TenureOf::Nobody, true),
            (6, TenureOf::Caller, true),
            (6, TenureOf::SameUser, true),
            (6, TenureOf::Nobody, false),
        ] {
            assert_eq!(user(uid, tenure).check(FolderAct::Give).is_ok(), may, "{uid} {tenure:?}");
        }
    }

    #[test]
    fn the_owner_of_the_folder_sees_the_names_of_files() {
        let sees = |uid, owner| {
            user(uid, TenureOf::Nobody).sees_names(FolderAct::ShowState, || Some(owner))
        };
        assert!(sees(0, 9) && sees(5, 9) && sees(6, 6) && !sees(6, 7));
    }
}
