//! A follower of the line protocol: a program that listens, registers its address at the server by
//! `REGISTER`, receives a `SYNC` line for each lock change, and replies `ACK`. Despite the name, it
//! is no Raft follower.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use testing::COMMAND_LIMIT;

/// The follower's use of the connection after it has sent an `ACK`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// The follower closes the connection after each `ACK`, so the server connects anew for the
    /// next `SYNC` line.
    Ends,
    /// The follower keeps the connection open, and the server sends the next `SYNC` line over it.
    GoesOn,
}

/// A follower that replies `ACK` to every `SYNC` line, and records the line for the test.
pub(crate) struct Follower {
    pub(crate) address: String,
    next_message: Receiver<String>,
}

impl Follower {
    pub(crate) fn start(after: After) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let (send, next_message) = channel();
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
        Self { address, next_message }
    }

    /// Waits for the next `SYNC` line that the server sends to the follower, and returns it.
    #[track_caller]
    pub(crate) fn next_message(&self) -> String {
        self.next_message.recv_timeout(COMMAND_LIMIT).expect("a message")
    }
}
