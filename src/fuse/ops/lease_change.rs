//! Changes of leases through the files of locks: times, permissions, sizes and written messages.
//! Each change applies to all names of the inode, on behalf of one client.
//!
//! Parses the messages that programs write to a lock's file. One write is one message. Pure: the
//! parser only reads bytes.

use crate::control::control_request::{LeaseOptions, checked_pid, options_of, short, wrong_pid};
use crate::engine::values::details::TEXT_BYTES_MAX;
use crate::engine::values::lease::looks_like_a_duration;
use crate::engine::{
    Acquire, Annotate, FileAttrs, Firm, Grace, Lease, LeaseKey, LeaseTerms, Lifetime, LockName,
    LockView, Mode, Op, Outcome, Patch, ReadMode, Renew, SessionId, Tenure, TextPatch, Token, Ttl,
};
use crate::fuse::credentials::Caller;
use crate::fuse::file_attrs::{NodeState, chosen_mode};
use crate::fuse::inodes::{LockNode, NodeLink};
use crate::fuse::mount_parts::Mount;
use crate::fuse::open_files::{OpenAccess, OpenFile};
use crate::fuse::process::lease_users::ProcessHandle;
use crate::fuse::refusals::{Act, in_the_way};
use crate::service::Retry;
use crate::time::Wall;
use futures_util::future::join_all;
use kernel::file_system::Errno;
use serde_json::Value;
use std::sync::Arc;

/// One lease to which a change applies.
#[derive(Debug, Clone)]
pub(crate) struct ChangedLease {
    /// The name of the lock.
    pub(crate) name: LockName,
    /// The fencing token, if the change applies only to the lease with this token.
    pub(crate) token: Option<Token>,
}

/// The leases to which a change applies: nearly always one.
#[derive(Debug, Clone)]
pub(crate) struct ChangedLeases {
    /// The first of the leases to which the change applies.
    pub(crate) one: ChangedLease,
    others: Vec<ChangedLease>,
}

/// A change of a lease. A field that is `None` leaves the lease as it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeaseChange {
    /// If set, the change renews the lease; the value says whether its ownership also becomes
    /// exclusive, so that no open file can take the lease over.
    pub(crate) renews: Option<Firm>,
    /// The new ttl of the lease.
    pub(crate) ttl: Option<Ttl>,
    /// The new grace of the lease.
    pub(crate) grace: Option<Grace>,
    /// The new mode of the lock, exclusive or shared.
    pub(crate) mode: Option<Mode>,
    /// The new note of the lease.
    pub(crate) note: Option<Arc<str>>,
    /// The change of the lock's content: replace, append or truncate.
    pub(crate) text: Option<TextChange>,
    /// The change of the lock's file times.
    pub(crate) times: TimesChange,
    /// The new permission bits of the lock's file.
    pub(crate) permissions: Option<u32>,
    /// The process to which the lease is bound after the change.
    pub(crate) process: Option<Arc<ProcessHandle>>,
    /// The session to which the lease is attached after the change, unless the change sets a ttl or
    /// grace.
    pub(crate) hangs: Option<SessionId>,
    /// The new user and group of the lock's file.
    pub(crate) user: (Option<u32>, Option<u32>),
}

/// A change of the lock's content; the [`ReadMode`] says what later reads of the file return, if
/// that changes.
#[derive(Debug, Clone)]
pub(crate) enum TextChange {
    /// Replaces the content of the lock.
    Set(Arc<[u8]>, Option<ReadMode>),
    /// Appends to the content of the lock.
    Append(Arc<[u8]>, Option<ReadMode>),
    /// Truncates the content of the lock to this many bytes.
    Cut(usize),
}

/// A change of the times of a lock's file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum TimesChange {
    /// Leaves the file's times as they are.
    #[default]
    Keep,
    /// Removes times that a program has set, so that the file shows the time of the last renewal.
    Reset,
    /// Sets the access time and the modification time of the file, each if given.
    Set(Option<Wall>, Option<Wall>),
}

