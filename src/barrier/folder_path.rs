//! The path of a file in a guarded folder, as markers, ledger and ignore rules name it,
//! and patterns for such paths.
//!
//! The SHA-256 digest of a file's content.
//!
//! The files that stand in the folder, as a trait: the barrier decides over it without a disk.

use globset::{Glob, GlobSet, GlobSetBuilder};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};
use unicode_normalization::UnicodeNormalization as _;

/// The maximum length of a path in a guarded folder in bytes.
pub(crate) const FOLDER_PATH_BYTES_MAX: usize = 4_096;
/// The directory of the guard, which is no part of the folder's content.
const CONTROL_DIR: &str = ".latchfs";

/// A path below the folder, in Unicode normalization form C: the names that machines give to one
/// file can differ by normalization alone. It names something in the folder by construction: it is
/// relative and has no part that is empty, `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FolderPath(Arc<str>);

/// Why a text is no path in a guarded folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderPathError {
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
    pub fn parse(text: &str) -> Result<Self, FolderPathError> {
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
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the last part of the path.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Returns the path of another file in the same directory.
    pub fn beside(&self, name: &str) -> Result<Self, FolderPathError> {
        match self.0.rsplit_once('/') {
            Some((dir, _)) => Self::parse(&format!("{dir}/{name}")),
            None => Self::parse(name),
        }
    }

    /// Returns the path that this path has after the directory `from`, in which it lies, was
    /// renamed to `to`; `None` if it does not lie in `from`.
    pub fn moved(&self, from: &Self, to: &Self) -> Option<Result<Self, FolderPathError>> {
        let rest = self.0.strip_prefix(&*from.0)?;
        rest.starts_with('/').then(|| Self::parse(&format!("{}{rest}", to.0)))
    }

    /// Whether this path lies in the directory `dir`.
    pub fn is_below(&self, dir: &Self) -> bool {
        self.0.strip_prefix(&*dir.0).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl fmt::Display for FolderPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A list of patterns for paths. A pattern without a slash matches the last name of a path.
#[derive(Debug, Clone, Default)]
pub struct PathPatterns {
    names: GlobSet,
    paths: GlobSet,
}

impl PathPatterns {
    /// Parses patterns such as `*.log` or `build/**`.
    pub fn parse(texts: &[String]) -> Result<Self, String> {
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for text in texts {
            let glob = Glob::new(text).map_err(|error| {
                format!("'{text}' is no pattern: {}; write one such as '*.log'", error.kind())
            })?;
            if text.contains('/') {
                paths.add(glob)
            } else {
                names.add(glob)
            };
        }
        let set = |builder: &GlobSetBuilder| builder.build().map_err(|error| error.to_string());
        Ok(Self { names: set(&names)?, paths: set(&paths)? })
    }

    /// Whether a pattern looks at more than the name of a file.
    pub fn have_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Whether a pattern matches the path, which is relative to the folder.
    pub fn matches(&self, path: &Path) -> bool {
        let name = path.file_name().map(Path::new);
        name.is_some_and(|name| self.names.is_match(name)) || self.paths.is_match(path)
    }
}

/// The SHA-256 digest of a content: 64 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentDigest(pub [u8; 32]);

impl ContentDigest {
    /// Returns the digest of `content`.
    pub fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }

    /// Parses 64 hexadecimal digits in lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(Self(bytes))
    }

    /// Returns the first eight digits, which are a part of the names of markers.
    pub(crate) fn first_digits(&self) -> String {
        let [one, two, three, four] = [0, 1, 2, 3].map(|at: usize| self.0[at]);
        format!("{one:02x}{two:02x}{three:02x}{four:02x}")
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first_digits())
    }
}

/// Tells two versions of a file apart without reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// The size in bytes.
    pub size: u64,
    /// When the content was last changed, in nanoseconds since 1970; programs can set this.
    pub mtime: i128,
    /// The inode number.
    pub inode: u64,
}

/// A regular file of the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundFile {
    /// Tells the version of the file.
    pub stamp: FileStamp,
    /// When the file was last changed in any way, in nanoseconds since 1970.
    pub changed: i128,
    /// The mode bits.
    pub mode: u32,
    /// Whether the content is here, and not a placeholder of the sync tool.
    pub is_downloaded: bool,
}

/// The regular files of a folder. The directory of the guard is no part of it, symlinks are not
/// followed, and other kinds of files do not count.
pub trait FolderTree {
    /// Calls `visit` for each regular file.
    fn walk(&mut self, visit: &mut dyn FnMut(FolderPath, FoundFile)) -> io::Result<()>;
    /// Returns the regular file that has a path.
    fn find(&mut self, path: &FolderPath) -> io::Result<Option<FoundFile>>;
    /// Whether something is mounted on a path or above it: nobody can say then what stands there.
    fn is_hidden(&mut self, path: &FolderPath) -> io::Result<bool>;
    /// Returns the digest of a file's content; `None` if it is no longer the file `found`, or was
    /// changed meanwhile.
    fn digest(&mut self, path: &FolderPath, found: &FoundFile)
    -> io::Result<Option<ContentDigest>>;
}

