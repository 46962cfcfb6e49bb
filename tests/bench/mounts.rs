//! File systems that are mounted for a measurement, and always unmounted afterwards.

use crate::report::poll;
use crate::scratch::Scratch;
use latchfs::time::Span;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, io, mem, ptr};

/// Timeout for a daemon to mount its directory.
const MOUNT_PATIENCE: Span = Span::from_secs(10);
/// Timeout for a daemon to end after its mount is unmounted.
const END_PATIENCE: Span = Span::from_secs(5);

/// The name of the shown directory beside its mount point.
const FOLDER: &str = "folder";

/// A mounted directory, and the daemon that serves it.
pub(crate) struct Mount {
    dir: PathBuf,
    daemon: Option<Child>,
    scratch: Scratch,
}

impl Mount {
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the directory that a guard, bindfs or the overlay shows.
    pub(crate) fn folder(&self) -> PathBuf {
        self.scratch.path().join(FOLDER)
    }

    /// Mounts latchfs, with a state directory of its own.
    pub(crate) fn latchfs(options: &[&str]) -> Result<Self, String> {
        let scratch = Scratch::new()?;
        let (dir, state) = (mount_point(&scratch)?, scratch.path().join("state"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_latchfs"));
        command.arg("mount").arg(&dir).arg("--foreground").arg("--state").arg(state).args(options);
        Self::start(scratch, dir, &mut command)
    }

    /// Mounts the locks of the latchfs server at the URL `server`.
    pub(crate) fn remote(server: &str) -> Result<Self, String> {
        let scratch = Scratch::new()?;
        let dir = mount_point(&scratch)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_latchfs"));
        command.arg("mount").arg(&dir).args(["--foreground", "--server", server]);
        Self::start(scratch, dir, &mut command)
    }

    /// Mounts the FUSE file system that does no work besides answering the kernel, as a baseline.
    pub(crate) fn null() -> Result<Self, String> {
        let scratch = Scratch::new()?;
        let dir = mount_point(&scratch)?;
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        Self::start(scratch, dir.clone(), Command::new(this).arg("null-fs").arg(&dir))
    }

    /// Mounts a tmpfs, which the kernel itself serves.
    #[allow(unsafe_code)]
    pub(crate) fn tmpfs() -> Result<Self, String> {
        let scratch = Scratch::new()?;
        let dir = mount_point(&scratch)?;
        let target = c_path(&dir);
        let tmpfs = c"tmpfs".as_ptr();
        // SAFETY: all strings end with a zero byte, and live until the call returns.
        let result = unsafe { libc::mount(tmpfs, target.as_ptr(), tmpfs, 0, ptr::null()) };
        if result != 0 {
            let error = io::Error::last_os_error();
            return Err(format!("can't mount a tmpfs ({error}); run the benchmark as root"));
        }
        Ok(Self { dir, daemon: None, scratch })
    }

    /// Shows a new guarded folder, with the lock held by this machine.
    pub(crate) fn guard(init: &[&str], options: &[&str]) -> Result<Self, String> {
        let scratch = Scratch::new()?;
        let (dir, folder) = (mount_point(&scratch)?, folder(&scratch)?);
        let latchfs = || Command::new(env!("CARGO_BIN_EXE_latchfs"));
        let made = latchfs().args(["guard", "init"]).arg(&folder).args(init).output();
        let made = made.map_err(|error| format!("can't start latchfs: {error}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned());
        }
        let mut command = latchfs();
        command.arg("guard").arg(folder).arg(&dir).arg("--stage").arg(scratch.path().join("stage"));
        Self::start(scratch, dir, command.args(options))
    }

    /// Mounts a directory by bindfs, the FUSE file system that passes everything on; `None` if
    /// bindfs is not installed.
    pub(crate) fn bindfs() -> Result<Option<Self>, String> {
        if Command::new("bindfs").arg("--version").stdout(Stdio::null()).status().is_err() {
            return Ok(None);
        }
        let scratch = Scratch::new()?;
        let (dir, folder) = (mount_point(&scratch)?, folder(&scratch)?);
        let mut command = Command::new("bindfs");
        Self::start(scratch, dir.clone(), command.arg("-f").arg(folder).arg(dir)).map(Some)
    }

    /// Mounts an overlay, whose changes go to a directory of the same disk.
    #[allow(unsafe_code)]
    pub(crate) fn overlay() -> Result<Self, String> {
        let scratch = Scratch::new()?;
        let (dir, lower) = (mount_point(&scratch)?, folder(&scratch)?);
        let (upper, work) = (scratch.path().join("upper"), scratch.path().join("work"));
        for dir in [&upper, &work] {
            fs::create_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        let (lower, upper, work) = (lower.display(), upper.display(), work.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let (options, target) = (c_path(Path::new(&options)), c_path(&dir));
        let overlay = c"overlay".as_ptr();
        // SAFETY: all strings end with a zero byte, and live until the call returns.
        let result =
            unsafe { libc::mount(overlay, target.as_ptr(), overlay, 0, options.as_ptr().cast()) };
        if result != 0 {
            return Err(format!("can't mount an overlay: {}", io::Error::last_os_error()));
        }
        Ok(Self { dir, daemon: None, scratch })
    }

    /// Returns a directory of the disk itself.
    pub(crate) fn native() -> Result<Self, String> {
        let scratch = Scratch::new()?;
        let dir = folder(&scratch)?;
        Ok(Self { dir, daemon: None, scratch })
    }

    /// Returns the process id of the daemon that serves the mount.
    pub(crate) fn daemon_id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    fn start(scratch: Scratch, dir: PathBuf, command: &mut Command) -> Result<Self, String> {
        let daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let daemon = daemon.map_err(|error| format!("can't start {command:?}: {error}"))?;
        let mut mount = Self { dir, daemon: Some(daemon), scratch };
        let mut ended = None;
        let settled = poll(MOUNT_PATIENCE, || {
            ended = mount.daemon.as_mut().and_then(|daemon| daemon.try_wait().ok().flatten());
            ended.is_some() || mount.is_mounted()
        });
        match (settled, ended) {
            (_, Some(status)) => Err(format!("{command:?} ended, not mounted: {status}")),
            (false, None) => Err(format!("{command:?} has not mounted in {MOUNT_PATIENCE}")),
            (true, None) => Ok(mount),
        }
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let dir = self.dir.to_string_lossy();
        mounts.lines().any(|line| line.split(' ').nth(4) == Some(&dir))
    }
}

fn mount_point(scratch: &Scratch) -> Result<PathBuf, String> {
    let dir = scratch.path().join("mnt");
    fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    dir.canonicalize().map_err(|error| format!("{}: {error}", dir.display()))
}

fn folder(scratch: &Scratch) -> Result<PathBuf, String> {
    let dir = scratch.path().join(FOLDER);
    fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("paths hold no zero byte")
}

impl Drop for Mount {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let dir = c_path(&self.dir);
        // SAFETY: the path ends with a zero byte and lives until the call returns.
        unsafe { libc::umount2(dir.as_ptr(), libc::MNT_DETACH) };
        let Some(daemon) = &mut self.daemon else { return };
        if !poll(END_PATIENCE, || !matches!(daemon.try_wait(), Ok(None))) {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Pins this process, and all that it starts, to one processor.
#[allow(unsafe_code)]
pub(crate) fn pin() -> Result<(), String> {
    // SAFETY: a `cpu_set_t` consists of numbers, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: processor 0 lies within the `cpu_set_t`, which has more than a thousand processors.
    unsafe { libc::CPU_SET(0, &mut set) };
    // SAFETY: sched_setaffinity(2) reads only `set`, which is valid and whose size is passed.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if result == 0 { Ok(()) } else { Err(format!("can't pin: {}", io::Error::last_os_error())) }
}