/// The result of a change of a lease.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangeReached {
    /// The fencing token of the lease after the change.
    pub(crate) token: Option<Token>,
    /// The state of the lock after the change, except that the content may still be that from
    /// before the change.
    pub(crate) state: Option<NodeState>,
}

/// Applies a change to every lease in `meant`. Succeeds if at least one of the leases was
/// changed.
pub(crate) async fn apply(
    mount: &Mount,
    caller: &Caller,
    act: Act,
    meant: &ChangedLeases,
    change: &LeaseChange,
) -> Result<ChangeReached, Errno> {
    if meant.others.is_empty() {
        return reach(mount, caller, act, &meant.one, change).await;
    }
    let all = std::iter::once(&meant.one).chain(&meant.others);
    let mut reached = join_all(all.map(|one| reach(mount, caller, act, one, change))).await;
    let first = reached.iter().position(Result::is_ok).unwrap_or(0);
    reached.swap_remove(first)
}

/// Applies a change to one lease.
async fn reach(
    mount: &Mount,
    caller: &Caller,
    act: Act,
    one: &ChangedLease,
    change: &LeaseChange,
) -> Result<ChangeReached, Errno> {
    let nodes = &mount.nodes;
    let mut view = match nodes.view(caller, act, &one.name).await {
        Ok(view) => view,
        Err(errno) => return Err(unseen(mount, caller, act, one, change.renews, errno).await),
    };
    let lease = one.own(caller, view.holders.iter().map(|holder| &holder.lease));
    let Some(op) = op(mount, change, caller, one, view.mode, lease) else {
        return Ok(ChangeReached::default());
    };
    let attrs = attrs_of(&op);
    let changed = nodes.service.submit(op.into(), Retry::Never).outcome();
    let outcome = changed.await.map_err(|failure| {
        let failure = in_the_way(&caller.client, &view, failure);
        nodes.refusals.failed(caller, act, Some(&one.name), failure)
    })?;
    set_attrs_in_view(&mut view, caller, attrs);
    if let Outcome::Renewed(tenure) = &outcome {
        renewed(&mut view, tenure);
    }
    let token = reached(mount, change, caller, one, &outcome);
    Ok(ChangeReached { token, state: Some(mount.nodes.attrs.state_of(&view)) })
}

/// Returns the errno of a change that failed with `errno`, because its lock could not be read.
/// If the change names a token, tries to renew the lease with that token: if the lease is over,
/// the refusal of the renewal gives a more exact errno.
async fn unseen(
    mount: &Mount,
    caller: &Caller,
    act: Act,
    one: &ChangedLease,
    renews: Option<Firm>,
    errno: Errno,
) -> Errno {
    let (Some(firm), Some(_)) = (renews, one.token) else { return errno };
    let (name, client) = (one.name.clone(), caller.client.clone());
    let key = LeaseKey { name, client, token: one.token };
    let patch = Patch::default();
    let op = Op::Renew(Renew { key, term: None, firm, patch, acquires: false });
    // The change has failed even if the renewal succeeds, so the result is an errno in both
    // cases.
    match mount.nodes.service.submit(op.into(), Retry::Never).outcome().await {
        Ok(_) => errno,
        Err(failure) => mount.nodes.refusals.failed(caller, act, Some(&one.name), failure),
    }
}

/// Returns the command that makes the change to the lease `lease`; `None` if the change has no
/// effect.
fn op(
    mount: &Mount,
    change: &LeaseChange,
    caller: &Caller,
    one: &ChangedLease,
    mode: Mode,
    lease: Option<&Lease>,
) -> Option<Op> {
    let renewed_at = |lease: &Lease| mount.nodes.service.wall(lease.renewed_at);
    change.op(renewed_at, caller, one, mode, lease)
}

