//! Non-blocking TCP listeners with a long accept queue.

use socket2::SockRef;
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Length of the accept queue, which the system may reduce. After a restart all machines reconnect
/// within a moment, and a client whose SYN finds the queue full retries after a second at the
/// soonest. std uses 128.
const QUEUE: i32 = 4_096;

/// Returns a non-blocking listener at `address`.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    SockRef::from(&listener).listen(QUEUE)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::time::Duration;

    #[test]
    fn accept_queue_holds_hundreds_of_connections() {
        let listener = listen(([127, 0, 0, 1], 0).into()).expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        // The timeout of half a second is less than the time after which the system retransmits a
        // SYN, so each connection must be accepted by the queue at once.
        let come = || TcpStream::connect_timeout(&address, Duration::from_millis(500));
        let all: io::Result<Vec<TcpStream>> = (0..500).map(|_| come()).collect();
        assert_eq!(all.expect("there is room").len(), 500);
    }
}
