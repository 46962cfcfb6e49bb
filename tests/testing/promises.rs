//! Checks of the clients' history: every promise must hold, whatever faults the nodes had.
//!
//! Linearizability check: searches for an order of the operations on a lock in which each takes
//! effect at one moment between its request and its answer (Wing and Gong's search, with Lowe's
//! cache of the states already tried).
//!
//! The check knows nothing of the engine. A lock is a cell: the tokens of its holders, and whether
//! they share it. The expiry of a lease is an operation without a request, possible from the time
//! at which the lease could have expired.

use super::client_history::{
    Belief, History, Lock, LockStep, ObservedQueuePlace, ObservedReset, Sharing, StepKind, Token,
    Who,
};
use crate::client_history::{SafetyProperty, Violation};
use engine::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// How long a request with an unknown outcome may still take effect, counted from the time at which
/// it was sent.
pub const UNKNOWN_FOR: Span = Span::from_secs(10);

/// Returns every violation of a promise that a history shows.
pub fn check(history: &History) -> Vec<Violation> {
    let mut found = history.violations.clone();
    one_holder(&mut found, history);
    first_come_first_served(&mut found, history);
    resets_take_all(&mut found, history);
    let locks: BTreeSet<_> = history.acts.keys().copied().collect();
    for lock in locks {
        in_some_order(&mut found, history, lock);
    }
    found
}

impl ObservedReset {
    /// Whether the reset ends the leases and queue places of the client `who`.
    pub fn means(&self, who: &Who) -> bool {
        !self.kept.contains(who)
    }

    /// The latest time at which the reset may take effect.
    pub fn by(&self) -> Time {
        self.to.unwrap_or(Time::NEVER)
    }
}

/// Returns the time up to which a client may rightly believe that it holds a lock: to the end of
/// its belief, or to the first steal or reset of the lock, of which the client learns only
/// afterwards.
fn rightly_until(belief: &Belief, history: &History) -> Time {
    let Belief { lock, token, from, .. } = belief;
    // A steal with an unknown outcome may take effect for `UNKNOWN_FOR` after it was sent, and not
    // later.
    let may = |at: Time, by: Token| by != Token::MAX || *from < at + UNKNOWN_FOR;
    let steals =
        history.steals.iter().filter(|(l, at, by)| l == lock && by > token && may(*at, *by));
    let stolen = steals.map(|(_, from, _)| *from).min();
    let resets = history.resets.iter();
    // A reset that had finished before the client requested the lock does not end the belief.
    let resets = resets.filter(|reset| reset.means(&belief.who) && belief.asked < reset.by());
    let reset = resets.map(|reset| reset.from).min();
    let robbed = stolen.into_iter().chain(reset).min();
    robbed.map_or(belief.until, |robbed| robbed.min(belief.until))
}

/// Checks that no two clients believe at the same time that they hold a lock, unless both share it,
/// and that no more share it than it has seats.
fn one_holder(found: &mut Vec<Violation>, history: &History) {
    let right = |belief| (belief, rightly_until(belief, history));
    let mut beliefs: Vec<_> = history.beliefs.iter().map(right).collect();
    beliefs.retain(|(belief, until)| belief.from < *until);
    beliefs.sort_by_key(|(belief, _)| (belief.lock, belief.from, belief.token));
    // The beliefs about the same lock that have not ended when the belief `two` begins.
    let mut open: Vec<(&Belief, Time)> = vec![];
    for (two, its_end) in beliefs {
        open.retain(|(one, until)| one.lock == two.lock && *until > two.from);
        for (one, until) in &open {
            let share = one.mode == Sharing::Shared && two.mode == Sharing::Shared;
            if one.token != two.token && !share {
                let (lock, who, from) = (one.lock, &one.who, two.from);
                let promised = history.secured.get(&one.token).copied().unwrap_or_default();
                let rightly =
                    if *until <= promised { "as promised" } else { "longer than promised" };
                let what = format!(
                    "two hold lock {lock}: {who} ({:?}, token {}) until {until}, {rightly}, and {} \
                     ({:?}, token {}) from {from}",
                    one.mode, one.token, two.who, two.mode, two.token,
                );
                found.push(Violation::new(SafetyProperty::OneHolder, what));
            }
        }
        open.push((two, its_end));
        let shared = open.iter().filter(|(belief, _)| belief.mode == Sharing::Shared);
        let sharers: BTreeSet<Token> = shared.map(|(belief, _)| belief.token).collect();
        let (lock, from) = (two.lock, two.from);
        if history.seats.get(&lock).is_some_and(|seats| sharers.len() > *seats) {
            let what = format!("more hold lock {lock} than it has seats from {from}: {sharers:?}");
            found.push(Violation::new(SafetyProperty::OneHolder, what));
        }
    }
}

