//! What the engine says: answers to requests, and events.

use super::Table;
use super::ask::Effect;
use super::file::{Asking, File};
use crate::engine::{
    Answer, ClientId, LeaseKey, Leave, LockName, Op, Outcome, Release, Ticket, Token, Why,
};

impl<R> Table<R> {
    /// The engine has answered what was submitted under `cookie`.
    pub(in crate::fs::locking) fn answered(
        &mut self,
        cookie: u64,
        ino: u64,
        of: (LockName, ClientId),
        answered: Answer,
        todo: &mut Vec<Effect<R>>,
    ) {
        let asking = self.files.get_mut(&ino).and_then(|file| file.take(|a| a.cookie == cookie));
        let asking = match asking {
            Some(asking) if asking.gone => return self.undo(asking, answered, todo),
            asking => asking,
        };
        match (answered, asking) {
            (Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)), Some(asking)) => {
                self.grant(asking, tenure.token, todo);
            }
            (Ok(Outcome::Granted(tenure)), None) => {
                let (name, client) = of;
                let key = LeaseKey { name, client, token: Some(tenure.token) };
                self.give_back_unknown(key, todo);
            }
            (Ok(Outcome::Waiting { ticket, .. }), Some(mut asking)) => {
                asking.ticket = Some(ticket);
                todo.push(Effect::Watch(asking.number, asking.ask.tid));
                self.files.entry(ino).or_default().asks.push(asking);
            }
            (Ok(Outcome::Waiting { ticket, .. }), None) => {
                // It was closed meanwhile, or the event that it is served came first: then this
                // is refused, and does no harm.
                let why = Why::Gone;
                todo.push(Effect::Tell(Box::new(Op::Leave(Leave { name: of.0, ticket, why }))));
            }
            (Err(refusal), Some(asking)) => self.refused(asking, refusal, todo),
            (Ok(_) | Err(_), _) => {}
        }
    }

    /// The engine has answered what nobody wants any more.
    fn undo(&mut self, asking: Asking<R>, answered: Answer, todo: &mut Vec<Effect<R>>) {
        let (number, ino) = (asking.number, asking.ask.ino);
        match answered {
            Ok(Outcome::Granted(tenure)) => {
                self.give_back_unknown(key_of(asking, tenure.token), todo)
            }
            Ok(Outcome::Waiting { ticket, .. }) => {
                let (name, why) = (asking.ask.name, Why::Gone);
                todo.push(Effect::Tell(Box::new(Op::Leave(Leave { name, ticket, why }))));
            }
            // What it had is had in another mode now, if it was not given back meanwhile.
            Ok(Outcome::Renewed(tenure)) if self.has(ino, number) => {
                self.grant(asking, tenure.token, todo);
            }
            Ok(_) | Err(_) => {}
        }
        self.requeue(ino, todo);
    }

    /// Whether the hold of this number is there.
    fn has(&self, ino: u64, number: u64) -> bool {
        let Some(file) = self.files.get(&ino) else { return false };
        let bundle = file.bundle.iter().map(|bundle| &bundle.held);
        file.holds.iter().chain(bundle).any(|held| held.number == number)
    }

    /// An event: a tenure of this mount's `number` began. `waited`: for a place in line, and not
    /// by an answer of its own.
    pub(in crate::fs::locking) fn granted(
        &mut self,
        number: u64,
        waited: Option<Ticket>,
        key: LeaseKey,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(token) = key.token else { return };
        let known = self.renamed(number, token, &key.name);
        let Some(ticket) = waited else { return };
        let file = self.numbers.get(&number).and_then(|ino| self.files.get_mut(ino));
        // The event may be here before the answer that brings the ticket.
        let served = |asking: &Asking<R>| {
            asking.number == number && asking.ticket.is_none_or(|own| own == ticket)
        };
        match file.and_then(|file| file.take(served)) {
            Some(asking) if asking.gone => {
                let ino = asking.ask.ino;
                self.give_back_unknown(key, todo);
                self.requeue(ino, todo);
            }
            Some(asking) if !known => self.grant(asking, token, todo),
            _ if !known => self.give_back_unknown(key, todo),
            _ => {}
        }
    }

    /// Granted while the asker was leaving: nobody else would ever give it back.
    pub(super) fn give_back_unknown(&self, key: LeaseKey, todo: &mut Vec<Effect<R>>) {
        if key.token.is_some_and(|token| !self.tenures.contains_key(&token)) {
            todo.push(Effect::Tell(Box::new(Op::Release(Release { key }))));
        }
    }

    /// `mv` has carried a hold over, or this is news of what is known. False: of nothing here.
    pub(super) fn renamed(&mut self, number: u64, token: Token, name: &LockName) -> bool {
        let Some(&ino) = self.numbers.get(&number) else { return false };
        let Some(file) = self.files.get_mut(&ino) else { return false };
        let bundle = file.bundle.iter_mut().map(|bundle| &mut bundle.held);
        let held = file.holds.iter_mut().chain(bundle).find(|held| held.number == number);
        let Some(held) = held else { return false };
        self.tenures.remove(&held.token);
        self.tenures.insert(token, ino);
        held.token = token;
        held.name = name.clone();
        true
    }

    /// The engine has ended a tenure: lost, stolen, or removed by name.
    pub(in crate::fs::locking) fn ended(&mut self, token: Token, todo: &mut Vec<Effect<R>>) {
        let Some(ino) = self.tenures.remove(&token) else { return };
        let file = self.files.entry(ino).or_default();
        file.holds.retain(|held| held.token != token);
        if file.bundle.as_ref().is_some_and(|bundle| bundle.held.token == token) {
            file.bundle = None;
        }
        self.requeue(ino, todo);
    }

    /// Something has changed about a lock: who could not become its sole holder may try again.
    pub(in crate::fs::locking) fn changed(&mut self, name: &LockName, todo: &mut Vec<Effect<R>>) {
        let waits = |ino: &&u64| {
            let queue = self.files.get(ino).map(|file| &file.queue);
            queue.is_some_and(|queue| queue.iter().any(|asking| asking.ask.name == *name))
        };
        let inos: Vec<_> = self.queued.iter().filter(waits).copied().collect();
        for ino in inos {
            self.requeue(ino, todo);
        }
    }

    /// No answer has come, and none will: the outcome is unknown. Gives back whom to tell so.
    pub(in crate::fs::locking) fn unanswered(&mut self, cookie: u64, ino: u64) -> Option<R> {
        let asking = self.files.get_mut(&ino)?.take(|asking| asking.cookie == cookie);
        self.tidy(ino);
        asking?.reply
    }

    /// All that is held or waited for, with the lock's name.
    pub(in crate::fs::locking) fn known(&self) -> Vec<(u64, LockName)> {
        let of_file = |file: &File<R>| {
            let bundle = file.bundle.iter().map(|bundle| &bundle.held);
            let held = file.holds.iter().chain(bundle);
            let asks = file.asks.iter().map(|asking| (asking.number, asking.ask.name.clone()));
            held.map(|held| (held.number, held.name.clone())).chain(asks).collect::<Vec<_>>()
        };
        self.files.values().flat_map(of_file).collect()
    }

    /// What the engine says of a number after events were lost: its lease, if it has one.
    pub(in crate::fs::locking) fn recalled(
        &mut self,
        number: u64,
        lease: Option<LeaseKey>,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(file) = self.numbers.get(&number).and_then(|ino| self.files.get_mut(ino)) else {
            return;
        };
        let bundle = file.bundle.iter().map(|bundle| &bundle.held);
        let held = file.holds.iter().chain(bundle).find(|held| held.number == number);
        match (held.map(|held| held.token), lease) {
            (Some(token), None) => self.ended(token, todo),
            (Some(token), Some(key)) => {
                self.renamed(number, key.token.unwrap_or(token), &key.name);
            }
            (None, Some(LeaseKey { token: Some(token), .. })) => {
                let in_line =
                    |asking: &Asking<R>| asking.number == number && asking.ticket.is_some();
                if let Some(asking) = file.take(in_line) {
                    self.grant(asking, token, todo);
                }
            }
            (None, _) => {}
        }
    }
}

fn key_of<R>(asking: Asking<R>, token: Token) -> LeaseKey {
    LeaseKey { name: asking.ask.name, client: asking.ask.client, token: Some(token) }
}
