//! The files of `.latchfs`.

pub(crate) mod requests;
pub(crate) mod pages;
pub(crate) mod control;
pub(crate) mod ctl_list;
pub(crate) mod ctl;
pub(crate) mod wait;