/// Checks that waiters are served in queue order, and that no client gets a lock ahead of one that
/// was already waiting for it.
fn first_come_first_served(found: &mut Vec<Violation>, history: &History) {
    let served =
        |place: &ObservedQueuePlace| place.served.map(|token| (place.lock, place.ticket, token));
    let mut line: Vec<_> = history.places.iter().filter_map(served).collect();
    line.sort_unstable();
    // The places are sorted by lock and ticket. `highest` is, among the earlier places in the queue
    // of the same lock, the one whose grant has the highest token. A place with a higher ticket
    // must have a higher token.
    let mut highest: Option<(Lock, u64, Token)> = None;
    for (lock, ticket, token) in line.iter().copied() {
        match highest.filter(|(other, ..)| *other == lock) {
            Some((_, before, later)) if later > token && before < ticket => {
                let what = format!(
                    "place {ticket} in the queue of lock {lock} was served before place {before}: \
                     tokens {token} and {later}"
                );
                found.push(Violation::new(SafetyProperty::FirstComeFirstServed, what));
            }
            Some((_, _, later)) if later > token => {}
            _ => highest = Some((lock, ticket, token)),
        }
    }
    let from_line: BTreeSet<_> = line.iter().map(|(_, _, token)| *token).collect();
    for (lock, acts) in &history.acts {
        overtaken(found, history, *lock, &grants(acts, &from_line));
    }
}

/// Returns, for the token of each grant to a request that was not queued, the latest of these
/// requests among the grants up to that token: the time at which it was sent, and the token that it
/// was granted.
fn grants(acts: &[LockStep], from_line: &BTreeSet<Token>) -> BTreeMap<Token, (Time, Token)> {
    let asked = acts.iter().filter_map(|act| match act.what {
        StepKind::Granted(token, _) if !from_line.contains(&token) => Some((token, act.from)),
        _ => None,
    });
    let mut latest = (Time::ZERO, 0);
    let asked: BTreeMap<_, _> = asked.collect();
    let so_far = asked.into_iter().map(|(token, from)| {
        latest = latest.max((from, token));
        (token, latest)
    });
    so_far.collect()
}

/// Reports clients that waited while the lock was granted to a client whose request came later.
fn overtaken(
    found: &mut Vec<Violation>,
    history: &History,
    lock: Lock,
    grants: &BTreeMap<Token, (Time, Token)>,
) {
    for place in history.places.iter().filter(|place| place.lock == lock) {
        let Some(token) = place.served else { continue };
        let Some((_, (asked, other))) = grants.range(..token).next_back() else { continue };
        if *asked > place.queued_at {
            let ObservedQueuePlace { who, queued_at, .. } = place;
            let what = format!(
                "{who} waited for lock {lock} since {queued_at}, and was served with token {token} \
                 after token {other}, which was asked for at {asked}"
            );
            found.push(Violation::new(SafetyProperty::FirstComeFirstServed, what));
        }
    }
}

/// Checks that no tenure (hold of a lock) or queue place from before a reset exists after the
/// reset.
fn resets_take_all(found: &mut Vec<Violation>, history: &History) {
    for reset in &history.resets {
        let Some(answered) = reset.to else { continue };
        let waited = history.places.iter().filter(|place| place.queued_at < reset.from);
        let waited: BTreeSet<_> = waited.filter_map(|place| place.served).collect();
        for (lock, acts) in &history.acts {
            let had = acts.iter().filter(|act| act.to.is_some_and(|to| to < reset.from));
            let mut had: BTreeSet<_> = had.flat_map(|act| act.what.shows()).collect();
            had.extend(&waited);
            for act in acts.iter().filter(|act| act.to.is_some() && act.from > answered) {
                for token in act.what.shows().into_iter().filter(|token| had.contains(token)) {
                    let who = history.tenures.get(&token).map(|(_, who)| who);
                    if let Some(who) = who.filter(|who| reset.means(who)) {
                        let what = format!(
                            "{who} holds lock {lock} (token {token}) at {}, after the reset of {}",
                            act.from, reset.from
                        );
                        found.push(Violation::new(SafetyProperty::ResetTakesAll, what));
                    }
                }
            }
        }
    }
}

impl StepKind {
    /// Returns the tokens of the tenures that hold the lock when this operation takes effect.
    fn shows(&self) -> Vec<Token> {
        match self {
            Self::Seen(tokens) => tokens.clone(),
            Self::Granted(token, _)
            | Self::Stolen(token)
            | Self::Changed { to: token, .. }
            | Self::Kept(token)
            | Self::InTheWay(token) => vec![*token],
            Self::AllEnded | Self::Appeared { .. } | Self::NotKept(_) | Self::Released(_) => vec![],
        }
    }
}

/// Checks that the operations on a lock are linearizable.
fn in_some_order(found: &mut Vec<Violation>, history: &History, lock: Lock) {
    let mut acts = history.acts.get(&lock).cloned().unwrap_or_default();
    for token in unanswered_tenures(&acts, history) {
        let Some((_, who)) = history.tenures.get(&token) else { continue };
        let Some(since) = history.open.get(&(lock, who.clone())) else {
            let what = format!("{who} has lock {lock} (token {token}), unasked");
            found.push(Violation::new(SafetyProperty::OnlyWhatWasAsked, what));
            continue;
        };
        acts.push(LockStep { from: *since, to: None, what: appeared(history, lock, token, who) });
    }
    acts.extend(mode_changes_left_open(history, lock));
    let tenures = history.tenures.iter().filter(|(_, (l, _))| *l == lock);
    let lapses: Vec<_> = tenures.map(|(token, (_, who))| lapse(history, *token, who)).collect();
    let (promise, what) = match search(acts.clone(), &lapses, history.seats.get(&lock).copied()) {
        SearchResult::Order => return,
        SearchResult::None(stuck) => blame(history, lock, &acts, &lapses, &stuck),
        SearchResult::TooLong => (
            SafetyProperty::SearchEnds,
            format!("the search for an order of lock {lock} takes too long"),
        ),
    };
    found.push(Violation::new(promise, what));
}

