//! The flocks that programs hold on files of a view. The kernel keeps them without asking the
//! daemon, and lists them in `/proc/locks`.

use crate::fuse::kernel::mountinfo::Device;
use std::fs::File;
use std::io::{BufRead, BufReader};

/// Whether a program holds a flock on a file of the file system with this device number. In another
/// pid namespace than the first one only the locks of its own programs are seen.
pub(super) fn are_held(device: Device) -> bool {
    let Ok(locks) = File::open("/proc/locks") else { return false };
    BufReader::new(locks).lines().map_while(Result::ok).any(|line| is_flock_of(&line, device))
}

/// Whether a line of `/proc/locks` tells of a flock that is held on this file system, such as
/// `1: FLOCK  ADVISORY  WRITE 4711 00:2f:123 0 EOF`. One that waits has an arrow.
fn is_flock_of(line: &str, device: Device) -> bool {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (kind, place) = (words.next(), words.nth(3));
    let (Some("FLOCK"), Some(place)) = (kind, place) else { return false };
    let mut numbers = place.split(':').map(|number| u32::from_str_radix(number, 16).ok());
    let (major, minor) = (numbers.next().flatten(), numbers.next().flatten());
    (major, minor) == (Some(device.major), Some(device.minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flocks_that_are_held_in_the_view_count() {
        let device = Device { major: 0, minor: 0x2f };
        let is_held = |line| is_flock_of(line, device);
        assert!(is_held("1: FLOCK  ADVISORY  WRITE 4711 00:2f:123 0 EOF"));
        assert!(is_held("12: FLOCK  ADVISORY  READ 1 00:2f:7 0 EOF"));
        assert!(!is_held("1: FLOCK  ADVISORY  WRITE 4711 00:30:123 0 EOF"));
        assert!(!is_held("1: -> FLOCK  ADVISORY  WRITE 4711 00:2f:123 0 EOF"));
        assert!(!is_held("1: POSIX  ADVISORY  WRITE 4711 00:2f:123 0 EOF"));
        assert!(!is_held("") && !is_held("1: FLOCK"));
    }
}
