//! Allocates tokens and session ids from one counter, so that both are unique.

use super::lease::{SessionId, TOKEN_MAX, Token};

/// The counter of tokens and session ids. It only rises; a restart must never set it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenAllocator {
    next: u64,
}

impl Default for TokenAllocator {
    /// The first token is 1: programs use 0 for "none".
    fn default() -> Self {
        Self { next: 1 }
    }
}

impl TokenAllocator {
    /// Returns an allocator whose next token or session id is `next`.
    pub(super) const fn at(next: u64) -> Self {
        Self { next }
    }

    /// Returns the next token without allocating it.
    pub(super) const fn upcoming(&self) -> u64 {
        self.next
    }

    /// Returns how many tokens can still be allocated.
    pub(super) const fn left(&self) -> u64 {
        (TOKEN_MAX + 1).saturating_sub(self.next)
    }

    /// Raises the next token or session id to `floor`, if it is lower.
    pub(super) fn raise(&mut self, floor: u64) {
        self.next = self.next.max(floor);
    }

    /// Allocates a token.
    pub(super) fn token(&mut self) -> Token {
        Token(self.take())
    }

    /// Allocates a session id.
    pub(super) fn session(&mut self) -> SessionId {
        SessionId(self.take())
    }

    fn take(&mut self) -> u64 {
        assert!(self.next <= TOKEN_MAX, "commands are refused before the mint runs dry");
        self.next += 1;
        self.next - 1
    }
}
