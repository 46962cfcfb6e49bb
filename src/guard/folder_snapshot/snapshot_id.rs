//! The name of a folder snapshot.

use crate::base::random;
use crate::time::Wall;
use std::fmt;

/// The name of a snapshot: when it was taken in UTC, and eight random digits, for example
/// `20260102T030405-0a1b2c3d`. It is the name of a directory as well.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SnapshotId(String);

impl SnapshotId {
    /// Returns a new name.
    pub(crate) fn new(at: Wall) -> Self {
        let text = at.to_string();
        let second = text.split('.').next().unwrap_or_default();
        let second: String = second.chars().filter(|sign| *sign != '-' && *sign != ':').collect();
        Self(format!("{second}-{:08x}", random() as u32))
    }

    /// Parses a name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (second, random) = text.split_once('-')?;
        let (day, time) = second.split_once('T')?;
        let digits =
            |text: &str, count| text.len() == count && text.bytes().all(|it| it.is_ascii_digit());
        let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        let is_random = random.len() == 8 && random.bytes().all(is_hex);
        (digits(day, 8) && digits(time, 6) && is_random).then(|| Self(text.to_owned()))
    }

    /// Returns the name as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_is_parsed_and_a_path_is_not() {
        let new = SnapshotId::new(Wall::now());
        assert_eq!(SnapshotId::parse(new.as_str()), Some(new));
        for wrong in ["", "..", "../20260102T030405-0a1b2c3d", "20260102T030405-0A1b2c3d"] {
            assert_eq!(SnapshotId::parse(wrong), None, "{wrong}");
        }
    }
}
