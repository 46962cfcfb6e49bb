//! A follower of the line protocol as the original protocol specifies it: it listens, receives SYNC
//! messages, and replies ACK.

use crate::support::COMMAND_LIMIT;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// The follower's behaviour after an ACK.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// The follower closes the connection, as a follower of the original protocol does.
    Ends,
    /// The follower keeps the connection open for the next message.
    GoesOn,
}

/// A follower that replies ACK to every message.
pub(crate) struct Follower {
    pub(crate) address: String,
    told: Receiver<String>,
}

impl Follower {
    pub(crate) fn start(after: After) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let (send, told) = channel();
        // The thread is not joined; it ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.expect("a connection"));
                let mut line = String::new();
                while stream.read_line(&mut line).is_ok_and(|count| count > 0) {
                    if send.send(line.trim_end().to_owned()).is_err() {
                        return;
                    }
                    line.clear();
                    if stream.get_mut().write_all(b"ACK\n").is_err() || after == After::Ends {
                        break;
                    }
                }
            }
        });
        Self { address, told }
    }

    /// Waits for the next message to the follower.
    #[track_caller]
    pub(crate) fn told(&self) -> String {
        self.told.recv_timeout(COMMAND_LIMIT).expect("a message")
    }
}
