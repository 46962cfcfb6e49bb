//! Target selection: finds the mount or server to which a command sends its requests, and the lock
//! that the command names.
//!
//! The command line comes first (`--dir`, `--server`, `--profile`, a path below a mount), then the
//! mount that contains the current directory, then the environment, then the configuration file,
//! then the only mount there is, then the locks of the machine, then the user's own locks.
//! `LATCHFS_DIR` names a mount and so comes before the current directory and before
//! `LATCHFS_SERVER`.
//!
//! `--stale`: a stale read. A node answers at once with its local state, however old that is,
//! without contacting another node, and so even without a majority.

use super::credential_options::{CREDENTIAL_VARIABLES, PLACE_HEADING, ServerKeyArgs};
use super::machine_locks::{self, MachineLocks};
use super::mount_client::{ControlFileClient, LockClient, PAGE, show_place};
use super::own_locks::OwnLocks;
use super::remote_client::RemoteClient;
use crate::cli::argument_types::{
    default_data_dir, home_in, not_a_name, own_client, parsed, socket_in, variable,
};
use crate::cli::connect::credential_options::ask_first;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::output;
use crate::engine::{ClientId, LockName};
use crate::time::Span;
use kernel::machine_facts::own_uid;
use kernel::mountinfo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Timeout of the request that ends all holds of a client: the server scans all locks.
const RELEASE_ALL_PATIENCE: Span = Span::from_secs(60);

/// The locks that the `run`s hold which have started this process, a line each: the name, and the
/// mount or server.
const HELD_VARIABLE: &str = "LATCHFS_HELD";

/// The options that select the mount or server of a command.
#[derive(Debug, Clone, clap::Args)]
pub(in crate::cli) struct TargetArgs {
    // This option does not use clap's `env`, which would hide whether a value comes from the
    // environment or from the command line, and the order of precedence depends on that.
    /// The mount to use [env: `LATCHFS_DIR`] [default: the only one there is, or your own locks]
    #[arg(long, help_heading = PLACE_HEADING, value_name = "DIR",
        conflicts_with_all = ["server", "profile"])]
    pub(in crate::cli) dir: Option<PathBuf>,
    /// The server to ask instead of a mount (a URL, or unix:PATH), or the nodes of a cluster
    /// (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in
    /// one] [default: that of the configuration file]
    #[arg(long, help_heading = PLACE_HEADING, value_name = "URL")]
    server: Option<String>,
    /// The client to ask as, at a server [env: `LATCHFS_CLIENT`] [default: the name in the client
    /// certificate, the only client of the token, or else the host's name and the user's]
    #[arg(long, help_heading = PLACE_HEADING, value_name = "CLIENT",
        value_parser = ClientId::parse)]
    client: Option<ClientId>,
    #[command(flatten)]
    key: ServerKeyArgs,
}

/// One lock, and the mount that shows it.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct MountedLock {
    /// The mount point.
    pub(in crate::cli) dir: PathBuf,
    /// The name of the lock.
    pub(in crate::cli) name: LockName,
}

/// The mount or server that a command uses, and the lock that the command names.
pub(in crate::cli) struct CommandTarget {
    /// The client that sends requests to the mount or server.
    pub(in crate::cli) ask: Arc<dyn LockClient>,
    pub(in crate::cli) place: CommandPlace,
    /// The name of the lock.
    pub(in crate::cli) name: LockName,
}

/// Where the lock of a command is.
pub(in crate::cli) enum CommandPlace {
    /// In the mount at this mount point.
    Mount(PathBuf),
    /// At a server.
    Server {
        url: String,
        /// The profile that `--profile` names.
        profile: Option<String>,
    },
}

impl CommandPlace {
    /// Returns the mount point, if the lock is in a mount.
    pub(in crate::cli) fn dir(&self) -> Option<&Path> {
        match self {
            Self::Mount(dir) => Some(dir),
            Self::Server { .. } => None,
        }
    }

    /// Returns the text that names a lock here in [`HELD_VARIABLE`].
    fn entry_of(&self, name: &LockName) -> String {
        match self {
            Self::Mount(dir) => format!("{name} {}", dir.display()),
            Self::Server { url, .. } => format!("{name} {url}"),
        }
    }

