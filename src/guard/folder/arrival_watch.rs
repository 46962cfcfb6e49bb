//! Watches the directories in which missing files and markers will appear (inotify), so that the
//! folder is compared at once when one arrives, and not up to five seconds later. Where the kernel
//! reports no changes, as on a network file system, the comparisons at intervals find the file.

use crate::guard::disk::operations::Disk;
use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of directories that are watched for missing files.
const WATCHED_DIRS_MAX: usize = 64;
/// The least time between two reports.
const PAUSE: Duration = Duration::from_millis(50);
/// The space for events, which are not looked at.
const EVENT_BYTES: usize = 4_096;
/// Paths in the directories of the markers.
const MARKERS: [&str; 2] = [".latchfs/folder", ".latchfs/markers/any"];

/// The watches of a tenure that arrives.
pub(in crate::guard) struct ArrivalWatch {
    inotify: Arc<OwnedFd>,
    watched: Mutex<BTreeSet<i32>>,
}

impl ArrivalWatch {
    /// Starts the thread that calls `on_change` when something has changed in a watched directory.
    pub(in crate::guard) fn start(on_change: impl Fn() + Send + 'static) -> io::Result<Self> {
        let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC)?);
        let reads = Arc::clone(&inotify);
        let run = move || {
            let mut events = [0_u8; EVENT_BYTES];
            loop {
                match rustix::io::read(&reads, &mut events) {
                    Err(Errno::INTR) => continue,
                    Err(error) => return log::warn!("no file is noticed at once: {error}"),
                    Ok(_) => on_change(),
                }
                // A program that changes the directory all the time is reported now and then.
                std::thread::sleep(PAUSE);
            }
        };
        std::thread::Builder::new().name("arrival".to_owned()).spawn(run)?;
        Ok(Self { inotify, watched: Mutex::default() })
    }

    /// Watches for markers and for these paths of the folder, and for nothing else.
    pub(in crate::guard) fn watch<'p, D: Disk>(
        &self,
        disk: &D,
        folder: &D::Dir,
        paths: impl Iterator<Item = &'p str>,
    ) {
        let mut dirs = BTreeSet::new();
        let mut watched = BTreeSet::new();
        for path in MARKERS.into_iter().chain(paths) {
            if dirs.len() < WATCHED_DIRS_MAX && dirs.insert(Path::new(path).parent()) {
                watched.extend(self.watch_dir_of(disk, folder, path));
            }
        }
        self.replace(watched);
    }

    /// Ends all watches.
    pub(in crate::guard) fn end(&self) {
        self.replace(BTreeSet::new());
    }

    fn replace(&self, watched: BTreeSet<i32>) {
        let mut before = self.watched.lock();
        for old in before.difference(&watched) {
            // The directory may be gone, and its watch with it.
            let _ = inotify::remove_watch(&self.inotify, *old);
        }
        *before = watched;
    }

    /// Watches the directory of a path, or the nearest one above it that is there.
    fn watch_dir_of<D: Disk>(&self, disk: &D, folder: &D::Dir, path: &str) -> Option<i32> {
        let mut path = Path::new(path);
        let dir = loop {
            match disk.open_parent(folder, OsStr::new(path)) {
                Ok((dir, _)) => break dir,
                Err(_) => path = path.parent().filter(|up| !up.as_os_str().is_empty())?,
            }
        };
        let changes = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE;
        inotify::add_watch(&self.inotify, disk.open_path(&dir)?, changes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::disk::linux_disk::LinuxDisk;
    use std::fs::{self, File};
    use std::sync::mpsc::channel;

    #[test]
    fn few_directories_are_watched_and_none_afterwards() {
        let (send, changes) = channel();
        let watch = ArrivalWatch::start(move || send.send(()).unwrap_or_default());
        let watch = watch.expect("Linux has inotify");
        let root = std::env::temp_dir().join(format!("latchfs-watch-{}", std::process::id()));
        let paths: Vec<_> = (0..2 * WATCHED_DIRS_MAX).map(|n| format!("dir{n}/file")).collect();
        for n in 0..2 * WATCHED_DIRS_MAX {
            fs::create_dir_all(root.join(format!("dir{n}"))).expect("made");
        }
        let folder = OwnedFd::from(File::open(&root).expect("there"));
        watch.watch(&LinuxDisk, &folder, paths.iter().map(String::as_str));
        // There are no directories of markers, so that the folder itself is watched for them.
        assert_eq!(watch.watched.lock().len(), WATCHED_DIRS_MAX - 1);
        fs::write(root.join("dir0/file"), "here").expect("written");
        changes.recv().expect("the change is noticed");
        watch.end();
        assert_eq!(watch.watched.lock().len(), 0);
        fs::remove_dir_all(root).expect("removed");
    }
}
