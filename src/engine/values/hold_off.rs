//! The hold-off: a time in which the engine grants no lock, because clients of an engine before it
//! may still rely on leases that this one does not know. Its rules are in `hold_off_rules`.
//!
//! The baseline of an engine that replaces a lost one, restored from a backup or started without
//! state. Its tokens and tickets were never issued before. During a hold-off after the start it
//! grants nothing, since clients of the lost engine may still believe that they hold locks.
//!
//! No lease is carried over. A lock that is held in the backup may have been released and acquired
//! by another client since, and a lock that is free in it may have been acquired: a client to which
//! the new engine grants a lock must not share it with a client of the lost engine.

use super::lease::{StealReason, TOKEN_MAX};
use super::name::ClientId;
use crate::state::{Engine, Rules};
use crate::time::{Span, Time, Wall};
use crate::values::lease::{TokenAllocator, Ttl};
use std::fmt;

/// A time in which the engine grants no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldOff {
    /// The time from which the engine grants locks.
    pub until: Time,
    /// Why the engine grants no lock before that time.
    pub cause: HoldOffCause,
}

/// Why an engine grants no lock for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldOffCause {
    /// The engine was started without durable state.
    NoState,
    /// The engine was restored from a backup.
    Restored,
    /// The engine was begun by the survivor of a lost majority.
    Recovered,
}

impl HoldOffCause {
    /// Returns the name of the cause in answers and statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoState => "no_state",
            Self::Restored => "restored",
            Self::Recovered => "recovered",
        }
    }
}

/// The cause as a part of a sentence.
impl fmt::Display for HoldOffCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoState => "this server began without the leases of its last run",
            Self::Restored => "the cluster was restored from a backup",
            Self::Recovered => "the cluster was begun again by a node that was left",
        })
    }
}

impl HoldOff {
    /// Returns what a hold-off means, as a sentence without its end. `until` is its end by the wall
    /// clock.
    pub fn sentence(self, until: Wall) -> String {
        format!("nothing is granted before {until}, because {}", self.cause)
    }
}

/// Ends the hold-off, if the engine has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndHoldOff {
    /// The client on whose behalf the hold-off is ended.
    pub by: ClientId,
    /// Why no client can rely on an old lease any more, for the audit log.
    pub reason: StealReason,
}

/// How far the tokens and tickets of a restored engine start above those of the backup. At a
/// million commands a second, more than any node can apply, 2^40 numbers last for twelve days; at
/// measured rates they last for years.
const NUMBERS_SKIPPED: u64 = 1 << 40;

/// Tokens and tickets reserved for each second of wall-clock time since 1970: more than are used in
/// a second, so that of two engines started from the same backup, the later one has the higher
/// numbers. The range lasts until 2242.
const NUMBERS_A_SECOND: u64 = 1 << 20;

/// The earliest plausible wall-clock time, the start of 2020. A clock before it was never set, and
/// tokens derived from it could repeat.
const WALL_SECS_MIN: i64 = 1_577_836_800;

/// The baseline of an engine that replaces a lost one: its limits, its first token and ticket, and
/// how long after its start it grants no lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    /// The limits of the lost engine.
    pub rules: Rules,
    /// The first token that the engine issues.
    pub tokens_from: u64,
    /// The first queue ticket that the engine issues.
    pub tickets_from: u64,
    /// Until when the engine grants nothing; its time begins at `Time::ZERO`.
    pub hold_off: Option<HoldOff>,
}

impl Baseline {
    /// Returns the baseline of an engine without state. Its first token follows from the wall
    /// clock, so that its tokens are above those of every engine that began so earlier. `None` if
    /// the clock is not set, or if tokens would reach 2^53.
    pub fn by_clock(rules: Rules, wall: Wall) -> Option<Self> {
        if wall.secs < WALL_SECS_MIN {
            return None;
        }
        let micros = u64::from(wall.nanos / 1_000);
        let from = u64::try_from(wall.secs).ok()?.checked_mul(NUMBERS_A_SECOND)? + micros;
        let baseline = Self { rules, tokens_from: from, tickets_from: from, hold_off: None };
        (from < TOKEN_MAX).then_some(baseline)
    }
}

impl Engine {
    /// Returns the baseline of the engine that replaces a lost one. `self` is the state of the lost
    /// engine, as read from a backup. `wall_secs` is the start of the new engine in seconds since
    /// 1970. Returns `None` if the new engine would have no tokens left.
    pub fn baseline(&self, wall_secs: u64, hold_off: Option<HoldOff>) -> Option<Baseline> {
        let by_time = wall_secs.saturating_mul(NUMBERS_A_SECOND);
        let tokens_from = self.next_token().saturating_add(NUMBERS_SKIPPED).max(by_time);
        let tickets_from = self.state.next_ticket.saturating_add(NUMBERS_SKIPPED).max(by_time);
        (tokens_from < TOKEN_MAX).then_some(Baseline {
            rules: self.state.rules,
            tokens_from,
            tickets_from,
            hold_off,
        })
    }

