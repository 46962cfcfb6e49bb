//! Commands that create a name below another lock, which are decided only if the holders of that
//! lock permit the caller; and the names below a lock that is to be removed.

use super::call::Call;
use super::lock_service::{LockService, Retry};
use super::paging::{List, ListedNames};
use crate::engine::{
    Answer, ClientId, Command, Engine, Lease, LeaseKey, LockName, LockView, Op, Outcome, Release,
};
use crate::service::unavailable::Unavailable;
use futures_util::future::try_join_all;
use std::fmt;
use std::sync::Arc;

/// The maximum number of locks below a lock that are examined before that lock is removed: one
/// page. Only the caller's own locks block the removal; other clients may hold any number of locks
/// below it.
const BELOW_MAX: usize = 1_000;

/// A check that permits or denies a command, given the holders of the nearest held lock above its
/// name. The error is the reason for the denial.
type Allows = dyn Fn(&[Lease]) -> Result<(), Arc<str>> + Send + Sync;

/// A condition on a command that creates a name below other names: the holders of the nearest held
/// lock above that name must permit the caller. A client that already holds the name or waits for
/// it needs no permission.
#[derive(Clone)]
pub struct ParentCheck {
    name: LockName,
    client: ClientId,
    allows: Arc<Allows>,
}

impl ParentCheck {
    /// Returns the condition under which `op` may be decided, or `None` if `op` creates no name
    /// below other names. The check that `allows` returns is called with the name, the client that
    /// creates it, and the holders of the nearest held lock above.
    pub fn of<F>(op: &Op, allows: impl FnOnce(&LockName) -> F) -> Option<Self>
    where
        F: Fn(&LockName, &ClientId, &[Lease]) -> Result<(), Arc<str>> + Send + Sync + 'static,
    {
        match op {
            Op::Acquire(ask) => Self::of_name(&ask.name, &ask.client, allows),
            Op::Move(ask) => Self::of_name(&ask.to, &ask.from.client, allows),
            _ => None,
        }
    }

    /// Returns the condition under which `client` may create `name`, or `None` if the name has only
    /// one part and so lies below no other name.
    pub fn of_name<F>(
        name: &LockName,
        client: &ClientId,
        allows: impl FnOnce(&LockName) -> F,
    ) -> Option<Self>
    where
        F: Fn(&LockName, &ClientId, &[Lease]) -> Result<(), Arc<str>> + Send + Sync + 'static,
    {
        name.parents().next()?;
        let (name, client, allows) = (name.clone(), client.clone(), allows(name));
        let asked = (name.clone(), client.clone());
        let allows = Arc::new(move |holders: &[Lease]| allows(&asked.0, &asked.1, holders));
        Some(Self { name, client, allows })
    }

    /// Checks, in the state of `engine`, whether the client may create the name: the holders of the
    /// nearest held lock above the name must permit it, unless the client already holds the name or
    /// waits for it.
    pub(super) fn allows(&self, engine: &Engine) -> Result<(), Unavailable> {
        if engine.involves(&self.name, &self.client) {
            return Ok(());
        }
        self.allows_below(engine.holders_above(&self.name))
    }

    /// Checks, by the views of locks, whether the client may create the name. `views` starts with
    /// the view of the name itself, followed by those of the names above it, nearest first.
    fn allows_seen(&self, views: &[LockView]) -> Result<(), Unavailable> {
        let involved = views.first().is_some_and(|own| own.involves(&self.client));
        if involved { Ok(()) } else { self.allows_below(&nearest(views)) }
    }

    fn allows_below(&self, holders: &[Lease]) -> Result<(), Unavailable> {
        (self.allows)(holders).map_err(|why| Unavailable::Denied { why })
    }
}

/// Two checks are equal only if they have the same name and share the same closure `allows`.
impl PartialEq for ParentCheck {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.allows, &other.allows)
    }
}

impl Eq for ParentCheck {}

impl fmt::Debug for ParentCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParentCheck").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns the holders of the nearest held lock above a name. `views` starts with the view of the
/// name itself, followed by the views of the names above it, nearest first.
fn nearest(views: &[LockView]) -> Vec<Lease> {
    let above = views.iter().skip(1).find(|view| !view.holders.is_empty());
    let holders = above.map(|view| view.holders.iter().map(|holder| holder.lease.clone()));
    holders.into_iter().flatten().collect()
}

impl dyn LockService {
    /// Returns an error unless the client in `check` may now create the name in `check` below
    /// another lock.
    pub async fn check_parent(&self, check: &ParentCheck) -> Result<(), Unavailable> {
        check.allows_seen(&self.lineage(&check.name).await?)
    }

    /// Whether `client` itself holds a lock below `name`, as far as one page shows.
    pub async fn holds_below(
        &self,
        name: &LockName,
        client: &ClientId,
    ) -> Result<bool, Unavailable> {
        let query = List { prefix: format!("{name}/"), after: None, limit: BELOW_MAX };
        let page = self.list(ListedNames::InUse, query).await?;
        Ok(page.items.iter().any(|lock| lock.held_by(client).is_some()))
    }

