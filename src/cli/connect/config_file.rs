//! The configuration file: servers by name ("profiles"), each with the files of its credentials.
//!
//! A user's file comes before that of the machine. Credentials belong to the servers of their
//! profile, and are sent to no other one.

use crate::base::said;
use crate::cli::argument_types::{absolute, directory_variable, variable};
use crate::cli::exit::{CliError, CliResult};
use crate::engine::ClientId;
use crate::storage::atomic_file::{Durable, make_dir, replace};
use kernel::machine_facts::{is_root, own_uid};
use rustix::fs::{Access, access};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The configuration of the whole machine.
const OF_MACHINE: &str = "/etc/latchfs/config.toml";

/// The name of the profile that is used where none is selected.
const DEFAULT: &str = "default";

/// Maximum length of a configuration file.
const CONFIG_BYTES_MAX: u64 = 64 << 10;

/// Permission bits by which users other than the owner can write a file.
const OTHERS_WRITE: u32 = 0o022;

/// A server or cluster, with the credentials for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::cli) struct Profile {
    pub(in crate::cli) server: String,
    pub(in crate::cli) token_file: Option<PathBuf>,
    pub(super) plain_token: Option<bool>,
    pub(in crate::cli) ca: Option<PathBuf>,
    pub(in crate::cli) cert: Option<PathBuf>,
    pub(in crate::cli) key: Option<PathBuf>,
    pub(in crate::cli) client: Option<String>,
}

/// One configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    /// The name of the profile that is used instead of `default`.
    profile: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

/// All configuration files that this process reads.
#[derive(Debug, Default)]
pub(in crate::cli) struct Config {
    /// The files, in the order of their precedence.
    files: Vec<(PathBuf, ConfigFile)>,
    /// The path of the first configuration file, whether it exists or not.
    place: Option<PathBuf>,
}

/// A profile, with its name and the file that defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct NamedProfile {
    pub(in crate::cli) name: String,
    pub(in crate::cli) file: PathBuf,
    pub(in crate::cli) profile: Profile,
}

/// A profile that is added to a configuration file, with the content of its files.
#[derive(Debug)]
pub(in crate::cli) struct NewProfile<'a> {
    pub(in crate::cli) name: &'a str,
    pub(in crate::cli) server: &'a str,
    /// The certificate of the server's CA (PEM).
    pub(in crate::cli) ca: &'a str,
    /// The key and the certificate of this machine (PEM).
    pub(in crate::cli) identity: &'a str,
}

/// The configuration file to which a profile is added.
#[derive(Debug)]
pub(in crate::cli) struct ProfilePlace {
    path: PathBuf,
    /// Whether a file names a default profile.
    has_default: bool,
    /// Whether the profile is there already, as `write` has written it before.
    has_profile: bool,
}

impl ProfilePlace {
    /// Returns the path of the file.
    pub(in crate::cli) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the directory of the file can be written, which is made if it is missing.
    pub(in crate::cli) fn prepare(&self) -> io::Result<()> {
        let dir = self.dir();
        make_dir(dir)?;
        Ok(access(dir, Access::WRITE_OK)?)
    }

    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Writes the files of the profile beside the configuration file, and then the profile itself.
    /// Returns whether it is the default one now. All other lines of the file stay.
    pub(in crate::cli) fn write(&self, new: &NewProfile<'_>) -> io::Result<bool> {
        let dir = self.dir();
        let NewProfile { name, server, ca, identity } = new;
        let (ca_file, identity_file) = (format!("{name}-ca.pem"), format!("{name}.pem"));
        replace(&dir.join(&ca_file), &[ca.as_bytes()], Durable::Yes)?;
        replace(&dir.join(&identity_file), &[identity.as_bytes()], Durable::Yes)?;
        if self.has_profile {
            return Ok(!self.has_default);
        }
        let before = match read_file(&self.path, own_uid()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            before => before?,
        };
        // The line stands before all tables. It names a profile that the lines after it describe.
        let default =
            if self.has_default { String::new() } else { format!("profile = \"{name}\"\n") };
        let gap = if before.is_empty() { "" } else { "\n" };
        let text = format!(
            "{default}{before}{gap}[profiles.{name}]\nserver = \"{server}\"\nca = \"{ca_file}\"\n\
             cert = \"{identity_file}\"\nkey = \"{identity_file}\"\n"
        );
        parse(&text, &self.path, Some(dir)).map_err(io::Error::other)?;
        let target = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let mode = fs::metadata(&target).map(|found| found.permissions());
        let written = replace(&target, &[text.as_bytes()], Durable::Yes)?;
        if let Ok(mode) = mode {
            written.set_permissions(mode)?;
        }
        Ok(!self.has_default)
    }
}

