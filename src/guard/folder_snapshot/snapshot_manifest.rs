//! The manifest of a snapshot: a line for each of its files, sorted by path. The digest of the
//! whole manifest, the root, is the digest of the snapshot.

use super::super::barrier::content_digest::ContentDigest;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The maximum size of a manifest in bytes: about ten million files.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 2 << 30;

/// The types of files that a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symlink.
    Symlink,
}

impl EntryKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Dir => "dir",
            Self::File => "file",
            Self::Symlink => "link",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Dir, Self::File, Self::Symlink].into_iter().find(|kind| kind.name() == text)
    }
}

/// A file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManifestEntry {
    /// The type.
    pub(crate) kind: EntryKind,
    /// The path in the folder; empty for the folder itself.
    pub(crate) path: OsString,
    /// The mode bits.
    pub(crate) mode: u32,
    /// The number of bytes of the content, or of the symlink's target.
    pub(crate) size: u64,
    /// The digest of the content, or of the symlink's target.
    pub(crate) digest: ContentDigest,
}

/// Writes a path without the characters that separate fields and lines.
fn escaped(path: &OsStr) -> String {
    let mut text = String::new();
    for part in path.as_bytes().utf8_chunks() {
        for sign in part.valid().chars() {
            match sign {
                ':' | '%' => _ = write!(text, "%{:02X}", sign as u32),
                sign if sign.is_ascii_control() => _ = write!(text, "%{:02X}", sign as u32),
                sign => text.push(sign),
            }
        }
        for byte in part.invalid() {
            _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn unescaped(text: &str) -> Option<OsString> {
    let mut path = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            path.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        path.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    Some(OsString::from_vec(path))
}

/// Whether a path stays in the folder. Nobody but the guard writes manifests, and yet a damaged one
/// must not lead elsewhere.
fn is_inside(path: &OsStr) -> bool {
    path.is_empty()
        || path
            .as_bytes()
            .split(|byte| *byte == b'/')
            .all(|name| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0))
}

/// Returns the text of a manifest.
pub(crate) fn manifest_text(entries: &mut [ManifestEntry]) -> String {
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let mut text = String::new();
    for ManifestEntry { kind, path, mode, size, digest } in entries.iter() {
        let (kind, path) = (kind.name(), escaped(path));
        _ = writeln!(text, "{kind}:{path}:{mode:04o}:{size}:{digest}");
    }
    text
}

/// Parses a manifest. Returns `None` if it is damaged.
pub(crate) fn parse_manifest(text: &str) -> Option<Vec<ManifestEntry>> {
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let entry = ManifestEntry {
            kind: EntryKind::parse(fields.next()?)?,
            path: unescaped(fields.next()?)?,
            mode: u32::from_str_radix(fields.next()?, 8).ok()?,
            size: fields.next()?.parse().ok()?,
            digest: ContentDigest::parse(fields.next()?)?,
        };
        (fields.next().is_none() && is_inside(&entry.path)).then_some(entry)
    };
    text.lines().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_keeps_every_path_and_refuses_those_that_leave_the_folder() {
        let entry = |path: &[u8]| ManifestEntry {
            kind: EntryKind::File,
            path: OsStr::from_bytes(path).to_owned(),
            mode: 0o4755,
            size: 3,
            digest: ContentDigest::of(b"abc"),
        };
        let mut all =
            vec![entry(b""), entry(b"a:b\n%"), entry(b"dir/\xff\xfe"), entry("\u{e4}".as_bytes())];
        let text = manifest_text(&mut all);
        assert_eq!(text.lines().count(), all.len(), "{text}");
        assert_eq!(parse_manifest(&text), Some(all));
        for wrong in ["../a", "/etc/passwd", "a//b", "a/../b", "a%00"] {
            let digest = ContentDigest::of(b"");
            assert_eq!(parse_manifest(&format!("file:{wrong}:0644:0:{digest}\n")), None, "{wrong}");
        }
        assert_eq!(parse_manifest("file:a:0644:0\n"), None);
    }
}