    /// Fails if this process was started by a `run` that holds the lock `name` here: the command
    /// would wait for its own end.
    pub(in crate::cli) fn check_not_within(&self, name: &LockName) -> CliResult {
        let held = variable(HELD_VARIABLE).unwrap_or_default();
        let own = self.entry_of(name);
        if !held.to_string_lossy().lines().any(|entry| entry == own) {
            return Ok(());
        }
        Err(CliError::usage(format!(
            "this runs under lock '{name}' already: a 'latchfs run' has started it and waits for \
             its end, so it would wait for itself for ever; leave the inner 'latchfs run' out, or \
             name another lock"
        )))
    }

    /// Sets the environment variable by which a `run` of the same lock within the command learns
    /// that the lock is held by this one.
    pub(in crate::cli) fn set_held(&self, command: &mut Command, name: &LockName) {
        let mut held = variable(HELD_VARIABLE).unwrap_or_default();
        if !held.is_empty() {
            held.push("\n");
        }
        held.push(self.entry_of(name));
        command.env(HELD_VARIABLE, held);
    }

    /// Sets the environment variables by which a command that is run under the lock finds the mount
    /// or server.
    pub(in crate::cli) fn set_in(&self, command: &mut Command) {
        // A value of LATCHFS_DIR that the command would inherit may name another mount.
        command.env_remove("LATCHFS_DIR");
        match self {
            Self::Mount(dir) => {
                command.env("LATCHFS_DIR", dir);
            }
            Self::Server { url, profile } => {
                command.env("LATCHFS_SERVER", url);
                if let Some(profile) = profile {
                    // The credentials in the environment are for another server.
                    for name in CREDENTIAL_VARIABLES {
                        command.env_remove(name);
                    }
                    command.env("LATCHFS_PROFILE", profile);
                }
            }
        }
    }
}

impl TargetArgs {
    /// Returns the client that the options name.
    pub(in crate::cli) fn client(&self) -> Option<ClientId> {
        self.client.clone()
    }

    /// Returns the options that name credentials, as arguments of a command.
    pub(in crate::cli) fn key_arguments(&self) -> Vec<OsString> {
        self.key.arguments()
    }

    /// Starts the daemon of the user's own locks, if the command about the lock `name` means them.
    pub(in crate::cli) fn start_own(&self, name: &OsStr) -> CliResult {
        self.server_for(Some(name)).map(drop)
    }

    /// Returns the client that sends a request which is about no particular lock.
    pub(in crate::cli) fn lock_client(&self) -> CliResult<Arc<dyn LockClient>> {
        if let Some(url) = self.server_for(None)? {
            self.check_own(None, &url, None)?;
            return Ok(Arc::new(self.direct_to(&url)?));
        }
        let mount = self.mount()?;
        self.check_own(None, &mount.display().to_string(), None)?;
        Ok(Arc::new(ControlFileClient::of(mount)))
    }

    /// Returns the client that sends requests about the lock `name`, and the lock's full name.
    pub(in crate::cli) fn asking(&self, given: &OsStr) -> CliResult<CommandTarget> {
        if let Some(url) = self.server_for(Some(given))? {
            let direct = self.direct_to(&url)?;
            let profile = self.key.profile_argument().map(str::to_owned);
            let name = parsed(given)?;
            self.check_own(Some(given), &url, Some(&name))?;
            let place = CommandPlace::Server { url, profile };
            return Ok(CommandTarget { ask: Arc::new(direct), place, name });
        }
        let MountedLock { dir, name } = self.lock(given)?;
        self.check_own(Some(given), &dir.display().to_string(), Some(&name))?;
        let ask = Arc::new(ControlFileClient::of(dir.clone()));
        Ok(CommandTarget { ask, place: CommandPlace::Mount(dir), name })
    }

