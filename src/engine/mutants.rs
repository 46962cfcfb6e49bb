//! Bugs that the tests plant into the rules, to see that they would be found.
//!
//! Outside the tests [`planted`] is a constant `false`, and nothing of this is left in the binary.

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident,)*) => {
        /// A rule that can be broken on purpose.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(not(test), allow(dead_code))]
        pub(crate) enum Mutant {
            $($(#[$doc])* $bug,)*
        }

        #[cfg(test)]
        impl Mutant {
            /// All of them.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$bug),*];
        }
    };
}

bugs! {
    /// Another may take a lock that is in grace.
    GraceForEverybody,
    /// A lease ends with its ttl, not after its grace.
    NoGrace,
    /// The grace ends a nanosecond early.
    GraceOneShort,
    /// A deadline at exactly the current time is not handled yet.
    DueOneLate,
    /// Taking back within grace mints a new token.
    NewTokenInGrace,
    /// A restored engine gives the last token out again.
    TokenReusedByRestore,
    /// An acquire that names the token of its lease is no acquire for a late release.
    AcquireByTokenUncounted,
    /// A release does not look at the token it names.
    ReleaseIgnoresToken,
    /// A release does not look at the acquire that it names.
    ReleaseIgnoresAcquisition,
    /// Anybody may release.
    ReleaseIgnoresClient,
    /// A refused request waits all the same.
    RefusalLeavesWaiter,
    /// The last in line is served first.
    LastServedFirst,
    /// A waiter that was served stays in line.
    WaiterServedTwice,
    /// A waiter waits for ever, whatever it said.
    PatienceIgnored,
    /// A waiter that changes its request from shared to exclusive gets a shared lease.
    AskingAgainKeepsMode,
    /// Two programs of one client have one place in the queue.
    ProgramsSharePlace,
    /// The id of a request that was served goes on to say that it waits.
    ServedIdStillWaits,
    /// The id of a request that waits is forgotten, though its place is kept.
    WaitingIdForgotten,
    /// A repeat of a request that waits does not make it wait longer.
    RepeatKeepsPatience,
    /// A shared request overtakes a waiting exclusive one.
    SharedOvertakes,
    /// More sharers are let in from the line than there may be.
    LineIgnoresHolders,
    /// An upgrade to exclusive keeps its token.
    UpgradeKeepsToken,
    /// One of several sharers may become exclusive.
    UpgradeBesideOthers,
    /// Another program of the client changes the mode of an open file's hold.
    ModeOfFileChanged,
    /// A waiter is served though its session has run out.
    DeadWaiterServed,
    /// Nobody is served when a waiter leaves.
    LeaverBlocksLine,
    /// A keep-alive does not move the session's end.
    KeepAliveForgets,
    /// A keep-alive of a session that is over is answered as if it were not.
    DeadSessionKept,
    /// Waiters stay in line when their session is ended, and may be served.
    SessionEndForgets,
    /// A late copy of a request is carried out though its sender has sent others since.
    LateCopyCarriedOut,
    /// A repeated request is carried out again.
    RepeatsAreApplied,
    /// Another request under a known id gets the first answer.
    KeyOfAnotherRequest,
    /// A stolen lock can be used at once.
    NoStealGrace,
    /// A thief that gives the lock back lets the next one in before the steal grace is over.
    ThiefServesLine,
    /// One of several sharers keeps its lease when the lock is stolen.
    SharerKeptWhenStolen,
    /// A reset takes locks from those it means, and leaves them in line.
    ResetServesReset,
    /// A move leaves the token as it was.
    MoveKeepsToken,
    /// A move replaces the lock of another client.
    MoveOntoAnothers,
    /// A move makes one lock more than there may be.
    MoveIgnoresLimit,
    /// An exclusive form is granted to the client that holds the lock already.
    ExclusiveFormRenews,
    /// A renewal does not move the end of the lease.
    RenewalForgets,
    /// A renewal counts its ttl from when the tenure began.
    RenewalCountsFromStart,
    /// A lease cannot be renewed once the session through which it was made is over.
    RenewalLeansOnMaker,
    /// A downgrade does not let the waiting sharers in.
    DowngradeServesNobody,
}

/// Whether the tests have broken this rule.
#[cfg(not(test))]
pub(crate) const fn planted(_: Mutant) -> bool {
    false
}

#[cfg(test)]
pub(crate) use switch::planted;
#[cfg(test)]
pub(crate) use switch::with_bug;

#[cfg(test)]
mod switch {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Runs `body` with `bug` in the rules of this thread.
    pub(crate) fn with_bug<T>(bug: Mutant, body: impl FnOnce() -> T) -> T {
        struct MutantGuard;
        impl Drop for MutantGuard {
            fn drop(&mut self) {
                PLANTED.set(None);
            }
        }
        PLANTED.set(Some(bug));
        let _uproot = MutantGuard;
        body()
    }

    pub(crate) fn planted(bug: Mutant) -> bool {
        PLANTED.get() == Some(bug)
    }
}
