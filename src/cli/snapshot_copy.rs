//! Copies a snapshot that a view shows to a new directory, with the rights of the caller.

use super::exit::{CliError, CliResult};
use super::output;
use crate::guard::barrier::content_digest::ContentDigest;
use crate::guard::folder_snapshot::snapshot_manifest::manifest_text;
use crate::guard::folder_snapshot::tree_copy::TreeCopy;
use crate::guard::folder_snapshot::tree_digest::entries_of;
use crate::guard::linux_disk::LinuxDisk;
use crate::os_error::said;
use crate::time::{Span, boot_now};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// How often this process says how far it has come.
const TELL: Span = Span::from_secs(1);

fn open(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(dir, flags, Mode::empty())?)
}

/// Copies the files of a snapshot, whose manifest has the digest `root`, to a directory that does
/// not exist. It appears complete. Returns the attributes that could not be kept.
pub(super) fn copy((tree, root): (&Path, &str), to: &Path) -> CliResult<Vec<String>> {
    let shown = to.display();
    if to.symlink_metadata().is_ok() {
        return Err(CliError::usage(format!(
            "{shown} is there; name a directory that does not exist yet"
        )));
    }
    let mut part = to.as_os_str().to_owned();
    part.push(format!(".part-{}", std::process::id()));
    let part = Path::new(&part);
    let copied = copy_to((tree, root), part).and_then(|degraded| {
        rustix::fs::renameat_with(CWD, part, CWD, to, RenameFlags::NOREPLACE)?;
        Ok(degraded)
    });
    copied.map_err(|error| {
        // A part that can't be removed has a name that says so.
        let _ = std::fs::remove_dir_all(part);
        CliError::unavailable(format!(
            "the snapshot was not restored to {shown}: {}; the files of other users are restored \
             by root",
            said(&error)
        ))
    })
}

fn copy_to((tree, root): (&Path, &str), part: &Path) -> io::Result<Vec<String>> {
    rustix::fs::mkdir(part, Mode::RWXU)?;
    let (from, to) = (open(tree)?, open(part)?);
    let (files, next) = (Cell::new(0_u64), Cell::new(boot_now() + TELL));
    let count = || {
        files.set(files.get() + 1);
        if boot_now() >= next.get() {
            next.set(boot_now() + TELL);
            output::say(&format!("restored {} files", files.get()));
        }
    };
    let may_link = |_: &std::ffi::OsStr, _: &crate::guard::disk::Look| false;
    let mut copy = TreeCopy::new(&LinuxDisk, (&from, to), &may_link);
    copy.copy_changed(&count)?;
    copy.finish()?;
    let (_, degraded) = copy.into_summary();
    let copied = open(part)?;
    let mut entries = entries_of(&LinuxDisk, &copied, |_| false, &count)?;
    if ContentDigest::of(manifest_text(&mut entries).as_bytes()).to_string() != root {
        let why = "the files do not have the digests of the manifest; see 'latchfs folder-snapshot \
                   verify'";
        return Err(io::Error::other(why));
    }
    rustix::fs::syncfs(&copied)?;
    Ok(degraded)
}
