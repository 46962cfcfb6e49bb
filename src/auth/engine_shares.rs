//! Shares of the tables of the engine: of the leases, queues and sessions of all clients, one
//! credential or local user may have only a part.
//!
//! A credential has what the clients have for which it may act. It is counted only while a table is
//! fuller than one share, since before that no credential can have more. A credential that may act
//! for every client has no share of its own: it could end what all others have.

use super::grant::{ClientPattern, Grant};
use crate::engine::values::details::REMEMBERED_MAX;
use crate::engine::{Acquire, Engine, Limit, LockName, Mode, Op, QueuePolicy, ShareOf, Usage};
use crate::shares::{CommandPermit, Identity, LimitName, LoweredLimits, SharePercent, SharedTable};
use crate::time::{Span, Time, boot_now};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Maximum number of waiters in all queues, at some 300 bytes each.
const WAITERS_MAX: usize = 1 << 18;
/// How long a count is used before the clients of a credential are counted again: a count visits
/// all of them.
const COUNT_KEPT: Span = Span::from_millis(200);
/// The number of commands that the leader may have decided while the engine of this node has not
/// applied them yet, so that they are missing in its counts.
const UNAPPLIED: usize = 1_024;
/// When there are more counts than this, old ones are dropped.
const COUNTS_MAX: usize = 1_024;

/// The shares of the engine's tables, and the counts of the callers that came near theirs.
#[derive(Debug)]
pub struct EngineShares {
    percent: SharePercent,
    lowered: LoweredLimits,
    counts: Mutex<HashMap<(Identity, LimitedTable), CountedUsage>>,
    /// The commands that were admitted and are not decided yet, by the table to which they add. In
    /// a cluster without a leader a command is pending for long.
    pending: HashMap<ShareOf, SharedTable>,
}

/// A table of the engine that a command adds to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LimitedTable(ShareOf, Option<LockName>);

/// How much a caller may still add to a table, as of its last count.
#[derive(Debug, Clone, Copy)]
struct CountedUsage {
    left: usize,
    at: Time,
}

impl EngineShares {
    /// Returns shares of which one identity may take `percent`, of tables whose limits an
    /// administrator may have lowered.
    pub fn new(percent: SharePercent, lowered: LoweredLimits) -> Self {
        let pending = |of| (of, SharedTable::new("pending commands", usize::MAX, usize::MAX));
        let tables = [ShareOf::Locks, ShareOf::Waiters, ShareOf::Sessions, ShareOf::Remembered];
        let pending = tables.map(pending).into();
        Self { percent, lowered, counts: Mutex::default(), pending }
    }

    /// Admits a command if a caller with this grant has room for what it adds to the engine. The
    /// command is pending until the permit is dropped.
    pub fn admit(&self, grant: &Grant, op: &Op, engine: &Engine) -> Result<CommandPermit, Limit> {
        let who = Identity::Credential(grant.caller("share"));
        let tables = tables_of(op).filter_map(|of| self.pending.get(&of));
        let permit = tables.map(|table| table.take_always(&who, 1)).collect();
        self.check(grant, op, engine)?;
        Ok(permit)
    }

    /// Checks that a caller with this grant has room for what a pending command adds. A repeated
    /// request adds nothing, and neither does a steal of a held lock, which replaces its lease.
    fn check(&self, grant: &Grant, op: &Op, engine: &Engine) -> Result<(), Limit> {
        let check = |of, name: Option<&LockName>| {
            let table = LimitedTable(of, name.cloned());
            self.check_limit(&table, engine)?;
            self.check_share(grant, &table, engine)
        };
        match op {
            Op::Acquire(ask) if ask.remember && engine.previous(&ask.name).is_none() => {
                check(ShareOf::Remembered, None)?;
                let plain = Acquire { remember: false, ..ask.clone() };
                self.check(grant, &Op::Acquire(plain), engine)
            }
            Op::Acquire(ask) if engine.is_repeated(ask) => Ok(()),
            Op::Acquire(ask) => {
                let locks = LimitedTable(ShareOf::Locks, None);
                self.check_share(grant, &locks, engine)?;
                // The grant to a waiter takes the place of the lease for which it has waited.
                if ask.mode != Mode::Exclusive || engine.usage_of_lock(&ask.name, |_| true).0 == 0 {
                    self.check_limit(&locks, engine)?;
                }
                if let QueuePolicy::Join(_) = ask.line {
                    check(ShareOf::Waiters, None)?;
                    check(ShareOf::Queue, Some(&ask.name))?;
                }
                match ask.mode {
                    Mode::Exclusive => Ok(()),
                    Mode::Shared | Mode::Seats(_) => check(ShareOf::Holders, Some(&ask.name)),
                }
            }
            Op::Steal(steal) if engine.lease(&steal.name).is_some() => Ok(()),
            Op::Steal(_) => check(ShareOf::Locks, None),
            Op::OpenSession(_) => check(ShareOf::Sessions, None),
            _ => Ok(()),
        }
    }

