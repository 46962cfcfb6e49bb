//! The details that a holder stores with its lock (note, text, process, file attributes), and
//! patches to them.
//!
//! Limits on the parts of a command. The engine checks them even if a front end already has, so
//! that the memory of the engine and the traffic between replicas stay bounded.

use super::name::CLIENT_BYTES_MAX;
use crate::time::Wall;
use std::sync::Arc;

/// The details that a holder stores with its lock: shown to other clients, ignored by the rules of
/// the engine.
///
/// A million locks may be held, and most have only a holder id and file attributes. The other
/// fields are in a separate allocation to save memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// The holder id of the process that acquired the lock. Locks share the string: a process that
    /// acquires many locks stores its id only once.
    holder_id: Option<Arc<str>>,
    file_type: FileType,
    reads: ReadMode,
    mode: u16,
    uid: u32,
    gid: u32,
    /// `None` if all fields of [`RareDetails`] have their default values, so that equal details
    /// compare equal.
    rare: Option<Box<RareDetails>>,
}

/// The details that are missing from most locks, in an allocation of their own to save memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct RareDetails {
    note: Option<Arc<str>>,
    text: Arc<[u8]>,
    process: Option<Process>,
    times: Option<(Wall, Wall)>,
}

/// A process with enough identity that pid reuse and reboots are detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// The pid of the process.
    pub pid: u32,
    /// A number that tells the process from others with the same pid in the same boot: the inode of
    /// its pidfd, or its start time in ticks.
    pub start: u64,
    /// Half of the kernel's boot id. After a reboot the same pid and start are another process.
    pub boot: u64,
}

/// How a lock appears as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileAttrs {
    /// Whether the lock appears as a file, a directory or a symlink.
    pub file_type: FileType,
    /// The content that a read of the file returns.
    pub reads: ReadMode,
    /// Permission bits. No rule of the engine reads them, but they decide which local users may
    /// create names below the lock.
    pub mode: u16,
    /// The uid of the holder on its own machine.
    pub uid: u32,
    /// The gid of the holder on its own machine.
    pub gid: u32,
    /// Access and modification time, if a program set them.
    pub times: Option<(Wall, Wall)>,
}

impl FileAttrs {
    /// The bit of [`FileAttrs::mode`] that marks the permission bits as chosen by a program.
    pub const MODE_CHOSEN: u16 = 0o100_000;

    /// Returns the permission bits in force: those that a program chose, or the defaults of the
    /// type.
    pub const fn permissions(file_type: FileType, mode: u16) -> u16 {
        match file_type {
            _ if mode & Self::MODE_CHOSEN != 0 => mode & 0o7777,
            FileType::File => 0o644,
            FileType::Directory => 0o755,
            FileType::Symlink => 0o777,
        }
    }
}

/// The type of file as which a lock was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileType {
    /// A regular file, created by open, `touch` or `>`.
    #[default]
    File,
    /// A directory, created by `mkdir`.
    Directory,
    /// A symlink, created by `ln -s`.
    Symlink,
}

/// The content that a read of the lock file returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadMode {
    /// The lock's status as JSON.
    #[default]
    Status,
    /// The text that a program wrote into the lock file: a program that writes to the file reads
    /// its own text back.
    Text,
}

/// Changes of the details of a lease; `None` leaves a field as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Patch {
    /// The id of the process that acquired the lock.
    pub holder_id: Option<Arc<str>>,
    /// The new note. An empty text removes the note.
    pub note: Option<Arc<str>>,
    /// The change of the text that programs wrote into the lock's file.
    pub text: Option<TextPatch>,
    /// The process that keeps the lease alive; `Some(None)` removes the binding.
    pub process: Option<Option<Process>>,
    /// The new file attributes.
    pub attrs: Option<FileAttrs>,
}

/// A change of the text of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextPatch {
    /// The new text replaces the old one.
    Set(Arc<[u8]>),
    /// The new text is appended to the old one.
    Append(Arc<[u8]>),
}

impl Details {
    /// Returns the id of the process that acquired the lock:
    /// `host:user:pid:start:session.start.boot`.
    pub const fn holder_id(&self) -> Option<&Arc<str>> {
        self.holder_id.as_ref()
    }

    /// Returns the note shown to anyone who finds the lock held.
    pub fn note(&self) -> Option<&Arc<str>> {
        self.rare.as_ref()?.note.as_ref()
    }

    /// Returns the text that a program wrote into the lock's file.
    pub fn text(&self) -> &[u8] {
        self.rare.as_ref().map_or(&[], |rare| &rare.text)
    }

    /// Returns the text that a program wrote into the lock's file, as a shared allocation.
    pub fn shared_text(&self) -> Arc<[u8]> {
        self.rare.as_ref().map(|rare| Arc::clone(&rare.text)).unwrap_or_default()
    }

    /// Returns the process that keeps the lease alive.
    pub fn process(&self) -> Option<Process> {
        self.rare.as_ref()?.process
    }

    /// Returns the file attributes.
    pub fn attrs(&self) -> FileAttrs {
        let Self { file_type, reads, mode, uid, gid, .. } = *self;
        let times = self.rare.as_ref().and_then(|rare| rare.times);
        FileAttrs { file_type, reads, mode, uid, gid, times }
    }

    /// Returns the details with this holder id.
    #[must_use]
    pub fn with_holder_id(mut self, holder_id: Option<Arc<str>>) -> Self {
        self.holder_id = holder_id;
        self
    }