/// Binds a renewed lease to the process that the change names. Returns the token of the lease.
fn reached(
    mount: &Mount,
    change: &LeaseChange,
    caller: &Caller,
    one: &ChangedLease,
    outcome: &Outcome,
) -> Option<Token> {
    let Outcome::Renewed(tenure) = outcome else { return one.token };
    let users = &mount.nodes.users;
    users.renewed(users.id_of(caller), &caller.client, &one.name, tenure);
    if change.mode.is_some() {
        mount.nodes.inodes().continued(&one.name, tenure.token);
    }
    if let Some(process) = &change.process {
        let (name, client) = (one.name.clone(), caller.client.clone());
        let key = LeaseKey { name, client, token: Some(tenure.token) };
        mount.bindings.bind(key, tenure.life, process);
    }
    Some(tenure.token)
}

/// Returns the file attributes that the command `op` sets, if it sets any.
fn attrs_of(op: &Op) -> Option<FileAttrs> {
    match op {
        Op::Renew(ask) => ask.patch.attrs,
        Op::Annotate(ask) => ask.patch.attrs,
        Op::Acquire(ask) => ask.patch.attrs,
        _ => None,
    }
}

fn set_attrs_in_view(view: &mut LockView, caller: &Caller, attrs: Option<FileAttrs>) {
    let Some(attrs) = attrs else { return };
    for holder in view.holders.iter_mut().filter(|h| h.lease.holder == caller.client) {
        let said = Arc::unwrap_or_clone(std::mem::take(&mut holder.lease.details));
        holder.lease.details = Arc::new(said.with_attrs(attrs));
    }
}

fn renewed(view: &mut LockView, tenure: &Tenure) {
    let at = match tenure.life {
        Lifetime::Own { ttl, expires_at, .. } => expires_at - ttl.span(),
        Lifetime::Session(_) => view.at,
    };
    for holder in view.holders.iter_mut().filter(|holder| holder.lease.token == tenure.token) {
        holder.lease.renewed_at = at;
    }
}

impl LeaseChange {
    /// Returns the command that makes the change to the lease `lease`; `None` if the change has no
    /// effect.
    fn op(
        &self,
        renewed_at: impl Fn(&Lease) -> Wall,
        caller: &Caller,
        one: &ChangedLease,
        mode: Mode,
        lease: Option<&Lease>,
    ) -> Option<Op> {
        let client = caller.client.clone();
        let key = LeaseKey { name: one.name.clone(), client, token: one.token };
        // If the caller has no lease, the command is sent all the same: the engine refuses it with
        // the reason.
        let patch = lease.map(|lease| self.patch(&renewed_at, lease)).unwrap_or_default();
        let Some(firm) = self.renews else {
            // A truncation of a lock that the caller does not hold is skipped without an error,
            // because programs truncate a file before they write to it, and the write reports the
            // error.
            let may_be_idle = lease.is_some() || matches!(self.text, Some(TextChange::Cut(_)));
            let idle = may_be_idle && patch == Patch::default();
            return (!idle).then_some(Op::Annotate(Annotate { key, patch, handover: None }));
        };
        let term = self.term(lease);
        if let (Some(wanted), Some(lease)) = (self.mode, lease)
            && wanted != mode
        {
            let (mode, term) = (wanted, term.unwrap_or(term_of(lease)));
            let ask = Acquire::new(key.name, key.client, term);
            return Some(Op::Acquire(Acquire { mode, patch, ..ask }));
        }
        Some(Op::Renew(Renew { key, term, firm, patch, acquires: false }))
    }

    fn term(&self, lease: Option<&Lease>) -> Option<LeaseTerms> {
        if let (Some(session), None, None) = (self.hangs, self.ttl, self.grace) {
            return Some(LeaseTerms::Session(session));
        }
        let (ttl, grace) = match lease?.life {
            Lifetime::Own { ttl, grace, .. } => (ttl, grace),
            // A new ttl detaches the lease from its session; without a new ttl the lease stays
            // attached.
            Lifetime::Session(_) => {
                (self.ttl?, self.grace.unwrap_or(engine::values::lease::GRACE_DEFAULT))
            }
        };
        (self.ttl.is_some() || self.grace.is_some())
            .then(|| LeaseTerms::Own(self.ttl.unwrap_or(ttl), self.grace.unwrap_or(grace)))
    }

