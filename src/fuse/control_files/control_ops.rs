//! `.latchfs`: the mount's own files, there but not listed; and the facts in a directory that is a
//! lock. Each is a page of text, made when it is read.

use crate::fuse::file_attrs;
use crate::fuse::errno::{Act, errno_of_name};
use crate::fuse::ops::lookup::FOREVER;
use crate::fuse::ops::create::{GENERATION, NO_CACHE};
use crate::fuse::open_files::{Access, Entry, Open, State, Target};
use crate::fuse::credentials::Caller;
use crate::fuse::control_files::pages;
use crate::fuse::poll;
use crate::fuse::shared::{Fs, wrong_name};
use crate::fuse::open_files::event_stream::Stream;
use crate::fuse::last_refusal::{self, Why};
use crate::engine::{FileType, LockName, LockView, NameError};
use crate::status::{pretty, status_of};
use fuser::{
    Errno, FileAttr, FileHandle, FileType as InodeType, FopenFlags, ReplyEntry, ReplyOpen,
};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::sync::Arc;

/// How it looks to stat: as in /proc, the size is not known before it is read.
pub(crate) fn attr_of(fs: &Fs, ino: u64, control: &Control) -> FileAttr {
    let (face, perm) = match control {
        _ if control.is_directory() => (FileType::Directory, 0o555),
        _ if control.takes_writes() => (FileType::File, 0o666),
        _ => (FileType::File, 0o444),
    };
    let attr = attr::of_nobody(fs, ino, face, attr::LINKS);
    FileAttr { perm, uid: fs.mounter, ..attr }
}

/// Answers a lookup with this.
pub(crate) fn entered(fs: &Fs, control: &Control, reply: ReplyEntry) {
    let ino = fs.tree.lock().control(control);
    let attr = attr_of(fs, ino, control);
    let ttl = if control.is_constant() { FOREVER } else { NO_CACHE };
    reply.entry_with_ttls(&NO_CACHE, &ttl, &attr, GENERATION);
}

/// lookup in a directory of ours.
pub(crate) fn lookup(fs: &Fs, caller: &Caller, dir: &Control, name: &OsStr, reply: ReplyEntry) {
    let text = name.to_str();
    match dir {
        Control::Top => {
            let page = Page::ALL.into_iter().find(|page| text == Some(page.as_str()));
            let report = Report::ALL.into_iter().find(|report| text == Some(report.as_str()));
            match (page, report, text.and_then(events)) {
                (Some(page), ..) => entered(fs, &Control::Page(page), reply),
                (_, Some(report), _) => entered(fs, &Control::Reports(report, None), reply),
                (_, _, Some(events)) => entered(fs, &events, reply),
                (None, None, None) => reply.error(Errno::ENOENT),
            }
        }
        Control::Reports(report, parent) => {
            let (report, asked) = (*report, reported(parent.as_ref(), name));
            let (name, written) = match asked {
                Ok(asked) => asked,
                Err((errno, sentence)) => {
                    return reply.error(fs.refuse_own(caller, Act::Lookup, None, errno, sentence));
                }
            };
            fs.view(caller, Act::Lookup, &name, move |fs, _, view| match view {
                Ok(view) if view.has_below && written == Written::Plain => {
                    entered(fs, &Control::Reports(report, Some(view.name)), reply);
                }
                Ok(view) => entered(fs, &Control::Report(report, view.name), reply),
                Err(errno) => reply.error(errno),
            });
        }
        Control::Page(_) | Control::Events(_) | Control::Report(..) | Control::Fact(..) => {
            reply.error(Errno::ENOTDIR);
        }
    }
}

/// `events`, or `events@N`. Neither is listed: who reads all files of a directory would never come
/// to an end.
fn events(text: &str) -> Option<Control> {
    match text.strip_prefix("events")? {
        "" => Some(Control::Events(None)),
        since => {
            let number = since.strip_prefix('@')?;
            let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse().ok().filter(|_| is_plain).map(|since| Control::Events(Some(since)))
        }
    }
}

/// How a name is written in `status/`, `content/` and `wait/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// As it is: a directory while locks lie below it, as in the mount itself, and a file else.
    Plain,
    /// With a `%2F` for a slash: a file, whatever lies below. Every name can be written so, if need
    /// be as an absolute path: `%2Fteam`.
    Escaped,
}

