//! Reads the ignore rules: those of `.latchfs/ignore`, which all machines share, and those of the
//! sync tool of this machine, as the tool itself names them. A `.stignore` in the folder is read by
//! the tool alone.

use super::super::barrier::content_digest::ContentDigest;
use super::super::barrier::ignored::{IGNORE_BYTES_MAX, IgnoreRules};
use super::super::disk::{Disk, Place};
use super::super::write_policy::PathPatterns;
use super::bounded_read::read_at_most;
use super::disk_names::open_dir_at;
use super::disk_tree::{CONTROL_DIR, IGNORE_FILE};
use crate::base::said;
use std::ffi::OsStr;
use std::io;

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
    disk.look(Place::new(folder, STIGNORE)).is_ok_and(|found| found.is_file)
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
    use super::super::super::barrier::coverage::{Cover, Coverage};
    use super::super::super::barrier::folder_path::FolderPath;
    use super::super::super::barrier::ignored::IgnoredBecause;
    use super::super::super::barrier::ledger::Ledger;
    use super::super::super::linux_disk::LinuxDisk;
    use super::super::test_disk::TestFolder;
    use super::*;

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
