//! Tenures that are being released, until an event confirms their end. If a lock is moved (`mv`)
//! before its release reaches the engine, the tenure has a new name and token. The release names
//! the old ones, so it ends nothing and must be sent again with the new ones.

use crate::engine::Token;

/// The tenures whose release was sent to the engine: a few, unless the engine is remote and many
/// are released at once.
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

    /// Removes a tenure that is over.
    pub(crate) fn remove(&mut self, token: Token) {
        self.tokens.retain(|other| *other != token);
    }

    /// Records that a tenure was moved, whether or not it belongs to this mount.
    pub(crate) const fn moved(&mut self, token: Token) {
        self.moved = Some(token);
    }

    /// Returns the tenure that continues in a tenure which now begins without a wait, if any.
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

    /// Forgets all tenures, since the events about them were lost.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
