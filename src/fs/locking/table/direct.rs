//! What is asked and answered at once, without a request on its way: see [`super::super::direct`].

use super::super::ranges::Span;
use super::Table;
use super::ask::Ask;
use super::file::Held;
use crate::engine::{Op, Token};

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

    /// The engine has been asked, and has granted this tenure, if any.
    pub(in crate::fs::locking) fn end_direct(&mut self, ask: &Ask, granted: Option<Token>) {
        // What has ended meanwhile is had by nobody: the program finds out by its next write.
        if let Some(token) = granted.filter(|token| !self.over.contains(token)) {
            let (ino, number) = (ask.ino, ask.owner.fh);
            self.file(ino).holds.push(Held {
                number,
                owner: ask.owner,
                name: ask.name.clone(),
                client: ask.client.clone(),
                token,
                mode: ask.mode,
                unclaimed: false,
            });
            self.use_number(number, ino);
            self.tenures.insert(token, ino);
        }
        self.answer_came();
    }

    /// Whether an owner has the whole file, and nobody else of this mount anything to do with it.
    pub(in crate::fs::locking) fn has_alone(&self, ino: u64, id: u64, span: Span) -> bool {
        let file = self.files.get(&ino).filter(|file| file.is_quiet() && file.bundle.is_none());
        let holds = file.map_or(&[][..], |file| &file.holds);
        span == Span::WHOLE && matches!(holds, [held] if held.owner.id == id)
    }

    /// The only hold of the file goes: what to tell the engine.
    pub(in crate::fs::locking) fn give_back_alone(&mut self, ino: u64) -> Option<Op> {
        let held = self.files.get_mut(&ino)?.holds.pop()?;
        self.tenures.remove(&held.token);
        self.tidy(ino);
        Some(held.release())
    }
}
