//! The connection to one follower: sends a message, waits for its ACK, and reconnects when the
//! connection was closed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout for connecting to a follower, and for its ACK, as the original protocol specifies.
pub(super) const ACK_PATIENCE: Duration = Duration::from_secs(5);

/// Maximum length in bytes of a line from which an ACK is read.
const ACK_BYTES_MAX: u64 = 64;

/// The connection to one follower, which is opened when it is needed.
pub(super) struct FollowerConnection {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl FollowerConnection {
    pub(super) const fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// Sends a message to the follower, and waits for its ACK. A follower may close the connection
    /// after each message; then the message is sent over a new connection.
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
