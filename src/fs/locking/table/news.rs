//! What the engine says: answers to requests, and events.

use super::Table;
use super::ask::Effect;
use super::file::{Asking, Early, File, Wants};
use super::leave::leave;
use crate::engine::{Answer, ClientId, LeaseKey, LockName, Op, Outcome, Release, Ticket, Token};

/// How many ends are remembered while an answer is on its way: at 1,000 a second, which many
/// machines together may cause, as long as any door lets one wait for an answer.
const OVER_MAX: usize = 8_192;

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
        let Some(asking) = asking else { return self.unasked(of, &answered, todo) };
        match answered {
            Ok(Outcome::Waiting { ticket, .. }) => self.in_line(asking, ticket, todo),
            Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure))
                if !asking.gone && asking.wants != Wants::Less =>
            {
                self.grant(asking, tenure.token, todo);
            }
            Err(refusal) if !asking.gone && asking.wants != Wants::Less => {
                self.refused(asking, refusal, todo);
                self.fit_bundle(ino, todo);
            }
            answered => {
                self.undo(asking, &answered, todo);
                self.fit_bundle(ino, todo);
            }
        }
        self.answer_came();
    }

    /// An answer to what is not known any more: nobody else would ever give it back.
    fn unasked(
        &mut self,
        (name, client): (LockName, ClientId),
        answered: &Answer,
        todo: &mut Vec<Effect<R>>,
    ) {
        match *answered {
            Ok(Outcome::Granted(tenure)) => {
                let key = LeaseKey { name, client, token: Some(tenure.token) };
                self.give_back_unknown(key, todo);
            }
            Ok(Outcome::Waiting { ticket, .. }) => todo.push(leave(name, ticket)),
            Ok(_) | Err(_) => {}
        }
    }

    /// It stands in line, or did: the event that it is served may have come before.
    fn in_line(&mut self, mut asking: Asking<R>, ticket: Ticket, todo: &mut Vec<Effect<R>>) {
        let ino = asking.ask.ino;
        asking.ticket = Some(ticket);
        match asking.early.take() {
            Some(early) if early.ticket == Some(ticket) => {
                return self.served(asking, early.key, todo);
            }
            early => asking.early = early,
        }
        if asking.gone {
            self.leaving.insert(ticket, ino);
            todo.push(leave(asking.ask.name.clone(), ticket));
        } else {
            todo.push(Effect::Watch(asking.number, asking.ask.tid));
            if asking.news {
                // Events were lost, perhaps that of its grant.
                todo.push(Effect::Recall((asking.number, asking.ask.name.clone())));
            }
        }
        let file = self.files.entry(ino).or_default();
        file.asks.push(asking);
        if !file.behind.is_empty() {
            self.requeue(ino, todo);
        }
    }

    /// A place in line was served.
    fn served(&mut self, mut asking: Asking<R>, key: LeaseKey, todo: &mut Vec<Effect<R>>) {
        let ino = asking.ask.ino;
        if let Some(ticket) = asking.ticket {
            self.leaving.remove(&ticket);
        }
        match key.token {
            Some(token) if !asking.gone => {
                asking.ask.name = key.name;
                self.grant(asking, token, todo);
            }
            _ => {
                self.give_back_unknown(key, todo);
                self.requeue(ino, todo);
            }
        }
    }

    /// The engine has answered what nobody wants any more.
    fn undo(&mut self, mut asking: Asking<R>, answered: &Answer, todo: &mut Vec<Effect<R>>) {
        let Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) = answered else { return };
        let held = self.files.get(&asking.ask.ino).and_then(|file| file.held(asking.number));
        if held.is_none_or(|held| held.token < tenure.token) {
            return self.give_back_unknown(asking.key(tenure.token), todo);
        }
        // What it had is had in another mode now.
        asking.reply = None;
        if asking.wants != Wants::Less {
            self.grant(asking, tenure.token, todo);
        }
    }

    pub(super) fn answer_came(&mut self) {
        self.unanswered -= 1;
        if self.unanswered == 0 {
            self.over.clear();
        }
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
        let file = self.numbers.get(&number).and_then(|ino| self.files.get_mut(ino));
        let Some(file) = file else {
            // Nobody here knows of it, and nobody else would ever give it back.
            if waited.is_some() {
                self.give_back_unknown(key, todo);
            }
            return;
        };
        if let Some(ticket) = waited
            && let Some(asking) = file.take(|a| a.number == number && a.ticket == Some(ticket))
        {
            return self.served(asking, key, todo);
        }
        let unanswered =
            |asking: &&mut Asking<R>| asking.number == number && asking.ticket.is_none();
        match file.asks.iter_mut().find(unanswered) {
            // Whose it is, the answer will tell.
            Some(asking) => {
                let ticket = waited.or(asking.early.as_ref().and_then(|early| early.ticket));
                asking.early = Some(Early { ticket, key });
            }
            None if waited.is_some() && !known => self.give_back_unknown(key, todo),
            None => {}
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
        if held.token >= token {
            // Old news, of a tenure before this one.
            return held.token == token;
        }
        self.tenures.remove(&held.token);
        self.tenures.insert(token, ino);
        held.token = token;
        held.name = name.clone();
        true
    }

    /// The engine has ended a tenure: lost, stolen, or removed by name.
    pub(in crate::fs::locking) fn ended(&mut self, token: Token, todo: &mut Vec<Effect<R>>) {
        if self.unanswered > 0 {
            self.over.insert(token);
            if self.over.len() > OVER_MAX {
                self.over.pop_first();
            }
        }
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
        let waits = |ino: &&u64| self.files.get(ino).is_some_and(|file| file.speaks_of(name));
        let inos: Vec<_> = self.queued.iter().filter(waits).copied().collect();
        for ino in inos {
            if let Some(file) = self.files.get_mut(&ino) {
                file.hear();
            }
            self.requeue(ino, todo);
        }
    }

    /// An event: a place in line was given up, by whom it was or because its time was over.
    pub(in crate::fs::locking) fn left(
        &mut self,
        ticket: Ticket,
        name: &LockName,
        todo: &mut Vec<Effect<R>>,
    ) {
        if let Some(ino) = self.leaving.remove(&ticket) {
            let file = self.files.get_mut(&ino);
            file.and_then(|file| file.take(|asking| asking.ticket == Some(ticket)));
            self.requeue(ino, todo);
        }
        self.changed(name, todo);
    }

    /// No answer has come, and none will: the outcome is unknown. Gives back whom to tell so.
    pub(in crate::fs::locking) fn unanswered(
        &mut self,
        cookie: u64,
        ino: u64,
        todo: &mut Vec<Effect<R>>,
    ) -> Option<R> {
        let asking = self.files.get_mut(&ino)?.take(|asking| asking.cookie == cookie)?;
        self.answer_came();
        if let Some(Early { ticket: Some(_), key }) = asking.early {
            self.give_back_unknown(key, todo);
        }
        self.fit_bundle(ino, todo);
        asking.reply
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
        let Some(ino) = self.numbers.get(&number).copied() else { return };
        let Some(file) = self.files.get_mut(&ino) else { return };
        file.hear();
        match (file.held(number).map(|held| held.token), lease) {
            (Some(token), None) => self.ended(token, todo),
            (Some(token), Some(key)) => {
                self.renamed(number, key.token.unwrap_or(token), &key.name);
            }
            (None, lease) => {
                let own = |asking: &Asking<R>| asking.number == number;
                let in_line = |asking: &Asking<R>| own(asking) && asking.ticket.is_some();
                match lease {
                    Some(key) => {
                        if let Some(asking) = file.take(in_line) {
                            self.served(asking, key, todo);
                        }
                    }
                    None => drop(file.take(|asking| in_line(asking) && asking.gone)),
                }
            }
        }
        self.fit_bundle(ino, todo);
    }
}
