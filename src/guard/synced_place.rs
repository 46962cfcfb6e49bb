//! Places that a sync tool carries to other machines. A mount there would become files on those
//! machines, and what they do to these files would come back as operations on locks.

use super::folder_record::RECORD_PATH;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files and directories by which a sync tool marks a folder that it carries.
const MARKS: [(&str, &str); 12] = [
    (".stfolder", "Syncthing"),
    (".stignore", "Syncthing"),
    (".dropbox", "Dropbox"),
    (".dropbox.cache", "Dropbox"),
    (".nextcloudsync.log", "Nextcloud"),
    (".owncloudsync.log", "ownCloud"),
    (".tmp.driveupload", "Google Drive"),
    (".tmp.drivedownload", "Google Drive"),
    (".849C9593-D756-4E56-8D6E-42412F2A707B", "OneDrive"),
    (".unison", "Unison"),
    (".resilio-sync", "Resilio Sync"),
    (RECORD_PATH, "the guard of a folder"),
];

/// How the names of folders begin that a sync tool carries. A name ends there, or goes on with a
/// hyphen or a space, as in `OneDrive - Company` and `GoogleDrive-user`.
const NAMES: [(&str, &str); 9] = [
    ("com~apple~CloudDocs", "iCloud"),
    ("Mobile Documents", "iCloud"),
    ("Dropbox", "Dropbox"),
    ("OneDrive", "OneDrive"),
    ("Nextcloud", "Nextcloud"),
    ("ownCloud", "ownCloud"),
    ("Google Drive", "Google Drive"),
    ("GoogleDrive", "Google Drive"),
    ("CloudStorage", "a cloud drive"),
];

/// A sync tool that carries a directory, and how that can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyncMark {
    /// The name of the sync tool.
    pub(crate) tool: &'static str,
    /// The file or directory that shows it.
    pub(crate) path: PathBuf,
}

impl fmt::Display for SyncMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} carries it to other machines, as {} shows", self.tool, self.path.display())
    }
}

/// Returns the mark of a sync tool that carries `path`, which has no symlinks. A mark counts only
/// if it belongs to root or to `user`: what another user has put into a shared directory says
/// nothing.
pub(crate) fn synced_by(path: &Path, user: u32) -> Option<SyncMark> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let is_trusted = |path: &Path| {
        path.symlink_metadata().is_ok_and(|found| found.uid() == 0 || found.uid() == user)
    };
    let of_dir = |dir: &Path| {
        let marks = MARKS.iter().map(|(name, tool)| (dir.join(name), *tool));
        // Unison keeps its archives in the home directory, whichever folders it carries.
        let is_archive = |mark: &Path| home.as_ref().is_some_and(|it| *mark == it.join(".unison"));
        let own = dir.file_name().map(|name| name.to_string_lossy());
        let named = own.and_then(|own| NAMES.iter().find(|(name, _)| is_named(&own, name)));
        marks
            .chain(named.map(|(_, tool)| (dir.to_owned(), *tool)))
            .find(|(mark, _)| !is_archive(mark) && is_trusted(mark))
            .map(|(path, tool)| SyncMark { tool, path })
    };
    path.ancestors().find_map(of_dir).or_else(|| of_unison(path, home.as_deref()?, &is_trusted))
}

/// Whether a folder's name is one that a sync tool gives.
fn is_named(own: &str, name: &str) -> bool {
    own.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ' ']))
}

/// Returns the profile of Unison in the home directory of which a root contains `path`.
fn of_unison(path: &Path, home: &Path, is_trusted: &dyn Fn(&Path) -> bool) -> Option<SyncMark> {
    let profiles = fs::read_dir(home.join(".unison")).ok()?.flatten().map(|entry| entry.path());
    let is_profile = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "prf");
    let mut profiles = profiles.filter(|profile| is_profile(profile) && is_trusted(profile));
    let contains = |line: &str| {
        let (key, root) = line.split_once('=')?;
        let root = Path::new(root.trim());
        (key.trim() == "root" && root.is_absolute() && path.starts_with(root)).then_some(())
    };
    let carries = |profile: &PathBuf| {
        fs::read_to_string(profile).is_ok_and(|text| text.lines().any(|it| contains(it).is_some()))
    };
    profiles.find(carries).map(|path| SyncMark { tool: "Unison", path })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::chown;

    #[test]
    fn a_mark_counts_for_root_and_the_own_user_only() {
        let dir = std::env::temp_dir().join(format!("latchfs-marks-{}", std::process::id()));
        let inside = dir.join("a/b");
        fs::create_dir_all(&inside).expect("made");
        let user = fs::metadata(&dir).expect("there").uid();
        assert_eq!(synced_by(&inside, user), None);
        for (name, tool) in MARKS {
            let mark = dir.join(name);
            fs::create_dir_all(&mark).expect("made");
            let found = synced_by(&inside, user).expect("it is marked");
            assert_eq!((found.tool, &found.path), (tool, &mark));
            if user == 0 {
                chown(&mark, Some(4_001), None).expect("given");
                assert_eq!(synced_by(&inside, 0), None, "planted by another user: {name}");
                assert!(synced_by(&inside, 4_001).is_some());
                assert_eq!(synced_by(&inside, 4_002), None);
            }
            fs::remove_dir(&mark).expect("there");
        }
        fs::remove_dir_all(&dir).expect("there");
    }

    #[test]
    fn folders_are_recognized_by_the_names_that_sync_tools_give() {
        let dir = std::env::temp_dir().join(format!("latchfs-names-{}", std::process::id()));
        let user = || fs::metadata(&dir).expect("there").uid();
        for name in ["com~apple~CloudDocs", "OneDrive - Company", "GoogleDrive-me@x.org", "Dropbox"]
        {
            let inside = dir.join(name).join("locks");
            fs::create_dir_all(&inside).expect("made");
            assert!(synced_by(&inside, user()).is_some(), "{name}");
        }
        for name in ["Dropboxes", "MyOneDrive", "nextcloud.d"] {
            let inside = dir.join(name).join("locks");
            fs::create_dir_all(&inside).expect("made");
            assert_eq!(synced_by(&inside, user()), None, "{name}");
        }
        fs::remove_dir_all(&dir).expect("there");
    }

    #[test]
    fn roots_in_profiles_of_unison_are_synced() {
        let home = std::env::temp_dir().join(format!("latchfs-unison-{}", std::process::id()));
        fs::create_dir_all(home.join(".unison")).expect("made");
        let text = format!("# a profile\nroot = {}\nroot = ssh://b//x\n", home.join("a").display());
        let profile = home.join(".unison/work.prf");
        fs::write(&profile, text).expect("written");
        let found = |path: &str| of_unison(&home.join(path), &home, &|_| true);
        assert_eq!(found("a/locks").map(|mark| mark.path), Some(profile));
        assert_eq!(found("b"), None);
        assert_eq!(of_unison(&home.join("a"), &home, &|_| false), None, "another user's profile");
        fs::remove_dir_all(&home).expect("there");
    }
}
