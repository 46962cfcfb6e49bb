//! The lost files: content that a program wrote and that must not or could not reach the folder. It
//! is kept until a person restores or drops it.
//!
//! A lost file is `lost/N`, with a description `lost/N.json`.
//!
//! The space that unpublished content and lost files may take: bytes on the disk and files, in all
//! and for each user.

use crate::guard::disk::acting_as::itself;
use crate::guard::disk::operations::{Disk, Place};
use crate::shares::{Charges, TableFull, TableShare, UserLimits, UserTable};
use crate::time::Wall;
use barrier::tenure_id::TenureId;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use parking_lot::Mutex;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

/// How many bytes are cut off the end of a lost file at a time, until there is room for its
/// description. The disks of some machines have pages of 64 KiB.
const CUT_OFF: [u64; 3] = [16 << 10, 128 << 10, 2 << 20];

/// The maximum size of the description of a lost file in bytes.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 64 * 1_024;

/// Why a file was kept out of the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LostReason {
    /// The tenure ended before the program closed the file.
    TenureOver,
    /// A signal ended the program before it closed the file.
    Killed,
    /// A write failed, for example because the disk was full.
    WriteFailed,
    /// The system did not let the guard give the file its name.
    NotNamed,
    /// Another file had got the name meanwhile.
    NameTaken,
    /// The guard died, or was stopped, between two steps of publishing.
    Interrupted,
    /// The directory of the file was removed meanwhile.
    NoDirectory,
    /// A version that came from elsewhere was about to be replaced.
    Foreign,
    /// Another machine had published the version, and a save replaced it before a program here had
    /// opened it.
    Unread,
    /// The save would have replaced a version of another machine that no program here had opened.
    OverUnread,
    /// A person has put another version back in its place.
    PutBack,
    /// The tenure ended before other machines knew of the version, and their version may win. The
    /// file also stays in the folder.
    Untold,
}

impl LostReason {
    /// Returns the reason as a clause of a sentence.
    pub(crate) const fn clause(self) -> &'static str {
        match self {
            Self::TenureOver => "the lock was lost or given up before the file was closed",
            Self::Killed => "a signal ended the program before it closed the file",
            Self::WriteFailed => "a write to the file failed",
            Self::NotNamed => "the system refused to give the file its name in the folder",
            Self::NameTaken => "another file had got the name meanwhile",
            Self::Interrupted => "the guard was stopped while it published the file",
            Self::NoDirectory => "the directory of the file was removed before it was closed",
            Self::Foreign => "the version came from outside the view, and a save replaced it",
            Self::Unread => {
                "another machine had published the version, and a save replaced it before any \
                 program here had opened it"
            }
            Self::OverUnread => {
                "it would have replaced a version of another machine that no program here had \
                 opened"
            }
            Self::PutBack => "the wanted version was put back in its place",
            Self::Untold => {
                "the lock was lost before other machines knew of the version, and theirs may \
                 replace it"
            }
        }
    }
}

/// The description of a lost file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostDescription {
    /// The path in the folder for which the content was meant, as a text for people.
    pub(crate) path: String,
    /// The bytes of a path that is not UTF-8, in Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path_bytes: Option<String>,
    /// The user that wrote the content.
    pub(crate) uid: u32,
    /// The program that wrote the content, with its pid; empty if it is not known.
    #[serde(default)]
    pub(crate) program: String,
    /// The tenure in which the content was written, as `ENGINE-TOKEN`; empty if there was none.
    #[serde(default)]
    pub(crate) tenure: String,
    /// When the content was put aside, in UTC.
    pub(crate) at: String,
    /// Why the content is not in the folder.
    pub(crate) reason: LostReason,
    /// The file of the late marker that names the version, which also stays in the folder. The copy
    /// is removed when the markers of a later tenure build on that marker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) late_marker: Option<String>,
}

impl LostDescription {
    /// Returns the description of a file that is put aside now.
    pub(crate) fn now(
        path: &OsStr,
        uid: u32,
        tenure: Option<TenureId>,
        reason: LostReason,
    ) -> Self {
        let is_text = path.to_str().is_some();
        Self {
            path: path.to_string_lossy().into_owned(),
            path_bytes: (!is_text).then(|| BASE64_STANDARD.encode(path.as_bytes())),
            uid,
            program: String::new(),
            tenure: tenure.map(|tenure| tenure.to_string()).unwrap_or_default(),
            at: Wall::now().to_string(),
            reason,
            late_marker: None,
        }
    }

