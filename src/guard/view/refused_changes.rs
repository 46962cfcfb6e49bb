//! The last refusals of changes, which programs read in `.latchfs/why`.

use parking_lot::Mutex;
use std::collections::HashMap;

/// The maximum number of users whose last refusal is kept.
const USERS_MAX: usize = 1_024;

/// The last refusal of each user.
#[derive(Debug, Default)]
pub(super) struct RefusedChanges(Mutex<HashMap<u32, String>>);

impl RefusedChanges {
    /// Records why a change of the user `uid` was refused.
    pub(super) fn record(&self, uid: u32, sentence: String) {
        log::info!("refused for uid {uid}: {sentence}");
        let mut last = self.0.lock();
        if last.len() >= USERS_MAX && !last.contains_key(&uid) {
            last.clear();
        }
        last.insert(uid, sentence);
    }

    /// Returns the last refusal of a user as a line; for root the refusals of all users.
    pub(super) fn text(&self, uid: u32) -> String {
        let last = self.0.lock();
        let own = last.get(&uid).map(|sentence| format!("{sentence}\n")).unwrap_or_default();
        if uid != 0 {
            return own;
        }
        let mut others: Vec<_> = last.iter().filter(|(other, _)| **other != 0).collect();
        others.sort();
        let lines =
            others.into_iter().map(|(other, sentence)| format!("uid {other}: {sentence}\n"));
        own + &lines.collect::<String>()
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
        assert_eq!((refused.text(5), refused.text(7)), ("a\n".to_owned(), String::new()));
        assert_eq!(refused.text(0), "uid 5: a\nuid 6: b\n");
        (10..5_000).for_each(|uid| refused.record(uid, "c".to_owned()));
        assert!(refused.0.lock().len() <= USERS_MAX);
    }
}
