//! Unlocking, closing, and waits that end by a signal.

use super::super::ranges::Span;
use super::Table;
use super::ask::{Effect, No};
use super::file::{Asking, Held};
use crate::engine::{Leave, Op, Why};
use crate::fs::lookout::Waiting;

impl<R> Table<R> {
    /// A program gives back `span`.
    pub(in crate::fs::locking) fn unlock(
        &mut self,
        ino: u64,
        id: u64,
        span: Span,
        todo: &mut Vec<Effect<R>>,
    ) {
        if span != Span::WHOLE {
            self.bundle_up(ino, id, todo);
        }
        let Some(file) = self.files.get_mut(&ino) else { return };
        if let Some(bundle) = &mut file.bundle {
            bundle.ranges.unlock(id, span);
        }
        self.drop_holds(ino, |held| held.owner.id == id, todo);
    }

    /// FLUSH: a process has closed the file, and with it goes all that it holds there by fcntl.
    pub(in crate::fs::locking) fn flushed(&mut self, ino: u64, id: u64, todo: &mut Vec<Effect<R>>) {
        self.abandon(ino, |asking| asking.reply.is_none() && asking.ask.owner.id == id, todo);
        self.unlock(ino, id, Span::WHOLE, todo);
    }

    /// RELEASE: the open file is gone, and with it all that was locked through it. For OFD locks
    /// no other message comes.
    pub(in crate::fs::locking) fn closed(&mut self, ino: u64, fh: u64, todo: &mut Vec<Effect<R>>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if let Some(bundle) = &mut file.bundle {
            bundle.ranges.drop_file(fh);
        }
        self.abandon(ino, |asking| asking.ask.owner.fh == fh, todo);
        self.drop_holds(ino, |held| held.owner.fh == fh, todo);
    }

    /// A signal ends the wait of `number`. The place is kept for a while: see
    /// [`Table::expire`].
    pub(in crate::fs::locking) fn interrupt(&mut self, number: u64, todo: &mut Vec<Effect<R>>) {
        let reply = self.asking(number).and_then(|asking| asking.reply.take());
        if let Some(reply) = reply {
            todo.push(Effect::Reply(reply, Err(No::Interrupted)));
        }
    }

    /// Whether `number` still waits for an answer, or its place is still kept.
    pub(in crate::fs::locking) fn is_waiting(&mut self, number: u64) -> Waiting {
        match self.asking(number).map(|asking| asking.reply.is_some()) {
            Some(true) => Waiting::Asks,
            Some(false) => Waiting::Parked,
            None if self.unclaimed(number).is_some() => Waiting::Unclaimed,
            None => Waiting::Over,
        }
    }

    /// The interrupted waiter has not come back: its place goes, or what it was granted.
    pub(in crate::fs::locking) fn expire(&mut self, number: u64, todo: &mut Vec<Effect<R>>) {
        let Some(ino) = self.numbers.get(&number).copied() else { return };
        self.abandon(ino, |asking| asking.number == number && asking.reply.is_none(), todo);
        self.drop_holds(ino, |held| held.number == number && held.unclaimed, todo);
    }

    /// Takes requests out that nobody waits for any more.
    pub(super) fn abandon(
        &mut self,
        ino: u64,
        gone: impl Fn(&Asking<R>) -> bool,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let left: Vec<_> = file.asks.extract_if(.., |asking| gone(asking)).collect();
        file.queue.retain(|asking| !gone(asking));
        for mut asking in left {
            if let Some(reply) = asking.reply.take() {
                todo.push(Effect::Reply(reply, Err(No::Interrupted)));
            }
            if let Some(ticket) = asking.ticket {
                let (name, why) = (asking.ask.name, Why::Gone);
                todo.push(Effect::Tell(Box::new(Op::Leave(Leave { name, ticket, why }))));
            } else {
                asking.gone = true;
                file.asks.push(asking);
            }
        }
        self.requeue(ino, todo);
    }

    /// Gives whole-file holds back.
    pub(super) fn drop_holds(
        &mut self,
        ino: u64,
        gone: impl Fn(&Held) -> bool,
        todo: &mut Vec<Effect<R>>,
    ) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        for held in file.holds.extract_if(.., |held| gone(held)) {
            self.tenures.remove(&held.token);
            todo.push(Effect::Tell(Box::new(held.release())));
        }
        self.fit_bundle(ino, todo);
    }

    pub(super) fn asking(&mut self, number: u64) -> Option<&mut Asking<R>> {
        let file = self.files.get_mut(self.numbers.get(&number)?)?;
        file.asks.iter_mut().chain(&mut file.queue).find(|asking| asking.number == number)
    }

    pub(super) fn unclaimed(&self, number: u64) -> Option<&Held> {
        let file = self.files.get(self.numbers.get(&number)?)?;
        file.holds.iter().find(|held| held.number == number && held.unclaimed)
    }
}
