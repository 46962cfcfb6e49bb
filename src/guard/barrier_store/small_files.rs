//! Reads files that have a maximum size, and notices when they are changed meanwhile.
//!
//! Writes a file that appears under its name complete or not at all.
//!
//! The file `tool-patterns` of this machine: the ignore patterns that the sync tool has named last.
//! After a start of the machine the guard may ask before the tool answers.
//!
//! Reads the ignore rules: those of `.latchfs/ignore`, which all machines share, and those of the
//! sync tool of this machine, as the tool itself names them. A `.stignore` in the folder is read by
//! the tool alone.

use super::disk_tree::{CONTROL_DIR, IGNORE_FILE};
use crate::base::said;
use crate::guard::barrier_store::disk_tree::open_dir_at;
use crate::guard::disk::operations::{Disk, FileStat, IfThere, Place};
use barrier::folder_path::ContentDigest;
use barrier::folder_path::PathPatterns;
use barrier::ignored::{IGNORE_BYTES_MAX, IgnoreRules};
use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::io;

/// The number of bytes that are read at a time.
const BLOCK_BYTES: usize = 128 * 1_024;

/// Whether an error says that no file that counts has the path: nothing, a symlink or a mount point
/// on the way, another kind of file, or a name that the file system can't have.
pub(super) fn is_absent(error: &io::Error) -> bool {
    let absent =
        [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EXDEV, libc::ENXIO, libc::ENAMETOOLONG];
    error.raw_os_error().is_some_and(|errno| absent.contains(&errno))
}

/// Returns `None` for a file that is not there.
pub(super) fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Passes the content of an open file on in blocks. Returns whether it had exactly the size that
/// `look` says, and is still the file at which `look` looked.
fn read_blocks<D: Disk>(
    disk: &D,
    file: &D::File,
    stat: &FileStat,
    mut take: impl FnMut(&[u8]),
) -> io::Result<bool> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut offset = 0;
    loop {
        let length = disk.read(file, offset, &mut block)?;
        offset += length as u64;
        if length == 0 || offset > stat.size {
            break;
        }
        take(&block[..length]);
    }
    Ok(offset == stat.size && disk.stat_file(file)? == *stat)
}

/// Returns the digest of an open file; `None` if it was changed while it was read.
pub(in crate::guard) fn digest_of<D: Disk>(
    disk: &D,
    file: &D::File,
    stat: &FileStat,
) -> io::Result<Option<ContentDigest>> {
    let mut digest = Sha256::new();
    let is_whole = read_blocks(disk, file, stat, |bytes| digest.update(bytes))?;
    Ok(is_whole.then(|| ContentDigest(digest.finalize().into())))
}

/// Returns the content and the attributes of a regular file; `None` if there is none. Fails if the
/// file has more than `bytes_max` bytes, or is changed while it is read.
pub(in crate::guard) fn read_at_most<D: Disk>(
    disk: &D,
    at: Place<'_, D::Dir>,
    bytes_max: u64,
) -> io::Result<Option<(Vec<u8>, FileStat)>> {
    let Some(file) = if_there(disk.open_to_read(at))? else { return Ok(None) };
    let stat = disk.stat_file(&file)?;
    if stat.size > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    let mut bytes = Vec::new();
    if read_blocks(disk, &file, &stat, |block| bytes.extend_from_slice(block))? {
        Ok(Some((bytes, stat)))
    } else {
        Err(io::Error::other("it was changed while it was read"))
    }
}

