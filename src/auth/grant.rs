//! Grants: the rights that credentials confer. `Grant::may` checks a request against the table of
//! permissions, for every front end.

use super::permissions::{AccessRequest, ClientRule, LockRule, Operation, Right};
use crate::auth::permissions::LocalUser;
use crate::engine::{
    ClientId, Event, EventKind, LeaseTerms, LockName, Op, Ownership, SessionId, Ticket,
};
use std::fmt;
use std::sync::Arc;

/// The rights of an authenticated or anonymous caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The kind of credential that gave the caller this grant.
    pub credential: Credential,
    /// The name that stands for the caller's credential in log lines and error messages. It is the
    /// same whenever that credential is used.
    pub name: String,
    /// Clients that the caller may act for.
    pub clients: Vec<ClientPattern>,
    /// Name prefixes of the locks that the caller may see and change; `""` matches every lock.
    pub prefixes: Vec<String>,
    /// The name prefix of the caller's own locks at the daemon of a machine, if it has one there.
    pub own_names: Option<String>,
    /// Name prefixes of the locks that the caller may take from a live holder.
    pub steals: Vec<String>,
    /// Whether the caller may add and remove cluster nodes, and transfer leadership.
    pub cluster: bool,
    /// The local user behind the grant, if the kernel has identified it and the user's right to
    /// create names below other users' locks must be checked.
    pub user: Option<Arc<LocalUser>>,
}

/// The kind of credential behind a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// The caller has presented no credential, although the server requires one.
    Missing,
    /// The caller has presented no credential, and the server requires none.
    Unneeded,
    /// A bearer token.
    Token,
    /// A client certificate.
    Certificate,
    /// A local user, identified by the kernel: the peer of a Unix socket, or the caller in a mount.
    User,
}

impl Credential {
    /// Returns the name of the kind in the audit log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing | Self::Unneeded => "none",
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::User => "user",
        }
    }
}

/// Matches client ids: exactly one, or all with a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientPattern {
    /// The client with exactly this id.
    Exactly(String),
    /// Every client whose id begins with this text: the pattern `laptop1:*`, or `*` for all.
    Beginning(String),
}

/// A session, or a place in the queue of a lock, that a command names without naming the client
/// that owns it. Only the lock service knows that client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnnamedOwner {
    /// The client that owns the session with this id.
    Session(SessionId),
    /// The client whose request has this ticket in the queue of this lock.
    Place(LockName, Ticket),
}

/// How much of the lock space a grant may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visibility {
    /// The grant shows the whole lock, or the whole subtree of locks.
    All,
    /// The grant shows only names that begin with one of these prefixes, and the directories that
    /// lead to such names.
    Within(Vec<String>),
    /// The grant shows nothing, not even whether the lock exists.
    Nothing,
}

/// The reason for which a request is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// The operation requires credentials, and the request has none.
    Unknown,
    /// The operation acts for a client or on a lock, and the request names none.
    Unnamed,
    /// The grant may only read.
    ReadOnly,
    /// The grant may not act for this client.
    Client(ClientId),
    /// The session or queue place that the request names belongs to a client for which the grant
    /// may not act.
    Owner,
    /// The grant may not touch this lock.
    Lock(LockName),
    /// The grant may not steal.
    Steal,
    /// The grant may not see every lock.
    AllLocks,
    /// The grant may neither see every lock nor change the cluster.
    Nodes,
    /// The grant may not change the cluster. The fields are the kind of credential of the grant,
    /// and the grant's name.
    Cluster(Credential, String),
    /// The name lies below a lock of another user.
    Below(LockName),
    /// Only cluster nodes may perform the operation.
    Peer,
    /// Everybody can reach the server, which asks for no credentials.
    Anybody,
}

impl ClientPattern {
    /// Parses a pattern: a client id, or a prefix of client ids followed by `*`.
    pub fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(beginning) => Self::Beginning(beginning.to_owned()),
            None => Self::Exactly(text.to_owned()),
        }
    }

    /// Whether the pattern matches every client.
    pub(super) fn is_for_all(&self) -> bool {
        matches!(self, Self::Beginning(text) if text.is_empty())
    }

    /// Whether the pattern matches every client that `other` matches.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exactly(client), Self::Exactly(other)) => client == other,
            (Self::Exactly(_), Self::Beginning(_)) => false,
            (Self::Beginning(text), Self::Exactly(other) | Self::Beginning(other)) => {
                other.starts_with(text.as_str())
            }
        }
    }

    fn matches(&self, client: &ClientId) -> bool {
        match self {
            Self::Exactly(text) => client.as_str() == text,
            Self::Beginning(text) => client.as_str().starts_with(text.as_str()),
        }
    }
}

