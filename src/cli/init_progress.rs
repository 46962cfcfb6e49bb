//! Says on standard error how far `guard init` has come, once that takes more than a second.

use crate::guard::folder_guard::FolderGuard;
use crate::guard::not_ready::Bytes;
use crate::guard::plain_disk::PlainDisk;
use crate::time::{Span, Time, boot_now};
use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError};

/// How often a terminal is told, and when anything is told first.
const TELL: Span = Span::from_secs(1);
/// How often a file or a pipe is told.
const TELL_SELDOM: Span = Span::from_secs(10);

/// The progress of `guard init`. On a terminal it is one line, which is removed at the end.
pub(super) struct Progress<'a> {
    guard: &'a FolderGuard<PlainDisk>,
    is_terminal: bool,
    next: Time,
}

impl<'a> Progress<'a> {
    pub(super) fn new(guard: &'a FolderGuard<PlainDisk>) -> Self {
        Self { guard, is_terminal: io::stderr().is_terminal(), next: boot_now() + TELL }
    }

    /// Waits for a result, and says meanwhile what was read.
    pub(super) fn wait<T>(&mut self, result: &Receiver<T>) -> Result<T, RecvError> {
        loop {
            let wait = self.next.since(boot_now());
            match result.recv_timeout(wait.as_duration()) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
                Err(RecvTimeoutError::Timeout) => self.tell(),
            }
        }
    }

    fn tell(&mut self) {
        self.next = boot_now() + if self.is_terminal { TELL } else { TELL_SELDOM };
        let Some(barrier) = self.guard.barrier() else { return };
        let (files, bytes) = barrier.hashed.now();
        let text = format!("latchfs: read {files} files, {}", Bytes(bytes));
        if self.is_terminal {
            eprint!("\r{text}\x1b[K");
        } else {
            eprintln!("{text}");
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
