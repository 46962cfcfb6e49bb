//! The entry points of the FUSE front end: mounts the locks of a service on a directory.

use crate::auth::{ClientPattern, Grant};
use crate::engine::ClientId;
use crate::fuse::credentials;
use crate::fuse::kernel::own_user::own_uid;
use crate::fuse::kernel::session::{self, MountRequest};
use crate::fuse::kernel::session_kind::SessionKind;
use crate::fuse::lock_fs::LockFs;
use crate::service::Locks;

pub use crate::fuse::kernel::mount_error::MountError;
pub use crate::fuse::kernel::session::{Mounted, Unmounted, check};
pub use crate::fuse::mount_config::{Content, HoldBy, MountConfig, Owner, Users};

/// Mounts latchfs at `config.dir`, and serves the locks on a thread of its own until the directory
/// is unmounted.
pub fn mount(locks: &Locks, config: &MountConfig) -> Result<Mounted, MountError> {
    let MountConfig { dir, users, nonempty, .. } = config;
    let kind = SessionKind::LOCKS;
    let wanted = MountRequest { dir, users: *users, nonempty: *nonempty, kind };
    session::mount(wanted, |found| {
        let config = MountConfig { dir: found.dir.clone(), ..config.clone() };
        LockFs::new(locks, &config, found.follows_symlinks)
    })
}

/// Returns the client of this process's user, as a mount with the host name `host` names it.
pub fn client_of_user(host: &ClientId) -> ClientId {
    credentials::client_of_user(host, own_uid())
}

/// Returns the rights over HTTP that a user of this machine has through the given mounts; `None` if
/// no mount serves that user.
pub fn grant_of_user(mounts: &[MountConfig], uid: u32) -> Option<Grant> {
    if uid == 0 || uid == own_uid() {
        let anybody = vec![ClientPattern::Beginning(String::new())];
        return Some(Grant::of_user(uid, anybody, true));
    }
    let serving = mounts.iter().filter(|mount| mount.users == Users::All);
    let clients = serving.map(|mount| {
        let own = || credentials::client_of_user(&mount.client, uid).to_string();
        match mount.owner {
            Owner::Host => ClientPattern::Exactly(mount.client.to_string()),
            Owner::User => ClientPattern::Exactly(own()),
            Owner::Session => ClientPattern::Beginning(format!("{}:", own())),
        }
    });
    let clients: Vec<_> = clients.collect();
    (!clients.is_empty()).then(|| Grant::of_user(uid, clients, false))
}
