//! A user's own locks: where no mount and no server is named, a daemon of this user on this machine
//! decides. The first command starts it; it ends when nobody needs it any more.
//!
//! Its directory is a function of the user and of the machine alone, never of the environment, so
//! that a terminal, cron, `su` and a service manager mean the same locks. It lies below the home
//! that the user database names, and has the machine's id in its name, because two machines may
//! share a home.

use super::machine_locks::{self, MachineLocks, caller_of_sudo, peer_of};
use crate::base::said;
use crate::cli::argument_types::host_name;
use crate::cli::background;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output;
use crate::cli::status_table::{Status, held_by, is_finished_slot};
use crate::client::api_request::fetch;
use crate::client::http_transport::ServerAccess;
use crate::engine::LockName;
use crate::time::{Span, boot_now};
use form_urlencoded::byte_serialize;
use nix::unistd::{Uid, User};
use rustix::process::{Pid, getsid};
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::thread;

/// Where the directories of all machines lie, below a user's home.
const BELOW_HOME: &str = ".local/state/latchfs/own";
/// The maximum length of a socket's path: `sun_path` without the zero at its end.
const SOCKET_PATH_MAX: usize = 107;
/// The number of digits of a machine's id that its directory has. More would lengthen the path of
/// the socket.
const MACHINE_DIGITS: usize = 16;
/// The maximum number of terminals that are remembered as told which locks these are.
const TERMINALS_MAX: usize = 64;
/// The number of locks at which a command looks that uses another place.
const SHOWN: usize = 100;
/// How long a command waits while another one starts the daemon.
const START_PATIENCE: Span = Span::from_secs(20);
/// The interval at which it looks whether the daemon was started.
const START_POLL: Span = Span::from_millis(5);

/// The locks of this user on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct OwnLocks {
    dir: PathBuf,
    uid: u32,
}

impl OwnLocks {
    /// Returns the locks of the user that runs this process.
    pub(in crate::cli) fn here() -> CliResult<Self> {
        let (real, effective) = (Uid::current(), Uid::effective());
        if real != effective {
            return Err(none(&format!(
                "this program has the rights of user {effective} and was started by user {real}"
            )));
        }
        let user = User::from_uid(real).map_err(|error| none(&said(&error)))?;
        let home = user.map(|user| user.dir).or_else(|| home_in_directory(real));
        let home = home.ok_or_else(|| none(&format!("user {real} is in no user database")))?;
        if !home.is_dir() {
            return Err(none(&format!("the home {} of user {real} is missing", home.display())));
        }
        let own = Self::of(&home, real);
        if own.socket().as_os_str().len() > SOCKET_PATH_MAX {
            return Err(none(&format!("the path {} is too long for a socket", own.dir.display())));
        }
        Ok(own)
    }

    fn of(home: &Path, user: Uid) -> Self {
        Self { dir: home.join(BELOW_HOME).join(machine()), uid: user.as_raw() }
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// Returns the URL of the daemon.
    pub(in crate::cli) fn url(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Returns the URL of the daemon, which is started if it does not run; a completion starts
    /// none, and then finds no names.
    ///
    /// Must be called before `run` begins to inherit orphaned processes: the daemon would be ended
    /// with the command.
    pub(in crate::cli) fn started(&self) -> CliResult<String> {
        if !self.is_running()? && !output::is_silent() {
            self.make_dir()?;
            let _starting = self.begin_start()?;
            if !self.is_running()? {
                self.start()?;
            }
        }
        Ok(self.url())
    }

    /// Whether the daemon runs.
    pub(in crate::cli) fn is_running(&self) -> CliResult<bool> {
        match self.check_dir() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(self.unusable(&error)),
        }
        let stream = match UnixStream::connect(self.socket()) {
            Ok(stream) => stream,
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Ok(false),
                _ => return Err(self.unusable(&error)),
            },
        };
        match peer_of(&stream).map_err(|error| self.unusable(&error.into()))? {
            uid if uid == 0 || uid == self.uid => Ok(true),
            uid => Err(self.unusable(&io::Error::other(format!(
                "a process of user {uid} listens at its socket"
            )))),
        }
    }

