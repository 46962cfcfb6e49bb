//! Sends the results of operations to the kernel as replies.

use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::values::{
    DirPage, Errno, NodeAttr, NodeEntry, NodeType, Opened, Requester,
};
use fuser::{
    FileAttr, FileHandle, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyXattr, Request,
};

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
        Ok((entry, Opened { fh, flags })) => {
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
    let dots = (0..DOTS).zip([".", ".."]).map(|(at, name)| (at, ino, NodeType::Directory, name));
    let names = (first + DOTS..).zip(&*entries);
    let names = names.map(|(at, e)| (at, e.ino.unwrap_or(INO_UNKNOWN), e.kind, &*e.name));
    for (at, ino, kind, name) in dots.chain(names).skip_while(|(at, ..)| *at < offset) {
        if reply.add(INodeNo(ino), at + 1, kind, name) {
            break;
        }
    }
    reply.ok();
}
