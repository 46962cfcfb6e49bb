//! The state directory of a guarded folder: its stages, its lost files, and the files of this
//! machine. It lies on the file system of the folder, since a file is published by a rename.
//!
//! Places that a sync tool carries to other machines. A mount there would become files on those
//! machines, and what they do to these files would come back as operations on locks.

use super::folder_changes::BarrierDirs;
use super::folder_guard::FolderDirs;
use super::folder_record::{FolderRecord, RECORD_PATH};
use crate::base::said;
use crate::guard::disk::operations::Disk;
use crate::guard::folder::folder_record::{FolderClaim, Locker};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// Why a folder can't be guarded, or its state directory can't be used.
#[derive(Debug)]
pub(crate) enum PlaceError {
    /// A system call on this path failed.
    Io(PathBuf, io::Error),
    /// The folder is one that no guard may have, for this reason.
    Folder(PathBuf, &'static str),
    /// Another guard of this machine has the folder.
    Guarded(PathBuf, Option<Locker>),
    /// Another guard of this machine, of a folder with the same id, has this directory.
    Copied(PathBuf, PathBuf),
    /// The state directory is on another file system than the folder.
    OtherFileSystem { state: PathBuf, folder: PathBuf },
    /// The state directory belongs to this other user.
    OtherUser(PathBuf, u32),
    /// Other users may write to the state directory.
    Open(PathBuf),
    /// The state directory lies in the folder.
    Inside(PathBuf, PathBuf),
    /// A sync tool carries the state directory.
    Synced(PathBuf, SyncMark),
    /// The state directory is that of another storage than the folder's record names.
    OtherStorage(PathBuf),
    /// The folder's file system lacks something that a guard needs.
    Lacks(PathBuf, &'static str),
}

/// Returns the sentence for a folder whose id another guarded folder has as well.
fn copied(folder: &Path, host: &Path) -> String {
    let (folder, host) = (folder.display(), host.display());
    format!(
        "another guard of this machine uses {host} for a folder with the same id as {folder}, of \
         which one is a copy of the other; give the copy an id of its own by 'latchfs guard init \
         {folder} --new-id'"
    )
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(
                f,
                "{} can't be used: {}; see its permissions, or name a state directory of your own \
                 by --stage DIR",
                path.display(),
                said(error)
            ),
            Self::Folder(folder, why) => write!(f, "{} can't be guarded: {why}", folder.display()),
            Self::Guarded(folder, by) => {
                let by = by.as_ref().map_or(String::new(), |by| format!(", {by},"));
                write!(
                    f,
                    "another guard of this machine{by} has {0}; name its view in place of the \
                     folder, or, if it has none, end it with 'latchfs guard give {0}'",
                    folder.display()
                )
            }
            Self::Copied(folder, host) => f.write_str(&copied(folder, host)),
            Self::OtherFileSystem { state, folder } => write!(
                f,
                "the state directory {} is on another file system than {}, and a file is published \
                 by a rename; name a directory beside the folder by --stage DIR",
                state.display(),
                folder.display()
            ),
            Self::OtherUser(state, uid) => write!(
                f,
                "the state directory {} belongs to user {uid}, who could exchange what is \
                 published; name another one by --stage DIR",
                state.display()
            ),
            Self::Open(state) => write!(
                f,
                "other users may write to the state directory {}, and could exchange what is \
                 published; run 'chmod go-w' on it, or name another one by --stage DIR",
                state.display()
            ),
            Self::Inside(state, folder) => write!(
                f,
                "the state directory {} lies in {} itself; name a directory beside the folder by \
                 --stage DIR",
                state.display(),
                folder.display()
            ),
            Self::Synced(state, mark) => write!(
                f,
                "the state directory {} lies in a folder of a sync tool: {mark}; name one outside \
                 of it by --stage DIR",
                state.display()
            ),
            Self::OtherStorage(state) => write!(
                f,
                "the state directory {} is not that of the storage that the folder's machines \
                 share; name the shared one by --stage DIR",
                state.display()
            ),
            Self::Lacks(folder, what) => write!(
                f,
                "the file system of {} has no {what}, without which no guard can keep an older \
                 tenure out; use a local one such as ext4, xfs, btrfs or tmpfs",
                folder.display()
            ),
        }
    }
}

/// How programs change the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangedThrough {
    /// Through a view, which publishes files.
    View,
    /// Directly: the guard has no view, and publishes nothing.
    Folder,
}

