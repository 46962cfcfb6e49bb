//! The parser of lines, for the fuzzer in `tests/fuzz`. Not a part of the library's interface.

use super::request::{LINE_BYTES_MAX, LineRequest};

/// The highest length of a line in bytes.
pub const BYTES_MAX: usize = LINE_BYTES_MAX;

/// Parses a line. Returns the line that this request should have, apart from its ttl, or whether
/// the line has an unknown command rather than a wrong format.
pub fn line(line: &[u8]) -> Result<(Vec<u8>, Option<u64>), bool> {
    let text = |word: &str, name: &str, client: &str| format!("{word},{name},{client}").into();
    let request = LineRequest::parse(line);
    Ok(match request.map_err(|error| error == super::request::LineError::Command)? {
        LineRequest::Lock(name, client, ttl) => {
            let ttl = ttl.map(|ttl| ttl.span().as_nanos());
            (text("LOCK", name.as_str(), client.as_str()), ttl)
        }
        LineRequest::Renew(name, client, ttl) => {
            let ttl = ttl.map(|ttl| ttl.span().as_nanos());
            (text("RENEW", name.as_str(), client.as_str()), ttl)
        }
        LineRequest::Unlock(name, client) => (text("UNLOCK", name.as_str(), client.as_str()), None),
        // The client is checked, and then not needed.
        LineRequest::Own(name) => (text("OWN", name.as_str(), "x"), None),
        LineRequest::Register(address) => (format!("REGISTER,{address}").into(), None),
        LineRequest::Auth(secret) => ([b"AUTH,", &secret[..]].concat(), None),
    })
}
