//! The locks of this machine: where nothing is named, and root has started a daemon for all users
//! (`serve --machine`), it decides instead of one of the user's own.
//!
//! Its place is always the same. A user has the names below `~USER/` there, and those that the
//! machine's file of rights gives; a command maps each other name below `~USER/`. As long as the
//! directory exists, commands use this place or fail: a user's own locks would be others.

use crate::base::said;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::output;
use crate::client::api_request::fetch;
use crate::client::http_transport::ServerAccess;
use crate::control::ControlRequest;
use crate::engine::ClientId;
use crate::engine::LockName;
use crate::time::Span;
#[cfg(target_os = "linux")]
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Uid, User};
use serde_json::Value;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;

/// The directory of the daemon's socket. Root makes it, and nobody else can.
const DIR: &str = "/run/latchfs";
/// The daemon's socket.
pub(in crate::cli) const SOCKET: &str = "/run/latchfs/socket";
/// The URL of the daemon.
pub(in crate::cli) const URL: &str = "unix:/run/latchfs/socket";
/// Where the daemon keeps the locks, unless --data names another place.
pub(in crate::cli) const DATA: &str = "/var/lib/latchfs/machine";
/// What users may do beside their own names.
pub(in crate::cli) const RIGHTS: &str = "/etc/latchfs/rights.toml";
/// How long the daemon may take to say what the user may do. A service manager may start it first.
const PATIENCE: Span = Span::from_secs(20);

/// What the user of this process may do at the machine's daemon.
#[derive(Debug)]
pub(in crate::cli) struct MachineLocks {
    /// The client of the user, if the daemon lets it act as one alone.
    pub(super) client: Option<ClientId>,
    /// The prefix of the user's own names; `None`: every name is the machine's.
    own_names: Option<String>,
    /// The prefixes of all names that the user may use.
    locks: Vec<String>,
}

impl MachineLocks {
    /// Returns what the user of this process may do at the machine's daemon, if the machine has
    /// one.
    pub(in crate::cli) fn here() -> CliResult<Option<&'static Self>> {
        static HERE: OnceLock<Option<MachineLocks>> = OnceLock::new();
        if let Some(here) = HERE.get() {
            return Ok(here.as_ref());
        }
        let here = Self::ask()?;
        Ok(HERE.get_or_init(|| here).as_ref())
    }

    /// Returns what the user may do if `url` is the machine's daemon.
    pub(super) fn at(url: &str) -> CliResult<Option<&'static Self>> {
        if url == URL { Self::here() } else { Ok(None) }
    }

    fn ask() -> CliResult<Option<Self>> {
        match check_dir() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            checked => checked.map_err(|error| unusable(&error))?,
        }
        if Uid::current() != Uid::effective() {
            return Err(unusable(&io::Error::other(format!(
                "this program has the rights of user {} and was started by user {}",
                Uid::effective(),
                Uid::current()
            ))));
        }
        let peer = UnixStream::connect(SOCKET).and_then(|stream| Ok(peer_of(&stream)?));
        match peer.map_err(|error| unusable(&error))? {
            0 => {}
            uid => {
                let why = format!("a process of user {uid} listens at its socket");
                return Err(unusable(&io::Error::other(why)));
            }
        }
        let asked = fetch(&access(), "GET", "/me", PATIENCE);
        match asked.map_err(|error| CliError::unavailable(error.to_string()))? {
            (200, me) => Ok(Some(Self::of(&me))),
            (_, problem) => Err(unusable(&io::Error::other(
                problem["detail"].as_str().map(output::harmless).unwrap_or_default(),
            ))),
        }
    }

    fn of(me: &Value) -> Self {
        let locks = me["locks"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Self {
            client: me["client"].as_str().and_then(|client| ClientId::parse(client).ok()),
            own_names: me["own_names"].as_str().map(str::to_owned),
            locks: locks.map(str::to_owned).collect(),
        }
    }

    /// Returns the name at the daemon of the lock, or of the beginning of names, that the user has
    /// called `name`.
    pub(in crate::cli) fn full_name(&self, name: &str) -> String {
        let is_given = self.locks.iter().any(|prefix| name.starts_with(prefix.as_str()));
        match &self.own_names {
            Some(own) if !is_given && !name.is_empty() && !name.starts_with('~') => {
                format!("{own}{name}")
            }
            _ => name.to_owned(),
        }
    }

    /// Puts the names at the daemon into a request of a command.
    pub(super) fn map_request(&self, request: &mut ControlRequest) -> CliResult {
        let name = match request {
            ControlRequest::About => return Ok(()),
            ControlRequest::List(query) => {
                query.prefix = self.full_name(&query.prefix);
                return Ok(());
            }
            ControlRequest::Status(name) => name,
            ControlRequest::Acquire(ask) => &mut ask.name,
            ControlRequest::Renew(ask) => &mut ask.name,
            ControlRequest::Release(ask) => &mut ask.name,
            ControlRequest::Steal(ask) => &mut ask.name,
        };
        let full = self.full_name(name.as_str());
        *name = LockName::parse(&full).map_err(|error| {
            CliError::usage(format!("'{full}' can't be the name of a lock: {error}"))
        })?;
        Ok(())
    }

    /// Returns the beginning of the names of the user who has called `sudo`, if root uses the
    /// machine's names while that user has others.
    pub(super) fn names_of_caller(&self) -> Option<String> {
        let names = format!("~{}/", caller_of_sudo()?.name);
        (self.own_names.is_none() && has_locks(&names)).then_some(names)
    }

    /// Describes the place for `config show` and `doctor`.
    pub(in crate::cli) fn described(&self) -> String {
        match &self.own_names {
            Some(own) => format!("a daemon of root; your names begin with {own}"),
            None => "a daemon of root; you have every name".to_owned(),
        }
    }
}

