//! The tenures of a guard, one after the other.
//!
//! `sequence` asks for them, begins them, and gives them back, by the wishes and news of `wishes`.
//! In between, `tenure_arrival` waits until the folder is ready and `tenure_handovers` tells the
//! lock service of changes and of markers. `yielding` hears other machines that wait, and takes the
//! lock along for a person; `sleeping` is about a machine that sleeps. `tenure_events` says what
//! happened.

pub(crate) mod wishes;
pub(crate) mod tenure_arrival;
pub(crate) mod tenure_events;
pub(crate) mod sequence;
pub(crate) mod tenure_handovers;
pub(crate) mod sleeping;
pub(crate) mod yielding;
