//! An open file of the view.

use super::super::tenure::TenureId;
use super::close_rule::Saving;
use super::control_files::ControlHandle;
use crate::fuse::kernel::backing::BackingFile;
use crate::fuse::kernel::user_shares::Share;
use crate::fuse::kernel::values::OpenedFlags;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The content behind an open file.
pub(super) enum Content {
    /// A file of the folder, opened for reading or for changes in place.
    InPlace(File),
    /// A file of the folder from which the kernel reads by itself.
    Backed(Arc<BackingFile>),
    /// A file that is, or was, saved as a whole.
    Saving(Arc<Saving>),
    /// A local file.
    Local(File),
    /// A file in `.latchfs`.
    Control(ControlHandle),
}

/// An open file of the view.
pub(super) struct OpenFile {
    /// The node of the file.
    pub(super) ino: u64,
    /// The content.
    pub(super) content: Content,
    /// The tenure in which the file was opened for writing; `None` for a file that is open for
    /// reading only.
    pub(super) tenure: Option<TenureId>,
    /// Whether a program has changed the content by this open file in place.
    pub(super) has_changed: AtomicBool,
    /// The number of the list in which a marker names these changes; 0 if they are not logged.
    pub(super) logged: AtomicU64,
    /// The part of this file in the open files of its user.
    pub(super) share: Share,
}

impl OpenFile {
    /// Returns an open file whose content no program has changed by it yet.
    pub(super) fn new(ino: u64, content: Content, tenure: Option<TenureId>, share: Share) -> Self {
        let (has_changed, logged) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { ino, content, tenure, has_changed, logged, share }
    }

    /// Returns the file of the operating system, unless this is a control file.
    pub(super) fn file(&self) -> Option<&File> {
        match &self.content {
            Content::InPlace(file) | Content::Local(file) => Some(file),
            Content::Backed(backing) => Some(backing.file()),
            Content::Saving(saving) => Some(&saving.staged.file),
            Content::Control(_) => None,
        }
    }

    /// Returns the file of the folder from which the kernel reads by itself.
    pub(super) const fn backing(&self) -> Option<&Arc<BackingFile>> {
        match &self.content {
            Content::Backed(backing) => Some(backing),
            Content::InPlace(_) | Content::Saving(_) | Content::Local(_) | Content::Control(_) => {
                None
            }
        }
    }

    /// Returns how the kernel makes requests: it keeps cached pages between opens, and tells of a
    /// close if something may have to be published then.
    pub(super) fn flags(&self) -> OpenedFlags {
        let needs_flush = self.tenure.is_some();
        OpenedFlags::FOPEN_KEEP_CACHE
            | if needs_flush { OpenedFlags::empty() } else { OpenedFlags::FOPEN_NOFLUSH }
    }

    /// Returns the save of the file, if it was opened to be saved as a whole.
    pub(super) fn saving(&self) -> Option<&Arc<Saving>> {
        match &self.content {
            Content::Saving(saving) => Some(saving),
            Content::InPlace(_) | Content::Backed(_) | Content::Local(_) | Content::Control(_) => {
                None
            }
        }
    }
}