/// The directories of a guarded folder, opened and checked.
pub(crate) struct StatePlace {
    /// The folder, locked against guards of other users unless machines share its storage.
    pub(crate) folder: OwnedFd,
    /// The directory of this machine, locked against other guards of the same user.
    _locked: OwnedFd,
    /// The state directory.
    pub(crate) path: PathBuf,
    /// The directory of this machine in the state directory.
    pub(crate) host: PathBuf,
}

fn open_dir(path: &Path) -> Result<OwnedFd, PlaceError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| PlaceError::Io(path.to_owned(), error.into()))
}

fn make_private_dir(path: &Path) -> Result<(), PlaceError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(PlaceError::Io(path.to_owned(), error))
        }
        _ => Ok(()),
    }
}

/// Returns the device number of the file system of an open directory.
fn device(fd: &OwnedFd, path: &Path) -> Result<rustix::fs::Dev, PlaceError> {
    let found = rustix::fs::fstat(fd);
    Ok(found.map_err(|error| PlaceError::Io(path.to_owned(), error.into()))?.st_dev)
}

/// Checks that only this user can change an open state directory.
fn check_private(dir: &OwnedFd, path: &Path) -> Result<(), PlaceError> {
    let found = rustix::fs::fstat(dir);
    let found = found.map_err(|error| PlaceError::Io(path.to_owned(), error.into()))?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(PlaceError::OtherUser(path.to_owned(), found.st_uid));
    }
    if Mode::from_raw_mode(found.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
        return Err(PlaceError::Open(path.to_owned()));
    }
    Ok(())
}

impl StatePlace {
    /// Opens the folder, locks it against other guards of this machine, and opens its state
    /// directory, which is made if it does not exist. `host` is the client name of this machine.
    pub(crate) fn open(
        folder: &Path,
        record: &FolderRecord,
        state: &Path,
        host: &str,
        through: ChangedThrough,
    ) -> Result<Self, PlaceError> {
        if folder == Path::new("/") {
            return Err(PlaceError::Folder(folder.to_owned(), "it is the root of this machine"));
        }
        let opened = open_dir(folder)?;
        // The machines of a shared storage lock their own directories there instead.
        let is_shared = record.storage.is_some();
        let claim = if is_shared { FolderClaim::Own } else { claim(&opened, folder)? };
        let path = state.join(&record.id);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|error| PlaceError::Io(path.clone(), error))?;
        let opened_state = open_dir(&path)?;
        check_private(&opened_state, &path)?;
        let real = fs::canonicalize(&path).map_err(|e| PlaceError::Io(path.clone(), e))?;
        if real.starts_with(folder) {
            return Err(PlaceError::Inside(path, folder.to_owned()));
        }
        if device(&opened_state, &path)? != device(&opened, folder)? {
            return Err(PlaceError::OtherFileSystem { state: path, folder: folder.to_owned() });
        }
        let own = rustix::process::geteuid().as_raw();
        if let Some(mark) = synced_by(&real, own) {
            return Err(PlaceError::Synced(path, mark));
        }
        check_storage(&path, record)?;
        let host = path.join(host);
        for dir in [
            path.join("stage"),
            path.join("lost"),
            path.join("snapshots"),
            host.clone(),
            host.join("local"),
        ] {
            make_private_dir(&dir)?;
        }
        let locked = open_dir(&host)?;
        lock(&locked, &host, || match claim {
            // The folder itself could be locked, so the guard that has locked the directory guards
            // another folder with the same id.
            FolderClaim::Own if !is_shared => PlaceError::Copied(folder.to_owned(), host.clone()),
            _ => PlaceError::Guarded(folder.to_owned(), Locker::of(&locked)),
        })?;
        let waits = claim.wait_for(&opened, folder);
        waits.map_err(|error| PlaceError::Io(folder.to_owned(), error))?;
        if through == ChangedThrough::View {
            probe(&opened_state, folder)?;
        }
        Ok(Self { folder: opened, _locked: locked, path, host })
    }

    /// Returns the directory of the local files.
    pub(crate) fn local(&self) -> Result<OwnedFd, PlaceError> {
        open_dir(&self.host.join("local"))
    }

    /// Returns the directories of the stages and of the folder snapshots.
    pub(crate) fn snapshots(&self) -> Result<(OwnedFd, OwnedFd), PlaceError> {
        Ok((open_dir(&self.path.join("stage"))?, open_dir(&self.path.join("snapshots"))?))
    }

    /// Returns the directories that the sync barrier uses.
    pub(crate) fn barrier_dirs<D>(&self) -> Result<BarrierDirs<D>, PlaceError>
    where
        D: Disk<Dir = OwnedFd>,
    {
        let folder = self.folder.try_clone();
        let folder = folder.map_err(|error| PlaceError::Io(self.path.clone(), error))?;
        Ok(BarrierDirs { folder, state: open_dir(&self.host)? })
    }

    /// Returns the directories that the guard uses.
    pub(crate) fn dirs<D: Disk<Dir = OwnedFd>>(&self) -> Result<FolderDirs<D>, PlaceError> {
        let (stages, lost) =
            (open_dir(&self.path.join("stage"))?, open_dir(&self.path.join("lost"))?);
        let folder = self.folder.try_clone();
        let folder = folder.map_err(|error| PlaceError::Io(self.path.clone(), error))?;
        Ok(FolderDirs { folder, stages, lost })
    }
}