    /// Checks that no other user can put anything into the directory.
    fn check_dir(&self) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.dir)?;
        if !found.is_dir() || found.uid() != self.uid || found.mode() & 0o077 != 0 {
            return Err(io::Error::other(format!(
                "it must be a directory of user {} that nobody else may enter",
                self.uid
            )));
        }
        Ok(())
    }

    fn make_dir(&self) -> CliResult {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.and_then(|()| self.check_dir()).map_err(|error| self.unusable(&error))
    }

    /// Waits until no other command starts the daemon. None starts it while the file that is
    /// returned is open.
    fn begin_start(&self) -> CliResult<File> {
        let path = self.dir.join("starting");
        let open = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let file = open.map_err(|error| self.unusable(&error))?;
        let until = boot_now() + START_PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(self.unusable(&error)),
                Err(TryLockError::WouldBlock) if boot_now() >= until => {
                    return Err(self.unusable(&io::Error::other(format!(
                        "another command has been starting its daemon for {START_PATIENCE}"
                    ))));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(START_POLL.as_duration()),
            }
        }
    }

    fn start(&self) -> CliResult {
        let state = self.dir.join("state");
        let arguments: [OsString; 7] = [
            "serve".into(),
            "--listen".into(),
            self.url().into(),
            "--state".into(),
            state.into(),
            "--idle-end".into(),
            "5m".into(),
        ];
        background::start_apart(&arguments, &self.dir)
    }

    /// Says once in each terminal which locks a command uses that names no place, and root that the
    /// locks of the user who called `sudo` are others.
    pub(in crate::cli) fn introduce(&self) {
        static INTRODUCED: Once = Once::new();
        if output::is_silent() {
            return;
        }
        INTRODUCED.call_once(|| {
            if let Some(other) = caller_of_sudo().filter(|other| other.uid.as_raw() != self.uid)
                && Self::of(&other.dir, other.uid).is_running().unwrap_or(false)
            {
                output::say(&format!(
                    "these are the locks of user {}, and those of {} are others; name one place \
                     for both by --server or --dir",
                    self.uid, other.name
                ));
            } else if io::stderr().is_terminal() && !output::is_quiet() && self.is_new_here() {
                output::say(&format!(
                    "these are your own locks on this machine, at {}; 'latchfs config show' tells \
                     of other places",
                    self.url()
                ));
            }
        });
    }

    /// Says once in each terminal that a command which names no place uses the machine's locks, and
    /// root that those of the user who called `sudo` have other names.
    pub(super) fn introduce_machine(machine: &MachineLocks) {
        static INTRODUCED: Once = Once::new();
        if output::is_silent() {
            return;
        }
        INTRODUCED.call_once(|| {
            if let Some(names) = machine.names_of_caller() {
                output::say(&format!(
                    "these are the machine's locks at {}, and those whose names begin with {names} \
                     are others",
                    machine_locks::URL
                ));
            } else if io::stderr().is_terminal()
                && !output::is_quiet()
                && Self::here().is_ok_and(|own| own.is_new_here())
            {
                output::say(&format!(
                    "these are the locks of this machine, at {}: {}; 'latchfs config show' tells \
                     of other places",
                    machine_locks::URL,
                    machine.described()
                ));
            }
        });
    }

    /// Whether this is the first command of its terminal that uses these locks.
    fn is_new_here(&self) -> bool {
        // A user of the machine's daemon may have no directory of own locks yet.
        if self.make_dir().is_err() {
            return false;
        }
        let path = self.dir.join("terminals");
        let session = getsid(None).map_or(0, Pid::as_raw_pid);
        // The number of a session is used again, but its terminal is opened anew.
        let opened = rustix::fs::fstat(io::stderr()).map_or(0, |terminal| terminal.st_ctime);
        let own = format!("{session} {opened}");
        let known = fs::read_to_string(&path).unwrap_or_default();
        if known.lines().any(|line| line == own) {
            return false;
        }
        let last = known.lines().rev().take(TERMINALS_MAX - 1).collect::<Vec<_>>();
        let lines = last.into_iter().rev().chain([&*own]).map(|line| format!("{line}\n"));
        // A terminal that is not remembered is told again.
        let _ = fs::write(&path, lines.collect::<String>());
        true
    }

    /// Checks that a command which uses another place, though its command line names none, does not
    /// take a lock there that it would have found here: refuses it if the lock `name` is held or
    /// waited for here, and says which place it uses if another one is.
    pub(in crate::cli) fn check_beside(&self, other: &str, name: Option<&LockName>) -> CliResult {
        // A directory that can't be used has no locks.
        if !self.is_running().unwrap_or(false) {
            return Ok(());
        }
        if let Some(name) = name
            && let Some(status) = self.first(name.as_str(), 1)?.first()
            && status["name"] == name.as_str()
        {
            return Err(CliError::Said(
                Exit::Conflict,
                format!(
                    "lock '{name}' of your own locks ({}) is {}, and this command would use \
                     {other}, where it is another lock; wait until it is free, or name the place \
                     you mean by --dir or --server",
                    self.url(),
                    held_by(Status(status))
                ),
            ));
        }
        // The lock of a finished slot is kept for an hour, and nobody works under it.
        if self.first("", SHOWN)?.iter().any(|status| !is_finished_slot(Status(status))) {
            output::say(&format!(
                "this is about the locks of {other}; you have others at {}",
                self.url()
            ));
        }
        Ok(())
    }

    /// Returns the statuses of the first `count` locks whose names begin with `prefix`. Starts no
    /// thread: it would take the signals for which `run` waits.
    fn first(&self, prefix: &str, count: usize) -> CliResult<Vec<Value>> {
        let access = ServerAccess { url: self.url(), ..ServerAccess::default() };
        let prefix: String = byte_serialize(prefix.as_bytes()).collect();
        let path = format!("/locks?limit={count}&prefix={prefix}");
        let asked = fetch(&access, "GET", &path, START_PATIENCE);
        let (_, mut page) = asked.map_err(|error| CliError::unavailable(error.to_string()))?;
        Ok(page["locks"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    fn unusable(&self, error: &io::Error) -> CliError {
        CliError::unavailable(format!(
            "the directory {} of your own locks can't be used: {}; mend it, or name another place \
             by --server or --dir",
            self.dir.display(),
            said(error)
        ))
    }
}

/// Returns the home of a user whom only a directory service knows, such as LDAP: a static program
/// asks none itself.
fn home_in_directory(user: Uid) -> Option<PathBuf> {
    let mut getent = Command::new("/usr/bin/getent");
    let output = getent.env_clear().args(["passwd", &user.to_string()]).output().ok()?;
    let entry = String::from_utf8(output.stdout).ok()?;
    entry.split(':').nth(5).filter(|home| home.starts_with('/')).map(PathBuf::from)
}

fn none(why: &str) -> CliError {
    CliError::unavailable(format!(
        "no mount and no server is named, and there is no place for your own locks: {why}; name a \
         place by --server or --dir"
    ))
}

/// Returns the part of the path that is this machine's: the id of its installation, or the name of
/// the host where there is none.
fn machine() -> String {
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let is_id = id.trim().len() == 32 && id.trim().bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_id { id[..MACHINE_DIGITS].to_owned() } else { format!("host-{}", host_name().trim()) }
}