/// Whether the daemon has locks whose names begin with `prefix`.
fn has_locks(prefix: &str) -> bool {
    let path = format!("/locks?limit=1&prefix={prefix}");
    let listed = fetch(&access(), "GET", &path, PATIENCE);
    listed.is_ok_and(|(_, page)| page["locks"].as_array().is_some_and(|locks| !locks.is_empty()))
}

fn access() -> ServerAccess {
    ServerAccess { url: URL.to_owned(), ..ServerAccess::default() }
}

/// Makes the directory of the daemon's socket, as root.
pub(in crate::cli) fn make_dir() -> CliResult {
    if !Uid::effective().is_root() {
        return Err(CliError::usage(
            "--machine is for root alone, because all users trust its daemon; without it commands \
             use your own locks",
        ));
    }
    let made = match DirBuilder::new().mode(0o755).create(DIR) {
        // The file mode mask of this process may have kept others out.
        Ok(()) => fs::set_permissions(DIR, Permissions::from_mode(0o755)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    };
    made.and_then(|()| check_dir()).map_err(|error| unusable(&error))
}

/// Checks that nobody but root can put anything into the directory of the socket.
fn check_dir() -> io::Result<()> {
    let found = fs::symlink_metadata(Path::new(DIR))?;
    if !found.is_dir() || found.uid() != 0 || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("it must be a directory that root alone may change"));
    }
    Ok(())
}

fn unusable(error: &io::Error) -> CliError {
    CliError::unavailable(format!(
        "the daemon of this machine's locks in {DIR} can't be used: {}; have root start it \
         ('latchfs serve --machine') or remove the directory, or name another place by --server or \
         --dir",
        said(error)
    ))
}

/// Returns the user who has called `sudo`, if this process is one of root that `sudo` has started.
pub(super) fn caller_of_sudo() -> Option<User> {
    let uid = std::env::var("SUDO_UID").ok()?.parse().ok()?;
    if !Uid::effective().is_root() {
        return None;
    }
    User::from_uid(Uid::from_raw(uid)).ok()?
}

/// Returns the user at the other end of a socket.
#[cfg(target_os = "linux")]
pub(super) fn peer_of(stream: &UnixStream) -> nix::Result<u32> {
    let peer = getsockopt(stream.as_raw_fd(), PeerCredentials)?;
    Ok(peer.uid())
}

/// Returns the user at the other end of a socket.
#[cfg(not(target_os = "linux"))]
pub(super) fn peer_of(stream: &UnixStream) -> nix::Result<u32> {
    nix::unistd::getpeereid(stream.as_raw_fd()).map(|(uid, _)| uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_without_a_right_are_below_the_users_own() {
        let alice = MachineLocks::of(&json!({
            "client": "box:alice", "own_names": "~alice/", "locks": ["~alice/", "deploy/"],
        }));
        for (given, full) in [
            ("build", "~alice/build"),
            ("~alice/build", "~alice/build"),
            ("~bob/build", "~bob/build"),
            ("deploy/x", "deploy/x"),
            ("deploy", "~alice/deploy"),
            ("", ""),
        ] {
            assert_eq!(alice.full_name(given), full);
        }
        let root = MachineLocks::of(&json!({"client": null, "own_names": null, "locks": [""]}));
        assert_eq!(root.full_name("build"), "build");
        let of = |request: Value| ControlRequest::of(&request).expect("valid");
        for (given, full) in [
            (json!({"do": "list", "prefix": "b"}), json!({"do": "list", "prefix": "~alice/b"})),
            (json!({"do": "status", "name": "b"}), json!({"do": "status", "name": "~alice/b"})),
        ] {
            let mut request = of(given);
            alice.map_request(&mut request).expect("valid");
            assert_eq!(request, of(full));
        }
    }
}
