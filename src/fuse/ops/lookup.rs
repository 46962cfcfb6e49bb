//! The read-only file operations on locks: lookup, stat, readlink, statfs.
//!
//! Opens and reads directories, page by page: the mount point, and directories that are locks.

use crate::engine::values::name::{PART_BYTES_MAX, RESERVED_PREFIX};
use crate::engine::{Child, FileType, LockName, LockView, NameError};
use crate::fuse::control_names::{ControlFile, LockFact};
use crate::fuse::credentials::Caller;
use crate::fuse::file_attrs;
use crate::fuse::inodes::{LockNode, NodePlace};
use crate::fuse::lock_nodes::wrong_name;
use crate::fuse::mount_parts::Mount;
use crate::fuse::open_files::{DirMark, DirReading, OpenDir, PAGE, PageFound};
use crate::fuse::refusals::{Act, errno_of_lookup};
use crate::service::{Children, ListPage, RequestError};
use kernel::file_system::{
    DirEntry, DirPage, Errno, FileAttr, FileSystemStats, INodeNo, NodeAttr, NodeEntry, NodeType,
    Opened, OpenedFlags, ReadBytes,
};
use std::ffi::OsStr;
use std::sync::Arc;

/// The block size that statfs reports.
const BLOCK_BYTES: u32 = 4_096;
/// The number of free blocks that statfs reports. Locks take none, but many programs refuse to
/// write to a full disk.
const BLOCKS: u64 = 1 << 20;
/// The maximum number of names that statfs reports, as the number of inodes.
const FILES: u64 = 1 << 20;

/// Looks up a name in the mount point or below it, but not in a directory of control files.
pub(crate) async fn lookup(
    mount: &Mount,
    caller: &Caller,
    dir: &NodePlace,
    name: &OsStr,
) -> Result<NodeEntry, Errno> {
    if matches!(dir, NodePlace::Top) && name == RESERVED_PREFIX {
        return Ok(mount.nodes.control_entry(&ControlFile::Top));
    }
    let child = dir.child(name).map_err(|error| no_such_name(mount, caller, name, error))?;
    let (state, as_of) = mount.nodes.state(caller, Act::Lookup, &child).await?;
    let Some((kind, token)) = state.shown() else {
        let fact = if dir.is_held_directory() { LockFact::named(name) } else { None };
        return match (fact, dir) {
            (Some(fact), NodePlace::Lock(dir)) => {
                Ok(mount.nodes.control_entry(&ControlFile::Fact(fact, dir.name.clone())))
            }
            _ => not_there(mount, &child, as_of),
        };
    };
    mount.nodes.refusals.last().met(&caller.client, &child);
    let (ino, node) = {
        let mut inodes = mount.nodes.inodes();
        let ino = inodes.seen(&child, kind, token);
        (ino, inodes.place(ino))
    };
    let Some(NodePlace::Lock(node)) = node else { return Err(Errno::ESTALE) };
    if node.links.len() > 1 {
        return Ok(NodeEntry::uncached(mount.nodes.attr_now(caller, ino, &node).await?));
    }
    let attr = mount.nodes.attrs.of_one(ino, &node, &state);
    // When the kernel drops a cached directory, programs whose working directory it is lose it.
    // So a directory that is a lock is cached only if the kernel can mark names as expired. A
    // directory that exists only because of locks below it changes with each of them, so it is
    // never cached.
    let may_keep =
        kind != FileType::Directory || (token.is_some() && mount.cache.may_keep_directories());
    let as_of = as_of.filter(|_| may_keep);
    Ok(kept_entry(mount, &child, Some(ino), as_of, attr))
}

/// Returns the entry of an existing name, which the kernel may cache until the lock or its file
/// changes.
fn kept_entry(
    mount: &Mount,
    name: &LockName,
    ino: Option<u64>,
    as_of: Option<u64>,
    attr: FileAttr,
) -> NodeEntry {
    let (ttl, until_replied) = mount.cache.keep(name, ino, as_of);
    NodeEntry { attr, attr_ttl: ttl, entry_ttl: ttl, until_replied }
}