    /// Returns the details with this note; `None` removes the note.
    #[must_use]
    pub fn with_note(mut self, note: Option<Arc<str>>) -> Self {
        self.amend(|rare| rare.note = note);
        self
    }

    /// Returns the details with `text` as the content that programs wrote into the lock's file.
    #[must_use]
    pub fn with_text(mut self, text: Arc<[u8]>) -> Self {
        self.amend(|rare| rare.text = text);
        self
    }

    /// Returns the details with `process` as the process that keeps the lease alive, or without
    /// one.
    #[must_use]
    pub fn with_process(mut self, process: Option<Process>) -> Self {
        self.amend(|rare| rare.process = process);
        self
    }

    /// Returns the details with these file attributes.
    #[must_use]
    pub fn with_attrs(mut self, attrs: FileAttrs) -> Self {
        self.set_attrs(attrs);
        self
    }

    /// Applies a patch to the details in place, since each write and each `touch` of a lock file
    /// brings a patch.
    pub(crate) fn apply(&mut self, patch: &Patch) {
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
        if let Some(attrs) = patch.attrs {
            self.set_attrs(attrs);
        }
    }

    fn set_attrs(&mut self, attrs: FileAttrs) {
        let FileAttrs { file_type, reads, mode, uid, gid, times } = attrs;
        (self.file_type, self.reads, self.mode) = (file_type, reads, mode);
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
    /// Returns the length of all texts that the patch sets.
    pub(super) fn text_bytes(&self) -> usize {
        let texts = [&self.holder_id, &self.note];
        let texts = texts.map(|text| text.as_ref().map_or(0, |text| text.len()));
        let text = match &self.text {
            Some(TextPatch::Set(text) | TextPatch::Append(text)) => text.len(),
            None => 0,
        };
        texts.iter().sum::<usize>() + text
    }

    /// Returns the field of the patch (note or holder id) that exceeds its limit, if there is one.
    pub(crate) fn oversized(&self) -> Option<LimitedField> {
        let exceeds = |text: &Option<Arc<str>>, part: LimitedField| {
            text.as_ref().filter(|text| text.len() > part.max()).map(|_| part)
        };
        exceeds(&self.note, LimitedField::Note)
            .or_else(|| exceeds(&self.holder_id, LimitedField::HolderId))
    }
}

/// The maximum length of a note in bytes. A note is a short message to a person, not a document.
pub const NOTE_BYTES_MAX: usize = 1_024;
/// The maximum length of a holder id in bytes: room for a host and a user (together as long as a
/// client name may be), and for the numbers that identify a process and its login session.
pub const HOLDER_ID_BYTES_MAX: usize = 512;
/// The maximum length of the text of a lock in bytes. Programs write pids, host names and small
/// JSON.
pub const TEXT_BYTES_MAX: usize = 4_096;
/// The maximum length of an idempotency key in bytes. A UUID has 36; twice that leaves room for a
/// prefix.
pub const REQUEST_KEY_BYTES_MAX: usize = 72;
/// The maximum length of the id of a caller in bytes. The id consists of the name of a front end
/// and the name of a credential, which may be as long as a client name.
pub const CALLER_BYTES_MAX: usize = CLIENT_BYTES_MAX + 32;
/// The maximum number of clients that a [`Reset`](super::command::Reset) can name as exceptions:
/// more than fit into a request body of the HTTP API.
pub const SPARED_MAX: usize = 16_384;

/// The maximum length of a handover in bytes: room for a state, a number and a digest.
pub const HANDOVER_BYTES_MAX: usize = 256;
/// The maximum number of names that are remembered beyond a tenure. At some 300 bytes each they
/// take about 20 MB; with the longest names, clients and texts 120 MB.
pub const REMEMBERED_MAX: usize = 65_536;

/// A part of a command that has its own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitedField {
    /// The note of a lock, in bytes.
    Note,
    /// The holder id: the id of the process that acquires, in bytes.
    HolderId,
    /// The idempotency key of a request, in bytes.
    Key,
    /// The id of a caller: the name of the front end and of the credential that sent a request, in
    /// bytes.
    Caller,
    /// The number of clients that are named as exceptions to a reset.
    Spared,
    /// The text of a handover, in bytes.
    Handover,
}

impl LimitedField {
    /// Returns the maximum length of this field, or the maximum number of spared clients.
    pub const fn max(self) -> usize {
        match self {
            Self::Note => NOTE_BYTES_MAX,
            Self::HolderId => HOLDER_ID_BYTES_MAX,
            Self::Key => REQUEST_KEY_BYTES_MAX,
            Self::Caller => CALLER_BYTES_MAX,
            Self::Spared => SPARED_MAX,
            Self::Handover => HANDOVER_BYTES_MAX,
        }
    }

    /// Returns a sentence that says that this part of a command is too long.
    pub(crate) fn excess(self) -> String {
        let max = self.max();
        match self {
            Self::Note => format!("a note has at most {max} bytes; shorten it"),
            Self::HolderId => format!("a holder id has at most {max} bytes; shorten it"),
            Self::Handover => format!("a handover has at most {max} bytes; shorten it"),
            Self::Key => format!("a request key has 1 to {max} bytes; choose another one"),
            Self::Caller => {
                format!("the name of these credentials has more than {max} bytes; shorten it")
            }
            Self::Spared => {
                format!("a reset spares at most {max} clients; reset others one by one")
            }
        }
    }
}
