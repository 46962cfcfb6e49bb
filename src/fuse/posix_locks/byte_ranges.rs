//! The locked byte ranges of one file, with the semantics of fcntl(2). The type does no I/O, and
//! its owners are numbers.
//!
//! One owner's ranges never overlap: locking a part again in another mode changes that part, and
//! unlocking a part leaves the rest. Neighbouring ranges of one owner in one mode are merged.

use crate::engine::Mode;

/// The end of a range that extends to the end of the file, however long that grows.
pub(crate) const TO_END: u64 = i64::MAX as u64;

/// The maximum number of ranges of one file. Each request scans all of them, and the requests of a
/// mount are serialized. Programs that lock by ranges use a few.
const RANGES_MAX: usize = 512;

/// A byte range; both `start` and `end` are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A locked range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) span: ByteRange,
    pub(crate) mode: Mode,
    /// The lock owner, with the open file and the process that locked the range.
    pub(crate) owner: PosixOwner,
}

/// The owner of a lock, as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PosixOwner {
    /// The kernel's number for the owner: a process (fcntl) or an open file (flock, OFD). The
    /// kernel reuses the number as soon as the owner is gone.
    pub(crate) id: u64,
    /// The file handle of the open file through which the owner locks.
    pub(crate) fh: u64,
    /// The process id that `F_GETLK` reports for the owner.
    pub(crate) pid: u32,
}

/// The locked ranges of one file, sorted by their first byte.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range>);

impl ByteRange {
    /// The span of the whole file.
    pub(crate) const WHOLE: Self = Self { start: 0, end: TO_END };

    const fn meets(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the file has so many ranges that no further one may be locked. The limit leaves room
    /// for one more lock, which could split an existing range in three.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() + 2 > RANGES_MAX
    }

