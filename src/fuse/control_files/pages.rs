//! The pages of `.latchfs` that speak of the mount as a whole.

use crate::fuse::errno::name_of;
use crate::fuse::mount::{Content, HoldBy, Owner, Users};
use crate::fuse::shared::Shared;
use crate::metrics::MetricsPage;
use crate::service::{Contact, RemoteStatus};
use serde_json::{Value, json};

/// What programs can do here, for people.
pub(crate) const README: &str = include_str!("README.txt");

/// How this mount is made, and what stands behind it.
pub(crate) fn server(fs: &Shared) -> Value {
    let (about, config) = (fs.locks.about(), &fs.config);
    let mut page = json!({
        "kind": about.kind.as_str(),
        "contact": about.contact.as_str(),
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "dir": config.dir.to_string_lossy(),
        "client": config.client.as_str(),
        "owner": match config.owner {
            Owner::Host => "host",
            Owner::User => "user",
            Owner::Session => "session",
        },
        "ttl_ms": config.ttl.span().as_millis(),
        "grace_ms": config.grace.span().as_millis(),
        "content": match config.content {
            Content::Status => "status",
            Content::Note => "note",
        },
        "users": match config.users {
            Users::Mounter => "mounter",
            Users::All => "all",
        },
        "hold": match config.hold {
            HoldBy::Renewal => "renewal",
            HoldBy::Session => "session",
        },
        "mounted_at": fs.since.to_string(),
        "state": about.state,
        "locks": about.locks,
        "waiters": about.waiters,
        "sessions": about.sessions,
        "open_files": fs.opens.count(),
        "bound_to_processes": fs.processes.count(),
    });
    if let Some(RemoteStatus { server, heard, trouble }) = fs.locks.far() {
        page["server"] = json!({
            "url": &*server,
            "round_trip_us": heard.map(|heard| heard.round_trip.as_nanos() / 1_000),
            "wall_ahead_ms": heard.map(|heard| heard.wall_ahead_ms),
            // What was wrong is of no interest when all is well again.
            "trouble": trouble.filter(|_| about.contact != Contact::Connected),
        });
    }
    page
}

/// All counts, in Prometheus's text format.
pub(crate) fn metrics(fs: &Shared) -> String {
    let mut page = MetricsPage::of(&fs.locks);
    page.family("latchfs_open_files", "Open files of this mount.", "gauge");
    page.line("", fs.opens.count() as u64);
    page.family("latchfs_fs_operations_total", "File operations of this mount.", "counter");
    for (act, value) in fs.counters.acts() {
        page.line(&format!("operation=\"{}\"", act.as_str()), value);
    }
    let help = "File operations of this mount that were refused.";
    page.family("latchfs_fs_refusals_total", help, "counter");
    for (errno, value) in fs.counters.errnos() {
        page.line(&format!("errno=\"{}\"", name_of(errno)), value);
    }
    page.text()
}