    /// Checks a command that uses the place `place` against the user's own locks, unless the
    /// command line names the place.
    fn check_own(&self, given: Option<&OsStr>, place: &str, name: Option<&LockName>) -> CliResult {
        let is_named = self.dir.is_some()
            || self.server.is_some()
            || self.key.profile_argument().is_some()
            || given.is_some_and(is_path);
        match OwnLocks::here() {
            Ok(own) if !is_named && own.url() != place => own.check_beside(place, name),
            // A user without a place for own locks has none.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Returns what the names of locks begin with at the mount or server of the command, where the
    /// user has given the beginning `prefix`.
    pub(in crate::cli) fn full_prefix(&self, prefix: &str) -> CliResult<String> {
        let machine = match self.server_for(None)? {
            Some(url) => MachineLocks::at(&url)?,
            None => None,
        };
        Ok(machine.map_or_else(|| prefix.to_owned(), |machine| machine.full_name(prefix)))
    }

    /// Returns the servers for stale reads; the first that answers is used.
    pub(in crate::cli) fn stale(&self) -> CliResult<StaleServers<'_>> {
        let servers = self.server_for(None)?.ok_or_else(|| {
            CliError::usage("--stale asks a server for what it knows; name one by --server URL")
        })?;
        let client = self.client_at(&servers)?;
        Ok(StaleServers { servers, key: &self.key, client })
    }

    /// Returns the client of the server that the command uses, for a request that is about no
    /// particular lock; `None` if the command uses a mount.
    pub(in crate::cli) fn direct(&self) -> CliResult<Option<RemoteClient>> {
        self.server_for(None)?.map(|url| self.direct_to(&url)).transpose()
    }

    /// Ends all holds and waits of the client at the server that is the target, and returns the
    /// server's answer; `None` if the target is a mount.
    pub(in crate::cli) fn release_all_at_server(&self) -> CliResult<Option<Value>> {
        let Some(url) = self.server_for(None)? else { return Ok(None) };
        let client = self.client_at(&url)?;
        let query: String = form_urlencoded::byte_serialize(client.as_str().as_bytes()).collect();
        let path = format!("/locks?client={query}");
        ask_first(&url, &self.key, "DELETE", &path, RELEASE_ALL_PATIENCE)
            .map(|(_, ended)| Some(ended))
    }

    /// Returns the client of the server at `url`.
    fn direct_to(&self, url: &str) -> CliResult<RemoteClient> {
        let credentials = self.key.credentials(url)?;
        let access = credentials.read()?;
        let client = self.client.clone().map_or_else(|| credentials.client_or_own(&access), Ok)?;
        Ok(RemoteClient::new(access, client))
    }

    /// Returns the client of a server that a folder names. Anyone who can write to the folder can
    /// name another one there, so it gets the user's credentials only if the user's configuration
    /// names it too: `LATCHFS_SERVER`, or the selected profile.
    pub(in crate::cli) fn direct_to_server_of_folder(&self, url: &str) -> CliResult<RemoteClient> {
        if self.key.is_configured(url)? {
            return self.direct_to(url);
        }
        let client = self.client.clone().map_or_else(own_client, Ok)?;
        Ok(RemoteClient::new(self.key.access_without_credentials(url)?, client))
    }

    /// Returns the client as which to ask the server at `url`.
    fn client_at(&self, url: &str) -> CliResult<ClientId> {
        self.client.clone().map_or_else(|| self.key.client_at(url), Ok)
    }

    /// Returns the URL of the server that the command uses; `None` if it uses a mount.
    fn server_for(&self, name: Option<&OsStr>) -> CliResult<Option<String>> {
        if let Some(url) = &self.server {
            return Ok(Some(url.clone()));
        }
        let is_mount = self.key.profile_argument().is_none()
            && (self.dir_said().is_some() || names_mount(name)?);
        let configured = if is_mount { None } else { self.key.default_server()? };
        let url = match configured.map(|url| url.value) {
            None if !is_mount && trusted_mounts()?.is_empty() => Some(unnamed_server()?),
            url => url,
        };
        if url.is_none() && self.client.is_some() {
            return Err(CliError::usage(
                "--client says whom a server is asked as, and a mount is meant here, which has a \
                 client of its own; name the server by --server URL, or leave --client out",
            ));
        }
        Ok(url)
    }

    /// Whether the argument `name` is about a lock, and not about a file elsewhere: a mount or a
    /// server is named, or the argument lies in a mount.
    pub(in crate::cli) fn names_lock(&self, name: &OsStr) -> CliResult<bool> {
        let is_server = self.server.is_some() || self.key.profile_argument().is_some();
        Ok(self.dir.is_some() || is_server || lies_in_mount(name)?)
    }

    /// Returns the mount that the command line or the environment names, if any.
    fn dir_said(&self) -> Option<PathBuf> {
        self.dir.clone().or_else(|| variable("LATCHFS_DIR").map(PathBuf::from))
    }

    /// Returns the mount that the command uses for a request which is about no particular lock.
    pub(in crate::cli) fn mount(&self) -> CliResult<PathBuf> {
        let mounts = mounts()?;
        let inside = current_dir_in(&mounts);
        choose(self.wanted()?.as_deref(), inside.as_deref(), &mounts, &trusted_mounts()?)
    }

    /// Returns the mount and the lock to which the argument `name` refers: the name of a lock, or a
    /// path below a mount.
    pub(in crate::cli) fn lock(&self, name: &OsStr) -> CliResult<MountedLock> {
        let mounts = mounts()?;
        let inside = current_dir_in(&mounts);
        let path = as_path(name, inside.is_some());
        // An argument that is a path decides which mount the command uses, even if `LATCHFS_DIR`
        // names another mount.
        let wanted = if is_path(name) && self.dir.is_none() { None } else { self.wanted()? };
        let at = path.as_deref().or(inside.as_deref());
        let dir = choose(wanted.as_deref(), at, &mounts, &trusted_mounts()?)?;
        let name = name_of(&dir, name, path.as_deref())?;
        Ok(MountedLock { dir, name })
    }

    fn wanted(&self) -> CliResult<Option<PathBuf>> {
        let Some(dir) = self.dir_said() else { return Ok(None) };
        let resolved = mountinfo::resolve(&dir).map_err(|error| {
            CliError::system(&format!("'{}' can't be looked up", dir.display()), &error)
        })?;
        Ok(Some(resolved))
    }
}

/// Returns the URL of the server that other machines join and that this user has started here, if
/// there is one, whether or not it runs: its locks are those of the user on all these machines.
pub(in crate::cli) fn home_server() -> Option<String> {
    let data = default_data_dir().ok()?;
    let is_home = home_in(&data).join("ca.pem").exists();
    is_home.then(|| format!("unix:{}", socket_in(&data).display()))
}

/// Returns the URL of the server of a command that names no place: the one that other machines
/// join, the machine's daemon, or else the user's own.
fn unnamed_server() -> CliResult<String> {
    if let Some(home) = home_server() {
        return Ok(home);
    }
    if let Some(machine) = MachineLocks::here()? {
        OwnLocks::introduce_machine(machine);
        return Ok(machine_locks::URL.to_owned());
    }
    let own = OwnLocks::here()?;
    let url = own.started()?;
    own.introduce();
    Ok(url)
}

/// Returns the mount that comes before a configured server, and what names it: `LATCHFS_DIR`, or
/// the current directory.
pub(super) fn mount_before_server() -> CliResult<Option<(PathBuf, &'static str)>> {
    if let Some(dir) = variable("LATCHFS_DIR") {
        return Ok(Some((dir.into(), "LATCHFS_DIR")));
    }
    let mounts = mounts()?;
    let Some(here) = current_dir_in(&mounts) else { return Ok(None) };
    Ok(Some((choose(None, Some(&here), &mounts, &[])?, "the current directory")))
}

/// Whether the current directory or the path `name` lies in a mount.
fn names_mount(name: Option<&OsStr>) -> CliResult<bool> {
    let mounts = mounts()?;
    let inside = current_dir_in(&mounts).is_some();
    let is_below = |path: PathBuf| mounts.iter().any(|mount| path.starts_with(mount));
    Ok(inside
        || name.is_some_and(|name| is_path(name) || as_path(name, false).is_some_and(is_below)))
}

/// Whether an argument is a path below a mount, or a name while the current directory is in one.
fn lies_in_mount(name: &OsStr) -> CliResult<bool> {
    let mounts = mounts()?;
    let is_below = |path: PathBuf| mounts.iter().any(|mount| path.starts_with(mount));
    Ok(mountinfo::resolve(Path::new(name)).is_ok_and(is_below))
}

/// Returns the current directory if it lies in a mount.
fn current_dir_in(mounts: &[PathBuf]) -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    mounts.iter().any(|mount| here.starts_with(mount)).then_some(here)
}

