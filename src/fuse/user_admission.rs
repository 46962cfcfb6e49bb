//! The shares of local users in the locks, queues and sessions of the engine of a mount.
//!
//! Root and the user who mounted have no share of their own: they could end the daemon as well.
//! Behind a server, the server limits the mount as a whole.

use crate::auth::{ClientPattern, EngineShares, Grant};
use crate::engine::{ClientId, Op};
use crate::fuse::credentials::client_of_user;
use crate::fuse::kernel::own_user::own_uid;
use crate::fuse::mount_config::{MountConfig, Owner};
use crate::service::Locks;
use std::sync::Arc;

/// Returns a handle on `service` that lets each user of a mount take a share only.
pub(crate) fn limited(service: &Locks, config: &MountConfig) -> Locks {
    if config.owner == Owner::Host {
        // All users are one client, and each may release the locks of all.
        return service.clone();
    }
    let shares = EngineShares::new(config.share);
    let free = [0, own_uid()].map(|uid| client_of_user(&config.client, uid));
    let (host, owner) = (config.client.clone(), config.owner);
    service.admitting(Arc::new(move |op, engine| {
        let Some(client) = client_of(op) else { return Ok(()) };
        if *client == host || free.iter().any(|free| client.belongs_to(free)) {
            return Ok(());
        }
        shares.check(&grant_of(client, owner), op, engine)
    }))
}

const fn client_of(op: &Op) -> Option<&ClientId> {
    match op {
        Op::Acquire(ask) => Some(&ask.client),
        Op::Steal(ask) => Some(&ask.client),
        Op::OpenSession(ask) => Some(&ask.client),
        _ => None,
    }
}

/// Returns a grant for all clients of the user behind `client`.
fn grant_of(client: &ClientId, owner: Owner) -> Grant {
    let client = client.as_str();
    let user = match owner {
        // The last part is the login session.
        Owner::Session => client.rsplit_once(':').map_or(client, |(user, _)| user),
        Owner::Host | Owner::User => client,
    };
    let clients =
        vec![ClientPattern::Exactly(user.to_owned()), ClientPattern::Beginning(format!("{user}:"))];
    Grant { name: user.to_owned(), ..Grant::of_user(0, clients, false) }
}
