//! The loop that accepts connections, shared by all servers.
//!
//! Non-blocking TCP listeners with a long accept queue.
//!
//! The client side of HTTP connections: dialling, TLS, the HTTP/1.1 handshake, and error texts.

use crate::base::said;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use socket2::SockRef;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

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
    type Connection = (TcpStream, SocketAddr);

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

/// Length of the accept queue, which the system may reduce. After a restart all machines reconnect
/// within a moment, and a client whose SYN finds the queue full retries after a second at the
/// soonest. std uses 128.
const QUEUE: i32 = 4_096;

/// Returns a non-blocking listener at `address`.
pub(crate) fn listen(address: SocketAddr) -> io::Result<StdTcpListener> {
    let listener = StdTcpListener::bind(address)?;
    SockRef::from(&listener).listen(QUEUE)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Sends requests on one HTTP connection.
pub(crate) type HttpSender = SendRequest<Full<Bytes>>;

/// A connection of any kind.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Opens a TCP connection, with `TCP_NODELAY`.
pub(crate) async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Performs the TLS handshake with the server called `name`.
pub(crate) async fn encrypt<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    connector: &TlsConnector,
    name: ServerName<'static>,
) -> io::Result<TlsStream<S>> {
    connector.connect(name, stream).await
}

/// Starts HTTP/1.1 on a connection, which a spawned task drives.
pub(crate) async fn start_http(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> io::Result<HttpSender> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            log::debug!("a connection ended: {error}");
        }
    });
    Ok(sender)
}

/// Returns the text of an error with all its sources: the last one says why a connection broke. A
/// connection that the other side has closed ends in one of many errors, all of which read alike.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = said(&error);
    let mut cause = Some(error);
    while let Some(error) = cause {
        if is_closed(error) {
            return "it closed the connection".to_owned();
        }
        let more = said(&error);
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Whether an error says that the other side has closed the connection, as a process does that is
/// killed.
fn is_closed(error: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    if let Some(http) = error.downcast_ref::<hyper::Error>() {
        return http.is_canceled() || http.is_incomplete_message();
    }
    let kind = error.downcast_ref().map(io::Error::kind);
    matches!(kind, Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use hyper::Request;
    use std::io::{Read as _, Write as _};
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

    /// Asks a server that answers with `answer` and closes the connection, after it has read the
    /// request or at once. Returns how the call ends.
    async fn closed_after(answer: &'static str, is_read: bool) -> String {
        let listener = StdTcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("it is called");
            if is_read {
                let _ = stream.read(&mut [0; 4096]);
            }
            let _ = stream.write_all(answer.as_bytes());
        });
        let stream = dial("127.0.0.1", port).await.expect("it listens");
        let mut sender = start_http(stream).await.expect("nothing is sent yet");
        if !is_read {
            server.join().expect("it answers");
        }
        let request = Request::get("/").body(Full::default()).expect("a request");
        match sender.send_request(request).await {
            Err(error) => with_causes(&error),
            Ok(response) => {
                let read = response.into_body().collect().await;
                with_causes(&read.expect_err("the half of an answer"))
            }
        }
    }

    #[tokio::test]
    async fn closed_connection_reads_alike_at_every_moment() {
        let half = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf";
        for (answer, is_read) in [("", false), ("", true), ("HTTP/1.1 200", true), (half, true)] {
            assert_eq!(closed_after(answer, is_read).await, "it closed the connection", "{answer}");
        }
    }
}
