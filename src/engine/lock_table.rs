//! The locks that are held, by name, and the number of them whose names have several parts.
//!
//! Nearly every file system request needs to know whether a lock lies below a name. Most users have
//! no names with several parts, and then this number answers the question without a search.

use super::lock::Lock;
use super::name::LockName;
use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, OccupiedEntry, VacantEntry};
use std::ops::Deref;

/// The map of held locks by name. Each insertion and removal also updates the number of locks whose
/// names have several parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LockTable {
    locks: BTreeMap<LockName, Box<Lock>>,
    /// The number of locks whose names have more than one part.
    below: usize,
}

/// The entry of a lock name in the table, like the entry of a map in std.
pub(super) enum Slot<'a> {
    /// The lock is in the table.
    Taken(&'a mut Lock),
    /// The lock is not in the table.
    Free(VacantSlot<'a>),
}

/// A lock in the table, and its name.
pub(super) struct OccupiedSlot<'a> {
    slot: OccupiedEntry<'a, LockName, Box<Lock>>,
    below: &'a mut usize,
}

/// A name for which the table has no lock, and at which one can be inserted.
pub(super) struct VacantSlot<'a> {
    slot: VacantEntry<'a, LockName, Box<Lock>>,
    below: &'a mut usize,
}

impl LockTable {
    /// Returns the entry of `name`. With a million locks the lookup is the main cost, so the caller
    /// does it once.
    pub(super) fn slot(&mut self, name: &LockName) -> Slot<'_> {
        match self.locks.entry(name.clone()) {
            Entry::Occupied(slot) => Slot::Taken(slot.into_mut()),
            Entry::Vacant(slot) => Slot::Free(VacantSlot { slot, below: &mut self.below }),
        }
    }

    /// Returns the lock of this name as an entry that can be removed.
    pub(super) fn taken(&mut self, name: &LockName) -> Option<OccupiedSlot<'_>> {
        match self.locks.entry(name.clone()) {
            Entry::Occupied(slot) => Some(OccupiedSlot { slot, below: &mut self.below }),
            Entry::Vacant(_) => None,
        }
    }

    /// Returns the lock of this name, inserting an empty one if there is none.
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

    /// Returns the number of locks whose names have more than one part.
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