    fn patch(&self, renewed_at: impl Fn(&Lease) -> Wall, lease: &Lease) -> Patch {
        let mut attrs = lease.details.attrs();
        attrs.times = match self.times {
            TimesChange::Keep => attrs.times,
            TimesChange::Reset => None,
            TimesChange::Set(accessed, modified) => {
                let before = attrs.times.unwrap_or_else(|| {
                    let renewed = renewed_at(lease);
                    (renewed, renewed)
                });
                Some((accessed.unwrap_or(before.0), modified.unwrap_or(before.1)))
            }
        };
        if let Some(mode) = self.permissions {
            attrs.mode = chosen_mode(mode);
        }
        attrs.uid = self.user.0.unwrap_or(attrs.uid);
        attrs.gid = self.user.1.unwrap_or(attrs.gid);
        let text = match &self.text {
            Some(TextChange::Set(text, reads)) => {
                attrs.reads = reads.unwrap_or(attrs.reads);
                Some(TextPatch::Set(Arc::clone(text)))
            }
            Some(TextChange::Append(text, reads)) => {
                attrs.reads = reads.unwrap_or(attrs.reads);
                Some(TextPatch::Append(Arc::clone(text)))
            }
            Some(TextChange::Cut(length)) if *length < lease.details.text().len() => {
                Some(TextPatch::Set(lease.details.text()[..*length].into()))
            }
            Some(TextChange::Cut(_)) | None => None,
        };
        let attrs = (attrs != lease.details.attrs()).then_some(attrs);
        let process = self.process.as_ref().map(|living| Some(living.process));
        Patch { note: self.note.clone(), text, attrs, process, ..Patch::default() }
    }
}

fn term_of(lease: &Lease) -> LeaseTerms {
    match lease.life {
        Lifetime::Own { ttl, grace, .. } => LeaseTerms::Own(ttl, grace),
        Lifetime::Session(id) => LeaseTerms::Session(id),
    }
}

/// Returns the leases to which a change through a path applies: those that the caller holds under
/// the names of the inode.
pub(crate) fn meant_by_path(place: &LockNode) -> ChangedLeases {
    match &*place.links {
        [] => ChangedLeases::one(ChangedLease { name: place.name.clone(), token: None }),
        [link] => ChangedLeases::one(ChangedLease { name: link.name.clone(), token: None }),
        [link, links @ ..] => ChangedLeases::of(link, links),
    }
}

/// Returns the leases to which a change through an open file applies: the lease to which the file
/// is bound, with those that continue it under other names (hard links). If the file is bound to no
/// lease, returns the leases to which a change through a path applies.
pub(crate) fn meant_by_open(place: &LockNode, open: &OpenFile) -> ChangedLeases {
    let links = open.tenure().map(|tenure| place.links_of(Some(tenure))).unwrap_or_default();
    match &*links {
        [link, links @ ..] => ChangedLeases::of(link, links),
        [] => meant_by_path(place),
    }
}

impl ChangedLeases {
    pub(crate) fn one(one: ChangedLease) -> Self {
        Self { one, others: Vec::new() }
    }

    /// Returns an iterator over all leases to which the change applies.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ChangedLease> {
        std::iter::once(&mut self.one).chain(&mut self.others)
    }

    fn of(link: &NodeLink, others: &[NodeLink]) -> Self {
        Self { one: ChangedLease::of(link), others: others.iter().map(ChangedLease::of).collect() }
    }
}

impl ChangedLease {
    /// Returns the caller's lease to which the change applies, among the leases of the lock.
    fn own<'a>(
        &self,
        caller: &Caller,
        mut leases: impl Iterator<Item = &'a Lease>,
    ) -> Option<&'a Lease> {
        leases.find(|lease| {
            lease.holder == caller.client && self.token.is_none_or(|token| lease.token == token)
        })
    }

    fn of(link: &NodeLink) -> Self {
        Self { name: link.name.clone(), token: link.token }
    }
}

