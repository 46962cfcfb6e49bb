//! What an operation is about, for the code that treats all operations alike: the audit log, the
//! log, the permissions and the queues of requests.

use super::lease::{LeaseTerms, Ownership, SessionId, Token};
use super::name::{ClientId, LockName};

/// What an operation is about: see [`Op::subject`](super::command::Op::subject).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpSubject<'a> {
    /// The kind of the operation.
    pub kind: OpKind,
    /// The lock that the operation names; of a move, the name that the lock has before it.
    pub name: Option<&'a LockName>,
    /// The name that a move gives to the lock.
    pub new_name: Option<&'a LockName>,
    /// The client for which the operation acts, or which has ordered it.
    pub client: Option<&'a ClientId>,
    /// The token of the client's own tenure, if the operation names it.
    pub token: Option<Token>,
    /// The sessions that the operation needs: it is refused once one of them is over.
    pub sessions: [Option<SessionId>; 2],
    /// The locks whose visible state the operation may change.
    pub changes: ChangedLocks,
}

/// The locks whose visible state an operation may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangedLocks {
    /// The operation changes no lock.
    None,
    /// Only the locks that the operation names.
    Named,
    /// Any lock.
    Any,
}

macro_rules! kinds {
    ($($(#[$attribute:meta])* $kind:ident $word:literal;)+) => {
        /// The kind of an operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum OpKind {
            $($(#[$attribute])* #[doc = concat!("`", $word, "`")] $kind,)+
        }

        impl OpKind {
            /// Returns the word for the kind in answers and logs.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($(#[$attribute])* Self::$kind => $word,)+
                }
            }
        }
    };
}

kinds! {
    Settle "settle";
    Acquire "acquire";
    Renew "renew";
    Annotate "annotate";
    Release "release";
    Leave "leave";
    Move "move";
    Steal "steal";
    OpenSession "open-session";
    KeepAlive "keep-alive";
    EndSession "end-session";
    Reset "reset";
    Forget "forget";
    EndHoldOff "grant-now";
    #[cfg(feature = "planted-version")]
    Planted "planted";
}

impl<'a> OpSubject<'a> {
    /// Returns the subject of an operation that names nothing and changes no lock.
    pub(super) const fn of(kind: OpKind) -> Self {
        Self {
            kind,
            name: None,
            new_name: None,
            client: None,
            token: None,
            sessions: [None, None],
            changes: ChangedLocks::None,
        }
    }

    /// Returns the subject of an operation that changes the lock `name`.
    pub(super) const fn of_lock(kind: OpKind, name: &'a LockName) -> Self {
        Self { name: Some(name), changes: ChangedLocks::Named, ..Self::of(kind) }
    }

    /// Names the client for which the operation acts, or which has ordered it.
    pub(super) const fn by(self, client: &'a ClientId) -> Self {
        Self { client: Some(client), ..self }
    }

    /// Names the sessions on which the lease depends.
    pub(super) const fn needing(self, hold: Ownership, term: Option<LeaseTerms>) -> Self {
        let of_open = match hold.open() {
            Some(open) => Some(open.session),
            None => None,
        };
        let of_term = match term {
            Some(LeaseTerms::Session(id)) => Some(id),
            Some(LeaseTerms::Own(..)) | None => None,
        };
        Self { sessions: [of_open, of_term], ..self }
    }

    /// Whether the operation may change the visible state of the lock `name`.
    pub fn may_change(&self, name: &LockName) -> bool {
        match self.changes {
            ChangedLocks::None => false,
            ChangedLocks::Named => self.name == Some(name) || self.new_name == Some(name),
            ChangedLocks::Any => true,
        }
    }

    /// Whether the operation is refused once the session `id` is over.
    pub fn needs_session(&self, id: SessionId) -> bool {
        self.sessions.contains(&Some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IfExists, LeaseKey, Move, Op, OpenId, Release};

    #[test]
    fn a_move_changes_two_locks_and_the_release_of_an_open_file_any() {
        let name = |text: &str| LockName::parse(text).expect("valid");
        let client = ClientId::parse("a").expect("valid");
        let key = LeaseKey { name: name("x"), client, token: None };
        let changed = |op: &Op| ["x", "y", "z"].map(|lock| op.subject().may_change(&name(lock)));
        let moves = Op::Move(Move { from: key.clone(), to: name("y"), over: IfExists::Refuse });
        assert_eq!(changed(&moves), [true, true, false]);
        let open = OpenId { session: SessionId::named(1), number: 1 };
        assert_eq!(changed(&Op::Release(Release::of(key.clone()))), [true, false, false]);
        assert_eq!(changed(&Op::Release(Release::of_open_file(open, key))), [true; 3]);
        let alive = Op::KeepAlive(SessionId::named(1));
        assert_eq!(changed(&alive), [false; 3]);
        let needs = [1, 2].map(|id| alive.subject().needs_session(SessionId::named(id)));
        assert_eq!(needs, [true, false]);
    }
}
