//! Idempotency of batches: remembers the last answer to each sender, for a batch that is repeated
//! because its answer was lost. Senders choose their own numbers, so the numbers are scoped to the
//! sender's credential, and the answers kept for one credential are limited in bytes and age.
//!
//! Forgetting an answer too early causes no wrong answer: the batch is carried out again, and the
//! engine recognizes, by their request ids, the commands that it must not carry out twice.

use crate::time::{Span, Time};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The maximum size in bytes of the answers remembered for one credential: enough for 100,000
/// mounts with short answers, or for 16 with the longest ones.
const CALLER_BYTES_MAX: usize = 16 << 20;
/// The maximum size in bytes of the answers remembered for all credentials together.
const BYTES_MAX: usize = 32 << 20;
/// The size in bytes that is counted for each sender in addition to its answer.
const SENDER_BYTES: usize = 128;
/// How long an answer is kept: as long as the engine remembers request ids, since a sender that
/// repeats later finds those forgotten as well.
const AGE_MAX: Span = Span::from_secs(600);
/// The interval at which answers older than [`AGE_MAX`] are dropped.
const SWEEP: Span = Span::from_secs(60);

/// The remembered answers of all callers.
#[derive(Debug, Default)]
pub(super) struct BatchReplyCache {
    callers: HashMap<Arc<str>, CallerReplies>,
    bytes: usize,
    swept_at: Time,
}

/// The remembered answers to the senders of one credential.
#[derive(Debug, Default)]
struct CallerReplies {
    senders: HashMap<u64, LastBatch>,
    /// The senders ordered by their last batch or answer.
    by_age: BTreeMap<u64, u64>,
    next: u64,
    bytes: usize,
}

/// The last batch of a sender.
#[derive(Debug)]
struct LastBatch {
    number: u64,
    /// The encoded answer to the batch, or `None` while the batch is being carried out.
    told: Option<Arc<[u8]>>,
    at: Time,
    /// The key in the map `by_age` under which this sender is listed.
    turn: u64,
}

/// Why a batch with a number that its sender has used before, or a lower one, is not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DuplicateBatch {
    /// The batch was carried out before, and this was the answer.
    Told(Arc<[u8]>),
    /// The batch is being carried out, or a batch of the same sender with a higher number arrived
    /// before.
    Late,
}

impl LastBatch {
    fn bytes(&self) -> usize {
        SENDER_BYTES + self.told.as_ref().map_or(0, |told| told.len())
    }
}

impl BatchReplyCache {
    /// Records that a batch is being carried out. Fails if the batch, or a later one, is known.
    pub(super) fn begin(
        &mut self,
        caller: &Arc<str>,
        from: u64,
        number: u64,
        now: Time,
    ) -> Result<(), DuplicateBatch> {
        self.sweep(now);
        let of_caller = self.callers.get(caller);
        let last = of_caller.and_then(|of_caller| of_caller.senders.get(&from));
        match last {
            Some(last) if last.number == number => {
                return Err(last.told.clone().map_or(DuplicateBatch::Late, DuplicateBatch::Told));
            }
            Some(last) if last.number > number => return Err(DuplicateBatch::Late),
            _ => {}
        }
        self.put(caller, from, LastBatch { number, told: None, at: now, turn: 0 });
        Ok(())
    }

    /// Remembers the answer to a batch that [`Self::begin`] recorded.
    pub(super) fn end(&mut self, caller: &Arc<str>, from: u64, number: u64, told: &Arc<[u8]>) {
        let of_caller = self.callers.get(caller);
        let Some(last) = of_caller.and_then(|of_caller| of_caller.senders.get(&from)) else {
            return;
        };
        if last.number == number {
            let at = last.at;
            self.put(caller, from, LastBatch { number, told: Some(Arc::clone(told)), at, turn: 0 });
        }
    }

