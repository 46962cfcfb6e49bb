//! The audit log: records each steal and reset of a held lock with its reason, and each
//! administrative change of the cluster. Each entry is one line of JSON, and is on disk before any
//! client is notified of the change. Without a state directory, entries go to the ordinary log.

use crate::engine::{Event, EventKind, TenureEnd};
use crate::time::Wall;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The name of the audit log in the state directory.
const AUDIT_FILE: &str = "audit.log";

/// An administrative action on the cluster. It is logged when it begins and when it ends.
#[derive(Debug, Clone, Copy)]
pub struct AdminAction<'a> {
    /// The name of the action.
    pub what: &'a str,
    /// The node that the action affects, if the request names one.
    pub node: Option<u64>,
    /// The name of the credential that authorized the action.
    pub by: &'a str,
    /// The kind of the credential that authorized the action.
    pub credential: &'a str,
    /// The address from which the request came.
    pub address: &'a str,
    /// The progress of the action: that it has begun, or how it ended.
    pub outcome: &'a str,
}

/// The audit log: the file to which entries are appended, or `None` if they go to the ordinary log
/// only.
pub(crate) struct Audit(Option<File>);

impl Audit {
    /// Opens the audit log in `dir` and appends to the entries that it already has.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(AUDIT_FILE);
        OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(Some).map(Self)
    }

    /// Returns an audit log that writes its entries to the ordinary log.
    pub(crate) const fn to_log() -> Self {
        Self(None)
    }

    /// Writes an entry if `event` says that a lock was taken from its holder. Calls `wall` for the
    /// time of the event, but only if an entry is written.
    pub(crate) fn enter(&mut self, event: &Event, wall: impl FnOnce() -> Wall) {
        let EventKind::Ended { name, holder, token, end: TenureEnd::Stolen { by, reason }, .. } =
            &event.what
        else {
            return;
        };
        let entry = json!({
            "at": wall().to_string(),
            "act": "steal",
            "name": name.as_str(),
            "from": holder.as_str(),
            "token": token.as_u64(),
            "by": by.as_str(),
            "reason": reason.as_str(),
        });
        log::warn!("lock '{name}' was taken from {holder} by {by}: {}", reason.as_str());
        self.write(&entry);
    }

    /// Writes an entry for an administrative action on the cluster.
    pub(crate) fn enter_act(&mut self, act: &AdminAction<'_>, at: Wall) {
        let AdminAction { what, node, by, credential, address, outcome } = act;
        let entry = json!({
            "at": at.to_string(),
            "act": what,
            "node": node,
            "by": by,
            "credential": credential,
            "address": address,
            "outcome": outcome,
        });
        log::warn!("{what} (node {node:?}) by {by} ({credential}) from {address}: {outcome}");
        self.write(&entry);
    }

    fn write(&mut self, entry: &Value) {
        let Some(file) = &mut self.0 else { return };
        let line = format!("{entry}\n");
        if let Err(error) = file.write_all(line.as_bytes()).and_then(|()| file.sync_data()) {
            log::error!("the audit log can't be written ({error}); the entry was: {entry}");
        }
    }
}