    /// Returns the views of a lock and of all locks above it, nearest first.
    async fn lineage(&self, name: &LockName) -> Result<Vec<LockView>, Unavailable> {
        let names = std::iter::once(name.clone()).chain(name.parents());
        let calls: Vec<_> = names.map(|name| self.view(&name, Retry::Never)).collect();
        let seen = try_join_all(calls).await?;
        Ok(seen.into_iter().map(|seen| seen.view).collect())
    }
}

/// Submits a command to a backend that cannot evaluate `check` in the step that decides the
/// command: the permission is checked before the command is submitted, and again after a lock was
/// granted. If another client took a lock above in between, the lock that was acquired is released
/// again, and the answer is a denial.
pub fn submit_in_steps(
    service: Arc<dyn LockService>,
    command: Command,
    check: Option<ParentCheck>,
) -> Call<Answer> {
    match check {
        None => service.submit(command, Retry::Never),
        Some(check) => Call::of_steps(submit_elsewhere(service, command, check)),
    }
}

async fn submit_elsewhere(
    service: Arc<dyn LockService>,
    command: Command,
    check: ParentCheck,
) -> Result<Answer, Unavailable> {
    service.check_parent(&check).await?;
    // Only after an acquire is the permission checked again. A move could not be undone if the
    // second check failed: another client may hold the old name by then.
    let acquires = matches!(command.op, Op::Acquire(_));
    let answer = service.submit(command, Retry::Never).await?;
    if acquires
        && let Ok(outcome) = &answer
        && let Outcome::Granted(tenure) = outcome.clone().first()
    {
        let token = Some(tenure.token);
        let key = LeaseKey { name: check.name.clone(), client: check.client.clone(), token };
        confirm(&service, key, &check).await?;
    }
    Ok(answer)
}

