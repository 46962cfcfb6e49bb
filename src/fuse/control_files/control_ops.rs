//! Lookup, open, read and write of control files: those of the mount in `.latchfs`, which exists
//! but is not listed, and the small files inside a lock's directory that show one fact about the
//! lock, such as its holder. The content of each is generated when it is read.

use crate::engine::{LockName, LockView};
use crate::fuse::control_files::{ctl, mount_pages, wait_files};
use crate::fuse::control_names::{ControlFile, ControlPage, LockFact, LockReport, README};
use crate::fuse::control_names::{SpelledName, events, reported};
use crate::fuse::credentials::Caller;
use crate::fuse::lock_nodes::content_bytes;
use crate::fuse::mount_parts::Mount;
use crate::fuse::open_files::EventStream;
use crate::fuse::open_files::{OpenAccess, OpenFile};
use crate::fuse::refusals;
use crate::fuse::refusals::Act;
use crate::fuse::refusals::Why;
use crate::status::{lasting, pretty, status_of};
use kernel::file_system::{
    DirEntry, Errno, NodeEntry, NodeType, Opened, OpenedFlags, ReadBytes, ReadRequest,
};
use kernel::handles::Pool;
use std::ffi::OsStr;
use std::sync::Arc;

/// Looks up a name in `.latchfs`, in a directory of reports, or among the files about a lock in
/// the lock's directory.
pub(crate) async fn lookup(
    mount: &Mount,
    caller: &Caller,
    dir: &ControlFile,
    name: &OsStr,
) -> Result<NodeEntry, Errno> {
    let found = match dir {
        ControlFile::Top => file_of_top(name.to_str().unwrap_or_default()),
        ControlFile::Reports(report, parent) => {
            return lookup_report(mount, caller, *report, parent.as_ref(), name).await;
        }
        ControlFile::Page(_)
        | ControlFile::Events(_)
        | ControlFile::Report(..)
        | ControlFile::Fact(..) => return Err(Errno::ENOTDIR),
    };
    found.map(|found| mount.nodes.control_entry(&found)).ok_or(Errno::ENOENT)
}

async fn lookup_report(
    mount: &Mount,
    caller: &Caller,
    report: LockReport,
    parent: Option<&LockName>,
    name: &OsStr,
) -> Result<NodeEntry, Errno> {
    let (name, spelled) = reported(parent, name).map_err(|(errno, sentence)| {
        mount.nodes.refusals.refused(caller, Act::Lookup, None, errno, sentence)
    })?;
    let view = mount.nodes.view(caller, Act::Lookup, &name).await?;
    let found = if view.has_below && spelled == SpelledName::Plain {
        ControlFile::Reports(report, Some(name))
    } else {
        ControlFile::Report(report, name)
    };
    let mut entry = mount.nodes.control_entry(&found);
    if matches!(found, ControlFile::Report(LockReport::Content, _)) {
        entry.attr.size = content_bytes(&view);
    }
    Ok(entry)
}

/// Opens a control file. Fails with EACCES if it is opened for writing but takes no writes.
pub(crate) fn open(
    mount: &Mount,
    caller: &Caller,
    control: ControlFile,
    flags: i32,
) -> Result<Opened, Errno> {
    if let Err(full) = mount.opens.shares().room(Pool::Files, caller.uid) {
        return Err(mount.nodes.refusals.full(caller, Act::Open, None, &full));
    }
    if control.is_directory() {
        return Err(Errno::EISDIR);
    }
    if OpenAccess::of_flags(flags).writes() && !control.takes_writes() {
        return Err(Errno::EACCES);
    }
    let (stream, how) = match control {
        ControlFile::Events(since) => {
            let stream = EventStream::open(&mount.nodes.service, since);
            (Some(stream), OpenedFlags::FOPEN_NONSEEKABLE)
        }
        _ => (None, OpenedFlags::empty()),
    };
    let fh = mount.opens.insert(OpenFile::of_control(caller, control, flags, stream));
    // No control file can be locked, so the kernel need not send FLUSH on close. If it did, a
    // program that exits while the daemon is stopped would wait in the close, and not even
    // SIGKILL could end that.
    let flags = OpenedFlags::FOPEN_DIRECT_IO | OpenedFlags::FOPEN_NOFLUSH | how;
    Ok(Opened { fh, flags })
}

/// Reads a control file. A read at offset 0 generates the content and keeps it as a snapshot;
/// reads at later offsets return parts of that snapshot.
pub(crate) async fn read(
    mount: &Arc<Mount>,
    caller: &Caller,
    open: &Arc<OpenFile>,
    control: &ControlFile,
    asked: ReadRequest,
) -> Result<ReadBytes, Errno> {
    match control {
        ControlFile::Events(_) => return read_events(mount, caller, open, asked).await,
        ControlFile::Page(ControlPage::Ctl) => {
            return ctl::read(mount, caller, open, asked).await;
        }
        ControlFile::Report(LockReport::Wait, name) => {
            return wait_files::read(mount, caller, open, name, asked).await;
        }
        _ => {}
    }
    if let Some(part) = open.kept_window(asked) {
        return Ok(part);
    }
    let bytes = render(mount, caller, open, control).await?;
    match open.keep(mount.opens.shares(), bytes) {
        Ok(bytes) => Ok(ReadBytes::window(bytes, asked.offset, asked.size)),
        Err(full) => Err(mount.nodes.refusals.full(caller, Act::Read, None, &full)),
    }
}

