//! The number by which markers and handovers name a tenure: the time in which a guard holds the
//! lock of its folder.

use engine::Token;
use std::fmt;

/// The number of a tenure: the fencing token, and the engine that issued it. Tokens of different
/// engines can't be compared: a replaced server begins to count anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenureId {
    /// The id of the engine that issued the token.
    pub engine: u64,
    /// The fencing token.
    pub token: Token,
}

impl TenureId {
    /// Parses the name of a stage directory.
    pub fn parse(text: &str) -> Option<Self> {
        let (engine, token) = text.split_once('-')?;
        let engine = u64::from_str_radix(engine, 16).ok()?;
        Some(Self { engine, token: Token::named(token.parse().ok()?) })
    }
}

/// The name of the tenure's stage directory, `ENGINE-TOKEN`.
impl fmt::Display for TenureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.engine, self.token.as_u64())
    }
}

#[cfg(test)]
impl TenureId {
    pub(crate) fn with_token(self, token: u64) -> Self {
        Self { token: Token::named(token), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_stage_is_that_of_its_tenure() {
        let id = TenureId { engine: 0xabc, token: Token::named(17) };
        assert_eq!(id.to_string(), "0000000000000abc-17");
        assert_eq!(TenureId::parse(&id.to_string()), Some(id));
        assert!(TenureId::parse("lost+found").is_none());
    }
}
