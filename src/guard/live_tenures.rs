//! The tenures that go on beside a new one, where many machines hold the lock of a folder at once
//! (`--mode shared`). The fence of the new tenure spares their stages.

use super::tenure::TenureId;
use crate::engine::Token;
use std::collections::BTreeSet;
use std::ffi::OsStr;

/// The tenures of a folder that the lock service named as live after it had granted a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveTenures {
    /// The new tenure.
    pub(crate) newest: TenureId,
    /// The tokens of the tenures that were live then.
    pub(crate) tokens: BTreeSet<Token>,
}

impl LiveTenures {
    /// Whether the fence of the new tenure spares the stage with this name. A greater token may be
    /// one that was granted after the lock service had named the live tenures.
    pub(super) fn spares(&self, stage: &OsStr) -> bool {
        let tenure = stage.to_str().and_then(TenureId::parse);
        tenure.is_some_and(|tenure| {
            let is_later = tenure.token > self.newest.token;
            tenure.engine == self.newest.engine && (is_later || self.tokens.contains(&tenure.token))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_and_later_tenures_are_spared() {
        let of = |token| TenureId { engine: 7, token: Token::named(token) };
        let tokens = [3, 9].map(Token::named).into();
        let live = LiveTenures { newest: of(9), tokens };
        let spares = |tenure: TenureId| live.spares(OsStr::new(&tenure.to_string()));
        assert!(spares(of(3)) && spares(of(9)) && spares(of(10)));
        assert!(!spares(of(8)) && !spares(TenureId { engine: 8, ..of(3) }));
        assert!(!live.spares(OsStr::new("unknown")));
    }
}
