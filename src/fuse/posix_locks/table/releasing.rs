//! Tenures that are being released, until an event confirms their end. If somebody moves (`mv`)
//! such a lock before the release reaches the engine, the tenure has a new name and token, and the
//! release, which names the old ones, ends nothing: it must be sent again for the new ones.

use crate::engine::Token;

/// Tenures that the engine was told to end: a few, unless it is far away and many give back at
/// once.
#[derive(Debug, Default)]
pub(crate) struct Going {
    tokens: Vec<Token>,
    /// The tenure that was moved last. The next tenure that begins without a wait continues it.
    moved: Option<Token>,
}

impl Going {
    pub(crate) const fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(crate) fn add(&mut self, token: Token) {
        if !self.contains(token) {
            self.tokens.push(token);
        }
    }

    pub(crate) fn contains(&self, token: Token) -> bool {
        self.tokens.contains(&token)
    }

    /// It is over.
    pub(crate) fn remove(&mut self, token: Token) {
        self.tokens.retain(|other| *other != token);
    }

    /// A tenure has been moved, whosever it was.
    pub(crate) const fn moved(&mut self, token: Token) {
        self.moved = Some(token);
    }

    /// A tenure begins, not for a place in line: of which it is the continuation, if of any.
    pub(crate) const fn take_moved(&mut self) -> Option<Token> {
        self.moved.take()
    }

    /// Records that the tenure `moved` continues as `token`. Returns whether it was being released;
    /// `token` is then being released as well.
    pub(crate) fn follow(&mut self, moved: Token, token: Token) -> bool {
        let was_given_back = self.contains(moved);
        if was_given_back {
            self.remove(moved);
            self.add(token);
        }
        was_given_back
    }

    /// Nothing will be heard of them any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
