//! The details that a holder stores with its lock (note, text, process, file attributes), and
//! patches to them.

use super::limits::LimitedField;
use crate::time::Wall;
use std::sync::Arc;

/// The details that a holder stores with its lock: shown to other clients, ignored by all rules.
///
/// A million locks may be held, and most have only a holder id and file attributes. The other
/// fields are in a separate allocation to save memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// Shared: a process that takes many locks is named once.
    holder_id: Option<Arc<str>>,
    face: FileType,
    reads: ReadMode,
    mode: u16,
    uid: u32,
    gid: u32,
    /// Never a box of nothing, so that equal details are equal.
    rare: Option<Box<RareDetails>>,
}

/// The details that most locks do not have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct RareDetails {
    note: Option<Arc<str>>,
    text: Arc<[u8]>,
    process: Option<Process>,
    times: Option<(Wall, Wall)>,
}

/// A process that a reused pid cannot be mistaken for, nor one of a later boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// The number that tells it from other processes of that id in the same boot.
    pub start: u64,
    /// The boot, by half of the kernel's name for it: after another one the same two numbers are
    /// another process.
    pub boot: u64,
}

/// How a lock looks as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileAttrs {
    /// File, directory or symlink.
    pub face: FileType,
    /// The content that a read of the file returns.
    pub reads: ReadMode,
    /// Permission bits, for show.
    pub mode: u16,
    /// The holder's user on its own machine.
    pub uid: u32,
    /// The holder's group on its own machine.
    pub gid: u32,
    /// Access and modification time, where a program set them.
    pub times: Option<(Wall, Wall)>,
}

impl FileAttrs {
    /// The bit of [`FileAttrs::mode`] that says that a program chose the other bits.
    pub const MODE_CHOSEN: u16 = 0o100_000;

    /// Returns the permission bits in force: those that a program chose, or the usual ones.
    pub const fn permissions(face: FileType, mode: u16) -> u16 {
        match face {
            _ if mode & Self::MODE_CHOSEN != 0 => mode & 0o7777,
            FileType::File => 0o644,
            FileType::Directory => 0o755,
            FileType::Symlink => 0o777,
        }
    }
}

/// The kind of file that a lock was made as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileType {
    /// By open, `touch`, `>`.
    #[default]
    File,
    /// By `mkdir`.
    Directory,
    /// By `ln -s`.
    Symlink,
}

/// The content that a read of the lock file returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadMode {
    /// The lock's status as JSON.
    #[default]
    Status,
    /// The text: the program that locks so reads back what it wrote.
    Text,
}

/// Changes of the details of a lease; `None` leaves a field as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Patch {
    /// The process that acquired.
    pub holder_id: Option<Arc<str>>,
    /// The note; an empty one takes it away.
    pub note: Option<Arc<str>>,
    /// The text.
    pub text: Option<TextPatch>,
    /// The process that keeps it alive; `Some(None)` unbinds.
    pub process: Option<Option<Process>>,
    /// How it looks.
    pub looks: Option<FileAttrs>,
}

/// A change of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextPatch {
    /// It becomes this.
    Set(Arc<[u8]>),
    /// This comes behind it.
    Append(Arc<[u8]>),
}

impl Details {
    /// `host:user:pid:start_time` of the process that acquired.
    pub const fn holder_id(&self) -> Option<&Arc<str>> {
        self.holder_id.as_ref()
    }

    /// Note shown to clients that find the lock held.
    pub fn note(&self) -> Option<&Arc<str>> {
        self.rare.as_ref()?.note.as_ref()
    }

    /// The text that a program wrote into the lock's file.
    pub fn text(&self) -> &[u8] {
        self.rare.as_ref().map_or(&[], |rare| &rare.text)
    }

    /// The same, to keep.
    pub fn shared_text(&self) -> Arc<[u8]> {
        self.rare.as_ref().map(|rare| Arc::clone(&rare.text)).unwrap_or_default()
    }

    /// The process that keeps the lease alive.
    pub fn process(&self) -> Option<Process> {
        self.rare.as_ref()?.process
    }

    /// How the lock looks as a file.
    pub fn looks(&self) -> FileAttrs {
        let Self { face, reads, mode, uid, gid, .. } = *self;
        let times = self.rare.as_ref().and_then(|rare| rare.times);
        FileAttrs { face, reads, mode, uid, gid, times }
    }

    /// The same, by this process.
    #[must_use]
    pub fn with_holder_id(mut self, holder_id: Option<Arc<str>>) -> Self {
        self.holder_id = holder_id;
        self
    }

    /// The same with this note, or with none.
    #[must_use]
    pub fn with_note(mut self, note: Option<Arc<str>>) -> Self {
        self.amend(|rare| rare.note = note);
        self
    }

    /// The same with this text.
    #[must_use]
    pub fn with_text(mut self, text: Arc<[u8]>) -> Self {
        self.amend(|rare| rare.text = text);
        self
    }

    /// The same, kept alive by this process, or by none.
    #[must_use]
    pub fn with_process(mut self, process: Option<Process>) -> Self {
        self.amend(|rare| rare.process = process);
        self
    }

    /// The same with other looks.
    #[must_use]
    pub fn with_looks(mut self, looks: FileAttrs) -> Self {
        self.look(looks);
        self
    }

    /// Carries a change out, in place: it is a part of every touch.
    pub(super) fn apply(&mut self, patch: &Patch) {
        if let Some(holder_id) = &patch.holder_id {
            self.holder_id = Some(Arc::clone(holder_id));
        }
        if let Some(note) = &patch.note {
            let note = (!note.is_empty()).then(|| Arc::clone(note));
            self.amend(|rare| rare.note = note);
        }
        match &patch.text {
            None => {}
            Some(TextPatch::Set(text)) => self.amend(|rare| rare.text = Arc::clone(text)),
            Some(TextPatch::Append(more)) => {
                let text = [self.text(), more].concat().into();
                self.amend(|rare| rare.text = text);
            }
        }
        if let Some(process) = patch.process {
            self.amend(|rare| rare.process = process);
        }
        if let Some(looks) = patch.looks {
            self.look(looks);
        }
    }

    fn look(&mut self, looks: FileAttrs) {
        let FileAttrs { face, reads, mode, uid, gid, times } = looks;
        (self.face, self.reads, self.mode) = (face, reads, mode);
        (self.uid, self.gid) = (uid, gid);
        if times.is_some() || self.rare.is_some() {
            self.amend(|rare| rare.times = times);
        }
    }

    fn amend(&mut self, change: impl FnOnce(&mut RareDetails)) {
        let rare = self.rare.get_or_insert_default();
        change(rare);
        if **rare == RareDetails::default() {
            self.rare = None;
        }
    }
}

impl Patch {
    /// Returns a part that is too long, if there is one.
    pub(super) fn oversized(&self) -> Option<LimitedField> {
        let exceeds = |text: &Option<Arc<str>>, part: LimitedField| {
            text.as_ref().filter(|text| text.len() > part.max()).map(|_| part)
        };
        exceeds(&self.note, LimitedField::Note)
            .or_else(|| exceeds(&self.holder_id, LimitedField::HolderId))
    }
}
