//! The space that unpublished content and lost files may take: bytes on the disk and files, in all
//! and for each user.

use crate::shares::{Charges, TableFull, TableShare, UserLimits, UserTable};
use rustix::process::geteuid;
use std::fmt;

/// The maximum number of lost files, with those that are not closed yet, of all users but root and
/// the one who runs the guard. Each takes two names of a directory that the guard reads at its
/// start.
const LOST_FILES_MAX: usize = 16_384;
/// The size of a block on the disk as it is estimated before a write.
const BLOCK_BYTES: u64 = 4_096;

/// How many bytes a guard keeps at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpaceLimits {
    /// The bytes of unpublished content.
    pub(crate) staged: u64,
    /// The bytes of lost files. Unpublished content counts as well: the end of the tenure would
    /// put it aside.
    pub(crate) lost: u64,
}

impl SpaceLimits {
    /// No limit.
    pub(crate) const NONE: Self = Self { staged: u64::MAX, lost: u64::MAX };
}

/// What takes space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpaceUse {
    /// Bytes of unpublished content.
    Staged,
    /// Bytes of lost files, and of content that may become lost.
    Lost,
    /// The number of these files.
    Files,
}

/// Why there is no space for more content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSpace {
    of: SpaceUse,
    /// The user whose share is used up; `None` if the space of all users is.
    uid: Option<u32>,
    max: usize,
}

impl NoSpace {
    const fn new(of: SpaceUse, full: &TableFull) -> Self {
        Self { of, uid: full.user(), max: full.max() }
    }
}

impl fmt::Display for NoSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, uid, max } = self;
        match uid {
            Some(uid) => write!(f, "the files of user {uid}")?,
            None => f.write_str("the files of all users")?,
        }
        match of {
            SpaceUse::Staged => write!(
                f,
                " that are not closed yet would hold more than {max} bytes, which is what \
                 --max-stage allows them; close some, or start the guard with a higher limit"
            ),
            SpaceUse::Lost => write!(
                f,
                " that are lost or not closed yet would hold more than {max} bytes, which is what \
                 --max-lost allows them; look at them with 'latchfs guard lost', and drop those \
                 that you do not need with --drop N"
            ),
            SpaceUse::Files => write!(
                f,
                " that are lost or not closed yet would be more than {max}, which is the limit; \
                 look at them with 'latchfs guard lost', and drop those that you do not need with \
                 --drop N"
            ),
        }
    }
}

/// The space of one guard.
#[derive(Debug)]
pub(crate) struct Space {
    staged: UserTable,
    lost: UserTable,
    files: UserTable,
}

/// The space of an unpublished file.
#[derive(Debug)]
pub(crate) struct StagedSpace {
    staged: Charges,
    lost: Charges,
    _file: TableShare,
}

/// The space of a lost file.
#[derive(Debug)]
pub(crate) struct LostSpace {
    _bytes: TableShare,
    _file: TableShare,
}

/// A part of a file that is about to get content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrowingPart {
    /// The offset at which it begins.
    pub(crate) offset: u64,
    /// Its length in bytes.
    pub(crate) bytes: u64,
    /// Whether content that is there already, up to the number of bytes that the file has, is
    /// taken for a part of it: a program writes a file from its start.
    pub(crate) is_dense: bool,
}

impl GrowingPart {
    /// No part.
    pub(crate) const NONE: Self = Self { offset: 0, bytes: 0, is_dense: true };

    /// Returns how many bytes on the disk the part takes at most, beside the `has` bytes that the
    /// file has.
    pub(crate) fn takes(self, has: u64) -> u64 {
        let end = self.offset.saturating_add(self.bytes);
        let end = end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
        let covers = end - self.offset / BLOCK_BYTES * BLOCK_BYTES;
        match self.bytes {
            0 => 0,
            _ if self.is_dense => covers.min(end.saturating_sub(has)),
            _ => covers,
        }
    }
}

/// Returns the user who runs the guard.
fn own_uid() -> u32 {
    geteuid().as_raw()
}

