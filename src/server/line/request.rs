//! Requests of the line protocol: each line is parsed once, into a typed request.

use crate::auth::permissions::Operation;
use crate::engine::values::lease::TOKEN_MAX;
use crate::engine::{ClientId, LockName, Token, Ttl};
use std::fmt;
use std::net::SocketAddr;

/// Maximum length of a line in bytes: a name (1 KiB), a client (255), a word and a ttl, with room
/// for a token.
pub(super) const LINE_BYTES_MAX: usize = 2_048;

/// The optional last field by which a request asks for the token.
const TOKEN_WORD: &str = "token";

/// The optional field by which a request asks for the node's own state.
const STALE_WORD: &str = "stale";

/// A request of the line protocol, parsed from its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LineRequest {
    /// Acquire a lock that is free. If the flag is set, the reply has the token.
    Lock(LockName, ClientId, Option<Ttl>, bool),
    /// Renew a lock, or only the tenure with this token.
    Renew(LockName, ClientId, Option<Ttl>, Option<Token>),
    /// Release a lock, or only the tenure with this token.
    Unlock(LockName, ClientId, Option<Token>),
    /// Show the holder of a lock. The request names no client.
    Own(LockName, OwnOptions),
    /// Register this address to receive every lock change.
    Register(SocketAddr),
    /// Authenticate the later requests on this connection by a bearer token.
    Auth(Box<[u8]>),
}

/// The options of a request for the holder of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct OwnOptions {
    /// The reply comes from this node's own state, however old.
    pub(super) stale: bool,
    /// The reply has the token of the holder's tenure.
    pub(super) token: bool,
}

/// Why a line of text is not a valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineError {
    /// The line has too few or too many parts, or one of them is invalid.
    Format,
    /// The first word of the line names no command.
    Command,
}

/// The reply to a request of the line protocol: one word, or the name of a client, and
/// the token if the request asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LineReply {
    /// The request was executed.
    Success,
    /// The lock was granted under this token.
    Granted(Token),
    /// The request was refused because of the lock's state: the lock is held, or is not held by
    /// this client.
    Fail,
    /// The lock was refused because of the tenure with this token.
    Refused(Token),
    /// The reply to OWN for a lock that is free.
    None,
    /// The named client holds the lock, under the token if the request asks for it.
    Owner(ClientId, Option<Token>),
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
            Self::Own(..) => Operation::ShowLock,
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
            ["LOCK", name, client, ref more @ ..] => {
                let (ttl, shows_token) = match *more {
                    [] => (None, false),
                    [TOKEN_WORD] => (None, true),
                    [ttl] => (Some(term(ttl)?), false),
                    [ttl, TOKEN_WORD] => (Some(term(ttl)?), true),
                    _ => return Err(LineError::Format),
                };
                Ok(Self::Lock(lock(name)?, asker(client)?, ttl, shows_token))
            }
            ["RENEW", name, client, ref more @ ..] => {
                let (ttl, token) = match *more {
                    [] => (None, None),
                    // A ttl has a unit, and a token has none.
                    [last] => match tenure(last) {
                        Ok(token) => (None, Some(token)),
                        Err(_) => (Some(term(last)?), None),
                    },
                    [ttl, token] => (Some(term(ttl)?), Some(tenure(token)?)),
                    _ => return Err(LineError::Format),
                };
                Ok(Self::Renew(lock(name)?, asker(client)?, ttl, token))
            }
            ["UNLOCK", name, client] => Ok(Self::Unlock(lock(name)?, asker(client)?, None)),
            ["UNLOCK", name, client, token] => {
                Ok(Self::Unlock(lock(name)?, asker(client)?, Some(tenure(token)?)))
            }
            ["OWN", name, client, ref more @ ..] => {
                let (stale, token) = match *more {
                    [] => (false, false),
                    [STALE_WORD] => (true, false),
                    [TOKEN_WORD] => (false, true),
                    [STALE_WORD, TOKEN_WORD] => (true, true),
                    _ => return Err(LineError::Format),
                };
                asker(client)?;
                Ok(Self::Own(lock(name)?, OwnOptions { stale, token }))
            }
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

fn tenure(text: &str) -> Result<Token, LineError> {
    let number = text.parse().ok().filter(|number| (1..=TOKEN_MAX).contains(number));
    number.map(Token::named).ok_or(LineError::Format)
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
            Self::Refused(token) => return write!(f, "FAIL,{token}"),
            Self::Granted(token) => return write!(f, "SUCCESS,{token}"),
            Self::Owner(client, Some(token)) => return write!(f, "{client},{token}"),
            Self::Owner(client, None) => client.as_str(),
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
        let (seven, own) = (Token::named(7), |stale, token| OwnOptions { stale, token });
        for (line, request) in [
            ("LOCK,a,x", LineRequest::Lock(name("a"), client("x"), None, false)),
            ("LOCK,a/b,x:y,1m\r", LineRequest::Lock(name("a/b"), client("x:y"), Some(ttl), false)),
            ("LOCK,a,x,token", LineRequest::Lock(name("a"), client("x"), None, true)),
            ("LOCK,a,x,1m,token", LineRequest::Lock(name("a"), client("x"), Some(ttl), true)),
            ("RENEW,a,x,1m", LineRequest::Renew(name("a"), client("x"), Some(ttl), None)),
            ("RENEW,a,x,7", LineRequest::Renew(name("a"), client("x"), None, Some(seven))),
            ("RENEW,a,x,1m,7", LineRequest::Renew(name("a"), client("x"), Some(ttl), Some(seven))),
            ("UNLOCK,a,x", LineRequest::Unlock(name("a"), client("x"), None)),
            ("UNLOCK,a,x,7", LineRequest::Unlock(name("a"), client("x"), Some(seven))),
            ("OWN,a,x", LineRequest::Own(name("a"), own(false, false))),
            ("OWN,a,x,stale", LineRequest::Own(name("a"), own(true, false))),
            ("OWN,a,x,stale,token", LineRequest::Own(name("a"), own(true, true))),
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
            "UNLOCK,a,x,0",
            "UNLOCK,a,x,7,8",
            "RENEW,a,x,7,1m",
            "RENEW,a,x,9007199254740993",
            "LOCK,a,x,token,1m",
            "OWN,a,x,token,stale",
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
            if let Ok(LineRequest::Lock(name, client, ..)) = LineRequest::parse(line.as_bytes()) {
                let sent = format!("SYNC,LOCK,{},{client}", name.as_str());
                prop_assert!(!sent.contains(['\n', '\r']));
            }
        }
    }
}