/// Returns the promise that is broken if the operations on a lock fit no order.
///
/// The promise is `ReadsAreCurrent` if only leaving out the reads makes an order possible, and
/// `LeasesLast` if only an early end of one lease does. If neither makes an order possible, and a
/// lease may have kept its token when it changed to exclusive, the promise is `UpgradesMintTokens`.
/// In all other cases it is `Linearizable`.
fn blame(
    history: &History,
    lock: Lock,
    acts: &[LockStep],
    lapses: &[Lapse],
    stuck: &str,
) -> (SafetyProperty, String) {
    let seats = history.seats.get(&lock).copied();
    let fits =
        |acts: Vec<LockStep>, lapses: &[Lapse]| search(acts, lapses, seats) == SearchResult::Order;
    let is_read = |act: &LockStep| matches!(act.what, StepKind::Seen(_));
    let reads_are_wrong = fits(acts.iter().filter(|act| !is_read(act)).cloned().collect(), lapses);
    let with_early = |early: &Lapse| -> Vec<Lapse> {
        let of = |lapse: &Lapse| if lapse.token == early.token { Time::ZERO } else { lapse.from };
        lapses.iter().map(|lapse| Lapse { token: lapse.token, from: of(lapse) }).collect()
    };
    let early = lapses.iter().find(|lapse| fits(acts.to_vec(), &with_early(lapse)));
    let kept_token = acts.iter().find_map(|act| match act.what {
        StepKind::Changed { from, to, mode: Sharing::Alone } if from == to => Some(to),
        _ => None,
    });
    match (reads_are_wrong, early, kept_token) {
        (true, None, _) => (
            SafetyProperty::ReadsAreCurrent,
            format!("all answers for lock {lock} but the reads fit an order: {stuck}"),
        ),
        (false, Some(Lapse { token, .. }), _) => {
            let until = history.secured.get(token).copied().unwrap_or_default();
            let is_renewed = acts.iter().any(|act| act.what == StepKind::Kept(*token));
            let which = match is_renewed {
                _ if history.of_sessions.contains(token) => "which hangs on a session",
                true => "which was renewed",
                false => "which was not renewed",
            };
            (
                SafetyProperty::LeasesLast,
                format!(
                    "the lease of lock {lock} with token {token}, {which}, ended before {until}"
                ),
            )
        }
        (false, None, Some(token)) => (
            SafetyProperty::UpgradesMintTokens,
            format!("an upgrade of lock {lock} may have kept token {token}: {stuck}"),
        ),
        _ => (
            SafetyProperty::Linearizable,
            format!("there is no order in which lock {lock} can have been so: {stuck}"),
        ),
    }
}

/// Returns possible mode changes to shared: those of tenures whose client requested a shared lock
/// and got no answer.
fn mode_changes_left_open(history: &History, lock: Lock) -> impl Iterator<Item = LockStep> {
    let asked = history.open_to_share.iter().filter(move |(of, ..)| *of == lock);
    asked.flat_map(move |(_, who, since)| {
        let own = history.tenures.iter().filter(move |(_, tenure)| **tenure == (lock, who.clone()));
        own.map(|(token, _)| {
            let what = StepKind::Changed { from: *token, to: *token, mode: Sharing::Shared };
            LockStep { from: *since, to: None, what }
        })
    })
}

/// Returns the ways in which a tenure whose grant was never answered may have begun.
fn appeared(history: &History, lock: Lock, token: Token, who: &Who) -> StepKind {
    let before = history.tenures.range(..token);
    let was = before.filter(|(_, (l, other))| *l == lock && other == who);
    let steal = history.steals.iter().any(|(l, _, token)| *l == lock && *token == Token::MAX);
    StepKind::Appeared { token, was: was.map(|(token, _)| *token).collect(), steal }
}

/// Returns the tenures that a client saw, although no client got an answer for their grant.
fn unanswered_tenures(acts: &[LockStep], history: &History) -> BTreeSet<Token> {
    let answered = acts.iter().filter(|act| act.to.is_some());
    let shown = answered.flat_map(|act| act.what.shows());
    shown.filter(|token| !history.granted.contains(token)).collect()
}