impl Grant {
    /// Returns the grant of any caller of a server that requires no credentials: unlimited rights.
    pub fn everything() -> Self {
        Self {
            credential: Credential::Unneeded,
            name: "everybody".to_owned(),
            clients: vec![ClientPattern::Beginning(String::new())],
            prefixes: vec![String::new()],
            own_names: None,
            steals: vec![String::new()],
            cluster: true,
            user: None,
        }
    }

    /// Returns the grant of an unauthenticated caller: it may only perform public operations.
    pub fn nothing() -> Self {
        Self {
            credential: Credential::Missing,
            name: "nobody".to_owned(),
            clients: Vec::new(),
            prefixes: Vec::new(),
            own_names: None,
            steals: Vec::new(),
            cluster: false,
            user: None,
        }
    }

    /// Returns the grant of the user with this id at the Unix socket of a server: root and the user
    /// of the server may do everything, others what they may without a socket; `None` if the server
    /// requires credentials of them.
    pub fn at_socket(uid: u32, own_uid: u32, requires_credentials: bool) -> Option<Self> {
        if uid == 0 || uid == own_uid {
            let (credential, name) = (Credential::User, format!("uid {uid}"));
            return Some(Self { credential, name, ..Self::everything() });
        }
        (!requires_credentials).then(Self::everything)
    }

    /// Returns the grant of a local user, identified by the kernel: to act for these clients, on
    /// all locks, and to steal if `steal` is set (for root and the user that runs the daemon).
    pub fn of_user(uid: u32, clients: Vec<ClientPattern>, steal: bool) -> Self {
        Self {
            credential: Credential::User,
            name: format!("uid {uid}"),
            clients,
            prefixes: vec![String::new()],
            own_names: None,
            steals: all_or_none(steal),
            cluster: false,
            user: None,
        }
    }

    /// Checks what the table of permissions requires for `operation` regardless of the arguments of
    /// a request: whether the caller is authenticated, has the right that the operation needs, and
    /// may see all locks if the operation needs that. A front end calls this before it parses a
    /// request.
    pub fn may_begin(&self, operation: Operation) -> Result<(), Denial> {
        let rule = operation.rule();
        let is_known = self.credential != Credential::Missing;
        match rule.right {
            Right::Public => return Ok(()),
            Right::Peer => return Err(Denial::Peer),
            _ if !is_known => return Err(Denial::Unknown),
            Right::Steal | Right::Admin if !self.may_steal_by(rule.locks) => {
                return Err(Denial::Steal);
            }
            Right::Admin if self.credential == Credential::Unneeded => {
                return Err(Denial::Anybody);
            }
            Right::Cluster if !self.cluster => {
                return Err(Denial::Cluster(self.credential, self.name.clone()));
            }
            Right::Known | Right::Steal | Right::Admin | Right::Cluster => {}
        }
        // A follower is registered for no client, and is a change.
        if self.is_read_only()
            && (rule.client != ClientRule::Any || operation == Operation::FollowAll)
        {
            return Err(Denial::ReadOnly);
        }
        match rule.locks {
            LockRule::All if !self.may_see_all() => Err(Denial::AllLocks),
            LockRule::AllOrCluster if !self.may_see_all() && !self.cluster => Err(Denial::Nodes),
            _ => Ok(()),
        }
    }

    /// Checks `request` against the table of permissions. `owners` are the clients that own the
    /// sessions and queue places that the request names, see [`unnamed_owners`].
    pub fn may(&self, request: &AccessRequest<'_>, owners: &[ClientId]) -> Result<(), Denial> {
        self.may_begin(request.operation)?;
        let rule = request.operation.rule();
        // The name of another owner is no business of the caller.
        let is_own = |owner: &ClientId| self.may_speak_as(owner).is_ok();
        if !owners.iter().all(is_own) {
            return Err(Denial::Owner);
        }
        match rule.client {
            ClientRule::Named => self.may_speak_as(request.client.ok_or(Denial::Unnamed)?)?,
            ClientRule::Owner if owners.is_empty() => return Err(Denial::Unnamed),
            ClientRule::Any | ClientRule::Owner => {}
        }
        if rule.locks == LockRule::Named {
            request.locks[0].ok_or(Denial::Unnamed)?;
            request.locks.iter().flatten().try_for_each(|lock| self.may_touch(lock))?;
            let may_steal = |lock: &&LockName| begins_with_one(lock.as_str(), &self.steals);
            if rule.right == Right::Steal && !request.locks.iter().flatten().all(may_steal) {
                return Err(Denial::Steal);
            }
        }
        Ok(())
    }

