//! Who may do what: one pure function over what is asked of the engine.

use crate::engine::{ClientId, Hold, LockName, Op, SessionId, Term, Ticket};
use std::fmt;

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

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// The grant may not speak as this client.
    Client(ClientId),
    /// The grant may not touch this lock.
    Lock(LockName),
    /// The grant may not steal.
    Steal,
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
        Op::Settle | Op::Annotate(_) | Op::Release(_) | Op::Move(_) | Op::OpenSession(_) => vec![],
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
            Self::Steal => write!(
                f,
                "these credentials may not take a live lock from its holder; ask an administrator"
            ),
        }
    }
}

impl std::error::Error for Denial {}