/// Returns the expiry of a tenure: it is possible once the time promised by the last answer is
/// over. A request for its end, or a reset, with an unknown outcome makes it possible from the time
/// of that request on.
fn lapse(history: &History, token: Token, who: &Who) -> Lapse {
    let secured = history.secured.get(&token).copied().unwrap_or_default();
    let freed = history.freed.get(&token).copied().unwrap_or(Time::NEVER);
    // A reset that had finished before the tenure began cannot end the tenure.
    let may_end = |reset: &&ObservedReset| reset.means(who) && reset.by() > begun(history, token);
    let reset = history.resets.iter().filter(may_end).map(|reset| reset.from).min();
    Lapse { token, from: secured.min(freed).min(reset.unwrap_or(Time::NEVER)) }
}

/// Returns the earliest time at which the tenure with this token can have begun.
fn begun(history: &History, token: Token) -> Time {
    let acts = history.acts.values().flatten();
    let begins = acts.filter(|act| match act.what {
        StepKind::Granted(begun, _) | StepKind::Stolen(begun) => begun == token,
        // A change of the mode begins a tenure only if it issues a new token.
        StepKind::Changed { from, to, .. } => to == token && from != token,
        _ => false,
    });
    begins.map(|act| act.from).min().unwrap_or(Time::ZERO)
}

/// Iterations after which a search is given up. A history normally takes a few for each of its
/// operations.
const STEPS_MAX: usize = 2_000_000;

/// The expiry of a tenure (a client's hold of the lock): an operation without a request.
pub(crate) struct Lapse {
    pub(crate) token: Token,
    /// The earliest time at which the tenure may expire.
    pub(crate) from: Time,
}

/// The outcome of the search for a valid order of the operations.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SearchResult {
    /// A valid order of the operations exists.
    Order,
    /// No valid order of the operations exists. The text describes the state of the lock and the
    /// remaining operations where the longest attempt got stuck.
    None(String),
    /// The search was given up after [`STEPS_MAX`] iterations.
    TooLong,
}

/// The state of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Cell {
    /// The tokens of the holders, in ascending order.
    holders: Vec<Token>,
    /// Whether the holders share the lock. `false` if there is no holder.
    shared: bool,
    /// The highest token of all tenures so far.
    last: Token,
    /// How many may share the lock, if it has seats.
    seats: Option<usize>,
}

impl Cell {
    /// Returns the states in which the lock may be after the operation `what`. The list is empty if
    /// the operation is not possible in this state.
    fn after(&self, what: &StepKind) -> Vec<Self> {
        let holds = |token: &Token| self.holders.contains(token);
        match what {
            StepKind::Granted(token, mode) => self.granted(*token, *mode).into_iter().collect(),
            StepKind::Stolen(token) => self.taken(*token).into_iter().collect(),
            StepKind::AllEnded => vec![Self { holders: vec![], shared: false, ..self.clone() }],
            StepKind::Appeared { token, was, steal } => self.appeared(*token, was, *steal),
            StepKind::Changed { from, to, mode } => {
                self.changed(*from, *to, *mode).into_iter().collect()
            }
            StepKind::Kept(token) | StepKind::InTheWay(token) => self.same_if(holds(token)),
            StepKind::NotKept(token) => self.same_if(!holds(token)),
            StepKind::Released(token) if holds(token) => vec![self.without(*token)],
            StepKind::Released(_) => vec![],
            StepKind::Seen(seen) => self.same_if(self.holders == *seen),
        }
    }

    fn same_if(&self, possible: bool) -> Vec<Self> {
        if possible { vec![self.clone()] } else { vec![] }
    }

    fn granted(&self, token: Token, mode: Sharing) -> Option<Self> {
        let shared = mode == Sharing::Shared;
        let has_room = self.seats.is_none_or(|seats| self.holders.len() < seats);
        let admits = self.holders.is_empty() || (self.shared && shared && has_room);
        (admits && token > self.last).then(|| {
            let mut holders = self.holders.clone();
            holders.push(token);
            Self { holders, shared, last: token, seats: self.seats }
        })
    }

    fn taken(&self, token: Token) -> Option<Self> {
        let holders = vec![token];
        let seats = self.seats;
        (token > self.last).then_some(Self { holders, shared: false, last: token, seats })
    }

    /// Returns the state after a change of the mode, which only a sole holder may make. A change to
    /// exclusive mints a new token, since another sharer may have had a later one; a change to
    /// shared keeps the token.
    fn changed(&self, from: Token, to: Token, mode: Sharing) -> Option<Self> {
        let shared = mode == Sharing::Shared;
        if self.shared == shared {
            return (from == to && self.holders.contains(&from)).then(|| self.clone());
        }
        let is_right = if shared { to == from } else { to > self.last };
        let last = self.last.max(to);
        let (holders, seats) = (vec![to], self.seats);
        (self.holders == [from] && is_right).then_some(Self { holders, shared, last, seats })
    }

    fn appeared(&self, token: Token, was: &[Token], steal: bool) -> Vec<Self> {
        let modes = [Sharing::Alone, Sharing::Shared];
        let granted = modes.into_iter().filter_map(|mode| self.granted(token, mode));
        let changed = was.iter().filter_map(|from| self.changed(*from, token, Sharing::Alone));
        let stolen = if steal { self.taken(token) } else { None };
        granted.chain(changed).chain(stolen).collect()
    }

