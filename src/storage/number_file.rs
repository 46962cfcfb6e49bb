//! Files that hold one number with a checksum, as text that a person can read.
//!
//! ```text
//! latchfs tokens 1
//! reserved 8192
//! sum 1a2b3c4d
//! ```

use super::atomic_file::with_sum;

/// The only version of the file format that this program knows.
pub(super) const VERSION: u32 = 1;

/// A number that is stored in its own file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberFile {
    /// The upper limit of the fencing tokens: tokens below this number may have been issued.
    Tokens(u64),
    /// The mark of a clean shutdown, with the generation (the number in the name of the last
    /// journal) at the time when the directory was closed.
    Clean(u64),
}

/// Why a text is not a valid number file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NumberFileError {
    /// The file has another format version, the one in this variant.
    Version(u32),
    /// The text is invalid in any other way.
    Damaged,
}

impl NumberFile {
    pub(super) const TOKENS: &'static str = "tokens";
    pub(super) const CLEAN: &'static str = "clean";

    /// Returns the file name under which the number is stored.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tokens(_) => Self::TOKENS,
            Self::Clean(_) => Self::CLEAN,
        }
    }

    /// Returns the content of the file: the number as text, and a checksum.
    pub(super) fn to_text(self) -> String {
        let (field, number) = match self {
            Self::Tokens(ceiling) => ("reserved", ceiling),
            Self::Clean(generation) => ("generation", generation),
        };
        let text = format!("latchfs {} {VERSION}\n{field} {number}\n", self.name());
        with_sum(&text)
    }

    /// Parses the content `text` of the number file `name`.
    pub(super) fn parse(name: &str, text: &[u8]) -> Result<Self, NumberFileError> {
        let text = std::str::from_utf8(text).map_err(|_| NumberFileError::Damaged)?;
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let version = first
            .strip_prefix("latchfs ")
            .and_then(|rest| rest.strip_prefix(name))
            .and_then(|rest| rest.trim_start().parse::<u32>().ok())
            .ok_or(NumberFileError::Damaged)?;
        if version != VERSION {
            return Err(NumberFileError::Version(version));
        }
        let number = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let number = number.ok_or(NumberFileError::Damaged)?;
        let sheet = match name {
            Self::TOKENS => Self::Tokens(number),
            Self::CLEAN => Self::Clean(number),
            _ => return Err(NumberFileError::Damaged),
        };
        // A number can be written in only one way. So comparing the file with the text that this
        // number would have checks the checksum, the field name and every space.
        if sheet.to_text() == text { Ok(sheet) } else { Err(NumberFileError::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_file_is_read_back_and_a_changed_one_is_rejected() {
        let text = NumberFile::Tokens(8192).to_text();
        assert!(text.starts_with("latchfs tokens 1\nreserved 8192\nsum "), "{text}");
        assert_eq!(NumberFile::parse("tokens", text.as_bytes()), Ok(NumberFile::Tokens(8192)));
        assert_eq!(NumberFile::parse("clean", text.as_bytes()), Err(NumberFileError::Damaged));
        for at in 0..text.len() {
            assert!(NumberFile::parse("tokens", &text.as_bytes()[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                assert!(NumberFile::parse("tokens", &bytes).is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn another_version_is_reported() {
        let text = b"latchfs tokens 2\nsomething else\n";
        assert_eq!(NumberFile::parse("tokens", text), Err(NumberFileError::Version(2)));
    }
}