/// Returns the change of the lease that a written message requests, given its offset and open file.
pub(crate) fn of_message(
    message: WrittenMessage,
    data: &[u8],
    offset: u64,
    open: &OpenFile,
) -> LeaseChange {
    let renewal = LeaseChange {
        renews: Some(Firm::Keep),
        times: TimesChange::Reset,
        ..LeaseChange::default()
    };
    match message {
        WrittenMessage::Renew => renewal,
        WrittenMessage::Options(options) => {
            let LeaseOptions { ttl, grace, note, mode, pid, token: _ } = options;
            let makes_firm = ttl.is_some() || grace.is_some() || pid.is_some();
            let firm = if makes_firm { Firm::Make } else { Firm::Keep };
            LeaseChange { renews: Some(firm), ttl, grace, mode, note, ..renewal }
        }
        WrittenMessage::Text => {
            let text: Arc<[u8]> = data.into();
            // A program that created the lock by this open, or that opened the file for reading
            // too, expects to read back the content that it wrote.
            let reads =
                (open.made_new || open.access == OpenAccess::Both).then_some(ReadMode::Text);
            let end = open.state().end.filter(|end| end.is_text && end.at == offset);
            let goes_on = open.append || (offset > 0 && end.is_some());
            let text = if goes_on {
                TextChange::Append(text, reads)
            } else {
                TextChange::Set(text, reads)
            };
            LeaseChange { renews: Some(Firm::Make), text: Some(text), ..renewal }
        }
    }
}

/// Returns the error message for a content of `bytes` bytes, which exceeds the limit.
pub(crate) fn too_long(name: &LockName, bytes: u64) -> String {
    format!(
        "lock '{name}' can't keep {bytes} bytes; a text has at most {TEXT_BYTES_MAX}, \
         so keep data elsewhere and write where it is"
    )
}

/// The meaning of the bytes of one write to a lock's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WrittenMessage {
    /// The text is only white space: the write renews the lease.
    Renew,
    /// The write renews the lease, and changes it by the contained options.
    Options(LeaseOptions),
    /// Any other text: the write renews the lease, and the text becomes the content.
    Text,
}