    /// Returns the number of places of a table that are taken, and the number of all places.
    fn level(&self, table: &LimitedTable, engine: &Engine) -> (usize, usize) {
        let (used, max) = table.level(engine);
        (used, name_of(table.0).map_or(max, |name| self.lowered.of(name, max)))
    }

    fn check_limit(&self, table: &LimitedTable, engine: &Engine) -> Result<(), Limit> {
        let (used, max) = self.level(table, engine);
        if used < max { Ok(()) } else { Err(table.0.full(max)) }
    }

    fn check_share(
        &self,
        grant: &Grant,
        table: &LimitedTable,
        engine: &Engine,
    ) -> Result<(), Limit> {
        let (used, max) = self.level(table, engine);
        let share = self.percent.of(max);
        if share == max {
            return Ok(());
        }
        let caller = Identity::Credential(grant.caller("share"));
        let pending = self.pending.get(&table.0).map_or(0, |pending| pending.taken_by(&caller));
        // The command that is checked is counted as pending itself.
        let pending = pending.saturating_sub(1);
        if used + UNAPPLIED + pending < share {
            return Ok(());
        }
        let Some(count) = table.counter_of(grant) else { return Ok(()) };
        let (key, now) = ((caller, table.clone()), boot_now());
        let mut counts = self.counts.lock();
        if counts.len() >= COUNTS_MAX {
            counts.retain(|_, counted| now.since(counted.at) < COUNT_KEPT);
        }
        let known = counts.get(&key).filter(|counted| now.since(counted.at) < COUNT_KEPT);
        let (left, at) = match known {
            Some(counted) => (counted.left, counted.at),
            None => (share.saturating_sub(count(engine) + pending), now),
        };
        counts.insert(key, CountedUsage { left: left.saturating_sub(1), at });
        if left > 0 { Ok(()) } else { Err(Limit::Share(table.0, share)) }
    }
}

/// Returns the tables to which a command adds, apart from those of a single lock.
fn tables_of(op: &Op) -> impl Iterator<Item = ShareOf> {
    let tables = match op {
        Op::Acquire(ask) => {
            let waits = (ask.line != QueuePolicy::Skip).then_some(ShareOf::Waiters);
            [Some(ShareOf::Locks), waits, ask.remember.then_some(ShareOf::Remembered)]
        }
        Op::Steal(_) => [Some(ShareOf::Locks), None, None],
        Op::OpenSession(_) => [Some(ShareOf::Sessions), None, None],
        _ => [None; 3],
    };
    tables.into_iter().flatten()
}

/// Returns the name by which an administrator lowers the limit of this table.
const fn name_of(table: ShareOf) -> Option<LimitName> {
    match table {
        ShareOf::Locks => Some(LimitName::Locks),
        ShareOf::Waiters => Some(LimitName::Waiters),
        ShareOf::Queue => Some(LimitName::Queue),
        ShareOf::Sessions => Some(LimitName::Sessions),
        ShareOf::Holders | ShareOf::Remembered => None,
    }
}

/// Counts what the clients of a credential have in one table.
type Counter<'a> = Box<dyn Fn(&Engine) -> usize + 'a>;

impl LimitedTable {
    /// Returns the number of places that are taken, and the number of all places.
    fn level(&self, engine: &Engine) -> (usize, usize) {
        let (rules, usage) = (engine.rules(), engine.usage());
        let of_lock =
            || self.1.as_ref().map_or((0, 0), |name| engine.usage_of_lock(name, |_| true));
        match self.0 {
            ShareOf::Locks => (usage.leases.max(engine.locks()), rules.locks_max),
            ShareOf::Waiters => (usage.waiters, WAITERS_MAX),
            ShareOf::Sessions => (usage.sessions, rules.sessions_max),
            ShareOf::Remembered => (usage.remembered, REMEMBERED_MAX),
            ShareOf::Holders => (of_lock().0, rules.holders_max),
            ShareOf::Queue => (of_lock().1, rules.waiters_max),
        }
    }

