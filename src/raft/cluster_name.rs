//! The name of a cluster, which its operator declares on each node. A node joins only a cluster of
//! the same name.

use super::data_dir_error::{DataError, PeerError};
use crate::storage::atomic_file::{Durable, replace};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The maximum length of a name, as of a label in DNS.
const NAME_BYTES_MAX: usize = 63;

/// The name of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterName(Arc<str>);

impl ClusterName {
    /// Returns the name, or `None` if it is not 1 to 63 ASCII letters, digits, `-`, `_` and `.`.
    pub fn parse(text: &str) -> Option<Self> {
        let is_sound = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
        (fits && text.bytes().all(is_sound)).then(|| Self(text.into()))
    }

    /// Records the name in a data directory. Fails if the directory has another one.
    pub(super) fn keep(&self, dir: &Path) -> Result<(), DataError> {
        let file = dir.join("cluster-name");
        match std::fs::read_to_string(&file) {
            Ok(known) if known.trim_end() == &*self.0 => Ok(()),
            Ok(known) => Err(PeerError::Named {
                dir: dir.to_path_buf(),
                name: known.trim_end().escape_debug().to_string(),
                given: self.to_string(),
            }
            .into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("{self}\n");
                let written = replace(&file, &[text.as_bytes()], Durable::Yes);
                written.map(drop).map_err(|error| DataError::io(&file, error))
            }
            Err(error) => Err(DataError::io(&file, error)),
        }
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns why a node that wants to join a cluster of the name `wanted` is not let into one of the
/// name `own`; `None` if it is.
pub(super) fn refusal(wanted: Option<&ClusterName>, own: Option<&ClusterName>) -> Option<String> {
    match (wanted, own) {
        _ if wanted == own => None,
        (Some(wanted), Some(own)) => {
            Some(format!("its cluster is named '{own}' and not '{wanted}'; see --cluster-name"))
        }
        (Some(wanted), None) => Some(format!(
            "its cluster has no name; start its nodes with --cluster-name {wanted} as well"
        )),
        (None, Some(own)) => {
            Some(format!("its cluster is named '{own}'; join it by --cluster-name {own}"))
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_words() {
        for sound in ["prod", "a", "eu-1.locks_2", &"x".repeat(NAME_BYTES_MAX)] {
            assert!(ClusterName::parse(sound).is_some(), "{sound}");
        }
        for bad in ["", "two words", "a/b", "ä", "a\n", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert_eq!(ClusterName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_equal_names_join() {
        let (prod, test) = (ClusterName::parse("prod"), ClusterName::parse("test"));
        for (wanted, own, joins) in [
            (&None, &None, true),
            (&prod, &prod, true),
            (&prod, &test, false),
            (&prod, &None, false),
            (&None, &prod, false),
        ] {
            assert_eq!(
                refusal(wanted.as_ref(), own.as_ref()).is_none(),
                joins,
                "{wanted:?} {own:?}"
            );
        }
    }
}
