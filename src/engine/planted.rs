//! Bugs that the tests plant into the rules, to see that they would be found.
//!
//! Outside the tests [`planted`] is a constant `false`, and nothing of this is left in the binary.

/// A rule that can be broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Bug {
    /// Another may take a lock that is in grace.
    GraceForEverybody,
    /// A lease ends with its ttl, not after its grace.
    NoGrace,
    /// Taking back within grace mints a new token.
    NewTokenInGrace,
    /// A release does not look at the token it names.
    ReleaseIgnoresToken,
    /// Anybody may release.
    ReleaseIgnoresClient,
    /// The last in line is served first.
    LastServedFirst,
    /// A shared request overtakes a waiting exclusive one.
    SharedOvertakes,
    /// One of several sharers may become exclusive.
    UpgradeBesideOthers,
    /// A waiter is served though its session has run out.
    DeadWaiterServed,
    /// Nobody is served when a waiter leaves.
    LeaverBlocksLine,
    /// A keep-alive does not move the session's end.
    KeepAliveForgets,
    /// Waiters stay in line when their session is ended, and may be served.
    SessionEndForgets,
    /// A repeated request is carried out again.
    RepeatsAreApplied,
    /// A stolen lock can be used at once.
    NoStealGrace,
    /// A move leaves the token as it was.
    MoveKeepsToken,
    /// An exclusive form is granted to the client that holds the lock already.
    ExclusiveFormRenews,
    /// A renewal does not move the end of the lease.
    RenewalForgets,
    /// A downgrade does not let the waiting sharers in.
    DowngradeServesNobody,
}

#[cfg(test)]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Runs `body` with `bug` in the rules of this thread.
    pub(crate) fn with_bug<T>(bug: Bug, body: impl FnOnce() -> T) -> T {
        struct Uproot;
        impl Drop for Uproot {
            fn drop(&mut self) {
                PLANTED.set(None);
            }
        }
        PLANTED.set(Some(bug));
        let _uproot = Uproot;
        body()
    }

    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(test)]
#[allow(unused_imports)]
pub(crate) use switch::{planted, with_bug};

/// Whether the tests have broken this rule.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
