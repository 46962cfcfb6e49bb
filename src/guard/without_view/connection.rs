//! One client of the socket: it sends requests, each a line of JSON, and gets a line for each.

use super::super::guard_request::REQUEST_BYTES_MAX;
use super::super::lock_uses::LockUse;
use super::super::wish::Denied;
use super::peer::{Peer, peer_of};
use crate::time::{Span, boot_now};
use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How long a client may take to read a part of its answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// What came from the client, and from the thread of the tenures for it.
#[derive(Default)]
struct Inbox {
    /// The next request. The client's next one waits until it is taken.
    request: Option<Result<Vec<u8>, TooLong>>,
    /// The answer to the wait for the lock.
    held: Option<Result<(), Denied>>,
    /// Whether the client has closed the connection, or this process is about to.
    is_gone: bool,
}

/// A request is too long, or its end did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

/// The part of a connection that other threads use.
#[derive(Clone, Default)]
pub(super) struct Presence(Arc<(Mutex<Inbox>, Condvar)>);

impl Presence {
    /// Whether the client has closed the connection.
    pub(super) fn is_gone(&self) -> bool {
        self.0.0.lock().is_gone
    }

    /// Takes note of the answer to the client's wait for the lock.
    pub(super) fn held(&self, answer: Result<(), Denied>) {
        self.0.0.lock().held = Some(answer);
        self.0.1.notify_all();
    }

    fn leave(&self) {
        self.0.0.lock().is_gone = true;
        self.0.1.notify_all();
    }

    /// Passes a request on, once the one before was taken. Returns whether the client is still
    /// there.
    fn put(&self, request: Result<Vec<u8>, TooLong>) -> bool {
        let mut inbox = self.0.0.lock();
        while inbox.request.is_some() && !inbox.is_gone {
            self.0.1.wait(&mut inbox);
        }
        inbox.request = Some(request);
        self.0.1.notify_all();
        !inbox.is_gone
    }
}

/// A connected client.
pub(super) struct Connection {
    stream: UnixStream,
    presence: Presence,
    /// The client.
    pub(super) peer: Peer,
    /// The use of the lock by the client, which ends with the connection.
    pub(super) lock_use: Mutex<Option<LockUse>>,
}

impl Connection {
    /// Looks which user has connected, and starts the thread that reads its requests. `on_gone` is
    /// called when the client closes the connection.
    pub(super) fn new(
        stream: UnixStream,
        on_gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let peer = peer_of(&stream)?;
        stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
        let (from, presence) = (stream.try_clone()?, Presence::default());
        let told = presence.clone();
        let read = move || {
            read_requests(&from, &told);
            told.leave();
            on_gone();
        };
        std::thread::Builder::new().name("client".to_owned()).spawn(read)?;
        Ok(Self { stream, presence, peer, lock_use: Mutex::default() })
    }

    /// Returns the part that other threads use.
    pub(super) const fn presence(&self) -> &Presence {
        &self.presence
    }

    /// Waits for the next request. Returns `None` if the client has none for so long, or is gone.
    pub(super) fn request(&self, patience: Span) -> Option<Result<Vec<u8>, TooLong>> {
        let until = boot_now() + patience;
        let (inbox, news) = &*self.presence.0;
        let mut inbox = inbox.lock();
        loop {
            if let Some(request) = inbox.request.take() {
                news.notify_all();
                return Some(request);
            }
            let left = until.since(boot_now());
            if inbox.is_gone || left == Span::ZERO {
                return None;
            }
            let _ = news.wait_for(&mut inbox, left.as_duration());
        }
    }

    /// Waits for the answer to the wait for the lock. Returns `None` if the client is gone.
    pub(super) fn wait_for_lock(&self) -> Option<Result<(), Denied>> {
        let (inbox, news) = &*self.presence.0;
        let mut inbox = inbox.lock();
        loop {
            if inbox.is_gone {
                return None;
            }
            if let Some(held) = inbox.held.take() {
                return Some(held);
            }
            news.wait(&mut inbox);
        }
    }

    /// Writes an answer.
    pub(super) fn answer(&self, answer: &Value) -> io::Result<()> {
        self.line(format!("{answer}\n").as_bytes())
    }

    /// Writes a part of an answer.
    pub(super) fn line(&self, line: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(line)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.presence.leave();
        // Ends the thread that reads. It fails if the client is gone.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Reads requests until the client is gone.
fn read_requests(mut from: &UnixStream, presence: &Presence) {
    let (mut request, mut part) = (Vec::new(), [0; 1_024]);
    loop {
        let length = match from.read(&mut part) {
            Ok(length @ 1..) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return,
        };
        for byte in &part[..length] {
            request.push(*byte);
            if *byte == b'\n' && !presence.put(Ok(std::mem::take(&mut request))) {
                return;
            }
            if request.len() > REQUEST_BYTES_MAX {
                presence.put(Err(TooLong));
                return wait_for_end(from);
            }
        }
    }
}

/// Reads until the client is gone, or this process closes the connection.
fn wait_for_end(mut from: &UnixStream) {
    let mut part = [0; 1_024];
    while matches!(from.read(&mut part), Ok(1..)) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const PATIENCE: Span = Span::from_secs(30);

    fn connected() -> (UnixStream, Connection, std::sync::mpsc::Receiver<()>) {
        let (client, stream) = UnixStream::pair().expect("a pair");
        let (send, gone) = channel();
        let on_gone = move || send.send(()).unwrap_or_default();
        (client, Connection::new(stream, on_gone).expect("a peer"), gone)
    }

    #[test]
    fn a_request_to_the_socket_has_a_bound() {
        let (client, connection, _gone) = connected();
        (&client).write_all(b"{}\n{\"do\":1}\n").expect("written");
        assert_eq!(connection.request(PATIENCE), Some(Ok(b"{}\n".to_vec())));
        assert_eq!(connection.request(PATIENCE), Some(Ok(b"{\"do\":1}\n".to_vec())));
        assert_eq!(connection.request(Span::from_millis(1)), None, "there is no third");
        (&client).write_all(&[b'x'; REQUEST_BYTES_MAX + 1]).expect("written");
        assert_eq!(connection.request(PATIENCE), Some(Err(TooLong)));
    }

    #[test]
    fn the_end_of_a_client_ends_its_wait() {
        let (client, connection, gone) = connected();
        let presence = connection.presence().clone();
        presence.held(Ok(()));
        assert_eq!(connection.wait_for_lock(), Some(Ok(())));
        assert!(!presence.is_gone());
        drop(client);
        assert_eq!(connection.wait_for_lock(), None);
        gone.recv_timeout(PATIENCE.as_duration()).expect("it is told");
        assert!(presence.is_gone());
    }
}