/// Returns the argument as a resolved path, if it may be a path. If the current directory is inside
/// a mount, `a/b` is always the name of a lock; if it is outside, `a/b` may be a path to a lock, as
/// a shell completes it.
fn as_path(name: &OsStr, inside: bool) -> Option<PathBuf> {
    let may_be_path = is_path(name) || (!inside && name.as_bytes().contains(&b'/'));
    may_be_path.then(|| mountinfo::resolve(Path::new(name)).ok()).flatten()
}

fn mounts() -> CliResult<Vec<PathBuf>> {
    mounts_of(|_| true)
}

/// Returns the mounts of root and of the user of this process.
fn trusted_mounts() -> CliResult<Vec<PathBuf>> {
    let own = own_uid();
    mounts_of(|mounter| mounter == 0 || mounter == own)
}

fn mounts_of(is_meant: impl Fn(u32) -> bool) -> CliResult<Vec<PathBuf>> {
    let mounts = mountinfo::ours()
        .map_err(|error| CliError::system("/proc/self/mountinfo can't be read", &error))?;
    let meant = mounts.into_iter().filter(|mount| is_meant(mount.mounter));
    Ok(meant.map(|mount| mount.dir).collect())
}

/// Returns the mount `wanted`; without it, the innermost mount that contains `path`; otherwise the
/// only mount there is.
fn choose(
    wanted: Option<&Path>,
    path: Option<&Path>,
    mounts: &[PathBuf],
    trusted: &[PathBuf],
) -> CliResult<PathBuf> {
    if let Some(wanted) = wanted {
        if mounts.iter().any(|mount| mount == wanted) {
            return Ok(wanted.into());
        }
        let dir = wanted.display();
        return Err(CliError::unavailable(format!(
            "no latchfs is mounted at {dir}; mount it by 'latchfs mount {dir}'"
        )));
    }
    let around = |mount: &&PathBuf| path.is_some_and(|path| path.starts_with(mount));
    if let Some(innermost) = mounts.iter().filter(around).max_by_key(|dir| dir.as_os_str().len()) {
        return Ok(innermost.clone());
    }
    // Any user can mount a latchfs; a command that names none means one of root or of its own user.
    match trusted {
        [only] => Ok(only.clone()),
        [] => Err(CliError::unavailable(
            "no latchfs is mounted here; mount one by 'latchfs mount DIR'",
        )),
        several => {
            let list: Vec<_> = several.iter().map(|dir| dir.display().to_string()).collect();
            Err(CliError::usage(format!(
                "several latchfs are mounted ({}); say which by --dir DIR or LATCHFS_DIR",
                list.join(", ")
            )))
        }
    }
}

