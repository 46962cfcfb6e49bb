//! The path of a file in a guarded folder, as markers, ledger and ignore rules name it.

use std::fmt;
use std::sync::Arc;
use unicode_normalization::UnicodeNormalization as _;

/// The maximum length of a path in a guarded folder in bytes.
pub(crate) const FOLDER_PATH_BYTES_MAX: usize = 4_096;
/// The directory of the guard, which is no part of the folder's content.
const CONTROL_DIR: &str = ".latchfs";

/// A path below the folder, in Unicode normalization form C: the names that machines give to one
/// file can differ by normalization alone. It names something in the folder by construction: it is
/// relative and has no part that is empty, `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FolderPath(Arc<str>);

/// Why a text is no path in a guarded folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FolderPathError {
    /// The path begins with a slash.
    Absolute,
    /// A part of the path is empty.
    EmptyPart,
    /// A part of the path is `.` or `..`.
    Dots,
    /// The path contains a NUL.
    Nul,
    /// The path has too many bytes.
    TooLong,
    /// The path leads into the directory of the guard.
    Control,
}

impl fmt::Display for FolderPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absolute => f.write_str("a path is absolute"),
            Self::EmptyPart => f.write_str("a path has an empty part"),
            Self::Dots => f.write_str("a path has a part '.' or '..'"),
            Self::Nul => f.write_str("a path contains a NUL"),
            Self::TooLong => write!(f, "a path has more than {FOLDER_PATH_BYTES_MAX} bytes"),
            Self::Control => write!(f, "a path leads into '{CONTROL_DIR}'"),
        }
    }
}

impl FolderPath {
    /// Parses a path relative to the folder.
    pub(crate) fn parse(text: &str) -> Result<Self, FolderPathError> {
        if text.len() > FOLDER_PATH_BYTES_MAX {
            return Err(FolderPathError::TooLong);
        }
        if text.starts_with('/') {
            return Err(FolderPathError::Absolute);
        }
        if text.contains('\0') {
            return Err(FolderPathError::Nul);
        }
        let path: String = text.nfc().collect();
        if path.len() > FOLDER_PATH_BYTES_MAX {
            return Err(FolderPathError::TooLong);
        }
        for part in path.split('/') {
            match part {
                "" => return Err(FolderPathError::EmptyPart),
                "." | ".." => return Err(FolderPathError::Dots),
                _ => {}
            }
        }
        if path.split('/').next() == Some(CONTROL_DIR) {
            return Err(FolderPathError::Control);
        }
        Ok(Self(path.into()))
    }

    /// Returns the path as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the last part of the path.
    pub(crate) fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Returns the path of another file in the same directory.
    pub(crate) fn beside(&self, name: &str) -> Result<Self, FolderPathError> {
        match self.0.rsplit_once('/') {
            Some((dir, _)) => Self::parse(&format!("{dir}/{name}")),
            None => Self::parse(name),
        }
    }

    /// Returns the path that this path has after the directory `from`, in which it lies, was
    /// renamed to `to`; `None` if it does not lie in `from`.
    pub(crate) fn moved(&self, from: &Self, to: &Self) -> Option<Result<Self, FolderPathError>> {
        let rest = self.0.strip_prefix(&*from.0)?;
        rest.starts_with('/').then(|| Self::parse(&format!("{}{rest}", to.0)))
    }

    /// Whether this path lies in the directory `dir`.
    pub(crate) fn is_below(&self, dir: &Self) -> bool {
        self.0.strip_prefix(&*dir.0).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl fmt::Display for FolderPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_never_leaves_the_folder() {
        let cases = [
            ("/etc/passwd", FolderPathError::Absolute),
            ("a//b", FolderPathError::EmptyPart),
            ("a/", FolderPathError::EmptyPart),
            ("", FolderPathError::EmptyPart),
            ("../b", FolderPathError::Dots),
            ("a/../../b", FolderPathError::Dots),
            ("./a", FolderPathError::Dots),
            ("a\0b", FolderPathError::Nul),
            (".latchfs/folder", FolderPathError::Control),
            (".latchfs", FolderPathError::Control),
        ];
        for (text, error) in cases {
            assert_eq!(FolderPath::parse(text), Err(error), "{text:?}");
        }
        for text in ["a", "a/b.txt", "...", "..a/b..", "a/.latchfs", " ", "a\nb", "\\"] {
            assert_eq!(FolderPath::parse(text).map(|path| path.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn a_path_has_a_maximum_length() {
        let longest = "x".repeat(FOLDER_PATH_BYTES_MAX);
        assert!(FolderPath::parse(&longest).is_ok());
        let too_long = FolderPath::parse(&format!("{longest}x"));
        assert_eq!(too_long, Err(FolderPathError::TooLong));
        // U+0344 has two bytes, and four after normalization.
        let grows = "\u{344}".repeat(FOLDER_PATH_BYTES_MAX / 2);
        assert_eq!(FolderPath::parse(&grows), Err(FolderPathError::TooLong));
    }

    #[test]
    fn normalization_makes_no_difference() {
        let composed = FolderPath::parse("caf\u{e9}/a").expect("valid");
        assert_eq!(FolderPath::parse("cafe\u{301}/a"), Ok(composed.clone()));
        assert_eq!(composed.name(), "a");
        let other = composed.beside("b").expect("valid");
        assert_eq!(other.as_str(), "caf\u{e9}/b");
    }

    #[test]
    fn a_renamed_directory_moves_the_paths_below_it() {
        let path = |text| FolderPath::parse(text).expect("valid");
        let moved = path("a/b/c").moved(&path("a"), &path("x/y"));
        assert_eq!(moved, Some(Ok(path("x/y/b/c"))));
        assert_eq!(path("ab/c").moved(&path("a"), &path("x")), None);
        assert!(path("a/b").is_below(&path("a")) && !path("ab").is_below(&path("a")));
        assert!(!path("a").is_below(&path("a")));
    }
}