    /// Whether the owner `id` has any range.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.0.iter().any(|range| range.owner.id == id)
    }

    /// Returns the first range that conflicts with a lock of `span` in `mode` by the owner `id`.
    pub(crate) fn conflict(&self, id: u64, span: ByteRange, mode: Mode) -> Option<&Range> {
        self.conflicts(id, span, mode).next()
    }

    /// Returns all ranges that conflict with a lock of `span` in `mode` by the owner `id`.
    pub(crate) fn conflicts(
        &self,
        id: u64,
        span: ByteRange,
        mode: Mode,
    ) -> impl Iterator<Item = &Range> {
        self.0.iter().filter(move |range| {
            let both_read = range.mode == Mode::Shared && mode == Mode::Shared;
            range.owner.id != id && range.span.meets(span) && !both_read
        })
    }

    /// Returns the first range of the owner `id` that overlaps `span`.
    pub(crate) fn first_of(&self, id: u64, span: ByteRange) -> Option<&Range> {
        self.0.iter().find(|range| range.owner.id == id && range.span.meets(span))
    }

    /// Returns the mode in which the engine's lease on the whole lock must be held to cover all
    /// ranges.
    pub(crate) fn mode(&self) -> Mode {
        let writes = self.0.iter().any(|range| range.mode == Mode::Exclusive);
        if writes { Mode::Exclusive } else { Mode::Shared }
    }

    /// Locks `span` in `mode` for `owner`. The caller has checked that no other owner's range
    /// conflicts.
    pub(crate) fn lock(&mut self, owner: PosixOwner, span: ByteRange, mode: Mode) {
        assert!(self.conflict(owner.id, span, mode).is_none(), "a range follows conflict()");
        self.unlock(owner.id, span);
        // Merges the new range with adjacent ranges of the same owner and mode.
        let mut whole = Range { span, mode, owner };
        self.0.retain(|range| {
            let is_alike = range.owner.id == owner.id && range.mode == mode;
            if is_alike && range.span.end.saturating_add(1) == span.start {
                (whole.span.start, whole.owner) = (range.span.start, range.owner);
                return false;
            }
            let is_next = is_alike && span.end.saturating_add(1) == range.span.start;
            if is_next {
                whole.span.end = range.span.end;
            }
            !is_next
        });
        self.insert(whole);
    }

    /// Locks `span` in `mode` for `owner` unless that conflicts. Returns whether it was locked.
    pub(crate) fn lock_if_free(&mut self, owner: PosixOwner, span: ByteRange, mode: Mode) -> bool {
        let free = self.conflict(owner.id, span, mode).is_none();
        if free {
            self.lock(owner, span, mode);
        }
        free
    }

    /// Unlocks `span` for the owner `id`. If that would split a range and exceed the limit, the
    /// middle of the range stays locked until the rest is unlocked or the file is closed.
    pub(crate) fn unlock(&mut self, id: u64, span: ByteRange) {
        let splits =
            |r: &&Range| r.owner.id == id && r.span.start < span.start && span.end < r.span.end;
        if self.0.len() >= RANGES_MAX && self.0.iter().any(|range| splits(&range)) {
            return;
        }
        let (mine, rest): (Vec<_>, _) =
            self.0.drain(..).partition(|r| r.owner.id == id && r.span.meets(span));
        self.0 = rest;
        for range in mine {
            if range.span.start < span.start {
                let left = ByteRange { start: range.span.start, end: span.start - 1 };
                self.insert(Range { span: left, ..range });
            }
            if range.span.end > span.end {
                let right = ByteRange { start: span.end + 1, end: range.span.end };
                self.insert(Range { span: right, ..range });
            }
        }
    }

    /// Removes all ranges that were locked through the open file `fh`, which was closed.
    pub(crate) fn drop_file(&mut self, fh: u64) {
        self.0.retain(|range| range.owner.fh != fh);
    }

    fn insert(&mut self, range: Range) {
        let place = self.0.partition_point(|other| other.span.start <= range.span.start);
        self.0.insert(place, range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive, Shared};

    fn owner(id: u64) -> PosixOwner {
        PosixOwner { id, fh: id * 10, pid: 1 }
    }

    fn span(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn shown(ranges: &Ranges) -> String {
        let show = |r: &Range| {
            let mode = if r.mode == Shared { 'r' } else { 'w' };
            format!("{}{mode}{}-{}", r.owner.id, r.span.start, r.span.end)
        };
        ranges.0.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn changing_a_part_of_a_range_leaves_the_rest() {
        let mut ranges = Ranges::default();
        ranges.lock(owner(1), span(0, 99), Exclusive);
        ranges.lock(owner(1), span(10, 19), Shared);
        assert_eq!(shown(&ranges), "1w0-9 1r10-19 1w20-99");
        ranges.lock(owner(2), span(12, 14), Shared);
        ranges.unlock(1, span(15, 49));
        assert_eq!(shown(&ranges), "1w0-9 1r10-14 2r12-14 1w50-99");
        ranges.unlock(1, ByteRange::WHOLE);
        assert_eq!(shown(&ranges), "2r12-14");
        assert_eq!(ranges.mode(), Shared);
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut ranges = Ranges::default();
        ranges.lock(owner(1), span(0, 9), Exclusive);
        ranges.lock(owner(1), span(20, 29), Exclusive);
        ranges.lock(owner(1), span(10, 19), Exclusive);
        assert_eq!(shown(&ranges), "1w0-29");
    }

    /// Neither locking one range after another nor unlocking one range in pieces grows the table
    /// without limit.
    #[test]
    fn number_of_ranges_is_limited() {
        let mut ranges = Ranges::default();
        let mut locked = 0;
        while !ranges.is_full() {
            ranges.lock(owner(1), span(2 * locked, 2 * locked), Exclusive);
            locked += 1;
        }
        assert_eq!(locked as usize, RANGES_MAX - 1);
        ranges.lock(owner(1), ByteRange::WHOLE, Exclusive);
        assert_eq!(ranges.0.len(), 1);
        (1..100_000).for_each(|n| ranges.unlock(1, span(2 * n, 2 * n)));
        assert_eq!(ranges.0.len(), RANGES_MAX);
        assert!(ranges.conflict(2, span(2, 2), Exclusive).is_none(), "it was unlocked");
        assert!(ranges.conflict(2, span(90_000, 90_000), Exclusive).is_some(), "it was not");
        ranges.unlock(1, span(3, TO_END));
        assert_eq!(shown(&ranges), "1w0-1");
    }

    #[test]
    fn the_first_conflict_is_the_one_with_the_lowest_start() {
        let mut ranges = Ranges::default();
        ranges.lock(owner(2), span(50, 59), Exclusive);
        ranges.lock(owner(3), span(10, 19), Shared);
        let first = |mode| ranges.conflict(1, ByteRange::WHOLE, mode).map(|r| r.owner.id);
        assert_eq!(first(Exclusive), Some(3));
        assert_eq!(first(Shared), Some(2));
        assert!(ranges.conflict(2, span(50, 59), Exclusive).is_none(), "one's own is no conflict");
        assert!(ranges.conflict(1, span(20, 49), Exclusive).is_none());
    }

    #[test]
    fn closing_a_file_removes_its_ranges() {
        let mut ranges = Ranges::default();
        ranges.lock(owner(1), span(5, TO_END), Exclusive);
        ranges.lock(owner(2), span(0, 4), Exclusive);
        ranges.drop_file(10);
        assert_eq!(shown(&ranges), "2w0-4");
        ranges.drop_file(20);
        assert!(ranges.is_empty());
    }

    /// Compares random sequences with a model: an array of bytes.
    #[test]
    fn random_locks_and_unlocks_agree_with_an_array() {
        let mut seed = 42_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut ranges = Ranges::default();
        let mut bytes = [[None; 16]; 3];
        for _ in 0..20_000 {
            let (id, from) = (random(3), random(16));
            let part = span(from, (from + random(16)).min(15));
            let places = part.start as usize..=part.end as usize;
            let mode = [Some(Shared), Some(Exclusive), None][random(3) as usize];
            let Some(mode) = mode else {
                ranges.unlock(id, part);
                bytes[id as usize][places].fill(None);
                continue;
            };
            let clash = |other: usize| {
                other != id as usize
                    && bytes[other][places.clone()].iter().any(|held| {
                        matches!((held, mode), (Some(Exclusive), _) | (Some(_), Exclusive))
                    })
            };
            let clashes = (0..3).any(clash);
            assert_eq!(ranges.conflict(id, part, mode).is_some(), clashes);
            if !clashes {
                ranges.lock(owner(id), part, mode);
                bytes[id as usize][places].fill(Some(mode));
            }
            for id in 0..3 {
                let mut found = [None; 16];
                for range in ranges.0.iter().filter(|range| range.owner.id == id) {
                    found[range.span.start as usize..=range.span.end as usize]
                        .fill(Some(range.mode));
                }
                assert_eq!(found, bytes[id as usize]);
            }
        }
    }
}
