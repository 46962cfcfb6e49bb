//! Who may do what: one pure function over what is asked of the engine, the same for every edge
//! that others can reach.
//!
//! Where to look: `gate` who asks, by `tokens` or a certificate (`tls`); `peers` how many may be
//! connected, `listen` how many at once.

mod gate;
pub(crate) mod listen;
pub(crate) mod peers;
pub(crate) mod tls;
mod tokens;

pub use gate::{Credentials, CredentialsError, Gate, Unknown};
pub use tls::{TlsError, TlsFiles};
pub use tokens::TokensError;

use crate::engine::{ClientId, Hold, LockName, Op, SessionId, Term, Ticket};
use std::fmt;
use std::sync::Arc;

/// What a caller may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// What it is called in the log and in refusals.
    pub name: String,
    /// The clients that it may speak as.
    pub clients: Vec<Pattern>,
    /// It may see and touch locks whose names begin with one of these; `""` is every lock.
    pub prefixes: Vec<String>,
    /// Whether it may take a live lock from its holder.
    pub steal: bool,
}

/// Which clients: one, or all that begin so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This one.
    Exactly(String),
    /// Whatever begins so: `laptop1:*`, `*`.
    Beginning(String),
}

/// What a command leans on that does not say whose it is. Only the door knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Anonymous {
    /// A session.
    Session(SessionId),
    /// A place in a line.
    Place(LockName, Ticket),
}

/// How much of something may be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// All of it.
    All,
    /// Names that begin with one of these, and what leads there.
    Within(Vec<String>),
    /// Nothing, not even whether it is there.
    Nothing,
}

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// The grant may not speak as this client.
    Client(ClientId),
    /// The grant may not touch this lock.
    Lock(LockName),
    /// The grant may not steal.
    Steal,
    /// The grant may not steal, or not see all locks.
    Reset,
}

impl Pattern {
    /// The pattern that `text` writes.
    pub fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(beginning) => Self::Beginning(beginning.to_owned()),
            None => Self::Exactly(text.to_owned()),
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
    /// Everything: whoever can connect to a server without tokens.
    pub fn everything() -> Self {
        Self {
            name: "everybody".to_owned(),
            clients: vec![Pattern::Beginning(String::new())],
            prefixes: vec![String::new()],
            steal: true,
        }
    }

    /// Nothing: whoever asks what anybody may know.
    pub fn nothing() -> Self {
        let (clients, prefixes) = (Vec::new(), Vec::new());
        Self { name: "nobody".to_owned(), clients, prefixes, steal: false }
    }

    /// Returns whose request ids the bearer chooses at one front end: rule 10. Credentials of one
    /// name are one caller, so that a secret can be replaced while requests are repeated.
    pub fn caller(&self, front_end: &str) -> Arc<str> {
        format!("{front_end}:{}", self.name).into()
    }

    /// Whether it may speak as `client`.
    pub fn may_speak_as(&self, client: &ClientId) -> Result<(), Denial> {
        if self.clients.iter().any(|pattern| pattern.matches(client)) {
            Ok(())
        } else {
            Err(Denial::Client(client.clone()))
        }
    }

    /// Whether it may see and touch the lock `name`.
    pub fn may_touch(&self, name: &LockName) -> Result<(), Denial> {
        if self.may_see(name.as_str()) { Ok(()) } else { Err(Denial::Lock(name.clone())) }
    }

