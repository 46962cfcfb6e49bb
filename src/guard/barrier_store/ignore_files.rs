//! Reads the files that say which paths are ignored: `.latchfs/ignore`, which all machines share,
//! and Syncthing's `.stignore`, which is not synced.

use super::super::barrier::ignored::{IGNORE_BYTES_MAX, IgnoreError, IgnoreRules};
use super::super::disk::{Disk, Place};
use super::super::write_policy::PathPatterns;
use super::bounded_read::read_at_most;
use super::disk_names::open_dir_at;
use super::disk_tree::{CONTROL_DIR, IGNORE_FILE};
use std::ffi::OsStr;
use std::fmt;
use std::io;

/// The name of Syncthing's file in the folder.
const SYNCTHING_FILE: &str = ".stignore";

/// Why the rules of a folder can't be used. No folder is ready without them: paths that another
/// machine ignores would count as missing, or the reverse.
#[derive(Debug)]
pub(crate) enum IgnoreFileError {
    /// The file with this path can't be read.
    Io(&'static str, io::Error),
    /// The file with this path is none.
    Rules(&'static str, IgnoreError),
}

impl fmt::Display for IgnoreFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, why) = match self {
            Self::Io(path, error) => (path, crate::os_error::said(error)),
            Self::Rules(path, error) => (path, error.to_string()),
        };
        write!(f, "'{path}' in the folder can't be used: {why}; shorten or remove it")
    }
}

/// Returns the text of a file; the empty text if there is none. Bytes that are no UTF-8 match
/// nothing.
fn text_of<D: Disk>(
    disk: &D,
    at: Place<'_, D::Dir>,
    path: &'static str,
) -> Result<String, IgnoreFileError> {
    match read_at_most(disk, at, IGNORE_BYTES_MAX as u64) {
        Ok(Some((bytes, _))) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Ok(None) => Ok(String::new()),
        Err(error) => Err(IgnoreFileError::Io(path, error)),
    }
}

/// Reads the rules by which paths of a folder are ignored on this machine.
pub(crate) fn read_ignore_rules<D: Disk>(
    disk: &D,
    folder: &D::Dir,
    local: PathPatterns,
) -> Result<IgnoreRules, IgnoreFileError> {
    let shared = ".latchfs/ignore";
    let control = open_dir_at(disk, folder, OsStr::new(CONTROL_DIR))
        .map_err(|error| IgnoreFileError::Io(shared, error))?;
    let text = match &control {
        Some(dir) => text_of(disk, Place::new(dir, IGNORE_FILE), shared)?,
        None => String::new(),
    };
    let rules = IgnoreRules::parse(&text);
    let rules = rules.map_err(|error| IgnoreFileError::Rules(shared, error))?;
    let text = text_of(disk, Place::new(folder, SYNCTHING_FILE), SYNCTHING_FILE)?;
    let rules = rules.with_syncthing(&text);
    let rules = rules.map_err(|error| IgnoreFileError::Rules(SYNCTHING_FILE, error))?;
    Ok(rules.with_local(local))
}

#[cfg(test)]
mod tests {
    use super::super::super::barrier::folder_path::FolderPath;
    use super::super::super::barrier::ignored::IgnoredBecause;
    use super::super::super::linux_disk::LinuxDisk;
    use super::super::test_disk::TestFolder;
    use super::*;

    fn read(test: &TestFolder) -> Result<IgnoreRules, IgnoreFileError> {
        let local = PathPatterns::parse(&["*.swp".to_owned()]).expect("valid");
        read_ignore_rules(&LinuxDisk, &test.folder(), local)
    }

    #[test]
    fn both_files_are_read() {
        let test = TestFolder::new();
        test.put(".latchfs/ignore", b"build/\n\xff\n");
        test.put(".stignore", b"// comment\nphone\n");
        let rules = read(&test).expect("short files");
        for (path, because) in [
            ("build/a", Some(IgnoredBecause::Pattern(1))),
            ("phone", Some(IgnoredBecause::SyncthingPattern(2))),
            ("a.swp", Some(IgnoredBecause::Local)),
            ("a", None),
        ] {
            let path = FolderPath::parse(path).expect("valid");
            assert_eq!(rules.ignored(&path), because, "{path}");
        }
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_a_sentence() {
        let test = TestFolder::new();
        read(&test).expect("there are none");
        test.make_fifo(".stignore");
        read(&test).expect("a FIFO is none");
        for path in [".latchfs/ignore", ".stignore"] {
            let test = TestFolder::new();
            TestFolder::make_sparse(&test.path(path), IGNORE_BYTES_MAX as u64 + 1);
            let error = read(&test).expect_err("too large").to_string();
            let said = format!(
                "'{path}' in the folder can't be used: it has more than 65536 bytes; shorten or \
                 remove it"
            );
            assert_eq!(error, said);
            test.put(path, "x\n".repeat(1_001).as_bytes());
            let error = read(&test).expect_err("too many patterns").to_string();
            assert!(error.contains("more than 1000 patterns"), "{error}");
        }
    }
}
