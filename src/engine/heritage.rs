//! What an engine goes on from that begins after another one is lost: numbers that were never given
//! out, and a time in which nothing is granted, since those who held something by the lost one may
//! still believe so.
//!
//! Nothing that was held goes on. A lock that a backup has as held may have been given back and
//! taken by another since, and one that it has as free may have been taken: whoever is told by the
//! new engine that it holds must not share that with somebody of the old one.

use super::lease::TOKEN_MAX;
use super::mint::Mint;
use super::refusal::{Conflict, Reason, Refusal, Way};
use super::term::TTL_DEFAULT;
use super::{ClientId, Ends, Engine, LockName, Mode, Rules, Token};
use crate::time::{Span, Time};

/// How far beyond those of a backup numbers go on: what a node that decides a million commands a
/// second, which none can, uses in twelve days, and at what one does measure, in years.
const NUMBERS_SKIPPED: u64 = 1 << 40;

/// Numbers for each second since 1970: more than are used in one, so that of two engines that
/// begin from the same backup the later goes on above the earlier. Enough until 2242.
const NUMBERS_A_SECOND: u64 = 1 << 20;

/// Whom a refusal names where nobody holds the lock.
const NOBODY: &str = "restore";

/// What an engine goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heritage {
    /// The rules of the one before.
    pub rules: Rules,
    /// The first token.
    pub tokens_from: u64,
    /// The first place in a line.
    pub tickets_from: u64,
    /// For how long nothing is granted.
    pub hold_off: Span,
}

impl Engine {
    /// What an engine goes on from that begins at this time of the wall clock, in seconds since
    /// 1970, from this state of a lost one. `None`: there would be no tokens left.
    pub fn heritage(&self, wall_secs: u64, hold_off: Span) -> Option<Heritage> {
        let by_time = wall_secs.saturating_mul(NUMBERS_A_SECOND);
        let tokens_from = self.next_token().saturating_add(NUMBERS_SKIPPED).max(by_time);
        let tickets_from = self.books.next_ticket.saturating_add(NUMBERS_SKIPPED).max(by_time);
        (tokens_from < TOKEN_MAX).then_some(Heritage {
            rules: self.books.rules,
            tokens_from,
            tickets_from,
            hold_off,
        })
    }

    /// An engine in which nothing is held, and that gives no number out which another has.
    pub fn inheriting(heritage: &Heritage) -> Self {
        let mut engine = Self::new(heritage.rules);
        engine.books.mint = Mint::at(heritage.tokens_from.max(1));
        engine.books.next_ticket = heritage.tickets_from.max(1);
        engine.books.shut_until = Time::ZERO + heritage.hold_off;
        engine
    }

    /// The longest ttl of all that is held or kept alive: how long somebody may believe in it.
    pub fn longest_ttl(&self) -> Option<Span> {
        let leases = self.locks.values().flat_map(|lock| lock.leases());
        let of_leases = leases.map(|lease| self.books.ends(lease.life).ttl);
        let of_sessions = self.books.sessions.values().filter_map(|session| session.ttl);
        of_leases.chain(of_sessions).map(super::Ttl::span).max()
    }
}

impl super::Books {
    /// Refuses all that would begin a tenure while nothing is granted.
    pub(super) fn grants(&self, name: &LockName) -> Result<(), Refusal> {
        if self.clock >= self.shut_until {
            return Ok(());
        }
        let until = self.shut_until;
        let ends = Ends {
            expires_at: until,
            grace_until: until,
            ttl: TTL_DEFAULT,
            grace: super::Grace::NONE,
        };
        Err(self.refuse(Reason::Conflict(Conflict {
            name: name.clone(),
            holder: ClientId::parse(NOBODY).expect("it is a name"),
            token: Token::named(0),
            mode: Mode::Exclusive,
            ends,
            way: Way::Restored { until },
            waiting: 0,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::term::GRACE_DEFAULT;
    use crate::engine::{Acquire, Command, Hold, Line, Op, Outcome, Patch, Term, codec};

    fn acquire(line: Line) -> Command {
        let name = LockName::parse("build").expect("valid");
        let client = ClientId::parse("a").expect("valid");
        let (term, mode) = (Term::Own(TTL_DEFAULT, GRACE_DEFAULT), Mode::Exclusive);
        let (hold, patch) = (Hold::Loose, Patch::default());
        Op::Acquire(Acquire { name, client, mode, hold, term, line, patch }).into()
    }

    fn token(engine: &mut Engine, at: Time) -> u64 {
        match engine.apply(at, &acquire(Line::Skip), &mut vec![]) {
            Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) => tenure.token.as_u64(),
            other => panic!("not granted: {other:?}"),
        }
    }

    #[test]
    fn nothing_is_granted_before_the_time_and_no_token_comes_twice() {
        let mut lost = Engine::default();
        let highest = token(&mut lost, Time::from_secs(1_000));
        let hold_off = Span::from_secs(60);
        let heritage = lost.heritage(1_790_000_000, hold_off).expect("there are tokens");
        let mut engine = Engine::inheriting(&heritage);
        engine.check();
        for line in [Line::Skip, Line::Join(None)] {
            let early = Time::ZERO + hold_off - Span::from_nanos(1);
            let refusal = engine.apply(early, &acquire(line), &mut vec![]).expect_err("too early");
            let said = refusal.to_string();
            assert!(said.contains("restored from a backup"), "{said}");
            // Also when it comes from the disk or another node meanwhile.
            let again = codec::decode_engine(codec::FORMAT_VERSION, &codec::encode_engine(&engine))
                .expect("written");
            assert_eq!(again, engine);
        }
        assert!(token(&mut engine, Time::ZERO + hold_off) > highest + NUMBERS_SKIPPED);
        engine.check();
        let again = codec::decode_engine(codec::FORMAT_VERSION, &codec::encode_engine(&engine))
            .expect("written");
        assert_eq!(again, engine);
    }

    /// One backup may be restored twice: what the first one gave out the second one does not.
    #[test]
    fn of_one_backup_each_engine_has_numbers_of_its_own() {
        let lost = Engine::default();
        let at = |secs| {
            let heritage = lost.heritage(secs, Span::ZERO).expect("there are tokens");
            token(&mut Engine::inheriting(&heritage), Time::ZERO)
        };
        let (first, second) = (at(1_790_000_000), at(1_790_000_060));
        assert_eq!(second - first, 60 * NUMBERS_A_SECOND);
        // Without a clock that can be trusted it is still beyond the backup.
        assert!(at(0) > NUMBERS_SKIPPED);
        assert_eq!(lost.heritage(u64::MAX, Span::ZERO), None);
    }

    #[test]
    fn the_longest_ttl_is_known() {
        let mut engine = Engine::default();
        assert_eq!(engine.longest_ttl(), None);
        token(&mut engine, Time::ZERO);
        assert_eq!(engine.longest_ttl(), Some(TTL_DEFAULT.span()));
    }
}
