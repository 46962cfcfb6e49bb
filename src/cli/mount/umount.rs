//! The `umount` command: removes mounts, including busy and stale ones.

#[cfg(target_os = "linux")]
use super::daemon_process::DaemonProcess;
#[cfg(target_os = "linux")]
use crate::cli::connect::mount_client::{ControlFileClient, LockClient};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output;
use kernel::device::{self, Gone};
use kernel::machine_facts::{is_root, own_uid};
use kernel::mount_seal;
use kernel::mountinfo::{self, Life, MountPoint};
use nix::unistd::{Uid, User};
use std::io;
use std::path::{Path, PathBuf};

/// The arguments of `latchfs umount`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct UmountArgs {
    /// The mount points [default: the only mount of yours]
    #[arg(value_name = "DIR", required_if_eq("unseal", "true"))]
    dirs: Vec<PathBuf>,
    /// Make the mount points usable directories again: mount leaves them without permissions and,
    /// as root, immutable, so that no program locks there while nothing is mounted
    #[arg(long)]
    unseal: bool,
}

/// Unmounts all directories, even if one fails; the first failure determines the exit code.
pub(in crate::cli) fn run(args: &UmountArgs) -> CliResult {
    let mut failed = Ok(());
    let dirs = if args.dirs.is_empty() { vec![only_mount()?] } else { args.dirs.clone() };
    for dir in &dirs {
        if let Err(failure) = unmount(dir, args.unseal) {
            if failed.is_err() {
                output::report_failure(&failure);
            } else {
                failed = Err(failure);
            }
        }
    }
    failed
}

/// Returns the only mount, or view, that this user has made.
fn only_mount() -> CliResult<PathBuf> {
    let cannot = |error| CliError::system("/proc/self/mountinfo can't be read", &error);
    let mut own = mountinfo::ours_and_views().map_err(cannot)?;
    own.retain(|mount| mount.mounter == own_uid());
    match own.as_slice() {
        [only] => Ok(only.dir.clone()),
        [] => Err(CliError::usage("no latchfs is mounted by you; see others by 'latchfs doctor'")),
        several => {
            let list: Vec<_> = several.iter().map(|own| own.dir.display().to_string()).collect();
            Err(CliError::usage(format!("several are mounted; name one of {}", list.join(", "))))
        }
    }
}

fn unmount(dir: &Path, unseals: bool) -> CliResult {
    let real = mountinfo::resolve(dir).unwrap_or_else(|_| dir.to_path_buf());
    if !unseals {
        take_away(dir)?;
        return remove_made(&real);
    }
    let was_mounted = matches!(mountinfo::at(&real), Ok(Some(mount)) if mount.is_ours());
    if was_mounted {
        take_away(dir)?;
    }
    let shown = real.display();
    let was_sealed = mount_seal::unseal(&real)
        .or_else(|error| if was_mounted { make_again(&real, error) } else { Err(error) })
        .map_err(|error| CliError::system(&format!("{shown} can't be unsealed"), &error))?;
    output::line(&if was_sealed {
        format!("latchfs: unsealed {shown}; it is an ordinary directory now")
    } else {
        format!("latchfs: {shown} is not sealed, so its permissions stay as they are")
    })
}

/// Removes a mount point that `mount` has made. The daemon does that too, at the same time. If the
/// disk of the directory hangs, as it may have done for the daemon, the directory stays.
fn remove_made(dir: &Path) -> CliResult {
    let cannot = |error| CliError::system(&format!("{} can't be removed", dir.display()), &error);
    let is_mounted = mountinfo::at(dir).map_err(cannot)?.is_some_and(|there| there.is_ours());
    match mount_seal::try_remove_made(dir) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => output::line(&format!(
            "latchfs: {shown} stays, sealed, since its disk does not answer; when it does again, \
             'latchfs umount --unseal {shown}' makes an ordinary directory of it",
            shown = dir.display()
        )),
        Err(error) if !is_mounted && error.kind() != io::ErrorKind::NotFound => Err(cannot(error)),
        _ => Ok(()),
    }
}

/// Makes a mount point again that the daemon has made and removed with its mount.
fn make_again(dir: &Path, error: io::Error) -> io::Result<bool> {
    match error.kind() {
        io::ErrorKind::NotFound => std::fs::create_dir(dir).map(|()| true),
        _ => Err(error),
    }
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
    let cannot = |error| denied(&mount).unwrap_or_else(|| cannot(error));
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
    #[cfg(target_os = "linux")]
    let daemon = daemon_that_ends_with(&mount);
    match device::unmount(&real).map_err(cannot)? {
        Gone::Clean => {
            #[cfg(target_os = "linux")]
            daemon.inspect(DaemonProcess::wait);
            output::line(&format!("latchfs: unmounted {shown}"))
        }
        Gone::Detached => output::line(&format!(
            "latchfs: unmounted {shown}; it was busy, so programs that have files open there \
             are served until they close them"
        )),
    }
}

/// Returns the reason why this user may not unmount `mount`, if another one has mounted it:
/// fusermount3 says only that the operation is not permitted.
fn denied(mount: &MountPoint) -> Option<CliError> {
    if is_root() || mount.mounter == own_uid() {
        return None;
    }
    let (shown, uid) = (mount.dir.display(), mount.mounter);
    let known = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let by = known.map_or_else(|| format!("user {uid}"), |user| user.name);
    let or_root = if uid == 0 { "" } else { ", or root" };
    Some(CliError::Said(
        Exit::Denied,
        format!(
            "{shown} can't be unmounted by you, since {by} has mounted it; let {by}{or_root} run \
             'latchfs umount {shown}'"
        ),
    ))
}

/// Returns the daemon of `mount`, which ends with it, since this mount is its only one. `umount`
/// waits for its end, so that the state directory is free for a mount that starts right after.
#[cfg(target_os = "linux")]
fn daemon_that_ends_with(mount: &MountPoint) -> Option<DaemonProcess> {
    let of_view = device::daemon_of(&mount.source).map(|daemon| i64::from(daemon.pid));
    let about = || ControlFileClient::of(mount.dir.clone()).about().ok()?["pid"].as_i64();
    let pid = of_view.or_else(about)?;
    DaemonProcess::open(pid.try_into().ok()?).filter(|daemon| daemon.fuse_devices() == 1)
}
