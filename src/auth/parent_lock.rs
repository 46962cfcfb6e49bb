//! Decides whether a local user may create a name below a lock that is held.
//!
//! A lock `backup/x` appears inside the directory `backup`, and the holder of the lock `backup`
//! could not remove another user's `backup/x` from it. So the permission bits of a held lock decide
//! who may create names below it, as those of a directory do in other file systems. Below a name
//! that is not held every user may create names. The user id of a caller on another machine, or of
//! one with a bearer token, is unknown: only the name prefixes of its credentials restrict it.

use super::grant::Denial;
use crate::engine::{ClientId, FileAttrs, Lease, LockName};

/// The permission bits for write and search, as they stand for "others".
const WRITE: u16 = 0o3;

/// A user of this machine, as identified by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalUser {
    /// The user id.
    pub uid: u32,
    /// All groups of the user. `None`: the groups are unknown, and no right follows from them.
    pub groups: Option<Vec<u32>>,
    /// The host parts of client ids (`laptop1` in `laptop1:alice`) under which the mounts of this
    /// machine act. Locks of these hosts count as locks of this machine.
    pub hosts: Vec<ClientId>,
}

impl LocalUser {
    /// Checks whether this user may create `name` as `client`. `holders` hold the nearest ancestor
    /// of `name` that is held.
    pub fn may_make(
        &self,
        name: &LockName,
        client: &ClientId,
        holders: &[Lease],
    ) -> Result<(), Denial> {
        let Some(first) = holders.first() else { return Ok(()) };
        let holds = holders.iter().any(|lease| lease.holder == *client);
        let may = holds || self.may_write(first);
        may.then_some(()).ok_or_else(|| Denial::Below(name.clone()))
    }

    /// Whether the permission bits of a held lock let this user create names below it. Uids of
    /// different machines are unrelated: for a lock of another machine, all users including root
    /// are "others", as with root squash on NFS.
    fn may_write(&self, lease: &Lease) -> bool {
        let looks = lease.details.looks();
        let bits = FileAttrs::permissions(looks.face, looks.mode);
        let writes = |bits: u16| bits & WRITE == WRITE;
        if !self.hosts.iter().any(|host| lease.holder.is_of_host(host)) {
            return writes(bits);
        }
        match &self.groups {
            _ if self.uid == 0 => true,
            _ if looks.uid == self.uid => writes(bits >> 6),
            Some(groups) if groups.contains(&looks.gid) => writes(bits >> 3),
            Some(_) => writes(bits),
            None => writes(bits >> 3) && writes(bits),
        }
    }
}

/// Whether [`LocalUser::may_make`] depends on the groups of the user if a lock is held by
/// `holders`.
pub fn depends_on_groups(holders: &[Lease]) -> bool {
    holders.first().is_some_and(|lease| {
        let looks = lease.details.looks();
        let bits = FileAttrs::permissions(looks.face, looks.mode);
        (bits >> 3) & WRITE != bits & WRITE
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Details, FileType, Lifetime, Ownership, SessionId, Token};
    use crate::time::Time;
    use std::sync::Arc;

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    /// Returns a lease on a directory that belongs to user 7 and group 70.
    fn held(holder: &str, mode: u16) -> Lease {
        let (face, mode) = (FileType::Directory, mode | FileAttrs::MODE_CHOSEN);
        let looks = FileAttrs { face, mode, uid: 7, gid: 70, ..FileAttrs::default() };
        Lease {
            holder: client(holder),
            token: Token::named(1),
            hold: Ownership::Exclusive(None),
            life: Lifetime::Session(SessionId::named(1)),
            acquired_at: Time::ZERO,
            renewed_at: Time::ZERO,
            acquisition: 0,
            details: Arc::new(Details::default().with_looks(looks)),
        }
    }

    fn user(uid: u32, groups: Option<&[u32]>) -> LocalUser {
        let groups = groups.map(<[u32]>::to_vec);
        LocalUser { uid, groups, hosts: vec![client("box"), client("box2")] }
    }

    #[track_caller]
    fn decides(user: &LocalUser, who: &str, lease: &Lease, expected: bool) {
        let name = LockName::parse("backup/x").expect("valid");
        let may = user.may_make(&name, &client(who), std::slice::from_ref(lease));
        let denied = Err(Denial::Below(name));
        assert_eq!(may, if expected { Ok(()) } else { denied }, "{user:?} as {who}: {lease:?}");
    }

    #[test]
    fn anybody_may_create_below_a_free_name() {
        let name = LockName::parse("backup/x").expect("valid");
        assert_eq!(user(8, None).may_make(&name, &client("box:bob"), &[]), Ok(()));
    }

    #[test]
    fn permission_bits_decide() {
        let (alice, bob) = (user(7, Some(&[71])), user(8, Some(&[80])));
        let (member, unknown) = (user(8, Some(&[80, 70])), user(8, None));
        for (mode, alices, bobs, members, unknowns) in [
            (0o755, true, false, false, false),
            (0o777, true, true, true, true),
            (0o775, true, false, true, false),
            (0o707, true, true, false, false),
            (0o077, false, true, true, true),
            (0o666, false, false, false, false),
        ] {
            let lease = held("box:alice", mode);
            // The clients `box:alice` and `box:alice2` both belong to the user id 7. The permission
            // bits restrict only `box:alice2`, since `box:alice` holds the lock.
            decides(&alice, "box:alice2", &lease, alices);
            decides(&alice, "box:alice", &lease, true);
            decides(&bob, "box:bob", &lease, bobs);
            decides(&member, "box:bob", &lease, members);
            decides(&unknown, "box:bob", &lease, unknowns);
            decides(&user(0, None), "box:root", &lease, true);
        }
        assert!(depends_on_groups(&[held("box:alice", 0o775)]));
        assert!(!depends_on_groups(&[held("box:alice", 0o755)]));
    }

    #[test]
    fn local_users_are_others_to_a_lock_of_another_machine() {
        let lease = held("boxes:alice", 0o755);
        decides(&user(7, None), "box:alice", &lease, false);
        decides(&user(0, None), "box:root", &lease, false);
        decides(&user(0, None), "box:root", &held("boxes:alice", 0o757), true);
        decides(&user(0, None), "box:root", &held("box2:alice", 0o755), true);
    }
}
