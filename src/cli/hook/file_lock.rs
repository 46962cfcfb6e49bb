//! The lock of a file that a coding agent writes: its name is derived from the one path that leads
//! to the file without a symlink.

use crate::base::said;
use crate::engine::LockName;
use sha2::{Digest as _, Sha256};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// The prefix of the names of all locks that hooks take.
pub(super) const PREFIX: &str = "agents/";
/// The prefix of the lock of a file; the path follows, which begins with a slash.
const BY_PATH: &str = "agents/file";
/// The prefix of the lock of a file whose path is no name of a lock; its digest follows.
const BY_DIGEST: &str = "agents/digest/";
/// The prefix of the lock that a session's watcher holds; the session follows.
const WATCHER: &str = "agents/session/";
/// The maximum number of dangling symlinks on the way to a file, as in the kernel.
const LINKS_MAX: usize = 40;

/// Returns the path that leads to a file without a symlink. The file and directories above it need
/// not exist. The error is a sentence.
pub(super) fn canonical(path: &Path) -> Result<PathBuf, String> {
    // Programs differ in whether `link/..` is the directory of the link, or that of its target.
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(format!("name the file {} without '..'", path.display()));
    }
    resolved(path.to_owned())
        .map_err(|error| format!("the path {} can't be followed: {}", path.display(), said(&error)))
}

fn resolved(mut path: PathBuf) -> io::Result<PathBuf> {
    let mut missing: Vec<OsString> = Vec::new();
    let mut links = 0;
    loop {
        match fs::canonicalize(&path) {
            Ok(mut found) => {
                if !missing.is_empty() && !found.is_dir() {
                    return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
                }
                found.extend(missing.iter().rev());
                return Ok(found);
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Err(error) => {
                let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
                    return Err(error);
                };
                // A link whose target is missing: a write through it makes the target.
                if let Ok(target) = fs::read_link(&path) {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(io::Error::from_raw_os_error(libc::ELOOP));
                    }
                    // The directory of the link exists, so its parts are those of the kernel.
                    path = fs::canonicalize(dir)?.join(target);
                    if path.components().any(|part| part == Component::ParentDir) {
                        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
                            return Err(error);
                        };
                        path = fs::canonicalize(dir)?.join(name);
                    }
                    continue;
                }
                missing.push(name.to_owned());
                path = dir.to_owned();
            }
        }
    }
}

/// Returns the name of the lock of a file, by its canonical path: the path itself, or its digest if
/// the path is too long or is no text that a lock's name may be.
pub(super) fn name_of(path: &Path) -> Result<LockName, String> {
    let plain = path.to_str().and_then(|path| LockName::parse(&format!("{BY_PATH}{path}")).ok());
    if let Some(name) = plain {
        return Ok(name);
    }
    let mut name = BY_DIGEST.to_owned();
    for byte in Sha256::digest(path.as_os_str().as_bytes()) {
        // A write to a text does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    LockName::parse(&name).map_err(|error| error.to_string())
}

/// Returns the name of the lock that the watcher of a session holds.
pub(super) fn watcher_of(session: &str) -> Result<LockName, String> {
    LockName::parse(&format!("{WATCHER}{session}")).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;
    use std::os::unix::fs::symlink;

    fn name(path: impl AsRef<Path>) -> String {
        name_of(path.as_ref()).expect("each path has a lock").as_str().to_owned()
    }

    #[test]
    fn each_path_has_a_lock_of_its_own_and_none_leaves_the_prefix() {
        assert_eq!(name("/home/ann/a b.rs"), "agents/file/home/ann/a b.rs");
        let long = format!("/{}", "d/".repeat(600));
        let bytes = OsString::from_vec(b"/a\xff".to_vec());
        let digests = [
            name(&long),
            name(format!("{long}x")),
            name(Path::new(&bytes)),
            name("/a\nb"),
            name("/a\u{202e}b"),
            name(format!("/{}", "x".repeat(255))),
        ];
        let (last, hashed) = digests.split_last().expect("some");
        assert!(hashed.iter().all(|it| it.len() == BY_DIGEST.len() + 64), "{hashed:?}");
        assert!(hashed.iter().all(|it| it.starts_with(BY_DIGEST)), "{hashed:?}");
        assert!(last.starts_with("agents/file/xxx"), "{last}");
        let distinct: std::collections::BTreeSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len());
    }

    #[test]
    fn links_and_missing_directories_lead_to_one_path() {
        let dir = std::env::temp_dir().join(format!("latchfs-hook-{}", std::process::id()));
        let dir = fs::create_dir_all(dir.join("real")).and_then(|()| fs::canonicalize(&dir));
        let dir = dir.expect("ours");
        let at = |path: &str| canonical(&dir.join(path));
        fs::write(dir.join("real/file"), "").expect("ours");
        symlink("real", dir.join("link")).expect("ours");
        symlink("file", dir.join("real/other")).expect("ours");
        symlink("missing", dir.join("real/dangling")).expect("ours");
        symlink("../real/missing", dir.join("real/winding")).expect("ours");
        symlink("b", dir.join("a")).expect("ours");
        symlink("a", dir.join("b")).expect("ours");
        let real = |path: &str| Ok(dir.join("real").join(path));
        assert_eq!(at("link/file"), real("file"));
        assert_eq!(at("link/./other"), real("file"));
        assert_eq!(at("link/new/deep/file"), real("new/deep/file"));
        assert_eq!(at("link/dangling"), real("missing"));
        assert_eq!(at("link/winding"), real("missing"));
        for (path, why) in
            [("a", "levels of symbolic links"), ("link/../x", "without '..'"), ("real/file/x", "")]
        {
            let refused = at(path).expect_err(path);
            assert!(refused.contains(why), "{refused}");
        }
        fs::remove_dir_all(&dir).expect("ours");
    }
}
