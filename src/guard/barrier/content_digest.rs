//! The SHA-256 digest of a file's content.

use sha2::{Digest as _, Sha256};
use std::fmt;

/// The SHA-256 digest of a content: 64 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ContentDigest(pub(in crate::guard) [u8; 32]);

impl ContentDigest {
    /// Returns the digest of `content`.
    pub(crate) fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }

    /// Parses 64 hexadecimal digits in lower case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(Self(bytes))
    }

    /// Returns the first eight digits, which are a part of the names of markers.
    pub(crate) fn first_digits(&self) -> String {
        let [one, two, three, four] = [0, 1, 2, 3].map(|at: usize| self.0[at]);
        format!("{one:02x}{two:02x}{three:02x}{four:02x}")
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first_digits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_hexadecimal_digits() {
        let digest = ContentDigest::of(b"abc");
        let text = digest.to_string();
        assert_eq!(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(ContentDigest::parse(&text), Some(digest));
        assert_eq!(digest.first_digits(), "ba7816bf");
        for wrong in [&text[1..], &text.to_uppercase(), &text.replace('b', "g"), ""] {
            assert_eq!(ContentDigest::parse(wrong), None, "{wrong}");
        }
    }
}
