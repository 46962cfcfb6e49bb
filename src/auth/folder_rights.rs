//! The table of rights to a guarded folder: for each request to a guard, through its view or
//! through the socket of a guard without a view, what root, the user who started the guard, the
//! owner of the tenure and any other user may do. Everything that the table does not allow is
//! refused.

/// How much of a request a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it.
    Yes,
    /// All, but without the names of files, unless the folder belongs to the user.
    Short,
    /// As far as it concerns what belongs to the user.
    Own,
    /// What the modes and ACLs of the files allow.
    Modes,
    /// Nothing.
    No,
}

impl Extent {
    /// Whether the request may concern something. `is_own`: it belongs to the user.
    #[cfg(target_os = "linux")]
    pub(crate) const fn includes(self, is_own: bool) -> bool {
        match self {
            Self::Yes => true,
            Self::Own => is_own,
            Self::Short | Self::Modes | Self::No => false,
        }
    }

    /// Returns the word for the extent in the table.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Short => "short",
            Self::Own => "own",
            Self::Modes => "modes",
            Self::No => "no",
        }
    }
}

/// The rights to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolderRule {
    /// What the request does, as in "only root may ...".
    pub(crate) name: &'static str,
    /// The requests that do this: through the file `ctl` of a view, through the socket of a guard
    /// without a view, by reading a file in `.latchfs`, or by an act on a file in `.latchfs/locks`.
    pub(crate) requests: &'static [&'static str],
    /// What root may do.
    pub(crate) root: Extent,
    /// What the user may do who started the guard.
    pub(crate) guard: Extent,
    /// What the owner of the tenure may do, if the tenure is not held for all programs.
    pub(crate) owner: Extent,
    /// What any other user may do.
    pub(crate) other: Extent,
}

macro_rules! folder_acts {
    ($($act:ident $name:literal $root:ident $guard:ident $owner:ident $other:ident
        [$($request:literal)+];)+) => {
        /// What a request to a guard does.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum FolderAct {
            $(#[doc = $name] $act,)+
        }

        impl FolderAct {
            /// All acts, in the order of the table.
            pub(crate) const ALL: &[Self] = &[$(Self::$act,)+];

            /// Returns the rights to the act.
            pub(crate) const fn rule(self) -> FolderRule {
                match self {
                    $(Self::$act => FolderRule {
                        name: $name,
                        requests: &[$($request,)+],
                        root: Extent::$root,
                        guard: Extent::$guard,
                        owner: Extent::$owner,
                        other: Extent::$other,
                    },)+
                }
            }
        }
    };
}

// The table of rights. Each row has what a request does; how much of that root, the user who
// started the guard, the owner of the tenure and any other user may do; and the requests.
folder_acts! {
    ShowState      "show the state"               Yes Yes Short Short
        ["ctl status" "socket status" "read status"];
    ReadRefusals   "read why changes were refused" Yes Own Own Own ["read why"];
    FollowEvents   "follow the events"            Yes Yes Short Short
        ["read events" "socket events"];
    ShowMissing    "show what is missing"         Yes Yes Short Short ["read missing"];
    WaitReady      "wait until it is ready"       Yes Yes Yes Yes ["read ready" "socket wait"];
    Take           "take the lock"                Yes Yes Yes No
        ["ctl take" "socket take" "locks create"];
    Renew          "renew the tenure"             Yes Yes Yes No ["locks renew"];
    Give           "give the lock up"             Yes Yes Yes Own
        ["ctl give" "socket give" "locks remove"];
    TakeAlong      "take the lock along"          Yes Yes No No ["ctl take-for" "socket take-for"];
    Steal          "steal an expired lock"        Yes Yes No No
        ["locks prepare" "locks steal" "locks remove-prepared"];
    Accept         "accept the folder as it is"   Yes Yes No No
        ["ctl accept" "ctl accept-from" "socket accept" "socket accept-from"];
    Use            "use the lock for a program"   Yes Yes Yes No ["ctl use" "socket use"];
    EndUse         "end a use of the lock"        Own Own Own Own ["ctl end-use" "socket end-use"];
    ListLost       "list lost files"              Yes Yes Own Own ["ctl lost"];
    RestoreLost    "restore a lost file"          Yes Yes Own Own ["ctl restore"];
    DropLost       "drop a lost file"             Yes Yes Own Own ["ctl drop"];
    ListSnapshots  "list snapshots"               Yes Yes Short Short ["ctl snapshot-list"];
    ShowSnapshot   "show a snapshot"              Yes Yes Short Short ["ctl snapshot-show"];
    ReadSnapshot   "read a snapshot"              Modes Modes Modes Modes ["read snapshots"];
    TakeSnapshot   "take a snapshot"              Yes Yes No No ["ctl snapshot-take"];
    VerifySnapshot "check a snapshot"             Yes Yes No No ["ctl snapshot-verify"];
    RemoveSnapshot "remove a snapshot"            Yes Yes No No ["ctl snapshot-remove"];
    ReadRecord     "read the lock record"         Yes Yes Yes Yes ["locks read"];
}

/// The tenure that a user has to do with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code))] // a tenure without a view has no owner
pub(crate) enum TenureOf {
    /// The tenure is held for the programs of this user, or of this login session, alone.
    Caller,
    /// The tenure is held for another login session of the same user.
    SameUser,
    /// There is no tenure, or it is held for all programs of the machine or for somebody else.
    Nobody,
}

