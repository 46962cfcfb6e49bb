//! The findings of a guarded folder.

/// Defines the kinds of findings with their names, in the order in which they are documented.
macro_rules! finding_kinds {
    ($($kind:ident = $name:literal,)+) => {
        /// The kinds of findings. Each has a section in `contrib/doc/doctor.md`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum FindingKind {
            $($kind,)+
        }

        impl FindingKind {
            /// All names, in the order in which they are documented.
            #[cfg(test)]
            pub(crate) const NAMES: &[&str] = &[$($name,)+];

            /// Returns the name of the kind.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

finding_kinds! {
    ViewMissing = "view-missing",
    StageLeftover = "stage-leftover",
    SnapshotPartial = "snapshot-partial",
    SnapshotCorrupt = "snapshot-corrupt",
    RecordLeftover = "record-leftover",
    AuditChain = "audit-chain",
    Descriptors = "descriptors",
    Kernel = "kernel",
    StageSynced = "stage-synced",
    OtherFileSystem = "other-filesystem",
    FolderLocked = "folder-locked",
    MarkerMissing = "marker-missing",
    MarkerBroken = "marker-broken",
    Unsure = "unsure",
    NotArrived = "not-arrived",
    Foreign = "foreign",
    Superseded = "superseded",
    Stray = "stray",
    Ignored = "ignored",
    Lost = "lost",
    LatePublish = "late-publish",
    Around = "around",
    ServerUnreachable = "server-unreachable",
    Clock = "clock",
    SameName = "same-name",
    OtherEngine = "other-engine",
    ServerTooOld = "server-too-old",
    SyncSettings = "sync-settings",
}

/// A finding, as sentences for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FolderFinding {
    /// What kind of finding it is.
    pub(crate) kind: FindingKind,
    /// What was found.
    pub(crate) says: String,
    /// What to do about it; `None` if nothing is wrong.
    pub(crate) mend: Option<String>,
}

impl FolderFinding {
    /// Returns a finding.
    pub(crate) fn new(kind: FindingKind, says: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { kind, says: says.into(), mend: Some(mend.into()) }
    }

    /// Returns a finding for a person who wants to know; nothing is wrong.
    pub(crate) fn known(kind: FindingKind, says: impl Into<String>) -> Self {
        Self { kind, says: says.into(), mend: None }
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
        assert_eq!(sections, FindingKind::NAMES);
    }

    /// Programs look them up in the schema.
    #[test]
    fn each_finding_is_in_the_schema() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/contrib/schema/doctor.json");
        let text = std::fs::read_to_string(path).expect("the schema");
        let schema: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(schema["$defs"]["name"]["enum"], serde_json::json!(FindingKind::NAMES));
    }

    /// Each one arises from its fault in a test of the guarded folders.
    #[test]
    fn each_finding_arises_in_a_test() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guarded");
        let mut tests = String::new();
        for entry in std::fs::read_dir(dir).expect("the tests") {
            tests += &std::fs::read_to_string(entry.expect("one").path()).unwrap_or_default();
        }
        for name in FindingKind::NAMES {
            assert!(tests.contains(&format!("\"{name}")), "{name}");
        }
    }
}