    /// Returns the path in the folder for which the content was meant.
    pub(crate) fn place(&self) -> PathBuf {
        let bytes = self.path_bytes.as_ref().and_then(|text| BASE64_STANDARD.decode(text).ok());
        bytes.map_or_else(|| PathBuf::from(&self.path), |bytes| OsString::from_vec(bytes).into())
    }
}

/// The facts of a lost file that need no read of its description.
pub(super) struct KnownLost {
    /// The user that wrote the content.
    pub(super) uid: u32,
    /// The size of the file in bytes.
    pub(super) size: u64,
    reason: LostReason,
    has_late_marker: bool,
    _space: LostSpace,
}

impl KnownLost {
    /// Whether the file is a version of another machine that no program had opened.
    pub(super) fn is_unread(&self) -> bool {
        self.reason == LostReason::Unread
    }

    /// Whether the file is a copy that a late marker names.
    pub(super) const fn has_late_marker(&self) -> bool {
        self.has_late_marker
    }
}

/// The directory of the lost files.
pub(crate) struct LostFiles<D: Disk> {
    dir: D::Dir,
    space: Arc<Space>,
    /// A number below which all numbers were given out.
    next: AtomicU64,
    /// The lost files by their numbers, once the directory was read.
    known: Mutex<Option<BTreeMap<u64, KnownLost>>>,
}

/// Returns the number of a lost file in its name.
fn number_in(name: &OsStr) -> Option<u64> {
    name.to_str()?.parse().ok()
}

impl<D: Disk> LostFiles<D> {
    /// Opens the lost files in the directory `dir`, which take their part of `space`.
    pub(crate) fn open(disk: &D, dir: D::Dir, space: Arc<Space>) -> io::Result<Self> {
        let entries = disk.entries(&dir)?;
        let number = |name: &OsStr| name.to_str()?.strip_suffix(".json")?.parse::<u64>().ok();
        let last = entries.iter().filter_map(|entry| number(&entry.name)).max().unwrap_or(0);
        Ok(Self { dir, space, next: AtomicU64::new(last + 1), known: Mutex::default() })
    }

    /// Puts an open file aside that has no name. Returns its number among the lost files. If the
    /// disk is full, the end of the file makes room for its description.
    pub(crate) fn keep_file(
        &self,
        disk: &D,
        file: &D::File,
        about: &LostDescription,
    ) -> io::Result<u64> {
        itself(|| {
            let mut kept = self.describe_and_link(disk, file, about);
            for bytes in CUT_OFF {
                match kept {
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
                    kept => return kept,
                }
                disk.shorten(file, bytes)?;
                kept = self.describe_and_link(disk, file, about);
            }
            kept
        })
    }

    fn describe_and_link(
        &self,
        disk: &D,
        file: &D::File,
        about: &LostDescription,
    ) -> io::Result<u64> {
        let number = self.describe(disk, about)?;
        disk.link(file, Place::new(&self.dir, &number.to_string())).inspect_err(|_| {
            let _ = disk.remove_file(Place::new(&self.dir, &format!("{number}.json")));
        })?;
        self.add_known(disk, number, about);
        Ok(number)
    }

    /// Moves a file to the lost files. Returns its number among them.
    pub(crate) fn keep_name(
        &self,
        disk: &D,
        from: Place<'_, D::Dir>,
        about: &LostDescription,
    ) -> io::Result<u64> {
        itself(|| {
            let number = self.describe(disk, about)?;
            let to = number.to_string();
            disk.rename(
                from,
                Place::new(&self.dir, &to),
                crate::guard::disk::operations::IfThere::Fail,
            )?;
            self.add_known(disk, number, about);
            Ok(number)
        })
    }

