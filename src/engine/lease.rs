//! What a held lock is made of: the lease, its token, and how it is held.

use super::command::{Patch, TextPatch};
use super::lease_terms::{Grace, Ttl};
use super::name::ClientId;
use crate::time::{Span, Time, Wall};
use std::fmt;
use std::sync::Arc;

/// The fencing token of one tenure. Rises with each new tenure, is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(super) u64);

/// Tokens stay below 2^53, so that JSON readers keep them exact.
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// A client process's bond with the engine. Ids come from the same counter as tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(super) u64);

/// One open file, or one attempt, of a session: what tells two programs of one client apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenId {
    /// The session whose open file it is.
    pub session: SessionId,
    /// The session's own number for it, never used twice.
    pub number: u64,
}

/// A place in a line. Numbers rise; the lowest is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// How many may hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// One.
    Exclusive,
    /// Any number that ask for the same.
    Shared,
}

/// Who within a client has it, which decides what an acquire of the same client means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ownership {
    /// Whoever speaks for the client: acquiring again renews, and the first open file of the
    /// client that locks takes it over.
    Client,
    /// Made exclusively, or given a ttl, text or process: acquiring again is refused even to the
    /// client itself, and only the open file that made it (if one did) may take it over.
    Exclusive(Option<OpenId>),
    /// One open file's, until that file is unlocked or gone.
    OpenFile(OpenId),
}

/// What keeps a lease alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseTerms {
    /// Its own renewals: it lasts so long after each, and then has its grace.
    Own(Ttl, Grace),
    /// The session it hangs on.
    Session(SessionId),
}

/// A [`LeaseTerms`] that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifetime {
    /// Ends at `expires_at` unless renewed.
    Own {
        /// How long each renewal lasts.
        ttl: Ttl,
        /// How long after the end only the holder may come back.
        grace: Grace,
        /// When it ends.
        expires_at: Time,
    },
    /// Ends with the session.
    Session(SessionId),
}

/// The fact that a client holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The client that has the lock.
    pub holder: ClientId,
    /// The token of this tenure.
    pub token: Token,
    /// How the client holds it.
    pub hold: Ownership,
    /// What keeps it alive.
    pub life: Lifetime,
    /// When the tenure began. After a steal this lies ahead by the steal grace.
    pub acquired_at: Time,
    /// When it was last renewed.
    pub renewed_at: Time,
    /// How often an acquire was answered with this lease after the one that began it: a release
    /// that was meant for an earlier one does not end it.
    pub acquisition: u32,
    /// What the holder said about it. No rule reads it.
    pub details: Arc<Details>,
}

/// Where a lock stands at some moment. Derived from a lease and a time, never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Nobody has it.
    Free,
    /// A client has it.
    Held,
    /// A lease has run out, and only its holder may come back.
    Grace,
}

/// A note is a word to a person, not a document.
pub const NOTE_BYTES_MAX: usize = 1_024;
/// A host, a user, a pid and its start fit, the first two as long as clients may be.
pub const HOLDER_ID_BYTES_MAX: usize = 512;
/// Programs write pids, host names, small JSON.
pub const TEXT_BYTES_MAX: usize = 4_096;

/// What the holder said about its lock: shown to others, read by no rule.
///
/// A million locks may be held, and most say nothing but which process took them and how they
/// look; so what few say lies apart.
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
    rare: Option<Box<Rare>>,
}

/// What few say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Rare {
    note: Option<Arc<str>>,
    text: Arc<[u8]>,
    process: Option<Process>,
    times: Option<(Wall, Wall)>,
}

impl Details {
    /// `host:user:pid:start_time` of the process that acquired.
    pub const fn holder_id(&self) -> Option<&Arc<str>> {
        self.holder_id.as_ref()
    }

    /// A word to whoever finds the lock held.
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

    fn amend(&mut self, change: impl FnOnce(&mut Rare)) {
        let rare = self.rare.get_or_insert_default();
        change(rare);
        if **rare == Rare::default() {
            self.rare = None;
        }
    }
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
    /// What a reader of the file gets.
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

/// What reading the file gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadMode {
    /// The lock's status as JSON.
    #[default]
    Status,
    /// The text: the program that locks so reads back what it wrote.
    Text,
}

impl Token {
    /// As a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The token that a caller names by number. Naming one does not make one.
    pub const fn named(number: u64) -> Self {
        Self(number)
    }
}

impl Ticket {
    /// As a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The place that a caller names by number. Naming one does not make one.
    pub const fn named(number: u64) -> Self {
        Self(number)
    }
}

impl SessionId {
    /// As a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The session that a caller names by number. Naming one does not make one.
    pub const fn named(number: u64) -> Self {
        Self(number)
    }
}

impl Ownership {
    /// The open file that it belongs to, or may come to belong to.
    pub const fn open(self) -> Option<OpenId> {
        match self {
            Self::Client | Self::Exclusive(None) => None,
            Self::Exclusive(Some(open)) | Self::OpenFile(open) => Some(open),
        }
    }
}

impl LeaseTerms {
    /// The same, running from `now`.
    pub fn begin(self, now: Time) -> Lifetime {
        match self {
            Self::Own(ttl, grace) => Lifetime::Own { ttl, grace, expires_at: now + ttl.span() },
            Self::Session(id) => Lifetime::Session(id),
        }
    }
}

/// When a lease ends, whatever keeps it alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// From here the lock is in grace.
    pub expires_at: Time,
    /// From here it is another's.
    pub grace_until: Time,
    /// How long a renewal lasts.
    pub ttl: Ttl,
    /// How long the grace is.
    pub grace: Grace,
}

impl Ends {
    /// Where a lease that ends so stands at `now`.
    pub fn phase(&self, now: Time) -> Phase {
        match now {
            _ if now < self.expires_at => Phase::Held,
            _ if now < self.grace_until => Phase::Grace,
            _ => Phase::Free,
        }
    }

    /// The time it still has before it expires.
    pub const fn left(&self, now: Time) -> Span {
        self.expires_at.since(now)
    }
}

impl Mode {
    /// As written in statuses and commands.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

impl Phase {
    /// As written in statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held => "held",
            Self::Grace => "grace",
        }
    }
}

/// Why a live lock is taken away: a sentence, never nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StealReason(Arc<str>);

impl StealReason {
    /// The reason that `text` gives, if it gives one.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits = !text.is_empty() && text.len() <= NOTE_BYTES_MAX;
        (fits && !text.chars().any(char::is_control)).then(|| Self(text.into()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
