//! The locks that are held, by name, and how many of them lie below another name.
//!
//! Nearly every request of a file system asks whether something lies below a name. Where no name
//! has parts, which is so for most users, the count answers that.

use super::lock::Lock;
use super::name::LockName;
use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, OccupiedEntry, VacantEntry};
use std::ops::Deref;

/// The locks. Reading is that of the map; writing keeps the count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LockTable {
    locks: BTreeMap<LockName, Box<Lock>>,
    /// Names that have more than one part.
    below: usize,
}

/// The place of a name.
pub(super) enum Slot<'a> {
    /// There is a lock.
    Taken(&'a mut Lock),
    /// There is none.
    Free(VacantSlot<'a>),
}

/// The place of a lock that is there.
pub(super) struct OccupiedSlot<'a> {
    slot: OccupiedEntry<'a, LockName, Box<Lock>>,
    below: &'a mut usize,
}

/// A place where nothing is.
pub(super) struct VacantSlot<'a> {
    slot: VacantEntry<'a, LockName, Box<Lock>>,
    below: &'a mut usize,
}

impl LockTable {
    /// The place of `name`: among a million locks, finding it is what costs, so once is enough.
    pub(super) fn slot(&mut self, name: &LockName) -> Slot<'_> {
        match self.locks.entry(name.clone()) {
            Entry::Occupied(slot) => Slot::Taken(slot.into_mut()),
            Entry::Vacant(slot) => Slot::Free(VacantSlot { slot, below: &mut self.below }),
        }
    }

    /// The lock of this name, for who may remove it.
    pub(super) fn taken(&mut self, name: &LockName) -> Option<OccupiedSlot<'_>> {
        match self.locks.entry(name.clone()) {
            Entry::Occupied(slot) => Some(OccupiedSlot { slot, below: &mut self.below }),
            Entry::Vacant(_) => None,
        }
    }

    /// The lock of this name, or a new one.
    pub(super) fn get_or_new(&mut self, name: &LockName) -> &mut Lock {
        match self.slot(name) {
            Slot::Taken(lock) => lock,
            Slot::Free(free) => free.put(Box::default()),
        }
    }

    pub(super) fn get_mut(&mut self, name: &LockName) -> Option<&mut Lock> {
        self.locks.get_mut(name).map(|lock| &mut **lock)
    }

    pub(super) fn remove(&mut self, name: &LockName) {
        if self.locks.remove(name).is_some() {
            self.below -= usize::from(name.has_parts());
        }
    }

    /// How many names have more than one part.
    pub(super) const fn below(&self) -> usize {
        self.below
    }
}

impl OccupiedSlot<'_> {
    pub(super) fn lock(&self) -> &Lock {
        self.slot.get()
    }

    pub(super) fn lock_mut(&mut self) -> &mut Lock {
        self.slot.get_mut()
    }

    pub(super) fn remove(self) {
        *self.below -= usize::from(self.slot.key().has_parts());
        self.slot.remove();
    }
}

impl<'a> VacantSlot<'a> {
    pub(super) fn put(self, lock: Box<Lock>) -> &'a mut Lock {
        *self.below += usize::from(self.slot.key().has_parts());
        self.slot.insert(lock)
    }
}

impl Deref for LockTable {
    type Target = BTreeMap<LockName, Box<Lock>>;

    fn deref(&self) -> &Self::Target {
        &self.locks
    }
}
