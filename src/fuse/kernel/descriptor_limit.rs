//! The limit of open file descriptors of this process, and how many descriptors may be pidfds and
//! status files that watch other processes.

use std::sync::OnceLock;

/// Descriptors reserved for storage, sockets, devices and logs, however many processes are watched.
const RESERVE: u64 = 256;
/// The maximum number of descriptors that watch processes: more than the processes of one machine,
/// and some 100 MB of kernel memory.
const TO_WATCH_MAX: u64 = 65_536;

/// Raises the soft limit of open files (`RLIMIT_NOFILE`) to the hard limit, and returns the soft
/// limit that is then in force.
#[allow(unsafe_code)]
fn raise() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call, which fills it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return RESERVE;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: `raised` outlives the call, which only reads it.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
        return raised.rlim_cur;
    }
    limit.rlim_cur
}

/// Returns how many file descriptors may watch processes and threads: half of those that are left
/// below the soft limit after [`RESERVE`]. The other half is for the connections of a daemon that
/// also serves network clients. The first call raises the soft limit.
pub(crate) fn to_watch() -> usize {
    static TO_WATCH: OnceLock<usize> = OnceLock::new();
    *TO_WATCH.get_or_init(|| {
        let watching = raise().saturating_sub(RESERVE) / 2;
        usize::try_from(watching.min(TO_WATCH_MAX)).unwrap_or(usize::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_a_reserve_is_left() {
        let watching = to_watch() as u64;
        let limit = raise();
        assert!(watching * 2 + RESERVE <= limit, "{watching} of {limit}");
        assert!(watching > 0);
    }
}