    /// Writes the description of the next lost file. Another guard on the same storage may take the
    /// same number first; then the next one is tried.
    fn describe(&self, disk: &D, about: &LostDescription) -> io::Result<u64> {
        let text = serde_json::to_vec_pretty(about).map_err(io::Error::other)?;
        let file = disk.unnamed_file(&self.dir, 0o600)?;
        disk.write(&file, 0, &text)?;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            match disk.link(&file, Place::new(&self.dir, &format!("{number}.json"))) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                linked => return linked.map(|()| number),
            }
        }
    }

    /// Removes a lost file.
    pub(crate) fn remove(&self, disk: &D, number: u64) -> io::Result<()> {
        let removed = disk.remove_file(Place::new(&self.dir, &number.to_string()));
        if removed.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
            return removed;
        }
        if let Some(known) = &mut *self.known.lock() {
            known.remove(&number);
        }
        removed?;
        disk.remove_file(Place::new(&self.dir, &format!("{number}.json")))
    }

    /// Returns the description of a lost file.
    pub(crate) fn description(&self, disk: &D, number: u64) -> io::Result<LostDescription> {
        let file = disk.open_to_read(Place::new(&self.dir, &format!("{number}.json")))?;
        let mut bytes = vec![0; DESCRIPTION_BYTES_MAX];
        let count = disk.read(&file, 0, &mut bytes)?;
        Ok(serde_json::from_slice(&bytes[..count])?)
    }

    /// Returns what is to be remembered of a lost file, and takes the space that it has.
    fn known(&self, disk: &D, number: u64, about: &LostDescription) -> io::Result<KnownLost> {
        let name = number.to_string();
        let (at, uid) = (Place::new(&self.dir, &name), about.uid);
        let (size, bytes) = (disk.stat(at)?.size, disk.allocated(at)?);
        Ok(KnownLost {
            uid,
            size,
            reason: about.reason,
            has_late_marker: about.late_marker.is_some(),
            _space: self.space.lost(uid, bytes),
        })
    }

    fn add_known(&self, disk: &D, number: u64, about: &LostDescription) {
        if let Some(known) = &mut *self.known.lock()
            && let Ok(file) = self.known(disk, number, about)
        {
            known.insert(number, file);
        }
    }

    /// Looks for lost files that another guard or a person has added or removed. Reads the names
    /// in the directory, and the descriptions of new files only.
    pub(crate) fn refresh(&self, disk: &D) -> io::Result<()> {
        let entries = disk.entries(&self.dir)?;
        let there: BTreeSet<_> =
            entries.iter().filter_map(|entry| number_in(&entry.name)).collect();
        let mut new = there.clone();
        if let Some(known) = &mut *self.known.lock() {
            // A lost file that was added since the names were read is kept.
            let last = there.last().copied().unwrap_or(0);
            known.retain(|number, _| *number > last || there.contains(number));
            new.retain(|number| !known.contains_key(number));
        }
        // The descriptions are read without the mutex: a save may be about to put a file aside.
        let mut added = Vec::new();
        for number in new {
            let about = self.description(disk, number);
            // Another guard may have removed the lost file, or a person may have changed its
            // description.
            if let Ok(about) = about
                && let Ok(file) = self.known(disk, number, &about)
            {
                added.push((number, file));
            }
        }
        let mut known = self.known.lock();
        let known = known.get_or_insert_default();
        for (number, file) in added {
            known.entry(number).or_insert(file);
        }
        Ok(())
    }

    /// Returns the lost files of which `of` returns something, the oldest first. Reads the
    /// directory only if it was not read before.
    pub(super) fn find<T>(
        &self,
        disk: &D,
        of: impl Fn(u64, &KnownLost) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        if self.known.lock().is_none() {
            self.refresh(disk)?;
        }
        let known = self.known.lock();
        let all = known.iter().flatten();
        Ok(all.filter_map(|(number, file)| of(*number, file)).collect())
    }

    /// Returns the newest lost files with numbers below `before` that a user may see, at most
    /// `count` of them.
    pub(crate) fn newest(
        &self,
        before: u64,
        count: usize,
        may_see: impl Fn(u32) -> bool,
    ) -> Vec<u64> {
        let known = self.known.lock();
        let below = known.iter().flat_map(|known| known.range(..before).rev());
        below.filter(|(_, file)| may_see(file.uid)).map(|(number, _)| *number).take(count).collect()
    }

    /// Returns the directory of the lost files.
    pub(crate) const fn dir(&self) -> &D::Dir {
        &self.dir
    }
}

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
    /// The space has no limit.
    pub(crate) const NONE: Self = Self { staged: u64::MAX, lost: u64::MAX };
}

/// The kinds of files that take space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpaceUse {
    /// Bytes of unpublished content.
    Staged,
    /// Bytes of lost files, and of content that may become lost.
    Lost,
    /// The number of lost files, and of files that may become lost.
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
                 --max-lost allows them; stat at them with 'latchfs guard lost', and drop those \
                 that you do not need with --drop N"
            ),
            SpaceUse::Files => write!(
                f,
                " that are lost or not closed yet would be more than {max}, which is the limit; \
                 stat at them with 'latchfs guard lost', and drop those that you do not need with \
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
    /// The offset at which the part begins.
    pub(crate) offset: u64,
    /// The length of the part in bytes.
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
        // The bytes that she writes into a file of another user are hers.
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
