//! Who holds and who waits through this mount's open files. Pure: what is to be done comes out
//! as a list of effects, and what came of it goes in again.
//!
//! A lock on the whole file is a hold of the engine, one for each owner: so the line is the
//! engine's, fair across mounts. Byte ranges are this machine's affair: the first range takes the
//! whole lock from the engine for the *bundle* of all ranges of that file, and from then on
//! owners of this mount settle among themselves, first come first served, until the last range is
//! gone.
//!
//! The kernel's numbers for owners are used again as soon as an owner is gone, so nothing is kept
//! under one after FLUSH or RELEASE.

mod ask;
mod file;
mod leave;
mod news;
#[cfg(test)]
mod tests;
mod ways;

pub(super) use ask::{Ask, Call, Effect, No, Waits};

use super::ranges::{Ranges, Span};
use crate::engine::{
    Acquire, Hold, Line, Mode, OpenId, Patch, Reason, Refusal, SessionId, Term, Token,
};
use crate::fs::numbered::Numbered;
use file::{Asking, Bundle, File, Held, Turn, Wants, answer};
use std::collections::HashSet;

/// Holds that are no open file's own number (a second owner of the same open file, a bundle) have
/// numbers from here on.
const EXTRA_NUMBERS: u64 = 1 << 62;

/// All open files of one mount that lock or wait. `R` is how a program is answered.
#[derive(Debug)]
pub(in crate::fs::locking) struct Table<R> {
    session: SessionId,
    files: Numbered<File<R>>,
    /// The file of each number in use.
    numbers: Numbered<u64>,
    /// The file that each tenure is of.
    tenures: Numbered<u64, Token>,
    /// The files whose queue is not empty.
    queued: HashSet<u64>,
    /// What is left of the last file that nobody locks any more: the next one takes over its
    /// room, and most programs lock and unlock one file all the time.
    spare: Option<File<R>>,
    next_extra: u64,
    next_cookie: u64,
}

impl<R> Table<R> {
    pub(in crate::fs::locking) fn new(session: SessionId) -> Self {
        let (files, numbers, tenures) = Default::default();
        let queued = HashSet::new();
        let (spare, next_extra, next_cookie) = (None, EXTRA_NUMBERS, 1);
        Self { session, files, numbers, tenures, queued, spare, next_extra, next_cookie }
    }

    /// A program wants a lock.
    pub(in crate::fs::locking) fn lock(
        &mut self,
        mut ask: Ask,
        reply: R,
        todo: &mut Vec<Effect<R>>,
    ) {
        if self.may_resume(&ask) {
            self.reattach(&ask, reply, todo);
            return;
        }
        // It came back for something else: what was kept for it is not wanted any more.
        let (ino, id) = (ask.ino, ask.owner.id);
        self.abandon(ino, |asking| asking.reply.is_none() && asking.ask.owner.id == id, todo);
        self.drop_holds(ino, |held| held.unclaimed && held.owner.id == id, todo);
        let number = self.number_for(&ask);
        let file = self.file(ask.ino);
        if let Some(held) = file.holds.iter().find(|held| held.number == number) {
            // `mv` may have carried it over: an open file speaks of the lock that it holds.
            ask.name = held.name.clone();
        }
        let (reply, wants) = (Some(reply), Wants::Hold);
        let asking = Asking { number, cookie: 0, ask, reply, ticket: None, wants, gone: false };
        let whole = asking.ask.span == Span::WHOLE;
        if whole && file.bundle.is_none() && file.queue.is_empty() {
            self.submit(asking, todo);
        } else {
            self.lock_range(asking, Turn::New, todo);
        }
    }

