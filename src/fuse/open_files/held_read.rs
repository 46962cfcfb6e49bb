//! A read that is answered later.

use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::pending::{Pending, Promise, pending};
use crate::fuse::kernel::values::ReadBytes;

/// A read that is answered later.
#[derive(Debug)]
pub(crate) struct HeldRead {
    /// The number by which the watcher of interrupts knows it.
    pub(crate) number: u64,
    /// How much is wanted.
    pub(crate) size: u32,
    /// Where the answer goes.
    pub(crate) promise: Promise<Done<ReadBytes>>,
}

impl HeldRead {
    /// A read of `size` bytes, and its answer.
    pub(crate) fn new(number: u64, size: u32) -> (Self, Pending<Done<ReadBytes>>) {
        let (promise, answer) = pending();
        (Self { number, size, promise }, answer)
    }
}
