//! What arrives through an inode: times, modes, sizes, messages. It applies to all names that the
//! inode has, and is said in the name of one client.

use crate::fuse::file_attrs::Sight;
use crate::fuse::errno::Act;
use crate::fuse::join::Join;
use crate::fuse::process::process_handle::Living;
use crate::fuse::write_message::{Message, Options};
use crate::fuse::open_files::{Access, Open};
use crate::fuse::credentials::Caller;
use crate::fuse::process::bindings;
use crate::fuse::shared::{Fs, flat};
use crate::fuse::inodes::{Link, LockPlace};
use crate::fuse::last_refusal;
use crate::engine::limits::TEXT_BYTES_MAX;
use crate::engine::{
    Acquire, Annotate, Command, FileAttrs, Firm, Grace, Lease, LeaseKey, LeaseTerms, Lifetime,
    LockName, LockView, Mode, Op, Outcome, Ownership, Patch, QueuePolicy, ReadMode, Renew,
    SessionId, Tenure, TextPatch, Token, Ttl,
};
use crate::time::Wall;
use crate::fuse::kernel::values::Errno;
use std::sync::Arc;

/// One lease that a change is meant for.
#[derive(Debug, Clone)]
pub(crate) struct Meant {
    /// The lock.
    pub(crate) name: LockName,
    /// The tenure, where only that one is meant.
    pub(crate) token: Option<Token>,
}

/// The leases that a change is meant for: one, nearly always.
#[derive(Debug, Clone)]
pub(crate) struct Leases {
    /// The one that is asked first.
    pub(crate) one: Meant,
    others: Vec<Meant>,
}

/// A change of a lease. What is absent stays as it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Change {
    /// Whether it makes the lease last longer, and firm.
    pub(crate) renews: Option<Firm>,
    /// How long it lasts from now on.
    pub(crate) ttl: Option<Ttl>,
    /// How long its grace is from now on.
    pub(crate) grace: Option<Grace>,
    /// Alone or with others.
    pub(crate) mode: Option<Mode>,
    /// A word to others.
    pub(crate) note: Option<Arc<str>>,
    /// What becomes of the text.
    pub(crate) text: Option<Text>,
    /// What becomes of the file's times.
    pub(crate) times: Times,
    /// The permission bits.
    pub(crate) permissions: Option<u32>,
    /// The process that keeps it alive from now on.
    pub(crate) process: Option<Arc<Living>>,
    /// The session on which it hangs from now on, if it is given no time.
    pub(crate) hangs: Option<SessionId>,
    /// The user and the group.
    pub(crate) user: (Option<u32>, Option<u32>),
}

/// What becomes of the text.
#[derive(Debug, Clone)]
pub(crate) enum Text {
    /// It is this, and read in this way.
    Set(Arc<[u8]>, Option<ReadMode>),
    /// It goes on with this, and is read in this way.
    Append(Arc<[u8]>, Option<ReadMode>),
    /// It has at most so many bytes.
    Cut(usize),
}

/// What becomes of the file's times.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Times {
    /// They stay.
    #[default]
    Keep,
    /// They are those of the renewal.
    Reset,
    /// They are these, where given: access and modification.
    Set(Option<Wall>, Option<Wall>),
}

/// What a change has reached.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reached {
    /// The tenure.
    pub(crate) token: Option<Token>,
    /// The lock as it looks now; its text may be that from before.
    pub(crate) sight: Option<Sight>,
}

/// Applies a change to every lease that is meant. It has succeeded if it reached one of them.
pub(crate) fn apply(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    meant: Leases,
    change: Change,
    then: impl FnOnce(&Fs, &Caller, Result<Reached, Errno>) + Send + 'static,
) {
    let Leases { one, others } = meant;
    if others.is_empty() {
        return reach(fs, caller, act, one, change, then);
    }
    let (shared, asker) = (Arc::clone(fs), caller.clone());
    let join = Join::new(1 + others.len(), move |mut reached: Vec<Result<Reached, Errno>>| {
        let first = reached.iter().position(Result::is_ok).unwrap_or(0);
        then(&shared, &asker, reached.swap_remove(first));
    });
    for (index, one) in std::iter::once(one).chain(others).enumerate() {
        let (join, change) = (Arc::clone(&join), change.clone());
        reach(fs, caller, act, one, change, move |_, _, reached| join.answered(index, reached));
    }
}

