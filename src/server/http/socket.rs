//! A socket that belongs to the events of whichever thread serves it now.

use super::keep_alive;
use super::listener::ServerStream;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A TCP or Unix socket.
pub(super) struct Socket {
    /// None after an error on the way from one thread to another.
    stream: Option<ServerStream>,
    /// The number of the thread that it belongs to.
    home: usize,
}

impl Socket {
    /// It belongs to this thread.
    pub(super) fn new(stream: ServerStream) -> Self {
        Self { stream: Some(stream), home: keep_alive::number() }
    }

    /// The stream, of this thread from now on.
    fn here(&mut self) -> io::Result<Pin<&mut ServerStream>> {
        let here = keep_alive::number();
        if self.home != here
            && let Some(stream) = self.stream.take()
        {
            self.stream = Some(stream.leave()?.here()?);
            self.home = here;
        }
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.here()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.here()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.here()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.here()?.poll_shutdown(context)
    }
}
