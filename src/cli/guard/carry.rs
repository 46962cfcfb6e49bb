//! `--carry`: after each marker a sync tool, or a command, is notified of the changed paths, so
//! that it need not find them by itself first.

use crate::base::said;
use crate::cli::exit::{CliError, CliResult};
use crate::client::api_request::{ForeignRequest, ask_foreign};
use crate::guard::barrier_store::small_files::ToolPatterns;
use crate::guard::disk::operations::Disk;
use crate::guard::folder::folder_changes::OnMarked;
use crate::guard::folder::folder_guard::FolderGuard;
use crate::time::Span;
use parking_lot::{Condvar, Mutex};
use roxmltree::{Document, Node};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The maximum number of paths of which the sync tool is notified one by one. Beyond it, it is
/// notified of the whole folder.
const CARRY_PATHS_MAX: usize = 500;
/// The maximum length of Syncthing's configuration in bytes.
const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// How long Syncthing may take to look at the paths.
const SCAN_PATIENCE: Span = Span::from_secs(300);
/// How long Syncthing may take to name its ignore patterns.
const PATTERNS_PATIENCE: Span = Span::from_secs(2);

/// The sync tool that is notified of changes.
#[derive(Debug, Clone)]
pub(in crate::cli) enum Carry {
    /// Syncthing on this machine, with its configuration in this directory.
    Syncthing(Option<PathBuf>),
    /// A command, which reads a path from each line.
    Command(String),
}

impl Carry {
    /// Parses the value of `--carry`.
    pub(in crate::cli) fn parse(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("syncthing=")) {
            ("", _) => Err("write syncthing, syncthing=DIR or a command".to_owned()),
            ("syncthing", _) => Ok(Self::Syncthing(None)),
            (_, Some(dir)) => Ok(Self::Syncthing(Some(dir.into()))),
            _ => Ok(Self::Command(text.to_owned())),
        }
    }

    /// Returns the directory with Syncthing's configuration, if it is named.
    pub(super) fn syncthing(&self) -> Option<&Path> {
        match self {
            Self::Syncthing(dir) => dir.as_deref(),
            Self::Command(_) => None,
        }
    }

    /// Starts the thread that notifies the tool. Returns the call after each marker.
    pub(in crate::cli) fn start(self, folder: &Path) -> CliResult<OnMarked> {
        if let Self::Syncthing(dir) = &self {
            Syncthing::find(dir.as_deref(), folder).map_err(CliError::usage)?;
        }
        let pending = Arc::new(PendingPaths::default());
        let (own, folder) = (Arc::clone(&pending), folder.to_owned());
        let work = move || {
            loop {
                if let Err(why) = self.notify(&folder, &own.wait()) {
                    log::warn!("--carry: {why}");
                }
            }
        };
        std::thread::Builder::new()
            .name("carry".to_owned())
            .spawn(work)
            .map_err(|error| CliError::system("the thread of --carry can't be started", &error))?;
        Ok(Box::new(move |paths| pending.add(paths)))
    }

    /// Notifies the tool of some paths, or of the whole folder if there are none.
    fn notify(&self, folder: &Path, paths: &BTreeSet<String>) -> Result<(), String> {
        match self {
            Self::Syncthing(dir) => Syncthing::find(dir.as_deref(), folder)?.scan(paths),
            Self::Command(command) => run(command, folder, paths),
        }
    }
}

/// Starts to notify the sync tool of changes, if that is wanted, and has the barrier of a guard ask
/// the Syncthing of this machine for its ignore patterns.
pub(in crate::cli) fn connect<D: Disk>(
    carry: Option<&Carry>,
    folder: &Path,
    guard: &FolderGuard<D>,
) -> CliResult {
    let Some(barrier) = guard.barrier() else { return Ok(()) };
    if let Some(carry) = carry {
        barrier.on_marked(carry.clone().start(folder)?);
    }
    let dir = carry.and_then(Carry::syncthing).map(Path::to_owned);
    let folder = folder.to_owned();
    barrier.ask_tool_by(Box::new(move || tool_patterns(dir.as_deref(), &folder)));
    Ok(())
}