impl Config {
    /// Reads the configuration files. One that does not exist, or that belongs to another user and
    /// is out of this user's reach, is left out.
    pub(in crate::cli) fn read() -> CliResult<Self> {
        Self::read_or(false)
    }

    /// Reads the configuration files for a command that adds to them, and so may find none.
    pub(in crate::cli) fn read_to_add() -> CliResult<Self> {
        Self::read_or(true)
    }

    fn read_or(may_be_missing: bool) -> CliResult<Self> {
        let home = directory_variable("HOME");
        let mut read = Vec::new();
        let named = variable("LATCHFS_CONFIG");
        let paths = paths(named.as_deref())?;
        let place = paths.first().cloned();
        for path in paths {
            match read_file(&path, own_uid()) {
                Ok(text) => {
                    let file = parse(&text, &path, home.as_deref())
                        .map_err(|why| CliError::usage(format!("{}: {why}", path.display())))?;
                    read.push((path, file));
                }
                // HOME may be that of another user, as after 'su'.
                Err(error) if may_be_missing && error.kind() == io::ErrorKind::NotFound => {}
                Err(error)
                    if is_out_of_reach(&error) && named.is_none() && !is_own(&path, own_uid()) => {}
                Err(error) => {
                    return Err(CliError::usage(format!(
                        "the configuration {} can't be used: {}",
                        path.display(),
                        said(&error)
                    )));
                }
            }
        }
        Ok(Self { files: read, place })
    }

    /// Returns the profile `name`; without a name, the default one, if there is one.
    pub(in crate::cli) fn profile(&self, name: Option<&str>) -> CliResult<Option<NamedProfile>> {
        let chosen = || self.files.iter().find_map(|(_, file)| file.profile.as_deref());
        match name.or_else(chosen) {
            None => Ok(self.find(DEFAULT)),
            Some(name) => {
                let found = self.find(name).map(Some);
                found.ok_or_else(|| CliError::usage(self.no_profile(name)))
            }
        }
    }

    /// Returns the names of all profiles, each with its file and its servers.
    pub(in crate::cli) fn profiles(&self) -> Vec<NamedProfile> {
        let mut all = BTreeMap::new();
        for (path, file) in self.files.iter().rev() {
            for (name, profile) in &file.profiles {
                let (name, file, profile) = (name.clone(), path.clone(), profile.clone());
                all.insert(name.clone(), NamedProfile { name, file, profile });
            }
        }
        all.into_values().collect()
    }

    /// Returns the paths of the files that were read.
    pub(in crate::cli) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// Returns the file in which the profile of a server is to be written. Fails if there is
    /// another profile of this name; one that was written for the same server is written again.
    pub(in crate::cli) fn place_for(&self, name: &str, server: &str) -> CliResult<ProfilePlace> {
        let path = self.place.clone().ok_or_else(|| {
            CliError::usage(
                "there is no place for a configuration file; set HOME, or name one by \
                 LATCHFS_CONFIG",
            )
        })?;
        let is_file = |file: &Option<PathBuf>, ending: &str| {
            *file == path.parent().map(|dir| dir.join(format!("{name}{ending}")))
        };
        let found = self.find(name);
        if let Some(NamedProfile { file, profile, .. }) = &found
            && !(*file == path
                && profile.server.split(',').next() == Some(server)
                && is_file(&profile.ca, "-ca.pem")
                && is_file(&profile.cert, ".pem")
                && is_file(&profile.key, ".pem"))
        {
            return Err(CliError::usage(format!(
                "there is another profile '{name}' in {} already; remove it there, or choose \
                 another name by --profile PROFILE",
                file.display()
            )));
        }
        let chosen = self.files.iter().find_map(|(_, file)| file.profile.as_deref());
        let has_profile = found.is_some();
        let is_chosen = has_profile && chosen == Some(name);
        let has_default = !is_chosen && (chosen.is_some() || self.find(DEFAULT).is_some());
        Ok(ProfilePlace { path, has_default, has_profile })
    }