/// Applies a change to one lease.
fn reach(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    one: Meant,
    change: Change,
    then: impl FnOnce(&Fs, &Caller, Result<Reached, Errno>) + Send + 'static,
) {
    let here = fs.locks.act_here(
        &one.name,
        |lock| {
            let lease = one.own(caller, lock.leases().iter());
            change.op(fs, caller, &one, lock.mode(), lease).map(Command::from)
        },
        |lock| Sight::of_glance(fs, lock),
    );
    let Some((done, sight)) = here else { return reach_afar(fs, caller, act, one, change, then) };
    let reached = match done.map(flat) {
        None => Ok(Reached::default()),
        Some(Ok(outcome)) => {
            let token = change.reached(fs, caller, &one, &outcome);
            Ok(Reached { token, sight: Some(sight) })
        }
        Some(Err(failure)) => {
            return fs.view(caller, act, &one.name.clone(), move |fs, caller, view| {
                let failure = match view {
                    Ok(view) => why::in_the_way(&caller.client, &view, failure),
                    Err(_) => failure,
                };
                then(fs, caller, Err(fs.refuse(caller, act, Some(&one.name), failure)));
            });
        }
    };
    then(fs, caller, reached);
}

/// The same where what decides is elsewhere: first how things are, then what comes of it.
fn reach_afar(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    one: Meant,
    change: Change,
    then: impl FnOnce(&Fs, &Caller, Result<Reached, Errno>) + Send + 'static,
) {
    fs.view(caller, act, &one.name.clone(), move |fs, caller, view| {
        let mut view = match view {
            Ok(view) => view,
            Err(errno) => return unseen(fs, caller, act, &one, change.renews, errno, then),
        };
        let lease = one.own(caller, view.holders.iter().map(|holder| &holder.lease));
        let Some(op) = change.op(fs, caller, &one, view.mode, lease) else {
            return then(fs, caller, Ok(Reached::default()));
        };
        let looks = looks_of(&op);
        fs.ask(caller, op, move |fs, caller, answer| {
            let outcome = match answer {
                Ok(outcome) => outcome,
                Err(failure) => {
                    let failure = why::in_the_way(&caller.client, &view, failure);
                    let errno = fs.refuse(caller, act, Some(&one.name), failure);
                    return then(fs, caller, Err(errno));
                }
            };
            looking(&mut view, caller, looks);
            if let Outcome::Renewed(tenure) = outcome {
                renewed(&mut view, tenure);
            }
            let token = change.reached(fs, caller, &one, &outcome);
            then(fs, caller, Ok(Reached { token, sight: Some(Sight::of_view(fs, &view)) }));
        });
    });
}

/// Nobody shows the lock. Whether the tenure that is meant is over may be known all the same:
/// then that is the answer, and not that there is none.
fn unseen(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    one: &Meant,
    renews: Option<Firm>,
    errno: Errno,
    then: impl FnOnce(&Fs, &Caller, Result<Reached, Errno>) + Send + 'static,
) {
    let (Some(firm), Some(_)) = (renews, one.token) else { return then(fs, caller, Err(errno)) };
    let key = LeaseKey { name: one.name.clone(), client: caller.client.clone(), token: one.token };
    let op = Op::Renew(Renew { key, term: None, firm, patch: Patch::default(), acquires: false });
    fs.submit(caller, act, &one.name, op, move |fs, caller, outcome| {
        // Had it been renewed, what was to be changed is not.
        then(fs, caller, Err(outcome.err().unwrap_or(errno)));
    });
}

/// How the lease is to look after this.
fn looks_of(op: &Op) -> Option<FileAttrs> {
    match op {
        Op::Renew(ask) => ask.patch.looks,
        Op::Annotate(ask) => ask.patch.looks,
        Op::Acquire(ask) => ask.patch.looks,
        _ => None,
    }
}

fn looking(view: &mut LockView, caller: &Caller, looks: Option<FileAttrs>) {
    let Some(looks) = looks else { return };
    for holder in view.holders.iter_mut().filter(|h| h.lease.holder == caller.client) {
        let said = Arc::unwrap_or_clone(std::mem::take(&mut holder.lease.details));
        holder.lease.details = Arc::new(said.with_looks(looks));
    }
}

fn renewed(view: &mut LockView, tenure: Tenure) {
    let at = match tenure.life {
        Lifetime::Own { ttl, expires_at, .. } => expires_at - ttl.span(),
        Lifetime::Session(_) => view.at,
    };
    for holder in view.holders.iter_mut().filter(|holder| holder.lease.token == tenure.token) {
        holder.lease.renewed_at = at;
    }
}