/// Returns the ignore patterns of the Syncthing that shares the folder, as it names them itself: a
/// `.stignore` in the folder may be anybody's.
pub(in crate::cli) fn tool_patterns(dir: Option<&Path>, folder: &Path) -> ToolPatterns {
    let texts = config_dirs(dir).into_iter().filter_map(|dir| read_config(&dir));
    let text = texts.into_iter().find(|text| settings_in(text, folder).is_some())?;
    Some(Syncthing::parse(&text, folder).and_then(|syncthing| syncthing.patterns()))
}

/// The paths of which the tool was not notified yet.
#[derive(Default)]
struct PendingPaths {
    paths: Mutex<Option<BTreeSet<String>>>,
    added: Condvar,
}

impl PendingPaths {
    fn add(&self, paths: Vec<String>) {
        let mut known = self.paths.lock();
        let is_whole = paths.is_empty() || known.as_ref().is_some_and(BTreeSet::is_empty);
        let all = known.get_or_insert_default();
        all.extend(paths);
        if is_whole || all.len() > CARRY_PATHS_MAX {
            all.clear();
        }
        self.added.notify_one();
    }

    /// Waits for paths. No paths stand for the whole folder.
    fn wait(&self) -> BTreeSet<String> {
        let mut known = self.paths.lock();
        loop {
            if let Some(paths) = known.take() {
                return paths;
            }
            self.added.wait(&mut known);
        }
    }
}

/// Runs a command with a path in each line of its standard input. A path that contains a line feed
/// stands for its directory.
fn run(command: &str, folder: &Path, paths: &BTreeSet<String>) -> Result<(), String> {
    let line = |path: &String| match path.find('\n') {
        Some(at) => path[..at].rfind('/').map_or(".", |end| &path[..end]).to_owned(),
        None => path.clone(),
    };
    let mut lines: BTreeSet<_> = paths.iter().map(line).collect();
    if lines.is_empty() {
        lines.insert(".".to_owned());
    }
    let mut text = lines.into_iter().collect::<Vec<_>>().join("\n");
    text.push('\n');
    let failed = |error| format!("the command fails: {}", said(&error));
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).current_dir(folder).env("LATCHFS_FOLDER", folder);
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // A command that does not read its input is no error.
        let _ = input.write_all(text.as_bytes());
    }
    let status = child.wait().map_err(failed)?;
    if status.success() { Ok(()) } else { Err(format!("the command failed: {status}")) }
}

/// A Syncthing on this machine that shares the folder.
#[derive(Debug, PartialEq, Eq)]
struct Syncthing {
    /// The address of its REST interface.
    address: String,
    key: String,
    /// The id of the folder in Syncthing.
    folder: String,
}

impl Syncthing {
    /// Finds the Syncthing that shares the folder.
    fn find(dir: Option<&Path>, folder: &Path) -> Result<Self, String> {
        let dirs = config_dirs(dir);
        let mut texts = dirs.iter().filter_map(|dir| read_config(dir));
        let text = texts.next().ok_or_else(|| {
            let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            format!(
                "no config.xml of Syncthing is in {}; name its directory with --carry \
                 syncthing=DIR, or give a command",
                dirs.join(" or ")
            )
        })?;
        Self::parse(&text, folder)
    }