    /// Returns an engine without leases whose tokens and queue tickets were not issued by any
    /// earlier engine.
    pub fn from_baseline(baseline: &Baseline) -> Self {
        let mut engine = Self::new(baseline.rules);
        engine.state.mint = TokenAllocator::at(baseline.tokens_from.max(1));
        engine.state.next_ticket = baseline.tickets_from.max(1);
        if let Some(hold_off) = baseline.hold_off {
            engine.begin_hold_off(hold_off);
        }
        engine
    }

    /// Returns an engine without state, whose numbers follow from the wall clock
    /// ([`Baseline::by_clock`]).
    pub fn afresh(rules: Rules, wall: Wall) -> Option<Self> {
        Baseline::by_clock(rules, wall).map(|baseline| Self::from_baseline(&baseline))
    }

    /// Refuses leases that last longer than `longest` (ttl and grace together) from now on, so that
    /// an engine that follows this one without its state knows for how long to grant nothing.
    pub const fn limit_leases(&mut self, longest: Span) {
        self.state.longest = Some(longest);
    }

    /// Returns the longest ttl of all leases and sessions: how long a client may believe that it
    /// still holds a lock.
    pub fn longest_ttl(&self) -> Option<Span> {
        let leases = self.locks.values().flat_map(|lock| lock.leases());
        let of_leases = leases.map(|lease| self.state.ends(lease.life).ttl);
        let of_sessions = self.state.sessions.values().filter_map(|session| session.ttl);
        of_leases.chain(of_sessions).map(Ttl::span).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::state_codec;
    use crate::time::Time;
    use crate::values::command::{Acquire, Command, Op, Outcome, QueuePolicy};
    use crate::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::values::name::{ClientId, LockName};
    use crate::{HoldOffCause, LeaseTerms};

    fn acquire(line: QueuePolicy) -> Command {
        let name = LockName::parse("build").expect("valid");
        let client = ClientId::parse("a").expect("valid");
        let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
        Op::Acquire(Acquire { line, ..Acquire::new(name, client, term) }).into()
    }

    fn token(engine: &mut Engine, at: Time) -> u64 {
        match engine.apply(at, &acquire(QueuePolicy::Skip), &mut vec![]) {
            Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) => tenure.token.as_u64(),
            other => panic!("not granted: {other:?}"),
        }
    }

    #[test]
    fn nothing_is_granted_during_the_hold_off_and_no_token_repeats() {
        let mut lost = Engine::default();
        let highest = token(&mut lost, Time::from_secs(1_000));
        let until = Time::from_secs(60);
        let hold_off = Some(HoldOff { until, cause: HoldOffCause::Restored });
        let baseline = lost.baseline(1_790_000_000, hold_off).expect("there are tokens");
        let mut engine = Engine::from_baseline(&baseline);
        engine.check();
        for line in [QueuePolicy::Skip, QueuePolicy::Join(Some(Span::ZERO))] {
            let early = until - Span::from_nanos(1);
            let refusal = engine.apply(early, &acquire(line), &mut vec![]).expect_err("too early");
            let said = refusal.to_string();
            assert!(said.contains("nothing is granted for 1ms more"), "{said}");
            // The hold-off is part of the encoded state, so it survives a snapshot and its transfer
            // to another node.
            let decoded = state_codec::decode_engine(
                state_codec::known_version(),
                &state_codec::encode_engine(state_codec::known_version(), &engine),
            )
            .expect("written");
            assert_eq!(decoded, engine);
        }
        assert!(token(&mut engine, until) > highest + NUMBERS_SKIPPED);
        engine.check();
        let decoded = state_codec::decode_engine(
            state_codec::known_version(),
            &state_codec::encode_engine(state_codec::known_version(), &engine),
        )
        .expect("written");
        assert_eq!(decoded, engine);
    }

    /// Two engines may be restored from one backup: the second engine issues no token that the
    /// first one issued.
    #[test]
    fn engines_restored_from_one_backup_use_disjoint_numbers() {
        let lost = Engine::default();
        let at = |secs| {
            let baseline = lost.baseline(secs, None).expect("there are tokens");
            token(&mut Engine::from_baseline(&baseline), Time::ZERO)
        };
        let (first, second) = (at(1_790_000_000), at(1_790_000_060));
        assert_eq!(second - first, 60 * NUMBERS_A_SECOND);
        // Even if the wall clock is not set, the tokens of a restored engine start above those of
        // the backup.
        assert!(at(0) > NUMBERS_SKIPPED);
        assert_eq!(lost.baseline(u64::MAX, None), None);
    }

