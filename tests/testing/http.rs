//! A client that sends HTTP requests over one connection, as fast as they are answered.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Timeout for an answer: a server that takes longer is taken to hang.
const LIMIT: Duration = Duration::from_secs(60);

/// A persistent HTTP connection to a server.
pub struct HttpConnection {
    stream: BufReader<TcpStream>,
}

impl HttpConnection {
    /// Connects to `http://ADDRESS`; `None` if no server accepts the connection.
    pub fn to(url: &str) -> Option<Self> {
        let stream = TcpStream::connect(url.strip_prefix("http://")?).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self { stream: BufReader::new(stream) })
    }

    /// Sends a request; returns the status code and the body, or `None` if the server is gone.
    pub fn request(&mut self, method: &str, path: &str) -> Option<(u16, Value)> {
        self.ask_with(method, path, "")
    }

    /// Sets the timeout for answers on this connection.
    pub fn wait_at_most(&self, limit: Duration) -> Option<()> {
        self.stream.get_ref().set_read_timeout(Some(limit)).ok()
    }

    /// Sends a request with additional header lines, each ended by CR LF.
    pub fn ask_with(&mut self, method: &str, path: &str, headers: &str) -> Option<(u16, Value)> {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).ok()?;
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        let code = line.split(' ').nth(1)?.parse().ok()?;
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        Some((code, serde_json::from_slice(&body).unwrap_or_default()))
    }
}
