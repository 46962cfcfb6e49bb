//! Types of command-line arguments that several commands take: durations and addresses.

use crate::engine::lease_terms::{TTL_MAX, TTL_MIN, TermError, parse_span};
use crate::engine::{Grace, Ttl};
use crate::os_error::said;
use crate::time::Span;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// A duration argument of the command line. Help texts show its default as people write it
/// (`1m30s`).
#[derive(Debug, Clone, Copy)]
pub(super) struct DurationArg<T>(pub(super) T);

impl fmt::Display for DurationArg<Ttl> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.span().fmt(f)
    }
}

impl fmt::Display for DurationArg<Grace> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.span().fmt(f)
    }
}

/// Parses a duration as people write it: `1h30m`, `1h 30m`, `1d`, or a bare number of seconds.
pub(super) fn span(text: &str) -> Result<Span, String> {
    parsed(text).map_err(|error| match error {
        TermError::NotADuration => error.to_string(),
        TermError::TooShort => "a duration is not negative; write it as 30s or 1h30m".to_owned(),
        TermError::TooLong => "a duration is at most 584 years".to_owned(),
    })
}

fn parsed(text: &str) -> Result<Span, TermError> {
    if !text.starts_with('+') && text.parse::<f64>().is_ok_and(f64::is_finite) {
        return parse_span(&format!("{text}s"));
    }
    let words: Vec<_> = text.split_whitespace().collect();
    // Each word is a duration of its own, so that `1 30m` is not read as 130 minutes.
    for word in &words {
        parse_span(word)?;
    }
    parse_span(&words.concat())
}

/// Parses a ttl as people write it.
pub(super) fn ttl(text: &str) -> Result<Ttl, TermError> {
    Ttl::new(parsed(text)?)
}

/// Parses a length of time that has the bounds of a ttl and is none.
pub(super) fn length(text: &str) -> Result<Ttl, String> {
    ttl(text).map_err(|error| match error {
        TermError::NotADuration => error.to_string(),
        TermError::TooShort => format!("the shortest time is {TTL_MIN}"),
        TermError::TooLong => format!("the longest time is {TTL_MAX}"),
    })
}

/// Parses a grace as people write it.
pub(super) fn grace(text: &str) -> Result<Grace, TermError> {
    Grace::new(parsed(text)?)
}

/// Parses a ttl that has a default.
pub(super) fn default_ttl(text: &str) -> Result<DurationArg<Ttl>, TermError> {
    ttl(text).map(DurationArg)
}

/// Parses a grace that has a default.
pub(super) fn default_grace(text: &str) -> Result<DurationArg<Grace>, TermError> {
    grace(text).map(DurationArg)
}

/// Parses the address of `--listen`. The error message of a wrong address shows how to write it.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let next = match text.rsplit_once(':') {
            _ if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() => {
                let ip = text.trim_matches(['[', ']']);
                let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
                format!("write {ip}:8080, with a port")
            }
            None if text.parse::<u16>().is_ok() => open_to(text),
            Some(("" | "*", port)) if port.parse::<u16>().is_ok() => open_to(port),
            Some(("localhost", port)) if port.parse::<u16>().is_ok() => {
                format!("write 127.0.0.1:{port}")
            }
            Some((host, port)) if port.parse::<u16>().is_ok() && !host.contains(':') => {
                format!("a name such as '{host}' is not looked up; write the IP address")
            }
            _ => "write it like 127.0.0.1:8080 or [::1]:8080".to_owned(),
        };
        format!("not an IP:PORT address; {next}")
    })
}

/// The sockets of a server.
#[derive(Debug, Clone, Default)]
pub(super) struct ListenArg {
    /// The address of the TCP socket.
    pub(super) tcp: Option<SocketAddr>,
    /// The path of the Unix socket.
    pub(super) socket: Option<PathBuf>,
}

