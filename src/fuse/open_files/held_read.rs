//! A read of a control file that waits for data and is answered later.

use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::pending::{Pending, Promise, pending};
use crate::fuse::kernel::values::ReadBytes;

/// A read of a control file that waits for data.
#[derive(Debug)]
pub(crate) struct HeldRead {
    /// The number under which the interrupt watcher knows the read.
    pub(crate) number: u64,
    /// The maximum number of bytes to return.
    pub(crate) size: u32,
    /// The promise by which the waiting read gets its answer.
    pub(crate) promise: Promise<Done<ReadBytes>>,
}

impl HeldRead {
    /// Returns a waiting read of up to `size` bytes, and the future of its answer.
    pub(crate) fn new(number: u64, size: u32) -> (Self, Pending<Done<ReadBytes>>) {
        let (promise, answer) = pending();
        (Self { number, size, promise }, answer)
    }
}
