//! Detects from `/proc/TID/status` whether a thread that waits in an operation has a signal to
//! handle.
//!
//! FUSE has an INTERRUPT message for this purpose, but fuser answers the first one with ENOSYS,
//! after which the kernel sends no more: a waiter could not even be killed. So the status of each
//! waiting thread is polled. A signal is deliverable when it is pending and neither blocked nor
//! ignored. Only then may the wait fail with EINTR: the kernel turns EINTR of a lock request into
//! ERESTARTSYS (512), which a thread without a deliverable signal would see as its errno.

use crate::fuse::kernel::freezer::is_freezing;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The status file of a waiting thread, kept open: another read of it costs half of opening and
/// reading it again.
#[derive(Debug)]
pub(crate) struct WatchedThread {
    tid: u32,
    status: File,
}

/// The state of a watched thread, as one read of its status shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadSignals {
    /// The thread sleeps and has no deliverable signal.
    Quiet,
    /// The thread runs or is runnable, so it does not wait, and has no deliverable signal.
    Running,
    /// A signal is pending for this thread, and no other thread can take it.
    Signalled,
    /// A signal is pending for the whole process. Another of its threads may take the signal, so it
    /// counts only if the next check sees one again.
    PerhapsSignalled,
    /// The thread sleeps, and the freezer of a cgroup wants to freeze it, or has frozen it.
    Freezing,
    /// The thread is stopped. It repeats its request when it is continued.
    Stopped,
    /// The watched thread has ended.
    Gone,
}

/// The number of bytes of a status file that are read at first. That is the whole file, except for
/// a thread with very many groups.
const STATUS_BYTES: usize = 2_048;
/// The maximum size of a status file. A process has at most 65,536 groups, each of which takes up
/// to 11 bytes.
const STATUS_BYTES_MAX: usize = 1 << 20;

impl WatchedThread {
    /// Opens the status file of the thread `tid`. Returns `None` if the thread lives in another pid
    /// namespace, or has ended.
    pub(crate) fn new(tid: u32) -> Option<Self> {
        let status = File::open(format!("/proc/{tid}/status")).ok()?;
        (tid != 0).then_some(Self { tid, status })
    }

    /// Returns the file-system user id of the thread, under which it accesses files.
    pub(crate) fn user(&self) -> Option<u32> {
        self.read(|text| {
            let ids = text.split(|byte| *byte == b'\n').find_map(|l| l.strip_prefix(b"Uid:"))?;
            // The line `Uid:` holds the real, effective, saved and file-system user id.
            let id = ids.split(|byte| *byte == b'\t').nth(4)?;
            number(id, 10)?.try_into().ok()
        })
    }

    /// Whether the freezer of a cgroup wants to freeze the thread, or has frozen it.
    pub(crate) fn is_freezing(&self) -> bool {
        is_freezing(self.tid)
    }

    /// Reads the current state of the watched thread.
    pub(crate) fn look(&self) -> ThreadSignals {
        self.read(read_status).unwrap_or(ThreadSignals::Gone)
    }

    /// Returns the result of `parse` for the text of the status file; `None` if the thread has
    /// ended.
    fn read<T>(&self, parse: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let mut bytes = [0; STATUS_BYTES];
        let length = self.status.read_at(&mut bytes, 0).ok()?;
        let parsed = parse(&bytes[..length]);
        if parsed.is_some() || length < STATUS_BYTES {
            return parsed;
        }
        let mut bytes = vec![0; STATUS_BYTES_MAX];
        let length = self.status.read_at(&mut bytes, 0).ok()?;
        parse(&bytes[..length])
    }
}

/// Parses the text of a thread's status file; returns `None` if a line is missing, as for a thread
/// that is ending.
fn read_status(text: &[u8]) -> Option<ThreadSignals> {
    let (mut state, mut threads) = (0, 1);
    let (mut pending, mut shared, mut blocked) = (0, 0, 0);
    for line in text.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        match &line[..colon] {
            b"State" => state = *value.first()?,
            b"Threads" => threads = number(value, 10)?,
            b"SigPnd" => pending = number(value, 16)?,
            b"ShdPnd" => shared = number(value, 16)?,
            b"SigBlk" => blocked = number(value, 16)?,
            b"SigIgn" => {
                let deaf = blocked | number(value, 16)?;
                return Some(sight(state, threads, pending & !deaf, shared & !deaf));
            }
            _ => {}
        }
    }
    None
}

