//! Facts about the threads that make requests, from `/proc/TID/status`. Reading this file never
//! waits, not even for a program that is about to execute another one.

use crate::fuse::kernel::values::Requester;

/// Returns the text of `/proc/TID/status`; `None` if the thread has ended. A program chooses its
/// own name, which may hold any bytes.
pub(crate) fn status_text(tid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{tid}/status")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the supplementary groups of the thread `tid`; none if it has ended.
pub(crate) fn groups_of(tid: u32) -> Vec<u32> {
    let status = status_text(tid).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

/// Whether a program may leave a file of this group set-group-id: it belongs to the group, or to
/// root.
pub(crate) fn may_keep_set_gid(who: Requester, group: u32) -> bool {
    who.uid == 0 || who.gid == group || groups_of(who.pid).contains(&group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_hides_nothing() {
        let named = std::thread::spawn(|| {
            rustix::thread::set_name(c"\xff\xfe").expect("renamed");
            status_text(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
        });
        let status = named.join().expect("ended").expect("it is read");
        assert!(status.contains("\nGroups:"), "{status}");
    }

    #[test]
    fn only_members_and_root_leave_a_file_set_group_id() {
        let who = |uid, gid| Requester { uid, gid, pid: u32::MAX - 1 };
        assert!(may_keep_set_gid(who(0, 0), 7) && may_keep_set_gid(who(5, 7), 7));
        assert!(!may_keep_set_gid(who(5, 6), 7));
    }
}
