//! Wakes a program that waits in poll(2).

use std::fmt;
use std::io;

/// A callback that tells the kernel, once, that an open file should be polled again.
pub(crate) struct PollWaker(Box<dyn FnOnce() -> io::Result<()> + Send>);

impl PollWaker {
    /// Returns a waker that calls `wake`.
    pub(crate) fn new(wake: impl FnOnce() -> io::Result<()> + Send + 'static) -> Self {
        Self(Box::new(wake))
    }

    /// Notifies the kernel, which wakes the programs that poll the file.
    pub(crate) fn wake(self) {
        if let Err(error) = self.0() {
            log::debug!("waking a poll failed: {error}");
        }
    }
}

impl fmt::Debug for PollWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PollWaker")
    }
}
