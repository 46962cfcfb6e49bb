//! Markers of one folder in memory, for tests.
//!
//! A folder in memory, for tests.

use barrier::chain::MarkerFiles;
use barrier::folder_path::FolderPath;
use barrier::folder_path::{ContentDigest, FileStamp, FolderTree, FoundFile};
use barrier::marker::{Change, Marker, PathState};
use barrier::marker::{MarkerKind, MarkerLink, MarkerName};
use barrier::tenure_id::TenureId;
use engine::Token;
use std::collections::BTreeMap;
use std::io;

pub(crate) const ENGINE: u64 = 7;

/// The markers of a folder.
#[derive(Debug)]
pub(crate) struct TestMarkers {
    pub(crate) files: MarkerFiles,
}

impl Default for TestMarkers {
    fn default() -> Self {
        Self { files: MarkerFiles::new("f") }
    }
}

/// A change after which a file has this content.
pub(crate) fn is(name: &str, content: &[u8]) -> Change {
    let (size, digest) = (content.len() as u64, ContentDigest::of(content));
    let state = PathState::File { size, digest, mode: 0o644 };
    Change { path: path(name), state, is_foreign: false }
}

/// A change after which a path is gone.
pub(crate) fn gone(name: &str) -> Change {
    Change { path: path(name), state: PathState::Gone, is_foreign: false }
}

/// Says that a path was given up.
pub(crate) fn ignored(name: &str) -> Change {
    Change { path: path(name), state: PathState::Ignored, is_foreign: false }
}

impl TestMarkers {
    pub(crate) fn made(
        token: u64,
        number: u64,
        previous: Option<MarkerLink>,
        changes: &[Change],
    ) -> Marker {
        let tenure = TenureId { engine: ENGINE, token: Token::named(token) };
        Marker {
            name: MarkerName { kind: MarkerKind::Marker, tenure, number },
            folder: "f".to_owned(),
            lock: "l".to_owned(),
            holder: format!("laptop{token}"),
            previous,
            checkpoint: None,
            at: 0,
            is_last: false,
            accepted: None,
            ignore: None,
            changes: changes.to_vec(),
        }
    }

    pub(crate) fn put(&mut self, marker: &Marker) -> MarkerLink {
        let bytes = marker.write().expect("memory suffices");
        let name = marker.name.file_name(&ContentDigest::of(&bytes));
        self.files.add(&name, &bytes).expect("a marker of this folder")
    }

    pub(crate) fn marker(
        &mut self,
        token: u64,
        previous: Option<MarkerLink>,
        changes: &[Change],
    ) -> MarkerLink {
        let marker = TestMarkers::made(token, 1, previous, changes);
        self.put(&marker)
    }

    pub(crate) fn last(
        &mut self,
        token: u64,
        number: u64,
        previous: Option<MarkerLink>,
        changes: &[Change],
    ) -> MarkerLink {
        let marker =
            Marker { is_last: true, ..TestMarkers::made(token, number, previous, changes) };
        self.put(&marker)
    }

    pub(crate) fn checkpoint(
        &mut self,
        token: u64,
        previous: Option<MarkerLink>,
        changes: &[Change],
    ) -> MarkerLink {
        let mut marker = TestMarkers::made(token, 1, previous, changes);
        marker.name.kind = MarkerKind::Checkpoint;
        self.put(&marker)
    }

    pub(crate) fn remove(&mut self, link: MarkerLink) {
        self.files.remove(&link).expect("it is here");
    }
}

/// A folder in memory. Each version of a file has an inode and a time of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct TestTree {
    pub(crate) files: BTreeMap<FolderPath, (FoundFile, Vec<u8>)>,
    /// How many files were hashed.
    pub(crate) hashed: usize,
    /// A file that changes while it is hashed.
    pub(crate) busy: Option<FolderPath>,
    /// A directory on which something is mounted.
    pub(crate) mounted: Option<FolderPath>,
    /// A file that a walk misses.
    pub(crate) missed: Option<FolderPath>,
    next: u64,
}

pub(crate) fn path(text: &str) -> FolderPath {
    FolderPath::parse(text).expect("valid")
}

impl TestTree {
    pub(crate) fn put(&mut self, name: &str, content: &[u8]) {
        self.next += 1;
        let size = content.len() as u64;
        let stamp = FileStamp { size, mtime: i128::from(self.next), inode: self.next };
        let found = FoundFile { stamp, changed: 0, mode: 0o644, is_downloaded: true };
        self.files.insert(path(name), (found, content.to_vec()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.files.remove(&path(name)).expect("there");
    }
}

impl FolderTree for TestTree {
    fn walk(&mut self, visit: &mut dyn FnMut(FolderPath, FoundFile)) -> io::Result<()> {
        for (path, (found, _)) in &self.files {
            let is_below = self.mounted.as_ref().is_some_and(|dir| path.is_below(dir));
            if !is_below && self.missed.as_ref() != Some(path) {
                visit(path.clone(), *found);
            }
        }
        Ok(())
    }

    fn find(&mut self, path: &FolderPath) -> io::Result<Option<FoundFile>> {
        let is_hidden = self.is_hidden(path)?;
        Ok(self.files.get(path).filter(|_| !is_hidden).map(|(found, _)| *found))
    }

    fn is_hidden(&mut self, path: &FolderPath) -> io::Result<bool> {
        Ok(self.mounted.as_ref().is_some_and(|dir| path.is_below(dir)))
    }

    fn digest(&mut self, path: &FolderPath, _: &FoundFile) -> io::Result<Option<ContentDigest>> {
        self.hashed += 1;
        let is_busy = self.busy.as_ref() == Some(path);
        let there = self.files.get(path).filter(|_| !is_busy);
        Ok(there.map(|(_, content)| ContentDigest::of(content)))
    }
}
