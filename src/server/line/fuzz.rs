//! The parser of lines, for the fuzzer in `tests/fuzz`. Not a part of the library's interface.

use super::request::{LINE_BYTES_MAX, LineError, LineRequest, OwnOptions};
use crate::engine::Token;

/// The highest length of a line in bytes.
pub const BYTES_MAX: usize = LINE_BYTES_MAX;

/// Parses a line. Returns the line that this request should have, apart from its ttl, or whether
/// the line has an unknown command rather than a wrong format.
pub fn line(line: &[u8]) -> Result<(Vec<u8>, Option<u64>), bool> {
    let text = |word: &str, name: &str, client: &str, more: &str| {
        format!("{word},{name},{client}{more}").into()
    };
    let with = |token: Option<Token>| token.map_or_else(String::new, |token| format!(",{token}"));
    let request = LineRequest::parse(line);
    Ok(match request.map_err(|error| error == LineError::Command)? {
        LineRequest::Lock(name, client, ttl, shows_token) => {
            let ttl = ttl.map(|ttl| ttl.span().as_nanos());
            let more = if shows_token { ",token" } else { "" };
            (text("LOCK", name.as_str(), client.as_str(), more), ttl)
        }
        LineRequest::Renew(name, client, ttl, token) => {
            let ttl = ttl.map(|ttl| ttl.span().as_nanos());
            (text("RENEW", name.as_str(), client.as_str(), &with(token)), ttl)
        }
        LineRequest::Unlock(name, client, token) => {
            (text("UNLOCK", name.as_str(), client.as_str(), &with(token)), None)
        }
        // The client is checked, and then not needed.
        LineRequest::Own(name, OwnOptions { stale, token }) => {
            let more = [if stale { ",stale" } else { "" }, if token { ",token" } else { "" }];
            (text("OWN", name.as_str(), "x", &more.concat()), None)
        }
        LineRequest::Register(address) => (format!("REGISTER,{address}").into(), None),
        LineRequest::Auth(secret) => ([b"AUTH,", &secret[..]].concat(), None),
    })
}
