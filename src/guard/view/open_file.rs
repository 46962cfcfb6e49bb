//! An open file of the view.

use super::super::acting_as::User;
use super::super::tenure::TenureId;
use super::close_rule::Saving;
use super::control_files::ControlHandle;
use super::database_files::ClosedVersion;
use super::local_shares::LocalUse;
use super::record_nodes::RecordHandle;
use crate::fuse::kernel::file_system::{OpenedFlags, Requester};
use crate::fuse::kernel::handles::BackingFile;
use crate::fuse::kernel::handles::Share;
use parking_lot::Mutex;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

impl From<Requester> for User {
    fn from(who: Requester) -> Self {
        Self::new(who.uid, who.gid)
    }
}

/// The content behind an open file.
pub(super) enum Content {
    /// A file of the folder, opened for reading or for changes in place.
    InPlace(File),
    /// A file of the folder from which the kernel reads by itself.
    Backed(Arc<BackingFile>),
    /// A file that is, or was, saved as a whole.
    Saving(Arc<Saving>),
    /// A local file, and what it takes.
    Local(File, Arc<LocalUse>),
    /// A file in `.latchfs`.
    Control(ControlHandle),
    /// A file in `.latchfs/locks`.
    Record(RecordHandle),
}

/// For which tenure a file is open for writing.
#[derive(Debug, Clone)]
pub(super) enum Writing {
    /// Its program may write in this tenure. If the tenure is over, the program must open the file
    /// again.
    In(TenureId),
    /// The tenure is over. The program goes on in the next one if the file is then as it was left.
    Dormant(TenureId, Arc<ClosedVersion>),
    /// The tenure was lost while programs changed the folder: the program must open the file again.
    Over(TenureId, Arc<ClosedVersion>),
}

impl Writing {
    /// Returns the tenure, which may be over.
    pub(super) const fn tenure(&self) -> TenureId {
        match self {
            Self::In(tenure) | Self::Dormant(tenure, _) | Self::Over(tenure, _) => *tenure,
        }
    }
}

/// An open file of the view.
pub(super) struct OpenFile {
    /// The node of the file.
    pub(super) ino: u64,
    /// The content.
    pub(super) content: Content,
    /// The thread that opened the file.
    pub(super) opener: u32,
    /// The user who opened the file. The content is written as this user: the write-back of mapped
    /// pages names none.
    pub(super) user: User,
    /// `None` for a file that is open for reading only.
    writing: Option<Mutex<Writing>>,
    /// Whether a program has changed the content by this open file in place.
    pub(super) has_changed: AtomicBool,
    /// The number of the list in which a marker names these changes; 0 if they are not logged.
    pub(super) logged: AtomicU64,
    /// The part of this file in the open files of its user.
    pub(super) share: Share,
}

impl OpenFile {
    /// Returns an open file whose content no program has changed by it yet.
    pub(super) fn new(
        ino: u64,
        content: Content,
        writing: Option<Writing>,
        (who, share): (Requester, Share),
    ) -> Self {
        let (has_changed, logged) = (AtomicBool::new(false), AtomicU64::new(0));
        let (opener, user, writing) = (who.pid, who.into(), writing.map(Mutex::new));
        Self { ino, content, opener, user, writing, has_changed, logged, share }
    }

    /// Says that another user than the one who makes the request has opened the file.
    pub(super) const fn of_user(mut self, user: User) -> Self {
        self.user = user;
        self
    }

    /// Whether the file is open for writing.
    pub(super) const fn is_for_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Returns for which tenure the file is open for writing.
    pub(super) fn writing(&self) -> Option<Writing> {
        Some(self.writing.as_ref()?.lock().clone())
    }

    /// Returns the last tenure in which the file was open for writing.
    pub(super) fn tenure(&self) -> Option<TenureId> {
        Some(self.writing.as_ref()?.lock().tenure())
    }

    /// Whether the tenure of the file is over and its program may go on in the next one.
    pub(super) fn is_dormant(&self) -> bool {
        matches!(self.writing(), Some(Writing::Dormant(..)))
    }

    /// Changes for which tenure the file is open for writing.
    pub(super) fn set_writing(&self, to: Writing) {
        if let Some(writing) = &self.writing {
            *writing.lock() = to;
        }
    }

    /// Returns the lock record or its temporary file, if this is one.
    pub(super) const fn record(&self) -> Option<&RecordHandle> {
        match &self.content {
            Content::Record(handle) => Some(handle),
            Content::InPlace(_)
            | Content::Backed(_)
            | Content::Saving(_)
            | Content::Local(..)
            | Content::Control(_) => None,
        }
    }

    /// Returns the file of the operating system, unless this is a control file.
    pub(super) fn file(&self) -> Option<&File> {
        match &self.content {
            Content::InPlace(file) | Content::Local(file, _) => Some(file),
            Content::Backed(backing) => Some(backing.file()),
            Content::Saving(saving) => Some(&saving.staged.file),
            Content::Control(_) | Content::Record(_) => None,
        }
    }

    /// Returns the file of the folder from which the kernel reads by itself.
    pub(super) const fn backing(&self) -> Option<&Arc<BackingFile>> {
        match &self.content {
            Content::Backed(backing) => Some(backing),
            Content::InPlace(_)
            | Content::Saving(_)
            | Content::Local(..)
            | Content::Control(_)
            | Content::Record(_) => None,
        }
    }

    /// Returns how the kernel makes requests: it keeps cached pages between opens, and tells of a
    /// close if something may have to be published then.
    pub(super) fn flags(&self) -> OpenedFlags {
        let needs_flush = self.is_for_writing();
        OpenedFlags::FOPEN_KEEP_CACHE
            | if needs_flush { OpenedFlags::empty() } else { OpenedFlags::FOPEN_NOFLUSH }
    }

    /// Returns the save of the file, if it was opened to be saved as a whole.
    pub(super) fn saving(&self) -> Option<&Arc<Saving>> {
        match &self.content {
            Content::Saving(saving) => Some(saving),
            Content::InPlace(_)
            | Content::Backed(_)
            | Content::Local(..)
            | Content::Control(_)
            | Content::Record(_) => None,
        }
    }
}