    fn without(&self, token: Token) -> Self {
        let holders: Vec<_> = self.holders.iter().copied().filter(|held| *held != token).collect();
        let shared = self.shared && !holders.is_empty();
        Self { holders, shared, ..*self }
    }

    /// Whether an operation never changes the state of the lock. The search applies such an
    /// operation as soon as it is possible.
    const fn is_read_only(what: &StepKind) -> bool {
        matches!(
            what,
            StepKind::Kept(_) | StepKind::NotKept(_) | StepKind::Seen(_) | StepKind::InTheWay(_)
        )
    }
}

/// The progress of a search: which operations have taken effect, and the resulting state of the
/// lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SearchState {
    /// The index of the first operation that has not taken effect.
    first: usize,
    /// For each operation from `first` on, whether it has taken effect. Operations beyond the end
    /// of the vector have not taken effect.
    done: Vec<bool>,
    cell: Cell,
}

/// Searches for an order of the operations `acts` in which each is possible. Places the expiries
/// `lapses` into the order wherever they help, and may leave out operations that got no answer.
pub(crate) fn search(
    mut acts: Vec<LockStep>,
    lapses: &[Lapse],
    seats: Option<usize>,
) -> SearchResult {
    acts.sort_by_key(|act| (act.from, act.to));
    let mut lapses: Vec<_> = lapses.iter().map(|lapse| (lapse.token, lapse.from)).collect();
    lapses.sort_unstable();
    let cell = Cell { seats, ..Cell::default() };
    let start = SearchState { first: 0, done: vec![], cell };
    let (mut tried, mut furthest, mut stack) = (HashSet::new(), start.clone(), vec![start]);
    for _ in 0..STEPS_MAX {
        let Some(mut place) = stack.pop() else {
            return SearchResult::None(furthest.stuck_at(&acts));
        };
        place.apply_reads(&acts);
        if !(place.first..acts.len()).any(|at| acts[at].to.is_some() && !place.is_done(at)) {
            return SearchResult::Order;
        }
        if !tried.insert(place.clone()) {
            continue;
        }
        if place.first >= furthest.first {
            furthest.clone_from(&place);
        }
        let by = place.deadline(&acts);
        for token in &place.cell.holders {
            if let Ok(at) = lapses.binary_search_by_key(token, |(token, _)| *token)
                && lapses[at].1 <= by
            {
                stack.push(SearchState { cell: place.cell.without(*token), ..place.clone() });
            }
        }
        let open = place.first..acts.len();
        for at in open.take_while(|at| acts[*at].from <= by).collect::<Vec<_>>().into_iter().rev() {
            if place.is_done(at) {
                continue;
            }
            for cell in place.cell.after(&acts[at].what) {
                let mut next = SearchState { cell, ..place.clone() };
                next.do_it(at);
                stack.push(next);
            }
        }
    }
    SearchResult::TooLong
}

impl SearchState {
    fn is_done(&self, at: usize) -> bool {
        self.done.get(at - self.first).copied().unwrap_or(false)
    }

    fn do_it(&mut self, at: usize) {
        let at = at - self.first;
        if self.done.len() <= at {
            self.done.resize(at + 1, false);
        }
        self.done[at] = true;
        let ready = self.done.iter().take_while(|done| **done).count();
        self.first += ready;
        self.done.drain(..ready);
        while self.done.last() == Some(&false) {
            self.done.pop();
        }
    }

    /// Returns the earliest answer time of the operations that have not taken effect. The next
    /// operation to take effect must have been requested before that time.
    fn deadline(&self, acts: &[LockStep]) -> Time {
        let mut by = Time::NEVER;
        for (at, act) in acts.iter().enumerate().skip(self.first) {
            if act.from > by {
                break;
            }
            if let (false, Some(to)) = (self.is_done(at), act.to) {
                by = by.min(to);
            }
        }
        by
    }

    /// Describes the state and the operations that are candidates for the next step, for a person
    /// to read.
    fn stuck_at(&self, acts: &[LockStep]) -> String {
        let by = self.deadline(acts);
        let open = (self.first..acts.len()).filter(|at| !self.is_done(*at));
        let due: Vec<_> = open.map(|at| &acts[at]).take_while(|act| act.from <= by).collect();
        format!("{:?}, before {by}: {due:?}", self.cell)
    }

