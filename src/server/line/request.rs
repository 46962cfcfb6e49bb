//! Requests of the line protocol: each line is parsed once, into a typed request.

use crate::auth::permissions::Operation;
use crate::engine::{ClientId, LockName, Ttl};
use std::fmt;
use std::net::SocketAddr;

/// Maximum length of a line in bytes: a name (1 KiB), a client (255), a word and a ttl, with room
/// for a token.
pub(super) const LINE_BYTES_MAX: usize = 2_048;

/// A request of the line protocol, parsed from its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LineRequest {
    /// Acquire a lock that is free.
    Lock(LockName, ClientId, Option<Ttl>),
    /// Renew a lock.
    Renew(LockName, ClientId, Option<Ttl>),
    /// Release a lock.
    Unlock(LockName, ClientId),
    /// Show the holder of a lock. The request names no client.
    Own(LockName),
    /// Register this address to receive every lock change.
    Register(SocketAddr),
    /// Authenticate the later requests on this connection by a bearer token.
    Auth(Box<[u8]>),
}

/// Why a line of text is not a valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineError {
    /// The line has too few or too many parts, or one of them is invalid.
    Format,
    /// The first word of the line names no command.
    Command,
}

/// The reply to a request of the line protocol: one word, or the name of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LineReply {
    /// The request was executed.
    Success,
    /// The request was refused because of the lock's state: the lock is held, or is not held by
    /// this client.
    Fail,
    /// The reply to OWN for a lock that is free.
    None,
    /// The named client holds the lock.
    Owner(ClientId),
    /// The request was not executed: this node can't execute it now, or the caller may not make it.
    Error,
    /// There was no answer in time: it is unknown whether the request was executed.
    Timeout,
    /// The line could not be parsed, see [`LineError::Format`].
    InvalidFormat,
    /// The command is unknown, see [`LineError::Command`].
    InvalidCommand,
    /// The address has been registered, and will receive every lock change.
    Registered,
    /// The request was REGISTER, which only the leader of the cluster accepts, and this node is not
    /// the leader.
    NotLeader,
}

/// The first word of each kind of line, with the operation whose permissions it needs.
pub(crate) const WORDS: [(&str, Operation); 6] = [
    ("LOCK", Operation::Acquire),
    ("RENEW", Operation::Renew),
    ("UNLOCK", Operation::Release),
    ("OWN", Operation::ShowLock),
    ("REGISTER", Operation::FollowAll),
    ("AUTH", Operation::Authenticate),
];

impl LineRequest {
    /// Returns the operation whose permissions the caller of this request needs.
    pub(super) const fn operation(&self) -> Operation {
        match self {
            Self::Lock(..) => Operation::Acquire,
            Self::Renew(..) => Operation::Renew,
            Self::Unlock(..) => Operation::Release,
            Self::Own(_) => Operation::ShowLock,
            Self::Register(_) => Operation::FollowAll,
            Self::Auth(_) => Operation::Authenticate,
        }
    }

    /// Whether the line is the first line of an HTTP request. A web browser sent such a line and
    /// those after it, not a client of the line protocol, so they must not be executed.
    pub(super) fn is_http(line: &[u8]) -> bool {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut words = line.split(|byte| *byte == b' ');
        let is_method = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_uppercase);
        words.next().is_some_and(is_method)
            && words.next().is_some()
            && words.next_back().is_some_and(|version| version.starts_with(b"HTTP/"))
    }

    /// Parses a line, given without its final newline.
    pub(super) fn parse(line: &[u8]) -> Result<Self, LineError> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(secret) = line.strip_prefix(b"AUTH,").filter(|secret| !secret.is_empty()) {
            return Ok(Self::Auth(secret.into()));
        }
        let line = std::str::from_utf8(line).map_err(|_| LineError::Format)?;
        let parts: Vec<&str> = line.split(',').collect();
        match parts[..] {
            ["LOCK", name, client] => Ok(Self::Lock(lock(name)?, asker(client)?, None)),
            ["LOCK", name, client, ttl] => {
                Ok(Self::Lock(lock(name)?, asker(client)?, Some(term(ttl)?)))
            }
            ["RENEW", name, client] => Ok(Self::Renew(lock(name)?, asker(client)?, None)),
            ["RENEW", name, client, ttl] => {
                Ok(Self::Renew(lock(name)?, asker(client)?, Some(term(ttl)?)))
            }
            ["UNLOCK", name, client] => Ok(Self::Unlock(lock(name)?, asker(client)?)),
            ["OWN", name, client] => asker(client).and_then(|_| Ok(Self::Own(lock(name)?))),
            ["REGISTER", address] => {
                address.parse().map(Self::Register).map_err(|_| LineError::Format)
            }
            ["LOCK" | "RENEW" | "UNLOCK" | "OWN" | "REGISTER" | "AUTH", ..] => {
                Err(LineError::Format)
            }
            // Existing clients expect that the number of parts is checked before the first word: a
            // line with an unknown first word is an unknown command if it has three or more parts,
            // and otherwise malformed.
            [_, _, _, ..] => Err(LineError::Command),
            _ => Err(LineError::Format),
        }
    }
}