/// Locks a private directory against other guards, as long as the descriptor is open.
fn lock(dir: &OwnedFd, path: &Path, taken: impl FnOnce() -> PlaceError) -> Result<(), PlaceError> {
    match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(taken()),
        locked => locked.map_err(|error| PlaceError::Io(path.to_owned(), error.into())),
    }
}

/// Locks a folder against the guards of other users, unless a program has it locked that is no
/// guard.
fn claim(opened: &OwnedFd, folder: &Path) -> Result<FolderClaim, PlaceError> {
    match FolderClaim::take(opened) {
        Ok(FolderClaim::Guarded(by)) => Err(PlaceError::Guarded(folder.to_owned(), by)),
        taken => taken.map_err(|error| PlaceError::Io(folder.to_owned(), error)),
    }
}

/// Locks a folder against the guards of this machine, as long as the descriptor is open.
pub(crate) fn lock_folder(folder: &Path) -> Result<OwnedFd, PlaceError> {
    let opened = open_dir(folder)?;
    claim(&opened, folder)?;
    Ok(opened)
}

/// Returns the process, other than a guard, that has locked a folder itself.
pub(crate) fn locked_by_other(folder: &Path) -> Option<Locker> {
    let opened = open_dir(folder).ok()?;
    Locker::of(&opened).filter(|locker| !locker.may_guard(&opened))
}

/// Checks that the state directory lies on the storage that the folder's record names. The first
/// guard of a shared storage writes the id there.
fn check_storage(state: &Path, record: &FolderRecord) -> Result<(), PlaceError> {
    let Some(wanted) = &record.storage else { return Ok(()) };
    let path = state.join("storage");
    match fs::read_to_string(&path) {
        Ok(found) if found.trim() == wanted => Ok(()),
        Ok(_) => Err(PlaceError::OtherStorage(state.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::write(&path, format!("{wanted}\n")).map_err(|error| PlaceError::Io(path, error))
        }
        Err(error) => Err(PlaceError::Io(path, error)),
    }
}

/// Fails: only Linux has views.
#[cfg(not(target_os = "linux"))]
fn probe(_state: &OwnedFd, folder: &Path) -> Result<(), PlaceError> {
    Err(PlaceError::Lacks(folder.to_owned(), "views on this system"))
}

/// Checks by calls that the file system can do what the guard of a view needs.
#[cfg(target_os = "linux")]
fn probe(state: &OwnedFd, folder: &Path) -> Result<(), PlaceError> {
    use rustix::fs::RenameFlags;
    let lacks = |what| PlaceError::Lacks(folder.to_owned(), what);
    let failed = |error: rustix::io::Errno| PlaceError::Io(folder.to_owned(), error.into());
    let pid = std::process::id();
    let names = [format!("probe-{pid}-a"), format!("probe-{pid}-b")];
    let remove = || {
        for name in &names {
            let _ = rustix::fs::unlinkat(state, name, rustix::fs::AtFlags::empty());
        }
    };
    remove();
    let make = |name: &String| {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::openat(state, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)
    };
    let probed = make(&names[0]).and_then(|_| make(&names[1])).and_then(|_| {
        let [a, b] = &names;
        match rustix::fs::renameat_with(state, a, state, b, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => {}
            Ok(()) | Err(_) => {
                return Err(lacks("renames that replace nothing (RENAME_NOREPLACE)"));
            }
        }
        rustix::fs::renameat_with(state, a, state, b, RenameFlags::EXCHANGE)
            .map_err(|_| lacks("exchange of two files (RENAME_EXCHANGE)"))?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::openat(state, ".", flags, Mode::RUSR | Mode::WUSR)
            .map_err(|_| lacks("files without a name (O_TMPFILE)"))
            .map(drop)
    });
    remove();
    probed
}

/// The files and directories by which a sync tool marks a folder that it carries.
const MARKS: [(&str, &str); 12] = [
    (".stfolder", "Syncthing"),
    (".stignore", "Syncthing"),
    (".dropbox", "Dropbox"),
    (".dropbox.cache", "Dropbox"),
    (".nextcloudsync.log", "Nextcloud"),
    (".owncloudsync.log", "ownCloud"),
    (".tmp.driveupload", "Google Drive"),
    (".tmp.drivedownload", "Google Drive"),
    (".849C9593-D756-4E56-8D6E-42412F2A707B", "OneDrive"),
    (".unison", "Unison"),
    (".resilio-sync", "Resilio Sync"),
    (RECORD_PATH, "the guard of a folder"),
];

/// How the names of folders begin that a sync tool carries. A name ends there, or goes on with a
/// hyphen or a space, as in `OneDrive - Company` and `GoogleDrive-user`.
const NAMES: [(&str, &str); 9] = [
    ("com~apple~CloudDocs", "iCloud"),
    ("Mobile Documents", "iCloud"),
    ("Dropbox", "Dropbox"),
    ("OneDrive", "OneDrive"),
    ("Nextcloud", "Nextcloud"),
    ("ownCloud", "ownCloud"),
    ("Google Drive", "Google Drive"),
    ("GoogleDrive", "Google Drive"),
    ("CloudStorage", "a cloud drive"),
];

/// A sync tool that carries a directory, and how that can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyncMark {
    /// The name of the sync tool.
    pub(crate) tool: &'static str,
    /// The file or directory that shows that the sync tool carries the directory.
    pub(crate) path: PathBuf,
}

