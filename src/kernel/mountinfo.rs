//! Lists the mounts of this machine from `/proc/self/mountinfo`, and probes whether the daemon of a
//! mount responds.

use crate::child_call::ChildCall;
use engine::time::Span;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The file system type of latchfs mounts: directories of locks.
pub const TYPE: &str = "fuse.latchfs";
/// The file system type of views of guarded folders.
pub const VIEW_TYPE: &str = "fuse.latchfs-view";

/// The maximum number of symlinks that [`resolve`] follows before it fails with ELOOP, as in the
/// kernel.
const LINKS_MAX: usize = 40;
/// How long [`probe`] waits for an answer. A running daemon answers in microseconds, a stopped one
/// never does.
const PROBE_PATIENCE: Span = Span::from_secs(2);

/// A mount of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// The mount point.
    pub dir: PathBuf,
    /// The device number of the file system, which distinguishes two mounts on the same directory.
    pub device: Device,
    /// The file system type, such as [`TYPE`] and [`VIEW_TYPE`].
    pub kind: String,
    /// The source of the mount: a device, or a text of the daemon.
    pub source: String,
    /// Whether the root of the file system is mounted at `dir`, rather than a subdirectory of it,
    /// as `mount --bind` can do.
    pub whole: bool,
    /// Whether the kernel follows symlinks in this mount (no `nosymfollow`).
    pub follows_symlinks: bool,
    /// The user that mounted a FUSE file system; 0 for any other.
    pub mounter: u32,
}

/// The device number of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// The major number of the device.
    pub major: u32,
    /// The minor number of the device.
    pub minor: u32,
}

/// Whether a daemon serves a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The daemon responds.
    Live,
    /// The daemon is gone: every operation fails with ENOTCONN.
    Dead,
    /// The daemon does not respond: it is stopped or stuck.
    Silent,
}

impl MountPoint {
    /// Whether the mount is a latchfs mount: a directory of locks.
    pub fn is_latchfs(&self) -> bool {
        self.kind == TYPE
    }

    /// Whether the mount is the view of a guarded folder.
    pub fn is_view(&self) -> bool {
        self.kind == VIEW_TYPE
    }

    /// Whether a daemon of latchfs made the mount.
    pub fn is_ours(&self) -> bool {
        self.is_latchfs() || self.is_view()
    }
}

/// Returns all mounts of this machine, in the order in which they were made; a later one hides an
/// earlier one on the same directory.
pub fn read() -> io::Result<Vec<MountPoint>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Returns the visible latchfs mounts: those whose whole file system is mounted, and that no other
/// mount on the same directory hides.
pub fn ours() -> io::Result<Vec<MountPoint>> {
    whole_visible(MountPoint::is_latchfs)
}

/// Returns the visible mounts that daemons of latchfs made: directories of locks, and views.
pub fn ours_and_views() -> io::Result<Vec<MountPoint>> {
    whole_visible(MountPoint::is_ours)
}

fn whole_visible(is_wanted: impl Fn(&MountPoint) -> bool) -> io::Result<Vec<MountPoint>> {
    Ok(visible(read()?).into_iter().filter(|mount| is_wanted(mount) && mount.whole).collect())
}

/// Returns the topmost mount whose mount point is exactly `dir`; `None` if there is none.
pub fn at(dir: &Path) -> io::Result<Option<MountPoint>> {
    Ok(read()?.into_iter().rev().find(|mount| mount.dir == dir))
}

/// Whether a directory, or its nearest ancestor that exists, is on the file system that is mounted
/// at `/`.
pub fn is_on_root(dir: &Path) -> io::Result<bool> {
    let there = dir.ancestors().find_map(|dir| dir.canonicalize().ok());
    let there = there.unwrap_or_else(|| "/".into());
    let mounts = read()?;
    let mut above = there.ancestors().filter(|dir| dir.parent().is_some());
    Ok(!above.any(|dir| mounts.iter().any(|mount| mount.dir == dir)))
}

/// Whether a directory, or its nearest ancestor that exists, is in a latchfs mount, or in the view
/// of a guarded folder.
pub fn is_on_ours(dir: &Path) -> io::Result<bool> {
    let there = dir.ancestors().find_map(|dir| dir.canonicalize().ok());
    let there = there.unwrap_or_else(|| "/".into());
    let mounts = visible(read()?);
    let nearest = there.ancestors().find_map(|dir| mounts.iter().find(|mount| mount.dir == dir));
    Ok(nearest.is_some_and(MountPoint::is_ours))
}

fn visible(mounts: Vec<MountPoint>) -> Vec<MountPoint> {
    let mut seen: Vec<MountPoint> = Vec::new();
    for mount in mounts {
        seen.retain(|other| other.dir != mount.dir);
        seen.push(mount);
    }
    seen
}

