//! The header of journal and snapshot files: their first 64 bytes.

use crate::storage::dir::StateError;
use crate::time::this_boot;
use std::path::Path;

/// The length of a header in bytes.
pub(super) const HEADER_BYTES: usize = 64;

/// The only version of the file format that this program knows.
pub(super) const VERSION: u32 = 1;

/// The type of a state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Journal,
    Snapshot,
}

impl Type {
    const fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Journal => b"latchjnl",
            Self::Snapshot => b"latchsnp",
        }
    }
}

/// The boot in which a file was written. All zeros if it is unknown.
#[derive(Debug, Clone, Copy)]
pub(super) struct BootId([u8; 16]);

impl BootId {
    /// Returns the current boot.
    pub(super) fn current() -> Self {
        Self(this_boot().to_le_bytes())
    }

    /// Returns a boot that does not change, for a fixture.
    #[cfg(test)]
    pub(super) const fn fixed() -> Self {
        Self([7; 16])
    }

    /// Whether both boots are known and are the same.
    pub(super) fn is(self, other: Self) -> bool {
        self.0 == other.0 && self.0 != [0; 16]
    }
}

/// The decoded header of a journal or snapshot file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) kind: Type,
    pub(super) boot: BootId,
    pub(super) generation: u64,
    /// The sequence number of the first record that follows this header (in a journal) or this
    /// snapshot.
    pub(super) next_seq: u64,
    /// The length of a snapshot's content in bytes; 0 in a journal.
    pub(super) body_bytes: u64,
    /// The checksum of a snapshot's content, or the salt of the checksums in a journal.
    pub(super) sum: u32,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(self.kind.magic());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sum.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.boot.0);
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.next_seq.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.body_bytes.to_le_bytes());
        // The header's bytes 56 to 59 are unused, and are zero.
        let sum = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses the header of `file`, which must be of type `kind` and have this `generation` (the
    /// number in the names of journals and snapshots).
    pub(super) fn parse(
        file: &Path,
        kind: Type,
        generation: u64,
        bytes: &[u8; HEADER_BYTES],
    ) -> Result<Self, StateError> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[..8] != *kind.magic() {
            return Err(StateError::damaged(file, 0, "it is not a file of this type"));
        }
        // The version is checked before the checksum, because a header of another version may have
        // its checksum elsewhere.
        if u32_at(8) != VERSION {
            let (file, found) = (file.to_path_buf(), u32_at(8));
            return Err(StateError::UnknownVersion { file, found, known: VERSION });
        }
        if u32_at(60) != crc32fast::hash(&bytes[..60]) {
            return Err(StateError::damaged(file, 0, "its header does not have the right sum"));
        }
        if u64_at(32) != generation {
            let why = format!("it was written as generation {}", u64_at(32));
            return Err(StateError::damaged(file, 32, why));
        }
        let boot = BootId(bytes[16..32].try_into().expect("16 bytes"));
        let (next_seq, body_bytes, sum) = (u64_at(40), u64_at(48), u32_at(12));
        Ok(Self { kind, boot, generation, next_seq, body_bytes, sum })
    }
}
