//! The table of permissions that each operation needs, whichever front end receives the request.
//! `Grant::may` decides by this table alone.

use crate::engine::{ClientId, LockName, Op};
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
    ShowCounts      "show counts"                 Any    Visible       Known;
    ShowTime        "show the time"               Any    Any           Known;
    ListNodes       "list the cluster's URLs"     Any    Any           Known;
    ShowCaller      "show the caller's rights"    Any    Any           Known;
    SendBatch       "send a batch"                Any    Any           Known;
    Authenticate    "show a credential"           Any    Any           Public;
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
        let both = |operation, client: &'a ClientId, lock: &'a LockName| Self {
            operation,
            client: Some(client),
            locks: [Some(lock), None],
        };
        match op {
            Op::Settle => Self::of_nothing(Operation::ShowTime),
            Op::Acquire(ask) => both(Operation::Acquire, &ask.client, &ask.name),
            Op::Renew(ask) => both(Operation::Renew, &ask.key.client, &ask.key.name),
            Op::Annotate(ask) => both(Operation::Annotate, &ask.key.client, &ask.key.name),
            Op::Release(ask) => both(Operation::Release, &ask.key.client, &ask.key.name),
            Op::Leave(ask) => Self::of_lock(Operation::LeaveQueue, &ask.name),
            Op::Move(ask) => Self {
                locks: [Some(&ask.from.name), Some(&ask.to)],
                ..both(Operation::MoveLock, &ask.from.client, &ask.from.name)
            },
            Op::Steal(ask) => both(Operation::Steal, &ask.client, &ask.name),
            Op::OpenSession(ask) => {
                Self { client: Some(&ask.client), ..Self::of_nothing(Operation::OpenSession) }
            }
            Op::KeepAlive(_) => Self::of_nothing(Operation::KeepAlive),
            Op::EndSession(_) => Self::of_nothing(Operation::EndSession),
            Op::Forget(ask) => both(Operation::ForgetName, &ask.by, &ask.name),
            Op::Reset(ask) => Self { client: Some(&ask.by), ..Self::of_nothing(Operation::Reset) },
            #[cfg(feature = "planted-version")]
            Op::Planted(name) => Self::of_lock(Operation::LookUpLock, name),
            Op::EndHoldOff(ask) => {
                Self { client: Some(&ask.by), ..Self::of_nothing(Operation::GrantNow) }
            }
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