impl fmt::Display for SyncMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} carries it to other machines, as {} shows", self.tool, self.path.display())
    }
}

/// Returns the mark of a sync tool that carries `path`, which has no symlinks. A mark counts only
/// if it belongs to root or to `user`: what another user has put into a shared directory says
/// nothing.
pub(crate) fn synced_by(path: &Path, user: u32) -> Option<SyncMark> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let is_trusted = |path: &Path| {
        path.symlink_metadata().is_ok_and(|found| found.uid() == 0 || found.uid() == user)
    };
    let of_dir = |dir: &Path| {
        let marks = MARKS.iter().map(|(name, tool)| (dir.join(name), *tool));
        // Unison keeps its archives in the home directory, whichever folders it carries.
        let is_archive = |mark: &Path| home.as_ref().is_some_and(|it| *mark == it.join(".unison"));
        let own = dir.file_name().map(|name| name.to_string_lossy());
        let named = own.and_then(|own| NAMES.iter().find(|(name, _)| is_named(&own, name)));
        marks
            .chain(named.map(|(_, tool)| (dir.to_owned(), *tool)))
            .find(|(mark, _)| !is_archive(mark) && is_trusted(mark))
            .map(|(path, tool)| SyncMark { tool, path })
    };
    path.ancestors().find_map(of_dir).or_else(|| of_unison(path, home.as_deref()?, &is_trusted))
}

/// Whether a folder's name is one that a sync tool gives.
fn is_named(own: &str, name: &str) -> bool {
    own.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ' ']))
}

