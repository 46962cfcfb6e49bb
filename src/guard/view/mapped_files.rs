//! Finds files of the view that programs have mapped: they may change them at any moment without a
//! system call, so the lock is not given up meanwhile.

use super::folder_view::FolderView;
use super::open_file::{Content, OpenFile, Writing};
use crate::fuse::kernel::mountinfo::Device;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};

/// How much of a line of `maps` is read: the fields before the path are shorter.
const LINE_BYTES: u64 = 256;

/// Whether a line of `/proc/PID/maps` is a shared mapping of one of these files. A program may make
/// a mapping writable later, if it has the file open for writing.
fn is_shared_mapping(line: &[u8], device: Device, files: &HashSet<u64>) -> bool {
    let Ok(text) = std::str::from_utf8(line) else { return false };
    let mut fields = text.split_ascii_whitespace();
    let (Some(permissions), Some(found), Some(ino)) = (fields.nth(1), fields.nth(1), fields.next())
    else {
        return false;
    };
    permissions.ends_with('s')
        && found == format!("{:02x}:{:02x}", device.major, device.minor)
        && ino.parse().is_ok_and(|ino| files.contains(&ino))
}

/// Whether a process has one of the files mapped. One that is gone, or that may not be read because
/// it is another user's, does not: a view that serves one user is closed to other users.
fn has_mapped(process: &str, device: Device, files: &HashSet<u64>) -> bool {
    let Ok(maps) = File::open(format!("/proc/{process}/maps")) else { return false };
    let mut maps = BufReader::new(maps);
    loop {
        let mut line = Vec::new();
        let Ok(count) = std::io::Read::take(&mut maps, LINE_BYTES).read_until(b'\n', &mut line)
        else {
            return false;
        };
        if count == 0 {
            return false;
        }
        // Only the fields before a path can be cut off from text of one.
        if !line.ends_with(b"\n") {
            let _ = maps.skip_until(b'\n');
            let end = line.iter().rposition(|byte| *byte == b' ').unwrap_or(0);
            line.truncate(end);
            while std::str::from_utf8(&line).is_err() {
                line.pop();
            }
        }
        if is_shared_mapping(&line, device, files) {
            return true;
        }
    }
}

impl FolderView {
    /// Whether a program has a file mapped that is open for writing in the current tenure.
    pub(super) fn has_mapped_files(&self, device: Device) -> bool {
        let now = self.guard.gate().tenure().map(|open| open.id);
        let may_change = |open: &OpenFile| {
            matches!(open.content, Content::InPlace(_) | Content::Saving(_))
                && matches!(open.writing(), Some(Writing::In(tenure)) if Some(tenure) == now)
        };
        let files: HashSet<_> = self.nodes.open_nodes().into_iter().collect();
        let is_open = |ino: &u64| self.nodes.open_files(*ino).iter().any(|open| may_change(open));
        let files: HashSet<_> = files.into_iter().filter(is_open).collect();
        if files.is_empty() {
            return false;
        }
        let Ok(processes) = fs::read_dir("/proc") else { return true };
        let names = processes.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut processes = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        processes.any(|process| has_mapped(&process, device, &files))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_mapping_of_a_file_is_found() {
        let device = Device { major: 0, minor: 0x2f };
        let files = HashSet::from([1_099_511_627_777]);
        let is = |line: &str| is_shared_mapping(line.as_bytes(), device, &files);
        let line = "7f00-7f01 rw-s 00000000 00:2f 1099511627777      /view/a";
        assert!(is(line) && is(&line.replace("rw-s", "r--s")));
        assert!(!is(&line.replace("rw-s", "rw-p")));
        assert!(!is(&line.replace("00:2f", "00:30")));
        assert!(!is(&line.replace("777 ", "778 ")));
        assert!(!is("7f00-7f01 rw-s 00000000") && !is(""));
    }
}