/// The lock that a name in `status/`, `content/` or `wait/` is about, below a `parent` or not.
fn reported(
    parent: Option<&LockName>,
    text: &OsStr,
) -> Result<(LockName, Written), (Errno, String)> {
    let wrong = |error| (errno_of_name(error), wrong_name(text, error));
    let name = text.to_str().ok_or(NameError::NotUtf8).map_err(wrong)?;
    let Some(name) = unescaped(name) else {
        let sentence =
            format!("'{name}' says nothing: here %2F is a slash, and %25 a percent sign");
        return Err((Errno::EINVAL, sentence));
    };
    let written = if name.contains('/') { Written::Escaped } else { Written::Plain };
    let name = match parent {
        Some(parent) => LockName::parse(&format!("{parent}/{name}")),
        None => LockName::parse(name.strip_prefix('/').unwrap_or(&name)),
    };
    Ok((name.map_err(wrong)?, written))
}

/// The file in `status/` about a lock, whether or not others lie below it.
pub(crate) fn report_of(view: &LockView) -> String {
    let name = view.name.as_str().replace('%', "%25").replace('/', "%2F");
    if view.has_below && !name.contains("%2F") { format!("%2F{name}") } else { name }
}

fn unescaped(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(text.into());
    }
    let mut name = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        name.push_str(before);
        name.push(match after.get(..2)? {
            "2F" | "2f" => '/',
            "25" => '%',
            _ => return None,
        });
        rest = &after[2..];
    }
    name.push_str(rest);
    Some(name.into())
}

/// What a directory of ours lists: reports are there for all names that there can be, so they are
/// looked up by name and not listed.
pub(crate) fn entries(dir: &Control) -> Vec<Entry> {
    let entry = |kind, name: &str| Entry { ino: None, kind, name: name.into() };
    if *dir != Control::Top {
        return Vec::new();
    }
    let pages = Page::ALL.iter().map(|page| entry(InodeType::RegularFile, page.as_str()));
    let reports = Report::ALL.iter().map(|dir| entry(InodeType::Directory, dir.as_str()));
    pages.chain(reports).collect()
}

/// open of one of our files.
pub(crate) fn open(fs: &Fs, caller: &Caller, control: Control, flags: i32, reply: ReplyOpen) {
    let access = Access::of_flags(flags);
    if control.is_directory() {
        return reply.error(Errno::EISDIR);
    }
    if access.writes() && !control.takes_writes() {
        return reply.error(Errno::EACCES);
    }
    let (stream, how) = match control {
        Control::Events(since) => (Some(Stream::open(fs, since)), FopenFlags::FOPEN_NONSEEKABLE),
        _ => (None, FopenFlags::empty()),
    };
    let open = Open {
        target: Target::Control(control),
        client: caller.client.clone(),
        uid: caller.uid,
        pid: caller.pid,
        access,
        append: false,
        made_new: false,
        state: State { stream, ..State::default() }.into(),
        share: None,
    };
    let fh = FileHandle(fs.opens.insert(open));
    // Nothing of ours can be locked, so a close needs no answer: a program that ends while the
    // daemon is stopped would wait in it, and SIGKILL could not end that.
    reply.opened(fh, FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH | how);
}

/// What one of our files says now.
pub(crate) fn render(
    fs: &Fs,
    caller: &Caller,
    open: &Arc<Open>,
    control: &Control,
    then: impl FnOnce(Result<Arc<[u8]>, Errno>) + Send + 'static,
) {
    let say = |text: String| Ok(text.into_bytes().into());
    match control {
        Control::Top | Control::Reports(..) => then(Err(Errno::EISDIR)),
        Control::Page(Page::Readme) => then(Ok(pages::README.as_bytes().into())),
        Control::Page(Page::Server) => then(say(pretty(&pages::server(fs)))),
        Control::Page(Page::Metrics) => then(say(pages::metrics(fs))),
        Control::Page(Page::Ctl) | Control::Events(_) => then(Ok(Arc::default())),
        Control::Page(Page::Why) => match fs.whys.of(&open.client) {
            Why::Nothing => then(say(pretty(&why::nothing(&open.client)))),
            Why::Refused(value) => then(say(pretty(&value))),
            Why::Met(name) => {
                let opener = Caller { client: open.client.clone(), ..caller.clone() };
                fs.view(&opener, Act::Read, &name, move |_, caller, view| {
                    then(view.and_then(|view| say(pretty(&why::met(&caller.client, &view)))));
                });
            }
        },
        Control::Report(_, name) | Control::Fact(_, name) => {
            let (open, control) = (Arc::clone(open), control.clone());
            fs.view(caller, Act::Read, name, move |fs, _, view| {
                then(view.map(|view| {
                    poll::saw(&open, &view);
                    told(fs, &control, &view)
                }));
            });
        }
    }
}

