//! The space that unpublished content and lost files may take.

use parking_lot::Mutex;
use std::fmt;

/// How many bytes a guard keeps at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpaceLimits {
    /// The bytes of unpublished content.
    pub(crate) staged: u64,
    /// The bytes of lost files. Unpublished content counts as well: the end of the tenure would
    /// put it aside.
    pub(crate) lost: u64,
}

impl SpaceLimits {
    /// No limit.
    pub(crate) const NONE: Self = Self { staged: u64::MAX, lost: u64::MAX };
}

/// Why there is no space for more content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSpace {
    /// Unpublished content takes all of its space.
    Staged {
        /// The bytes that are allowed.
        max: u64,
    },
    /// Lost files, and content that may become lost, take all of their space.
    Lost {
        /// The bytes that are allowed.
        max: u64,
    },
}

impl fmt::Display for NoSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Staged { max } => write!(
                f,
                "files that are not closed yet would hold more than the {max} bytes that \
                 --max-stage allows; close some, or start the guard with a higher limit"
            ),
            Self::Lost { max } => write!(
                f,
                "lost files, with those that are not closed yet, would hold more than the {max} \
                 bytes that --max-lost allows; look at them with 'latchfs guard lost', and drop \
                 those that you do not need with --drop N"
            ),
        }
    }
}

#[derive(Debug, Default)]
struct Used {
    staged: u64,
    lost: u64,
}

/// The space of one guard.
#[derive(Debug)]
pub(crate) struct Space {
    limits: SpaceLimits,
    used: Mutex<Used>,
}

impl Space {
    /// Returns space of which nothing is used.
    pub(crate) fn new(limits: SpaceLimits) -> Self {
        Self { limits, used: Mutex::default() }
    }

    /// Whether there is a limit at all.
    pub(crate) fn is_limited(&self) -> bool {
        self.limits != SpaceLimits::NONE
    }

    /// Takes space for `bytes` more of unpublished content.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), NoSpace> {
        let mut used = self.used.lock();
        let staged = used.staged.saturating_add(bytes);
        if staged > self.limits.staged {
            return Err(NoSpace::Staged { max: self.limits.staged });
        }
        if staged.saturating_add(used.lost) > self.limits.lost {
            return Err(NoSpace::Lost { max: self.limits.lost });
        }
        used.staged = staged;
        Ok(())
    }

    /// Gives the space of unpublished content back.
    pub(crate) fn give(&self, bytes: u64) {
        let mut used = self.used.lock();
        used.staged = used.staged.saturating_sub(bytes);
    }

    /// Fails if there is no space for so many bytes of lost files more.
    pub(crate) fn has_room_for_lost(&self, bytes: u64) -> Result<(), NoSpace> {
        let used = self.used.lock();
        if used.staged.saturating_add(used.lost).saturating_add(bytes) > self.limits.lost {
            return Err(NoSpace::Lost { max: self.limits.lost });
        }
        Ok(())
    }

    /// Counts content that has become a lost file.
    pub(crate) fn add_lost(&self, bytes: u64) {
        let mut used = self.used.lock();
        used.lost = used.lost.saturating_add(bytes);
    }

    /// Sets the bytes of all lost files.
    pub(crate) fn set_lost(&self, bytes: u64) {
        self.used.lock().lost = bytes;
    }

    /// Fails if a new change finds no space at all.
    pub(crate) fn check(&self) -> Result<(), NoSpace> {
        self.take(1).map(|()| self.give(1))
    }

    /// Returns the bytes of unpublished content and of lost files.
    pub(crate) fn used(&self) -> (u64, u64) {
        let used = self.used.lock();
        (used.staged, used.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpublished_and_lost_content_has_a_bound() {
        let space = Space::new(SpaceLimits { staged: 10, lost: 20 });
        assert_eq!(space.take(10), Ok(()));
        assert_eq!(space.take(1), Err(NoSpace::Staged { max: 10 }));
        assert_eq!(space.check(), Err(NoSpace::Staged { max: 10 }));
        space.give(10);
        space.add_lost(15);
        assert_eq!(space.take(5), Ok(()));
        assert_eq!(space.take(1), Err(NoSpace::Lost { max: 20 }));
        assert_eq!(space.take(u64::MAX), Err(NoSpace::Staged { max: 10 }));
        space.set_lost(14);
        assert_eq!(space.has_room_for_lost(1), Ok(()));
        assert_eq!(space.has_room_for_lost(2), Err(NoSpace::Lost { max: 20 }));
        assert_eq!(space.has_room_for_lost(u64::MAX), Err(NoSpace::Lost { max: 20 }));
        assert_eq!((space.take(1), space.used()), (Ok(()), (6, 14)));
        assert!(NoSpace::Lost { max: 20 }.to_string().contains("--drop N"));
    }
}
