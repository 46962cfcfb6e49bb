//! The audit log: who took a live lock from whom, and why, and who changed the cluster. One JSON
//! object a line, on the disk before anybody is told; without a state directory it goes to the
//! ordinary log.

use crate::engine::{Event, EventKind, TenureEnd};
use crate::time::Wall;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file's name in the state directory.
const AUDIT_FILE: &str = "audit.log";

/// An administrator's act on the cluster: each has an entry when it begins, and one when it ends.
#[derive(Debug, Clone, Copy)]
pub struct AdminAction<'a> {
    /// The action.
    pub what: &'a str,
    /// The node that it affects, if the request names one.
    pub node: Option<u64>,
    /// The name of the credential.
    pub by: &'a str,
    /// The kind of the credential.
    pub credential: &'a str,
    /// Where the request came from.
    pub address: &'a str,
    /// How far it is: begun, or how it ended.
    pub outcome: &'a str,
}

/// Where entries go.
pub(crate) struct Audit(Option<File>);

impl Audit {
    /// Entries go behind those that are in `dir` already.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(AUDIT_FILE);
        OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(Some).map(Self)
    }

    /// Entries go to the log.
    pub(crate) const fn to_log() -> Self {
        Self(None)
    }

    /// Writes an entry if `event` is one that needs it; `wall` is then asked when that was.
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

    /// Writes an entry for an administrator's act on the cluster.
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
