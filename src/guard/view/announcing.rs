//! Changes wait until the lock service has a handover that announces them: a machine that takes the
//! folder over then knows that the last markers do not name everything.

use super::super::staged_file::SaveState;
use super::super::wish::Denied;
use super::folder_view::{FolderView, MayWait};
use super::kernel_wait::KernelWait;
use super::open_file::OpenFile;
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::user_shares::Pool;
use crate::fuse::kernel::values::{Errno, Requester};
use crate::time::Span;
use std::path::Path;

/// How long a change waits at most until it is announced.
const ANNOUNCE_PATIENCE: Span = Span::from_secs(10);
/// How long it waits if a directory is locked in the kernel meanwhile.
const BRIEF_PATIENCE: Span = Span::from_secs(1);

impl FolderView {
    /// Waits until the lock service has a handover that announces changes.
    pub(super) async fn announce(
        &self,
        who: Requester,
        path: &Path,
        may_wait: MayWait,
    ) -> Done<()> {
        if let Err(full) = self.shares.room(Pool::Threads, who.uid) {
            return Err(self.say(who, path, Errno::ENFILE, &full));
        }
        let (wait, announced) = KernelWait::new();
        if who.pid != 0 {
            self.interrupts.watch(self.numbers.next(), who.pid, wait.clone());
        }
        let patience = match may_wait {
            MayWait::Long => ANNOUNCE_PATIENCE,
            MayWait::Briefly => BRIEF_PATIENCE,
        };
        self.tenures.announced(patience, Box::new(move |answer| wait.keep(answer)));
        match announced.await {
            None => Err(Errno::EINTR),
            Some(Ok(())) => Ok(()),
            Some(Err(Denied { sentence })) => Err(self.say(who, path, Errno::EROFS, &sentence)),
        }
    }

    /// Whether a change of an open file has to be announced first. `publishes`: the change is that
    /// the file appears in the folder. New content of one that is not there yet is no change.
    fn is_unannounced(&self, open: &OpenFile, publishes: bool) -> bool {
        if open.tenure.is_none() || !self.guard.gate().must_announce() {
            return false;
        }
        let is_current = self.guard.gate().tenure().map(|tenure| tenure.id) == open.tenure;
        let state = open.saving().map(|saving| saving.staged.save_state());
        is_current && (state == Some(SaveState::Unpublished)) == publishes
    }

    /// Waits until a change of an open file is announced.
    pub(super) async fn announce_open(
        &self,
        who: Requester,
        open: &OpenFile,
        publishes: bool,
    ) -> Done<()> {
        if !self.is_unannounced(open, publishes) {
            return Ok(());
        }
        let path = self.nodes.path(open.ino).unwrap_or_default();
        self.announce(who, &path, MayWait::Long).await
    }

    /// Calls `then` once the publish of a file, of which no program waits for the end, is announced
    /// or can't be.
    pub(super) fn announce_release(
        &self,
        open: &OpenFile,
        then: impl FnOnce(&Self) + Send + 'static,
    ) {
        let own = self.own.upgrade().filter(|_| self.is_unannounced(open, true));
        match own {
            None => then(self),
            Some(own) => {
                let then = move |_| then(&own);
                self.tenures.announced(ANNOUNCE_PATIENCE, Box::new(then));
            }
        }
    }

    /// Fails if a change is not announced. The caller has passed the gate.
    pub(super) fn check_announced(&self, who: Requester, path: &Path) -> Done<()> {
        if self.guard.gate().must_announce() { Err(self.unannounced(who, path)) } else { Ok(()) }
    }

    pub(super) fn unannounced(&self, who: Requester, path: &Path) -> Errno {
        let why = "the lock service was told meanwhile that nothing changes any more; try again";
        self.say(who, path, Errno::EROFS, why)
    }

    /// Logs that a file is about to be changed in place by an open file, once for each marker.
    pub(super) fn log_in_place(&self, who: Requester, open: &OpenFile, path: &Path) -> Done<()> {
        let (Some(barrier), Some(file)) = (self.guard.barrier(), open.file()) else {
            return Ok(());
        };
        if open.logged.load(std::sync::atomic::Ordering::Acquire) == barrier.epoch() {
            return Ok(());
        }
        let epoch = self.log_in_place_of(who, path, file)?;
        open.logged.store(epoch, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// Logs that a file is about to be changed in place. Returns the number of the list that names
    /// the change.
    pub(super) fn log_in_place_of(
        &self,
        who: Requester,
        path: &Path,
        file: &impl std::os::fd::AsFd,
    ) -> Done<u64> {
        let Some(barrier) = self.guard.barrier() else { return Ok(0) };
        self.check_announced(who, path)?;
        let found = super::super::linux_disk::stat(file.as_fd());
        let logged = found.and_then(|found| {
            let found = super::super::linux_disk::look_in(&found);
            barrier.begin_in_place(path.as_os_str(), &found)
        });
        logged.map_err(|error| {
            self.say(
                who,
                path,
                super::folder_view::errno(&error),
                &format!("the change can't be logged: {}", crate::os_error::said(&error)),
            )
        })
    }

    /// Logs how changes in place have left a file.
    pub(super) fn log_left(&self, open: &OpenFile, found: &super::super::disk::Look) {
        if let Some(barrier) = self.guard.barrier()
            && let Ok(path) = self.nodes.path(open.ino)
        {
            barrier.end_in_place(path.as_os_str(), found);
        }
    }
}
