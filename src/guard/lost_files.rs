//! The lost files: content that a program wrote and that must not or could not reach the folder. It
//! is kept until a person restores or drops it.
//!
//! A lost file is `lost/N`, with a description `lost/N.json`.

use super::acting_as::itself;
use super::disk::{Disk, Place};
use super::space::{LostSpace, Space};
use super::tenure::TenureId;
use crate::time::Wall;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes are removed from the end of a lost file, one after the other, until there is room
/// for its description. The disks of some machines have pages of 64 KiB.
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

/// What is known of a lost file without a look at its description.
pub(super) struct KnownLost {
    /// The user that wrote the content.
    pub(super) uid: u32,
    /// Its size in bytes.
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
            disk.rename(from, Place::new(&self.dir, &to), super::disk::IfThere::Fail)?;
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
        let (size, bytes) = (disk.look(at)?.size, disk.allocated(at)?);
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
            // One that was added since the names were read is kept.
            let last = there.last().copied().unwrap_or(0);
            known.retain(|number, _| *number > last || there.contains(number));
            new.retain(|number| !known.contains_key(number));
        }
        // The descriptions are read without the mutex: a save may be about to put a file aside.
        let mut added = Vec::new();
        for number in new {
            let about = self.description(disk, number);
            // Another guard may have removed it, or a person may have changed it.
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
        (before, count): (u64, usize),
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
