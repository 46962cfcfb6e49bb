//! The descriptor of a snapshot, and the file `READY`, which is written last.
//!
//! The name of a folder snapshot.
//!
//! The manifest of a snapshot: a line for each of its files, sorted by path. The digest of the
//! whole manifest, the root, is the digest of the snapshot.

use crate::base::random;
use crate::time::Wall;
use barrier::folder_path::ContentDigest;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The version of the formats of this module.
pub(crate) const VERSION: u32 = 1;
/// The maximum size in bytes of a descriptor, a `READY` and an intent.
pub(crate) const DESCRIPTOR_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of sentences in each list of a descriptor.
pub(crate) const SENTENCES_MAX: usize = 1_000;

/// Whether programs may have been changing files while a snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SnapshotConsistency {
    /// No program had a file open for writing.
    Quiesced,
    /// Programs may have been in the middle of their changes.
    BestEffort,
}

/// The numbers of files in a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotCounts {
    /// Regular files.
    pub(crate) files: u64,
    /// Directories.
    pub(crate) dirs: u64,
    /// Symlinks.
    pub(crate) symlinks: u64,
    /// The bytes of all regular files.
    pub(crate) bytes: u64,
    /// The bytes of the disk that the files take, also if the folder shares them.
    pub(crate) allocated: u64,
    /// The files that share their content with the folder until one of them is changed.
    pub(crate) cloned: u64,
    /// The files that are a further name of the folder's file.
    pub(crate) linked: u64,
    /// The files that were copied.
    pub(crate) copied: u64,
}

/// The description of a snapshot: `descriptor.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotDescriptor {
    v: u32,
    /// The name of the snapshot.
    pub(crate) id: String,
    /// The id of the folder.
    pub(crate) folder: String,
    /// The snapshot that was the newest one before.
    pub(crate) parent: Option<String>,
    /// The fencing token of the tenure in which the snapshot was taken.
    pub(crate) token: u64,
    /// The id of the engine that issued the token.
    pub(crate) engine: String,
    /// When the snapshot was taken.
    pub(crate) at: String,
    /// Whether programs may have been changing files.
    pub(crate) consistency: SnapshotConsistency,
    /// The programs that had files open for writing.
    pub(crate) risk: Vec<String>,
    /// Sentences about the files that could not be kept whole.
    pub(crate) degraded: Vec<String>,
    /// The numbers of files.
    pub(crate) counts: SnapshotCounts,
    /// The digest of the manifest.
    pub(crate) root: String,
}

impl SnapshotDescriptor {
    /// Returns an empty descriptor, whose fields the caller fills.
    pub(crate) fn new(id: &str, consistency: SnapshotConsistency) -> Self {
        Self {
            v: VERSION,
            id: id.to_owned(),
            folder: String::new(),
            parent: None,
            token: 0,
            engine: String::new(),
            at: String::new(),
            consistency,
            risk: Vec::new(),
            degraded: Vec::new(),
            counts: SnapshotCounts::default(),
            root: String::new(),
        }
    }

    /// Returns the content of the file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Parses the content of a descriptor's file; `None` if it is damaged, or of a later version.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Self>(bytes).ok().filter(|it| it.v == VERSION)
    }
}

/// The file `READY`: the snapshot of this name is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotReady {
    v: u32,
    /// The name of the snapshot.
    pub(crate) id: String,
    /// The digest of `descriptor.json`.
    pub(crate) descriptor: String,
    /// The digest of the manifest.
    pub(crate) root: String,
}

impl SnapshotReady {
    /// Returns the file for a descriptor.
    pub(crate) fn of(descriptor: &SnapshotDescriptor) -> Self {
        Self {
            v: VERSION,
            id: descriptor.id.clone(),
            descriptor: ContentDigest::of(&descriptor.bytes()).to_string(),
            root: descriptor.root.clone(),
        }
    }

    /// Returns the content of the file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Returns the version in the content of the file, if it is another one than this latchfs
    /// knows.
    pub(crate) fn other_version(ready: &[u8]) -> Option<u32> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let found = serde_json::from_slice::<Version>(ready).ok()?.v;
        (found != VERSION).then_some(found)
    }

    /// Returns the descriptor if this file fits it and the name of the snapshot.
    pub(crate) fn check(ready: &[u8], descriptor: &[u8], id: &str) -> Option<SnapshotDescriptor> {
        let ready = serde_json::from_slice::<Self>(ready).ok()?;
        let found = SnapshotDescriptor::parse(descriptor)?;
        let digest = ContentDigest::of(descriptor).to_string();
        let fits = ready.v == VERSION
            && (ready.id.as_str(), found.id.as_str()) == (id, id)
            && ready.descriptor == digest
            && ready.root == found.root;
        fits.then_some(found)
    }
}

/// The name of a snapshot: when it was taken in UTC, and eight random digits, for example
/// `20260102T030405-0a1b2c3d`. It is the name of a directory as well.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SnapshotId(String);

impl SnapshotId {
    /// Returns a new name for a snapshot that is taken at this time.
    pub(crate) fn new(at: Wall) -> Self {
        let text = at.to_string();
        let second = text.split('.').next().unwrap_or_default();
        let second: String = second.chars().filter(|sign| *sign != '-' && *sign != ':').collect();
        Self(format!("{second}-{:08x}", random() as u32))
    }

    /// Parses the name of a snapshot.
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
    fn a_ready_fits_its_own_descriptor_only() {
        let mut one =
            SnapshotDescriptor::new("20260102T030405-0a1b2c3d", SnapshotConsistency::Quiesced);
        one.root = ContentDigest::of(b"manifest").to_string();
        let ready = SnapshotReady::of(&one).bytes();
        assert_eq!(SnapshotReady::check(&ready, &one.bytes(), &one.id), Some(one.clone()));
        assert_eq!(SnapshotReady::check(&ready, &one.bytes(), "20260102T030405-00000000"), None);
        let mut other = one.clone();
        other.risk.push("none".to_owned());
        assert_eq!(SnapshotReady::check(&ready, &other.bytes(), &one.id), None);
        assert_eq!(SnapshotReady::check(b"", &one.bytes(), &one.id), None);
    }
}

#[cfg(test)]
mod snapshot_id_tests {
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

#[cfg(test)]
mod snapshot_manifest_tests {
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