    /// Reads what is needed from Syncthing's configuration.
    fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let document = Document::parse(text)
            .map_err(|error| format!("Syncthing's config.xml can't be read: {error}"))?;
        let root = document.root_element();
        let is_folder = |node: &Node<'_, '_>| {
            node.has_tag_name("folder")
                && node.attribute("path").is_some_and(|path| is_same(path, folder))
        };
        let shown = folder.display();
        let shared = root.children().find(is_folder).and_then(|node| node.attribute("id"));
        let shared = shared.ok_or_else(|| {
            format!("Syncthing does not share {shown}; add the folder to it, or give a command")
        })?;
        let gui = root.children().find(|node| node.has_tag_name("gui"));
        let gui = gui.ok_or("Syncthing's config.xml has no part 'gui'")?;
        if gui.attribute("tls") == Some("true") {
            return Err(
                "Syncthing's interface uses TLS, which is not supported; for --carry give \
                        a command that calls its /rest/db/scan"
                    .to_owned(),
            );
        }
        let part = |name| {
            let child = gui.children().find(|node| node.has_tag_name(name));
            let text = child.and_then(|node| node.text()).unwrap_or_default().trim();
            if text.is_empty() {
                return Err(format!("Syncthing's config.xml has no '{name}' in 'gui'"));
            }
            Ok(text.to_owned())
        };
        let (address, key) = (part("address")?, part("apikey")?);
        Ok(Self { address, key, folder: shared.to_owned() })
    }

    /// Asks Syncthing to look at some paths, or at the whole folder if there are none.
    fn scan(&self, paths: &BTreeSet<String>) -> Result<(), String> {
        let mut query = format!("/rest/db/scan?folder={}", escaped(&self.folder));
        for path in paths {
            query.extend(["&sub=", &escaped(path)]);
        }
        self.request("POST", &query, SCAN_PATIENCE).map(drop)
    }

    /// Returns the ignore patterns of the folder, one in each line.
    fn patterns(&self) -> Result<String, String> {
        let query = format!("/rest/db/ignores?folder={}", escaped(&self.folder));
        let answer = self.request("GET", &query, PATTERNS_PATIENCE)?;
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|error| format!("Syncthing's answer is none: {error}"))?;
        let lines = answer["ignore"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    fn request(&self, method: &str, path: &str, patience: Span) -> Result<Vec<u8>, String> {
        let (address, header) = (self.address.as_str(), ("X-API-Key", self.key.as_str()));
        let answer = ask_foreign(ForeignRequest { method, address, path, header }, patience);
        match answer {
            Ok((200, body)) => Ok(body),
            Ok((code, _)) => Err(format!("Syncthing refuses {path}: {code}")),
            Err(why) => Err(format!("Syncthing at {address} does not answer: {why}")),
        }
    }
}

/// The settings of a folder in the Syncthing of this machine.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct FolderSettings {
    /// The id of the folder, which is the same on all machines.
    pub(in crate::cli) id: String,
    /// The type of the folder, such as `sendreceive`.
    pub(in crate::cli) kind: String,
    /// How many conflict copies of a file are kept; -1 for all.
    pub(in crate::cli) max_conflicts: Option<i64>,
    /// Whether changes are noticed at once.
    pub(in crate::cli) is_watched: bool,
    pub(in crate::cli) is_paused: bool,
}

/// Returns the settings of a folder, if a Syncthing of the user who runs this process shares it:
/// the one with its configuration in `dir`, or in one of the usual directories.
pub(in crate::cli) fn folder_settings(dir: Option<&Path>, folder: &Path) -> Option<FolderSettings> {
    let dirs = config_dirs(dir);
    let mut texts = dirs.iter().filter_map(|dir| read_config(dir));
    texts.find_map(|text| settings_in(&text, folder))
}

fn settings_in(text: &str, folder: &Path) -> Option<FolderSettings> {
    let document = Document::parse(text).ok()?;
    let shared = document.root_element().children().find(|node| {
        node.has_tag_name("folder")
            && node.attribute("path").is_some_and(|path| is_same(path, folder))
    })?;
    let part = |name| {
        let child = shared.children().find(|node| node.has_tag_name(name));
        child.and_then(|node| node.text()).map(str::trim)
    };
    Some(FolderSettings {
        id: shared.attribute("id")?.to_owned(),
        kind: shared.attribute("type").unwrap_or("sendreceive").to_owned(),
        max_conflicts: part("maxConflicts").and_then(|text| text.parse().ok()),
        is_watched: shared.attribute("fsWatcherEnabled") != Some("false"),
        is_paused: part("paused") == Some("true"),
    })
}

