//! The lock table's input from the engine: answers to lock requests, and events.

use crate::engine::{
    Answer, ClientId, LeaseKey, LockName, Op, Outcome, Ownership, Release, Ticket, Token,
};
use crate::fuse::posix_locks::table::locked_file::{Asking, Early, File, Wants};
use crate::fuse::posix_locks::table::messages::{Effect, Found, Recall};
use crate::fuse::posix_locks::table::table_state::Table;
use crate::fuse::posix_locks::table::unlock::leave;

/// The maximum number of ended leases whose tokens are remembered while an answer is pending. At
/// 1,000 ends a second, which many machines together may cause, that lasts as long as any lock
/// service lets a request wait for its answer.
const OVER_MAX: usize = 8_192;

impl<R> Table<R> {
    /// Handles the engine's answer to the lock request that was submitted with the number `cookie`.
    pub(crate) fn answered(
        &mut self,
        cookie: u64,
        ino: u64,
        of: (Ownership, LockName, ClientId),
        answered: Answer,
        todo: &mut Vec<Effect<R>>,
    ) {
        let asking = self.files.get_mut(&ino).and_then(|file| file.take(|a| a.cookie == cookie));
        let Some(mut asking) = asking else { return Self::unasked(of, &answered, todo) };
        let number = asking.number;
        let early = asking.early.as_ref().map(|early| early.key.clone());
        let mut renewed = None;
        if let Ok(Outcome::Renewed(tenure)) = &answered {
            // An upgrade to exclusive mode gives the lease a new token, and `mv` may have renamed
            // the lock and renamed it back.
            self.renamed(number, tenure.token, &asking.ask.name);
            todo.push(Effect::Continues(asking.ask.name.clone(), tenure.token));
            renewed = self.key_of(number);
        }
        match answered {
            Ok(Outcome::Waiting { ticket, .. }) => self.in_line(asking, ticket, todo),
            Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) if asking.is_wanted() => {
                let key = renewed.unwrap_or_else(|| asking.latest(tenure.token));
                self.grant(asking, key, todo);
            }
            Err(refusal) if asking.is_wanted() => {
                self.refused(asking, refusal, todo);
                self.fit_bundle(ino, todo);
            }
            answered => {
                self.undo(asking, &answered, todo);
                self.fit_bundle(ino, todo);
            }
        }
        if let Some(key) = early {
            // An event may have reported a lease with the number of this request that does not
            // belong to the request: a former lease, which `mv` moved and which was released while
            // the request was pending.
            self.found_stray(number, key, todo);
        }
        self.answer_came();
    }

    /// Releases the lock, or leaves the queue, if the answer to a request that the table no longer
    /// knows is a grant or a queue place: no owner would ever release it.
    fn unasked(
        (hold, name, client): (Ownership, LockName, ClientId),
        answered: &Answer,
        todo: &mut Vec<Effect<R>>,
    ) {
        match answered {
            Ok(Outcome::Granted(tenure)) => {
                let key = LeaseKey { name, client, token: Some(tenure.token) };
                let release = Release { open: hold.open(), ..Release::of(key) };
                todo.push(Effect::Tell(Box::new(Op::Release(release)), None));
            }
            Ok(Outcome::Waiting { ticket, .. }) => todo.push(leave(name, *ticket)),
            Ok(_) | Err(_) => {}
        }
    }

    /// Handles the answer that a request waits in the queue of its lock. The event that the lock
    /// was granted to this waiter may have come before the answer.
    pub(super) fn in_line(
        &mut self,
        mut asking: Asking<R>,
        ticket: Ticket,
        todo: &mut Vec<Effect<R>>,
    ) {
        let ino = asking.ask.ino;
        asking.ticket = Some(ticket);
        match asking.early.take() {
            Some(early) if early.ticket == Some(ticket) => {
                return self.served(asking, early.key, todo);
            }
            // The reported lease is an earlier one with the same number, which `mv` moved while the
            // request was under way.
            Some(early) => self.give_back_unknown(asking.number, early.key, todo),
            None => {}
        }
        if asking.gone {
            self.leaving.insert(ticket, ino);
            todo.push(leave(asking.ask.name.clone(), ticket));
        } else if asking.wants == Wants::Bundle && self.file(ino).is_covered_beside(asking.number) {
            // The lease of another owner was converted while the request was under way.
            self.withdraw(asking, todo);
            return self.requeue(ino, todo);
        } else {
            todo.push(Effect::Watch(asking.number, asking.ask.tid));
            if asking.news {
                // The lock may have changed before this answer came, and the event of the grant may
                // have been lost.
                todo.push(Effect::Recall(asking.recall()));
            }
        }
        let file = self.files.entry(ino).or_default();
        file.asks.push(asking);
        if !file.behind.is_empty() {
            self.requeue(ino, todo);
        }
    }

    /// Handles the grant of the lock to a waiting request.
    pub(super) fn served(&mut self, asking: Asking<R>, key: LeaseKey, todo: &mut Vec<Effect<R>>) {
        let ino = asking.ask.ino;
        if let Some(ticket) = asking.ticket {
            self.leaving.remove(&ticket);
        }
        match key.token {
            Some(_) if !asking.gone => self.grant(asking, key, todo),
            _ => {
                self.give_back_unknown(asking.number, key, todo);
                self.requeue(ino, todo);
            }
        }
    }

    /// Handles the engine's answer to a lock request that its program has given up, or to a
    /// downgrade: releases a lock that was granted to the request.
    pub(super) fn undo(
        &mut self,
        mut asking: Asking<R>,
        answered: &Answer,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) = answered else { return };
        let held = self.files.get(&asking.ask.ino).and_then(|file| file.held(asking.number));
        let Some(held) = held.filter(|held| held.token >= tenure.token) else {
            let number = asking.number;
            let key = asking.latest(tenure.token);
            if held.is_none() && matches!(answered, Ok(Outcome::Renewed(_))) {
                // The request renewed a lease that was released after it. No event of the end is
                // awaited, since the token may be an earlier one of that lease.
                return self.found_stray(number, key, todo);
            }
            return self.give_back_unknown(number, key, todo);
        };
        let key = held.key();
        // The request changed the mode of a lease that its owner still uses: record the new mode.
        asking.reply = None;
        if asking.wants != Wants::Less {
            self.grant(asking, key, todo);
        }
    }

    pub(crate) fn answer_came(&mut self) {
        self.unanswered -= 1;
        if self.unanswered == 0 {
            self.over.clear();
        }
    }

    /// Handles the event that the lease `key` of this session was granted. `number` is the lease
    /// number (the `number` of its [`OpenId`](crate::engine::OpenId)). `waited` is the ticket of
    /// the waiter to which the lock was granted; `None` if the request did not wait.
    pub(crate) fn granted(
        &mut self,
        number: u64,
        waited: Option<Ticket>,
        key: LeaseKey,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(token) = key.token else { return };
        let moved = if waited.is_none() { self.moved.take() } else { None };
        // A lease with this number and a lower token was moved or upgraded: it has the new token
        // now, so no event announces the end of the old one.
        self.released.retain(|(of, earlier)| *of != number || *earlier >= token);
        let goes_on = |name: &LockName, token: Option<Token>| {
            *name == key.name || token.is_some() && moved == token
        };
        let file = self.numbers.get(&number).and_then(|ino| self.files.get_mut(ino));
        let Some(file) = file.filter(|file| file.uses(number)) else {
            // The table does not know the lease number: an answer was lost or came too late.
            return self.give_back_unknown(number, key, todo);
        };
        if let Some(ticket) = waited
            && let Some(asking) = file.take(|a| a.number == number && a.ticket == Some(ticket))
        {
            return self.served(asking, key, todo);
        }
        let held = file.held(number);
        if held.is_some_and(|held| goes_on(&held.name, Some(held.token))) {
            return self.renamed(number, token, &key.name);
        }
        let is_held = held.is_some();
        let mut asks = file.asks.iter_mut();
        match asks.find(|asking| asking.number == number && asking.ticket.is_none()) {
            // The answer to the pending request will tell whether the new lease belongs to this
            // request.
            Some(asking) if !is_held || asking.may_begin(goes_on) => {
                let before = asking.early.take();
                let ticket = waited.or(before.as_ref().and_then(|early| early.ticket));
                // If the pending request was given up, a lease that was reported for it earlier
                // belongs to no owner, and is released. The exception is a lease that the new event
                // reports under another name or token.
                let other = before.map(|early| early.key);
                let other =
                    other.filter(|key| !asking.is_wanted() && !goes_on(&key.name, key.token));
                asking.early = Some(Early { ticket, key });
                if let Some(other) = other {
                    self.give_back_unknown(number, other, todo);
                }
            }
            _ => self.give_back_unknown(number, key, todo),
        }
    }

    /// Updates the token and name of the lease with this number, as after `mv`, unless it has a
    /// later token already.
    pub(crate) fn renamed(&mut self, number: u64, token: Token, name: &LockName) {
        let Some(&ino) = self.numbers.get(&number) else { return };
        let held = self.files.get_mut(&ino).and_then(|file| file.held_mut(number));
        let Some(held) = held.filter(|held| held.token < token) else { return };
        self.tenures.remove(&held.token);
        self.tenures.insert(token, ino);
        (held.token, held.name) = (token, name.clone());
    }

    /// Remembers that the lease with this token has ended, so that a late answer does not bring it
    /// back.
    pub(super) fn remember_over(&mut self, token: Token) {
        if self.unanswered > 0 {
            self.over.insert(token);
            if self.over.len() > OVER_MAX {
                self.over.pop_first();
            }
        }
    }

    /// Handles the event that a lease has ended: it was lost, was stolen, or its lock was removed
    /// by name.
    pub(crate) fn ended(&mut self, token: Token, todo: &mut Vec<Effect<R>>) {
        self.remember_over(token);
        self.released.retain(|(_, other)| *other != token);
        self.links.ended(token);
        let Some(ino) = self.tenures.remove(&token) else { return };
        let file = self.files.entry(ino).or_default();
        file.holds.retain(|held| held.token != token);
        if file.bundle.as_ref().is_some_and(|bundle| bundle.held.token == token) {
            file.bundle = None;
        }
        self.requeue(ino, todo);
    }

    /// Handles the event that `mv` has moved the lease with this token. The event of the grant
    /// under the new name follows; it names the lease number, by which [`Table::granted`] finds the
    /// moved lease.
    pub(crate) fn moved(&mut self, token: Token, name: &LockName, todo: &mut Vec<Effect<R>>) {
        self.moved = Some(token);
        self.changed(name, todo);
    }

    /// Handles a change of the lock `name`: requests that wait because the engine has refused them
    /// are tried again.
    pub(crate) fn changed(&mut self, name: &LockName, todo: &mut Vec<Effect<R>>) {
        let waits = |ino: &&u64| self.files.get(ino).is_some_and(|file| file.speaks_of(name));
        let inos: Vec<_> = self.queued.iter().filter(waits).copied().collect();
        for ino in inos {
            if let Some(file) = self.files.get_mut(&ino) {
                file.hear();
            }
            self.requeue(ino, todo);
        }
    }

    /// Handles the event that a waiter has left the queue of the lock `name`, on its own or by its
    /// timeout.
    pub(crate) fn left(&mut self, ticket: Ticket, name: &LockName, todo: &mut Vec<Effect<R>>) {
        if let Some(ino) = self.leaving.remove(&ticket) {
            let file = self.files.get_mut(&ino);
            file.and_then(|file| file.take(|asking| asking.ticket == Some(ticket)));
            self.requeue(ino, todo);
        }
        self.changed(name, todo);
    }

    /// Handles a lock request that got no answer and whose outcome is unknown. Returns the reply
    /// channel of the program; the caller must report the failure on it.
    pub(crate) fn unanswered(
        &mut self,
        cookie: u64,
        ino: u64,
        todo: &mut Vec<Effect<R>>,
    ) -> Option<R> {
        let asking = self.files.get_mut(&ino)?.take(|asking| asking.cookie == cookie)?;
        // The request may have been applied, or may still be applied.
        todo.push(Effect::Recall(asking.recall()));
        asking.spend(&mut self.spent);
        if let Some(Early { key, .. }) = asking.early {
            self.give_back_unknown(asking.number, key, todo);
        }
        self.answer_came();
        self.fit_bundle(ino, todo);
        asking.reply
    }

    /// Handles a loss of events: queries the engine for all leases and pending requests in the
    /// table.
    pub(crate) fn missed(&mut self, todo: &mut Vec<Effect<R>>) {
        self.released.clear();
        self.moved = None;
        todo.extend(self.known().into_iter().map(Effect::Recall));
        todo.push(Effect::Compare);
    }

    /// Returns queries for all leases and submitted requests in the table.
    pub(super) fn known(&self) -> Vec<Recall> {
        let of_file = |file: &File<R>| {
            let bundle = file.bundle.iter().map(|bundle| &bundle.held);
            let held = file.holds.iter().chain(bundle);
            let held = held.map(|held| {
                let (number, name, token) = (held.number, held.name.clone(), Some(held.token));
                Recall { number, name, token }
            });
            held.chain(file.asks.iter().map(Asking::recall)).collect::<Vec<_>>()
        };
        self.files.values().flat_map(of_file).collect()
    }

    /// Handles the engine's reply to a [`Recall`], the query for a lease after events or an answer
    /// were lost.
    pub(crate) fn recalled(&mut self, asked: &Recall, found: &Found, todo: &mut Vec<Effect<R>>) {
        let number = asked.number;
        let lease = found.lease.clone();
        if let Some(key) = lease.clone().filter(|_| self.is_unknown(number)) {
            return self.found_stray(number, key, todo);
        }
        let Some(ino) = self.numbers.get(&number).copied() else { return };
        let Some(file) = self.files.get_mut(&ino) else { return };
        file.hear();
        match (file.held(number).map(|held| (held.token, &held.name)), lease) {
            (Some((token, name)), None) if *name == asked.name && Some(token) == asked.token => {
                self.ended(token, todo);
            }
            // The query was for another name or token than the lease has now: the lock was granted
            // after the query, or `mv` has moved it.
            (Some(_), None) => {}
            (Some((token, name)), Some(key)) if *name == key.name || key.token <= Some(token) => {
                self.renamed(number, key.token.unwrap_or(token), &key.name);
            }
            (_, lease) => {
                let in_line =
                    |asking: &Asking<R>| asking.number == number && asking.ticket.is_some();
                let asking = file.take(in_line);
                match (asking, lease) {
                    (Some(asking), Some(key)) => self.served(asking, key, todo),
                    (Some(asking), None) => self.stands(asking, &found.tickets, todo),
                    (None, Some(key)) => file.heard_early(number, key),
                    (None, None) => {}
                }
            }
        }
        self.fit_bundle(ino, todo);
    }

    /// Keeps a waiting request if its ticket is still in the queue of the lock. If the ticket is
    /// gone although the program has not given up the wait, submits the request again, because the
    /// program still waits.
    pub(super) fn stands(
        &mut self,
        mut asking: Asking<R>,
        tickets: &[Ticket],
        todo: &mut Vec<Effect<R>>,
    ) {
        let ino = asking.ask.ino;
        let Some(ticket) = asking.ticket else { return };
        if tickets.contains(&ticket) {
            self.files.entry(ino).or_default().asks.push(asking);
        } else if asking.gone {
            self.leaving.remove(&ticket);
        } else {
            // The engine may have a lease with the request's former lease number under another
            // name, so the request gets a new number.
            asking.spend(&mut self.spent);
            asking.number = self.extra_number(ino);
            self.submit(asking, todo);
        }
    }

    /// Handles a lease of this session that the engine has reported: releases it if no lease and no
    /// request in the table has its number.
    pub(crate) fn found_stray(&mut self, number: u64, key: LeaseKey, todo: &mut Vec<Effect<R>>) {
        // An event may have announced the end of the lease before, so the table does not wait for
        // one.
        let is_released = |token| self.released.contains(&(number, token));
        if self.is_unknown(number) && !key.token.is_some_and(is_released) {
            todo.push(self.release(number, key));
        }
    }

    /// Returns the present name and token of the lease with this number (unique within the
    /// session).
    pub(super) fn key_of(&self, number: u64) -> Option<LeaseKey> {
        let file = self.files.get(self.numbers.get(&number)?)?;
        Some(file.held(number)?.key())
    }

    /// Whether no lease and no submitted request in the table has this lease number (unique within
    /// the session).
    pub(super) fn is_unknown(&self, number: u64) -> bool {
        let file = self.numbers.get(&number).and_then(|ino| self.files.get(ino));
        !file.is_some_and(|file| file.uses(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SessionId;

    #[test]
    fn a_limited_number_of_ended_leases_is_remembered_for_late_answers() {
        let mut table = Table::<()>::new(SessionId::named(1));
        table.ended(Token::named(7), &mut Vec::new());
        assert!(table.over.is_empty(), "no answer can bring it back");
        table.unanswered = 1;
        for number in 0..=OVER_MAX as u64 {
            table.ended(Token::named(number), &mut Vec::new());
        }
        let oldest = table.over.first().copied();
        assert_eq!((table.over.len(), oldest), (OVER_MAX, Some(Token::named(1))));
        table.answer_came();
        assert!(table.over.is_empty());
    }
}