    /// Whether the caller may steal some of the locks that a request with this rule concerns.
    fn may_steal_by(&self, rule: LockRule) -> bool {
        if rule == LockRule::Named { !self.steals.is_empty() } else { self.may_steal_all() }
    }

    /// Whether the caller may take every live lock from its holder.
    pub fn may_steal_all(&self) -> bool {
        self.steals.iter().any(String::is_empty)
    }

    /// Whether the caller may submit every command and every query, except perhaps a reset.
    pub fn may_everything(&self) -> bool {
        let is_known = self.credential != Credential::Missing;
        let speaks_for_all = self.clients.iter().any(ClientPattern::is_for_all);
        is_known && self.may_steal_all() && self.may_see_all() && speaks_for_all
    }

    /// Whether the caller may see `event`.
    pub fn may_receive(&self, event: &Event) -> bool {
        match &event.what {
            EventKind::Granted { name, .. }
            | EventKind::Renewed { name, .. }
            | EventKind::Annotated { name, .. }
            | EventKind::Expired { name, .. }
            | EventKind::Ended { name, .. }
            | EventKind::Joined { name, .. }
            | EventKind::Left { name, .. } => self.may_see(name.as_str()),
            EventKind::SessionOpened { client, .. } | EventKind::SessionOver { client, .. } => {
                self.may_see_all() || self.may_speak_as(client).is_ok()
            }
            EventKind::SessionKept { .. } => self.may_see_all(),
            EventKind::HoldOffEnded { .. } => true,
        }
    }

    /// Returns the namespace of the caller's idempotency keys at one front end. Credentials of one
    /// name share it, so that a secret can be replaced while requests are being retried.
    pub fn caller(&self, front_end: &str) -> Arc<str> {
        format!("{front_end}:{}:{}", self.credential.as_str(), self.name).into()
    }

    /// Checks whether the caller may act for `client`.
    pub fn may_speak_as(&self, client: &ClientId) -> Result<(), Denial> {
        if self.clients.iter().any(|pattern| pattern.matches(client)) {
            Ok(())
        } else {
            Err(Denial::Client(client.clone()))
        }
    }

    /// Checks whether the caller may see and change the lock `name`.
    pub fn may_touch(&self, name: &LockName) -> Result<(), Denial> {
        let may = self.may_see(name.as_str()) && !name.is_own();
        if may { Ok(()) } else { Err(Denial::Lock(name.clone())) }
    }

    /// Whether the caller may see names that begin with `name`.
    pub fn may_see(&self, name: &str) -> bool {
        begins_with_one(name, &self.prefixes)
    }

    /// Returns how much of the lock `name` the caller may see. A parent of visible locks is visible
    /// only as a directory.
    pub fn sight_of(&self, name: &LockName) -> Visibility {
        if self.may_see(name.as_str()) {
            return Visibility::All;
        }
        Self::within(self.narrowed(&format!("{name}/")))
    }

    /// Returns which of the names that begin with `wanted` the caller may see.
    pub fn sight(&self, wanted: &str) -> Visibility {
        if self.may_see(wanted) {
            return Visibility::All;
        }
        Self::within(self.narrowed(wanted))
    }

    fn within(prefixes: Vec<String>) -> Visibility {
        if prefixes.is_empty() { Visibility::Nothing } else { Visibility::Within(prefixes) }
    }

    /// Returns the prefixes below `wanted` that the caller may see: sorted, none within another. A
    /// listing built from them is not influenced by names that the caller may not see.
    pub fn narrowed(&self, wanted: &str) -> Vec<String> {
        if self.may_see(wanted) {
            return vec![wanted.to_owned()];
        }
        let within = self.prefixes.iter().filter(|prefix| prefix.starts_with(wanted));
        let mut sorted: Vec<String> = within.cloned().collect();
        sorted.sort_unstable();
        sorted.dedup_by(|later, before| later.starts_with(before.as_str()));
        sorted
    }