/// Whether an argument can only be a path, because it begins with `/`, `./` or `../`, as no lock's
/// name does.
fn is_path(name: &OsStr) -> bool {
    [&b"/"[..], b"./", b"../"].iter().any(|start| name.as_bytes().starts_with(start))
}

/// Returns the lock of the mount at `dir` to which an argument refers.
fn name_of(dir: &Path, given: &OsStr, path: Option<&Path>) -> CliResult<LockName> {
    let below = path.and_then(|path| path.strip_prefix(dir).ok());
    // The shell completes the name of a directory with a slash, so a slash at the end is allowed; a
    // double slash within the name is a mistake.
    let is_odd = given.as_bytes().windows(2).any(|two| two == b"//");
    let name = match below {
        Some(below) if is_path(given) || !is_odd => below.as_os_str(),
        _ if is_path(given) => {
            let (given, dir) = (given.display(), dir.display());
            return Err(CliError::usage(format!(
                "'{given}' does not lie below the mount {dir}; name the lock alone, such as \
                 'build', or give its path in the mount"
            )));
        }
        _ => given,
    };
    LockName::parse_bytes(name.as_bytes()).map_err(|error| not_a_name(given, error))
}

/// Timeout of a stale read: a node answers it without waiting for another node.
const PATIENCE: Span = Span::from_secs(2);

/// The servers to which stale reads are sent; the first that answers is used.
pub(in crate::cli) struct StaleServers<'a> {
    pub(in crate::cli) servers: String,
    pub(in crate::cli) key: &'a ServerKeyArgs,
    /// The client whose own queue place the displayed status shows.
    pub(in crate::cli) client: ClientId,
}

/// The result of a stale read, with the server that answered and the maximum age.
pub(in crate::cli) struct StaleAnswer<T> {
    server: String,
    age_ms: Option<u64>,
    pub(in crate::cli) it: T,
}

impl StaleServers<'_> {
    /// Returns the status of a lock by a stale read.
    pub(in crate::cli) fn status(&self, name: &LockName) -> CliResult<StaleAnswer<Value>> {
        let name = encoded(name);
        let (server, mut it) = self.request(&format!("/locks/{name}?consistency=stale"))?;
        show_place(&mut it, &self.client.as_str().into());
        Ok(StaleAnswer { server, age_ms: it["age_ms"].as_u64(), it })
    }

    /// Returns the statuses of all locks whose names begin with `prefix`, by a stale read.
    pub(in crate::cli) fn list(&self, prefix: &str) -> CliResult<StaleAnswer<Vec<Value>>> {
        let (prefix, mut all, mut after) = (encoded(&prefix), Vec::new(), String::new());
        let query = format!("/locks?consistency=stale&limit={PAGE}&prefix={prefix}");
        loop {
            let (server, mut page) = self.request(&format!("{query}{after}"))?;
            let age = page["age_ms"].take();
            for mut status in page["locks"].as_array_mut().into_iter().flat_map(std::mem::take) {
                show_place(&mut status, &self.client.as_str().into());
                status["age_ms"] = age.clone();
                all.push(status);
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", encoded(&next)),
                None => return Ok(StaleAnswer { server, age_ms: age.as_u64(), it: all }),
            }
        }
    }

    fn request(&self, path: &str) -> CliResult<(String, Value)> {
        ask_first(&self.servers, self.key, "GET", path, PATIENCE)
    }
}

