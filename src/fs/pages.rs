//! The pages of `.latchfs` that speak of the mount as a whole.

use super::errno::name_of;
use super::mount::{Content, HoldBy, Owner, Users};
use super::shared::Shared;
use serde_json::{Value, json};
use std::fmt::Write;

/// What programs can do here, for people.
pub(super) const README: &str = include_str!("README.txt");

/// How this mount is made, and what stands behind it.
pub(super) fn server(fs: &Shared) -> Value {
    let (about, config) = (fs.locks.about(), &fs.config);
    json!({
        "kind": about.kind,
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
    })
}

/// All counts, in Prometheus's text format.
pub(super) fn metrics(fs: &Shared) -> String {
    let mut page = String::with_capacity(4_096);
    let about = fs.locks.about();
    for (name, help, value) in [
        ("latchfs_locks", "Locks that are held, in grace or waited for.", about.locks),
        ("latchfs_waiters", "Waiters in all lines.", about.waiters),
        ("latchfs_sessions", "Open sessions.", about.sessions),
        ("latchfs_open_files", "Open files of this mount.", fs.opens.count()),
    ] {
        head(&mut page, name, help, "gauge");
        line(&mut page, name, value as u64);
    }
    for (name, value) in fs.locks.counts() {
        let whole = if name.starts_with("latchfs_") { "" } else { "latchfs_" };
        let name = format!("{whole}{name}");
        head(&mut page, &name, "What happened since the start.", "counter");
        line(&mut page, &name, value);
    }
    let name = "latchfs_fs_operations_total";
    head(&mut page, name, "File operations of this mount.", "counter");
    for (act, value) in fs.counters.acts() {
        line(&mut page, &format!("{name}{{operation=\"{}\"}}", act.as_str()), value);
    }
    let name = "latchfs_fs_refusals_total";
    head(&mut page, name, "File operations of this mount that were refused.", "counter");
    for (errno, value) in fs.counters.errnos() {
        line(&mut page, &format!("{name}{{errno=\"{}\"}}", name_of(errno)), value);
    }
    page
}

fn head(page: &mut String, name: &str, help: &str, kind: &str) {
    let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn line(page: &mut String, name: &str, value: u64) {
    let _ = writeln!(page, "{name} {value}");
}
