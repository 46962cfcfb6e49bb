//! The one maker of tokens and session ids: what must be unique has one source.

use super::lease::{SessionId, TOKEN_MAX, Token};

/// The counter. It only rises; a restart takes care that it never falls behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenAllocator {
    next: u64,
}

impl Default for TokenAllocator {
    /// The first token is 1: programs take 0 for "none".
    fn default() -> Self {
        Self { next: 1 }
    }
}

impl TokenAllocator {
    /// A mint that goes on at `next`.
    pub(super) const fn at(next: u64) -> Self {
        Self { next }
    }

    /// Returns the next token.
    pub(super) const fn upcoming(&self) -> u64 {
        self.next
    }

    /// How many it can still give.
    pub(super) const fn left(&self) -> u64 {
        (TOKEN_MAX + 1).saturating_sub(self.next)
    }

    /// Goes on at `floor`, if it has not come so far yet.
    pub(super) fn raise(&mut self, floor: u64) {
        self.next = self.next.max(floor);
    }

    /// A token that nobody has had.
    pub(super) fn token(&mut self) -> Token {
        Token(self.take())
    }

    /// A session id that nobody has had.
    pub(super) fn session(&mut self) -> SessionId {
        SessionId(self.take())
    }

    fn take(&mut self) -> u64 {
        assert!(self.next <= TOKEN_MAX, "commands are refused before the mint runs dry");
        self.next += 1;
        self.next - 1
    }
}
