//! The file `tool-patterns` of this machine: the ignore patterns that the sync tool has named last.
//! After a start of the machine the guard may ask before the tool answers.

use super::super::barrier::ignored::IGNORE_BYTES_MAX;
use super::super::disk::{Disk, IfThere, Place};
use super::bounded_read::read_at_most;
use super::whole_write::{give_name, write_temporary};
use std::io;

const NAME: &str = "tool-patterns";
const TEMPORARY: &str = "tool-patterns.tmp";
/// The mode of the file: the state directory is private.
const MODE: u32 = 0o600;

/// Returns the patterns in the file; `None` if there is no such file, or none that can be read.
pub(crate) fn read_tool_patterns<D: Disk>(disk: &D, dir: &D::Dir) -> Option<String> {
    let read = read_at_most(disk, Place::new(dir, NAME), IGNORE_BYTES_MAX as u64);
    String::from_utf8(read.ok()??.0).ok()
}

/// Writes the file.
pub(crate) fn write_tool_patterns<D: Disk>(disk: &D, dir: &D::Dir, text: &str) -> io::Result<()> {
    let temporary = Place::new(dir, TEMPORARY);
    write_temporary(disk, dir, MODE, text.as_bytes(), temporary)?;
    give_name(disk, temporary, Place::new(dir, NAME), IfThere::Replace)
}

#[cfg(test)]
mod tests {
    use super::super::super::linux_disk::LinuxDisk;
    use super::super::test_disk::TestFolder;
    use super::*;

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
