//! Linearizability check: searches for an order of the operations on a lock in which each takes
//! effect at one moment between its request and its answer (Wing and Gong's search, with Lowe's
//! cache of the states already tried).
//!
//! The check knows nothing of the engine. A lock is a cell: the tokens of its holders, and whether
//! they share it. The expiry of a lease is an operation without a request, possible from the time
//! at which the lease could have expired.

use super::client_history::{LockStep, Sharing, StepKind, Token};
use crate::time::Time;
use std::collections::HashSet;

/// Iterations after which a search is given up. A history normally takes a few for each of its
/// operations.
const STEPS_MAX: usize = 2_000_000;

/// The expiry of a tenure (a client's hold of the lock): an operation without a request.
pub(super) struct Lapse {
    pub(super) token: Token,
    /// The earliest time at which the tenure may expire.
    pub(super) from: Time,
}

/// The outcome of the search for a valid order of the operations.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SearchResult {
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
}

impl Cell {
    /// Returns the states in which the lock may be after the operation `what`. The list is empty if
    /// the operation is not possible in this state.
    fn after(&self, what: &StepKind) -> Vec<Self> {
        let holds = |token: &Token| self.holders.contains(token);
        match what {
            StepKind::Granted(token, mode) => self.granted(*token, *mode).into_iter().collect(),
            StepKind::Stolen(token) => self.taken(*token).into_iter().collect(),
            StepKind::AllEnded => vec![Self { last: self.last, ..Self::default() }],
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
        let admits = self.holders.is_empty() || (self.shared && shared);
        (admits && token > self.last).then(|| {
            let mut holders = self.holders.clone();
            holders.push(token);
            Self { holders, shared, last: token }
        })
    }

    fn taken(&self, token: Token) -> Option<Self> {
        let holders = vec![token];
        (token > self.last).then_some(Self { holders, shared: false, last: token })
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
        (self.holders == [from] && is_right).then(|| Self { holders: vec![to], shared, last })
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
        Self { holders, shared, last: self.last }
    }

    /// Whether an operation never changes the state of the lock. The search applies such an
    /// operation as soon as it is possible.
    const fn only_looks(what: &StepKind) -> bool {
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
pub(super) fn search(mut acts: Vec<LockStep>, lapses: &[Lapse]) -> SearchResult {
    acts.sort_by_key(|act| (act.from, act.to));
    let mut lapses: Vec<_> = lapses.iter().map(|lapse| (lapse.token, lapse.from)).collect();
    lapses.sort_unstable();
    let start = SearchState { first: 0, done: vec![], cell: Cell::default() };
    let (mut tried, mut furthest, mut stack) = (HashSet::new(), start.clone(), vec![start]);
    for _ in 0..STEPS_MAX {
        let Some(mut place) = stack.pop() else {
            return SearchResult::None(furthest.stuck_at(&acts));
        };
        place.look_on(&acts);
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
    fn look_on(&mut self, acts: &[LockStep]) {
        loop {
            let by = self.deadline(acts);
            let can = |at: &usize| {
                let what = &acts[*at].what;
                Cell::only_looks(what) && !self.is_done(*at) && !self.cell.after(what).is_empty()
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
        assert_eq!(search(acts.to_vec(), &[]), SearchResult::Order);
    }

    #[track_caller]
    fn fits_not(acts: &[LockStep]) {
        let found = search(acts.to_vec(), &[]);
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
        assert_eq!(search(stale.to_vec(), &lapse(4)), SearchResult::Order);
        let short = search(stale.to_vec(), &lapse(5));
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
