//! The files of `.latchfs` about the mount as a whole: README, server and metrics.

use crate::fuse::mount_config::{ClientScope, HoldBy, ReadContent, Users};
use crate::fuse::mount_parts::Mount;
use crate::fuse::refusals::name_of;
use crate::metrics::{Exposition, MetricKind};
use crate::service::RemoteStatus;
use crate::status::hold_off_of;
use serde_json::{Value, json};

/// Returns the configuration of this mount and the state of its lock service, as JSON.
pub(crate) fn server(mount: &Mount) -> Value {
    let service = &mount.nodes.service;
    let (about, config) = (service.about(), &mount.config);
    let mut page = json!({
        "kind": about.kind.as_str(),
        "contact": about.contact.as_str(),
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "dir": config.dir.to_string_lossy(),
        "client": config.client.as_str(),
        "owner": match config.owner {
            ClientScope::Host => "host",
            ClientScope::User => "user",
            ClientScope::Session => "session",
        },
        "ttl_ms": config.ttl.span().as_millis(),
        "grace_ms": config.grace.span().as_millis(),
        "content": match config.content {
            ReadContent::Status => "status",
            ReadContent::Note => "note",
        },
        "users": match config.users {
            Users::Mounter => "mounter",
            Users::All => "all",
        },
        "hold": match config.hold {
            HoldBy::Renewal => "renewal",
            HoldBy::Session => "session",
        },
        "mounted_at": mount.nodes.attrs.since().to_string(),
        "state": about.state,
        "locks": about.locks,
        "waiters": about.waiters,
        "sessions": about.sessions,
        "open_files": mount.opens.count(),
        "bound_to_processes": mount.bindings.count(),
    });
    if let Some(hold_off) = service.hold_off() {
        page["hold_off"] = hold_off_of(hold_off, service.now(), |at| service.wall(at));
    }
    if let Some(RemoteStatus { server, heard, error }) = service.connection() {
        page["server"] = json!({
            "url": &*server,
            "round_trip_us": heard.map(|heard| heard.round_trip.as_nanos() / 1_000),
            "wall_ahead_ms": heard.map(|heard| heard.wall_ahead_ms),
            "trouble": error,
        });
    }
    page
}

/// Returns all counters, in Prometheus's text format.
pub(crate) fn metrics(mount: &Mount) -> String {
    let mut page = mount.metrics.page();
    let open = mount.opens.count() as u64;
    page.gauge("latchfs_open_files", "Open files of this mount.", open);
    let help = "File operations of this mount.";
    page.family("latchfs_fs_operations_total", help, MetricKind::Counter);
    for (act, value) in mount.nodes.refusals.acts() {
        page.sample(vec![("operation", act.as_str().to_owned())], value);
    }
    let help = "File operations of this mount that were refused.";
    page.family("latchfs_fs_refusals_total", help, MetricKind::Counter);
    for (errno, value) in mount.nodes.refusals.errnos() {
        page.sample(vec![("errno", name_of(errno).to_string())], value);
    }
    page.text(Exposition::PrometheusText)
}