/// Checks again, after a lock was granted, whether the client may create its name. Releases the
/// lock if another client had taken a lock above the name before the grant and does not permit it.
async fn confirm(
    service: &Arc<dyn LockService>,
    granted: LeaseKey,
    check: &ParentCheck,
) -> Result<(), Unavailable> {
    // If the locks above the name can't be read, the grant stands: the client had the permission a
    // moment ago.
    let above = service.lineage(&granted.name).await.map(|views| nearest(&views));
    let above = above.unwrap_or_default();
    // A lock above the granted one whose token is higher was acquired after the grant. Its holder
    // found the name already in use, so the grant stands.
    let is_older = |lease: &Lease| granted.token.is_some_and(|token| lease.token < token);
    match check.allows_below(&above) {
        Err(denied) if above.iter().any(is_older) => {
            service.give_back(Op::Release(Release::of(granted)));
            Err(denied)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::Local;
    use super::super::lock_service::{CacheableView, LockService, Retry};
    use super::super::test_backends::{forward_status_to_engine, forward_to_engine};
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{Acquire, LeaseTerms, Refusal, Rules, Tenure};
    use common::task::block_on;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    fn acquire(lock: &str, who: &str) -> Op {
        Op::Acquire(Acquire::new(
            name(lock),
            client(who),
            LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
        ))
    }

    fn release(lock: &str, who: &str) -> Op {
        let key = LeaseKey { name: name(lock), client: client(who), token: None };
        Op::Release(Release::of(key))
    }

    /// Returns the condition that no other client holds the nearest lock above the name that `op`
    /// creates.
    fn closed(op: &Op) -> Option<ParentCheck> {
        ParentCheck::of(op, |_| {
            |_: &LockName, client: &ClientId, holders: &[Lease]| {
                let holds = |lease: &Lease| lease.holder == *client;
                let may = holders.is_empty() || holders.iter().any(holds);
                may.then_some(()).ok_or_else(|| "closed".into())
            }
        })
    }

    fn submit(locks: &Arc<dyn LockService>, op: Op) -> Result<Answer, Unavailable> {
        let check = closed(&op);
        locks.clone().submit_checked(op.into(), check).wait()
    }

    fn granted(answer: Result<Answer, Unavailable>) -> Tenure {
        match answer.expect("decided").map(Outcome::first) {
            Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) => tenure,
            other => panic!("{other:?}"),
        }
    }

    fn denied() -> Result<Result<Outcome, Refusal>, Unavailable> {
        Err(Unavailable::Denied { why: "closed".into() })
    }

    fn view(locks: &Arc<dyn LockService>, lock: &str) -> LockView {
        locks.view(&name(lock), Retry::Never).wait().expect("shown").view
    }

    fn local() -> Local {
        Local::in_memory(Rules::default()).expect("started")
    }

    /// A hook that runs before or after a command is decided.
    type Meanwhile = Box<dyn Fn(&Local, &Command) + Send + Sync>;

    /// A stand-in for a remote engine, with hooks in which other clients act before or after a
    /// command is decided.
    struct Elsewhere {
        engine: Local,
        before: Meanwhile,
        after: Meanwhile,
    }

    fn elsewhere(
        before: impl Fn(&Local, &Command) + Send + Sync + 'static,
        after: impl Fn(&Local, &Command) + Send + Sync + 'static,
    ) -> Arc<dyn LockService> {
        let (before, after): (Meanwhile, Meanwhile) = (Box::new(before), Box::new(after));
        Arc::new(Elsewhere { engine: local(), before, after })
    }

    impl LockService for Elsewhere {
        fn submit(&self, command: Command, retry: Retry) -> Call<Answer> {
            (self.before)(&self.engine, &command);
            let call = self.engine.submit(command.clone(), retry);
            (self.after)(&self.engine, &command);
            call
        }

        fn view(&self, name: &LockName, retry: Retry) -> Call<CacheableView> {
            self.engine.view(name, retry)
        }

        forward_to_engine!();
    }

    forward_status_to_engine!(Elsewhere);

    #[test]
    fn nearest_held_lock_above_decides() {
        let here: Arc<dyn LockService> = Arc::new(local());
        for locks in [here, elsewhere(|_, _| {}, |_, _| {})] {
            granted(submit(&locks, acquire("a/b/c", "alice")));
            granted(submit(&locks, acquire("a/b", "bob")));
            assert_eq!(submit(&locks, acquire("a/b/x", "alice")), denied());
            assert_eq!(submit(&locks, acquire("a/b/x/y", "alice")), denied());
            assert_eq!(view(&locks, "a/b/x").holders, []);
            // Alice already holds the name `a/b/c`, so her acquire needs no permission by the
            // holder of the lock above. Creating `a/b/x` does.
            granted(submit(&locks, acquire("a/b/c", "alice")));
            granted(submit(&locks, acquire("a/x", "alice")));
            granted(submit(&locks, acquire("a/b/x", "bob")));
            granted(submit(&locks, acquire("ab", "alice")));
            // The nearest held lock above `a/b/c/x` is `a/b/c`, which is Alice's. So she may create
            // the name, and Bob may not.
            granted(submit(&locks, acquire("a/b/c/x", "alice")));
            assert_eq!(submit(&locks, acquire("a/b/c/y", "bob")), denied());
        }
    }

    /// Bob acquires and releases `backup` while Alice acquires `backup/x`. She gets it only at a
    /// moment when nobody holds `backup`.
    #[test]
    fn lock_above_is_checked_in_the_same_step() {
        const ROUNDS: usize = 20_000;
        let locks: Arc<dyn LockService> = Arc::new(local());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if submit(&locks, acquire("backup/x", "alice")).is_ok() {
                        submit(&locks, release("backup/x", "alice")).expect("decided").ok();
                    }
                }
            });
            let rounds = || {
                for round in 0..ROUNDS {
                    let own = granted(submit(&locks, acquire("backup", "bob")));
                    let below = view(&locks, "backup/x");
                    let older = below.holders.iter().all(|other| other.lease.token < own.token);
                    if !older {
                        return Some((round, below));
                    }
                    submit(&locks, release("backup", "bob")).expect("decided").expect("released");
                }
                None
            };
            let wrong = rounds();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None, "made below a lock that was held");
        });
    }

    #[test]
    fn name_made_below_a_lock_taken_meanwhile_is_given_back() {
        let bob_comes = |engine: &Local, command: &Command| {
            let Op::Acquire(ask) = &command.op else { return };
            if ask.name.as_str() == "backup/x" {
                let bob = acquire("backup", "bob").into();
                engine.submit(bob, Retry::Never).detach();
            }
        };
        let locks = elsewhere(bob_comes, |_, _| {});
        assert_eq!(submit(&locks, acquire("backup/x", "alice")), denied());
        assert_eq!(view(&locks, "backup/x").holders, []);
        // If another client acquires a lock above a name that exists already, the name is not
        // affected.
        let locks = elsewhere(|_, _| {}, bob_comes);
        granted(submit(&locks, acquire("backup/x", "alice")));
        assert_eq!(view(&locks, "backup/x").holders.len(), 1);
        assert_eq!(view(&locks, "backup").holders.len(), 1);
    }

    #[test]
    fn only_own_names_below_are_in_the_way() {
        let locks: Arc<dyn LockService> = Arc::new(local());
        let holds =
            |who: &str| block_on(locks.holds_below(&name("a"), &client(who))).expect("shown");
        granted(submit(&locks, acquire("ab", "bob")));
        granted(submit(&locks, acquire("a", "bob")));
        assert!(!holds("bob"));
        granted(submit(&locks, acquire("a/x", "bob")));
        assert!(holds("bob") && !holds("alice"));
    }
}
