//! A memory budget for long request bodies, shared by all callers. The callers with the same
//! credential get at most half of it.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum length in bytes of a request body that does not count against the budget. The 4,096
/// requests that one address may have open at once take 16 MiB with such bodies.
pub(super) const SHORT_BYTES: usize = 4 << 10;
/// Total size in bytes of the long request bodies that are being read: eight batches of the maximum
/// size.
const ALL_BYTES_MAX: usize = 16 << 20;
/// Size in bytes of the long request bodies of one credential that are being read: half of the
/// budget, or about 160 batches of a busy mount.
const CALLER_BYTES_MAX: usize = ALL_BYTES_MAX / 2;

/// The bytes of the budget that are in use, in total and by credential.
#[derive(Debug, Clone, Default)]
pub(super) struct BodyMemory(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    callers: HashMap<Arc<str>, usize>,
}

/// The bytes that one request body takes from the memory budget. Dropping this value returns them
/// to the budget.
#[derive(Debug)]
pub(super) struct BodySlot {
    memory: BodyMemory,
    caller: Arc<str>,
    bytes: usize,
}

impl BodyMemory {
    /// Takes `bytes` bytes from the budget. Returns `None` if too little is left, in total or for
    /// this caller.
    pub(super) fn take(&self, caller: &Arc<str>, bytes: usize) -> Option<BodySlot> {
        let mut taken = self.0.lock();
        let own = taken.callers.get(caller).copied().unwrap_or(0);
        if own + bytes > CALLER_BYTES_MAX || taken.all + bytes > ALL_BYTES_MAX {
            return None;
        }
        taken.all += bytes;
        taken.callers.insert(Arc::clone(caller), own + bytes);
        Some(BodySlot { memory: self.clone(), caller: Arc::clone(caller), bytes })
    }
}

impl Drop for BodySlot {
    fn drop(&mut self) {
        let mut taken = self.memory.0.lock();
        taken.all -= self.bytes;
        if let Some(own) = taken.callers.get_mut(&self.caller) {
            *own -= self.bytes;
            if *own == 0 {
                taken.callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_leaves_half_to_others() {
        let memory = BodyMemory::default();
        let [eve, ann, bob] = ["eve", "ann", "bob"].map(Arc::<str>::from);
        let take = |who: &Arc<str>| -> Vec<BodySlot> {
            (0..1_000).map_while(|_| memory.take(who, 64 << 10)).collect()
        };
        let eves = take(&eve);
        assert_eq!(eves.len(), CALLER_BYTES_MAX / (64 << 10));
        let anns = take(&ann);
        assert_eq!(anns.len(), eves.len());
        assert!(memory.take(&bob, 1).is_none(), "there is no more");
        drop(eves);
        assert!(memory.take(&eve, CALLER_BYTES_MAX).is_some());
        assert!(memory.take(&eve, CALLER_BYTES_MAX + 1).is_none());
        drop(anns);
        let taken = memory.0.lock();
        assert_eq!((taken.all, taken.callers.len()), (0, 0));
    }
}
