//! Runs an operation on a mount, or on a disk that may hang, in a child process, which can be
//! abandoned.
//!
//! If the daemon of a FUSE mount hangs after it has read a request, the thread that made the
//! request sleeps until the daemon answers or ends, and no signal wakes it. A process with such a
//! thread can't end, and keeps its standard output open. A child process for the operation keeps
//! this from the process that needs the answer.

use engine::time::{Span, Time, boot_now};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The maximum size of an answer.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// An operation that runs in a child process. Dropping it kills the child.
pub struct ChildCall {
    child: libc::pid_t,
    answers: File,
    answer: Vec<u8>,
    is_complete: bool,
}

impl ChildCall {
    /// Starts `work` in a child process. The child has no descriptor of this process open, and is
    /// killed when the thread that started it ends.
    ///
    /// `work` must use no lock that another thread of this process may hold.
    #[allow(unsafe_code)]
    pub fn start(work: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Self> {
        let (answers, write) = pipe()?;
        // SAFETY: getpid only reads a number, and can't fail.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the child runs `work` alone, which uses no lock of another thread; the allocator
        // of the C library can be used after fork. The child never returns from this block.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => run_in_child(parent, write, work),
            child => Ok(Self { child, answers, answer: Vec::new(), is_complete: false }),
        }
    }

    /// Returns the answer or the error of the work, and waits for it for at most `patience`; `None`
    /// if there is none yet.
    pub fn answer(&mut self, patience: Span) -> io::Result<Option<Vec<u8>>> {
        let until = boot_now() + patience;
        while is_readable(self.answers.as_raw_fd(), until)? {
            let mut part = [0; 4_096];
            match self.answers.read(&mut part) {
                Ok(0) => {
                    self.is_complete = true;
                    return decode(&self.answer).map(Some);
                }
                Ok(count) if self.answer.len() + count > 1 + ANSWER_BYTES_MAX => {
                    return Err(ErrorKind::FileTooLarge.into());
                }
                Ok(count) => self.answer.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Drop for ChildCall {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // A child that has answered is about to end; one that sleeps in the kernel ends when the
        // daemon answers or ends, and nobody waits for that.
        let options = if self.is_complete { 0 } else { libc::WNOHANG };
        // SAFETY: the child was not waited for yet, so the id is its own; waitpid may be given no
        // place for the status.
        unsafe {
            libc::kill(self.child, libc::SIGKILL);
            libc::waitpid(self.child, std::ptr::null_mut(), options);
        }
    }
}

/// The first byte tells an answer from the number of an error.
fn encode(result: io::Result<Vec<u8>>) -> Vec<u8> {
    match result {
        Ok(answer) => [&[0], &answer[..]].concat(),
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            [&[1], &number.to_le_bytes()[..]].concat()
        }
    }
}

fn decode(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let number = match bytes.split_first() {
        Some((0, answer)) => return Ok(answer.to_vec()),
        Some((_, number)) => <[u8; 4]>::try_from(number).map_or(libc::EIO, i32::from_le_bytes),
        // The child has ended without an answer.
        None => libc::EIO,
    };
    Err(io::Error::from_raw_os_error(number))
}

fn pipe() -> io::Result<(File, File)> {
    let (read, write) = io::pipe()?;
    Ok((
        File::from(std::os::fd::OwnedFd::from(read)),
        File::from(std::os::fd::OwnedFd::from(write)),
    ))
}

/// Waits until a descriptor can be read, or has ended; `false` if the time is over.
#[allow(unsafe_code)]
fn is_readable(fd: RawFd, until: Time) -> io::Result<bool> {
    loop {
        let left = until.since(boot_now());
        let left = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
        let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: `wanted` is one valid pollfd.
        match unsafe { libc::poll(&raw mut wanted, 1, left) } {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => {}
                error => return Err(error),
            },
            ready => return Ok(ready > 0),
        }
    }
}

/// In the child: runs `work`, sends its answer, and ends.
#[allow(unsafe_code)]
fn run_in_child(
    parent: libc::pid_t,
    mut answers: File,
    work: impl FnOnce() -> io::Result<Vec<u8>>,
) -> ! {
    let kept = answers.as_raw_fd() as libc::c_uint;
    // SAFETY: the system calls take numbers. No value of this process that owns one of the closed
    // descriptors is used any more: the child leaves by _exit, which drops nothing.
    let is_orphan = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if kept > 0 {
            libc::syscall(libc::SYS_close_range, 0, kept - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, kept + 1, libc::c_uint::MAX, 0);
        // The parent may have ended before the child asked for a signal at its end.
        libc::getppid() != parent
    };
    if !is_orphan {
        // A panic must not go on in this copy of the parent.
        let _ = catch_unwind(AssertUnwindSafe(|| answers.write_all(&encode(work()))));
    }
    // SAFETY: _exit takes a number, and runs no destructors of the parent's values.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_is_complete() {
        let mut call = ChildCall::start(|| Ok(vec![7; 1_000_000])).expect("started");
        let answer = call.answer(Span::from_secs(20)).expect("readable").expect("in time");
        assert!(answer == vec![7; 1_000_000]);
    }

    #[test]
    fn an_answer_has_a_bound() {
        let bytes = |length| {
            let mut call = ChildCall::start(|| Ok(vec![7; length])).expect("started");
            call.answer(Span::from_secs(20))
        };
        let whole = bytes(ANSWER_BYTES_MAX).expect("readable").expect("in time");
        assert_eq!(whole.len(), ANSWER_BYTES_MAX);
        let error = bytes(ANSWER_BYTES_MAX + 1).expect_err("it is too long");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn the_error_of_the_work_is_the_error_of_the_call() {
        let fails = || Err(io::Error::from_raw_os_error(libc::ENOTEMPTY));
        let mut call = ChildCall::start(fails).expect("started");
        let error = call.answer(Span::from_secs(20)).expect_err("it failed");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY));
    }

    #[test]
    fn a_call_that_hangs_is_abandoned() {
        let pause = || loop {
            std::thread::park();
        };
        let mut call = ChildCall::start(pause).expect("started");
        assert!(call.answer(Span::from_millis(20)).expect("readable").is_none());
    }
}
