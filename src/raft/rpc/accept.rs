//! The listening end: connections of other nodes, and the calls on them.

use super::messages::{
    Envelope, RpcError, RpcResponse, call_bytes_max, decode_letter, encode_answer,
};
use super::mutual_tls::{PeerTls, is_peers};
use crate::os_error::said;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Connections at once: seven nodes have five each with this one, and some are about to end.
const CONNECTIONS_MAX: usize = 256;
/// A handshake takes two turns of the line.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(60);
/// After an error of accept(2), such as too many open files, it is tried again after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Who answers calls.
pub(in crate::raft) trait RpcHandler: Send + Sync + 'static {
    /// Answers one.
    fn answer(
        self: Arc<Self>,
        letter: Envelope,
    ) -> impl Future<Output = Result<RpcResponse, RpcError>> + Send;
}

/// Listens at an address, before anything runs.
pub(in crate::raft) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Takes connections for ever.
pub(in crate::raft) async fn accept(
    listener: TcpListener,
    tls: PeerTls,
    who: Arc<impl RpcHandler>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return log::error!("peers can't be heard: {}", said(&error)),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (tls, who) = (tls.clone(), Arc::clone(&who));
                tokio::spawn(async move {
                    serve(stream, tls, who).await;
                    drop(place);
                });
            }
            Err(error) => {
                log::warn!("a connection of a node can't be accepted: {}", said(&error));
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, tls: PeerTls, who: Arc<impl RpcHandler>) {
    // Without it answers are late, and no less right.
    let _ = stream.set_nodelay(true);
    let stream = match timeout(HANDSHAKE_PATIENCE, tls.accepts.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return log::warn!("a node was not let in: {}", said(&error)),
        Err(_) => return log::debug!("a handshake took too long"),
    };
    let chain = stream.get_ref().1.peer_certificates();
    if !chain.and_then(|chain| chain.first()).is_some_and(is_peers) {
        return log::warn!("somebody was not let in: the certificate is not one of a node");
    }
    speak(stream, who).await;
}

async fn speak<S>(stream: S, who: Arc<impl RpcHandler>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request| {
        let who = Arc::clone(&who);
        async move { Ok::<_, Infallible>(answer(request, who).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        log::debug!("a connection of a node ended: {error}");
    }
}

async fn answer(request: Request<Incoming>, who: Arc<impl RpcHandler>) -> Response<Full<Bytes>> {
    let name = request.uri().path().strip_prefix("/raft/v1/").unwrap_or_default().to_owned();
    let bytes_max = call_bytes_max(&name).filter(|_| request.method() == Method::POST);
    let Some(bytes_max) = bytes_max else {
        let mut response = Response::new(Full::new(Bytes::from_static(
            b"nodes speak with each other here; see the server for locks\n",
        )));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let body = Limited::new(request.into_body(), bytes_max).collect().await;
    let letter = body.ok().and_then(|body| decode_letter(&name, &body.to_bytes()).ok());
    let answer = match letter {
        Some(letter) => who.answer(letter).await,
        None => Err(RpcError::Malformed),
    };
    Response::new(Full::new(Bytes::from(encode_answer(&answer))))
}