    /// Asks the engine.
    fn submit(&mut self, mut asking: Asking<R>, todo: &mut Vec<Effect<R>>) {
        let Asking { number, ask, .. } = &asking;
        if ask.line == Waits::Yes && self.would_wait_for_itself(ask) {
            let ino = ask.ino;
            answer(asking, Err(No::Deadlock), todo);
            return self.tidy(ino);
        }
        let line = match ask.line {
            Waits::Yes => Line::Join(None),
            Waits::No => Line::Skip,
        };
        // The bundle's hold is that of whoever locked the first range, whoever needs more of it.
        let bundle = self.files.get(&ask.ino).and_then(|file| file.bundle.as_ref());
        let bundle = bundle.map(|bundle| &bundle.held).filter(|held| held.number == *number);
        let (name, client, patch) = match bundle {
            Some(held) => (held.name.clone(), held.client.clone(), Patch::default()),
            None => (ask.name.clone(), ask.client.clone(), ask.patch.clone()),
        };
        let acquire = Acquire {
            name,
            client,
            mode: ask.mode,
            hold: Hold::Open(OpenId { session: self.session, number: *number }),
            term: Term::Session(self.session),
            line,
            patch,
        };
        self.next_cookie += 1;
        let (cookie, ino) = (self.next_cookie, ask.ino);
        todo.push(Effect::Submit { cookie, ino, ask: Box::new(acquire) });
        (asking.cookie, asking.ticket) = (self.next_cookie, None);
        self.file(asking.ask.ino).asks.push(asking);
    }

    /// A request for a part of the file, or for a file of which parts are locked.
    fn lock_range(&mut self, mut asking: Asking<R>, turn: Turn, todo: &mut Vec<Effect<R>>) {
        let ino = asking.ask.ino;
        let Ask { owner, span, mode, .. } = asking.ask;
        self.bundle_up(ino, owner.id, todo);
        let file = self.files.entry(ino).or_default();
        let Some(bundle) = &mut file.bundle else {
            let on_its_way = file.asks.iter().any(|other| other.wants == Wants::Bundle);
            if on_its_way || (turn == Turn::New && !file.queue.is_empty()) {
                return self.enqueue(asking, todo);
            }
            asking.number = self.extra_number(ino);
            asking.wants = Wants::Bundle;
            return self.submit(asking, todo);
        };
        if bundle.ranges.conflict(owner.id, span, mode).is_some() {
            return self.enqueue(asking, todo);
        }
        if mode == Mode::Exclusive && bundle.held.mode == Mode::Shared {
            // The bundle needs the lock for itself; only the engine can say whether it may.
            asking.number = bundle.held.number;
            asking.wants = Wants::Bundle;
            return self.submit(asking, todo);
        }
        bundle.ranges.lock(owner, span, mode);
        let token = bundle.held.token;
        todo.push(Effect::Speaks(owner.fh, token));
        answer(asking, Ok(()), todo);
        self.fit_bundle(ino, todo);
    }

    /// What `id` holds of the whole file becomes a range. Who had both would be in its own way.
    fn bundle_up(&mut self, ino: u64, id: u64, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let Some(spare) = file.bundle_up(id) else { return };
        if let Some(bundle) = &file.bundle {
            todo.push(Effect::Speaks(spare.owner.fh, bundle.held.token));
        }
        self.tenures.remove(&spare.token);
        todo.push(Effect::Tell(Box::new(spare.release())));
    }

    /// Waits for another owner of this mount, if the program waits.
    fn enqueue(&mut self, asking: Asking<R>, todo: &mut Vec<Effect<R>>) {
        if asking.ask.line == Waits::No {
            self.tidy(asking.ask.ino);
            return answer(asking, Err(No::Busy(None)), todo);
        }
        if self.would_wait_for_itself(&asking.ask) {
            return answer(asking, Err(No::Deadlock), todo);
        }
        let mut asking = asking;
        asking.wants = Wants::Hold;
        asking.number = self.extra_number(asking.ask.ino);
        todo.push(Effect::Watch(asking.number, asking.ask.tid));
        self.queued.insert(asking.ask.ino);
        self.file(asking.ask.ino).queue.push_back(asking);
    }

