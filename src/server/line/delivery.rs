//! The connection to a registered follower, an address that receives all lock changes: sends a
//! message, waits for its ACK, and reconnects when the connection was closed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout for connecting to a registered follower, and for each ACK, as the line protocol defines
/// it.
pub(super) const ACK_PATIENCE: Duration = Duration::from_secs(5);

/// Maximum length in bytes of a line from which an ACK is read.
const ACK_BYTES_MAX: u64 = 64;

/// The connection to one registered follower, opened when a message is to be sent.
pub(super) struct FollowerConnection {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl FollowerConnection {
    pub(super) const fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// Sends a lock change to the registered follower, and waits for its ACK. If the follower has
    /// closed the connection after an earlier message, the message is sent over a new connection.
    pub(super) async fn tell(&mut self, message: &str) -> io::Result<()> {
        if let Some(stream) = self.stream.take()
            && let Ok(stream) = exchange(stream, message).await
        {
            self.stream = Some(stream);
            return Ok(());
        }
        let connecting = timeout(ACK_PATIENCE, TcpStream::connect(self.address));
        let stream = connecting.await.map_err(|_| late())??;
        stream.set_nodelay(true)?;
        self.stream = Some(exchange(BufReader::new(stream), message).await?);
        Ok(())
    }
}

async fn exchange(
    mut stream: BufReader<TcpStream>,
    message: &str,
) -> io::Result<BufReader<TcpStream>> {
    let talk = async {
        stream.get_mut().write_all(message.as_bytes()).await?;
        let mut said = String::new();
        (&mut stream).take(ACK_BYTES_MAX).read_line(&mut said).await?;
        match said.trim_end() {
            "ACK" => Ok(()),
            "" => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            other => Err(io::Error::other(format!("it said {other:?} and not ACK"))),
        }
    };
    timeout(ACK_PATIENCE, talk).await.map_err(|_| late())??;
    Ok(stream)
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "there was no ACK in time")
}