    fn find(&self, name: &str) -> Option<NamedProfile> {
        self.files.iter().find_map(|(path, file)| {
            let profile = file.profiles.get(name)?.clone();
            Some(NamedProfile { name: name.to_owned(), file: path.clone(), profile })
        })
    }

    fn no_profile(&self, name: &str) -> String {
        let known: Vec<_> = self.profiles().into_iter().map(|profile| profile.name).collect();
        if !known.is_empty() {
            return format!("there is no profile '{name}'; the profiles are {}", known.join(", "));
        }
        let place = match &self.place {
            Some(path) => format!("in {}", path.display()),
            None => "in a file, and name it by LATCHFS_CONFIG".to_owned(),
        };
        format!("there is no profile '{name}'; describe it as [profiles.{name}] {place}")
    }
}

/// Returns the paths of the configuration files: the one that `LATCHFS_CONFIG` names, or else the
/// user's and the machine's.
fn paths(named: Option<&OsStr>) -> CliResult<Vec<PathBuf>> {
    match named {
        Some(none) if none == "none" => return Ok(Vec::new()),
        Some(path) => return Ok(vec![absolute(Path::new(path))?]),
        None => {}
    }
    // With sudo, HOME may still be that of a user, whose file must not decide for root.
    let own = if is_root() { None } else { own_path() };
    Ok(own.into_iter().chain([PathBuf::from(OF_MACHINE)]).collect())
}

/// Returns the path of the user's own configuration file.
fn own_path() -> Option<PathBuf> {
    let config = directory_variable("XDG_CONFIG_HOME")
        .or_else(|| Some(directory_variable("HOME")?.join(".config")));
    config.map(|config| config.join("latchfs/config.toml"))
}

fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// Whether a file is there and belongs to this user.
fn is_own(path: &Path, own: u32) -> bool {
    path.metadata().is_ok_and(|found| found.uid() == own)
}

/// Reads a configuration file, which only its owner may be able to write: root or this user.
fn read_file(path: &Path, own: u32) -> io::Result<String> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    let refused = |why: String| Err(io::Error::other(why));
    if !found.is_file() {
        return refused("it is no regular file".to_owned());
    }
    if found.uid() != 0 && found.uid() != own {
        return refused("it belongs to another user; 'chown' it to yourself or to root".to_owned());
    }
    if found.mode() & OTHERS_WRITE != 0 {
        let mode = found.mode() & 0o777;
        return refused(format!(
            "others than its owner may write it (mode {mode:03o}); 'chmod go-w' it"
        ));
    }
    let mut text = String::new();
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        return refused(format!("it is longer than {} KiB", CONFIG_BYTES_MAX >> 10));
    }
    Ok(text)
}

/// Parses the text of the configuration file at `path`. Its relative paths begin at its directory.
fn parse(text: &str, path: &Path, home: Option<&Path>) -> Result<ConfigFile, String> {
    let mut config: ConfigFile = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let at = line.map_or_else(String::new, |line| format!("line {line}: "));
        format!("{at}{}", error.message())
    })?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    for (name, profile) in &mut config.profiles {
        profile.check().map_err(|why| format!("profile '{name}': {why}"))?;
        let Profile { token_file, ca, cert, key, .. } = profile;
        for path in [token_file, ca, cert, key].into_iter().flatten() {
            *path = match (path.strip_prefix("~"), home) {
                (Ok(below), Some(home)) => home.join(below),
                (Ok(_), None) => return Err(format!("profile '{name}': HOME is not known")),
                (Err(_), _) => dir.join(&path),
            };
        }
    }
    Ok(config)
}