    /// What was asked for is held.
    fn grant(&mut self, asking: Asking<R>, token: Token, todo: &mut Vec<Effect<R>>) {
        let number = asking.number;
        let ino = asking.ask.ino;
        let file = self.files.entry(ino).or_default();
        let Ask { owner, mode, span, .. } = asking.ask;
        // A signal has ended the wait, and the program has been told that it got nothing.
        let claimed = asking.reply.is_some();
        let mut held = Held {
            number,
            owner,
            name: asking.ask.name.clone(),
            client: asking.ask.client.clone(),
            token,
            mode,
            unclaimed: !claimed,
        };
        todo.push(Effect::Speaks(owner.fh, token));
        let mut placed = true;
        match &mut file.bundle {
            // Perhaps asked for as a whole lock, which has become the bundle meanwhile.
            Some(bundle) if bundle.held.number == number => {
                bundle.held.mode = mode;
                placed = !claimed || bundle.ranges.lock_if_free(owner, span, mode);
            }
            // One bundle is enough: both are shared, or the engine had not granted this one.
            Some(bundle) if asking.wants == Wants::Bundle => {
                todo.push(Effect::Tell(Box::new(held.release())));
                placed = !claimed || bundle.ranges.lock_if_free(owner, span, mode);
            }
            None if asking.wants == Wants::Bundle => {
                let mut ranges = Ranges::default();
                if claimed {
                    ranges.lock(owner, span, mode);
                }
                file.bundle = Some(Bundle { held, ranges });
            }
            Some(_) | None => {
                if let Some(place) = file.holds.iter().position(|other| other.number == number) {
                    let before = file.holds.remove(place);
                    self.tenures.remove(&before.token);
                    // Then it has still what it had: an upgrade alone came to nothing.
                    held.unclaimed &= before.unclaimed;
                    if !claimed && !held.unclaimed && before.mode == Mode::Shared {
                        held.mode = Mode::Shared;
                        todo.push(Effect::Tell(Box::new(held.share(self.session))));
                    }
                }
                file.holds.push(held);
            }
        }
        if file.holds_tenure(token) {
            self.tenures.insert(token, ino);
        }
        if placed {
            answer(asking, Ok(()), todo);
        } else {
            // The engine was asked meanwhile, and another owner of this mount came in between.
            self.enqueue(asking, todo);
        }
        self.fit_bundle(ino, todo);
    }

    fn refused(&mut self, asking: Asking<R>, refusal: Refusal, todo: &mut Vec<Effect<R>>) {
        let number = asking.number;
        let ino = asking.ask.ino;
        if !matches!(*refusal.reason, Reason::Conflict(_)) {
            self.tidy(ino);
            return answer(asking, Err(No::Refused(Box::new(refusal))), todo);
        }
        let file = self.files.entry(ino).or_default();
        let own = file.holds.iter().position(|held| held.number == number);
        match own.map(|place| (place, (asking.ask.call)(asking.ask.tid))) {
            Some((place, Call::Flock)) => {
                // As flock(2) says: the conversion is not atomic, the old lock goes first.
                let held = file.holds.remove(place);
                self.tenures.remove(&held.token);
                todo.push(Effect::Tell(Box::new(held.release())));
                self.submit(asking, todo);
            }
            _ if asking.ask.line == Waits::Yes => self.enqueue(asking, todo),
            _ => {
                self.tidy(ino);
                answer(asking, Err(No::Busy(Some(Box::new(refusal)))), todo);
            }
        }
    }

    /// Who waited for an owner of this mount tries again, in order; who still cannot, waits on.
    fn requeue(&mut self, ino: u64, todo: &mut Vec<Effect<R>>) {
        while let Some(file) = self.files.get_mut(&ino) {
            let goes_on = |asking: &Asking<R>| asking.reply.is_some() && file.may_go_on(asking);
            let Some(place) = file.queue.iter().position(goes_on) else { break };
            let Some(mut asking) = file.queue.remove(place) else { break };
            if file.bundle.is_some() || asking.ask.span != Span::WHOLE {
                self.lock_range(asking, Turn::Next, todo);
            } else {
                asking.number = self.number_for(&asking.ask);
                self.submit(asking, todo);
            }
        }
        self.tidy(ino);
    }

