//! Markers of one folder in memory, for tests.

use super::super::tenure::TenureId;
use super::content_digest::ContentDigest;
use super::marker::{Change, Marker, PathState};
use super::marker_files::MarkerFiles;
use super::marker_name::{MarkerKind, MarkerLink, MarkerName};
use super::test_tree::path;
use crate::engine::Token;

pub(super) const ENGINE: u64 = 7;

/// The markers of a folder.
#[derive(Debug)]
pub(in crate::guard) struct TestMarkers {
    pub(super) files: MarkerFiles,
}

impl Default for TestMarkers {
    fn default() -> Self {
        Self { files: MarkerFiles::new("f") }
    }
}

impl TenureId {
    pub(super) fn with_token(self, token: u64) -> Self {
        Self { token: Token::named(token), ..self }
    }
}

/// A change after which a file has this content.
pub(in crate::guard) fn is(name: &str, content: &[u8]) -> Change {
    let (size, digest) = (content.len() as u64, ContentDigest::of(content));
    let state = PathState::File { size, digest, mode: 0o644 };
    Change { path: path(name), state, is_foreign: false }
}

/// A change after which a path is gone.
pub(super) fn gone(name: &str) -> Change {
    Change { path: path(name), state: PathState::Gone, is_foreign: false }
}

/// Says that a path was given up.
pub(super) fn ignored(name: &str) -> Change {
    Change { path: path(name), state: PathState::Ignored, is_foreign: false }
}

impl TestMarkers {
    pub(in crate::guard) fn made(
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

    pub(super) fn put(&mut self, marker: &Marker) -> MarkerLink {
        let bytes = marker.write().expect("memory suffices");
        let name = marker.name.file_name(&ContentDigest::of(&bytes));
        self.files.add(&name, &bytes).expect("a marker of this folder")
    }

    pub(super) fn marker(
        &mut self,
        token: u64,
        previous: Option<MarkerLink>,
        changes: &[Change],
    ) -> MarkerLink {
        let marker = TestMarkers::made(token, 1, previous, changes);
        self.put(&marker)
    }

    pub(super) fn last(
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

    pub(super) fn checkpoint(
        &mut self,
        token: u64,
        previous: Option<MarkerLink>,
        changes: &[Change],
    ) -> MarkerLink {
        let mut marker = TestMarkers::made(token, 1, previous, changes);
        marker.name.kind = MarkerKind::Checkpoint;
        self.put(&marker)
    }

    pub(super) fn remove(&mut self, link: MarkerLink) {
        self.files.remove(&link).expect("it is here");
    }
}