    /// The same for a name that is text.
    pub fn may_see(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// What it may see of the lock `name`. What only leads to what it may see is shown as that.
    pub fn sight_of(&self, name: &LockName) -> Sight {
        if self.may_see(name.as_str()) {
            return Sight::All;
        }
        Self::within(self.narrowed(&format!("{name}/")))
    }

    /// What it may see of the names that begin with `wanted`.
    pub fn sight(&self, wanted: &str) -> Sight {
        if self.may_see(wanted) {
            return Sight::All;
        }
        Self::within(self.narrowed(wanted))
    }

    fn within(prefixes: Vec<String>) -> Sight {
        if prefixes.is_empty() { Sight::Nothing } else { Sight::Within(prefixes) }
    }

    /// What it may see of the names that begin with `wanted`: prefixes, in order, of which none
    /// lies within another. What it may not see has no say in what is listed.
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

    /// Whether nothing is hidden from it.
    pub fn may_see_all(&self) -> bool {
        self.prefixes.iter().any(String::is_empty)
    }

    /// The only client that it names in full, if there is only one.
    pub fn only_client(&self) -> Option<&str> {
        let mut exact = self.clients.iter().filter_map(|pattern| match pattern {
            Pattern::Exactly(client) => Some(client.as_str()),
            Pattern::Beginning(_) => None,
        });
        exact.next().filter(|_| exact.next().is_none())
    }

    /// Whether it may submit `op`. `actor` is the client behind what [`anonymous`] names; whoever
    /// does not know it must not ask.
    pub fn may_submit(&self, op: &Op, actors: &[ClientId]) -> Result<(), Denial> {
        for client in actors {
            self.may_speak_as(client)?;
        }
        match op {
            Op::Settle | Op::KeepAlive(_) | Op::EndSession(_) => Ok(()),
            Op::Acquire(ask) => self.both(&ask.client, &ask.name),
            Op::Renew(ask) => self.both(&ask.key.client, &ask.key.name),
            Op::Annotate(ask) => self.both(&ask.key.client, &ask.key.name),
            Op::Release(ask) => self.both(&ask.key.client, &ask.key.name),
            Op::Leave(ask) => self.may_touch(&ask.name),
            Op::Move(ask) => {
                self.both(&ask.from.client, &ask.from.name)?;
                self.may_touch(&ask.to)
            }
            Op::Steal(ask) => {
                self.both(&ask.client, &ask.name)?;
                if self.steal { Ok(()) } else { Err(Denial::Steal) }
            }
            Op::OpenSession(ask) => self.may_speak_as(&ask.client),
            // About all locks, seen or not.
            Op::Reset(ask) => {
                self.may_speak_as(&ask.by)?;
                if self.steal && self.may_see_all() { Ok(()) } else { Err(Denial::Reset) }
            }
        }
    }

    fn both(&self, client: &ClientId, name: &LockName) -> Result<(), Denial> {
        self.may_speak_as(client)?;
        self.may_touch(name)
    }
}

/// What `op` leans on without saying whose it is.
pub fn anonymous(op: &Op) -> Vec<Anonymous> {
    let of_hold = |hold: Hold| hold.open().map(|open| Anonymous::Session(open.session));
    let of_term = |term: Option<Term>| match term {
        Some(Term::Session(id)) => Some(Anonymous::Session(id)),
        Some(Term::Own(..)) | None => None,
    };
    match op {
        Op::KeepAlive(id) => vec![Anonymous::Session(*id)],
        Op::EndSession(ask) => vec![Anonymous::Session(ask.session)],
        Op::Leave(ask) => vec![Anonymous::Place(ask.name.clone(), ask.ticket)],
        Op::Acquire(ask) => of_hold(ask.hold).into_iter().chain(of_term(Some(ask.term))).collect(),
        Op::Renew(ask) => of_term(ask.term).into_iter().collect(),
        Op::Steal(ask) => of_term(Some(ask.term)).into_iter().collect(),
        Op::Settle
        | Op::Annotate(_)
        | Op::Release(_)
        | Op::Move(_)
        | Op::OpenSession(_)
        | Op::Reset(_) => vec![],
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(client) => write!(
                f,
                "these credentials may not speak as {client}; use those of {client}, or have the \
                 client added to them"
            ),
            Self::Lock(name) => write!(
                f,
                "these credentials may not touch lock '{name}'; have its prefix added to them"
            ),
            Self::Reset => write!(
                f,
                "these credentials may not act on the locks of all; it needs some that may steal, \
                 and see every lock"
            ),
            Self::Steal => write!(
                f,
                "these credentials may not take a live lock from its holder; ask an administrator"
            ),
        }
    }
}

impl std::error::Error for Denial {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::term::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{
        Acquire, EndSession, LeaseKey, Leave, Line, Mode, Move, OpenSession, Over, Patch, Release,
        SessionEnd, Steal, StealReason, Why,
    };

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    fn laptop() -> Grant {
        Grant {
            name: "laptop1".to_owned(),
            clients: vec![Pattern::parse("laptop1"), Pattern::parse("laptop1:*")],
            prefixes: vec!["team/".to_owned(), "home".to_owned()],
            steal: false,
        }
    }

    fn acquire(lock: &str, who: &str, term: Term) -> Op {
        Op::Acquire(Acquire {
            name: name(lock),
            client: client(who),
            mode: Mode::Exclusive,
            hold: Hold::Loose,
            term,
            line: Line::Skip,
            patch: Patch::default(),
        })
    }

