//! Commands that make a name below a lock, decided only where the holders of that lock let the
//! caller; and what lies below a lock that is to be removed.

use super::callback::Then;
use super::failure::Unavailable;
use super::locks::Locks;
use super::paging::List;
use crate::engine::{
    Answer, ClientId, Command, Glance, Lease, LeaseKey, LockName, LockView, Op, Outcome, Release,
};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Names below a lock that are looked at before it is removed: one page. Others may have made any
/// number of them, and what they made does not matter.
const BELOW_MAX: usize = 1_000;

/// Decides by the holders of the nearest lock above a name: `Err` says why not.
type Allows = dyn Fn(&[Lease]) -> Result<(), Arc<str>> + Send + Sync;

/// A condition on a command that makes a name below others: the holders of the nearest lock above
/// that name, if any lock above it is held, must let the caller. A client that holds or waits for
/// the name already goes on under it.
#[derive(Clone)]
pub struct ParentCheck {
    name: LockName,
    client: ClientId,
    allows: Arc<Allows>,
}

impl ParentCheck {
    /// The condition for `op`. `None`: it makes no name below others. What `allows` returns gets
    /// the name, the client that makes it, and the holders.
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

    /// The condition for a name that `client` is to make. `None`: it lies below no other.
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

    fn allows(&self, holders: &[Lease]) -> Result<(), Unavailable> {
        (self.allows)(holders).map_err(|why| Unavailable::Denied { why })
    }

    fn allows_here(&self, lock: Glance<'_>) -> Result<(), Unavailable> {
        if lock.involves(&self.client) { Ok(()) } else { self.allows(lock.above()) }
    }

    /// The same for views of the name and of all above it.
    fn allows_seen(&self, views: &[LockView]) -> Result<(), Unavailable> {
        let involved = views.first().is_some_and(|own| own.involves(&self.client));
        if involved { Ok(()) } else { self.allows(&nearest(views)) }
    }
}

/// Two conditions are never known to be equal.
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

/// The holders of the nearest lock that is held above the first of these names.
fn nearest(views: &[LockView]) -> Vec<Lease> {
    let above = views.iter().skip(1).find(|view| !view.holders.is_empty());
    let holders = above.map(|view| view.holders.iter().map(|holder| holder.lease.clone()));
    holders.into_iter().flatten().collect()
}

impl Locks {
    /// Decides a command under a condition, if there is one.
    ///
    /// Where the engine is in this process both are one step. Elsewhere the condition is checked
    /// before and after: a lock that was acquired below a lock which another has taken in between
    /// is given back, and the answer is a denial.
    pub fn submit_checked(
        &self,
        command: impl Into<Command>,
        check: Option<ParentCheck>,
        then: impl FnOnce(Result<Answer, Unavailable>) + Send + 'static,
    ) {
        let command = command.into();
        let Some(check) = check else { return self.submit(command, then) };
        match self.submit_checked_here(&command, Some(&check)) {
            Some(answer) => then(answer),
            None => submit_elsewhere(self, command, check, Box::new(then)),
        }
    }

    /// The same before it returns, if that is possible without waiting.
    pub fn submit_checked_here(
        &self,
        command: &Command,
        check: Option<&ParentCheck>,
    ) -> Option<Result<Answer, Unavailable>> {
        let Some(check) = check else { return self.submit_here(command) };
        let mut allowed = Ok(());
        let decide = |lock: Glance<'_>| {
            allowed = check.allows_here(lock);
            allowed.is_ok().then(|| command.clone())
        };
        let (done, ()) = self.act_here(&check.name, decide, |_| ())?;
        match allowed {
            Ok(()) => done,
            Err(denied) => Some(Err(denied)),
        }
    }

    /// Tells `then` whether a condition holds now.
    pub fn check_parent(
        &self,
        check: ParentCheck,
        then: impl FnOnce(Result<(), Unavailable>) + Send + 'static,
    ) {
        match self.glance(&check.name, |lock| check.allows_here(lock)) {
            Some(allowed) => then(allowed),
            None => look_up(self, &check.name.clone(), move |views| {
                then(views.and_then(|views| check.allows_seen(&views)));
            }),
        }
    }

    /// Tells `then` whether `client` itself holds a lock below `name`, as far as one page shows.
    pub fn holds_below(
        &self,
        name: &LockName,
        client: &ClientId,
        then: impl FnOnce(Result<bool, Unavailable>) + Send + 'static,
    ) {
        let (prefix, client) = (format!("{name}/"), client.clone());
        self.list(List { prefix, after: None, limit: BELOW_MAX }, move |page| {
            then(page.map(|page| page.items.iter().any(|lock| lock.held_by(&client).is_some())));
        });
    }
}

/// Checks, submits, and checks again.
fn submit_elsewhere(
    locks: &Locks,
    command: Command,
    check: ParentCheck,
    then: Then<Result<Answer, Unavailable>>,
) {
    let door = locks.clone();
    locks.check_parent(check.clone(), move |allowed| {
        if let Err(why) = allowed {
            return then(Err(why));
        }
        // A hold that was moved can't be moved back: another may have its old name by now.
        let acquires = matches!(command.op, Op::Acquire(_));
        door.clone().submit(command, move |answer| match &answer {
            Ok(Ok(outcome)) if acquires => match outcome.clone().first() {
                Outcome::Granted(tenure) => {
                    let key = LeaseKey {
                        name: check.name.clone(),
                        client: check.client.clone(),
                        token: Some(tenure.token),
                    };
                    confirm(&door, key, check, answer, then);
                }
                _ => then(answer),
            },
            _ => then(answer),
        });
    });
}

/// Gives back what was granted if another has taken a lock above it before that.
fn confirm(
    locks: &Locks,
    granted: LeaseKey,
    check: ParentCheck,
    answer: Result<Answer, Unavailable>,
    then: Then<Result<Answer, Unavailable>>,
) {
    let door = locks.clone();
    look_up(locks, &granted.name.clone(), move |views| {
        // Without an answer the grant stands: it was allowed a moment before.
        let above = views.map(|views| nearest(&views)).unwrap_or_default();
        // A lock above that is younger was taken beside a name that was there.
        let is_older = |lease: &Lease| granted.token.is_some_and(|token| lease.token < token);
        match check.allows(&above) {
            Err(denied) if above.iter().any(is_older) => {
                door.give_back(Op::Release(Release::of(granted)));
                then(Err(denied));
            }
            _ => then(answer),
        }
    });
}

/// Shows a lock and all above it, the nearest first, to `then`.
fn look_up(
    locks: &Locks,
    name: &LockName,
    then: impl FnOnce(Result<Vec<LockView>, Unavailable>) + Send + 'static,
) {
    let names: Vec<_> = std::iter::once(name.clone()).chain(name.parents()).collect();
    let (views, missing) = (vec![None; names.len()], names.len());
    let seen = Seen { views, missing, then: Some(Box::new(then)) };
    let seen = Arc::new(Mutex::new(seen));
    for (place, name) in names.iter().enumerate() {
        let seen = Arc::clone(&seen);
        locks.view(name, move |view| {
            let mut all = seen.lock();
            all.views[place] = Some(view);
            all.missing -= 1;
            if all.missing > 0 {
                return;
            }
            let (views, then) = (std::mem::take(&mut all.views), all.then.take());
            drop(all);
            if let Some(then) = then {
                then(views.into_iter().flatten().collect());
            }
        });
    }
}

/// Views of several locks, as far as they have arrived.
struct Seen {
    views: Vec<Option<Result<LockView, Unavailable>>>,
    missing: usize,
    then: Option<Then<Result<Vec<LockView>, Unavailable>>>,
}