/// Parses `/proc/self/mountinfo`, whose lines proc(5) defines as `36 35 98:0 /root /dir options
/// [tags...] - type source options`.
fn parse(text: &[u8]) -> Vec<MountPoint> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = parse_device(fields.nth(2)?)?;
    let root = fields.next()?;
    let dir = PathBuf::from(OsString::from_vec(unescape(fields.next()?)));
    let mut options = fields.next()?.split(|&byte| byte == b',');
    let follows_symlinks = options.all(|option| option != b"nosymfollow");
    fields.find(|field| *field == b"-")?;
    let kind = String::from_utf8(unescape(fields.next()?)).ok()?;
    let source = String::from_utf8(unescape(fields.next()?)).unwrap_or_default();
    let options = fields.next().unwrap_or_default();
    let mut options = options.split(|&byte| byte == b',');
    let mounter = options.find_map(|option| option.strip_prefix(b"user_id="));
    let mounter = mounter.and_then(|uid| std::str::from_utf8(uid).ok()?.parse().ok());
    let (whole, mounter) = (root == b"/", mounter.unwrap_or(0));
    Some(MountPoint { dir, device, kind, source, whole, follows_symlinks, mounter })
}

fn parse_device(field: &[u8]) -> Option<Device> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some(Device { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// Decodes octal escapes in a field of mountinfo: the kernel writes a space as `\040`, and escapes
/// tab, newline and backslash likewise.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|code| code.iter().all(|c| (b'0'..=b'7').contains(c)));
        match code {
            Some(code) if byte == b'\\' => {
                let value = code.iter().fold(0_u32, |value, c| value * 8 + u32::from(c - b'0'));
                bytes.push(value as u8);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    bytes
}

/// Returns the absolute path of `path` without symlinks. Nothing below the last component is
/// accessed, because such an access fails on a mount whose daemon is dead; the last component need
/// not exist.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return std::fs::canonicalize(&path);
        };
        let parent = match std::fs::canonicalize(parent) {
            // The parent directory of the path does not exist, so its own parents are resolved
            // first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => resolve(parent)?,
            parent => parent?,
        };
        let here = parent.join(name);
        match std::fs::read_link(&here) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(here),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// A name that never exists, so that only the daemon can answer its lookup. A stat of the mount
/// point would prove nothing: the kernel caches its attributes for a while after the daemon's
/// death.
const PROBE_NAME: &str = ".latchfs-probe";

/// Returns whether a daemon serves the mount at `dir`. Waits for at most two seconds.
pub fn probe(dir: &Path) -> Life {
    let name = dir.join(PROBE_NAME);
    let stat = move || std::fs::symlink_metadata(&name).map(|_| Vec::new());
    let Ok(mut call) = ChildCall::start(stat) else { return Life::Silent };
    match call.answer(PROBE_PATIENCE) {
        Ok(None) => Life::Silent,
        Err(error) if is_dead(&error) => Life::Dead,
        _ => Life::Live,
    }
}

/// Whether `error` is one that the kernel returns for a mount whose daemon is gone.
pub fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"\
22 27 0:21 / /proc rw,relatime - proc proc rw
41 27 0:50 / /tmp/a\\040b rw,nosuid shared:7 master:2 - fuse.latchfs latchfs rw,user_id=0
42 27 0:51 / /locks rw,nosymfollow - fuse.latchfs latchfs rw
43 27 0:52 / /locks rw - tmpfs tmpfs rw
44 27 0:51 /team /bind rw - fuse.latchfs latchfs rw
45 27 0:54 / /notes rw - fuse.latchfs-view latchfs:7:9 rw,user_id=0
not a line
";

    #[test]
    fn mountinfo_lines_are_parsed() {
        let mounts = parse(SAMPLE);
        assert_eq!(mounts.len(), 6);
        assert_eq!(mounts[1].dir, Path::new("/tmp/a b"));
        assert_eq!(mounts[1].device, Device { major: 0, minor: 50 });
        assert!(mounts[1].is_latchfs() && !mounts[0].is_latchfs());
        assert!(mounts[5].is_view() && mounts[5].is_ours() && !mounts[5].is_latchfs());
        assert!(mounts[2].is_ours() && !mounts[2].is_view() && !mounts[3].is_ours());
        assert_eq!(mounts[5].source, "latchfs:7:9");
        assert!(mounts[2].whole && !mounts[4].whole);
        assert!(mounts[1].follows_symlinks && !mounts[2].follows_symlinks);
    }

    #[test]
    fn a_later_mount_hides_an_earlier_one() {
        let seen = visible(parse(SAMPLE));
        let at_locks: Vec<_> = seen.iter().filter(|m| m.dir == Path::new("/locks")).collect();
        assert_eq!(at_locks.len(), 1);
        assert_eq!(at_locks[0].kind, "tmpfs");
    }

    #[test]
    fn a_path_whose_end_does_not_exist_is_resolved() {
        let base = std::fs::canonicalize(std::env::temp_dir()).expect("there is one");
        let there = base.join("no-such-directory/x");
        assert_eq!(resolve(&there).expect("resolves"), there);
        assert_eq!(resolve(Path::new("/")).expect("resolves"), Path::new("/"));
    }

    #[test]
    fn proc_is_found_and_live() {
        assert!(at(Path::new("/proc")).expect("readable").is_some_and(|m| m.kind == "proc"));
        assert_eq!(probe(Path::new("/proc")), Life::Live);
    }
}