    /// Whether the caller may see locks, and change nothing.
    pub fn is_read_only(&self) -> bool {
        self.credential == Credential::Token && self.clients.is_empty()
    }

    /// Whether the caller may see every lock.
    pub fn may_see_all(&self) -> bool {
        self.prefixes.iter().any(String::is_empty)
    }

    /// Returns the client that the grant names exactly, if it names exactly one client in this way.
    pub fn only_client(&self) -> Option<&str> {
        let mut exact = self.clients.iter().filter_map(|pattern| match pattern {
            ClientPattern::Exactly(client) => Some(client.as_str()),
            ClientPattern::Beginning(_) => None,
        });
        exact.next().filter(|_| exact.next().is_none())
    }

    /// Checks whether the caller may submit `op`. `owners` are the clients that own the sessions
    /// and queue places which [`unnamed_owners`] returns.
    pub fn may_submit(&self, op: &Op, owners: &[ClientId]) -> Result<(), Denial> {
        self.may(&AccessRequest::of_op(op), owners)
    }
}

/// Returns the prefixes of what somebody may steal who may steal everything or nothing.
pub(super) fn all_or_none(all: bool) -> Vec<String> {
    if all { vec![String::new()] } else { Vec::new() }
}

fn begins_with_one(name: &str, prefixes: &[String]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
}

/// Returns the sessions and queue places that `op` names without naming the clients that own them.
pub fn unnamed_owners(op: &Op) -> Vec<UnnamedOwner> {
    let of_hold = |hold: Ownership| hold.open().map(|open| UnnamedOwner::Session(open.session));
    let of_term = |term: Option<LeaseTerms>| match term {
        Some(LeaseTerms::Session(id)) => Some(UnnamedOwner::Session(id)),
        Some(LeaseTerms::Own(..)) | None => None,
    };
    match op {
        Op::KeepAlive(id) => vec![UnnamedOwner::Session(*id)],
        Op::EndSession(ask) => vec![UnnamedOwner::Session(ask.session)],
        Op::Leave(ask) => vec![UnnamedOwner::Place(ask.name.clone(), ask.ticket)],
        Op::Acquire(ask) => of_hold(ask.hold).into_iter().chain(of_term(Some(ask.term))).collect(),
        Op::Renew(ask) => of_term(ask.term).into_iter().collect(),
        Op::Steal(ask) => of_term(Some(ask.term)).into_iter().collect(),
        Op::Release(ask) => {
            ask.open.map(|open| UnnamedOwner::Session(open.session)).into_iter().collect()
        }
        #[cfg(feature = "planted-version")]
        Op::Planted(_) => vec![],
        Op::Settle
        | Op::Annotate(_)
        | Op::Move(_)
        | Op::OpenSession(_)
        | Op::Reset(_)
        | Op::EndHoldOff(_)
        | Op::Forget(_) => vec![],
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(client) => write!(
                f,
                "these credentials may not act as '{client}'; name one of their clients \
                 (--client), use those of '{client}', or add the client to them"
            ),
            Self::ReadOnly => write!(
                f,
                "these credentials may read, and change nothing; use others, or name clients in \
                 their entry in the file of --tokens"
            ),
            Self::Lock(name) => write!(
                f,
                "these credentials give no access to lock '{name}'; add its prefix to their 'locks'"
            ),
            Self::Steal => write!(
                f,
                "these credentials may not take a live lock from its holder; ask an administrator"
            ),
            Self::AllLocks => write!(
                f,
                "these credentials see only some locks, and this concerns all; use credentials \
                 that see every lock"
            ),
            Self::Nodes => write!(
                f,
                "these credentials see only some locks, and not the nodes; use credentials that \
                 see every lock, or a token with 'cluster = true'"
            ),
            Self::Cluster(Credential::Token, name) => write!(
                f,
                "the token '{name}' may not change the cluster; add 'cluster = true' to it in the \
                 file of --tokens, or use a token that has it"
            ),
            Self::Cluster(..) => write!(
                f,
                "these credentials may not change the cluster; use a token with 'cluster = true'"
            ),
            Self::Below(name) => write!(
                f,
                "'{name}' lies below a lock of another user, whose mode lets nobody else make \
                 locks there; choose another name, or have its holder open it by 'chmod a+rwx'"
            ),
            Self::Owner => write!(
                f,
                "these credentials are not for the owner of this session or queue place; use those \
                 with which it was opened"
            ),
            Self::Unknown => write!(
                f,
                "this socket is not for you: it is for root and the user of its server, and that \
                 of the machine's locks for all users, but not for a process of a container; use a \
                 server that takes credentials"
            ),
            Self::Unnamed => write!(f, "the request names no client or no lock"),
            Self::Peer => write!(f, "only the nodes of the cluster may do this"),
            Self::Anybody => write!(
                f,
                "a server without credentials resets locks at its Unix socket alone, for root and \
                 the user of the server; start it with --listen IP:PORT,unix:PATH and use \
                 --server unix:PATH, or say who may ask by --tokens or --client-ca"
            ),
        }
    }
}

