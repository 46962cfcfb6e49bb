//! The two files that hold one number each, as text that a person can read.
//!
//! ```text
//! latchfs tokens 1
//! reserved 8192
//! sum 1a2b3c4d
//! ```

/// The only format known here.
pub(super) const VERSION: u32 = 1;

/// One number in a file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberFile {
    /// Tokens below this may have been handed out.
    Tokens(u64),
    /// The directory was closed in an orderly way, and this generation was the last.
    Clean(u64),
}

/// Why a text is no sheet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NumberFileError {
    /// Another version wrote it.
    Version(u32),
    /// Anything else.
    Damaged,
}

impl NumberFile {
    pub(super) const TOKENS: &'static str = "tokens";
    pub(super) const CLEAN: &'static str = "clean";

    /// The name of the file.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tokens(_) => Self::TOKENS,
            Self::Clean(_) => Self::CLEAN,
        }
    }

    /// The text.
    pub(super) fn to_text(self) -> String {
        let (field, number) = match self {
            Self::Tokens(ceiling) => ("reserved", ceiling),
            Self::Clean(generation) => ("generation", generation),
        };
        let text = format!("latchfs {} {VERSION}\n{field} {number}\n", self.name());
        let sum = crc32fast::hash(text.as_bytes());
        format!("{text}sum {sum:08x}\n")
    }

    /// Reads the text of the file `name`.
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
        // One number has one text: that checks the sum, the field and every space.
        if sheet.to_text() == text { Ok(sheet) } else { Err(NumberFileError::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_is_read_back_and_a_changed_one_is_not() {
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
    fn another_version_is_named() {
        let text = b"latchfs tokens 2\nsomething else\n";
        assert_eq!(NumberFile::parse("tokens", text), Err(NumberFileError::Version(2)));
    }
}
