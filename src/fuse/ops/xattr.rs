//! Extended attributes: single facts for programs that don't want to read JSON.

use crate::fuse::ops::lease_change;
use crate::fuse::errno::Act;
use crate::fuse::write_message;
use crate::fuse::credentials::Caller;
use crate::fuse::shared::Fs;
use crate::fuse::inodes::Place;
use crate::engine::{Firm, LockView, Ttl};
use fuser::{Errno, ReplyEmpty, ReplyXattr};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const PREFIX: &str = "user.latchfs.";

/// The facts, in the order in which they are listed.
const FACTS: [&str; 6] = ["token", "holder", "phase", "expires_in_ms", "note", "waiters"];

/// The value of a fact, if the lock has it now.
fn value_of(fact: &str, view: &LockView) -> Option<String> {
    if fact == "phase" {
        return Some(view.phase().as_str().to_owned());
    }
    if fact == "waiters" {
        return Some(view.waiters.len().to_string());
    }
    let holder = view.holder()?;
    match fact {
        "token" => Some(holder.lease.token.to_string()),
        "holder" => Some(holder.lease.holder.as_str().to_owned()),
        "expires_in_ms" => Some(holder.ends.left(view.at).as_millis().to_string()),
        "note" => holder.lease.details.note().map(|note| &**note).map(str::to_owned),
        // Not listed, but what can be set can be read.
        "ttl" => Some(format!("{}ms", holder.ends.ttl.span().as_millis())),
        _ => None,
    }
}

/// What is wrong with asking for this attribute: ours may be there, `user.` never is, and of
/// other namespaces there are none. ENODATA there would make editors set ACLs.
fn absent(name: &OsStr) -> Errno {
    if name.as_bytes().starts_with(b"user.") { Errno::ENODATA } else { Errno::ENOTSUP }
}

/// getxattr.
pub(crate) fn get(fs: &Fs, caller: &Caller, ino: u64, name: &OsStr, size: u32, reply: ReplyXattr) {
    let fact = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).map(str::to_owned);
    let (Some(fact), Some(Place::Lock(place))) = (fact, fs.place(ino)) else {
        return reply.error(absent(name));
    };
    fs.view(caller, Act::GetXattr, &place.name, move |_, _, view| match view {
        Ok(view) => match value_of(&fact, &view) {
            Some(value) => sized(reply, value.as_bytes(), size),
            None => reply.error(Errno::ENODATA),
        },
        Err(errno) => reply.error(errno),
    });
}

/// listxattr.
pub(crate) fn list(fs: &Fs, caller: &Caller, ino: u64, size: u32, reply: ReplyXattr) {
    let Some(Place::Lock(place)) = fs.place(ino) else { return sized(reply, b"", size) };
    fs.view(caller, Act::GetXattr, &place.name, move |_, _, view| match view {
        Ok(view) => {
            let mut names = Vec::new();
            for fact in FACTS.into_iter().filter(|fact| value_of(fact, &view).is_some()) {
                names.extend_from_slice(PREFIX.as_bytes());
                names.extend_from_slice(fact.as_bytes());
                names.push(0);
            }
            sized(reply, &names, size);
        }
        Err(errno) => reply.error(errno),
    });
}

fn sized(reply: ReplyXattr, value: &[u8], size: u32) {
    match size {
        0 => reply.size(value.len() as u32),
        _ if value.len() > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}

/// setxattr: `ttl` renews, `note` is kept, and no other can be set.
pub(crate) fn set(
    fs: &Fs,
    caller: &Caller,
    ino: u64,
    name: &OsStr,
    value: &[u8],
    reply: ReplyEmpty,
) {
    let act = Act::SetXattr;
    let place = fs.place(ino);
    let lock = match &place {
        Some(Place::Lock(lock)) => Some(&lock.name),
        _ => None,
    };
    let refuse = |errno, sentence: String| fs.refuse_own(caller, act, lock, errno, sentence);
    let Some(fact) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
        let sentence = format!("only {PREFIX}ttl and {PREFIX}note can be set");
        return reply.error(refuse(Errno::ENOTSUP, sentence));
    };
    let text = String::from_utf8_lossy(value);
    let text = text.trim_end_matches('\0');
    let renewal = change::Change { renews: Some(Firm::Keep), ..Default::default() };
    let wanted = match fact {
        "ttl" => Ttl::parse(text.trim()).map_err(|error| error.to_string()).map(|ttl| {
            let times = change::Times::Reset;
            change::Change { ttl: Some(ttl), renews: Some(Firm::Make), times, ..renewal }
        }),
        "note" => message::checked_note(text).map(|note| change::Change {
            note: Some(note),
            renews: None,
            ..renewal
        }),
        _ => {
            let sentence = format!("{PREFIX}{fact} is for reading; set {PREFIX}ttl to renew");
            return reply.error(refuse(Errno::EPERM, sentence));
        }
    };
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(sentence) => {
            let shown = message::short(text);
            let sentence = format!("{PREFIX}{fact} can't be '{shown}': {sentence}");
            return reply.error(refuse(Errno::EINVAL, sentence));
        }
    };
    let Some(Place::Lock(place)) = place else {
        return reply.error(refuse(Errno::EPERM, "only locks have a ttl and a note".to_owned()));
    };
    let meant = change::meant_by_path(&place);
    change::apply(fs, caller, act, meant, wanted, move |_, _, done| match done {
        Ok(_) => reply.ok(),
        Err(errno) => reply.error(errno),
    });
}

/// removexattr: there is nothing that could be taken away.
pub(crate) fn remove(name: &OsStr) -> Errno {
    match name.to_str() {
        Some(name) if name.starts_with(PREFIX) => Errno::EPERM,
        _ => absent(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_differ_in_what_is_absent() {
        assert_eq!(absent(OsStr::new("user.mime_type")).code(), libc::ENODATA);
        assert_eq!(absent(OsStr::new("system.posix_acl_access")).code(), libc::ENOTSUP);
        assert_eq!(absent(OsStr::new("security.capability")).code(), libc::ENOTSUP);
        assert_eq!(remove(OsStr::new("user.latchfs.token")).code(), libc::EPERM);
    }
}
