//! The last refusals of changes, which programs read in `.latchfs/why`. Each names the class of the
//! error, as the table of errors in the chapter on commands has them.

use crate::engine::RefusalKind;
use crate::fuse::kernel::file_system::Errno;
use parking_lot::Mutex;
use std::collections::HashMap;

/// The maximum number of users whose last refusal is kept.
const USERS_MAX: usize = 1_024;

/// The last refusal of each user.
#[derive(Debug, Default)]
pub(super) struct RefusedChanges(Mutex<HashMap<u32, LastRefusal>>);

#[derive(Debug, Default)]
struct LastRefusal {
    sentence: Option<String>,
    /// What a later lookup has found that the kernel itself refuses to make again, so that the
    /// guard does not hear of the refusal.
    met: Option<String>,
}

/// Returns a sentence with the class of the error at its end, unless it names one.
pub(super) fn classed(errno: Errno, sentence: &str) -> String {
    if sentence.contains("(E_") {
        return sentence.to_owned();
    }
    format!("{sentence} ({})", class_of(errno.code()).as_str())
}

const fn class_of(errno: i32) -> RefusalKind {
    match errno {
        libc::EROFS => RefusalKind::LockNotHeld,
        libc::ESTALE => RefusalKind::FencingMismatch,
        libc::EEXIST | libc::EBUSY | libc::EAGAIN | libc::ETXTBSY => RefusalKind::LockConflict,
        libc::EPERM | libc::EACCES => RefusalKind::Denied,
        libc::ETIME => RefusalKind::ClockSkewExceeded,
        libc::ETIMEDOUT | libc::EIO => RefusalKind::ConsistencyUnavailable,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::ENFILE | libc::EMFILE | libc::EMLINK => {
            RefusalKind::Limit
        }
        _ => RefusalKind::Invalid,
    }
}

impl RefusedChanges {
    /// Records why a change of the user `uid` was refused.
    pub(super) fn record(&self, uid: u32, sentence: String) {
        log::info!("refused for uid {uid}: {sentence}");
        self.update(uid, |last| {
            *last = LastRefusal { sentence: Some(sentence), met: None };
        });
    }

    /// Records what a lookup of the user `uid` has found.
    pub(super) fn met(&self, uid: u32, sentence: String) {
        self.update(uid, |last| last.met = Some(sentence));
    }

    fn update(&self, uid: u32, change: impl FnOnce(&mut LastRefusal)) {
        let mut last = self.0.lock();
        if last.len() >= USERS_MAX && !last.contains_key(&uid) {
            last.clear();
        }
        change(last.entry(uid).or_default());
    }

    /// Returns the last refusal of a user as a sentence.
    pub(super) fn last(&self, uid: u32) -> String {
        let last = self.0.lock();
        last.get(&uid).and_then(|last| last.sentence.clone()).unwrap_or_default()
    }

    /// Returns the last refusal of a user as a line, and those of all others if the user sees all.
    pub(super) fn text(&self, uid: u32, sees_all: bool) -> String {
        let last = self.0.lock();
        let lines = |last: &LastRefusal| {
            let lines = last.sentence.iter().chain(&last.met);
            lines.flat_map(|sentence| [sentence.as_str(), "\n"]).collect::<String>()
        };
        let own = last.get(&uid).map(lines).unwrap_or_default();
        if !sees_all {
            return own;
        }
        let mut others: Vec<_> = last.iter().filter(|(other, _)| **other != uid).collect();
        others.sort_unstable_by_key(|(other, _)| **other);
        let sentences = others.into_iter().filter_map(|(other, last)| {
            last.sentence.as_ref().map(|sentence| format!("uid {other}: {sentence}\n"))
        });
        own + &sentences.collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_reads_its_own_refusal_and_root_all() {
        let refused = RefusedChanges::default();
        refused.record(5, "a".to_owned());
        refused.record(6, "b".to_owned());
        let own = |uid| refused.text(uid, false);
        assert_eq!((own(5), own(7)), ("a\n".to_owned(), String::new()));
        assert_eq!((refused.last(5), refused.last(7)), ("a".to_owned(), String::new()));
        assert_eq!(refused.text(0, true), "uid 5: a\nuid 6: b\n");
        refused.met(5, "met".to_owned());
        assert_eq!(own(5), "a\nmet\n");
        refused.record(5, "b".to_owned());
        assert_eq!(own(5), "b\n", "a lookup before the refusal says nothing");
        (10..5_000).for_each(|uid| refused.record(uid, "c".to_owned()));
        assert!(refused.0.lock().len() <= USERS_MAX);
    }

    #[test]
    fn each_refusal_names_its_class() {
        let class = |errno: i32, sentence: &str| classed(Errno::from_i32(errno), sentence);
        assert_eq!(class(libc::EROFS, "no"), "no (E_LOCK_NOT_HELD)");
        assert_eq!(class(libc::ESTALE, "no"), "no (E_FENCING_MISMATCH)");
        assert_eq!(class(libc::ESTALE, "no (E_LOCK_EXPIRED)"), "no (E_LOCK_EXPIRED)");
    }
}
