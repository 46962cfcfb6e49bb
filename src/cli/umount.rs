//! The `umount` command: removes mounts, including busy and stale ones.

use super::exit::{CliError, CliResult};
#[cfg(target_os = "linux")]
use super::mount_client::{ControlFile, LockClient};
use super::output;
use crate::fuse::kernel::device::{self, Gone};
#[cfg(target_os = "linux")]
use crate::fuse::kernel::device_names::DEVICE;
use crate::fuse::kernel::mount_seal;
use crate::fuse::kernel::mountinfo::{self, Life, MountPoint};
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// Timeout for the daemon to exit, in milliseconds: it may write the state of a million locks,
/// which takes a few seconds.
#[cfg(target_os = "linux")]
const DAEMON_PATIENCE_MS: libc::c_int = 20_000;

/// The arguments of `latchfs umount`.
#[derive(Debug, clap::Args)]
pub(super) struct UmountArgs {
    /// The mount points
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Make the mount points usable directories again: mount leaves them without permissions and,
    /// as root, immutable, so that no program locks there while nothing is mounted
    #[arg(long)]
    unseal: bool,
}

/// Unmounts all directories, even if one fails; the first failure determines the exit code.
pub(super) fn run(args: &UmountArgs) -> CliResult {
    let mut failed = Ok(());
    for dir in &args.dirs {
        if let Err(failure) = unmount(dir, args.unseal) {
            if failed.is_err() {
                output::tell(&failure);
            } else {
                failed = Err(failure);
            }
        }
    }
    failed
}

fn unmount(dir: &Path, unseals: bool) -> CliResult {
    let real = mountinfo::resolve(dir).unwrap_or_else(|_| dir.to_path_buf());
    if !unseals {
        return take_away(dir);
    }
    if matches!(mountinfo::at(&real), Ok(Some(mount)) if mount.is_ours()) {
        take_away(dir)?;
    }
    let shown = real.display();
    let was_sealed = mount_seal::unseal(&real)
        .map_err(|error| CliError::system(&format!("{shown} can't be unsealed"), &error))?;
    output::line(&if was_sealed {
        format!("latchfs: unsealed {shown}; it is an ordinary directory now")
    } else {
        format!("latchfs: {shown} is not sealed, so its permissions stay as they are")
    })
}

fn take_away(dir: &Path) -> CliResult {
    let cannot = |error| CliError::system(&format!("{} can't be unmounted", dir.display()), &error);
    let real = mountinfo::resolve(dir).map_err(cannot)?;
    let shown = real.display();
    let there = mountinfo::at(&real).map_err(cannot)?;
    let Some(mount) = there.filter(MountPoint::is_ours) else {
        return Err(CliError::usage(format!(
            "no latchfs is mounted at {shown}; see where by 'latchfs doctor'"
        )));
    };
    match mountinfo::probe(&real) {
        Life::Dead => {
            device::detach(&real).map_err(cannot)?;
            return output::line(&format!("latchfs: unmounted {shown}, whose daemon was gone"));
        }
        Life::Silent => {
            // Programs that wait for a lock mount wait on, since its daemon may go on; no change
            // through a view has succeeded before its answer.
            let gone = if mount.is_view() { device::abort(&mount) } else { device::detach(&real) };
            gone.map_err(cannot)?;
            return output::line(&format!(
                "latchfs: unmounted {shown}, whose daemon did not answer"
            ));
        }
        Life::Live => {}
    }
    let daemon = MountDaemon::that_ends_with(&mount);
    match device::unmount(&real).map_err(cannot)? {
        Gone::Clean => {
            if let Some(daemon) = daemon {
                daemon.wait();
            }
            output::line(&format!("latchfs: unmounted {shown}"))
        }
        Gone::Detached => output::line(&format!(
            "latchfs: unmounted {shown}; it was busy, so programs that have files open there \
             are served until they close them"
        )),
    }
}

/// The daemon for whose end `umount` waits. The enum has no variants, because `umount` waits for a
/// daemon on Linux only.
#[cfg(not(target_os = "linux"))]
enum MountDaemon {}

#[cfg(not(target_os = "linux"))]
impl MountDaemon {
    fn that_ends_with(_mount: &MountPoint) -> Option<Self> {
        None
    }

    fn wait(&self) {
        match *self {}
    }
}

/// The process behind a mount, which ends when its last mount is gone. `umount` waits for it, so
/// that the state directory is free for a mount that starts right after.
#[cfg(target_os = "linux")]
struct MountDaemon(OwnedFd);

#[cfg(target_os = "linux")]
impl MountDaemon {
    /// Returns the daemon of `mount`, if this mount is the daemon's only one.
    fn that_ends_with(mount: &MountPoint) -> Option<Self> {
        let pid = match device::daemon_of(&mount.source) {
            Some(daemon) => i64::from(daemon.pid),
            None => ControlFile::of(mount.dir.clone()).about().ok()?["pid"].as_i64()?,
        };
        // A daemon has one open FUSE device per mount. If the daemon runs in another pid namespace,
        // `/proc` shows another process under its pid, or none, and that process has no FUSE device
        // open.
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let devices = open
            .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|file| file == Path::new(DEVICE)))
            .count();
        if devices == 1 { Self::open(pid).map(Self) } else { None }
    }

    #[allow(unsafe_code)]
    fn open(pid: i64) -> Option<OwnedFd> {
        // SAFETY: the system call takes two numbers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: pidfd_open has just returned this descriptor, and nothing else owns it.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    #[allow(unsafe_code)]
    fn wait(&self) {
        let mut ended = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `ended` is one valid pollfd; its descriptor is open while `self` lives.
        unsafe { libc::poll(&raw mut ended, 1, DAEMON_PATIENCE_MS) };
    }
}