/// Returns the negative entry of a name that does not exist, which the kernel may cache too.
fn not_there(mount: &Mount, name: &LockName, as_of: Option<u64>) -> Result<NodeEntry, Errno> {
    mount.nodes.inodes().gone(name);
    let attr = mount.nodes.attrs.of_nobody(0, FileType::File, 0);
    let nothing = FileAttr { ino: INodeNo(0), ..attr };
    let entry = kept_entry(mount, name, None, as_of, nothing);
    if entry.entry_ttl.is_zero() { Err(Errno::ENOENT) } else { Ok(entry) }
}

/// Returns the errno of looking up a text that can't be a lock's name. Usually it is ENOENT:
/// the call that creates an entry under the name, which the kernel sends next, reports the
/// reason. For a name that is too long the kernel sends no such call, so the lookup itself
/// reports the reason.
fn no_such_name(mount: &Mount, caller: &Caller, name: &OsStr, error: NameError) -> Errno {
    let errno = errno_of_lookup(error);
    if error == NameError::TooLong {
        let sentence = wrong_name(name, error);
        return mount.nodes.refusals.refused(caller, Act::Lookup, None, errno, sentence);
    }
    errno
}

/// Returns the attributes of an inode that stands for a lock (stat).
pub(crate) async fn getattr(
    mount: &Mount,
    caller: &Caller,
    ino: u64,
    node: &LockNode,
) -> Result<NodeAttr, Errno> {
    if node.links.len() > 1 {
        return Ok(NodeAttr::uncached(mount.nodes.attr_now(caller, ino, node).await?));
    }
    let (state, as_of) = mount.nodes.state(caller, Act::Stat, &node.name).await?;
    let attr = mount.nodes.attrs.of_one(ino, node, &state);
    // The kernel may cache the attributes only if the inode still has its name, because
    // invalidations go by name.
    let is_named = !node.links.is_empty() && state.is_held();
    let as_of = as_of.filter(|_| is_named);
    let (ttl, until_replied) = mount.cache.keep(&node.name, Some(ino), as_of);
    Ok(NodeAttr { attr, ttl, until_replied })
}

/// Returns the target of a symlink (readlink).
pub(crate) async fn readlink(mount: &Mount, caller: &Caller, ino: u64) -> Result<ReadBytes, Errno> {
    let Some(node) = mount.nodes.lock_node(ino) else { return Err(Errno::EINVAL) };
    let view = mount.nodes.view(caller, Act::Readlink, &node.name).await?;
    let Some(text) = text_of(&node, &view) else { return Err(Errno::ENOENT) };
    if mount.follows_symlinks && !may_follow(mount, caller, &view, text) {
        let sentence = "this symlink of another user leads out of the mount, and this mount \
                        can't keep the kernel from following it; read .latchfs/content for \
                        its text";
        let (refusals, name) = (&mount.nodes.refusals, Some(&view.name));
        return Err(refusals.refused(caller, Act::Readlink, name, Errno::EACCES, sentence));
    }
    Ok(ReadBytes::from(text.to_vec()))
}

/// Whether the kernel may follow a symlink on behalf of the caller. The kernel does not say
/// whether the request is a readlink or a step of path resolution, so a symlink that leads out
/// of the mount is shown only to the user who made it.
fn may_follow(mount: &Mount, caller: &Caller, view: &LockView, text: &[u8]) -> bool {
    let parts = || text.split(|byte| *byte == b'/');
    let stays = !text.starts_with(b"/") && parts().all(|part| part != b"..");
    let own = view.holder().is_some_and(|holder| {
        let lease = &holder.lease;
        mount.callers.is_local(&lease.holder) && lease.details.attrs().uid == caller.uid
    });
    stays || own
}