impl Change {
    /// What to ask the engine for, given the lease that is meant; `None`: nothing would change.
    fn op(
        &self,
        fs: &Fs,
        caller: &Caller,
        one: &Meant,
        mode: Mode,
        lease: Option<&Lease>,
    ) -> Option<Op> {
        let client = caller.client.clone();
        let key = LeaseKey { name: one.name.clone(), client, token: one.token };
        // Without a lease the engine says no, and why.
        let patch = lease.map(|lease| self.patch(fs, lease)).unwrap_or_default();
        let Some(firm) = self.renews else {
            // Truncating is the prelude of a write, which then says who may not.
            let may_be_idle = lease.is_some() || matches!(self.text, Some(Text::Cut(_)));
            let idle = may_be_idle && patch == Patch::default();
            return (!idle).then_some(Op::Annotate(Annotate { key, patch }));
        };
        let term = self.term(lease);
        if let (Some(wanted), Some(lease)) = (self.mode, lease)
            && wanted != mode
        {
            let (mode, term) = (wanted, term.unwrap_or(term_of(lease)));
            let (name, client) = (key.name, key.client);
            let (hold, line) = (Ownership::Client, QueuePolicy::Skip);
            return Some(Op::Acquire(Acquire { name, client, mode, hold, term, line, patch }));
        }
        Some(Op::Renew(Renew { key, term, firm, patch, acquires: false }))
    }

    /// Binds what was renewed to the process that is to keep it alive. Returns the tenure.
    fn reached(&self, fs: &Fs, caller: &Caller, one: &Meant, outcome: &Outcome) -> Option<Token> {
        let Outcome::Renewed(tenure) = *outcome else { return one.token };
        if self.mode.is_some() {
            fs.tree.lock().continued(&one.name, tenure.token);
        }
        if let Some(living) = &self.process {
            let (name, client) = (one.name.clone(), caller.client.clone());
            let key = LeaseKey { name, client, token: Some(tenure.token) };
            process::bind(fs, key, tenure.life, living);
        }
        Some(tenure.token)
    }

    fn term(&self, lease: Option<&Lease>) -> Option<LeaseTerms> {
        if let (Some(session), None, None) = (self.hangs, self.ttl, self.grace) {
            return Some(LeaseTerms::Session(session));
        }
        let (ttl, grace) = match lease?.life {
            Lifetime::Own { ttl, grace, .. } => (ttl, grace),
            // A ttl takes the lease off its session; without one it keeps hanging there.
            Lifetime::Session(_) => {
                (self.ttl?, self.grace.unwrap_or(crate::engine::lease_terms::GRACE_DEFAULT))
            }
        };
        (self.ttl.is_some() || self.grace.is_some())
            .then(|| LeaseTerms::Own(self.ttl.unwrap_or(ttl), self.grace.unwrap_or(grace)))
    }

    fn patch(&self, fs: &Fs, lease: &Lease) -> Patch {
        let mut looks = lease.details.looks();
        looks.times = match self.times {
            Times::Keep => looks.times,
            Times::Reset => None,
            Times::Set(accessed, modified) => {
                let before = looks.times.unwrap_or_else(|| {
                    let renewed = fs.locks.wall(lease.renewed_at);
                    (renewed, renewed)
                });
                Some((accessed.unwrap_or(before.0), modified.unwrap_or(before.1)))
            }
        };
        if let Some(mode) = self.permissions {
            looks.mode = crate::fuse::file_attrs::chosen_mode(mode);
        }
        looks.uid = self.user.0.unwrap_or(looks.uid);
        looks.gid = self.user.1.unwrap_or(looks.gid);
        let text = match &self.text {
            Some(Text::Set(text, reads)) => {
                looks.reads = reads.unwrap_or(looks.reads);
                Some(TextPatch::Set(Arc::clone(text)))
            }
            Some(Text::Append(text, reads)) => {
                looks.reads = reads.unwrap_or(looks.reads);
                Some(TextPatch::Append(Arc::clone(text)))
            }
            Some(Text::Cut(length)) if *length < lease.details.text().len() => {
                Some(TextPatch::Set(lease.details.text()[..*length].into()))
            }
            Some(Text::Cut(_)) | None => None,
        };
        let looks = (looks != lease.details.looks()).then_some(looks);
        let process = self.process.as_ref().map(|living| Some(living.process));
        Patch { note: self.note.clone(), text, looks, process, ..Patch::default() }
    }
}

