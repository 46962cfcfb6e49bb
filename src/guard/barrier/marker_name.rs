//! The names of markers and checkpoints, and links to them.

use super::super::tenure::TenureId;
use super::content_digest::ContentDigest;
use crate::engine::Token;
use std::fmt;

/// The kinds of files in which a tenure says what it left in the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum MarkerKind {
    /// The file names the paths that were changed since the marker before it.
    Marker,
    /// The file names all paths of the folder: no other path is a part of it.
    Checkpoint,
}

/// The name of a marker: the tenure, and the number of the marker in it. Two writers can use one
/// name; only the digest tells their markers apart, and numbers order nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MarkerName {
    /// Whether the marker is a checkpoint.
    pub(crate) kind: MarkerKind,
    /// The tenure that wrote the marker.
    pub(crate) tenure: TenureId,
    /// The number of the marker in its tenure, from 1.
    pub(crate) number: u64,
}

/// The text before the tenure in the name of a checkpoint.
const CHECKPOINT: &str = "checkpoint-";

/// Parses a decimal number as it is written, without a sign and leading zeros.
pub(super) fn parse_number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

impl MarkerName {
    /// Parses `ENGINE-TOKEN-N` or `checkpoint-ENGINE-TOKEN-N`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = match text.strip_prefix(CHECKPOINT) {
            Some(rest) => (MarkerKind::Checkpoint, rest),
            None => (MarkerKind::Marker, text),
        };
        let mut parts = rest.split('-');
        let engine = u64::from_str_radix(parts.next()?, 16).ok()?;
        let token = Token::named(parse_number(parts.next()?)?);
        let number = parse_number(parts.next()?)?;
        let name = Self { kind, tenure: TenureId { engine, token }, number };
        (name.to_string() == text).then_some(name)
    }

    /// Parses the name of a marker's file in `.latchfs`. Returns the name of the marker, and the
    /// first digits of the digest.
    pub(crate) fn parse_file_name(file_name: &str) -> Option<(Self, &str)> {
        let text = file_name.strip_suffix(".json")?;
        let (name, digits) = text.strip_prefix("markers/").unwrap_or(text).rsplit_once('-')?;
        let name = Self::parse(name)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_valid = digits.len() == 8
            && digits.bytes().all(is_digit)
            && text.starts_with("markers/") == (name.kind == MarkerKind::Marker);
        is_valid.then_some((name, digits))
    }

    /// Returns the name of the file in `.latchfs` whose content has this digest.
    pub(crate) fn file_name(&self, digest: &ContentDigest) -> String {
        let dir = match self.kind {
            MarkerKind::Marker => "markers/",
            MarkerKind::Checkpoint => "",
        };
        format!("{dir}{self}-{}.json", digest.first_digits())
    }
}

impl fmt::Display for MarkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == MarkerKind::Checkpoint {
            f.write_str(CHECKPOINT)?;
        }
        write!(f, "{}-{}", self.tenure, self.number)
    }
}

/// Names one marker exactly: the digest is that of the marker's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MarkerLink {
    /// The name of the marker.
    pub(crate) name: MarkerName,
    /// The digest of the bytes of the marker's file.
    pub(crate) digest: ContentDigest,
}

impl MarkerLink {
    /// Returns the name of the marker's file in `.latchfs`.
    pub(crate) fn file_name(&self) -> String {
        self.name.file_name(&self.digest)
    }
}

impl fmt::Display for MarkerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.name, self.digest.first_digits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_marker_is_that_of_its_tenure_and_number() {
        let tenure = TenureId { engine: 0xe, token: Token::named(17) };
        let name = MarkerName { kind: MarkerKind::Marker, tenure, number: 3 };
        assert_eq!(name.to_string(), "000000000000000e-17-3");
        let whole = MarkerName { kind: MarkerKind::Checkpoint, ..name };
        let digest = ContentDigest::of(b"");
        assert_eq!(name.file_name(&digest), "markers/000000000000000e-17-3-e3b0c442.json");
        assert_eq!(whole.file_name(&digest), "checkpoint-000000000000000e-17-3-e3b0c442.json");
        for name in [name, whole] {
            assert_eq!(MarkerName::parse(&name.to_string()), Some(name));
            let file = name.file_name(&digest);
            assert_eq!(MarkerName::parse_file_name(&file), Some((name, "e3b0c442")));
        }
        for wrong in [
            "000000000000000e-17-3-e3b0c442.json",
            "markers/checkpoint-000000000000000e-17-3-e3b0c442.json",
            "markers/000000000000000e-17-3-E3b0c442.json",
            "markers/000000000000000e-17-3-e3b0c44.json",
            "markers/000000000000000e-17-3.json",
            "markers/000000000000000e-17-3-e3b0c442",
            "markers/markers/000000000000000e-17-3-e3b0c442.json",
        ] {
            assert_eq!(MarkerName::parse_file_name(wrong), None, "{wrong}");
        }
        for wrong in [
            "e-17-3",
            "000000000000000e-17",
            "000000000000000e-017-3",
            "000000000000000e-+17-3",
            "000000000000000E-17-3",
            "000000000000000e-17-3-4",
            "checkpoint-checkpoint-000000000000000e-17-3",
            "../../x",
            "",
        ] {
            assert_eq!(MarkerName::parse(wrong), None, "{wrong}");
        }
    }
}
