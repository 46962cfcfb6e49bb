//! The rights of a caller to the folder of a view, and the request of `guard give`.

use super::super::tenure::{Owner, TenureId};
use super::super::tenures::GuardState;
use super::folder_view::FolderView;
use crate::auth::{FolderAct, FolderUser, TenureOf};
use crate::fuse::kernel::file_system::Requester;
use crate::fuse::kernel::own_user::own_uid;
use crate::fuse::kernel::task::pending;
use crate::holder_id::LoginSession;
use crate::time::Wall;
use std::path::Path;

/// The current tenure.
#[derive(Debug, Clone, Copy)]
struct OwnedTenure {
    id: TenureId,
    owner: Owner,
    /// Since when programs of the owner may write.
    since: Option<Wall>,
}

/// Returns the tenure of a state; `None` if there is none, or if it is about to end.
const fn owned(state: &GuardState) -> Option<OwnedTenure> {
    match *state {
        GuardState::Arriving(id, owner) => Some(OwnedTenure { id, owner, since: None }),
        GuardState::Holding(id, owner, since) => {
            Some(OwnedTenure { id, owner, since: Some(since) })
        }
        GuardState::Reading | GuardState::Asking | GuardState::Yielding(_) => None,
    }
}

/// Returns the name of the program that began a login session, in brackets; nothing if it has
/// ended.
fn leader_name(session: LoginSession) -> String {
    let path = format!("/proc/{}/comm", session.leader.pid);
    let name = std::fs::read(Path::new(&path)).unwrap_or_default();
    let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
    if name.is_empty() { name } else { format!(" ({name})") }
}

/// Returns the refusal to take the lock from a login session that the caller does not name.
fn held_by(session: LoginSession, since: Option<Wall>) -> String {
    let (name, pid) = (leader_name(session), session.leader.pid);
    let since = since.map(|since| format!(" since {}", since.to_minute())).unwrap_or_default();
    format!(
        "{session}{name} holds the lock of this folder{since}; wait until it gives the lock up, or \
         take the lock from it with 'latchfs guard give --from {pid}'"
    )
}

impl FolderView {
    /// Returns a caller with its relation to a tenure of this owner.
    fn user_beside(who: Requester, owner: Option<Owner>) -> FolderUser {
        let tenure = match owner {
            None | Some(Owner::Host) => TenureOf::Nobody,
            Some(owner) if Self::is_of(owner, who) => TenureOf::Caller,
            Some(Owner::Session(session)) if session.uid == who.uid => TenureOf::SameUser,
            Some(_) => TenureOf::Nobody,
        };
        FolderUser { uid: who.uid, guard: own_uid(), tenure }
    }

    /// Returns a caller with its relation to the current tenure.
    pub(super) fn user(&self, who: Requester) -> FolderUser {
        Self::user_beside(who, owned(&self.tenures.state()).map(|owned| owned.owner))
    }

    /// Gives the lock up: that of another login session only if the caller names the session, by
    /// the pid of its leader.
    pub(super) async fn give_request(
        &self,
        who: Requester,
        from: Option<u32>,
    ) -> Result<(), String> {
        let current = owned(&self.tenures.state());
        Self::user_beside(who, current.map(|owned| owned.owner)).check(FolderAct::Give)?;
        if let Some(OwnedTenure { owner: owner @ Owner::Session(session), since, .. }) = current
            && !Self::is_of(owner, who)
            && from != Some(session.leader.pid)
        {
            return Err(held_by(session, since));
        }
        self.tenures.uses.check_unused()?;
        let (promise, given) = pending();
        // Another tenure may have begun meanwhile.
        self.tenures.give(current.map(|owned| owned.id), move || promise.keep(()));
        given.await;
        Ok(())
    }

    /// Whether the answer to an act may name all files.
    pub(super) fn sees_names(&self, who: Requester, act: FolderAct) -> bool {
        self.user(who).sees_names(act, || self.owner_of_folder())
    }
}