/// Returns the directories in which a configuration of Syncthing is looked for.
fn config_dirs(dir: Option<&Path>) -> Vec<PathBuf> {
    dir.map_or_else(usual_dirs, |dir| vec![dir.to_owned()])
}

/// Returns the directories in which Syncthing keeps the configuration of the user who runs this
/// process.
fn usual_dirs() -> Vec<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let below = |name: &str, dir: &str| of(name).map(|home| home.join(dir));
    [
        below("STHOMEDIR", ""),
        below("XDG_STATE_HOME", "syncthing"),
        below("HOME", ".local/state/syncthing"),
        below("XDG_CONFIG_HOME", "syncthing"),
        below("HOME", ".config/syncthing"),
        below("HOME", "Library/Application Support/Syncthing"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn read_config(dir: &Path) -> Option<String> {
    let path = dir.join("config.xml");
    let length = std::fs::metadata(&path).ok()?.len();
    (length <= CONFIG_BYTES_MAX).then(|| std::fs::read_to_string(path).ok())?
}

/// Whether a path of the configuration is that of the folder.
fn is_same(path: &str, folder: &Path) -> bool {
    std::fs::canonicalize(path).is_ok_and(|path| path == folder)
}

/// Returns a text as it stands in a query.
pub(super) fn escaped(text: &str) -> String {
    let mut query = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                query.push(char::from(byte));
            }
            _ => query.extend([format!("%{byte:02X}")]),
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_and_the_interface_are_found_in_the_configuration() {
        let dir = std::env::temp_dir();
        let dir = std::fs::canonicalize(dir).expect("there");
        let config = |path: &str, tls: &str| {
            format!(
                "<configuration version=\"35\"><folder id=\"a&amp;b\" path=\"{path}\"/>\
                 <gui enabled=\"true\" tls=\"{tls}\"><address>127.0.0.1:8384</address>\
                 <apikey>key</apikey></gui></configuration>"
            )
        };
        let shown = dir.display().to_string();
        let found = Syncthing::parse(&config(&shown, "false"), &dir).expect("complete");
        let wanted = ("127.0.0.1:8384".to_owned(), "key".to_owned(), "a&b".to_owned());
        assert_eq!((found.address, found.key, found.folder), wanted);
        let refused = |text: &str| Syncthing::parse(text, &dir).expect_err("incomplete");
        assert!(refused(&config("/nowhere", "false")).contains("does not share"));
        assert!(refused(&config(&shown, "true")).contains("TLS"));
        assert!(refused("<a>").contains("can't be read"));
    }

    #[test]
    fn too_many_paths_become_the_whole_folder() {
        let pending = PendingPaths::default();
        let paths = |from: usize, to| (from..to).map(|n| n.to_string()).collect::<Vec<_>>();
        pending.add(paths(0, 2));
        pending.add(paths(1, 3));
        assert_eq!(pending.wait().len(), 3);
        pending.add(paths(0, CARRY_PATHS_MAX));
        assert_eq!(pending.wait().len(), CARRY_PATHS_MAX);
        pending.add(paths(0, CARRY_PATHS_MAX));
        pending.add(paths(CARRY_PATHS_MAX, CARRY_PATHS_MAX + 1));
        pending.add(paths(0, 1));
        assert!(pending.wait().is_empty());
    }

    #[test]
    fn a_command_reads_a_path_from_each_line() {
        let dir = std::env::temp_dir().join(format!("latchfs-carry-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("made");
        let paths = ["a b", "dir/two\nlines"].map(str::to_owned).into();
        run("cat > told", &dir, &paths).expect("it runs");
        assert_eq!(std::fs::read_to_string(dir.join("told")).expect("told"), "a b\ndir\n");
        run("cat > told", &dir, &BTreeSet::new()).expect("it runs");
        assert_eq!(std::fs::read_to_string(dir.join("told")).expect("told"), ".\n");
        assert!(run("exit 3", &dir, &paths).expect_err("it fails").contains("exit status: 3"));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
