//! Sends the results of operations to the kernel as replies.

use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::values::{
    ContentSource, DirPage, Errno, FileSystemStats, NodeAttr, NodeEntry, NodeType, Opened,
    ReadBytes, Requester,
};
use fuser::{
    FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request,
};
use std::ffi::OsStr;

/// The generation in each entry that is sent to the kernel. It tells apart inodes that have had the
/// same inode number; here no inode number is used twice, so it is constant.
const GENERATION: Generation = Generation(0);
/// The inode number of a directory entry whose inode the kernel does not know, as libfuse reports
/// it. With 0 the entry would be hidden.
const INO_UNKNOWN: u64 = 0xffff_ffff;
/// The number of directory offsets that `.` and `..` take; they precede the other names.
pub(super) const DOTS: u64 = 2;

/// Returns the user, group and thread that made a request.
pub(super) fn requester(request: &Request) -> Requester {
    Requester { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

/// Sends a directory entry, or an errno, as the reply to a request.
pub(super) fn entry(reply: ReplyEntry, result: Done<NodeEntry>) {
    match result {
        Ok(entry) => {
            let NodeEntry { attr, attr_ttl, entry_ttl, until_replied } = entry;
            reply.entry_with_ttls(&attr_ttl, &entry_ttl, &attr, GENERATION);
            drop(until_replied);
        }
        Err(errno) => reply.error(errno),
    }
}

/// Sends a directory entry and an open file, or an errno, as the reply to a request.
pub(super) fn created(reply: ReplyCreate, result: Done<(NodeEntry, Opened)>) {
    match result {
        Ok((entry, Opened { fh, source })) => {
            // `BackingOpener` makes no backing file for the reply to a create.
            let ContentSource::Requests(flags) = source else { return reply.error(Errno::EIO) };
            let NodeEntry { attr, entry_ttl, until_replied, .. } = entry;
            reply.created(&entry_ttl, &attr, GENERATION, FileHandle(fh), flags);
            drop(until_replied);
        }
        Err(errno) => reply.error(errno),
    }
}

/// Sends the attributes of an inode, or an errno, as the reply to a request.
pub(super) fn attr(reply: ReplyAttr, result: Done<NodeAttr>) {
    match result {
        Ok(NodeAttr { attr, ttl, until_replied }) => {
            reply.attr(&ttl, &attr);
            drop(until_replied);
        }
        Err(errno) => reply.error(errno),
    }
}

/// Sends whether a file may be executed, as the reply to a check by access(2): not even by root, if
/// it is a regular file without an execute permission.
pub(super) fn executable(reply: ReplyEmpty, result: &Done<NodeAttr>) {
    let refuses = |attr: &FileAttr| attr.kind == NodeType::RegularFile && attr.perm & 0o111 == 0;
    match result {
        Ok(NodeAttr { attr, .. }) if refuses(attr) => reply.error(Errno::EACCES),
        Ok(_) | Err(_) => reply.ok(),
    }
}

/// Sends an open file or directory, or an errno, as the reply to a request.
pub(super) fn opened(reply: ReplyOpen, result: Done<Opened>) {
    match result {
        Ok(Opened { fh, source: ContentSource::Requests(flags) }) => {
            reply.opened(FileHandle(fh), flags);
        }
        Ok(Opened { fh, source: ContentSource::Backing(backing) }) => {
            reply.opened_passthrough(FileHandle(fh), FopenFlags::FOPEN_NOFLUSH, &backing.id);
        }
        Err(errno) => reply.error(errno),
    }
}

/// Sends bytes, or an errno, as the reply to a request.
pub(super) fn data(reply: ReplyData, result: &Done<ReadBytes>) {
    match result {
        Ok(bytes) => reply.data(bytes.as_slice()),
        Err(errno) => reply.error(*errno),
    }
}

/// Sends the number of bytes written, or an errno, as the reply to a request.
pub(super) fn written(reply: ReplyWrite, result: Done<u32>) {
    match result {
        Ok(written) => reply.written(written),
        Err(errno) => reply.error(errno),
    }
}

/// Sends an offset in a file, or an errno, as the reply to a request.
pub(super) fn offset(reply: ReplyLseek, result: Done<i64>) {
    match result {
        Ok(offset) => reply.offset(offset),
        Err(errno) => reply.error(errno),
    }
}

/// Sends the numbers of blocks and names of a file system as the reply to a statfs.
pub(super) fn stats(reply: ReplyStatfs, stats: &FileSystemStats) {
    reply.statfs(
        stats.blocks,
        stats.blocks_free,
        stats.blocks_available,
        stats.files,
        stats.files_free,
        stats.block_bytes,
        stats.name_bytes,
        stats.fragment_bytes,
    );
}

/// Sends success without a value, or an errno, as the reply to a request.
pub(super) fn empty(reply: ReplyEmpty, result: Done<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// Sends the value of an extended attribute as the reply, or its size if the program passed a
/// buffer of size 0.
pub(super) fn sized(reply: ReplyXattr, result: Done<Vec<u8>>, size: u32) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

/// Sends the directory entries from `offset` on, as many as fit, as the reply to a readdir.
pub(super) fn directory(mut reply: ReplyDirectory, ino: u64, offset: u64, result: Done<DirPage>) {
    let DirPage { entries, first } = match result {
        Ok(page) => page,
        Err(errno) => return reply.error(errno),
    };
    let dots = (0..DOTS).zip([".", ".."].map(OsStr::new));
    let dots = dots.map(|(at, name)| (at, ino, NodeType::Directory, name));
    let names = (first + DOTS..).zip(&*entries);
    let names = names.map(|(at, e)| (at, e.ino.unwrap_or(INO_UNKNOWN), e.kind, &*e.name));
    for (at, ino, kind, name) in dots.chain(names).skip_while(|(at, ..)| *at < offset) {
        if reply.add(INodeNo(ino), at + 1, kind, name) {
            break;
        }
    }
    reply.ok();
}