/// What is told of a lock.
fn told(fs: &Fs, control: &Control, view: &LockView) -> Arc<[u8]> {
    let holder = view.holder();
    let line = |fact: Option<String>| fact.map_or_else(String::new, |fact| fact + "\n");
    let text = match control {
        Control::Report(Report::Content, _) => {
            let text = holder.map(|holder| holder.lease.details.shared_text());
            return text.unwrap_or_default();
        }
        Control::Fact(Fact::Holder, _) => line(holder.map(|h| h.lease.holder.to_string())),
        Control::Fact(Fact::Token, _) => line(holder.map(|h| h.lease.token.to_string())),
        Control::Fact(Fact::Phase, _) => line(Some(view.phase().as_str().to_owned())),
        Control::Fact(Fact::ExpiresAt, _) => {
            line(holder.map(|h| fs.locks.wall(h.ends.expires_at).to_string()))
        }
        Control::Fact(Fact::Waiters, _) => {
            let waiters = view.waiters.iter().flat_map(|w| [w.client.as_str(), "\n"]);
            waiters.collect()
        }
        _ => pretty(&status_of(view, |at| fs.locks.wall(at))),
    };
    text.into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    #[test]
    fn slashes_in_reports_are_written_out() {
        let view = |text, has_below| {
            let (at, mode) = (crate::time::Time::ZERO, crate::engine::Mode::Exclusive);
            let (holders, waiters) = (Vec::new(), Vec::new());
            LockView { name: name(text), at, mode, holders, waiters, has_below }
        };
        for text in ["build", "team/build", "100%", "%2F", "a%/b"] {
            for has_below in [false, true] {
                let written = report_of(&view(text, has_below));
                assert!(!written.contains('/'), "{written}");
                let (read, form) = reported(None, OsStr::new(&written)).expect("a name");
                assert_eq!(read, name(text), "{written}");
                assert!(!has_below || form == Written::Escaped, "{written} is a file");
            }
        }
        assert_eq!(report_of(&view("a/b%", false)), "a%2Fb%25");
        for wrong in ["%", "%2", "%41", "a%2"] {
            assert_eq!(unescaped(wrong), None, "{wrong}");
            assert!(reported(None, OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_begin_now_or_at_a_number() {
        assert_eq!(events("events"), Some(Control::Events(None)));
        assert_eq!(events("events@0"), Some(Control::Events(Some(0))));
        assert_eq!(events("events@17"), Some(Control::Events(Some(17))));
        for wrong in ["event", "events@", "events@x", "events@-1", "events@+1", "events17"] {
            assert_eq!(events(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_report_is_about_a_name() {
        let told = |parent: Option<&LockName>, text| {
            reported(parent, OsStr::new(text)).map_err(|(errno, _)| errno.code())
        };
        let team = name("team");
        assert_eq!(told(None, "team%2Fbuild"), Ok((name("team/build"), Written::Escaped)));
        assert_eq!(told(Some(&team), "build"), Ok((name("team/build"), Written::Plain)));
        assert_eq!(told(Some(&team), "x%2Fy"), Ok((name("team/x/y"), Written::Escaped)));
        assert_eq!(told(None, "team"), Ok((name("team"), Written::Plain)));
        assert_eq!(told(None, "%2Fteam"), Ok((name("team"), Written::Escaped)));
        for wrong in ["..", ".latchfs", "%2F", "team%2F", "%2F%2Fteam", "a\nb"] {
            assert_eq!(told(None, wrong), Err(libc::EINVAL), "{wrong}");
        }
        assert_eq!(told(None, &"x".repeat(256)), Err(libc::ENAMETOOLONG));
    }
}