fn term_of(lease: &Lease) -> LeaseTerms {
    match lease.life {
        Lifetime::Own { ttl, grace, .. } => LeaseTerms::Own(ttl, grace),
        Lifetime::Session(id) => LeaseTerms::Session(id),
    }
}

/// Whom a change through a path or an inode is meant for: whatever the caller holds there.
pub(crate) fn meant_by_path(place: &LockPlace) -> Leases {
    match &*place.links {
        [] => Leases::one(Meant { name: place.name.clone(), token: None }),
        [link] => Leases::one(Meant { name: link.name.clone(), token: None }),
        [link, links @ ..] => Leases::of(link, links),
    }
}

/// Whom a change through an open file is meant for: the tenure that it is bound to.
pub(crate) fn meant_by_open(place: &LockPlace, open: &Open) -> Leases {
    let links = open.tenure().map(|tenure| place.links_of(Some(tenure))).unwrap_or_default();
    match &*links {
        [link, links @ ..] => Leases::of(link, links),
        [] => meant_by_path(place),
    }
}

impl Leases {
    fn one(one: Meant) -> Self {
        Self { one, others: Vec::new() }
    }

    /// All of them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Meant> {
        std::iter::once(&mut self.one).chain(&mut self.others)
    }

    fn of(link: &Link, others: &[Link]) -> Self {
        Self { one: Meant::of(link), others: others.iter().map(Meant::of).collect() }
    }
}

impl Meant {
    /// The caller's own lease that is meant, among those of the lock.
    fn own<'a>(
        &self,
        caller: &Caller,
        mut leases: impl Iterator<Item = &'a Lease>,
    ) -> Option<&'a Lease> {
        leases.find(|lease| {
            lease.holder == caller.client && self.token.is_none_or(|token| lease.token == token)
        })
    }

    fn of(link: &Link) -> Self {
        Self { name: link.name.clone(), token: link.token }
    }
}

/// The change that a message asks for, written at `offset` through `open`.
pub(crate) fn of_message(message: Message, data: &[u8], offset: u64, open: &Open) -> Change {
    let renewal = Change { renews: Some(Firm::Keep), times: Times::Reset, ..Change::default() };
    match message {
        Message::Renew => renewal,
        Message::Options(options) => {
            let Options { ttl, grace, note, mode, pid, token: _ } = options;
            let makes_firm = ttl.is_some() || grace.is_some() || pid.is_some();
            let firm = if makes_firm { Firm::Make } else { Firm::Keep };
            Change { renews: Some(firm), ttl, grace, mode, note, ..renewal }
        }
        Message::Text => {
            let text: Arc<[u8]> = data.into();
            // Who made the lock by this open file, or reads through it, reads back what it wrote.
            let reads = (open.made_new || open.access == Access::Both).then_some(ReadMode::Text);
            let end = open.state.lock().end.filter(|end| end.is_text && end.at == offset);
            let goes_on = open.append || (offset > 0 && end.is_some());
            let text = if goes_on { Text::Append(text, reads) } else { Text::Set(text, reads) };
            Change { renews: Some(Firm::Make), text: Some(text), ..renewal }
        }
    }
}

/// The part of an open that truncates: the holder's text goes, another's stays, and nothing
/// fails. `then` gets the view as it is afterwards.
pub(crate) fn truncate_at_open(
    fs: &Fs,
    caller: &Caller,
    view: LockView,
    flags: i32,
    then: impl FnOnce(&Fs, &Caller, LockView) + Send + 'static,
) {
    let truncates = flags & libc::O_TRUNC != 0 && Access::of_flags(flags).writes();
    let held = view.held_by(&caller.client);
    let Some(token) = held.filter(|held| truncates && !held.lease.details.text().is_empty()) else {
        return then(fs, caller, view);
    };
    let token = token.lease.token;
    let meant = Leases::one(Meant { name: view.name.clone(), token: Some(token) });
    let change = Change { text: Some(Text::Cut(0)), ..Change::default() };
    apply(fs, caller, Act::Truncate, meant, change, move |fs, caller, _| {
        let name = view.name.clone();
        fs.view(caller, Act::Truncate, &name, move |fs, caller, after| {
            then(fs, caller, after.unwrap_or(view));
        });
    });
}

/// Why a text of so many bytes can't be kept.
pub(crate) fn too_long(name: &LockName, bytes: u64) -> String {
    format!(
        "lock '{name}' can't keep {bytes} bytes; a text has at most {TEXT_BYTES_MAX}, \
         so keep data elsewhere and write where it is"
    )
}
