//! The folder on the disk, as the sync barrier compares it with what should be here.
//!
//! Finds the name on the disk that belongs to a path of the folder. Paths are in Unicode
//! normalization form C; a name on the disk need not be.

use crate::guard::barrier_store::small_files::{digest_of, if_there};
use crate::guard::disk::operations::{Attributes, Disk, FileStat, Place};
use barrier::folder_path::{ContentDigest, FileStamp, FolderTree, FoundFile};
use barrier::folder_path::{FolderPath, FolderPathError};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};
use unicode_normalization::UnicodeNormalization as _;

/// Of the names that a walk passed over, at most so many are shown.
const SKIPPED_SHOWN_MAX: usize = 10;

/// Why a walk passed over a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SkippedBecause {
    /// The name is no valid UTF-8.
    NotUtf8,
    /// No path of a folder can be so long, or have such a part.
    Path(FolderPathError),
    /// Another name in the directory differs by Unicode normalization alone.
    Normalization,
    /// Something is mounted on the name.
    MountPoint,
}

impl fmt::Display for SkippedBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUtf8 => f.write_str("its name is no valid UTF-8"),
            Self::Path(error) => error.fmt(f),
            Self::Normalization => {
                f.write_str("another name differs from it by Unicode normalization alone")
            }
            Self::MountPoint => f.write_str("something is mounted on it"),
        }
    }
}

/// The names that a walk passed over: no marker names the files that have them, and no machine
/// waits for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SkippedNames {
    count: u64,
    shown: Vec<(String, SkippedBecause)>,
}

impl SkippedNames {
    fn add(&mut self, path: &OsStr, why: SkippedBecause) {
        self.count += 1;
        if self.shown.len() < SKIPPED_SHOWN_MAX {
            self.shown.push((path.to_string_lossy().into_owned(), why));
        }
    }

    /// Returns a sentence for each of the first names, and one for the rest.
    pub(crate) fn notes(&self) -> Vec<String> {
        let note = |(path, why): &(String, SkippedBecause)| {
            format!("'{path}' is not carried to other machines: {why}")
        };
        let mut notes: Vec<_> = self.shown.iter().map(note).collect();
        let more = self.count.saturating_sub(notes.len() as u64);
        if more > 0 {
            notes.push(format!("{more} more names are not carried to other machines"));
        }
        notes
    }
}

/// Returns the stamp of a file, from its attributes.
pub(crate) fn stamp_of(stat: &FileStat) -> FileStamp {
    FileStamp { size: stat.size, mtime: stat.modified, inode: stat.id.inode }
}

fn found_file(attributes: &Attributes) -> Option<FoundFile> {
    let stat = &attributes.stat;
    (stat.is_file && !attributes.is_mount_point).then(|| FoundFile {
        stamp: stamp_of(stat),
        changed: stat.changed,
        mode: attributes.mode,
        is_downloaded: attributes.is_downloaded,
    })
}

/// The folder on the disk. Symlinks are not followed, and mount points are not crossed.
pub(crate) struct DiskTree<'a, D: Disk> {
    disk: &'a D,
    folder: &'a D::Dir,
    skipped: SkippedNames,
    hashed: Option<&'a HashedCount>,
}

