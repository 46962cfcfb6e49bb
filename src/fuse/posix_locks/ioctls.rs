//! The requests of programs that know latchfs, by ioctl(2) on the file of a lock.

use crate::fuse::posix_locks::run;
use crate::engine::LockName;
use crate::fuse::errno::Act;
use crate::fuse::credentials::Caller;
use crate::fuse::shared::{Fs, Shared};
use fuser::{Errno, ReplyIoctl};

/// The `ioctl` by which a program gives up what it waits for through an open file, `_IO('L', 1)`.
/// It is how one that waits in a thread of its own can wait for a time and keep its place in line;
/// a signal would do, and belongs to the whole process.
pub(crate) const GIVE_UP: u32 = 0x4c01;

/// The `ioctl` by which a program learns the token by which its own open file holds the lock,
/// `_IOR('L', 2, __u64)`; ESTALE when it does not. The status of a lock tells of any holder.
pub(crate) const TOKEN: u32 = 0x8008_4c02;

/// Tells the token by which an open file holds its lock, if it still does.
pub(crate) fn token(fs: &Fs, caller: &Caller, ino: u64, fh: u64, reply: ReplyIoctl) {
    let held = fs.locking.running();
    let held = held.and_then(|running| running.desk.look(|table| table.held_through(ino, fh)));
    let lost = |fs: &Shared, caller: &Caller, name: Option<&LockName>| {
        let sentence = "this open file holds no lock, or has lost it; lock it by flock first";
        fs.refuse_own(caller, Act::Lock, name, Errno::ESTALE, sentence)
    };
    let Some((name, token)) = held else { return reply.error(lost(fs, caller, None)) };
    fs.view(caller, Act::Lock, &name, move |fs, caller, view| match view {
        Ok(view) if view.holders.iter().any(|holder| holder.lease.token == token) => {
            reply.ioctl(0, &token.as_u64().to_ne_bytes());
        }
        Ok(view) => reply.error(lost(fs, caller, Some(&view.name))),
        Err(errno) => reply.error(errno),
    });
}

/// A program gives up what it waits for through an open file: its call ends by EAGAIN.
pub(crate) fn give_up(fs: &Fs, ino: u64, fh: u64, reply: ReplyIoctl) {
    if let Some(running) = fs.locking.running() {
        run(fs, &running, |table, todo| table.give_up(ino, fh, todo));
    }
    reply.ioctl(0, &[]);
}