    /// Returns a function that counts what the callers with this grant have; `None` if they can't
    /// be distinguished from all others.
    fn counter_of<'a>(&'a self, grant: &'a Grant) -> Option<Counter<'a>> {
        let field: fn(Usage) -> usize = match self.0 {
            ShareOf::Locks => |usage| usage.leases,
            ShareOf::Waiters => |usage| usage.waiters,
            ShareOf::Sessions => |usage| usage.sessions,
            ShareOf::Remembered => |usage| usage.remembered,
            ShareOf::Holders | ShareOf::Queue => |_| 0,
        };
        let is_for_all = grant.clients.iter().any(ClientPattern::is_for_all);
        if let (Some(name), false) = (&self.1, is_for_all) {
            let holders = self.0 == ShareOf::Holders;
            return Some(Box::new(move |engine| {
                let may = |client: &_| grant.may_speak_as(client).is_ok();
                let (held, waiting) = engine.usage_of_lock(name, may);
                if holders { held } else { waiting }
            }));
        }
        if !is_for_all {
            return Some(Box::new(move |engine| field(usage_of_clients(grant, engine))));
        }
        // For credentials that may act as any client, the locks with the names that they may use
        // are counted.
        let by_name = matches!(self.0, ShareOf::Locks | ShareOf::Waiters) && !grant.may_see_all();
        by_name.then(|| -> Counter<'a> {
            Box::new(move |engine| {
                let prefixes = grant.narrowed("");
                prefixes.iter().map(|prefix| field(engine.usage_within(prefix))).sum()
            })
        })
    }
}