/// Removes a file if it is there.
pub(super) fn remove_if_there<D: Disk>(disk: &D, at: Place<'_, D::Dir>) -> io::Result<()> {
    match disk.remove_file(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Writes a file and syncs it under a temporary name, which replaces what an interrupted write left
/// there. The file inherits from the directory `near`, which is to become its own.
pub(in crate::guard) fn write_temporary<D: Disk>(
    disk: &D,
    near: &D::Dir,
    mode: u32,
    bytes: &[u8],
    temporary: Place<'_, D::Dir>,
) -> io::Result<D::File> {
    let file = disk.unnamed_file(near, mode)?;
    disk.write(&file, 0, bytes)?;
    disk.sync_file(&file)?;
    remove_if_there(disk, temporary)?;
    disk.link(&file, temporary)?;
    Ok(file)
}

/// Gives a temporary file its name, durably. The temporary name is gone afterwards.
pub(in crate::guard) fn give_name<D: Disk>(
    disk: &D,
    temporary: Place<'_, D::Dir>,
    to: Place<'_, D::Dir>,
    if_there: IfThere,
) -> io::Result<()> {
    if let Err(error) = disk.rename(temporary, to, if_there) {
        let _ = disk.remove_file(temporary);
        return Err(error);
    }
    disk.sync_dir(to.dir)
}

const TOOL_NAME: &str = "tool-patterns";
const TOOL_TEMPORARY: &str = "tool-patterns.tmp";
/// The mode of the file: the state directory is private.
const MODE: u32 = 0o600;

/// Returns the patterns in the file; `None` if there is no such file, or none that can be read.
pub(crate) fn read_tool_patterns<D: Disk>(disk: &D, dir: &D::Dir) -> Option<String> {
    let read = read_at_most(disk, Place::new(dir, TOOL_NAME), IGNORE_BYTES_MAX as u64);
    String::from_utf8(read.ok()??.0).ok()
}

/// Writes the file `tool-patterns`.
pub(crate) fn write_tool_patterns<D: Disk>(disk: &D, dir: &D::Dir, text: &str) -> io::Result<()> {
    let temporary = Place::new(dir, TOOL_TEMPORARY);
    write_temporary(disk, dir, MODE, text.as_bytes(), temporary)?;
    give_name(disk, temporary, Place::new(dir, TOOL_NAME), IfThere::Replace)
}

/// The file from which Syncthing reads its ignore patterns.
const STIGNORE: &str = ".stignore";

/// The ignore patterns of the sync tool, one in each line, or why they are not known; `None` if no
/// sync tool of this machine is known to carry the folder.
pub(crate) type ToolPatterns = Option<Result<String, String>>;

/// Returns the bytes of `.latchfs/ignore`, if there is such a file.
fn shared_file<D: Disk>(disk: &D, folder: &D::Dir) -> io::Result<Option<Vec<u8>>> {
    let Some(dir) = open_dir_at(disk, folder, OsStr::new(CONTROL_DIR))? else { return Ok(None) };
    let read = read_at_most(disk, Place::new(&dir, IGNORE_FILE), IGNORE_BYTES_MAX as u64)?;
    Ok(read.map(|(bytes, _)| bytes))
}

/// Reads the rules of `.latchfs/ignore`. Bytes that are no UTF-8 match nothing.
fn shared_rules<D: Disk>(disk: &D, folder: &D::Dir) -> IgnoreRules {
    let parsed = match shared_file(disk, folder) {
        Ok(None) => return IgnoreRules::default(),
        Err(error) => Err(said(&error)),
        Ok(Some(bytes)) => IgnoreRules::parse(&String::from_utf8_lossy(&bytes))
            .map(|rules| rules.with_digest(ContentDigest::of(&bytes)))
            .map_err(|error| format!("it has {error}")),
    };
    parsed.unwrap_or_else(|why| {
        IgnoreRules::without_shared(format!(
            "'.latchfs/ignore' can't be used, and counts as having no patterns: {why}; shorten or \
             remove it"
        ))
    })
}

/// Whether a file `.stignore` stands in the folder.
fn has_stignore<D: Disk>(disk: &D, folder: &D::Dir) -> bool {
    disk.stat(Place::new(folder, STIGNORE)).is_ok_and(|found| found.is_file)
}

/// Reads the rules by which paths of a folder are ignored on this machine. A source of rules that
/// can't be used counts as having none, and is named among the problems.
pub(crate) fn read_ignore_rules<D: Disk>(
    disk: &D,
    folder: &D::Dir,
    local: PathPatterns,
    tool: &ToolPatterns,
) -> IgnoreRules {
    let mut rules = shared_rules(disk, folder).with_local(local);
    let why = match tool {
        None if has_stignore(disk, folder) => return rules.with_unused_stignore(),
        None => return rules,
        Some(Err(why)) => why.clone(),
        Some(Ok(text)) => match rules.add_syncthing(text) {
            Ok(()) => return rules,
            Err(error) => format!("there are {error}"),
        },
    };
    rules.with_tool_problem(format!(
        "the ignore patterns of the Syncthing on this machine can't be used, and count as none: \
         {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::test_disk::TestFolder;
    use super::*;
    use crate::guard::disk::linux_disk::LinuxDisk;

    #[test]
    fn patterns_are_read_as_they_were_written() {
        let test = TestFolder::new();
        let dir = test.folder();
        assert_eq!(read_tool_patterns(&LinuxDisk, &dir), None);
        for text in ["*.o\n", ""] {
            write_tool_patterns(&LinuxDisk, &dir, text).expect("written");
            assert_eq!(read_tool_patterns(&LinuxDisk, &dir).as_deref(), Some(text));
        }
    }
}

#[cfg(test)]
mod ignore_files_tests {
    use super::super::test_disk::TestFolder;
    use super::*;
    use crate::guard::disk::linux_disk::LinuxDisk;
    use barrier::coverage::{Cover, Coverage};
    use barrier::folder_path::FolderPath;
    use barrier::ignored::IgnoredBecause;
    use barrier::ledger::Ledger;

    fn read(test: &TestFolder, tool: &ToolPatterns) -> IgnoreRules {
        let local = PathPatterns::parse(&["*.swp".to_owned()]).expect("valid");
        read_ignore_rules(&LinuxDisk, &test.folder(), local, tool)
    }

    fn cover(rules: &IgnoreRules, path: &str) -> Cover {
        let path = FolderPath::parse(path).expect("valid");
        Coverage::of(rules, &Ledger::default()).cover(&path)
    }

    #[test]
    fn the_rules_of_all_sources_count_and_a_stignore_does_not() {
        let test = TestFolder::new();
        test.put(".latchfs/ignore", b"build/\n\xff\n");
        test.put(".stignore", b"*\n");
        let rules = read(&test, &Some(Ok("// comment\nphone\n".to_owned())));
        for (path, because) in [
            ("build/a", Some(IgnoredBecause::Pattern(1))),
            ("phone", Some(IgnoredBecause::SyncthingPattern(2))),
            ("a.swp", Some(IgnoredBecause::Local)),
            ("a", None),
        ] {
            let wanted = because.map_or(Cover::Covered, Cover::Not);
            assert_eq!(cover(&rules, path), wanted, "{path}");
        }
        assert!(
            rules.unused_stignore().is_none() && read(&test, &None).unused_stignore().is_some()
        );
        let digest = ContentDigest::of(b"build/\n\xff\n");
        assert_eq!((rules.digest(), rules.problems().count()), (Some(digest), 0));
        assert!(!rules.differ_from(Some(digest)) && !rules.differ_from(None));
        assert!(rules.differ_from(Some(ContentDigest::of(b"build/\n"))));
    }

    #[test]
    fn rules_that_cannot_be_used_count_as_none_and_are_named() {
        let test = TestFolder::new();
        test.make_fifo(".latchfs/ignore");
        assert_eq!(read(&test, &None).problems().count(), 0, "a FIFO is no file");
        let test = TestFolder::new();
        let path = ".latchfs/ignore";
        TestFolder::make_sparse(&test.path(path), IGNORE_BYTES_MAX as u64 + 1);
        let said = |rules: &IgnoreRules| rules.problems().collect::<Vec<_>>().join(" ");
        let rules = read(&test, &None);
        assert!(said(&rules).contains("'.latchfs/ignore' can't be used"), "{}", said(&rules));
        // Another machine's marker that names a better file makes nobody wait.
        assert!(!rules.differ_from(Some(ContentDigest::of(b"x"))) && rules.digest().is_none());
        test.put(path, "x\n".repeat(1_001).as_bytes());
        let rules = read(&test, &None);
        assert!(said(&rules).contains("more than 1000 patterns"), "{}", said(&rules));
        assert_eq!(cover(&rules, "x"), Cover::Covered);
        test.put(path, b"y\n");
        for tool in [Err("it does not answer".to_owned()), Ok("x\n".repeat(1_001))] {
            let rules = read(&test, &Some(tool));
            assert!(said(&rules).contains("Syncthing"), "{}", said(&rules));
            let ignored = Cover::Not(IgnoredBecause::Pattern(1));
            assert_eq!((cover(&rules, "x"), cover(&rules, "y")), (Cover::Covered, ignored));
        }
    }
}
