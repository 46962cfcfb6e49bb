//! What is asked and answered at once, without a request on its way: see [`super::super::direct`].

use super::super::ranges::Span;
use super::Table;
use super::ask::Ask;
use super::file::Held;
use crate::engine::{LeaseKey, Op, Release, Token};

impl<R> Table<R> {
    /// Whether the engine may be asked for this at once: the whole file, which nobody of this
    /// mount has or waits for. Then [`Table::end_direct`] is to follow.
    pub(in crate::fs::locking) fn begin_direct(&mut self, ask: &Ask) -> bool {
        let known = self.files.contains_key(&ask.ino) || self.numbers.contains_key(&ask.owner.fh);
        let direct = ask.span == Span::WHOLE && !known;
        // While this is so, what ends is remembered.
        self.unanswered += usize::from(direct);
        direct
    }

    /// The engine has been asked, and has granted what was asked for, if it is there.
    pub(in crate::fs::locking) fn end_direct(&mut self, granted: Option<(Ask, Token)>) {
        // What has ended meanwhile is had by nobody: the program finds out by its next write.
        if let Some((ask, token)) = granted.filter(|(_, token)| !self.over.contains(token)) {
            let Ask { ino, owner, name, client, mode, .. } = ask;
            let (number, unclaimed) = (owner.fh, false);
            self.file(ino).holds.push(Held { number, owner, name, client, token, mode, unclaimed });
            self.use_number(number, ino);
            self.tenures.insert(token, ino);
        }
        self.answer_came();
    }

    /// An owner gives the whole file back. If nobody else of this mount has anything to do with
    /// it, it goes: what to tell the engine.
    pub(in crate::fs::locking) fn give_back_alone(
        &mut self,
        ino: u64,
        id: u64,
        span: Span,
    ) -> Option<Op> {
        let file = self.files.get_mut(&ino).filter(|_| span == Span::WHOLE)?;
        let is_alone = matches!(&*file.holds, [held] if held.owner.id == id);
        if !is_alone || !file.is_quiet() || file.bundle.is_some() {
            return None;
        }
        let held = file.holds.pop()?;
        self.tenures.remove(&held.token);
        self.tidy(ino);
        let Held { name, client, token, .. } = held;
        Some(Op::Release(Release { key: LeaseKey { name, client, token: Some(token) } }))
    }
}
