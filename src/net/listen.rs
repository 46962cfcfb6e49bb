//! Listening at an address, for an event loop.

use socket2::SockRef;
use std::io;
use std::net::{SocketAddr, TcpListener};

/// So many may be connected by the system and not taken yet, or as many as the system allows.
/// After a restart all machines come back within a moment, and who finds no room in this queue
/// asks again after a second at the soonest; std has room for 128.
const QUEUE: i32 = 4_096;

/// Listens, for an event loop.
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
    fn many_may_come_before_one_is_taken() {
        let listener = listen(([127, 0, 0, 1], 0).into()).expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        // Half a second is less than the system takes to ask again.
        let come = || TcpStream::connect_timeout(&address, Duration::from_millis(500));
        let all: io::Result<Vec<TcpStream>> = (0..500).map(|_| come()).collect();
        assert_eq!(all.expect("there is room").len(), 500);
    }
}
