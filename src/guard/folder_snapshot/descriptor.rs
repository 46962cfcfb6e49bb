//! The descriptor of a snapshot, and the file `READY`, which is written last.

use super::super::barrier::content_digest::ContentDigest;
use serde::{Deserialize, Serialize};

/// The version of the formats of this module.
const VERSION: u32 = 1;
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

/// What a snapshot is: `descriptor.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotDescriptor {
    v: u32,
    /// The name of the snapshot.
    pub(crate) id: String,
    /// The id of the folder.
    pub(crate) folder: String,
    /// The snapshot that was the newest one before.
    pub(crate) parent: Option<String>,
    /// The fencing token of the tenure in which it was taken.
    pub(crate) token: u64,
    /// The id of the engine that issued the token.
    pub(crate) engine: String,
    /// When it was taken.
    pub(crate) at: String,
    /// Whether programs may have been changing files.
    pub(crate) consistency: SnapshotConsistency,
    /// The programs that had files open for writing.
    pub(crate) risk: Vec<String>,
    /// What could not be kept.
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

    /// Parses the file; `None` if it is damaged, or of a later version.
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
