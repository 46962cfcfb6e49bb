//! The file that names the session of a guard, so that a restarted guard can end it.

use super::folder_lock::FolderLock;
use crate::engine::{EndSession, Op, SessionEnd, SessionId};
use crate::time::this_boot;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a start waits for the end of an earlier guard's session.
const END_PATIENCE: Duration = Duration::from_secs(5);

impl FolderLock {
    /// Ends the session of an earlier guard of this folder on this machine, which was killed. A
    /// session of another boot is left to expire: a cloned machine has a copy of the record.
    pub(crate) fn end_previous(&self) {
        let text = fs::read_to_string(&self.record).unwrap_or_default();
        let Some((session, boot)) = text.trim().split_once(' ') else { return };
        let (Ok(session), Ok(boot)) = (session.parse(), boot.parse::<u128>()) else { return };
        if boot != this_boot() && !self.locks.answers_at_once() {
            return;
        }
        let (send, ended) = std::sync::mpsc::channel();
        let end = EndSession { session: SessionId::named(session), end: SessionEnd::Closed };
        self.locks.submit(Op::EndSession(end), move |answer| send.send(answer).unwrap_or_default());
        if let Ok(Ok(Ok(_))) = ended.recv_timeout(END_PATIENCE) {
            log::info!("ended session {session} of an earlier guard");
        }
    }

    /// Records the session to which the lock is going to be bound.
    pub(super) fn note_session(&self, session: SessionId) {
        let text = format!("{} {}\n", session.as_u64(), this_boot());
        if let Err(error) = fs::write(&self.record, text) {
            let path = self.record.display();
            log::warn!("{path} can't be written, so a restart waits for the lease to end: {error}");
        }
    }

    /// Returns the directory of this machine in the state directory.
    pub(super) fn state_dir(&self) -> Option<&Path> {
        self.record.parent()
    }

    /// Returns the number of the session that keeps the lock, if there is one.
    pub(super) fn held_session(&self) -> Option<u64> {
        Some(self.session.load(Ordering::Acquire)).filter(|session| *session > 0)
    }
}
