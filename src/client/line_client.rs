//! A client of the line protocol: `try_lock`, `try_unlock` and `own_the_lock`.
//!
//! ```no_run
//! use latchfs::LineClient;
//!
//! let client = LineClient::new("box:7070", "laptop1")?;
//! if let Some(token) = client.try_lock("build")? {
//!     println!("mine, with token {token}: {:?}", client.own_the_lock("build")?);
//!     client.try_unlock("build", Some(token))?;
//! }
//! # std::io::Result::Ok(())
//! ```
//!
//! Each call opens a connection, sends one line and reads one. A lock that `try_lock` acquires
//! expires after the server's ttl.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// Timeout of a connection attempt, and of each wait for a reply. A server answers TIMEOUT after 10
/// s.
const PATIENCE: Duration = Duration::from_secs(12);

/// Maximum length of a reply in bytes: a client id and a token.
const REPLY_BYTES_MAX: u64 = 512;

/// A client of a server that was started with `latchfs serve --line-listen`.
#[derive(Debug, Clone)]
pub struct LineClient {
    address: String,
    client: String,
}

impl LineClient {
    /// Returns a client that acts as `client` at the server `address`, such as `box:7070`. Does not
    /// connect yet.
    pub fn new(address: impl Into<String>, client: impl Into<String>) -> io::Result<Self> {
        let client = client.into();
        one_field(&client)?;
        Ok(Self { address: address.into(), client })
    }

    /// Acquires the lock if it is free, and returns its fencing token; `None` if it is held, by
    /// this client or another.
    pub fn try_lock(&self, name: &str) -> io::Result<Option<u64>> {
        let reply = self.request("LOCK", name, ",token")?;
        match reply.split_once(',') {
            Some(("SUCCESS", token)) => token.parse().map(Some).map_err(|_| unexpected(&reply)),
            Some(("FAIL", _)) => Ok(None),
            _ if reply == "FAIL" => Ok(None),
            _ => Err(unexpected(&reply)),
        }
    }

    /// Releases the lock, or only the tenure with this token. Returns whether this client held it.
    pub fn try_unlock(&self, name: &str, token: Option<u64>) -> io::Result<bool> {
        let more = token.map_or_else(String::new, |token| format!(",{token}"));
        match self.request("UNLOCK", name, &more)?.as_str() {
            "SUCCESS" => Ok(true),
            "FAIL" => Ok(false),
            reply => Err(unexpected(reply)),
        }
    }

    /// Returns the client that holds the lock, or `None`.
    pub fn own_the_lock(&self, name: &str) -> io::Result<Option<String>> {
        self.owner(name, "")
    }

    /// Returns the client that holds the lock as the server knows it from its own state, without a
    /// call to the leader of its cluster. The answer may be old.
    pub fn own_the_lock_stale(&self, name: &str) -> io::Result<Option<String>> {
        self.owner(name, ",stale")
    }

    fn owner(&self, name: &str, more: &str) -> io::Result<Option<String>> {
        match self.request("OWN", name, more)?.as_str() {
            "NONE" => Ok(None),
            refused @ ("ERROR" | "TIMEOUT" | "INVALID_FORMAT") => Err(unexpected(refused)),
            owner => Ok(Some(owner.to_owned())),
        }
    }

    /// Sends one line over a new connection, and returns the reply without its line break.
    fn request(&self, word: &str, name: &str, more: &str) -> io::Result<String> {
        one_field(name)?;
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{word},{name},{}{more}\n", self.client).as_bytes())?;
        let mut reply = String::new();
        BufReader::new(stream.take(REPLY_BYTES_MAX)).read_line(&mut reply)?;
        let whole = reply.strip_suffix('\n');
        whole.map(str::to_owned).ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = ErrorKind::AddrNotAvailable.into();
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Checks that a text can be one field of a line: it has no comma and no line break.
fn one_field(text: &str) -> io::Result<()> {
    if text.is_empty() || text.contains([',', '\n', '\r']) {
        let text = text.escape_debug();
        let why = format!("'{text}' is no field of a line; use a name without commas");
        return Err(io::Error::new(ErrorKind::InvalidInput, why));
    }
    Ok(())
}

/// Returns the error for a reply that is neither success nor failure.
fn unexpected(reply: &str) -> io::Error {
    let (kind, why) = match reply {
        "TIMEOUT" => {
            (ErrorKind::TimedOut, "the server has no answer in time: ask for the lock's owner")
        }
        "INVALID_FORMAT" => {
            (ErrorKind::InvalidInput, "the server accepts no lock or client of this name")
        }
        _ => (ErrorKind::Other, "the server refused the request; its log has the reason"),
    };
    io::Error::new(kind, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn a_reply_has_a_longest_length() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = server.local_addr().expect("it is bound").to_string();
        let client = LineClient::new(address, "a").expect("a client");
        // The line break is the last byte of the reply.
        for (length, is_read) in [(REPLY_BYTES_MAX, true), (REPLY_BYTES_MAX + 1, false)] {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (stream, _) = server.accept().expect("the client connects");
                    let mut stream = BufReader::new(stream);
                    stream.read_line(&mut String::new()).expect("the client asks");
                    let reply = "x".repeat(length as usize - 1) + "\n";
                    // The client may close the connection before it has read all.
                    let _ = stream.get_mut().write_all(reply.as_bytes());
                });
                assert_eq!(client.own_the_lock("x").is_ok(), is_read, "{length} bytes");
            });
        }
    }
}
