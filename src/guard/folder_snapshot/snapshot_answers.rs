//! The answers to requests about snapshots, as JSON.

use super::super::disk::Disk;
use super::descriptor::SnapshotDescriptor;
use super::snapshot_id::SnapshotId;
use super::snapshot_store::{SnapshotError, SnapshotStore};
use serde_json::{Value, json};

/// The maximum number of snapshots that one answer lists: the newest ones.
const LISTED_MAX: usize = 200;
/// The maximum number of sentences of each of them that a list has.
const LISTED_SENTENCES_MAX: usize = 100;

/// Returns the answer for an error.
pub(crate) fn failed(error: &SnapshotError) -> Value {
    let mut answer = json!({"error": error.to_string()});
    if let Some(code) = error.code() {
        answer["code"] = code.into();
    }
    answer
}

/// Returns a descriptor as JSON. A user without the right to see all names gets a number instead of
/// sentences.
pub(crate) fn shown(descriptor: &SnapshotDescriptor, may_see: bool) -> Value {
    let mut value = serde_json::to_value(descriptor).unwrap_or_default();
    for (name, sentences) in [("risk", &descriptor.risk), ("degraded", &descriptor.degraded)] {
        if !may_see && !sentences.is_empty() {
            value[name] = json!([format!("{} files", sentences.len())]);
        }
    }
    value
}

/// Returns the descriptor of a snapshot.
pub(crate) fn show<D: Disk>(store: &SnapshotStore<'_, D>, id: &str, may_see: bool) -> Value {
    match store.open(id) {
        Ok((_, _, descriptor)) => shown(&descriptor, may_see),
        Err(error) => failed(&error),
    }
}

/// Returns the newest snapshots.
pub(crate) fn list<D: Disk>(store: &SnapshotStore<'_, D>, may_see: bool) -> Value {
    let listed = match store.list() {
        Ok(listed) => listed,
        Err(error) => return failed(&SnapshotError::Disk(error)),
    };
    let newest = listed.iter().rev().take(LISTED_MAX);
    let short = |(_, descriptor): &(SnapshotId, SnapshotDescriptor)| {
        let mut short = descriptor.clone();
        short.risk.truncate(LISTED_SENTENCES_MAX);
        short.degraded.truncate(LISTED_SENTENCES_MAX);
        shown(&short, may_see)
    };
    let all: Vec<_> = newest.map(short).collect();
    json!({ "snapshots": all })
}

/// Compares a snapshot with its manifest. Returns the differences.
pub(crate) fn verify<D: Disk>(store: &SnapshotStore<'_, D>, id: &str, on_file: &dyn Fn()) -> Value {
    match store.verify(id, on_file) {
        Ok(differences) => {
            let count = differences.len();
            json!({"id": id, "ok": count == 0, "count": count, "differences": differences})
        }
        Err(error) => failed(&error),
    }
}

/// Removes a snapshot.
pub(crate) fn remove<D: Disk>(store: &SnapshotStore<'_, D>, id: &str) -> Value {
    match store.remove(id) {
        Ok(()) => json!({ "removed": id }),
        Err(error) => failed(&error),
    }
}