/// A user of this machine who requests something of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolderUser {
    /// The uid of the caller, as the kernel names it.
    pub(crate) uid: u32,
    /// The uid of the guard's process.
    pub(crate) guard: u32,
    /// Whether the current tenure is the caller's.
    pub(crate) tenure: TenureOf,
}

impl FolderUser {
    /// Whether the user is root or has started the guard.
    #[cfg(target_os = "linux")]
    pub(crate) const fn is_administrator(self) -> bool {
        self.uid == 0 || self.uid == self.guard
    }

    /// Returns how much of an act the user may do.
    pub(crate) const fn extent(self, act: FolderAct) -> Extent {
        let rule = act.rule();
        if self.uid == 0 {
            rule.root
        } else if self.uid == self.guard {
            rule.guard
        } else if matches!(self.tenure, TenureOf::Caller) {
            rule.owner
        } else {
            rule.other
        }
    }

    /// Returns how much of an act the user may do, or a sentence that says who may if that is
    /// nothing.
    pub(crate) fn check(self, act: FolderAct) -> Result<Extent, String> {
        // There is one tenure at a time, so it is the user's own or not.
        let has_own = act != FolderAct::Give || self.tenure == TenureOf::SameUser;
        match self.extent(act) {
            Extent::No => Err(refusal(act)),
            Extent::Own if !has_own => Err(refusal(act)),
            extent => Ok(extent),
        }
    }

    /// Whether the answer to an act may name all files, also those in directories that the user may
    /// not read.
    pub(crate) fn sees_names(
        self,
        act: FolderAct,
        owner_of_folder: impl FnOnce() -> Option<u32>,
    ) -> bool {
        match self.extent(act) {
            Extent::Yes => true,
            Extent::Short => owner_of_folder() == Some(self.uid),
            Extent::Own | Extent::Modes | Extent::No => false,
        }
    }
}

/// Returns the sentence for a user who may not do something.
fn refusal(act: FolderAct) -> String {
    let FolderRule { name, owner, .. } = act.rule();
    match owner {
        Extent::No => format!("only root and the user who started the guard may {name}"),
        _ => format!(
            "only root, the user who started the guard and the owner of the tenure may {name}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn user(uid: u32, tenure: TenureOf) -> FolderUser {
        FolderUser { uid, guard: 5, tenure }
    }

    /// The acts of an administrator of the folder, which concern other users.
    const ADMINISTRATION: [FolderAct; 6] = [
        FolderAct::TakeAlong,
        FolderAct::Steal,
        FolderAct::Accept,
        FolderAct::TakeSnapshot,
        FolderAct::VerifySnapshot,
        FolderAct::RemoveSnapshot,
    ];

    #[cfg(target_os = "linux")]
    #[test]
    fn the_owner_of_a_tenure_is_no_administrator_of_the_folder() {
        let owner = user(6, TenureOf::Caller);
        for act in ADMINISTRATION {
            for uid in [0, 5] {
                assert_eq!(user(uid, TenureOf::Nobody).check(act), Ok(Extent::Yes), "{act:?}");
            }
            let refused = owner.check(act).expect_err("the folder is not the owner's");
            assert!(refused.starts_with("only root and the user who started"), "{refused}");
        }
        for act in [FolderAct::ListLost, FolderAct::RestoreLost, FolderAct::DropLost] {
            let extent = owner.extent(act);
            assert!(extent.includes(true) && !extent.includes(false), "{act:?}");
        }
    }

    #[test]
    fn nobody_has_more_rights_without_a_tenure_than_with_it() {
        let rank = |extent| match extent {
            Extent::No => 0,
            Extent::Own | Extent::Short | Extent::Modes => 1,
            Extent::Yes => 2,
        };
        for act in FolderAct::ALL {
            let rule = act.rule();
            assert!(rank(rule.owner) >= rank(rule.other), "{}", rule.name);
            assert!(rank(rule.guard) >= rank(rule.owner), "{}", rule.name);
            assert!(rank(rule.root) >= rank(rule.guard), "{}", rule.name);
        }
    }

    #[test]
    fn each_request_is_in_one_row() {
        let mut seen = HashSet::new();
        for request in FolderAct::ALL.iter().flat_map(|act| act.rule().requests) {
            assert!(seen.insert(request), "{request} is in two rows");
        }
    }

    #[test]
    fn a_tenure_is_given_up_by_its_owner_and_by_administrators() {
        for (uid, tenure, may) in [
            (0, TenureOf::Nobody, true),
            (5, TenureOf::Nobody, true),
            (6, TenureOf::Caller, true),
            (6, TenureOf::SameUser, true),
            (6, TenureOf::Nobody, false),
        ] {
            assert_eq!(user(uid, tenure).check(FolderAct::Give).is_ok(), may, "{uid} {tenure:?}");
        }
    }

    #[test]
    fn the_owner_of_the_folder_sees_the_names_of_files() {
        let sees = |uid, owner| {
            user(uid, TenureOf::Nobody).sees_names(FolderAct::ShowState, || Some(owner))
        };
        assert!(sees(0, 9) && sees(5, 9) && sees(6, 6) && !sees(6, 7));
    }
}
