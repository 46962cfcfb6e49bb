//! Open directories. They are read page by page, so that neither the time of one request nor what
//! an open directory keeps depends on how many locks there are.
//!
//! Names come in order, and a page begins behind the last name of the page before. A name that is
//! there all the time is listed once; one that comes or goes meanwhile may be listed or not.

use super::attr;
use super::control;
use super::errno::Act;
use super::opens::Entry;
use super::owner::Caller;
use super::shared::{Fs, Shared};
use super::shares::Share;
use super::tree::Place;
use crate::engine::{Child, LockName};
use crate::service::{Children, ListPage, RequestError};
use fuser::{Errno, FileHandle, FileType, FopenFlags, INodeNo, ReplyDirectory, ReplyOpen};
use parking_lot::Mutex;
use std::sync::Arc;

/// Names on a page: twice what the usual reply of 4 KiB takes.
const PAGE: usize = 256;
/// Places to which reading can go back without beginning anew.
const MARKS_MAX: usize = 64;
/// The number of a name that the kernel does not know, as libfuse gives it; 0 would hide it.
const INO_UNKNOWN: u64 = 0xffff_ffff;
/// Offsets of `.` and `..`, before the names.
const DOTS: u64 = 2;

/// An open directory.
#[derive(Debug)]
pub(super) struct Listing {
    place: Mutex<Reading>,
    _share: Share,
}

/// How far reading has come.
#[derive(Debug)]
struct Reading {
    /// The page that was read last, and the number of its first name.
    entries: Arc<Vec<Entry>>,
    first: u64,
    /// Where the next page begins; `None`: nowhere.
    next: Option<Mark>,
    /// How many names were read: no place behind them was ever given out.
    reached: u64,
    /// Places before it, in order.
    marks: Vec<Mark>,
    /// How far apart they are at least.
    stride: u64,
}

/// A place in a directory.
#[derive(Debug, Clone, Default)]
struct Mark {
    /// The number of the name that comes next.
    index: u64,
    /// How the engine finds it; `None`: the beginning.
    cursor: Option<String>,
}

/// Where a name is to be found.
enum Found {
    /// On this page.
    Here(Arc<Vec<Entry>>, u64),
    /// On the page that begins here, or on one behind.
    From(Mark),
    /// Nowhere.
    End,
}

impl Listing {
    /// A directory of which nothing was read.
    pub(super) fn new(share: Share) -> Self {
        Self { place: Mutex::new(Reading::new()), _share: share }
    }
}

impl Reading {
    fn new() -> Self {
        let (next, marks) = (Some(Mark::default()), vec![Mark::default()]);
        Self { entries: Arc::default(), first: 0, next, reached: 0, marks, stride: PAGE as u64 }
    }

    fn find(&self, index: u64) -> Found {
        let end = self.first + self.entries.len() as u64;
        if (self.first..end).contains(&index) {
            return Found::Here(Arc::clone(&self.entries), self.first);
        }
        if index > self.reached || (self.next.is_none() && index >= end) {
            return Found::End;
        }
        let places = self.marks.iter().chain(&self.next).filter(|mark| mark.index <= index);
        Found::From(places.max_by_key(|mark| mark.index).cloned().unwrap_or_default())
    }

    /// A page was read from `mark` on.
    fn turn_to(&mut self, mark: &Mark, entries: Vec<Entry>, cursor: Option<String>) {
        let index = mark.index + entries.len() as u64;
        self.first = mark.index;
        self.reached = self.reached.max(index);
        self.entries = Arc::new(entries);
        self.next = cursor.map(|cursor| Mark { index, cursor: Some(cursor) });
        let last = self.marks.last().map_or(0, |last| last.index);
        if mark.index < last + self.stride {
            return;
        }
        if self.marks.len() == MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
        self.marks.push(mark.clone());
    }
}

/// A request to read a directory.
struct Request {
    listing: Arc<Listing>,
    ino: u64,
    parent: Option<LockName>,
    offset: u64,
    reply: ReplyDirectory,
}

/// opendir.
pub(super) fn opendir(fs: &Fs, caller: &Caller, reply: ReplyOpen) {
    match fs.opens.insert_listing(caller.uid) {
        Ok(fh) => reply.opened(FileHandle(fh), FopenFlags::empty()),
        Err(full) => reply.error(fs.refuse_full(caller, Act::List, None, full)),
    }
}

/// readdir. From the beginning it reads anew.
pub(super) fn readdir(
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
        Ok(ListPage { items, next }) => {
            let entries = entries_of(&fs2, &items);
            asked.listing.place.lock().turn_to(&mark, entries, next);
            // No more than the pages between two marks.
            serve(&fs2, &caller, asked);
        }
        Err(why) => {
            let failure = RequestError::Unavailable(why);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the page that holds `index`, as the engine would serve it. Gives the pages read.
    fn turn(reading: &mut Reading, index: u64, count: u64) -> usize {
        let mut pages = 0;
        while let Found::From(mark) = reading.find(index) {
            let end = count.min(mark.index + PAGE as u64);
            let entry =
                |n: u64| Entry { ino: None, kind: FileType::Directory, name: n.to_string().into() };
            let next = (end < count).then(|| end.to_string());
            assert_eq!(mark.cursor.as_deref().unwrap_or("0"), mark.index.to_string());
            reading.turn_to(&mark, (mark.index..end).map(entry).collect(), next);
            pages += 1;
        }
        pages
    }

    fn name_at(reading: &mut Reading, index: u64, count: u64) -> Option<String> {
        turn(reading, index, count);
        match reading.find(index) {
            Found::Here(entries, first) => Some(entries[(index - first) as usize].name.to_string()),
            _ => None,
        }
    }

    #[test]
    fn every_name_is_found_in_any_order() {
        const COUNT: u64 = 100_000;
        let mut reading = Reading::new();
        for index in (0..COUNT).chain([5, COUNT - 1, 70_000, 0, 256, 255]) {
            assert_eq!(name_at(&mut reading, index, COUNT), Some(index.to_string()));
        }
        assert_eq!(name_at(&mut reading, COUNT, COUNT), None);
        assert_eq!(name_at(&mut reading, u64::MAX, COUNT), None);
        assert_eq!(name_at(&mut Reading::new(), 0, 0), None);
        assert_eq!(turn(&mut Reading::new(), COUNT, COUNT), 0, "no place that was given out");
    }

    #[test]
    fn going_back_reads_few_pages_and_little_is_kept() {
        const COUNT: u64 = 1 << 20;
        let mut reading = Reading::new();
        for index in (0..COUNT).step_by(PAGE) {
            assert_eq!(turn(&mut reading, index, COUNT), 1);
        }
        for index in [0, 1_000, COUNT / 3, COUNT / 2, COUNT - 70_000] {
            // All pages between two of the marks, which are halved whenever they are too many.
            assert!(turn(&mut reading, index, COUNT) <= 4 * COUNT as usize / PAGE / MARKS_MAX);
            assert!(reading.marks.len() <= MARKS_MAX && reading.entries.len() <= PAGE);
        }
    }
}