/// Returns a number of bytes as the tables count them.
fn count(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Space {
    /// Returns space of which nothing is used.
    pub(crate) fn new(limits: SpaceLimits) -> Self {
        let bytes = |items, max| UserTable::new(items, UserLimits::of(count(max)), own_uid());
        let files = UserLimits { one: LOST_FILES_MAX / 2, users: LOST_FILES_MAX, all: usize::MAX };
        Self {
            staged: bytes("bytes of files that are not closed yet", limits.staged),
            lost: bytes("bytes of lost files", limits.lost),
            files: UserTable::new("lost files", files, own_uid()),
        }
    }

    /// Returns the space of a new unpublished file of a user.
    pub(crate) fn staged(&self, uid: u32) -> StagedSpace {
        StagedSpace {
            staged: Charges::new(self.staged.clone()),
            lost: Charges::new(self.lost.clone()),
            _file: self.files.take_always(uid, 1),
        }
    }

    /// Returns the space of a lost file with so many bytes on the disk, also beyond the limits.
    pub(crate) fn lost(&self, uid: u32, bytes: u64) -> LostSpace {
        LostSpace {
            _bytes: self.lost.take_always(uid, count(bytes)),
            _file: self.files.take_always(uid, 1),
        }
    }

    /// Fails if there is no space for so many bytes of lost files more, whoever wrote them.
    pub(crate) fn has_room_for_lost(&self, bytes: u64) -> Result<(), NoSpace> {
        let room = self.lost.room(own_uid(), count(bytes));
        room.map_err(|full| NoSpace::new(SpaceUse::Lost, &full))
    }

    /// Fails if a new change of a user finds no space at all.
    pub(crate) fn check(&self, uid: u32) -> Result<(), NoSpace> {
        let tables = [
            (SpaceUse::Staged, &self.staged),
            (SpaceUse::Lost, &self.lost),
            (SpaceUse::Files, &self.files),
        ];
        tables
            .into_iter()
            .try_for_each(|(of, table)| table.room(uid, 1).map_err(|full| NoSpace::new(of, &full)))
    }

    /// Returns the bytes of unpublished content and of lost files.
    pub(crate) fn used(&self) -> (u64, u64) {
        let (staged, lost) = (self.staged.taken(), self.lost.taken());
        (staged as u64, lost.saturating_sub(staged) as u64)
    }
}

impl StagedSpace {
    /// Takes the space for a part of the file that a user is about to write.
    pub(crate) fn reserve(&mut self, uid: u32, part: GrowingPart) -> Result<(), NoSpace> {
        let has = self.staged.amount();
        let more = count(part.takes(has as u64));
        let staged = self.staged.grow(uid, more);
        staged.map_err(|full| NoSpace::new(SpaceUse::Staged, &full))?;
        self.lost.grow(uid, more).map_err(|full| {
            self.staged.set(uid, has);
            NoSpace::new(SpaceUse::Lost, &full)
        })
    }

    /// Sets the bytes of the file to those that it has on the disk after a change by a user.
    pub(crate) fn settle(&mut self, uid: u32, bytes: u64) {
        self.staged.set(uid, count(bytes));
        self.lost.set(uid, count(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two users who do not run the tests.
    const EVE: u32 = 1_234_567;
    const ANN: u32 = 1_234_568;

    /// Returns a part that a program writes at the end of what it has written.
    fn part(offset: u64, bytes: u64) -> GrowingPart {
        GrowingPart { offset, bytes, is_dense: true }
    }

    const KIB: u64 = 1 << 10;

    #[test]
    fn unpublished_and_lost_content_has_a_bound() {
        let space = Space::new(SpaceLimits { staged: 40 * KIB, lost: 80 * KIB });
        let mut file = space.staged(0);
        assert_eq!(file.reserve(0, part(0, 40 * KIB)), Ok(()));
        let full = file.reserve(0, part(40 * KIB, 1)).expect_err("full");
        assert!(full.to_string().contains("--max-stage"), "{full}");
        assert!(space.check(0).is_err());
        file.settle(0, 0);
        let lost = space.lost(0, 60 * KIB);
        assert_eq!(file.reserve(0, part(0, 20 * KIB)), Ok(()));
        let full = file.reserve(0, part(20 * KIB, 1)).expect_err("lost files count as well");
        assert!(full.to_string().contains("--drop N"), "{full}");
        assert_eq!(space.used(), (20 * KIB, 60 * KIB));
        assert!(file.reserve(0, part(0, u64::MAX)).is_err());
        assert!(space.has_room_for_lost(u64::MAX).is_err());
        drop(lost);
        assert_eq!((space.has_room_for_lost(60 * KIB), space.used()), (Ok(()), (20 * KIB, 0)));
        assert!(space.has_room_for_lost(60 * KIB + 1).is_err());
    }

    #[test]
    fn one_user_takes_half_of_the_space_and_root_is_left_a_part() {
        let space = Space::new(SpaceLimits { staged: 160 * KIB, lost: 320 * KIB });
        let mut eves = space.staged(EVE);
        assert_eq!(eves.reserve(EVE, part(0, 80 * KIB)), Ok(()));
        let full = eves.reserve(EVE, part(80 * KIB, 1)).expect_err("her half");
        assert!(full.to_string().contains("user 1234567"), "{full}");
        assert!(space.check(EVE).is_err() && space.check(ANN).is_ok());
        // What she writes into a file of another user is hers.
        let mut anns = space.staged(ANN);
        assert!(anns.reserve(EVE, part(0, 1)).is_err());
        assert_eq!(anns.reserve(ANN, part(0, 60 * KIB)), Ok(()));
        let full = anns.reserve(ANN, part(60 * KIB, 1)).expect_err("the rest is kept for root");
        assert!(full.to_string().contains("all users"), "{full}");
        let mut roots = space.staged(0);
        assert_eq!(roots.reserve(0, part(0, 20 * KIB)), Ok(()));
        drop(eves);
        assert_eq!((space.check(EVE), space.check(ANN)), (Ok(()), Ok(())));
    }

    #[test]
    fn lost_files_of_one_user_have_a_number() {
        let space = Space::new(SpaceLimits::NONE);
        let lost: Vec<_> = (0..LOST_FILES_MAX / 2 - 1).map(|_| space.lost(EVE, 0)).collect();
        assert_eq!(space.check(EVE), Ok(()));
        let unpublished = space.staged(EVE);
        let full = space.check(EVE).expect_err("a file that may become lost counts");
        assert!(full.to_string().contains("user 1234567") && full.to_string().contains("8192"));
        assert_eq!((space.check(ANN), space.check(0)), (Ok(()), Ok(())));
        let anns: Vec<_> = (0..LOST_FILES_MAX / 2).map(|_| space.lost(ANN, 0)).collect();
        assert!(space.check(EVE).is_err() && space.check(ANN).is_err());
        assert_eq!(space.check(0), Ok(()), "root is not refused by what users did");
        drop((lost, unpublished));
        assert_eq!(space.check(EVE), Ok(()));
        drop(anns);
        assert_eq!(space.files.taken(), 0);
    }

    #[test]
    fn holes_take_no_space_and_what_is_written_takes_blocks() {
        assert_eq!(part(0, 1).takes(0), 4 * KIB);
        assert_eq!(part(4_000, 200).takes(0), 8 * KIB);
        assert_eq!(part(0, 4_096).takes(4_096), 0, "it is there already");
        assert_eq!(part(1 << 40, 4_096).takes(0), 4 * KIB, "the hole before it takes none");
        let allocated = GrowingPart { offset: 0, bytes: 4_096, is_dense: false };
        assert_eq!(allocated.takes(1 << 30), 4 * KIB, "other parts may be what the file has");
        assert_eq!(GrowingPart::NONE.takes(0), 0);
        assert!(part(0, u64::MAX).takes(0) > 1 << 62);
    }
}