/// Returns the error for a path that a list must name and nobody can see, because something is
/// mounted on a directory above it.
pub(super) fn hidden(path: &FolderPath) -> io::Error {
    io::Error::other(format!(
        "nobody can say whether {path} is there, since something is mounted above it; unmount that"
    ))
}

/// The maximum number of files whose digest is remembered while the folder is not ready.
pub(crate) const DIGESTS_MAX: usize = 65_536;

/// The digests of files that are not in the ledger, so that a folder that is looked at again and
/// again is hashed once.
#[derive(Debug, Default)]
pub struct DigestCache {
    known: HashMap<FolderPath, (FileStamp, ContentDigest)>,
}

impl DigestCache {
    /// Returns the digest of a file.
    pub fn digest(
        &mut self,
        tree: &mut dyn FolderTree,
        path: &FolderPath,
        found: &FoundFile,
    ) -> io::Result<Option<ContentDigest>> {
        if let Some((stamp, digest)) = self.known.get(path)
            && *stamp == found.stamp
        {
            return Ok(Some(*digest));
        }
        let digest = tree.digest(path, found)?;
        if let Some(digest) = digest {
            if self.known.len() >= DIGESTS_MAX {
                self.known.clear();
            }
            self.known.insert(path.clone(), (found.stamp, digest));
        }
        Ok(digest)
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

#[cfg(test)]
mod content_digest_tests {
    use super::*;

    #[test]
    fn a_digest_is_64_hexadecimal_digits() {
        let digest = ContentDigest::of(b"abc");
        let text = digest.to_string();
        assert_eq!(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(ContentDigest::parse(&text), Some(digest));
        assert_eq!(digest.first_digits(), "ba7816bf");
        for wrong in [&text[1..], &text.to_uppercase(), &text.replace('b', "g"), ""] {
            assert_eq!(ContentDigest::parse(wrong), None, "{wrong}");
        }
    }
}

#[cfg(test)]
mod tree_tests {
    use super::*;
    use crate::test_markers::TestTree;

    #[test]
    fn remembered_digests_have_a_bound() {
        let mut cache = DigestCache::default();
        let mut tree = TestTree::default();
        for number in 0..=DIGESTS_MAX {
            let path = FolderPath::parse(&format!("{number}")).expect("valid");
            let stamp = FileStamp { size: 0, mtime: 0, inode: 0 };
            cache.known.insert(path, (stamp, ContentDigest::of(b"")));
        }
        tree.put("a", b"one");
        let path = FolderPath::parse("a").expect("valid");
        let found = tree.find(&path).expect("no disk").expect("there");
        let digest = cache.digest(&mut tree, &path, &found).expect("no disk");
        assert_eq!(digest, Some(ContentDigest::of(b"one")));
        assert_eq!(cache.known.len(), 1);
    }

    #[test]
    fn a_file_is_hashed_once() {
        let (mut cache, mut tree) = (DigestCache::default(), TestTree::default());
        tree.put("a", b"one");
        let path = FolderPath::parse("a").expect("valid");
        for _ in 0..3 {
            let found = tree.find(&path).expect("no disk").expect("there");
            cache.digest(&mut tree, &path, &found).expect("no disk");
        }
        assert_eq!(tree.hashed, 1);
        tree.put("a", b"two");
        let found = tree.find(&path).expect("no disk").expect("there");
        let digest = cache.digest(&mut tree, &path, &found).expect("no disk");
        assert_eq!((digest, tree.hashed), (Some(ContentDigest::of(b"two")), 2));
    }
}

#[cfg(test)]
mod pattern_tests {
    use super::*;

    #[test]
    fn a_pattern_without_a_slash_matches_names_in_each_directory() {
        let texts = ["*.log".to_owned(), ".git/index.lock".to_owned()];
        let patterns = PathPatterns::parse(&texts).expect("valid");
        for path in ["a.log", "deep/er/b.log", ".git/index.lock"] {
            assert!(patterns.matches(Path::new(path)), "{path}");
        }
        for path in ["a.logs", "a.log/file", "sub/.git/index.lock", ""] {
            assert!(!patterns.matches(Path::new(path)), "{path}");
        }
        let wrong = PathPatterns::parse(&["[".to_owned()]).expect_err("not closed");
        assert!(wrong.contains("'['") && wrong.contains("*.log"), "{wrong}");
    }
}
