//! Defaults for options that are not given, from the environment: host, user, directories, server.

use super::exit::{CliError, CliResult};
use crate::engine::ClientId;
use crate::fuse::kernel::own_user::is_root;
use crate::fuse::mount::client_of_user;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Returns the client id of this host, which is the host's name.
pub(super) fn host() -> CliResult<ClientId> {
    let name = host_name();
    ClientId::parse(name.trim()).map_err(|_| {
        CliError::usage("this host has no usable name; name this client by --client NAME")
    })
}

#[cfg(target_os = "linux")]
pub(super) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
pub(super) fn host_name() -> String {
    let mut bytes = [0_u8; 256];
    // SAFETY: gethostname writes at most `bytes.len()` bytes to `bytes`.
    let result = unsafe { libc::gethostname(bytes.as_mut_ptr().cast(), bytes.len()) };
    let text = bytes.split(|byte| *byte == 0).next().filter(|_| result == 0);
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}

/// Returns the client id of the user that runs this process: the host's name and the user's name.
pub(super) fn own_client() -> CliResult<ClientId> {
    Ok(client_of_user(&host()?))
}

/// Returns the state directory given on the command line, or the default one; `None` if the
/// argument is 'none'.
pub(super) fn state_dir(said: Option<&OsStr>) -> CliResult<Option<PathBuf>> {
    match said {
        Some(none) if none == "none" => Ok(None),
        Some(dir) if dir.is_empty() => {
            Err(CliError::usage("--state needs a directory, or the word 'none'"))
        }
        Some(dir) => absolute(Path::new(dir)).map(Some),
        None => default_state_dir().map(Some),
    }
}

/// Returns the state directory of this user.
pub(super) fn default_state_dir() -> CliResult<PathBuf> {
    if is_root() {
        return Ok("/var/lib/latchfs".into());
    }
    let state = directory_variable("XDG_STATE_HOME")
        .or_else(|| Some(directory_variable("HOME")?.join(".local/state")));
    state.map(|state| state.join("latchfs")).ok_or_else(|| {
        CliError::usage("there is no HOME to keep the state in; name a place by --state DIR")
    })
}

pub(super) fn absolute(path: &Path) -> CliResult<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| CliError::system("the current directory can't be found", &error))
}

/// Returns the value of an environment variable. An empty value counts as unset.
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the value of an environment variable that must be text.
pub(super) fn text_variable(name: &str) -> CliResult<Option<String>> {
    let text = variable(name).map(OsString::into_string).transpose();
    text.map_err(|_| CliError::usage(format!("{name} is not UTF-8; write its value as text")))
}

/// Returns the directory that a variable such as `HOME` names. A relative path counts as unset.
pub(super) fn directory_variable(name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
