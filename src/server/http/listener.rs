//! Listening sockets of the HTTP server: a TCP address, or a Unix socket whose peers the kernel
//! identifies.

use crate::auth::Grant;
use crate::auth::connection_limits::PeerIdentity;
use crate::net::accept_loop::Acceptor;
use crate::net::listen::listen;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::net::SocketAddr;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maps the user at the other end of a Unix socket to its permissions; `None` denies all access.
pub type UserGrants = Arc<dyn Fn(PeerUser) -> Option<Grant> + Send + Sync>;

/// The user at the other end of a Unix socket, as identified by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerUser {
    /// The effective user id of the peer.
    pub uid: u32,
    /// All groups of the peer, where the kernel reports them (Linux).
    pub groups: Option<Vec<u32>>,
}

/// The socket on which a server listens.
#[derive(Clone)]
pub enum Listen {
    /// A TCP socket that listens on this address.
    Tcp(SocketAddr),
    /// A Unix socket at this path, with the function that returns the permissions of each
    /// connecting user.
    Unix(PathBuf, UserGrants),
}

/// A bound socket that accepts connections.
pub(super) enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener, UserGrants),
}

/// An accepted connection that is not registered with an event loop yet.
pub(super) enum AcceptedStream {
    Tcp(std::net::TcpStream),
    Unix(UnixStream),
}

/// A connection that is registered with its thread's event loop.
pub(super) enum ServerStream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Listen {
    /// Whether only programs on this machine can connect to the socket.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(..) => true,
        }
    }

    /// Binds the socket, and returns the listener with its address or path.
    pub(super) fn open(&self) -> io::Result<(BoundListener, String)> {
        match self {
            Self::Tcp(address) => {
                let listener = listen(*address)?;
                let address = listener.local_addr()?.to_string();
                Ok((BoundListener::Tcp(listener), address))
            }
            Self::Unix(path, users) => {
                // A daemon that was killed leaves its socket file behind; it is removed if nobody
                // listens on it.
                let is_socket = |file: Metadata| file.file_type().is_socket();
                if path.symlink_metadata().is_ok_and(is_socket) && is_dead(path) {
                    std::fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                // The socket's file mode lets every user connect: the kernel tells the server which
                // user connects, so permissions are checked per request.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
                Ok((BoundListener::Unix(listener, Arc::clone(users)), path.display().to_string()))
            }
        }
    }
}

/// Whether nobody listens on the Unix socket at `path`.
fn is_dead(path: &Path) -> bool {
    let error = UnixStream::connect(path).err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

impl fmt::Debug for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path, _) => write!(f, "{}", path.display()),
        }
    }
}

/// A bound listener that is not registered with an event loop yet.
pub(super) enum BoundListener {
    Tcp(std::net::TcpListener),
    Unix(UnixListener, UserGrants),
}

impl BoundListener {
    /// Registers the listener with the event loop of the current thread.
    pub(super) fn here(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Self::Unix(listener, users) => {
                Listener::Unix(tokio::net::UnixListener::from_std(listener)?, users)
            }
        })
    }
}

/// An accepted connection, the identity of its peer, and the permissions of a peer that the kernel
/// has identified.
pub(super) type AcceptedConnection = (AcceptedStream, PeerIdentity, Option<Arc<Grant>>);

impl Acceptor for Listener {
    type Connection = AcceptedConnection;

    async fn accept(&self) -> io::Result<AcceptedConnection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((
                    AcceptedStream::Tcp(stream.into_std()?),
                    PeerIdentity::Address(peer.ip()),
                    None,
                ))
            }
            Self::Unix(listener, users) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?;
                let uid = peer.uid();
                let groups = other_groups(&stream).map(|groups| [&[peer.gid()], &*groups].concat());
                let grant = users(PeerUser { uid, groups }).unwrap_or_else(Grant::nothing);
                let source = PeerIdentity::User(uid);
                Ok((AcceptedStream::Unix(stream.into_std()?), source, Some(Arc::new(grant))))
            }
        }
    }
}

/// Returns the supplementary groups that the peer's process had when it connected.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn other_groups(stream: &tokio::net::UnixStream) -> Option<Vec<u32>> {
    // The maximum number of groups of a process on Linux.
    const GROUPS_MAX: usize = 65_536;
    let mut groups = vec![0_u32; 64];
    loop {
        let bytes = size_of_val(&*groups);
        let mut length = bytes as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into `groups`, which has as many, and
        // stores in `length` the number of bytes that all groups take.
        let failed = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if failed == 0 {
            groups.truncate(count);
            return Some(groups);
        }
        // With ERANGE, the kernel stores the size that it needs in `length`, so the loop retries.
        if count <= groups.len() || count > GROUPS_MAX {
            return None;
        }
        groups.resize(count, 0);
    }
}

#[cfg(not(target_os = "linux"))]
fn other_groups(_stream: &tokio::net::UnixStream) -> Option<Vec<u32>> {
    None
}

impl AcceptedStream {
    /// Registers the connection with the event loop of the current thread.
    pub(super) fn here(self) -> io::Result<ServerStream> {
        Ok(match self {
            Self::Tcp(stream) => ServerStream::Tcp(tokio::net::TcpStream::from_std(stream)?),
            Self::Unix(stream) => ServerStream::Unix(tokio::net::UnixStream::from_std(stream)?),
        })
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
