//! The files of the control directory `.latchfs`, which is not listed.
//!
//! `control_ops` opens, reads and writes them; `ctl` takes requests as JSON, `wait_files` wait for
//! a lock, and `mount_pages` are about the mount as a whole.

pub(crate) mod mount_pages;
pub(crate) mod ctl;
pub(crate) mod wait_files;
pub(crate) mod control_ops;