fn lock(text: &str) -> Result<LockName, LineError> {
    LockName::parse(text).map_err(|_| LineError::Format)
}

fn asker(text: &str) -> Result<ClientId, LineError> {
    ClientId::parse(text).map_err(|_| LineError::Format)
}

fn term(text: &str) -> Result<Ttl, LineError> {
    Ttl::parse(text).map_err(|_| LineError::Format)
}

impl From<LineError> for LineReply {
    fn from(mistake: LineError) -> Self {
        match mistake {
            LineError::Format => Self::InvalidFormat,
            LineError::Command => Self::InvalidCommand,
        }
    }
}

impl fmt::Display for LineReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "SUCCESS",
            Self::Fail => "FAIL",
            Self::None => "NONE",
            Self::Owner(client) => client.as_str(),
            Self::Error => "ERROR",
            Self::Timeout => "TIMEOUT",
            Self::InvalidFormat => "INVALID_FORMAT",
            Self::InvalidCommand => "INVALID_COMMAND",
            Self::Registered => "REGISTERED",
            Self::NotLeader => "NOT_LEADER",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    #[test]
    fn valid_lines_are_parsed() {
        let ttl = Ttl::parse("1m").expect("valid");
        for (line, request) in [
            ("LOCK,a,x", LineRequest::Lock(name("a"), client("x"), None)),
            ("LOCK,a/b,x:y,1m\r", LineRequest::Lock(name("a/b"), client("x:y"), Some(ttl))),
            ("RENEW,a,x,1m", LineRequest::Renew(name("a"), client("x"), Some(ttl))),
            ("UNLOCK,a,x", LineRequest::Unlock(name("a"), client("x"))),
            ("OWN,a,x", LineRequest::Own(name("a"))),
            ("REGISTER,[::1]:7", LineRequest::Register("[::1]:7".parse().expect("valid"))),
            ("AUTH,a,b", LineRequest::Auth((*b"a,b").into())),
        ] {
            assert_eq!(LineRequest::parse(line.as_bytes()), Ok(request), "{line}");
        }
    }

    #[test]
    fn http_requests_are_recognized() {
        for line in
            ["POST / HTTP/1.1\r", "GET /a,b HTTP/1.0", "PRI * HTTP/2.0\r", "PUT /a b HTTP/1.1"]
        {
            assert!(LineRequest::is_http(line.as_bytes()), "{line}");
        }
        for line in ["", "LOCK,a,b", "LOCK,a /,HTTP/1.1", "POST /", "post / HTTP/1.1", "A HTTP/1.1"]
        {
            assert!(!LineRequest::is_http(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn invalid_lines_are_rejected() {
        for line in [
            "",
            ",",
            "LOCK",
            "LOCK,a",
            "FOO",
            "FOO,a",
            "LOCK,,x",
            "LOCK,a,",
            "LOCK,a,x,1",
            "LOCK,a,x,500ms",
            "LOCK,a,x,1m,y",
            "UNLOCK,a,x,y",
            "OWN,a",
            "OWN,a,x,y",
            "REGISTER",
            "REGISTER,a,b",
            "REGISTER,box:1",
            "AUTH",
            "AUTH,",
            "LOCK,../a,x",
            "LOCK,.latchfs,x",
        ] {
            assert_eq!(LineRequest::parse(line.as_bytes()), Err(LineError::Format), "{line}");
        }
        assert_eq!(LineRequest::parse(b"LOCK,\xff,x"), Err(LineError::Format));
        for line in ["FOO,a,b", "lock,a,b", " LOCK,a,b", ",,", "SYNC,LOCK,a,b"] {
            assert_eq!(LineRequest::parse(line.as_bytes()), Err(LineError::Command), "{line}");
        }
    }

    proptest! {
        #[test]
        fn accepted_names_contain_no_line_breaks(name in ".*", client in ".*") {
            let line = format!("LOCK,{name},{client}");
            if let Ok(LineRequest::Lock(name, client, _)) = LineRequest::parse(line.as_bytes()) {
                let sent = format!("SYNC,LOCK,{},{client}", name.as_str());
                prop_assert!(!sent.contains(['\n', '\r']));
            }
        }
    }
}