impl std::error::Error for Denial {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{
        Acquire, EndSession, Forget, IfExists, LeaseKey, Leave, LeaveReason, Move, OpenSession,
        Patch, Release, Reset, ResetScope, SessionEnd, Steal, StealReason,
    };

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    fn laptop() -> Grant {
        Grant {
            credential: Credential::Token,
            name: "laptop1".to_owned(),
            clients: vec![ClientPattern::parse("laptop1"), ClientPattern::parse("laptop1:*")],
            prefixes: vec!["team/".to_owned(), "home".to_owned()],
            own_names: None,
            steals: Vec::new(),
            cluster: false,
            user: None,
        }
    }

    fn acquire(lock: &str, who: &str, term: LeaseTerms) -> Op {
        Op::Acquire(Acquire::new(name(lock), client(who), term))
    }

    #[test]
    fn a_server_without_credentials_resets_for_root_and_its_own_user_at_its_socket() {
        let reason = StealReason::parse("gone").expect("valid");
        let reset = Op::Reset(Reset::new(ResetScope::AllBut(vec![]), client("x"), reason));
        let may = |grant: Option<Grant>| grant.map(|grant| grant.may_submit(&reset, &[]));
        assert_eq!(may(Some(Grant::everything())), Some(Err(Denial::Anybody)));
        for requires_credentials in [false, true] {
            for uid in [0, 1_000] {
                assert_eq!(may(Grant::at_socket(uid, 1_000, requires_credentials)), Some(Ok(())));
            }
        }
        assert_eq!(may(Grant::at_socket(1_001, 1_000, false)), Some(Err(Denial::Anybody)));
        assert_eq!(may(Grant::at_socket(1_001, 1_000, true)), None);
    }

    #[test]
    fn a_grant_is_for_its_clients_and_locks() {
        let own = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
        let may = |lock, who| laptop().may_submit(&acquire(lock, who, own), &[]);
        assert_eq!(may("team/x", "laptop1"), Ok(()));
        assert_eq!(may("homes", "laptop1:alice"), Ok(()));
        assert_eq!(may("team/x", "laptop10"), Err(Denial::Client(client("laptop10"))));
        assert_eq!(may("team", "laptop1"), Err(Denial::Lock(name("team"))));
        let key = LeaseKey { name: name("other"), client: client("laptop1"), token: None };
        let release = Op::Release(Release::of(key.clone()));
        assert_eq!(laptop().may_submit(&release, &[]), Err(Denial::Lock(name("other"))));
        let from = LeaseKey { name: name("home"), ..key };
        let to = Op::Move(Move { from, to: name("other"), over: IfExists::Refuse });
        assert_eq!(laptop().may_submit(&to, &[]), Err(Denial::Lock(name("other"))));
        assert_eq!(Grant::everything().may_submit(&to, &[]), Ok(()));
        let ask = OpenSession { client: client("x"), ttl: None, grace: GRACE_DEFAULT };
        let open = Op::OpenSession(ask);
        assert_eq!(laptop().may_submit(&open, &[]), Err(Denial::Client(client("x"))));
        assert!(Grant::nothing().may_submit(&acquire("a", "a", own), &[]).is_err());
    }

    #[test]
    fn a_token_without_clients_reads_and_changes_nothing() {
        let grant = Grant { clients: vec![], prefixes: vec![String::new()], ..laptop() };
        let reads: Vec<_> = Operation::ALL
            .iter()
            .filter(|it| it.rule().right != Right::Public && grant.may_begin(**it).is_ok())
            .map(|it| it.rule().name)
            .collect();
        let allowed = [
            "show a lock",
            "look up a lock",
            "list locks",
            "follow events",
            "show ended tenures",
            "check a fencing token",
            "show metrics",
            "show the cluster",
            "show pending requests",
            "renew a certificate",
            "show counts",
            "show the time",
            "list the cluster's URLs",
            "show the caller's rights",
            "send a batch",
        ];
        assert_eq!(reads, allowed, "a batch is checked entry by entry, and a token renews nothing");
        assert_eq!(grant.may_begin(Operation::Acquire), Err(Denial::ReadOnly));
    }

