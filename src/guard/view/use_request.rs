//! The requests of `latchfs run --guard`, by which the guard learns of a program that must end
//! before the lock is given up.

use super::super::guard_request::{GuardRequest, refused};
use super::control_files::ControlHandle;
use super::folder_view::FolderView;
use crate::auth::FolderAct;
use crate::fuse::kernel::task::pending;
use serde_json::Value;

impl FolderView {
    /// Carries out a request that begins or ends the use of the lock by the program that has this
    /// file open. Returns the answer as JSON; `None` if it is another request.
    pub(super) async fn use_request(
        &self,
        handle: &ControlHandle,
        request: &[u8],
    ) -> Option<Value> {
        let done = match GuardRequest::parse(request) {
            Ok(GuardRequest::Use(token)) => self.begin_use(handle, token).await,
            Ok(GuardRequest::EndUse { token, gives }) => self.end_use(handle, (token, gives)).await,
            _ => return None,
        };
        Some(done.map_or_else(refused, |()| self.status(handle.who)))
    }

    async fn begin_use(&self, handle: &ControlHandle, token: u64) -> Result<(), String> {
        let who = handle.who;
        self.user(who).check(FolderAct::Use)?;
        let is_of = |owner| Self::is_of(owner, who);
        let (promise, begun) = pending();
        if self.guard.gate().tenure().is_some_and(|open| is_of(open.owner)) {
            self.tenures.begin_use((who.pid, token), move |begun| promise.keep(begun));
            *handle.lock_use.lock() = begun.await.flatten();
        }
        let is_begun = handle.lock_use.lock().is_some();
        let over = || "the lock was lost or given up meanwhile; try again".to_owned();
        if is_begun { Ok(()) } else { Err(over()) }
    }

    /// Ends the use. Gives the lock up as well, if a program took it for its use and no other one
    /// uses it any more.
    async fn end_use(
        &self,
        handle: &ControlHandle,
        (token, gives): (u64, bool),
    ) -> Result<(), String> {
        self.user(handle.who).check(FolderAct::EndUse)?;
        let ended = handle.lock_use.lock().take();
        if ended.is_some() {
            drop(ended);
            let (promise, released) = pending();
            self.tenures.give_unused((token, gives), move || promise.keep(()));
            released.await;
        }
        Ok(())
    }
}