    #[test]
    fn a_grant_is_for_its_clients_and_locks() {
        let own = Term::Own(TTL_DEFAULT, GRACE_DEFAULT);
        let may = |lock, who| laptop().may_submit(&acquire(lock, who, own), &[]);
        assert_eq!(may("team/x", "laptop1"), Ok(()));
        assert_eq!(may("homes", "laptop1:alice"), Ok(()));
        assert_eq!(may("team/x", "laptop10"), Err(Denial::Client(client("laptop10"))));
        assert_eq!(may("team", "laptop1"), Err(Denial::Lock(name("team"))));
        let key = LeaseKey { name: name("other"), client: client("laptop1"), token: None };
        let release = Op::Release(Release { key: key.clone() });
        assert_eq!(laptop().may_submit(&release, &[]), Err(Denial::Lock(name("other"))));
        let from = LeaseKey { name: name("home"), ..key };
        let to = Op::Move(Move { from, to: name("other"), over: Over::Refuse });
        assert_eq!(laptop().may_submit(&to, &[]), Err(Denial::Lock(name("other"))));
        assert_eq!(Grant::everything().may_submit(&to, &[]), Ok(()));
        let ask = OpenSession { client: client("x"), ttl: None, grace: GRACE_DEFAULT };
        let open = Op::OpenSession(ask);
        assert_eq!(laptop().may_submit(&open, &[]), Err(Denial::Client(client("x"))));
        assert!(Grant::nothing().may_submit(&acquire("a", "a", own), &[]).is_err());
    }

    #[test]
    fn who_may_steal_has_it_said() {
        let (name, client) = (name("home"), client("laptop1"));
        let reason = StealReason::parse("why").expect("a reason");
        let (term, patch) = (Term::Own(TTL_DEFAULT, GRACE_DEFAULT), Patch::default());
        let steal = Op::Steal(Steal { name, client, reason, term, patch });
        assert_eq!(laptop().may_submit(&steal, &[]), Err(Denial::Steal));
        assert_eq!(Grant { steal: true, ..laptop() }.may_submit(&steal, &[]), Ok(()));
    }

    /// What a command leans on without saying whose it is must be the caller's.
    #[test]
    fn sessions_and_places_are_their_clients() {
        let session = SessionId::named(7);
        let end = EndSession { session, end: SessionEnd::Closed };
        let leave = Leave { name: name("home"), ticket: Ticket::named(3), why: Why::Asked };
        for (op, leans_on) in [
            (Op::KeepAlive(session), Anonymous::Session(session)),
            (Op::EndSession(end), Anonymous::Session(session)),
            (acquire("home", "laptop1", Term::Session(session)), Anonymous::Session(session)),
            (Op::Leave(leave), Anonymous::Place(name("home"), Ticket::named(3))),
        ] {
            assert_eq!(anonymous(&op), [leans_on]);
            assert_eq!(laptop().may_submit(&op, &[client("laptop1:bob")]), Ok(()));
            let denied = laptop().may_submit(&op, &[client("x")]);
            assert_eq!(denied, Err(Denial::Client(client("x"))));
        }
        assert_eq!(anonymous(&acquire("a", "a", Term::Own(TTL_DEFAULT, GRACE_DEFAULT))), []);
    }

    #[test]
    fn what_leads_to_what_may_be_seen_is_seen_as_that() {
        let grant = laptop();
        let within = |prefix: &str| Sight::Within(vec![prefix.to_owned()]);
        assert_eq!(grant.sight_of(&name("team/x")), Sight::All);
        assert_eq!(grant.sight_of(&name("team")), within("team/"));
        assert_eq!(grant.sight_of(&name("tea")), Sight::Nothing);
        assert_eq!(grant.sight_of(&name("other")), Sight::Nothing);
        assert_eq!(grant.sight("team/"), Sight::All);
        assert_eq!(grant.sight("hom"), within("home"));
        assert_eq!(grant.sight(""), Sight::Within(vec!["home".to_owned(), "team/".to_owned()]));
        assert_eq!(grant.sight("other/"), Sight::Nothing);
        assert_eq!(Grant::nothing().sight(""), Sight::Nothing);
    }

    #[test]
    fn a_list_is_of_what_may_be_seen() {
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
