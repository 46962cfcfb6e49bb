//! Decides who may do what with a guarded folder: through its view, or through the socket of a
//! guard that has no view.

/// The sentence for a user who may not take, give or accept.
const NOT_OF_THIS_USER: &str =
    "only root, the user who started the guard and the owner of the tenure may ask this";

/// A user of this machine, and the guard that the user asks for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolderUser {
    /// The uid of the caller, as the kernel names it.
    pub(crate) uid: u32,
    /// The uid of the guard's process.
    pub(crate) guard: u32,
}

impl FolderUser {
    /// Whether the user may know and end what programs of other users do: root, and the user who
    /// started the guard.
    pub(crate) const fn is_trusted(self) -> bool {
        self.uid == 0 || self.uid == self.guard
    }

    /// Whether the user may know the names of all files, also of those in directories that others
    /// may not read: one who is trusted, and the owner of the folder.
    pub(crate) fn may_see_names(self, owner_of_folder: impl FnOnce() -> Option<u32>) -> bool {
        self.is_trusted() || owner_of_folder() == Some(self.uid)
    }

    /// Whether the user may see, restore and drop a lost file that `writer` has written.
    #[cfg(target_os = "linux")]
    pub(crate) const fn may_see_lost(self, writer: u32) -> bool {
        self.is_trusted() || self.uid == writer
    }

    /// Checks whether the user may take the lock, give it up, or accept the folder as it stands.
    /// `owns_tenure`: the current tenure is held for the programs of this user alone.
    pub(crate) const fn may_take_or_give(self, owns_tenure: bool) -> Result<(), &'static str> {
        if self.is_trusted() || owns_tenure { Ok(()) } else { Err(NOT_OF_THIS_USER) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_user_of_the_guard_and_the_owner_have_rights() {
        let user = |uid| FolderUser { uid, guard: 5 };
        for uid in [0, 5] {
            assert_eq!(user(uid).may_take_or_give(false), Ok(()), "{uid}");
            assert!(user(uid).may_see_names(|| None), "{uid}");
        }
        let other = user(6);
        assert_eq!(other.may_take_or_give(false), Err(NOT_OF_THIS_USER));
        assert_eq!(other.may_take_or_give(true), Ok(()));
        assert!(other.may_see_names(|| Some(6)) && !other.may_see_names(|| Some(7)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_lost_file_is_shown_to_its_writer() {
        let may_see = |uid| FolderUser { uid, guard: 5 }.may_see_lost(6);
        assert!(may_see(0) && may_see(5) && may_see(6) && !may_see(7));
    }
}
