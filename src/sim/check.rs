//! What must be true of what the clients saw, whatever happened to the nodes.

use super::client::LOCKS;
use super::history::{Act, Belief, History, Lock, Place, Token, What};
use super::linear::{Found, Lapse, search};
use super::record::Record;
use crate::time::Time;
use std::collections::BTreeSet;

/// Looks for all that is wrong.
pub(super) fn check(record: &Record) {
    let history = record.history(std::mem::take);
    for wrong in &history.wrong {
        record.violation(format_args!("{wrong}"));
    }
    one_holder(record, &history);
    first_come_first_served(record, &history);
    for lock in 0..LOCKS {
        in_some_order(record, &history, lock);
    }
}

/// Nobody believes to hold what another one believes to hold, but who was robbed.
fn one_holder(record: &Record, history: &History) {
    let until = |belief: &Belief| {
        let robbed =
            |(lock, _, token): &&(Lock, Time, Token)| *lock == belief.lock && *token > belief.token;
        let steals = history.steals.iter().filter(robbed).map(|(_, from, _)| *from);
        steals.min().map_or(belief.until, |stolen| stolen.min(belief.until))
    };
    let mut beliefs: Vec<_> = history.beliefs.iter().collect();
    beliefs.sort_by_key(|belief| (belief.lock, belief.token, belief.from));
    for pair in beliefs.windows(2) {
        let (one, two) = (pair[0], pair[1]);
        let both = one.lock == two.lock && one.token != two.token;
        if both && one.from < until(one) && two.from < until(two) && until(one) > two.from {
            record.violation(format_args!(
                "two hold lock {}: {} (token {}) until {}, {} (token {}) from {}",
                one.lock,
                one.who,
                one.token,
                until(one),
                two.who,
                two.token,
                two.from
            ));
        }
    }
}

/// Who was in line first is served first, and nobody else before who was in line.
fn first_come_first_served(record: &Record, history: &History) {
    let served = |place: &Place| place.served.map(|token| (place.lock, place.ticket, token));
    let mut line: Vec<_> = history.places.iter().filter_map(served).collect();
    line.sort_unstable();
    for pair in line.windows(2) {
        let ((lock, ticket, token), (other_lock, next, later)) = (pair[0], pair[1]);
        if lock == other_lock && ticket < next && token > later {
            record.violation(format_args!(
                "place {next} in the line of lock {lock} was served before place {ticket}: tokens \
                 {later} and {token}"
            ));
        }
    }
    let from_line: BTreeSet<_> = line.iter().map(|(_, _, token)| *token).collect();
    for place in &history.places {
        let Some(token) = place.served else { continue };
        for act in history.acts.get(&place.lock).into_iter().flatten() {
            if let What::Granted(other) = act.what
                && act.from > place.told
                && other < token
                && !from_line.contains(&other)
            {
                record.violation(format_args!(
                    "{} was in line for lock {} since {}, and served with token {token} after \
                     token {other}, which was asked for at {}",
                    place.who, place.lock, place.told, act.from
                ));
            }
        }
    }
}

/// There is an order in which all of it can have happened.
fn in_some_order(record: &Record, history: &History, lock: Lock) {
    let mut acts = history.acts.get(&lock).cloned().unwrap_or_default();
    for token in unheard_of(&acts, history) {
        let Some((_, who)) = history.tenures.get(&token) else { continue };
        let Some(since) = history.open.get(&(lock, who.clone())) else {
            record.violation(format_args!("{who} has lock {lock} (token {token}), unasked"));
            continue;
        };
        // Who asked does not know what came of it: others do.
        let stolen = history.steals.iter().any(|(l, _, token)| *l == lock && *token == Token::MAX);
        let what = if stolen { What::Stolen(token) } else { What::Granted(token) };
        acts.push(Act { from: *since, to: None, what });
    }
    let tenures = history.tenures.iter().filter(|(_, (l, _))| *l == lock);
    let lapses: Vec<_> = tenures.map(|(token, _)| lapse(history, *token)).collect();
    match search(acts, &lapses) {
        Found::Order => {}
        Found::None(stuck) => record.violation(format_args!(
            "there is no order in which lock {lock} can have been so: {stuck}"
        )),
        Found::TooLong => {
            record.violation(format_args!("the search for an order of lock {lock} takes too long"));
        }
    }
}

/// Tenures that somebody was shown, and of whose beginning nobody was told.
fn unheard_of(acts: &[Act], history: &History) -> BTreeSet<Token> {
    let shown = acts.iter().filter_map(|act| match act.what {
        What::Seen(Some(token)) | What::Kept(token) => Some(token),
        _ => None,
    });
    shown.filter(|token| !history.granted.contains(token)).collect()
}

/// A tenure ends by itself when the last answer's time is over, or when its client has asked for
/// its end and does not know what came of it.
fn lapse(history: &History, token: Token) -> Lapse {
    let secured = history.secured.get(&token).copied().unwrap_or_default();
    let freed = history.freed.get(&token).copied().unwrap_or(Time::NEVER);
    Lapse { token, from: secured.min(freed) }
}