    #[test]
    fn steal_needs_the_right_to_steal() {
        let (name, client) = (name("home"), client("laptop1"));
        let reason = StealReason::parse("why").expect("a reason");
        let (term, patch) = (LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT), Patch::default());
        let steal =
            Op::Steal(Steal { name, only: None, client, reason, term, patch, at_once: false });
        assert_eq!(laptop().may_submit(&steal, &[]), Err(Denial::Steal));
        let may = |steals: &[&str]| {
            let steals = steals.iter().map(|prefix| (*prefix).to_owned()).collect();
            Grant { steals, ..laptop() }.may_submit(&steal, &[])
        };
        assert_eq!((may(&[""]), may(&["team/", "home"])), (Ok(()), Ok(())));
        assert_eq!(may(&["team/"]), Err(Denial::Steal), "the right is for other locks");
    }

    #[test]
    fn session_or_queue_place_must_belong_to_the_caller() {
        let session = SessionId::named(7);
        let end = EndSession { session, end: SessionEnd::Closed };
        let leave = Leave { name: name("home"), ticket: Ticket::named(3), why: LeaveReason::Asked };
        for (op, leans_on) in [
            (Op::KeepAlive(session), UnnamedOwner::Session(session)),
            (Op::EndSession(end), UnnamedOwner::Session(session)),
            (
                acquire("home", "laptop1", LeaseTerms::Session(session)),
                UnnamedOwner::Session(session),
            ),
            (Op::Leave(leave), UnnamedOwner::Place(name("home"), Ticket::named(3))),
        ] {
            assert_eq!(unnamed_owners(&op), [leans_on]);
            assert_eq!(laptop().may_submit(&op, &[client("laptop1:bob")]), Ok(()));
            let denied = laptop().may_submit(&op, &[client("x")]);
            assert_eq!(denied, Err(Denial::Owner));
        }
        assert_eq!(
            unnamed_owners(&acquire("a", "a", LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT))),
            []
        );
    }

    #[test]
    fn parent_of_a_visible_lock_is_visible_as_a_directory() {
        let grant = laptop();
        let within = |prefix: &str| Visibility::Within(vec![prefix.to_owned()]);
        assert_eq!(grant.sight_of(&name("team/x")), Visibility::All);
        assert_eq!(grant.sight_of(&name("team")), within("team/"));
        assert_eq!(grant.sight_of(&name("tea")), Visibility::Nothing);
        assert_eq!(grant.sight_of(&name("other")), Visibility::Nothing);
        assert_eq!(grant.sight("team/"), Visibility::All);
        assert_eq!(grant.sight("hom"), within("home"));
        assert_eq!(
            grant.sight(""),
            Visibility::Within(vec!["home".to_owned(), "team/".to_owned()])
        );
        assert_eq!(grant.sight("other/"), Visibility::Nothing);
        assert_eq!(Grant::nothing().sight(""), Visibility::Nothing);
    }

    #[test]
    fn nobody_may_touch_the_names_that_latchfs_keeps_for_itself() {
        let own = LockName::parse_own(".latchfs/devices/laptop").expect("valid");
        let denied = Err(Denial::Lock(own.clone()));
        assert_eq!(Grant::everything().may_touch(&own), denied);
        let forget = Op::Forget(Forget { name: own, by: client("root") });
        assert_eq!(Grant::everything().may_submit(&forget, &[]), denied);
    }

    #[test]
    fn listing_is_narrowed_to_visible_prefixes() {
        let mut grant = laptop();
        assert_eq!(grant.narrowed(""), ["home", "team/"]);
        assert_eq!(grant.narrowed("te"), ["team/"]);
        assert_eq!(grant.narrowed("team/x"), ["team/x"]);
        assert_eq!(grant.narrowed("other"), [""; 0]);
        grant.prefixes.push("home/x".to_owned());
        assert_eq!(grant.narrowed("h"), ["home"]);
        assert_eq!(Grant::everything().narrowed("x"), ["x"]);
    }
}
