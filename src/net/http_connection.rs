//! The client side of HTTP connections: dialling, TLS, the HTTP/1.1 handshake, and error texts.

use crate::os_error::said;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

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

/// Returns the text of an error with all its sources: the last one says why a connection broke.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = said(&error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = said(&error);
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