/// Returns the events that an open `.latchfs/events` has not read yet. If there are none, waits
/// for the next event.
async fn read_events(
    mount: &Mount,
    caller: &Caller,
    open: &OpenFile,
    asked: ReadRequest,
) -> Result<ReadBytes, Errno> {
    let stream = open.state().stream.clone();
    let Some(stream) = stream else { return Err(Errno::EIO) };
    if let Some(bytes) = stream.read_now(asked.size) {
        return Ok(bytes.into());
    }
    if asked.is_nonblocking() {
        return Err(Errno::EAGAIN);
    }
    if let Err(full) = mount.opens.shares().room(Pool::Threads, caller.uid) {
        return Err(mount.nodes.refusals.full(caller, Act::Read, None, &full));
    }
    let number = mount.opens.number();
    let later = stream.read_later(&mount.interrupts, number, asked.size, caller.pid);
    drop(stream);
    later.await.unwrap_or(Err(Errno::EIO))
}

/// Returns the current content of a control file.
async fn render(
    mount: &Mount,
    caller: &Caller,
    open: &OpenFile,
    control: &ControlFile,
) -> Result<Arc<[u8]>, Errno> {
    let text = match control {
        ControlFile::Top | ControlFile::Reports(..) => return Err(Errno::EISDIR),
        ControlFile::Page(ControlPage::Readme) => README.to_owned(),
        ControlFile::Page(ControlPage::Server) => pretty(&mount_pages::server(mount)),
        ControlFile::Page(ControlPage::Metrics) => mount_pages::metrics(mount),
        ControlFile::Page(ControlPage::Ctl) | ControlFile::Events(_) => String::new(),
        ControlFile::Page(ControlPage::Why) => why(mount, caller, open).await?,
        ControlFile::Report(_, name) | ControlFile::Fact(_, name) => {
            let view = mount.nodes.view(caller, Act::Read, name).await?;
            open.saw(&view);
            return Ok(report_content(mount, control, &view));
        }
    };
    Ok(text.into_bytes().into())
}

/// Returns the last refusal of the user who opened the file, as JSON.
async fn why(mount: &Mount, caller: &Caller, open: &OpenFile) -> Result<String, Errno> {
    let nodes = &mount.nodes;
    let last = nodes.refusals.last().of(&open.client);
    Ok(pretty(&match last {
        Why::Nothing => refusals::nothing(&open.client),
        Why::Refused(value) => value,
        Why::Met(name) => {
            let view = nodes.view(&open.opener(caller), Act::Read, &name).await?;
            refusals::met(&open.client, &view)
        }
    }))
}

/// Returns the content of a control file that reports on a lock, whose state is `view`.
fn report_content(mount: &Mount, control: &ControlFile, view: &LockView) -> Arc<[u8]> {
    let holder = view.holder();
    let wall = |at| mount.nodes.service.wall(at);
    let line = |fact: Option<String>| fact.map_or_else(String::new, |fact| fact + "\n");
    let text = match control {
        ControlFile::Report(LockReport::Content, _) => {
            let text = holder.map(|holder| holder.lease.details.shared_text());
            return text.unwrap_or_default();
        }
        ControlFile::Fact(fact, _) => match fact {
            LockFact::Holder => line(holder.map(|h| h.lease.holder.to_string())),
            LockFact::Token => line(holder.map(|h| h.lease.token.to_string())),
            LockFact::Phase => line(Some(view.phase().as_str().to_owned())),
            LockFact::ExpiresAt => line(holder.map(|holder| {
                lasting(holder).unwrap_or_else(|| wall(holder.ends.expires_at).to_string())
            })),
            LockFact::Waiters => {
                let waiters = view.waiters.iter().flat_map(|w| [w.client.as_str(), "\n"]);
                waiters.collect()
            }
            LockFact::Status | LockFact::Ctl => pretty(&status_of(view, wall)),
        },
        _ => pretty(&status_of(view, wall)),
    };
    text.into_bytes().into()
}

/// Writes to a control file on behalf of the user who opened it.
pub(crate) async fn write(
    mount: &Arc<Mount>,
    caller: &Caller,
    fh: u64,
    open: &Arc<OpenFile>,
    control: &ControlFile,
    data: &[u8],
) -> Result<u32, Errno> {
    match control {
        ControlFile::Page(ControlPage::Ctl) => {
            ctl::write(mount, &open.opener(caller), fh, open, data).await
        }
        _ => Err(Errno::EBADF),
    }
}

/// Handles the close of a control file's last descriptor: a file of `.latchfs/wait` leaves the
/// lock's queue.
pub(crate) fn closed(mount: &Mount, open: &OpenFile) {
    if open.waits_for().is_some() {
        wait_files::closed(mount, open);
    }
}

/// Returns the file with this name in `.latchfs`.
fn file_of_top(name: &str) -> Option<ControlFile> {
    let page = ControlPage::ALL.into_iter().find(|page| name == page.as_str());
    let report = LockReport::ALL.into_iter().find(|report| name == report.as_str());
    let page = page.map(ControlFile::Page);
    page.or_else(|| report.map(|report| ControlFile::Reports(report, None)))
        .or_else(|| events(name))
}

/// Returns the entries of a directory of control files. A report exists for every possible lock
/// name, so reports are found by lookup and not listed.
pub(crate) fn entries(dir: &ControlFile) -> Vec<DirEntry> {
    let entry = |kind, name| DirEntry { ino: None, kind, name: OsStr::new(name).into() };
    if *dir != ControlFile::Top {
        return Vec::new();
    }
    let pages = ControlPage::ALL.iter().map(|page| entry(NodeType::RegularFile, page.as_str()));
    let reports = LockReport::ALL.iter().map(|dir| entry(NodeType::Directory, dir.as_str()));
    pages.chain(reports).collect()
}
