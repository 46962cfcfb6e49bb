//! The bytes of a marker, a ledger, a manifest and an audit log, for `src/fixtures.rs`.

use super::barrier::handover::HandoverId;
use super::barrier::ledger::Ledger;
use super::barrier::test_markers::{TestMarkers, is};
use super::folder_snapshot::descriptor::{SnapshotConsistency, SnapshotDescriptor, SnapshotReady};
use crate::audit_chain::{AuditChain, AuditHead, ChainEntry};
use crate::guard::barrier::folder_path::ContentDigest;
use crate::guard::folder_snapshot::descriptor::{EntryKind, ManifestEntry, manifest_text};

/// Returns the bytes of a marker.
pub(crate) fn marker() -> Vec<u8> {
    let first = TestMarkers::made(6, 1, None, &[]).link().expect("it can be written");
    let marker = TestMarkers::made(7, 2, Some(first), &[is("a", b"one"), is("b/c", b"two")]);
    marker.write().expect("it can be written")
}

/// Returns the bytes of a ledger.
pub(crate) fn ledger() -> Vec<u8> {
    let mut ledger = Ledger::default();
    ledger.record_own(HandoverId(9));
    ledger.save()
}

/// Returns the descriptor, the manifest and the last file of a snapshot.
pub(crate) fn manifest() -> Vec<u8> {
    let digest = ContentDigest::of(b"abc");
    let path = "a:b".into();
    let mut entries = [ManifestEntry { kind: EntryKind::File, path, mode: 0o644, size: 3, digest }];
    let text = manifest_text(&mut entries);
    let consistency = SnapshotConsistency::Quiesced;
    let mut descriptor = SnapshotDescriptor::new("20260115T103000-0000002a", consistency);
    descriptor.root = ContentDigest::of(text.as_bytes()).to_string();
    let ready = SnapshotReady::of(&descriptor).bytes();
    [descriptor.bytes(), text.into_bytes(), ready].concat()
}

/// Returns a line of an audit log, and its head.
pub(crate) fn audit() -> Vec<u8> {
    let mut chain = AuditChain::resume(None, None);
    let line = chain.add(ChainEntry {
        timestamp: "2026-01-15T10:30:00.000Z".to_owned(),
        operation: "steal",
        actor: "laptop1",
        target: Some("build".to_owned()),
        fencing_token: Some(7),
        session_id: Some("3".to_owned()),
        reason: Some("gone"),
        ..ChainEntry::default()
    });
    (line + &AuditHead::of(&chain, 1).to_text()).into_bytes()
}
