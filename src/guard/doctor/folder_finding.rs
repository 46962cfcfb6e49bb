//! The findings of a guarded folder.

/// The kinds of findings. Each has a section in `contrib/doc/doctor.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FindingKind {
    ViewMissing,
    StageLeftover,
    #[allow(dead_code)] // for snapshots
    SnapshotPartial,
    #[allow(dead_code)] // for snapshots
    SnapshotCorrupt,
    #[allow(dead_code)] // for lock records
    RecordLeftover,
    AuditChain,
    MarkerMissing,
    MarkerBroken,
    Unsure,
    NotArrived,
    Stray,
    Foreign,
    Superseded,
    LatePublish,
    Lost,
    Clock,
    SameName,
    OtherEngine,
    StageSynced,
    OtherFileSystem,
    ServerTooOld,
    Descriptors,
    Kernel,
    Around,
    SyncSettings,
}

impl FindingKind {
    /// All kinds, in the order in which they are documented.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 25] = [
        Self::ViewMissing,
        Self::StageLeftover,
        Self::SnapshotPartial,
        Self::SnapshotCorrupt,
        Self::RecordLeftover,
        Self::AuditChain,
        Self::Descriptors,
        Self::Kernel,
        Self::StageSynced,
        Self::OtherFileSystem,
        Self::MarkerMissing,
        Self::MarkerBroken,
        Self::Unsure,
        Self::NotArrived,
        Self::Foreign,
        Self::Superseded,
        Self::Stray,
        Self::Lost,
        Self::LatePublish,
        Self::Around,
        Self::Clock,
        Self::SameName,
        Self::OtherEngine,
        Self::ServerTooOld,
        Self::SyncSettings,
    ];

    /// Returns the name of the kind.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ViewMissing => "view-missing",
            Self::StageLeftover => "stage-leftover",
            Self::SnapshotPartial => "snapshot-partial",
            Self::SnapshotCorrupt => "snapshot-corrupt",
            Self::RecordLeftover => "record-leftover",
            Self::AuditChain => "audit-chain",
            Self::MarkerMissing => "marker-missing",
            Self::MarkerBroken => "marker-broken",
            Self::Unsure => "unsure",
            Self::NotArrived => "not-arrived",
            Self::Stray => "stray",
            Self::Foreign => "foreign",
            Self::Superseded => "superseded",
            Self::LatePublish => "late-publish",
            Self::Lost => "lost",
            Self::Clock => "clock",
            Self::SameName => "same-name",
            Self::OtherEngine => "other-engine",
            Self::StageSynced => "stage-synced",
            Self::OtherFileSystem => "other-filesystem",
            Self::ServerTooOld => "server-too-old",
            Self::Descriptors => "descriptors",
            Self::Kernel => "kernel",
            Self::Around => "around",
            Self::SyncSettings => "sync-settings",
        }
    }
}

/// A finding, as sentences for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FolderFinding {
    /// What kind of finding it is.
    pub(crate) kind: FindingKind,
    /// What was found.
    pub(crate) says: String,
    /// What to do about it.
    pub(crate) mend: String,
}

impl FolderFinding {
    /// Returns a finding.
    pub(crate) fn new(kind: FindingKind, says: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { kind, says: says.into(), mend: mend.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators look findings up by their names.
    #[test]
    fn each_finding_has_its_section() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/contrib/doc/doctor.md");
        let text = std::fs::read_to_string(path).expect("the chapter");
        let sections: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        assert_eq!(sections, FindingKind::ALL.map(FindingKind::as_str));
    }
}
