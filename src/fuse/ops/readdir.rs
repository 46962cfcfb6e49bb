//! Open directories. They are read page by page, so that neither the time of one request nor what
//! an open directory keeps depends on how many locks there are.
//!
//! Names come in order, and a page begins behind the last name of the page before. A name that is
//! there all the time is listed once; one that comes or goes meanwhile may be listed or not.

use crate::fuse::file_attrs;
use crate::fuse::control_files::control;
use crate::fuse::errno::Act;
use crate::fuse::open_files::Entry;
use crate::fuse::credentials::Caller;
use crate::fuse::shared::{Fs, Shared};
use crate::fuse::kernel::user_shares::Share;
use crate::fuse::inodes::Place;
use crate::engine::{Child, LockName};
use crate::service::{Children, Failure, Page};
use fuser::{Errno, FileHandle, FileType, FopenFlags, INodeNo, ReplyDirectory, ReplyOpen};
use parking_lot::Mutex;
use std::sync::Arc;

/// A request to read a directory.
struct Request {
    listing: Arc<Listing>,
    ino: u64,
    parent: Option<LockName>,
    offset: u64,
    reply: ReplyDirectory,
}

/// opendir.
pub(crate) fn opendir(fs: &Fs, caller: &Caller, reply: ReplyOpen) {
    match fs.opens.insert_listing(caller.uid) {
        Ok(fh) => reply.opened(FileHandle(fh), FopenFlags::empty()),
        Err(full) => reply.error(fs.refuse_full(caller, Act::List, None, full)),
    }
}

/// readdir. From the beginning it reads anew.
pub(crate) fn readdir(
    fs: &Fs,
    caller: &Caller,
    (ino, fh): (u64, u64),
    offset: u64,
    reply: ReplyDirectory,
) {
    let Some(listing) = fs.opens.listing(fh) else { return reply.error(Errno::EBADF) };
    let place = fs.place(ino);
    if offset == 0 {
        let mut reading = listing.place.lock();
        *reading = Reading::new();
        if let Some(Place::Control(dir)) = &place {
            reading.turn_to(&Mark::default(), control::entries(dir), None);
        }
    }
    let parent = match place {
        Some(Place::Lock(place)) => Some(place.name.clone()),
        Some(Place::Top | Place::Control(_)) => None,
        None => return reply.error(Errno::ESTALE),
    };
    serve(fs, caller, Request { listing, ino, parent, offset, reply });
}

/// Answers from the page that holds the name, or reads on until it is there.
fn serve(fs: &Fs, caller: &Caller, asked: Request) {
    let found = asked.listing.place.lock().find(asked.offset.saturating_sub(DOTS));
    match found {
        Found::Here(entries, first) => fill(&entries, first, asked),
        Found::End => fill(&[], asked.offset.saturating_sub(DOTS), asked),
        Found::From(mark) => read_page(fs, caller, mark, asked),
    }
}

fn read_page(fs: &Fs, caller: &Caller, mark: Mark, asked: Request) {
    let query = Children { parent: asked.parent.clone(), cursor: mark.cursor.clone(), limit: PAGE };
    let (fs2, caller) = (Arc::clone(fs), caller.clone());
    fs.locks.children(query, move |page| match page {
        Ok(Page { items, next }) => {
            let entries = entries_of(&fs2, &items);
            asked.listing.place.lock().turn_to(&mark, entries, next);
            // No more than the pages between two marks.
            serve(&fs2, &caller, asked);
        }
        Err(why) => {
            let failure = Failure::Unavailable(why);
            let errno = fs2.refuse(&caller, Act::List, asked.parent.as_ref(), failure);
            asked.reply.error(errno);
        }
    });
}

fn entries_of(fs: &Shared, children: &[Child]) -> Vec<Entry> {
    let tree = fs.tree.lock();
    let entry = |child: &Child| Entry {
        ino: tree.number_seen(&child.name, child.lock.as_ref().map(|lease| lease.token)),
        kind: kind_of(child),
        name: child.name.last_part().into(),
    };
    children.iter().map(entry).collect()
}

fn kind_of(child: &Child) -> FileType {
    match &child.lock {
        Some(lease) => attr::kind_of(lease.details.looks().face),
        None => FileType::Directory,
    }
}

/// Answers with what fits of a page whose first name has the number `first`.
fn fill(entries: &[Entry], first: u64, asked: Request) {
    let Request { ino, offset, mut reply, .. } = asked;
    let dots = (0..DOTS).zip([".", ".."]).map(|(at, name)| (at, ino, FileType::Directory, name));
    let names = (first + DOTS..).zip(entries);
    let names = names.map(|(at, e)| (at, e.ino.unwrap_or(INO_UNKNOWN), e.kind, &*e.name));
    for (at, ino, kind, name) in dots.chain(names).skip_while(|(at, ..)| *at < offset) {
        if reply.add(INodeNo(ino), at + 1, kind, name) {
            break;
        }
    }
    reply.ok();
}

