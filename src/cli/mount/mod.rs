//! Mounts, and their daemons.
//!
//! `mount_command` opens the engine or connects to a server, mounts, and shuts both down in order;
//! `mount_helper` runs it for mount(8) and `/etc/fstab`. `umount` removes mounts, also of a daemon
//! that hangs, which `daemon_process` inspects.

#[cfg(target_os = "linux")]
pub(super) mod daemon_process;
pub(super) mod mount_command;
#[cfg(target_os = "linux")]
pub(super) mod mount_helper;
pub(super) mod umount;
