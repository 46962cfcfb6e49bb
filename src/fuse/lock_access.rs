//! The file system's access to the lock service: each call is a future, and failures are recorded
//! for `.latchfs/why`.
//!
//! The shares of local users in the locks, queues and sessions of the engine of a mount.
//!
//! Root and the user who mounted have no share of their own: they could end the daemon as well.
//! Behind a server, the server limits the mount as a whole.

use crate::auth::{ClientPattern, EngineShares, Grant};
use crate::engine::{Child, ClientId, LockName, LockView, Op, Outcome};
use crate::fuse::credentials::{Caller, client_of_user};
use crate::fuse::kernel::file_system::Errno;
use crate::fuse::kernel::machine_facts::own_uid;
use crate::fuse::mount_config::{ClientScope, MountConfig};
use crate::fuse::refusals::{Act, Refusals};
use crate::service::{
    CacheableView, Children, List, ListPage, ListedNames, LockService, ParentCheck, RequestError,
    Retry, Unavailable,
};
use futures_util::future::join_all;
use std::sync::Arc;

/// The lock service, as file operations use it.
#[derive(Clone)]
pub(crate) struct LockAccess {
    service: Arc<dyn LockService>,
    refusals: Arc<Refusals>,
}

impl LockAccess {
    /// Returns access to the lock service `service` that records failures in `refusals`.
    pub(crate) const fn new(service: Arc<dyn LockService>, refusals: Arc<Refusals>) -> Self {
        Self { service, refusals }
    }

    /// Returns the lock service itself.
    pub(crate) const fn service(&self) -> &Arc<dyn LockService> {
        &self.service
    }

    /// Returns the record of refusals, which `.latchfs/why` and the metrics show.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Submits a command to the service, and waits for its outcome.
    pub(crate) async fn decide(&self, op: Op) -> Result<Outcome, RequestError> {
        self.decide_checked(op, None).await
    }

    /// Submits a command that the lock service executes only if `check` allows it, a check of the
    /// permissions on held locks above the name. Waits for the outcome.
    pub(crate) async fn decide_checked(
        &self,
        op: Op,
        check: Option<ParentCheck>,
    ) -> Result<Outcome, RequestError> {
        self.service.submit_checked(op, check).outcome().await
    }

    /// Submits a command to the lock service, and waits for its outcome. On failure, records the
    /// refusal and returns its errno.
    pub(crate) async fn submit(
        &self,
        caller: &Caller,
        act: Act,
        name: &LockName,
        op: Op,
    ) -> Result<Outcome, Errno> {
        self.submit_checked(caller, act, name, op, None).await
    }

    /// Submits a command that the lock service executes only if `check` allows it, a check of the
    /// permissions on held locks above the name. Waits for the outcome. On failure, records the
    /// refusal and returns its errno.
    pub(crate) async fn submit_checked(
        &self,
        caller: &Caller,
        act: Act,
        name: &LockName,
        op: Op,
        check: Option<ParentCheck>,
    ) -> Result<Outcome, Errno> {
        let decided = self.decide_checked(op, check).await;
        decided.map_err(|failure| self.refusals.failed(caller, act, Some(name), failure))
    }

    /// Returns the current state of a lock.
    pub(crate) async fn view_of(&self, name: &LockName) -> Result<LockView, Unavailable> {
        self.service.view(name, Retry::Never).await.map(|seen| seen.view)
    }

    /// Returns the current state of a lock. If the lock service gives no answer, records the
    /// failure and returns its errno.
    pub(crate) async fn view(
        &self,
        caller: &Caller,
        act: Act,
        name: &LockName,
    ) -> Result<LockView, Errno> {
        let view = self.view_of(name).await;
        view.map_err(|why| self.unavailable(caller, act, name, why))
    }

    /// Returns the current states of several locks, in the order of `names`.
    pub(crate) async fn views(
        &self,
        caller: &Caller,
        act: Act,
        names: &[LockName],
    ) -> Result<Vec<LockView>, Errno> {
        let views = join_all(names.iter().map(|name| self.view(caller, act, name))).await;
        views.into_iter().collect()
    }

    /// Returns the current state of a lock for the kernel to cache, with the number of the first
    /// event that this state may not include. If the lock service gives no answer, records the
    /// failure and returns its errno.
    pub(crate) async fn seen(
        &self,
        caller: &Caller,
        act: Act,
        name: &LockName,
    ) -> Result<CacheableView, Errno> {
        let seen = self.service.view(name, Retry::Never).await;
        seen.map_err(|why| self.unavailable(caller, act, name, why))
    }

    /// Whether `client` itself holds a lock below the name `name`.
    pub(crate) async fn holds_below(
        &self,
        name: &LockName,
        client: &ClientId,
    ) -> Result<bool, Unavailable> {
        self.service.holds_below(name, client).await
    }

    /// Returns a page of the list of all locks.
    pub(crate) async fn list(&self, query: List) -> Result<ListPage<LockView>, Unavailable> {
        self.service.list(ListedNames::InUse, query).await
    }

    /// Returns a page of the names directly below a name, as a directory shows them.
    pub(crate) async fn children(&self, query: Children) -> Result<ListPage<Child>, Unavailable> {
        self.service.children(query).await
    }

    fn unavailable(&self, caller: &Caller, act: Act, name: &LockName, why: Unavailable) -> Errno {
        self.refusals.failed(caller, act, Some(name), RequestError::Unavailable(why))
    }
}

/// Lets each user of a mount take only a share of `service`.
pub(crate) fn limit_users(service: &dyn LockService, config: &MountConfig) {
    if config.owner == ClientScope::Host {
        // All users are one client, and each may release the locks of all.
        return;
    }
    let shares = EngineShares::new(config.share);
    let free = [0, own_uid()].map(|uid| client_of_user(&config.client, uid));
    let (host, owner) = (config.client.clone(), config.owner);
    service.limit(Arc::new(move |op, engine| {
        let Some(client) = client_of(op) else { return Ok(()) };
        if *client == host || free.iter().any(|free| client.belongs_to(free)) {
            return Ok(());
        }
        shares.check(&grant_of(client, owner), op, engine)
    }));
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
fn grant_of(client: &ClientId, owner: ClientScope) -> Grant {
    let client = client.as_str();
    let user = match owner {
        // The last part of the client's name is the login session.
        ClientScope::Session => client.rsplit_once(':').map_or(client, |(user, _)| user),
        ClientScope::Host | ClientScope::User => client,
    };
    let clients =
        vec![ClientPattern::Exactly(user.to_owned()), ClientPattern::Beginning(format!("{user}:"))];
    Grant { name: user.to_owned(), ..Grant::of_user(0, clients, false) }
}