/// Returns the usage of all clients for which a grant may act.
fn usage_of_clients(grant: &Grant, engine: &Engine) -> Usage {
    let mut sum = Usage::default();
    for (place, pattern) in grant.clients.iter().enumerate() {
        let others = grant.clients.iter().enumerate();
        let is_within = |(other, more): (usize, &ClientPattern)| {
            more.covers(pattern) && (other < place || !pattern.covers(more))
        };
        // A client that two patterns match is counted once.
        if others.filter(|(other, _)| *other != place).any(is_within) {
            continue;
        }
        sum += match pattern {
            ClientPattern::Exactly(client) => engine.usage_of(client),
            ClientPattern::Beginning(prefix) => engine.usage_of_prefix(prefix),
        };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{
        Acquire, ClientId, LeaseTerms, OpenId, OpenSession, Outcome, Ownership, Patch, Rules,
        SessionId, Steal, StealReason,
    };

    fn grant(clients: &[&str], prefix: &str) -> Grant {
        let clients = clients.iter().map(|text| ClientPattern::parse(text)).collect();
        let name = format!("{prefix}-{clients:?}");
        let prefixes = vec![prefix.to_owned()];
        Grant { name, clients, prefixes, ..Grant::of_user(1_000, vec![], false) }
    }

    fn acquire(lock: &str, client: &str) -> Acquire {
        Acquire::new(
            LockName::parse(lock).expect("valid"),
            ClientId::parse(client).expect("valid"),
            LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
        )
    }

    fn open(client: &str) -> Op {
        let client = ClientId::parse(client).expect("valid");
        Op::OpenSession(OpenSession { client, ttl: Some(TTL_DEFAULT), grace: GRACE_DEFAULT })
    }

    fn fresh_shares() -> EngineShares {
        EngineShares::new(SharePercent::default(), LoweredLimits::default())
    }

    /// Carries out `op` until it is refused, and returns how often it was carried out.
    fn fill(engine: &mut Engine, who: &Grant, op: impl Fn(usize) -> Op) -> (usize, Limit) {
        let shares = fresh_shares();
        for number in 0.. {
            let op = op(number);
            if let Err(limit) = shares.admit(who, &op, engine) {
                return (number, limit);
            }
            let done = engine.apply(Time::ZERO, &op.into(), &mut Vec::new());
            assert!(done.is_ok(), "{number}: {done:?}");
        }
        unreachable!("the engine has limits")
    }

    #[test]
    fn one_credential_takes_half_of_the_remembered_names() {
        let mut engine = Engine::new(Rules::default());
        let remember = |number: usize| {
            let ask = acquire("team/x", "laptop1");
            let name = LockName::parse(&format!("team/{number}")).expect("valid");
            Op::Acquire(Acquire { name, remember: true, ..ask })
        };
        let (count, limit) = fill(&mut engine, &grant(&["laptop1"], "team/"), remember);
        let share = REMEMBERED_MAX / 2;
        assert_eq!((count, limit), (share, Limit::Share(ShareOf::Remembered, share)));
        let shares = fresh_shares();
        let (own, other) = (grant(&["laptop1"], "team/"), grant(&["laptop2"], "team/"));
        let admitted = shares.admit(&own, &remember(7), &engine).map(drop);
        assert_eq!(admitted, Ok(()), "it is remembered already");
        let ask = Acquire { remember: true, ..acquire("team/y", "laptop2") };
        assert_eq!(shares.admit(&other, &Op::Acquire(ask), &engine).map(drop), Ok(()));
    }

    #[test]
    fn one_credential_leaves_half_of_each_table_to_others() {
        let rules = Rules {
            locks_max: 20,
            sessions_max: 10,
            waiters_max: 6,
            holders_max: 8,
            ..Rules::default()
        };
        let (eve, ann) = (grant(&["eve", "eve*"], ""), grant(&["ann"], ""));
        let mut engine = Engine::new(rules);
        let lock = |number| Op::Acquire(acquire(&format!("e{number}"), &format!("eve{number}")));
        let full = (10, Limit::Share(ShareOf::Locks, 10));
        assert_eq!(fill(&mut engine, &eve, lock), full);
        let lock = |number| Op::Acquire(acquire(&format!("a{number}"), "ann"));
        assert_eq!(fill(&mut engine, &ann, lock).0, 10, "the other half");
        let renewal = Op::Acquire(acquire("e0", "eve0"));
        assert_eq!(fresh_shares().admit(&eve, &renewal, &engine).map(drop), Ok(()));

        let session = |number| open(&format!("eve{number}"));
        let full = (5, Limit::Share(ShareOf::Sessions, 5));
        assert_eq!(fill(&mut engine, &eve, session), full);
        assert_eq!(fresh_shares().admit(&ann, &open("ann"), &engine).map(drop), Ok(()));

        let mut engine = Engine::new(rules);
        let ann_holds = Op::Acquire(acquire("x", "ann"));
        engine.apply(Time::ZERO, &ann_holds.into(), &mut Vec::new()).expect("granted");
        let wait = |number| {
            let line = QueuePolicy::Join(None);
            Op::Acquire(Acquire { line, ..acquire("x", &format!("eve{number}")) })
        };
        assert_eq!(fill(&mut engine, &eve, wait), (3, Limit::Share(ShareOf::Queue, 3)));
        // Waiting programs of one client have queue places of their own, which count as well.
        let mut engine = Engine::new(rules);
        let ann_holds = Op::Acquire(acquire("x", "ann"));
        engine.apply(Time::ZERO, &ann_holds.into(), &mut Vec::new()).expect("granted");
        let wait = |_| {
            let (hold, line) = (Ownership::Exclusive(None), QueuePolicy::Join(None));
            Op::Acquire(Acquire { hold, line, ..acquire("x", "eve") })
        };
        assert_eq!(fill(&mut engine, &eve, wait), (3, Limit::Share(ShareOf::Queue, 3)));
        // Open files of one client that wait have queue places of their own as well.
        let mut engine = Engine::new(rules);
        let ann_holds = Op::Acquire(acquire("x", "ann"));
        engine.apply(Time::ZERO, &ann_holds.into(), &mut Vec::new()).expect("granted");
        engine.apply(Time::ZERO, &open("eve").into(), &mut Vec::new()).expect("opened");
        let wait = |number: usize| {
            let open = OpenId { session: SessionId::named(2), number: number as u64 };
            let (hold, line) = (Ownership::Exclusive(Some(open)), QueuePolicy::Join(None));
            Op::Acquire(Acquire { hold, line, ..acquire("x", "eve") })
        };
        assert_eq!(fill(&mut engine, &eve, wait), (3, Limit::Share(ShareOf::Queue, 3)));
        let share = |number| {
            let mode = Mode::Shared;
            Op::Acquire(Acquire { mode, ..acquire("y", &format!("eve{number}")) })
        };
        assert_eq!(fill(&mut engine, &eve, share), (4, Limit::Share(ShareOf::Holders, 4)));
    }

    /// The number of waiters in all queues together has a limit, which an administrator lowers
    /// here: 262,144 waiters would take long.
    #[test]
    fn waiters_in_all_queues_are_limited() {
        let everybody = grant(&["*"], "");
        for (limits, all) in [
            (vec![(LimitName::Waiters, 7), (LimitName::Locks, 2)], Limit::AllWaiters(7)),
            (vec![(LimitName::Queue, 3)], Limit::Waiters(3)),
        ] {
            let shares = EngineShares::new(SharePercent::default(), limits.into_iter().collect());
            let mut engine = Engine::default();
            let mut refused = None;
            for number in 0..10 {
                let (lock, client) = (format!("x{}", number % 2), format!("c{number}"));
                let line = QueuePolicy::Join(None);
                let op = Op::Acquire(Acquire { line, ..acquire(&lock, &client) });
                match shares.admit(&everybody, &op, &engine) {
                    Ok(_) => {
                        let done = engine.apply(Time::ZERO, &op.into(), &mut Vec::new());
                        assert!(done.is_ok(), "{done:?}");
                    }
                    Err(limit) => refused = Some(refused.unwrap_or((number, limit))),
                }
            }
            let after = match all {
                Limit::AllWaiters(max) => 2 + max,
                Limit::Waiters(max) => 2 * (1 + max),
                other => panic!("{other:?}"),
            };
            assert_eq!(refused, Some((after, all)));
        }
        let table = LimitedTable(ShareOf::Waiters, None);
        assert_eq!(table.level(&Engine::default()), (0, WAITERS_MAX), "unless it is lowered");
    }

    /// Commands that no leader decides yet count as well.
    #[test]
    fn pending_commands_count() {
        let engine = Engine::new(Rules { sessions_max: 10, ..Rules::default() });
        let (eve, ann) = (grant(&["eve"], ""), grant(&["ann"], ""));
        let shares = fresh_shares();
        let mut pending = Vec::new();
        let full = loop {
            match shares.admit(&eve, &open("eve"), &engine) {
                Ok(permit) => pending.push(permit),
                Err(limit) => break limit,
            }
            // The counts are dropped, as if they were too old to be used again.
            shares.counts.lock().clear();
        };
        assert_eq!((pending.len(), full), (5, Limit::Share(ShareOf::Sessions, 5)));
        assert_eq!(shares.admit(&ann, &open("ann"), &engine).map(drop), Ok(()));
        drop(pending);
        shares.counts.lock().clear();
        assert_eq!(shares.admit(&eve, &open("eve"), &engine).map(drop), Ok(()));
        assert!(shares.pending.values().all(|pending| pending.taken() == 0));
    }

    /// An administrator can steal a held lock although the table of locks is full.
    #[test]
    fn a_steal_of_a_held_lock_needs_no_room() {
        let mut engine = Engine::new(Rules { locks_max: 1, ..Rules::default() });
        let held = Op::Acquire(acquire("x", "ann"));
        engine.apply(Time::ZERO, &held.into(), &mut Vec::new()).expect("granted");
        let steal = |name: &str| {
            let (name, client) =
                (LockName::parse(name).expect("valid"), ClientId::parse("admin").expect("valid"));
            let reason = StealReason::parse("gone").expect("a reason");
            let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
            Op::Steal(Steal {
                name,
                only: None,
                client,
                reason,
                term,
                patch: Patch::default(),
                at_once: false,
            })
        };
        let everybody = grant(&["*"], "");
        let shares = fresh_shares();
        assert_eq!(shares.admit(&everybody, &steal("x"), &engine).map(drop), Ok(()));
        assert_eq!(shares.admit(&everybody, &steal("y"), &engine).map(drop), Err(Limit::Locks(1)));
    }

    #[test]
    fn a_credential_for_all_clients_has_the_locks_of_its_prefixes() {
        let mut engine = Engine::new(Rules { locks_max: 10, ..Rules::default() });
        let (eve, ann) = (grant(&["*"], "sandbox/"), grant(&["*"], "team/"));
        let lock = |number| Op::Acquire(acquire(&format!("sandbox/{number}"), "ann"));
        assert_eq!(fill(&mut engine, &eve, lock), (5, Limit::Share(ShareOf::Locks, 5)));
        let lock = |number| Op::Acquire(acquire(&format!("team/{number}"), "ann"));
        assert_eq!(fill(&mut engine, &ann, lock).0, 5);
    }

    #[test]
    fn places_that_are_given_back_can_be_taken_again() {
        let mut engine = Engine::new(Rules { sessions_max: 4, ..Rules::default() });
        let eve = grant(&["eve"], "");
        let shares = fresh_shares();
        let mut opened = Vec::new();
        while shares.admit(&eve, &open("eve"), &engine).is_ok() {
            match engine.apply(Time::ZERO, &open("eve").into(), &mut Vec::new()) {
                Ok(Outcome::SessionOpened(id)) => opened.push(id),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(opened.len(), 2);
        let session = opened[0];
        let end = engine::EndSession { session, end: engine::SessionEnd::Closed };
        engine.apply(Time::ZERO, &Op::EndSession(end).into(), &mut Vec::new()).expect("ended");
        assert!(fresh_shares().admit(&eve, &open("eve"), &engine).is_ok());
    }
}
