//! One connection of the line protocol: reads lines and writes replies, in order, within timeouts.

use super::commands::LineService;
use super::request::{LINE_BYTES_MAX, LineReply, LineRequest};
use crate::auth::connection_limits::{ConnectionOrigin, PeerIdentity};
use crate::auth::permissions::Operation;
use crate::auth::{Grant, WRONG_TOKEN_DELAY, server_tls};
use crate::server::audit_trail::AuditedCaller;
use std::io;
use std::time::Duration;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Idle timeout of a connection; a client that sends a request later has to reconnect.
const IDLE_PATIENCE: Duration = Duration::from_secs(60);

/// Timeout for the rest of a line that has begun; a line fits into one or two packets.
const LINE_PATIENCE: Duration = Duration::from_secs(10);

/// Timeout for writing a reply, after which the client is considered dead.
const WORD_PATIENCE: Duration = Duration::from_secs(10);

/// Timeout for the TLS handshake, which takes one or two round trips.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// The result of reading one line.
enum NextLine {
    /// A whole line has been read.
    Line,
    /// The line is too long.
    Broken,
    /// There is no further line: the client closed the connection, or was idle for too long.
    End,
}

/// Serves a connection until it ends.
pub(super) async fn serve(desk: &LineService, source: PeerIdentity, stream: TcpStream) {
    let origin = |certified| desk.peers.origin(source, certified);
    let ended = match desk.gate.tls() {
        None => talk(desk, stream, &origin(None)).await,
        Some(config) => {
            let accepting = TlsAcceptor::from(config).accept(stream);
            match timeout(HANDSHAKE_PATIENCE, accepting).await {
                Ok(Ok(stream)) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    let first = chain.and_then(|chain| chain.first());
                    let certified = first.and_then(server_tls::caller_of);
                    talk(desk, stream, &origin(certified)).await
                }
                Ok(Err(error)) => {
                    if let Some(why) = server_tls::foreign_certificate(&error) {
                        refuse(desk, &origin(None), Operation::Authenticate, &why);
                    }
                    Err(error)
                }
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        }
    };
    if let Err(error) = ended {
        log::debug!("a connection for lines ended: {error}");
    }
}

/// Reads lines and writes their replies, one after the other.
async fn talk<S>(desk: &LineService, stream: S, origin: &ConnectionOrigin) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = BufReader::with_capacity(LINE_BYTES_MAX, stream);
    let (mut line, mut secret) = (Vec::new(), None::<Box<[u8]>>);
    let mut is_known = false;
    loop {
        line.clear();
        let next = tokio::select! {
            next = next_line(&mut stream, &mut line) => next?,
            () = desk.closing() => NextLine::End,
        };
        match next {
            NextLine::Line if !LineRequest::is_http(&line) => {}
            NextLine::Line | NextLine::Broken => {
                say(&mut stream, &LineReply::InvalidFormat).await?;
                break;
            }
            NextLine::End => break,
        }
        let request = LineRequest::parse(&line);
        if !is_known && let Err(mistake) = request {
            // A client of another protocol, whose later lines a web page may have chosen.
            say(&mut stream, &mistake.into()).await?;
            break;
        }
        is_known = true;
        if let Ok(LineRequest::Auth(shown)) = &request {
            secret = Some(shown.clone());
        }
        // The permissions of the token are looked up for each request, because the token file may
        // have been reloaded since the last one.
        let grant = desk.gate.grant(secret.as_deref(), origin.certified.as_ref());
        let reply = match (grant, request) {
            (Ok(grant), Ok(request)) => {
                desk.answer(&grant, (origin, secret.as_deref()), request).await
            }
            // A wrong token in an AUTH line ends the connection, so that a client that guesses
            // tokens has to reconnect for each guess.
            (Err(_), Ok(request @ LineRequest::Auth(_))) => {
                refuse(desk, origin, request.operation(), "this token is unknown");
                sleep(WRONG_TOKEN_DELAY).await;
                say(&mut stream, &LineReply::Fail).await?;
                break;
            }
            (Err(_), Ok(request)) => {
                refuse(desk, origin, request.operation(), "the credentials are missing or refused");
                LineReply::Error
            }
            (_, Err(mistake)) => mistake.into(),
        };
        say(&mut stream, &reply).await?;
    }
    timeout(WORD_PATIENCE, stream.get_mut().shutdown()).await.unwrap_or(Ok(()))
}

/// Records a refused request of a caller that could not be authenticated.
fn refuse(desk: &LineService, origin: &ConnectionOrigin, operation: Operation, reason: &str) {
    let nothing = Grant::nothing();
    let named = origin.certified.as_ref().map(|caller| &*caller.grant);
    let caller = AuditedCaller { grant: named.unwrap_or(&nothing), origin };
    caller.refused(&desk.locks, operation, reason);
}

/// Waits for the next line, and stores it in `line` without its newline.
async fn next_line<S>(stream: &mut S, line: &mut Vec<u8>) -> io::Result<NextLine>
where
    S: AsyncBufRead + Unpin,
{
    match timeout(IDLE_PATIENCE, stream.fill_buf()).await {
        Ok(Ok([])) | Err(_) => return Ok(NextLine::End),
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(error),
    }
    let mut limited = stream.take(LINE_BYTES_MAX as u64);
    let whole = timeout(LINE_PATIENCE, limited.read_until(b'\n', line));
    whole.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // The last line may lack its newline, as Java's `readLine` allows.
    let is_whole = line.pop_if(|last| *last == b'\n').is_some() || line.len() < LINE_BYTES_MAX;
    Ok(if is_whole { NextLine::Line } else { NextLine::Broken })
}

async fn say<S: AsyncWrite + Unpin>(stream: &mut S, reply: &LineReply) -> io::Result<()> {
    let text = format!("{reply}\n");
    let said = async {
        stream.write_all(text.as_bytes()).await?;
        stream.flush().await
    };
    timeout(WORD_PATIENCE, said).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
