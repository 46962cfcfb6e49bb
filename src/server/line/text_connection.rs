//! One connection: lines in, words out, in order, and how long either may take.

use super::commands::LineService;
use super::request::{LINE_BYTES_MAX, LineReply, LineRequest};
use crate::auth::{Grant, server_tls};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Idle timeout of a connection. A client with further requests has to reconnect.
const IDLE_PATIENCE: Duration = Duration::from_secs(60);

/// A line that has begun comes to its end within this: it fits one packet or two.
const LINE_PATIENCE: Duration = Duration::from_secs(10);

/// A word is taken within this, or the other side is gone.
const WORD_PATIENCE: Duration = Duration::from_secs(10);

/// A TLS handshake takes two turns of the line.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// The result of reading one line.
enum NextLine {
    /// A line.
    Line,
    /// More bytes than a line has, or an end in the middle of one.
    Broken,
    /// Nothing: the other side has ended it, or has asked nothing for too long.
    End,
}

/// Serves a connection to its end.
pub(super) async fn serve(desk: &LineService, stream: TcpStream) {
    let ended = match desk.gate.tls() {
        None => talk(desk, stream, None).await,
        Some(config) => {
            let accepting = TlsAcceptor::from(config).accept(stream);
            match timeout(HANDSHAKE_PATIENCE, accepting).await {
                Ok(Ok(stream)) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    let first = chain.and_then(|chain| chain.first());
                    let certified = first.and_then(server_tls::grant_of).map(Arc::new);
                    talk(desk, stream, certified).await
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        }
    };
    if let Err(error) = ended {
        log::debug!("a connection for lines ended: {error}");
    }
}

/// Answers line after line.
async fn talk<S>(desk: &LineService, stream: S, certified: Option<Arc<Grant>>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = BufReader::with_capacity(LINE_BYTES_MAX, stream);
    let (mut line, mut secret) = (Vec::new(), None::<Box<[u8]>>);
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
        if let Ok(LineRequest::Auth(shown)) = &request {
            secret = Some(shown.clone());
        }
        // Looked up each time: tokens may have been read again meanwhile.
        let grant = desk.gate.grant(secret.as_deref(), certified.as_ref());
        let reply = match (grant, request) {
            (Ok(grant), Ok(request)) => desk.answer(&grant, request).await,
            // A wrong token ends the connection: a client that guesses has to reconnect each time.
            (Err(_), Ok(LineRequest::Auth(_))) => {
                log::warn!("a connection for lines showed a token that is not known");
                say(&mut stream, &LineReply::Fail).await?;
                break;
            }
            (Err(_), Ok(_)) => LineReply::Error,
            (_, Err(mistake)) => mistake.into(),
        };
        say(&mut stream, &reply).await?;
    }
    timeout(WORD_PATIENCE, stream.get_mut().shutdown()).await.unwrap_or(Ok(()))
}

/// Waits for the next line, and gives it without its end.
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
    // Without its end it may be the beginning of another: `bob` of `bobby`.
    Ok(if line.pop_if(|last| *last == b'\n').is_some() { NextLine::Line } else { NextLine::Broken })
}

async fn say<S: AsyncWrite + Unpin>(stream: &mut S, reply: &LineReply) -> io::Result<()> {
    let text = format!("{reply}\n");
    let said = async {
        stream.write_all(text.as_bytes()).await?;
        stream.flush().await
    };
    timeout(WORD_PATIENCE, said).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