    /// The bundle lasts as long as there are ranges, in the mode that they need.
    fn fit_bundle(&mut self, ino: u64, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if let Some(bundle) = &mut file.bundle {
            if bundle.ranges.is_empty() {
                self.tenures.remove(&bundle.held.token);
                todo.push(Effect::Tell(Box::new(bundle.held.release())));
                file.bundle = None;
            } else if bundle.ranges.mode() == Mode::Shared && bundle.held.mode == Mode::Exclusive {
                bundle.held.mode = Mode::Shared;
                todo.push(Effect::Tell(Box::new(bundle.held.share(self.session))));
            }
        }
        self.requeue(ino, todo);
    }

    /// Numbers that nobody uses any more are forgotten, and a file that nobody locks or waits for.
    fn tidy(&mut self, ino: u64) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if file.queue.is_empty() {
            self.queued.remove(&ino);
        }
        if file.is_idle() {
            for number in file.numbers.drain(..) {
                self.numbers.remove(&number);
            }
            self.spare = self.files.remove(&ino);
            return;
        }
        if file.numbers.len() == 1 {
            // The number of whatever keeps the file from being idle.
            return;
        }
        // All at once: with a thousand waiters, one by one would be a million looks.
        let (used, index) = (file.used(), &mut self.numbers);
        file.numbers.retain(|number| {
            let stays = used.contains(number);
            if !stays {
                index.remove(number);
            }
            stays
        });
    }

    /// The file of an inode, a new one if there is none yet.
    fn file(&mut self, ino: u64) -> &mut File<R> {
        let spare = &mut self.spare;
        self.files.entry(ino).or_insert_with(|| spare.take().unwrap_or_default())
    }

    /// The number of the engine's hold that a whole-file request is about: that of the owner's
    /// hold, else that of the open file, else (another owner has that one) a new one.
    fn number_for(&mut self, ask: &Ask) -> u64 {
        let file = self.file(ask.ino);
        if let Some(held) = file.holds.iter().find(|held| held.owner.id == ask.owner.id) {
            return held.number;
        }
        if self.numbers.contains_key(&ask.owner.fh) {
            return self.extra_number(ask.ino);
        }
        self.use_number(ask.owner.fh, ask.ino);
        ask.owner.fh
    }

    fn extra_number(&mut self, ino: u64) -> u64 {
        self.next_extra += 1;
        self.use_number(self.next_extra, ino);
        self.next_extra
    }

    fn use_number(&mut self, number: u64, ino: u64) {
        self.numbers.insert(number, ino);
        self.files.entry(ino).or_default().numbers.push(number);
    }

    /// A restarted system call asks again for what its owner waits for already.
    fn may_resume(&self, ask: &Ask) -> bool {
        let Some(file) = self.files.get(&ask.ino) else { return false };
        let parked = file.asks.iter().chain(&file.queue);
        parked.into_iter().any(|asking| asking.is_parked_for(ask))
            || file.holds.iter().any(|held| {
                held.unclaimed && held.owner.id == ask.owner.id && held.mode == ask.mode
            })
    }

    fn reattach(&mut self, ask: &Ask, reply: R, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ask.ino) else { return };
        let unclaimed = file
            .holds
            .iter_mut()
            .find(|held| held.unclaimed && held.owner.id == ask.owner.id && held.mode == ask.mode);
        if let Some(held) = unclaimed {
            held.unclaimed = false;
            todo.push(Effect::Reply(reply, Ok(())));
            return;
        }
        let parked = file.asks.iter_mut().chain(&mut file.queue);
        if let Some(asking) = parked.into_iter().find(|asking| asking.is_parked_for(ask)) {
            asking.reply = Some(reply);
            asking.ask.tid = ask.tid;
            todo.push(Effect::Watch(asking.number, ask.tid));
        }
    }
}
