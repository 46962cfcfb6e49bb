//! A server that speaks the line protocol, and connections to it.

use crate::command::COMMAND_LIMIT;
use crate::server::Server;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

/// A server that serves the line protocol besides HTTP.
pub struct Lines {
    /// The server.
    pub server: Server,
    /// The address at which it speaks the line protocol.
    pub address: String,
}

impl Lines {
    /// Starts a server with the line protocol and these additional options.
    #[track_caller]
    pub fn start(options: &[&str]) -> Self {
        let mut server = Server::start(&[&["--line-listen", "127.0.0.1:0"], options].concat());
        let said = server.says();
        let address = said.strip_prefix("latchfs: line protocol listening on ").expect(&said);
        Self { address: address.trim_end().to_owned(), server }
    }

    /// Opens a new connection to the port of the line protocol.
    #[track_caller]
    pub fn connect(&self) -> LineConnection {
        LineConnection::to(&self.address)
    }

    /// Sends one line on a new connection, and returns the server's reply to it.
    #[track_caller]
    pub fn request(&self, line: &str) -> String {
        self.connect().request(line)
    }

    /// Returns the value of a metric on the server's metrics page.
    pub fn metric(&self, name: &str) -> Option<u64> {
        let page = self.server.curl(&["/metrics"]).body;
        let mut lines = page.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}

/// A connection to the port of the line protocol.
pub struct LineConnection(BufReader<TcpStream>);

impl LineConnection {
    /// Connects to the port at `address`.
    #[track_caller]
    pub fn to(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(COMMAND_LIMIT)).expect("a limit");
        Self(BufReader::new(stream))
    }

    /// Sends raw bytes on the connection.
    pub fn send(&mut self, bytes: &[u8]) {
        // The error is ignored: the write fails if the server has closed the connection.
        let _ = self.0.get_mut().write_all(bytes);
    }

    /// Closes the sending side of the connection.
    pub fn finish(&mut self) {
        let _ = self.0.get_mut().shutdown(Shutdown::Write);
    }

    /// Waits for the next reply, and returns it without its newline; `None` at the end of the
    /// connection.
    #[track_caller]
    pub fn word(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.strip_suffix('\n').expect("a whole line").to_owned()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Sends a line, and returns the reply to it.
    #[track_caller]
    pub fn request(&mut self, line: &str) -> String {
        self.send(format!("{line}\n").as_bytes());
        self.word().unwrap_or_else(|| panic!("no answer to {line}"))
    }

    /// Returns all bytes that arrive until the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.0.read_to_end(&mut bytes);
        bytes
    }
}