/// Returns the size of the file system that statfs reports.
pub(crate) fn statfs(mount: &Mount) -> FileSystemStats {
    let used = mount.nodes.service.about().locks as u64;
    FileSystemStats {
        blocks: BLOCKS,
        blocks_free: BLOCKS,
        blocks_available: BLOCKS,
        files: FILES,
        files_free: FILES.saturating_sub(used),
        block_bytes: BLOCK_BYTES,
        fragment_bytes: BLOCK_BYTES,
        name_bytes: PART_BYTES_MAX as u32,
    }
}

fn text_of<'a>(node: &LockNode, view: &'a LockView) -> Option<&'a [u8]> {
    let token = node.links.iter().find(|link| link.name == view.name)?.token;
    let lease = &view.holder()?.lease;
    (token == Some(lease.token)).then_some(lease.details.text())
}

/// Opens a directory (opendir).
pub(crate) fn open_dir(mount: &Mount, caller: &Caller) -> Result<Opened, Errno> {
    match mount.opens.insert_dir(caller.uid) {
        Ok(fh) => Ok(Opened { fh, flags: OpenedFlags::empty() }),
        Err(full) => Err(mount.nodes.refusals.full(caller, Act::List, None, &full)),
    }
}

/// Closes an open directory (closedir).
pub(crate) fn close_dir(mount: &Mount, fh: u64) {
    mount.opens.remove_dir(fh);
}

/// Returns the open directory with the handle `fh`. With `anew` its reading starts over, so
/// that the pages read from now on are current. `fixed` holds all entries if it is a directory
/// of control files.
pub(crate) fn reading(
    mount: &Mount,
    fh: u64,
    anew: bool,
    fixed: Option<Vec<DirEntry>>,
) -> Result<Arc<OpenDir>, Errno> {
    let Some(dir) = mount.opens.dir(fh) else { return Err(Errno::EBADF) };
    if anew {
        let mut reading = dir.reading.lock();
        *reading = DirReading::new();
        if let Some(entries) = fixed {
            reading.turn_to(&DirMark::default(), entries, None);
        }
    }
    Ok(dir)
}

/// Returns the page of the directory that contains the entry number `index`. The lock service
/// lists names in order only, so this function reads on, page by page, from the nearest
/// remembered position before the entry.
pub(crate) async fn page(
    mount: &Mount,
    caller: &Caller,
    parent: Option<&LockName>,
    dir: &OpenDir,
    index: u64,
) -> Result<DirPage, Errno> {
    loop {
        let found = dir.reading.lock().find(index);
        let mark = match found {
            PageFound::Here(entries, first) => return Ok(DirPage { entries, first }),
            PageFound::End => return Ok(DirPage { entries: Arc::default(), first: index }),
            PageFound::From(mark) => mark,
        };
        let (cursor, limit) = (mark.cursor.clone(), PAGE);
        let query = Children { parent: parent.cloned(), cursor, limit };
        let page = mount.nodes.service.children(query).await.map_err(|why| {
            let failure = RequestError::Unavailable(why);
            mount.nodes.refusals.failed(caller, Act::List, parent, failure)
        });
        let ListPage { items, next } = page?;
        let entries = entries_of(mount, &items);
        dir.reading.lock().turn_to(&mark, entries, next);
    }
}

fn entries_of(mount: &Mount, children: &[Child]) -> Vec<DirEntry> {
    let inodes = mount.nodes.inodes();
    let entry = |child: &Child| DirEntry {
        ino: inodes.number_seen(&child.name, child.lock.as_ref().map(|lease| lease.token)),
        kind: kind_of(child),
        name: OsStr::new(child.name.last_part()).into(),
    };
    children.iter().map(entry).collect()
}

fn kind_of(child: &Child) -> NodeType {
    match &child.lock {
        Some(lease) => file_attrs::kind_of(lease.details.attrs().file_type),
        None => NodeType::Directory,
    }
}
