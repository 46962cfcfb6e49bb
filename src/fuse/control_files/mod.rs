//! The files of the control directory `.latchfs`, which is not listed.

pub(crate) mod mount_pages;
pub(crate) mod ctl;
pub(crate) mod wait_files;
pub(crate) mod control_ops;

pub(crate) use control_ops::ControlFiles;