fn sight(state: u8, threads: u64, pending: u64, shared: u64) -> ThreadSignals {
    // A pending SIGKILL always counts, because it ends every thread of the process.
    let kills = (pending | shared) & (1 << (libc::SIGKILL - 1)) != 0;
    match (state, pending, shared) {
        (b'Z' | b'X' | b'x', ..) => ThreadSignals::Gone,
        (_, 1.., _) => ThreadSignals::Signalled,
        (_, _, 1..) if kills || threads == 1 => ThreadSignals::Signalled,
        (_, _, 1..) => ThreadSignals::PerhapsSignalled,
        (b'T' | b't', ..) => ThreadSignals::Stopped,
        (b'R', ..) => ThreadSignals::Running,
        _ => ThreadSignals::Quiet,
    }
}

fn number(text: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(
        state: &str,
        threads: u32,
        pending: u64,
        shared: u64,
        deaf: [u64; 2],
    ) -> Option<ThreadSignals> {
        let [blocked, ignored] = deaf;
        let text = format!(
            "Name:\tx: y\nState:\t{state}\nPid:\t7\nThreads:\t{threads}\nSigQ:\t0/9\n\
             SigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n\
             SigIgn:\t{ignored:016x}\nSigCgt:\t0\n"
        );
        read_status(text.as_bytes())
    }

    #[test]
    fn a_signal_counts_unless_blocked_or_ignored() {
        let (int, term) = (1 << (libc::SIGINT - 1), 1 << (libc::SIGTERM - 1));
        assert_eq!(status("D (disk sleep)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Quiet));
        assert_eq!(status("D (disk sleep)", 1, 0, int, [0, 0]), Some(ThreadSignals::Signalled));
        assert_eq!(status("D (disk sleep)", 1, int, 0, [0, 0]), Some(ThreadSignals::Signalled));
        assert_eq!(status("D (disk sleep)", 1, 0, int, [int, 0]), Some(ThreadSignals::Quiet));
        assert_eq!(status("D (disk sleep)", 1, 0, int, [0, int]), Some(ThreadSignals::Quiet));
        assert_eq!(
            status("D (disk sleep)", 1, 0, int | term, [int, 0]),
            Some(ThreadSignals::Signalled)
        );
    }

    #[test]
    fn a_process_wide_signal_is_ambiguous_with_several_threads() {
        let (int, kill) = (1 << (libc::SIGINT - 1), 1 << (libc::SIGKILL - 1));
        assert_eq!(
            status("D (disk sleep)", 2, 0, int, [0, 0]),
            Some(ThreadSignals::PerhapsSignalled)
        );
        assert_eq!(status("D (disk sleep)", 2, 0, kill, [0, 0]), Some(ThreadSignals::Signalled));
    }

    #[test]
    fn stopped_and_dead_threads_are_distinguished() {
        assert_eq!(status("R (running)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Running));
        assert_eq!(status("S (sleeping)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Quiet));
        assert_eq!(status("T (stopped)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Stopped));
        assert_eq!(status("Z (zombie)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Gone));
        assert_eq!(read_status(b"Name:\tx\nState:\tR (running)\n"), None);
    }

    #[test]
    fn own_thread_is_running_and_tid_zero_is_rejected() {
        let own = std::fs::read_link("/proc/thread-self").expect("a link");
        let tid = own.file_name().and_then(|tid| tid.to_str()?.parse().ok()).expect("a number");
        assert_eq!(
            WatchedThread::new(tid).expect("this thread has a status").look(),
            ThreadSignals::Running
        );
        assert!(WatchedThread::new(0).is_none());
        let status = std::fs::metadata("/proc/thread-self/status").expect("this thread has one");
        let user = std::os::unix::fs::MetadataExt::uid(&status);
        assert_eq!(WatchedThread::new(tid).and_then(|thread| thread.user()), Some(user));
    }
}