/// How many files and bytes were hashed, for a person who waits.
#[derive(Debug, Default)]
pub(crate) struct HashedCount {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl HashedCount {
    fn add(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the number of files and of bytes that were hashed.
    pub(crate) fn now(&self) -> (u64, u64) {
        (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// A walk over the folder.
struct TreeWalk<'a, 'v, D: Disk> {
    disk: &'a D,
    skipped: &'a mut SkippedNames,
    visit: &'v mut dyn FnMut(FolderPath, FoundFile),
    /// The paths of the directories that are still to be read, as on the disk.
    dirs: Vec<OsString>,
}

impl<'a, D: Disk> DiskTree<'a, D> {
    /// Returns the folder that is open as `folder`.
    pub(crate) fn new(disk: &'a D, folder: &'a D::Dir) -> Self {
        Self { disk, folder, skipped: SkippedNames::default(), hashed: None }
    }

    /// Counts the files and bytes that are hashed from now on.
    pub(crate) fn counting(self, hashed: &'a HashedCount) -> Self {
        Self { hashed: Some(hashed), ..self }
    }

    /// Calls `visit` for each regular file below the directory at this path on the disk; for none
    /// if the path is no directory.
    pub(crate) fn walk_below(
        &mut self,
        path: &OsStr,
        visit: &mut dyn FnMut(FolderPath, FoundFile),
    ) -> io::Result<()> {
        self.skipped = SkippedNames::default();
        let mut walk = TreeWalk {
            disk: self.disk,
            skipped: &mut self.skipped,
            visit,
            dirs: vec![path.to_owned()],
        };
        while let Some(path) = walk.dirs.pop() {
            let opened = open_dir_at(self.disk, self.folder, &path);
            let Some(dir) = opened.map_err(|error| at_path(&path, &error))? else { continue };
            match walk.visit_dir(&dir, &path) {
                // The directory was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_empty() => {}
                visited => visited.map_err(|error| at_path(&path, &error))?,
            }
        }
        Ok(())
    }

    /// Returns the names that the last walk passed over.
    pub(crate) fn skipped(&self) -> &SkippedNames {
        &self.skipped
    }
}

impl<D: Disk> TreeWalk<'_, '_, D> {
    /// Visits the entries of a directory, except those whose names are not in form C. Returns
    /// those names in their order.
    fn visit_composed(&mut self, dir: &D::Dir, path: &OsStr) -> io::Result<BTreeSet<OsString>> {
        let (disk, mut others, mut failed) = (self.disk, BTreeSet::new(), None);
        disk.visit_entries(dir, &mut |entry| {
            if entry.name.to_str().is_some_and(|name| !is_composed(name)) {
                others.insert(entry.name);
                return ControlFlow::Continue(());
            }
            match self.visit_name(dir, path, &entry.name) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(others), Err)
    }

    /// Visits the entries of a directory.
    fn visit_dir(&mut self, dir: &D::Dir, path: &OsStr) -> io::Result<()> {
        let mut seen = BTreeSet::new();
        for name in self.visit_composed(dir, path)? {
            let Some(text) = name.to_str() else { continue };
            let composed: String = unicode_normalization::UnicodeNormalization::nfc(text).collect();
            let is_there = if_there(self.disk.stat(Place::new(dir, &composed)))?.is_some();
            if is_there || !seen.insert(composed) {
                self.skipped.add(&joined(path, &name), SkippedBecause::Normalization);
            } else {
                self.visit_name(dir, path, &name)?;
            }
        }
        Ok(())
    }

    /// Visits a name in the directory that has a path on the disk.
    fn visit_name(&mut self, dir: &D::Dir, parent: &OsStr, name: &OsStr) -> io::Result<()> {
        let on_disk = joined(parent, name);
        let Some(text) = on_disk.to_str() else {
            self.skipped.add(&on_disk, SkippedBecause::NotUtf8);
            return Ok(());
        };
        let path = match FolderPath::parse(text) {
            Ok(path) => path,
            Err(FolderPathError::Control) => return Ok(()),
            Err(error) => {
                self.skipped.add(&on_disk, SkippedBecause::Path(error));
                return Ok(());
            }
        };
        let Some(found) = if_there(self.disk.attributes(Place::new(dir, name)))? else {
            return Ok(());
        };
        if found.is_mount_point {
            self.skipped.add(&on_disk, SkippedBecause::MountPoint);
        } else if found.stat.is_dir {
            self.dirs.push(on_disk);
        } else if let Some(file) = found_file(&found) {
            (self.visit)(path, file);
        }
        Ok(())
    }
}

fn joined(parent: &OsStr, name: &OsStr) -> OsString {
    if parent.is_empty() {
        return name.to_owned();
    }
    let mut path = OsString::with_capacity(parent.len() + 1 + name.len());
    path.push(parent);
    path.push("/");
    path.push(name);
    path
}

/// Returns an error that names the path.
fn at_path(path: &OsStr, error: &io::Error) -> io::Error {
    let said = crate::base::said(error);
    io::Error::new(error.kind(), format!("{}: {said}", path.to_string_lossy()))
}

impl<D: Disk> FolderTree for DiskTree<'_, D> {
    fn walk(&mut self, visit: &mut dyn FnMut(FolderPath, FoundFile)) -> io::Result<()> {
        self.walk_below(OsStr::new(""), visit)?;
        // A folder that was removed must not look like one whose files were.
        if self.disk.stat(Place::new(self.folder, "."))?.links == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the folder was removed"));
        }
        Ok(())
    }

    fn find(&mut self, path: &FolderPath) -> io::Result<Option<FoundFile>> {
        let Some((dir, name)) = find(self.disk, self.folder, path)? else { return Ok(None) };
        let found = if_there(self.disk.attributes(Place::new(&dir, &name)))?;
        Ok(found.as_ref().and_then(found_file))
    }

    fn is_hidden(&mut self, path: &FolderPath) -> io::Result<bool> {
        is_hidden(self.disk, self.folder, path)
    }

    fn digest(
        &mut self,
        path: &FolderPath,
        found: &FoundFile,
    ) -> io::Result<Option<ContentDigest>> {
        if !found.is_downloaded {
            // A read would make the sync tool fetch the content, and wait for it.
            return Err(io::Error::other(format!("{path} is not downloaded")));
        }
        let Some((dir, name)) = find(self.disk, self.folder, path)? else { return Ok(None) };
        let opened = if_there(self.disk.open_to_read(Place::new(&dir, &name)))?;
        let Some(file) = opened else { return Ok(None) };
        let stat = self.disk.stat_file(&file)?;
        if stamp_of(&stat) != found.stamp || stat.changed != found.changed {
            return Ok(None);
        }
        let digest = digest_of(self.disk, &file, &stat);
        if let Some(hashed) = self.hashed {
            hashed.add(stat.size);
        }
        digest
    }
}

/// The directory of the guard in the folder.
pub(super) const CONTROL_DIR: &str = ".latchfs";
/// The file in `.latchfs` with the patterns of ignored paths.
pub(super) const IGNORE_FILE: &str = "ignore";

/// Whether a name in another form could have this path. Three characters of ASCII are the form C of
/// others.
fn may_differ(path: &str) -> bool {
    !path.is_ascii() || path.contains(['K', ';', '`'])
}

/// Whether a name on the disk is in form C.
pub(super) fn is_composed(name: &str) -> bool {
    name.is_ascii() || unicode_normalization::is_nfc(name)
}

/// Returns the name in a directory whose form C is `part`. If there are several, it is the one in
/// that form, or else the first in the order of their bytes.
fn name_in<D: Disk>(disk: &D, dir: &D::Dir, part: &str) -> io::Result<Option<OsString>> {
    if if_there(disk.stat(Place::new(dir, part)))?.is_some() {
        return Ok(Some(part.into()));
    }
    let mut first: Option<OsString> = None;
    if may_differ(part) {
        disk.visit_entries(dir, &mut |entry| {
            let is_it = entry.name.to_str().is_some_and(|name| name.nfc().eq(part.chars()));
            if is_it && first.as_ref().is_none_or(|first| entry.name < *first) {
                first = Some(entry.name);
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(first)
}

/// Returns the directory at a path on the disk; `None` if there is none.
pub(super) fn open_dir_at<D: Disk>(
    disk: &D,
    folder: &D::Dir,
    path: &OsStr,
) -> io::Result<Option<D::Dir>> {
    if path.is_empty() {
        return disk.reopen_dir(folder).map(Some);
    }
    let mut below = path.to_owned();
    below.push("/-");
    Ok(if_there(disk.open_parent(folder, &below))?.map(|(dir, _)| dir))
}

/// Returns the directory of the file with this path, and the name that the file has on the disk.
pub(super) fn find<D: Disk>(
    disk: &D,
    folder: &D::Dir,
    path: &FolderPath,
) -> io::Result<Option<(D::Dir, OsString)>> {
    let text = path.as_str();
    if let Some((dir, name)) = if_there(disk.open_parent(folder, OsStr::new(text)))?
        && if_there(disk.stat(Place::new(&dir, &name)))?.is_some()
    {
        return Ok(Some((dir, name)));
    }
    if !may_differ(text) {
        return Ok(None);
    }
    let mut dir = disk.reopen_dir(folder)?;
    let mut parts = text.split('/').peekable();
    while let Some(part) = parts.next() {
        let Some(name) = name_in(disk, &dir, part)? else { return Ok(None) };
        if parts.peek().is_none() {
            return Ok(Some((dir, name)));
        }
        let Some(next) = if_there(disk.open_dir(Place::new(&dir, &name)))? else {
            return Ok(None);
        };
        dir = next;
    }
    Ok(None)
}

/// Whether something is mounted on a path of the folder, or on a directory above it.
pub(super) fn is_hidden<D: Disk>(disk: &D, folder: &D::Dir, path: &FolderPath) -> io::Result<bool> {
    let mut dir = disk.reopen_dir(folder)?;
    for part in path.as_str().split('/') {
        let Some(name) = name_in(disk, &dir, part)? else { return Ok(false) };
        let at = Place::new(&dir, &name);
        match if_there(disk.attributes(at))? {
            Some(found) if found.is_mount_point => return Ok(true),
            Some(found) if found.stat.is_dir => {}
            _ => return Ok(false),
        }
        dir = match disk.open_dir(at) {
            // Something was mounted on the directory just now.
            Err(error) if error.raw_os_error() == Some(libc::EXDEV) => return Ok(true),
            opened => match if_there(opened)? {
                Some(dir) => dir,
                None => return Ok(false),
            },
        };
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::super::test_disk::{Fault, TestDisk, TestFolder};
    use super::*;
    use crate::guard::disk::linux_disk::LinuxDisk;
    use rustix::fs::{Mode, OFlags};
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    fn path(text: &str) -> FolderPath {
        FolderPath::parse(text).expect("valid")
    }

    /// Returns the files of a folder, and the number of the names that were passed over.
    fn walked<D: Disk>(tree: &mut DiskTree<'_, D>) -> (BTreeMap<String, FoundFile>, u64) {
        let mut files = BTreeMap::new();
        tree.walk(&mut |path, found| {
            let twice = files.insert(path.as_str().to_owned(), found);
            assert_eq!(twice, None, "{path}");
        })
        .expect("readable");
        (files, tree.skipped().count)
    }

    fn names<D: Disk>(tree: &mut DiskTree<'_, D>) -> Vec<String> {
        walked(tree).0.into_keys().collect()
    }

    #[test]
    fn a_walk_visits_the_regular_files_below_the_folder() {
        let test = TestFolder::new();
        for file in ["a", "d/b", "d/e/c", ".latchfs/folder", ".latchfs/markers/x", "d/.latchfs/y"] {
            test.put(file, b"12345");
        }
        fs::create_dir(test.path("empty")).expect("a directory");
        symlink("a", test.path("link")).expect("a symlink");
        symlink("/etc", test.path("outside")).expect("a symlink");
        test.make_fifo("fifo");
        let folder = test.folder();
        let mut tree = DiskTree::new(&LinuxDisk, &folder);
        let (files, skipped) = walked(&mut tree);
        let found: Vec<_> = files.keys().map(String::as_str).collect();
        assert_eq!((found, skipped), (vec!["a", "d/.latchfs/y", "d/b", "d/e/c"], 0));
        for (name, found) in &files {
            assert_eq!((found.stamp.size, found.is_downloaded), (5, true));
            assert_eq!(tree.find(&path(name)).expect("readable"), Some(*found));
            let digest = tree.digest(&path(name), found).expect("readable");
            assert_eq!(digest, Some(ContentDigest::of(b"12345")), "{name}");
        }
        for absent in ["link", "outside", "outside/passwd", "fifo", "d", "a/b", "no"] {
            assert_eq!(tree.find(&path(absent)).expect("readable"), None, "{absent}");
            let found = &files["a"];
            assert_eq!(tree.digest(&path(absent), found).expect("readable"), None, "{absent}");
        }
    }

    #[test]
    fn a_walk_crosses_no_mount_point() {
        let test = TestFolder::new();
        test.put("mounted/a", b"");
        test.put("file", b"");
        test.put("b", b"");
        let folder = test.folder();
        let disk = TestDisk { mounted: vec!["mounted", "file"], ..TestDisk::default() };
        let mut tree = DiskTree::new(&disk, &folder);
        assert_eq!(names(&mut tree), ["b"]);
        assert_eq!(tree.find(&path("file")).expect("readable"), None);
        for (name, is_hidden) in [("file", true), ("mounted/a", true), ("b", false), ("c", false)] {
            assert_eq!(tree.is_hidden(&path(name)).expect("readable"), is_hidden, "{name}");
        }
        let because = SkippedBecause::MountPoint;
        let mut shown = tree.skipped().shown.clone();
        shown.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(shown, [("file".to_owned(), because), ("mounted".to_owned(), because)]);
        // The same holds at a mount point of this machine.
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = rustix::fs::open("/", flags, Mode::empty()).expect("there is a root");
        let mut tree = DiskTree::new(&LinuxDisk, &root);
        assert!(LinuxDisk.attributes(Place::new(&root, "proc")).expect("there").is_mount_point);
        assert_eq!(tree.find(&path("proc/version")).expect("no error"), None);
        assert!(tree.is_hidden(&path("proc/no file")).expect("no error"));
    }

    #[test]
    fn names_that_no_path_can_have_are_passed_over_and_counted() {
        let test = TestFolder::new();
        test.put("a", b"");
        for number in 0..SKIPPED_SHOWN_MAX + 5 {
            let name = [b"\xff", number.to_string().as_bytes()].concat();
            fs::write(test.path("").join(OsStr::from_bytes(&name)), b"").expect("written");
        }
        let part = "x".repeat(200);
        let mut dir = test.folder();
        for _ in 0..25 {
            rustix::fs::mkdirat(&dir, &part, Mode::RWXU).expect("made");
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            dir = rustix::fs::openat(&dir, &part, flags, Mode::empty()).expect("made");
        }
        let folder = test.folder();
        let mut tree = DiskTree::new(&LinuxDisk, &folder);
        assert_eq!(names(&mut tree), ["a"]);
        assert_eq!(tree.skipped().count, SKIPPED_SHOWN_MAX as u64 + 6);
        assert_eq!(tree.skipped().shown.len(), SKIPPED_SHOWN_MAX);
        let texts = [
            (SkippedBecause::NotUtf8, "its name is no valid UTF-8"),
            (SkippedBecause::Path(FolderPathError::TooLong), "a path has more than 4096 bytes"),
        ];
        for (because, text) in texts {
            assert_eq!(because.to_string(), text);
        }
        assert_eq!(names(&mut tree), ["a"]);
        assert_eq!(tree.skipped().count, SKIPPED_SHOWN_MAX as u64 + 6, "counted anew");
    }

    #[test]
    fn names_that_differ_by_normalization_are_one_path() {
        let (composed, other) = ("caf\u{e9}", "cafe\u{301}");
        let test = TestFolder::new();
        test.put(&format!("{other}/{other}.txt"), b"1");
        test.put("\u{212a}", b"kelvin");
        let folder = test.folder();
        let mut tree = DiskTree::new(&LinuxDisk, &folder);
        let wanted = format!("{composed}/{composed}.txt");
        let (files, skipped) = walked(&mut tree);
        assert_eq!(
            (files.keys().map(String::as_str).collect::<Vec<_>>(), skipped),
            (vec!["K", &wanted], 0)
        );
        for (name, content) in [(&*wanted, "1"), ("K", "kelvin")] {
            let found = tree.find(&path(name)).expect("readable").expect("there");
            let digest = tree.digest(&path(name), &found).expect("readable");
            assert_eq!(digest, Some(ContentDigest::of(content.as_bytes())));
        }
        // The name in form C counts, and the other one is named.
        test.put(&format!("{other}/{composed}.txt"), b"22");
        let (files, skipped) = walked(&mut tree);
        assert_eq!((files.len(), files[&wanted].stamp.size, skipped), (2, 2, 1));
        let found = tree.find(&path(&wanted)).expect("readable");
        assert_eq!(found, Some(files[&wanted]));
        let shown = tree.skipped().shown.clone();
        assert_eq!(shown, [(format!("{other}/{other}.txt"), SkippedBecause::Normalization)]);
        test.put(&format!("{composed}/only-here"), b"");
        assert_eq!(names(&mut tree), ["K", &format!("{composed}/only-here")]);
    }

    type Change = fn(&std::path::Path);

    #[test]
    fn a_file_that_changes_while_it_is_read_has_no_digest() {
        let test = TestFolder::new();
        let content = vec![7; 300_000];
        test.put("a", &content);
        let (folder, target) = (test.folder(), test.path("a"));
        let changes: [Change; 4] = [
            |path| {
                let file = fs::OpenOptions::new().append(true).open(path).expect("there");
                io::Write::write_all(&mut &file, b"x").expect("written");
            },
            |path| {
                let file = fs::OpenOptions::new().write(true).open(path).expect("there");
                file.set_len(10).expect("shortened");
            },
            |path| fs::remove_file(path).expect("removed"),
            |path| {
                // The new content has the same size, and its time is set back.
                let before = fs::metadata(path).and_then(|found| found.modified()).expect("there");
                // The clock of the file system may stand still for some milliseconds.
                let probe = path.with_extension("probe");
                while fs::metadata(&probe).and_then(|found| found.modified()).ok() <= Some(before) {
                    fs::write(&probe, b"").expect("written");
                }
                fs::write(path, vec![8; 300_000]).expect("written");
                let file = fs::OpenOptions::new().write(true).open(path).expect("there");
                file.set_modified(before).expect("set");
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let disk = TestDisk::default();
            test.put("a", &content);
            let mut tree = DiskTree::new(&disk, &folder);
            let found = tree.find(&path("a")).expect("readable").expect("there");
            let whole = tree.digest(&path("a"), &found).expect("readable");
            assert_eq!(whole, Some(ContentDigest::of(&content)));
            let (mut reads, target) = (0, target.clone());
            *disk.on_read.lock() = Some(Box::new(move || {
                reads += 1;
                if reads == 2 {
                    change(&target);
                }
            }));
            assert_eq!(tree.digest(&path("a"), &found).expect("readable"), None, "{number}");
            *disk.on_read.lock() = None;
            assert_eq!(tree.digest(&path("a"), &found).expect("readable"), None, "{number}");
        }
    }

    #[test]
    fn a_placeholder_is_not_read() {
        let test = TestFolder::new();
        test.put("d/a", b"1");
        let folder = test.folder();
        let disk = TestDisk { placeholders: vec!["a"], ..TestDisk::default() };
        let mut tree = DiskTree::new(&disk, &folder);
        let (files, _) = walked(&mut tree);
        assert!(!files["d/a"].is_downloaded);
        let error = tree.digest(&path("d/a"), &files["d/a"]).expect_err("it is elsewhere");
        assert_eq!(error.to_string(), "d/a is not downloaded");
        assert_eq!(disk.count("open_to_read"), 0);
    }

    #[test]
    fn a_directory_that_can_not_be_read_fails_the_walk() {
        let test = TestFolder::new();
        test.put("d/a", b"1");
        let folder = test.folder();
        let counted = TestDisk::default();
        names(&mut DiskTree::new(&counted, &folder));
        let steps = counted.steps.lock().clone();
        for (step, name) in steps.into_iter().enumerate() {
            let disk = TestDisk::failing(step, Fault::Errno(libc::EIO));
            let walk = DiskTree::new(&disk, &folder).walk(&mut |_, _| {});
            let error = walk.expect_err(name).to_string();
            assert!(error.to_lowercase().contains("input/output error"), "{name}: {error}");
        }
    }

    #[test]
    fn a_folder_that_is_gone_fails_the_walk() {
        let test = TestFolder::new();
        let folder = test.folder();
        fs::remove_dir_all(test.path("")).expect("there");
        let walk = DiskTree::new(&LinuxDisk, &folder).walk(&mut |_, _| {});
        let error = walk.expect_err("it is not an empty one").to_string();
        assert_eq!(error, "the folder was removed");
    }

    #[test]
    fn a_directory_that_is_removed_meanwhile_is_passed_over() {
        let test = TestFolder::new();
        test.put("a", b"");
        test.put("d/b", b"");
        let folder = test.folder();
        let counted = TestDisk::default();
        names(&mut DiskTree::new(&counted, &folder));
        let steps = counted.steps.lock().clone();
        let last = steps.len() - 1;
        for (step, name) in steps.into_iter().enumerate().take(last).skip(1) {
            let gone = TestDisk::failing(step, Fault::Errno(libc::ENOENT));
            let walk = DiskTree::new(&gone, &folder).walk(&mut |_, _| {});
            walk.expect(name);
        }
    }
}