/// Returns the profile of Unison in the home directory of which a root contains `path`.
fn of_unison(path: &Path, home: &Path, is_trusted: &dyn Fn(&Path) -> bool) -> Option<SyncMark> {
    let profiles = fs::read_dir(home.join(".unison")).ok()?.flatten().map(|entry| entry.path());
    let is_profile = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "prf");
    let mut profiles = profiles.filter(|profile| is_profile(profile) && is_trusted(profile));
    let contains = |line: &str| {
        let (key, root) = line.split_once('=')?;
        let root = Path::new(root.trim());
        (key.trim() == "root" && root.is_absolute() && path.starts_with(root)).then_some(())
    };
    let carries = |profile: &PathBuf| {
        fs::read_to_string(profile).is_ok_and(|text| text.lines().any(|it| contains(it).is_some()))
    };
    profiles.find(carries).map(|path| SyncMark { tool: "Unison", path })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::disk::plain_disk::PlainDisk;

    fn fresh(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("latchfs-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("folder")).expect("a directory");
        dir
    }

    #[test]
    fn a_folder_has_one_guard_for_each_machine() {
        let dir = fresh("place");
        let record = FolderRecord::new(None, 0, false);
        let open = || {
            let (folder, state) = (dir.join("folder"), dir.join("state"));
            StatePlace::open(&folder, &record, &state, "laptop1", ChangedThrough::View)
        };
        let first = open().expect("free");
        let second = open().err().expect("it is taken").to_string();
        assert!(second.contains("another guard"), "{second}");
        assert!(first.host.ends_with("laptop1"));
        drop(first);
        open().expect("free again").dirs::<PlainDisk>().expect("they are there");
        fs::remove_dir_all(&dir).expect("it is there");
    }

    #[test]
    fn unusable_places_are_refused_with_a_sentence() {
        let dir = fresh("places");
        let record = FolderRecord::new(None, 0, true);
        let open = |folder: &Path, state: &Path| {
            let through = ChangedThrough::View;
            let error = StatePlace::open(folder, &record, state, "laptop1", through).err();
            error.expect("it is refused").to_string()
        };
        let folder = dir.join("folder");
        assert!(open(Path::new("/"), &dir).contains("root of this machine"));
        let here = fs::metadata(&dir).expect("it is there").dev();
        let is_elsewhere = |at: &&str| fs::metadata(at).is_ok_and(|other| other.dev() != here);
        let elsewhere = ["/dev/shm", "/var/tmp"].into_iter().find(is_elsewhere);
        let elsewhere = Path::new(elsewhere.expect("another file system")).join("latchfs-place");
        assert!(open(&folder, &elsewhere).contains("--stage DIR"));
        let _ = fs::remove_dir_all(&elsewhere);
        fs::create_dir_all(dir.join("synced/.stfolder")).expect("a directory");
        assert!(open(&folder, &dir.join("synced/state")).contains("sync tool"));
        let other = dir.join("state").join(&record.id);
        fs::create_dir_all(&other).expect("a directory");
        fs::write(other.join("storage"), "another").expect("written");
        assert!(open(&folder, &dir.join("state")).contains("shared one"));
        fs::remove_dir_all(&dir).expect("it is there");
    }
}

#[cfg(test)]
mod synced_place_tests {
    use super::*;
    use std::os::unix::fs::chown;

    #[test]
    fn a_mark_counts_for_root_and_the_own_user_only() {
        let dir = std::env::temp_dir().join(format!("latchfs-marks-{}", std::process::id()));
        let inside = dir.join("a/b");
        fs::create_dir_all(&inside).expect("made");
        let user = fs::metadata(&dir).expect("there").uid();
        assert_eq!(synced_by(&inside, user), None);
        for (name, tool) in MARKS {
            let mark = dir.join(name);
            fs::create_dir_all(&mark).expect("made");
            let found = synced_by(&inside, user).expect("it is marked");
            assert_eq!((found.tool, &found.path), (tool, &mark));
            if user == 0 {
                chown(&mark, Some(4_001), None).expect("given");
                assert_eq!(synced_by(&inside, 0), None, "planted by another user: {name}");
                assert!(synced_by(&inside, 4_001).is_some());
                assert_eq!(synced_by(&inside, 4_002), None);
            }
            fs::remove_dir(&mark).expect("there");
        }
        fs::remove_dir_all(&dir).expect("there");
    }

    #[test]
    fn folders_are_recognized_by_the_names_that_sync_tools_give() {
        let dir = std::env::temp_dir().join(format!("latchfs-names-{}", std::process::id()));
        let user = || fs::metadata(&dir).expect("there").uid();
        for name in ["com~apple~CloudDocs", "OneDrive - Company", "GoogleDrive-me@x.org", "Dropbox"]
        {
            let inside = dir.join(name).join("locks");
            fs::create_dir_all(&inside).expect("made");
            assert!(synced_by(&inside, user()).is_some(), "{name}");
        }
        for name in ["Dropboxes", "MyOneDrive", "nextcloud.d"] {
            let inside = dir.join(name).join("locks");
            fs::create_dir_all(&inside).expect("made");
            assert_eq!(synced_by(&inside, user()), None, "{name}");
        }
        fs::remove_dir_all(&dir).expect("there");
    }

    #[test]
    fn roots_in_profiles_of_unison_are_synced() {
        let home = std::env::temp_dir().join(format!("latchfs-unison-{}", std::process::id()));
        fs::create_dir_all(home.join(".unison")).expect("made");
        let text = format!("# a profile\nroot = {}\nroot = ssh://b//x\n", home.join("a").display());
        let profile = home.join(".unison/work.prf");
        fs::write(&profile, text).expect("written");
        let found = |path: &str| of_unison(&home.join(path), &home, &|_| true);
        assert_eq!(found("a/locks").map(|mark| mark.path), Some(profile));
        assert_eq!(found("b"), None);
        assert_eq!(of_unison(&home.join("a"), &home, &|_| false), None, "another user's profile");
        fs::remove_dir_all(&home).expect("there");
    }
}