    #[test]
    fn a_baseline_leaves_the_last_token_out() {
        let mut lost = Engine::default();
        lost.raise_tokens(TOKEN_MAX - NUMBERS_SKIPPED - 1);
        let baseline = lost.baseline(0, None).expect("there are tokens");
        assert_eq!(baseline.tokens_from, TOKEN_MAX - 1);
        lost.raise_tokens(TOKEN_MAX - NUMBERS_SKIPPED);
        assert_eq!(lost.baseline(0, None), None);
        assert_eq!(NUMBERS_SKIPPED, 1_099_511_627_776, "2^40, more than a lost engine used");
        assert!(Engine::afresh(Rules::default(), wall(WALL_SECS_MIN)).is_some());
        assert!(Engine::afresh(Rules::default(), wall(WALL_SECS_MIN - 1)).is_none());
    }

    #[test]
    fn the_longest_ttl_covers_leases_and_sessions() {
        let mut engine = Engine::default();
        assert_eq!(engine.longest_ttl(), None);
        token(&mut engine, Time::ZERO);
        assert_eq!(engine.longest_ttl(), Some(TTL_DEFAULT.span()));
    }

    fn wall(secs: i64) -> Wall {
        Wall { secs, nanos: 0 }
    }

    /// While a new engine grants no lock because leases of its predecessor may still last, requests
    /// that wait are queued, without a holder. They are served when this hold-off is over.
    #[test]
    fn requests_queued_during_the_hold_off_are_served_after_it() {
        let mut engine = Engine::afresh(Rules::default(), wall(1_790_000_000)).expect("tokens");
        let until = Time::from_secs(65);
        engine.begin_hold_off(HoldOff { until, cause: HoldOffCause::NoState });
        let mut events = vec![];
        engine
            .apply(Time::from_secs(1), &acquire(QueuePolicy::Skip), &mut events)
            .expect_err("too early");
        assert_eq!((engine.locks(), events.len()), (0, 0), "a refusal leaves nothing behind");
        let waits =
            engine.apply(Time::from_secs(2), &acquire(QueuePolicy::Join(None)), &mut events);
        assert!(matches!(waits, Ok(Outcome::Waiting { before: 0, .. })), "{waits:?}");
        engine.check();
        let settle = Op::Settle.into();
        let holders = |engine: &mut Engine, at| {
            engine.apply(at, &settle, &mut vec![]).expect("never refused");
            let view = engine.view(&LockName::parse("build").expect("valid"), at);
            engine.check();
            let holders = view.holders.iter().map(|holder| holder.lease.holder.to_string());
            (holders.collect::<Vec<_>>(), view.waiters.len())
        };
        assert_eq!(holders(&mut engine, until - Span::from_nanos(1)), (vec![], 1));
        assert_eq!(holders(&mut engine, until), (vec!["a".to_owned()], 0));
    }

    /// An engine that starts without state grants no lock for as long as the leases of its
    /// predecessor can have lasted.
    #[test]
    fn no_lease_is_longer_than_the_next_start_waits() {
        let mut engine = Engine::afresh(Rules::default(), wall(1_790_000_000)).expect("tokens");
        let longest = TTL_DEFAULT.span() + GRACE_DEFAULT.span();
        engine.limit_leases(Span::from_nanos(longest.as_nanos() - 1));
        let refusal = engine.apply(Time::ZERO, &acquire(QueuePolicy::Skip), &mut vec![]);
        let refusal = refusal.expect_err("it lasts longer");
        assert_eq!(refusal.kind(), crate::RefusalKind::Invalid, "{refusal}");
        engine.limit_leases(longest);
        token(&mut engine, Time::ZERO);
    }

    #[test]
    fn tokens_rise_from_start_to_start_by_the_wall_clock() {
        let first = |secs, nanos| {
            let engine = Engine::afresh(Rules::default(), Wall { secs, nanos });
            engine.map(|mut engine| token(&mut engine, Time::ZERO))
        };
        assert_eq!(first(1_790_000_000, 0), Some(1_790_000_000 << 20));
        assert!(first(1_790_000_001, 0) > first(1_790_000_000, 999_999_999));
        assert!(first(1_790_000_000, 2_000) > first(1_790_000_000, 1_000), "in one second");
        assert!(first((1 << 33) - 1, 999_999_999).is_some_and(|token| token <= TOKEN_MAX));
        for wrong in [i64::MIN, -1, 0, WALL_SECS_MIN - 1, 1 << 33, i64::MAX] {
            assert_eq!(first(wrong, 0), None, "{wrong}");
        }
    }
}