impl Profile {
    fn check(&self) -> Result<(), String> {
        if urls(&self.server).is_empty() {
            return Err("its server is empty; write server = \"URL\"".to_owned());
        }
        if let Some(client) = &self.client {
            ClientId::parse(client)
                .map_err(|error| format!("its client can't be used: {error}"))?;
        }
        match (&self.cert, &self.key) {
            (Some(_), None) => Err("it has a cert without a key; name the key as well".to_owned()),
            (None, Some(_)) => Err("it has a key without a cert; name the cert as well".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Returns the URLs of a comma-separated list, without duplicates.
pub(in crate::cli) fn urls(list: &str) -> Vec<&str> {
    let mut urls: Vec<&str> = Vec::new();
    for url in list.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "profile = 'work'\n[profiles.work]\nserver = 'https://a:1,https://b:1'\n\
                        token-file = 'work.token'\nca = '/ca.pem'\n[profiles.home]\n\
                        server = 'http://box:8080'\ncert = '~/c.pem'\nkey = '~/k.pem'\n";

    fn parsed(text: &str) -> Result<ConfigFile, String> {
        parse(text, Path::new("/etc/latchfs/config.toml"), Some(Path::new("/home/u")))
    }

    fn config(texts: &[&str]) -> Config {
        let file = |(number, text): (usize, &&str)| {
            (PathBuf::from(format!("/{number}")), parsed(text).expect("a configuration"))
        };
        Config { files: texts.iter().enumerate().map(file).collect(), place: None }
    }

    #[test]
    fn paths_begin_at_the_directory_of_the_file_or_at_home() {
        let config = config(&[TEXT]);
        let work = config.profile(None).expect("valid").expect("the default").profile;
        assert_eq!(work.token_file.as_deref(), Some(Path::new("/etc/latchfs/work.token")));
        assert_eq!(work.ca.as_deref(), Some(Path::new("/ca.pem")));
        let home = config.profile(Some("home")).expect("valid").expect("named").profile;
        assert_eq!(home.cert.as_deref(), Some(Path::new("/home/u/c.pem")));
    }

    #[test]
    fn the_first_file_with_a_profile_decides_about_it() {
        let own = "[profiles.work]\nserver = 'http://own'\n";
        let both = config(&[own, TEXT]);
        let work = both.profile(None).expect("valid").expect("the machine's default");
        assert_eq!(
            (work.profile.server.as_str(), work.file.as_path()),
            ("http://own", "/0".as_ref())
        );
        assert_eq!(work.profile.ca, None, "a profile is taken whole");
        let names: Vec<_> = both.profiles().into_iter().map(|profile| profile.name).collect();
        assert_eq!(names, ["home", "work"]);
        assert!(config(&[own]).profile(None).expect("valid").is_none(), "nobody chose one");
        let default = config(&[own, "[profiles.default]\nserver = 'http://d'\n"]);
        let default = default.profile(None).expect("valid").expect("the one of that name");
        assert_eq!(default.profile.server, "http://d");
    }

    #[test]
    fn wrong_configurations_are_refused_with_their_line() {
        for (text, part) in [
            ("[profiles.a]\nserver = 'http://a'\ntokn = 'x'\n", "line 3: unknown field `tokn`"),
            ("server = 'http://a'\n", "line 1: unknown field `server`"),
            ("[profiles.a]\nca = 'x'\n", "missing field `server`"),
            ("[profiles.a]\nserver = ' , '\n", "profile 'a': its server is empty"),
            ("[profiles.a]\nserver = 'http://a'\ncert = 'c'\n", "a cert without a key"),
            ("profile = 3\n", "line 1: invalid type"),
        ] {
            let why = parsed(text).expect_err("a wrong configuration");
            assert!(why.contains(part), "{text}: {why}");
        }
        let Err(CliError::Said(_, why)) = config(&[TEXT]).profile(Some("x")) else { panic!("x") };
        assert_eq!(why, "there is no profile 'x'; the profiles are home, work");
    }

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("latchfs-config-{}", std::process::id()));
        fs::write(&path, TEXT).expect("a file");
        let own = fs::metadata(&path).expect("it is there").uid();
        let mode = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            read_file(&path, own).map_err(|error| error.to_string())
        };
        assert_eq!(mode(0o644), Ok(TEXT.to_owned()));
        for writable in [0o664, 0o646] {
            assert!(mode(writable).expect_err("refused").contains("'chmod go-w' it"));
        }
        fs::write(&path, "#".repeat((CONFIG_BYTES_MAX + 1) as usize)).expect("a long file");
        assert!(mode(0o600).expect_err("refused").contains("longer than 64 KiB"));
        fs::remove_file(path).expect("it is there");
    }
}
