//! Locks and unlocks in one step, without an asynchronous request to the engine: see
//! [`crate::fuse::posix_locks::fast_path`].

use crate::engine::{LeaseKey, Release, Token};
use crate::fuse::posix_locks::byte_ranges::Span;
use crate::fuse::posix_locks::table::locked_file::Held;
use crate::fuse::posix_locks::table::messages::Ask;
use crate::fuse::posix_locks::table::table_state::Table;

impl<R> Table<R> {
    /// Whether the engine may be asked for this at once: the whole file, which nobody of this
    /// mount has or waits for. Then [`Table::end_direct`] is to follow.
    pub(crate) fn begin_direct(&mut self, ask: &Ask) -> bool {
        let known = self.files.contains_key(&ask.ino) || self.numbers.contains_key(&ask.owner.fh);
        let direct = ask.span == Span::WHOLE && !known;
        // While this is so, what ends is remembered.
        self.unanswered += usize::from(direct);
        direct
    }

    /// The engine has been asked, and has granted what was asked for, if it is there. Under which
    /// token the program has it.
    pub(crate) fn end_direct(&mut self, granted: Option<(Ask, Token)>) -> Option<Token> {
        let mut had = None;
        if let Some((ask, token)) = granted {
            let Ask { ino, owner, name, client, mode, .. } = ask;
            let (number, unclaimed) = (owner.fh, false);
            // Somebody may have moved it before this came to be entered.
            let strange = self.strange.take();
            let moved = strange.filter(|(other, key)| *other == number && key.token > Some(token));
            let (name, token) = match moved {
                Some((_, LeaseKey { name, token: Some(token), .. })) => (name, token),
                _ => (name, token),
            };
            had = Some(token);
            // A tenure that has ended meanwhile is not entered: the program finds out by its next
            // write.
            if !self.over.contains(&token) {
                let held = Held { number, owner, name, client, token, mode, unclaimed };
                self.file(ino).holds.push(held);
                self.use_number(number, ino);
                self.tenures.insert(token, ino);
            }
        }
        self.answer_came();
        had
    }

    /// An owner gives the whole file back. If nobody else of this mount has anything to do with
    /// it, it goes: what to tell the engine.
    pub(crate) fn give_back_alone(&mut self, ino: u64, id: u64, span: Span) -> Option<Release> {
        let file = self.files.get_mut(&ino).filter(|_| span == Span::WHOLE)?;
        let is_alone = matches!(&*file.holds, [held] if held.owner.id == id);
        if !is_alone || !file.is_quiet() || file.bundle.is_some() {
            return None;
        }
        let held = file.holds.pop()?;
        self.tenures.remove(&held.token);
        self.going.add(held.token);
        self.tidy(ino);
        let Held { name, client, token, .. } = held;
        Some(Release::of(LeaseKey { name, client, token: Some(token) }))
    }

    /// The engine has ended it.
    pub(crate) fn gone(&mut self, token: Token) {
        self.going.remove(token);
    }
}
