//! The ioctl(2) commands on the file of a lock, for programs that know latchfs.

use crate::engine::LockName;
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::kernel::values::Errno;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::posix_locks::file_locks::PosixLocks;

/// The ioctl by which a program cancels a wait on an open file, `_IO('L', 1)`. With it, a program
/// that waits in a thread of its own can wait for a limited time and keep its queue place until
/// then. A signal would do as well, but signals belong to the whole process.
pub(crate) const GIVE_UP: u32 = 0x4c01;

/// The ioctl by which a program reads the fencing token of the lock that its own open file holds,
/// `_IOR('L', 2, __u64)`; it fails with ESTALE if the file holds none. The JSON status that a read
/// of the lock file returns may show the token of another holder.
pub(crate) const TOKEN: u32 = 0x8008_4c02;

/// Returns the fencing token by which an open file holds its lock, or the error ESTALE if it holds
/// none.
pub(crate) async fn token(
    posix_locks: &PosixLocks,
    nodes: &LockNodes,
    caller: &Caller,
    ino: u64,
    fh: u64,
) -> Result<Vec<u8>, Errno> {
    let lost = |name: Option<&LockName>| {
        let sentence = "this open file holds no lock, or has lost it; lock it by flock first";
        nodes.locks.refusals().refused(caller, Act::Lock, name, Errno::ESTALE, sentence)
    };
    let session = posix_locks.started();
    let held = session.and_then(|session| session.queue.look(|table| table.held_through(ino, fh)));
    let Some((name, token)) = held else { return Err(lost(None)) };
    let view = nodes.locks.view(caller, Act::Lock, &name).await?;
    if view.holders.iter().any(|holder| holder.lease.token == token) {
        return Ok(token.as_u64().to_ne_bytes().to_vec());
    }
    Err(lost(Some(&name)))
}

/// Cancels the wait of a program on an open file: its call fails with EAGAIN.
pub(crate) fn give_up(posix_locks: &PosixLocks, ino: u64, fh: u64) {
    if let Some(session) = posix_locks.started() {
        session.run(|table, todo| table.give_up(ino, fh, todo));
    }
}
