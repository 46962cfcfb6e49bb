//! Types of command-line arguments that several commands take: durations and addresses.

use crate::engine::{Grace, Ttl};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

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

/// Returns the hint for an argument that is a port without an address: which address to write to
/// serve only this machine, and which to serve others too.
fn open_to(port: &str) -> String {
    format!("write 127.0.0.1:{port} for this machine alone, 0.0.0.0:{port} for others as well")
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