impl<T> StaleAnswer<T> {
    /// Prints how old the result of the stale read may be.
    pub(in crate::cli) fn warn(&self) {
        let server = &self.server;
        match self.age_ms.map(Span::from_millis) {
            Some(Span::ZERO) => output::say(&format!("this is what {server} knows")),
            Some(age) => output::say(&format!("this is what {server} knew {age} ago")),
            None => output::say(&format!(
                "this is what {server} knew when it had contact to a majority last, and it does \
                 not know when that was"
            )),
        }
    }
}

fn encoded(text: &impl Display) -> String {
    utf8_percent_encode(&text.to_string(), NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(dirs: &[&str]) -> Vec<PathBuf> {
        dirs.iter().map(PathBuf::from).collect()
    }

    fn sentence<T: std::fmt::Debug>(done: CliResult<T>) -> String {
        match done {
            Err(CliError::Said(_, sentence)) => sentence,
            other => panic!("{other:?} says nothing"),
        }
    }

    #[test]
    fn the_only_mount_is_the_default() {
        assert_eq!(
            choose(None, None, &dirs(&["/locks", "/mallory"]), &dirs(&["/locks"])).expect("found"),
            Path::new("/locks")
        );
        assert!(
            sentence(choose(None, None, &dirs(&["/mallory"]), &[])).contains("latchfs mount DIR")
        );
        let several = sentence(choose(None, None, &[], &dirs(&["/a", "/b"])));
        assert!(several.contains("(/a, /b)"), "{several}");
    }

    #[test]
    fn a_named_mount_is_chosen() {
        let mounts = dirs(&["/a", "/b"]);
        assert_eq!(
            choose(Some(Path::new("/b")), None, &mounts, &[]).expect("found"),
            Path::new("/b")
        );
        let wrong = sentence(choose(Some(Path::new("/c")), None, &mounts, &mounts));
        assert!(wrong.contains("no latchfs is mounted at /c"), "{wrong}");
    }

    #[test]
    fn a_path_determines_its_mount() {
        let mounts = dirs(&["/a", "/a/b", "/c"]);
        let chosen = choose(None, Some(Path::new("/a/b/x")), &mounts, &[]).expect("found");
        assert_eq!(chosen, Path::new("/a/b"));
    }

    #[test]
    fn a_lock_is_given_by_name_or_path() {
        let name = |given: &str, path: Option<&str>| {
            name_of(Path::new("/locks"), OsStr::new(given), path.map(Path::new))
        };
        assert_eq!(name("build", None).expect("a name").as_str(), "build");
        let team = name("team/build", Some("/home/team/build")).expect("a name");
        assert_eq!(team.as_str(), "team/build");
        let path = name("./locks/build", Some("/locks/build")).expect("a path");
        assert_eq!(path.as_str(), "build");
        let outside = sentence(name("/etc/x", Some("/etc/x")));
        assert!(
            outside.contains("does not lie below the mount /locks; name the lock"),
            "{outside}"
        );
        let slash = name("locks/build/", Some("/locks/build")).expect("a path");
        assert_eq!(slash.as_str(), "build");
        assert!(sentence(name("locks//b", Some("/locks/b"))).contains("is not the name of a lock"));
        assert!(sentence(name("a//b", Some("/home/a/b"))).contains("is not the name of a lock"));
        assert!(sentence(name("/locks", Some("/locks"))).contains("is not the name of a lock"));
    }

    #[test]
    fn an_invalid_name_is_reported_with_a_correction() {
        for (wrong, next) in [
            ("a//b", "; write one slash between parts, and none around them: team/build"),
            ("a/../b", "; write it whole, as from the top of a mount: team/build"),
            (".latchfs", "; let it begin otherwise"),
            ("a\nb", "; leave out line ends, tabs and the like"),
        ] {
            let said = sentence(name_of(Path::new("/locks"), OsStr::new(wrong), None));
            assert!(said.contains("' is not the name of a lock: "), "{said}");
            assert!(said.ends_with(next), "{said}");
        }
    }
}
