//! The socket of a guard without a view, in the private directory of its machine.

use super::super::disk::Disk;
use super::super::guard_request::refused;
use super::connection::Connection;
use super::plain_guard::PlainGuard;
use crate::base::said;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The name of the socket in the directory of the machine.
const SOCKET: &str = "ctl";
/// The maximum number of connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// The pause after a connection could not be accepted.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Returns the path of the socket of a guard whose machine has this directory.
pub(crate) fn socket_path(host_dir: &Path) -> PathBuf {
    host_dir.join(SOCKET)
}

/// The socket, whose file is removed when this value is dropped.
pub(crate) struct RequestSocket {
    path: PathBuf,
}

impl RequestSocket {
    /// Makes the socket, and answers the requests that come to it. The caller has locked the folder
    /// against other guards, so that a socket which is there already is that of a killed one.
    pub(crate) fn serve<D: Disk>(host_dir: &Path, guard: &Arc<PlainGuard<D>>) -> io::Result<Self> {
        let path = socket_path(host_dir);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (listener, guard) = (UnixListener::bind(&path)?, Arc::clone(guard));
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let accept = move || accept_all(&listener, &guard);
        std::thread::Builder::new().name("requests".to_owned()).spawn(accept)?;
        Ok(Self { path })
    }
}

impl Drop for RequestSocket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            log::debug!("{} stays: {}", self.path.display(), said(&error));
        }
    }
}

fn accept_all<D: Disk>(listener: &UnixListener, guard: &Arc<PlainGuard<D>>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                log::warn!("a request can't be accepted: {}", said(&error));
                // Too many files are open. The next connection waits until one is closed.
                std::thread::sleep(FULL_PAUSE);
                continue;
            }
        };
        if let Err(error) = begin(stream, guard, &open) {
            log::debug!("a request was not answered: {}", said(&error));
        }
    }
}

/// Answers a client in a thread of its own.
fn begin<D: Disk>(
    stream: UnixStream,
    guard: &Arc<PlainGuard<D>>,
    open: &Arc<AtomicUsize>,
) -> io::Result<()> {
    let told = Arc::clone(guard);
    let client = Connection::new(stream, move || told.client_is_gone())?;
    if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
        open.fetch_sub(1, Ordering::AcqRel);
        return client.answer(&refused(format!(
            "{CONNECTIONS_MAX} programs are connected to this guard; try again when one has ended"
        )));
    }
    let (guard, counted) = (Arc::clone(guard), Arc::clone(open));
    let converse = move || {
        if let Err(error) = guard.converse(&client) {
            log::debug!("a request was not answered: {}", said(&error));
        }
        drop(client);
        counted.fetch_sub(1, Ordering::AcqRel);
    };
    let spawned = std::thread::Builder::new().name("request".to_owned()).spawn(converse);
    spawned.map(drop).inspect_err(|_| {
        open.fetch_sub(1, Ordering::AcqRel);
    })
}
