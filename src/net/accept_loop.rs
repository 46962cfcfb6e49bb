//! The loop that accepts connections, shared by all servers.

use crate::os_error::said;
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::sleep;

/// Delay before the next attempt after accept(2) has failed, for example with too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A source of connections.
pub(crate) trait Acceptor {
    /// The type of an accepted connection.
    type Connection;
    /// Waits for the next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

impl Acceptor for TcpListener {
    type Connection = (tokio::net::TcpStream, std::net::SocketAddr);

    async fn accept(&self) -> io::Result<Self::Connection> {
        Self::accept(self).await
    }
}

/// Accepts connections and passes them to `serve`, which must not block, until `stop` is ready. The
/// text `what` names the connections in the log.
pub(crate) async fn accept_until<A: Acceptor>(
    acceptor: &A,
    what: &str,
    stop: impl Future<Output = ()>,
    mut serve: impl FnMut(A::Connection),
) {
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = acceptor.accept() => accepted,
            () = &mut stop => return,
        };
        match accepted {
            Ok(connection) => serve(connection),
            Err(error) => {
                log::warn!("a connection of {what} can't be accepted: {}", said(&error));
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}