/// Returns the message in `data`, or an error text that says why it is invalid.
pub(crate) fn parse(data: &[u8]) -> Result<WrittenMessage, String> {
    let Ok(text) = std::str::from_utf8(data) else { return Ok(WrittenMessage::Text) };
    let text = text.trim();
    match text {
        "" => Ok(WrittenMessage::Renew),
        _ if text.starts_with('{') => parse_object(text),
        _ if looks_like_a_duration(text) => {
            let ttl = Ttl::parse(text).map_err(|error| format!("'{}': {error}", short(text)))?;
            Ok(WrittenMessage::Options(LeaseOptions { ttl: Some(ttl), ..LeaseOptions::default() }))
        }
        _ => match text.strip_prefix("pid=") {
            // Only `pid=` with a number and nothing else is an option. Other text that begins with
            // `pid=`, such as `pid=12 host=x`, is content.
            Some(digits) if is_number(digits) => {
                let pid = digits.parse().map_err(|_| wrong_pid(digits))?;
                Ok(WrittenMessage::Options(LeaseOptions {
                    pid: Some(checked_pid(pid)?),
                    ..LeaseOptions::default()
                }))
            }
            _ => Ok(WrittenMessage::Text),
        },
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_object(text: &str) -> Result<WrittenMessage, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        format!("a text that begins with '{{' is read as JSON, and this is none: {error}")
    })?;
    let Value::Object(object) = value else { return Ok(WrittenMessage::Text) };
    let ours =
        |key: &String| matches!(key.as_str(), "ttl" | "grace" | "note" | "token" | "pid" | "mode");
    if !object.keys().all(ours) {
        return Ok(WrittenMessage::Text);
    }
    if object.is_empty() {
        return Ok(WrittenMessage::Renew);
    }
    options_of(&object).map(WrittenMessage::Options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::values::details::NOTE_BYTES_MAX;
    use crate::engine::{Grace, Mode, Token};
    use crate::time::Span;
    use proptest::prelude::*;

    fn options(text: &str) -> LeaseOptions {
        match parse(text.as_bytes()) {
            Ok(WrittenMessage::Options(options)) => options,
            other => panic!("{text:?} is {other:?}"),
        }
    }

    #[test]
    fn a_duration_is_a_ttl() {
        assert_eq!(options("60s\n").ttl.map(Ttl::span), Some(Span::from_secs(60)));
        assert_eq!(options(" 1m30s ").ttl.map(Ttl::span), Some(Span::from_secs(90)));
        for wrong in ["500ms", "0s", "-5s", "25h", "99999999999999999999h", "1s2", "1.2.3s"] {
            if !looks_like_a_duration(wrong) {
                continue;
            }
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn empty_write_is_a_renewal() {
        for empty in ["", "\n", "  \t\n", "{}"] {
            assert_eq!(parse(empty.as_bytes()), Ok(WrittenMessage::Renew), "{empty:?}");
        }
    }

    #[test]
    fn texts_that_programs_write_are_content() {
        for text in ["1234", "1234\n", "host:1234", "hello", "s", "12 s", "[1]", "pid=12 host=x"] {
            assert_eq!(parse(text.as_bytes()), Ok(WrittenMessage::Text), "{text:?}");
        }
        assert_eq!(parse(b"\xff\xfe"), Ok(WrittenMessage::Text));
        assert_eq!(parse(br#"{"pid":1,"hostname":"x"}"#), Ok(WrittenMessage::Text));
    }

    #[test]
    fn object_with_only_option_keys_is_options() {
        let text = r#"{"ttl":"60s","grace":"0s","note":"hi","token":7,"pid":12,"mode":"shared"}"#;
        let read = options(text);
        assert_eq!(read.ttl.map(Ttl::span), Some(Span::from_secs(60)));
        assert_eq!(read.grace.map(Grace::span), Some(Span::ZERO));
        assert_eq!(read.note.as_deref(), Some("hi"));
        assert_eq!(read.token, Some(Token::named(7)));
        assert_eq!((read.pid, read.mode), (Some(12), Some(Mode::Shared)));
        assert_eq!(options(r#"{"ttl":"60s","note":null}"#).note, None);
    }

    #[test]
    fn wrong_options_are_rejected() {
        let deep = format!("{{\"note\":{}{}}}", "[".repeat(1_500), "]".repeat(1_500));
        let long = format!("{{\"note\":\"{}\"}}", "x".repeat(NOTE_BYTES_MAX + 1));
        for wrong in [
            "{",
            "{\"ttl\":\"60s\"",
            r#"{"ttl":60}"#,
            r#"{"ttl":"500ms"}"#,
            r#"{"ttl":"25h"}"#,
            r#"{"grace":"25h"}"#,
            r#"{"token":-1}"#,
            r#"{"token":9007199254740992}"#,
            r#"{"pid":0}"#,
            r#"{"pid":99999999999}"#,
            r#"{"mode":"both"}"#,
            "pid=0",
            "pid=99999999999999999999",
            &deep,
            &long,
        ] {
            let sentence = parse(wrong.as_bytes()).expect_err(wrong);
            assert!(!sentence.is_empty() && !sentence.ends_with('.'), "{sentence}");
        }
    }

    proptest! {
        #[test]
        fn near_messages_do_not_panic(
            text in r#"[ ]?(pid=|\{"(ttl|pid|note|x)":"?)?-?[0-9.]{0,25}[hmsu]{0,2}"?\}?"#,
        ) {
            let _ = parse(text.as_bytes());
        }

        #[test]
        fn every_good_ttl_is_read(secs in 1_u64..=86_400) {
            let read = parse(format!("{secs}s\n").as_bytes());
            let ttl = Ttl::new(Span::from_secs(secs)).expect("within bounds");
            let options = LeaseOptions { ttl: Some(ttl), ..LeaseOptions::default() };
            let want = WrittenMessage::Options(options);
            prop_assert_eq!(read, Ok(want));
        }
    }
}