/// Parses the argument of `--listen`: a TCP address, `unix:PATH`, or both with a comma between.
pub(super) fn listen_at(text: &str) -> Result<ListenArg, String> {
    let mut listen = ListenArg::default();
    for part in text.split(',') {
        let is_second = match part.strip_prefix("unix:") {
            Some("") => return Err("name a file, such as unix:/run/latchfs.sock".to_owned()),
            Some(path) => {
                let path = std::path::absolute(path).map_err(|error| said(&error))?;
                listen.socket.replace(path).is_some()
            }
            None => listen.tcp.replace(address(part)?).is_some(),
        };
        if is_second {
            return Err("write one IP:PORT and one unix:PATH at most".to_owned());
        }
    }
    Ok(listen)
}

/// Returns the hint for an argument that is a port without an address: which address to write to
/// serve only this machine, and which to serve others too.
fn open_to(port: &str) -> String {
    format!("write 127.0.0.1:{port} for this machine alone, 0.0.0.0:{port} for others as well")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_people_do() {
        let millis = |text| span(text).map(Span::as_millis);
        for (text, wanted) in [
            ("3", 3_000),
            ("1.5", 1_500),
            ("0", 0),
            ("1m30s", 90_000),
            ("1h 30m", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(millis(text), Ok(wanted), "{text}");
        }
        for wrong in ["", " ", "1 30m", "1 s", "soon", "inf", "NaN", "1e3", "+3"] {
            assert_eq!(parsed(wrong), Err(TermError::NotADuration), "{wrong:?}");
        }
        assert_eq!(parsed("-3"), Err(TermError::TooShort));
        assert_eq!(parsed("99999999999999999999"), Err(TermError::TooLong));
        for wrong in ["-3", "99999999999999999999"] {
            assert!(span(wrong).is_err_and(|why| !why.contains("ttl")), "{wrong}");
        }
        for (wrong, why) in [
            ("500ms", "the shortest time is 1s"),
            ("25h", "the longest time is "),
            ("soon", "a duration reads like 30s, 1m30s or 1.5h"),
        ] {
            assert!(length(wrong).is_err_and(|said| said.starts_with(why)), "{wrong}");
        }
        assert!(ttl("0").is_err() && grace("0").is_ok() && ttl("30").is_ok());
    }

    #[test]
    fn an_address_is_an_ip_and_a_port() {
        for good in ["127.0.0.1:8080", "[::1]:0", "0.0.0.0:65535"] {
            assert_eq!(address(good).map(|address| address.to_string()), Ok(good.to_owned()));
        }
        for (wrong, next) in [
            ("localhost:8080", "write 127.0.0.1:8080"),
            (":8080", "write 127.0.0.1:8080 for this machine alone, 0.0.0.0:8080"),
            ("8080", "write 127.0.0.1:8080 for"),
            ("*:80", "0.0.0.0:80 for others"),
            ("10.0.0.1", "write 10.0.0.1:8080"),
            ("::1", "write [::1]:8080"),
            ("[::1]", "write [::1]:8080"),
            ("box.local:8080", "'box.local' is not looked up"),
            ("nonsense", "like 127.0.0.1:8080 or [::1]:8080"),
            ("127.0.0.1:99999", "like 127.0.0.1:8080"),
            ("", "like 127.0.0.1:8080"),
        ] {
            let said = address(wrong).expect_err(wrong);
            assert!(said.starts_with("not an IP:PORT address; ") && said.contains(next), "{said}");
        }
    }

    #[test]
    fn a_server_listens_at_an_address_and_at_a_socket() {
        let both = listen_at("127.0.0.1:80,unix:/run/a.sock").expect("both");
        assert!(both.tcp.is_some() && both.socket == Some(PathBuf::from("/run/a.sock")));
        let socket = listen_at("unix:a.sock").expect("a socket");
        assert!(socket.tcp.is_none() && socket.socket.is_some_and(|path| path.is_absolute()));
        for (wrong, why) in [
            ("unix:", "name a file"),
            ("unix:a,unix:b", "at most"),
            ("127.0.0.1:80,127.0.0.1:81", "at most"),
            ("127.0.0.1:80,", "not an IP:PORT"),
        ] {
            assert!(listen_at(wrong).is_err_and(|said| said.contains(why)), "{wrong}");
        }
    }
}