    /// Applies every read-only operation that is possible in the current state. Such an operation
    /// does not change the state, so applying it early excludes no order.
    fn apply_reads(&mut self, acts: &[LockStep]) {
        loop {
            let by = self.deadline(acts);
            let can = |at: &usize| {
                let what = &acts[*at].what;
                Cell::is_read_only(what) && !self.is_done(*at) && !self.cell.after(what).is_empty()
            };
            let open = (self.first..acts.len()).take_while(|at| acts[*at].from <= by);
            let Some(at) = open.into_iter().find(can) else { return };
            self.do_it(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    fn acted(history: &mut History, from: u64, to: u64, what: StepKind) {
        history.act(0, at(from), Some(at(to)), what);
    }

    fn believed(history: &mut History, token: Token, who: &str, from: u64, until: u64) {
        let (mode, who) = (Sharing::Alone, who.into());
        let (asked, from, until) = (at(from), at(from), at(until));
        history.believed(Belief { lock: 0, token, who, mode, asked, from, until });
    }

    fn waited(history: &mut History, who: &str, queued_at: u64, ticket: u64, served: Token) {
        let (queued_at, served) = (at(queued_at), Some(served));
        history.place(ObservedQueuePlace { lock: 0, who: who.into(), queued_at, ticket, served });
    }

    fn granted(history: &mut History, from: u64, to: u64, token: Token, who: &str) {
        history.tenure(0, token, &who.into());
        acted(history, from, to, StepKind::Granted(token, Sharing::Alone));
    }

    /// A history that breaks no promise: ann holds the lock, then bob and then cat wait for it and
    /// hold it.
    fn right() -> History {
        let mut history = History::default();
        granted(&mut history, 1, 2, 1, "ann");
        believed(&mut history, 1, "ann", 2, 9);
        history.secure(1, at(11));
        acted(&mut history, 3, 4, StepKind::Seen(vec![1]));
        waited(&mut history, "bob", 5, 1, 2);
        waited(&mut history, "cat", 6, 2, 3);
        acted(&mut history, 9, 10, StepKind::Released(1));
        granted(&mut history, 4, 11, 2, "bob");
        believed(&mut history, 2, "bob", 11, 12);
        acted(&mut history, 12, 13, StepKind::Released(2));
        granted(&mut history, 5, 14, 3, "cat");
        believed(&mut history, 3, "cat", 14, 15);
        history.replied(&"ann".into(), &"key".into(), "granted");
        history.replied(&"ann".into(), &"key".into(), "granted");
        history
    }

    /// Asserts that the history breaks `promise` once `plant` has changed it.
    #[track_caller]
    fn breaks(promise: SafetyProperty, plant: impl FnOnce(&mut History)) {
        let mut history = right();
        plant(&mut history);
        let found: BTreeSet<_> = check(&history).into_iter().map(|v| v.promise).collect();
        assert!(found.contains(&promise), "{promise:?} is not among {found:?}");
    }

    #[test]
    fn a_correct_history_breaks_no_promise() {
        assert_eq!(check(&right()), vec![]);
    }

    #[test]
    fn each_planted_violation_is_found() {
        breaks(SafetyProperty::OneHolder, |h| believed(h, 2, "bob", 8, 12));
        // An overlap of tokens that are not adjacent: cat holds the lock at the same time as ann,
        // and bob does not.
        breaks(SafetyProperty::OneHolder, |h| believed(h, 3, "cat", 3, 4));
        breaks(SafetyProperty::TokensAreUnique, |h| granted(h, 30, 31, 3, "dan"));
        breaks(SafetyProperty::TokensAreUnique, |h| h.tenure(1, 3, &"cat".into()));
        breaks(SafetyProperty::ReadsAreCurrent, |h| acted(h, 7, 8, StepKind::Seen(vec![])));
        breaks(SafetyProperty::LeasesLast, |h| {
            granted(h, 30, 31, 4, "dan");
            h.secure(4, at(50));
            granted(h, 35, 36, 5, "eve");
        });
        breaks(SafetyProperty::UpgradesMintTokens, |h| {
            h.tenure(0, 4, &"dan".into());
            acted(h, 30, 31, StepKind::Granted(4, Sharing::Shared));
            let (from, to, mode) = (4, 4, Sharing::Alone);
            acted(h, 32, 33, StepKind::Changed { from, to, mode });
        });
        breaks(SafetyProperty::Linearizable, |h| granted(h, 6, 7, 4, "dan"));
        breaks(SafetyProperty::Linearizable, |h| acted(h, 20, 21, StepKind::Kept(2)));
        breaks(SafetyProperty::Linearizable, |h| acted(h, 3, 4, StepKind::NotKept(1)));
        breaks(SafetyProperty::OneEffect, |h| h.replied(&"ann".into(), &"key".into(), "conflict"));
    }

    /// Regression test for seed 7000298: the checker took a mode change that was requested after a
    /// reset for the beginning of the tenure that the reset had ended.
    #[test]
    fn reset_ends_a_tenure_whose_grant_was_never_answered() {
        let (mut history, admin, ann) = (History::default(), Who::from("admin"), Who::from("ann"));
        history.tenure(0, 7, &ann);
        history.left_open(0, &ann, at(1));
        acted(&mut history, 3, 4, StepKind::Kept(7));
        history.secure(7, at(60));
        history.resets.push(ObservedReset {
            from: at(5),
            to: Some(at(9)),
            kept: vec![Arc::clone(&admin)],
        });
        history.left_open(0, &admin, at(5));
        history.tenure(0, 8, &admin);
        acted(&mut history, 7, 8, StepKind::Seen(vec![8]));
        let what = StepKind::Changed { from: 7, to: 7, mode: Sharing::Shared };
        history.act(0, at(10), None, what);
        assert_eq!(check(&history), vec![]);
    }

    #[test]
    fn a_search_that_does_not_end_is_found() {
        breaks(SafetyProperty::SearchEnds, |h| {
            // No client got an answer for any of the grants that the loop adds. Since each may have
            // happened or not, the search has very many combinations to try.
            for token in 40..64 {
                h.act(0, at(20), None, StepKind::Granted(token, Sharing::Shared));
            }
            acted(h, 30, 31, StepKind::Seen(vec![99]));
        });
    }

    #[test]
    fn a_queue_out_of_order_is_found() {
        breaks(SafetyProperty::FirstComeFirstServed, |h| waited(h, "dan", 6, 0, 9));
        breaks(SafetyProperty::FirstComeFirstServed, |h| {
            waited(h, "dan", 6, 7, 9);
            granted(h, 7, 20, 8, "eve");
        });
    }

    #[test]
    fn an_unrequested_tenure_is_found() {
        let appears = |history: &mut History| {
            history.tenure(0, 4, &"dan".into());
            history.free(3, at(15));
            acted(history, 20, 21, StepKind::Seen(vec![4]));
        };
        breaks(SafetyProperty::OnlyWhatWasAsked, appears);
        let mut asked = right();
        appears(&mut asked);
        asked.left_open(0, &"dan".into(), at(16));
        assert_eq!(check(&asked), vec![]);
    }

    #[test]
    fn a_lease_that_ends_early_is_found() {
        let ends = |at_second| {
            let mut history = right();
            history.secure(3, at(25));
            acted(&mut history, at_second, at_second + 1, StepKind::Seen(vec![]));
            check(&history)
        };
        assert_eq!(ends(25), vec![]);
        assert_eq!(ends(20)[0].promise, SafetyProperty::Linearizable);
    }

    #[test]
    fn a_tenure_or_queue_place_that_outlives_a_reset_is_found() {
        let reset = |kept: &[&str]| {
            let kept = kept.iter().map(|who| (*who).into()).collect();
            ObservedReset { from: at(20), to: Some(at(21)), kept }
        };
        let survives = |kept: &[&str]| {
            let mut history = right();
            history.resets.push(reset(kept));
            acted(&mut history, 22, 23, StepKind::Seen(vec![3]));
            check(&history).iter().any(|found| found.promise == SafetyProperty::ResetTakesAll)
        };
        assert!(survives(&[]) && survives(&["ann"]));
        assert!(!survives(&["cat"]));
        // An operation with an unknown outcome may not have happened.
        let mut unknown = right();
        unknown.resets.push(reset(&[]));
        let mode = Sharing::Shared;
        unknown.act(0, at(22), None, StepKind::Changed { from: 3, to: 3, mode });
        assert_eq!(check(&unknown), vec![]);
        breaks(SafetyProperty::ResetTakesAll, |h| {
            waited(h, "dan", 19, 9, 30);
            h.resets.push(reset(&[]));
            granted(h, 19, 30, 30, "dan");
            acted(h, 31, 32, StepKind::Seen(vec![30]));
        });
    }

    /// A client that believes its exclusive tenure has ended requests a shared lock, and gets no
    /// answer: the tenure may be shared by then, so that other sharers may join it.
    #[test]
    fn a_request_to_share_without_an_answer_may_have_changed_the_mode() {
        let ends = |asks: bool| {
            let mut history = History::default();
            let (ann, bob): (Who, Who) = ("ann".into(), "bob".into());
            history.tenure(0, 1, &ann);
            acted(&mut history, 1, 2, StepKind::Granted(1, Sharing::Alone));
            if asks {
                history.left_open_to_share(0, &ann, at(3));
            }
            history.tenure(0, 2, &bob);
            acted(&mut history, 4, 5, StepKind::Granted(2, Sharing::Shared));
            acted(&mut history, 6, 7, StepKind::Seen(vec![1, 2]));
            check(&history)
        };
        assert_eq!(ends(true), vec![]);
        assert_ne!(ends(false), vec![]);
    }

    #[test]
    fn sharers_may_overlap_and_a_client_learns_late_of_a_steal() {
        let mut history = History::default();
        for (token, who) in [(1, "ann"), (2, "bob")] {
            history.tenure(0, token, &who.into());
            acted(&mut history, token, token + 1, StepKind::Granted(token, Sharing::Shared));
            let (mode, who) = (Sharing::Shared, who.into());
            let (asked, from, until) = (at(token), at(token + 1), at(9));
            history.believed(Belief { lock: 0, token, who, mode, asked, from, until });
        }
        assert_eq!(check(&history), vec![]);
        history.tenure(0, 3, &"cat".into());
        acted(&mut history, 5, 6, StepKind::Stolen(3));
        believed(&mut history, 3, "cat", 6, 9);
        assert_eq!(check(&history)[0].promise, SafetyProperty::OneHolder);
        history.steals.push((0, at(5), 3));
        assert_eq!(check(&history), vec![]);
    }
}

#[cfg(test)]
mod linearizability_tests {
    use super::*;
    use Sharing::{Alone, Shared};

    fn act(from: u64, to: u64, what: StepKind) -> LockStep {
        let to = (to > 0).then(|| Time::from_secs(to));
        LockStep { from: Time::from_secs(from), to, what }
    }

    fn granted(token: Token) -> StepKind {
        StepKind::Granted(token, Alone)
    }

    fn seen(tokens: &[Token]) -> StepKind {
        StepKind::Seen(tokens.to_vec())
    }

    #[track_caller]
    fn fits(acts: &[LockStep]) {
        assert_eq!(search(acts.to_vec(), &[], None), SearchResult::Order);
    }

    #[track_caller]
    fn fits_not(acts: &[LockStep]) {
        let found = search(acts.to_vec(), &[], None);
        assert!(matches!(found, SearchResult::None(_)), "{found:?}");
    }

    #[test]
    fn overlapping_acts_may_be_in_either_order() {
        fits(&[
            act(1, 5, granted(1)),
            act(2, 4, seen(&[])),
            act(3, 6, seen(&[1])),
            act(7, 9, StepKind::Released(1)),
            act(8, 10, granted(2)),
        ]);
    }

    #[test]
    fn acts_that_do_not_overlap_keep_their_order() {
        let stale = [act(1, 2, granted(1)), act(3, 4, seen(&[]))];
        fits_not(&stale);
        let lapse = |from| [Lapse { token: 1, from: Time::from_secs(from) }];
        assert_eq!(search(stale.to_vec(), &lapse(4), None), SearchResult::Order);
        let short = search(stale.to_vec(), &lapse(5), None);
        assert!(matches!(short, SearchResult::None(_)), "the lease was cut short");
        fits_not(&[act(1, 2, granted(1)), act(3, 4, granted(2))]);
        fits_not(&[act(1, 2, granted(2)), act(3, 4, StepKind::Released(2)), act(5, 6, granted(1))]);
    }

    #[test]
    fn an_unknown_outcome_may_have_happened() {
        let open = act(1, 0, granted(7));
        fits(&[open.clone(), act(5, 6, seen(&[7]))]);
        fits(&[open, act(5, 6, seen(&[]))]);
        fits_not(&[act(7, 0, granted(7)), act(5, 6, seen(&[7]))]);
    }

    #[test]
    fn only_sharers_hold_a_lock_together() {
        let shared = |token| StepKind::Granted(token, Shared);
        fits(&[act(1, 2, shared(1)), act(3, 4, shared(2)), act(5, 6, seen(&[1, 2]))]);
        fits_not(&[act(1, 2, shared(1)), act(3, 4, granted(2))]);
        fits_not(&[act(1, 2, granted(1)), act(3, 4, shared(2))]);
        fits_not(&[act(1, 2, shared(1)), act(3, 4, shared(2)), act(5, 6, seen(&[2]))]);
    }

    #[test]
    fn only_a_sole_holder_changes_the_mode() {
        let shared = |token| StepKind::Granted(token, Shared);
        let up = |from, to| StepKind::Changed { from, to, mode: Alone };
        fits(&[act(1, 2, shared(1)), act(3, 4, up(1, 2)), act(5, 6, seen(&[2]))]);
        fits_not(&[act(1, 2, shared(1)), act(3, 4, shared(2)), act(5, 6, up(1, 3))]);
        fits_not(&[act(1, 2, shared(1)), act(3, 4, up(1, 2)), act(5, 6, shared(3))]);
        // The change to exclusive needs a new token, higher than any token so far.
        fits_not(&[act(1, 2, shared(1)), act(3, 4, up(1, 1))]);
        let two = [act(1, 2, shared(1)), act(3, 4, shared(2)), act(5, 6, StepKind::Released(2))];
        fits_not(&[&two[..], &[act(7, 8, up(1, 2))]].concat());
        fits(&[&two[..], &[act(7, 8, up(1, 3))]].concat());
        let down = StepKind::Changed { from: 1, to: 1, mode: Shared };
        fits(&[act(1, 2, shared(1)), act(3, 4, shared(2)), act(5, 6, down.clone())]);
        fits(&[act(1, 2, granted(1)), act(3, 4, down), act(5, 6, shared(2))]);
    }

    #[test]
    fn a_tenure_that_appeared_was_granted_changed_or_stolen() {
        let appeared =
            |was: &[Token], steal| StepKind::Appeared { token: 2, was: was.to_vec(), steal };
        let shared = StepKind::Granted(1, Shared);
        let all = |what| [act(1, 2, shared.clone()), act(3, 0, what), act(5, 6, seen(&[2]))];
        fits_not(&all(appeared(&[], false)));
        fits(&all(appeared(&[1], false)));
        fits(&all(appeared(&[], true)));
    }

    #[test]
    fn an_unseen_steal_ends_all_tenures() {
        let stolen = act(3, 0, StepKind::AllEnded);
        let lost = |from, to| act(from, to, StepKind::NotKept(1));
        fits_not(&[act(1, 2, granted(1)), lost(5, 6)]);
        fits(&[act(1, 2, granted(1)), stolen.clone(), lost(5, 6)]);
        fits_not(&[act(1, 2, granted(1)), lost(5, 6), act(7, 0, StepKind::AllEnded)]);
        fits_not(&[act(1, 2, granted(1)), stolen, lost(5, 6), act(7, 8, StepKind::Kept(1))]);
    }
}