    fn put(&mut self, caller: &Arc<str>, from: u64, mut last: LastBatch) {
        let of_caller = self.callers.entry(Arc::clone(caller)).or_default();
        let before = of_caller.bytes;
        of_caller.remove(from);
        last.turn = of_caller.next;
        of_caller.next += 1;
        of_caller.by_age.insert(last.turn, from);
        of_caller.bytes += last.bytes();
        of_caller.senders.insert(from, last);
        while of_caller.bytes > CALLER_BYTES_MAX {
            of_caller.forget_oldest();
        }
        self.bytes = self.bytes - before + of_caller.bytes;
        while self.bytes > BYTES_MAX {
            // Too many bytes are remembered: drop the oldest answer of the credential whose answers
            // use the most bytes.
            let Some(greatest) = self.callers.values_mut().max_by_key(|of| of.bytes) else { break };
            self.bytes -= greatest.forget_oldest();
        }
    }

    fn sweep(&mut self, now: Time) {
        if now.since(self.swept_at) < SWEEP {
            return;
        }
        self.swept_at = now;
        self.callers.retain(|_, of_caller| {
            let old = |of: &CallerReplies| of.oldest().is_some_and(|at| now.since(at) > AGE_MAX);
            while old(of_caller) {
                self.bytes -= of_caller.forget_oldest();
            }
            !of_caller.senders.is_empty()
        });
    }
}

impl CallerReplies {
    fn oldest(&self) -> Option<Time> {
        let (_, from) = self.by_age.first_key_value()?;
        self.senders.get(from).map(|last| last.at)
    }

    /// Forgets the last batch of the sender whose record is the oldest, and returns how many bytes
    /// the record took.
    fn forget_oldest(&mut self) -> usize {
        let oldest = self.by_age.first_key_value().map(|(_, from)| *from);
        oldest.map_or(0, |from| self.remove(from))
    }

    fn remove(&mut self, from: u64) -> usize {
        let Some(last) = self.senders.remove(&from) else { return 0 };
        self.by_age.remove(&last.turn);
        self.bytes -= last.bytes();
        last.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(bytes: usize) -> Arc<[u8]> {
        vec![7; bytes].into()
    }

    #[test]
    fn batch_numbers_are_scoped_to_a_credential() {
        let (mut answers, now) = (BatchReplyCache::default(), Time::from_secs(1));
        let (ann, eve): (Arc<str>, Arc<str>) = ("ann".into(), "eve".into());
        answers.begin(&ann, 7, 3, now).expect("new");
        assert_eq!(answers.begin(&ann, 7, 3, now), Err(DuplicateBatch::Late));
        answers.end(&ann, 7, 3, &told(5));
        assert_eq!(answers.begin(&ann, 7, 3, now), Err(DuplicateBatch::Told(told(5))));
        assert_eq!(answers.begin(&eve, 7, 3, now), Ok(()), "another sender");
        assert_eq!(answers.begin(&eve, 7, u64::MAX, now), Ok(()));
        assert_eq!(answers.begin(&ann, 7, 4, now), Ok(()));
        assert_eq!(answers.begin(&ann, 7, 3, now), Err(DuplicateBatch::Late));
    }

    #[test]
    fn remembered_answers_are_limited_in_bytes_and_age() {
        let (mut answers, now) = (BatchReplyCache::default(), Time::from_secs(1));
        let ann: Arc<str> = "ann".into();
        answers.begin(&ann, 1, 1, now).expect("new");
        answers.end(&ann, 1, 1, &told(10));
        for eve in ["eve", "eva", "evi"].map(Arc::<str>::from) {
            for from in 0..100 {
                answers.begin(&eve, from, 1, now).expect("new");
                answers.end(&eve, from, 1, &told(1 << 20));
                assert!(answers.callers[&eve].bytes <= CALLER_BYTES_MAX);
                assert!(answers.bytes <= BYTES_MAX);
            }
        }
        let sum: usize = answers.callers.values().map(|of_caller| of_caller.bytes).sum();
        assert_eq!(sum, answers.bytes);
        assert_eq!(
            answers.begin(&ann, 1, 1, now),
            Err(DuplicateBatch::Told(told(10))),
            "beside the flood"
        );
        let later = now + AGE_MAX + SWEEP;
        assert_eq!(answers.begin(&ann, 1, 1, later), Ok(()), "forgotten by then");
        assert_eq!(answers.bytes, SENDER_BYTES);
    }
}
