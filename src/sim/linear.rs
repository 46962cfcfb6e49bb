//! Whether there is an order in which all that the clients saw can have happened, one thing at a
//! time, each between its question and its answer (Wing and Gong's search, with Lowe's memory).
//!
//! Nothing of the engine is known here. A lock is a cell: empty, or the token of a tenure. What a
//! lock forgets by itself (a lease that runs out) may happen from when on it could have run out.

use super::history::{Act, Token, What};
use crate::time::Time;
use std::collections::HashSet;

/// Steps of a search after which it is given up: a history of twenty seconds takes some thousands.
const STEPS_MAX: usize = 2_000_000;

/// Something that may happen by itself: a tenure is over.
pub(super) struct Lapse {
    pub(super) token: Token,
    /// Not before.
    pub(super) from: Time,
}

/// What a search came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An order.
    Order,
    /// None: this is the first answer that no order explains, of those that it came to.
    None(String),
    /// Neither, in so many steps.
    TooLong,
}

/// The cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Cell {
    held: Option<Token>,
    /// The highest token so far.
    last: Token,
}

impl Cell {
    /// What it is afterwards, if `what` can happen now.
    fn after(self, what: What) -> Option<Self> {
        let (held, last) = (self.held, self.last);
        match what {
            What::Granted(token) => {
                (held.is_none() && token > last).then_some(Self { held: Some(token), last: token })
            }
            What::Stolen(token) => {
                (token > last).then_some(Self { held: Some(token), last: token })
            }
            What::Kept(token) => (held == Some(token)).then_some(self),
            What::NotKept(token) => (held != Some(token)).then_some(self),
            What::Released(token) => (held == Some(token)).then_some(Self { held: None, last }),
            What::Seen(seen) => (held == seen).then_some(self),
        }
    }

    /// Whether `what` leaves it as it is, so that there is no reason to put it off.
    const fn only_looks(what: What) -> bool {
        matches!(what, What::Kept(_) | What::NotKept(_) | What::Seen(_))
    }
}

/// How far a search has come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    /// All acts before this one are done, ...
    first: usize,
    /// ... and these behind it.
    done: Vec<bool>,
    cell: Cell,
}

/// Looks for an order.
pub(super) fn search(mut acts: Vec<Act>, lapses: &[Lapse]) -> Found {
    acts.sort_by_key(|act| (act.from, act.to));
    let mut lapses: Vec<_> = lapses.iter().map(|lapse| (lapse.token, lapse.from)).collect();
    lapses.sort_unstable();
    let start = Place { first: 0, done: vec![], cell: Cell::default() };
    let (mut tried, mut stack, mut furthest) = (HashSet::new(), vec![start], 0);
    let mut why_not = String::new();
    for _ in 0..STEPS_MAX {
        let Some(mut place) = stack.pop() else { return Found::None(why_not) };
        place.look_on(&acts);
        if !(place.first..acts.len()).any(|at| acts[at].to.is_some() && !place.is_done(at)) {
            return Found::Order;
        }
        if !tried.insert(place.clone()) {
            continue;
        }
        let by = place.deadline(&acts);
        if place.first >= furthest {
            furthest = place.first;
            let open = (place.first..acts.len()).filter(|at| !place.is_done(*at));
            let due = open.filter(|at| acts[*at].from <= by).map(|at| &acts[at]);
            why_not = format!("{:?}, before {by}: {:?}", place.cell, due.collect::<Vec<_>>());
        }
        if let Some(token) = place.cell.held
            && let Ok(at) = lapses.binary_search_by_key(&token, |(token, _)| *token)
            && lapses[at].1 <= by
        {
            let mut next = place.clone();
            next.cell.held = None;
            stack.push(next);
        }
        let open = place.first..acts.len();
        for at in open.take_while(|at| acts[*at].from <= by).collect::<Vec<_>>().into_iter().rev() {
            if place.is_done(at) {
                continue;
            }
            if let Some(cell) = place.cell.after(acts[at].what) {
                let mut next = Place { cell, ..place.clone() };
                next.do_it(at);
                stack.push(next);
            }
        }
    }
    Found::TooLong
}

impl Place {
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

    /// The first answer among what is not done: what happens next was asked before that.
    fn deadline(&self, acts: &[Act]) -> Time {
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

    /// Does all that only looks and can be done: no order is lost by that.
    fn look_on(&mut self, acts: &[Act]) {
        loop {
            let by = self.deadline(acts);
            let can = |at: &usize| {
                let what = acts[*at].what;
                Cell::only_looks(what) && !self.is_done(*at) && self.cell.after(what).is_some()
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

    fn act(from: u64, to: u64, what: What) -> Act {
        let to = (to > 0).then(|| Time::from_secs(to));
        Act { from: Time::from_secs(from), to, what }
    }

    #[test]
    fn what_overlaps_may_be_in_either_order() {
        let acts = vec![
            act(1, 5, What::Granted(1)),
            act(2, 4, What::Seen(None)),
            act(3, 6, What::Seen(Some(1))),
            act(7, 9, What::Released(1)),
            act(8, 10, What::Granted(2)),
        ];
        assert_eq!(search(acts, &[]), Found::Order);
    }

    #[test]
    fn what_came_before_is_before() {
        let stale = vec![act(1, 2, What::Granted(1)), act(3, 4, What::Seen(None))];
        assert!(matches!(search(stale.clone(), &[]), Found::None(_)));
        let lapse = |from| [Lapse { token: 1, from: Time::from_secs(from) }];
        assert_eq!(search(stale.clone(), &lapse(4)), Found::Order);
        assert!(matches!(search(stale, &lapse(5)), Found::None(_)), "it was cut short");
        let twice = vec![act(1, 2, What::Granted(1)), act(3, 4, What::Granted(2))];
        assert!(matches!(search(twice, &[]), Found::None(_)));
        let back = vec![
            act(1, 2, What::Granted(2)),
            act(3, 4, What::Released(2)),
            act(5, 6, What::Granted(1)),
        ];
        assert!(matches!(search(back, &[]), Found::None(_)), "tokens rise");
    }

    #[test]
    fn what_nobody_heard_of_may_have_happened() {
        let acts = vec![act(1, 0, What::Granted(7)), act(5, 6, What::Seen(Some(7)))];
        assert_eq!(search(acts.clone(), &[]), Found::Order);
        assert_eq!(search(vec![acts[0].clone(), act(5, 6, What::Seen(None))], &[]), Found::Order);
        let later = vec![act(7, 0, What::Granted(7)), act(5, 6, What::Seen(Some(7)))];
        assert!(matches!(search(later, &[]), Found::None(_)));
    }
}
