//! Types of command-line arguments that several commands take: durations and addresses.
//!
//! The parsing of lock names, and the error for an invalid one.
//!
//! Defaults for options that are not given, from the environment: host, user, directories, server.

use super::exit::{CliError, CliResult};
use crate::base::said;
use crate::engine::values::lease::{TermError, parse_span};
use crate::engine::{ClientId, Grace, LockName, NameError, Seats, Ttl};
use crate::fuse::lock_fs::client_of_user;
use crate::time::Span;
use kernel::machine_facts::is_root;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A duration argument of the command line. Help texts show its default as people write it
/// (`1m30s`).
#[derive(Debug, Clone, Copy)]
pub(super) struct DurationArg<T>(pub(super) T);

impl fmt::Display for DurationArg<Ttl> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.span().fmt(f)
    }
}

impl fmt::Display for DurationArg<Grace> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.span().fmt(f)
    }
}

/// Parses a duration as people write it: `1h30m`, `1h 30m`, `1d`, or a bare number of seconds.
pub(super) fn span(text: &str) -> Result<Span, String> {
    parsed_span(text).map_err(|error| match error {
        TermError::NotADuration => error.to_string(),
        TermError::TooShort => "a duration is not negative; write it as 30s or 1h30m".to_owned(),
        TermError::TooLong => "a duration is at most 584 years".to_owned(),
    })
}

fn parsed_span(text: &str) -> Result<Span, TermError> {
    if !text.starts_with('+') && text.parse::<f64>().is_ok_and(f64::is_finite) {
        return parse_span(&format!("{text}s"));
    }
    let words: Vec<_> = text.split_whitespace().collect();
    // Each word is a duration of its own, so that `1 30m` is not read as 130 minutes.
    for word in &words {
        parse_span(word)?;
    }
    parse_span(&words.concat())
}

/// Parses a number of seats.
pub(super) fn seats(text: &str) -> Result<Seats, String> {
    let number = text.parse().map_err(|_| "write how many may hold the lock, such as 3")?;
    Seats::new(number)
}

/// Parses a ttl as people write it.
pub(super) fn ttl(text: &str) -> Result<Ttl, TermError> {
    Ttl::new(parsed_span(text)?)
}

/// Parses a length of time that is no ttl but has the same bounds.
#[cfg(target_os = "linux")]
pub(super) fn length(text: &str) -> Result<Ttl, String> {
    use crate::engine::values::lease::{TTL_MAX, TTL_MIN};
    ttl(text).map_err(|error| match error {
        TermError::NotADuration => error.to_string(),
        TermError::TooShort => format!("the shortest time is {TTL_MIN}"),
        TermError::TooLong => format!("the longest time is {TTL_MAX}"),
    })
}

/// Parses a grace period as people write it.
pub(super) fn grace(text: &str) -> Result<Grace, TermError> {
    Grace::new(parsed_span(text)?)
}

/// Parses a ttl that has a default.
pub(super) fn default_ttl(text: &str) -> Result<DurationArg<Ttl>, TermError> {
    ttl(text).map(DurationArg)
}

/// Parses a grace that has a default.
pub(super) fn default_grace(text: &str) -> Result<DurationArg<Grace>, TermError> {
    grace(text).map(DurationArg)
}

/// Parses the address of `--listen`. The error message of a wrong address shows how to write it.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let next = match text.rsplit_once(':') {
            _ if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() => {
                let ip = text.trim_matches(['[', ']']);
                let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
                format!("write {ip}:8080, with a port")
            }
            None if text.parse::<u16>().is_ok() => open_to(text),
            Some(("" | "*", port)) if port.parse::<u16>().is_ok() => open_to(port),
            Some(("localhost", port)) if port.parse::<u16>().is_ok() => {
                format!("write 127.0.0.1:{port}")
            }
            Some((host, port)) if port.parse::<u16>().is_ok() && !host.contains(':') => {
                format!("a name such as '{host}' is not looked up; write the IP address")
            }
            _ => "write it like 127.0.0.1:8080 or [::1]:8080".to_owned(),
        };
        format!("not an IP:PORT address; {next}")
    })
}

/// The sockets of a server.
#[derive(Debug, Clone, Default)]
pub(super) struct ListenArg {
    /// The address of the TCP socket.
    pub(super) tcp: Option<SocketAddr>,
    /// The path of the Unix socket.
    pub(super) socket: Option<PathBuf>,
}

/// Parses the argument of `--listen`: a TCP address, `unix:PATH`, or both with a comma between.
pub(super) fn listen_at(text: &str) -> Result<ListenArg, String> {
    let mut listen = ListenArg::default();
    for part in text.split(',') {
        let is_second = match part.strip_prefix("unix:") {
            Some("") => return Err("name a file, such as unix:/run/latchfs.sock".to_owned()),
            Some(path) => {
                let path = std::path::absolute(path).map_err(|error| said(&error))?;
                listen.socket.replace(path).is_some()
            }
            None => listen.tcp.replace(address(part)?).is_some(),
        };
        if is_second {
            return Err("write one IP:PORT and one unix:PATH at most".to_owned());
        }
    }
    Ok(listen)
}

/// Returns the hint for an argument that is a port without an address: which address to write to
/// serve only this machine, and which to serve others too.
fn open_to(port: &str) -> String {
    format!("write 127.0.0.1:{port} for this machine alone, 0.0.0.0:{port} for others as well")
}

/// Parses an argument as the name of a lock on a server.
pub(super) fn parsed(given: &OsStr) -> CliResult<LockName> {
    LockName::parse_bytes(given.as_bytes()).map_err(|error| not_a_name(given, error))
}

/// Returns the error for an invalid name: the name, the reason, and a correction.
pub(super) fn not_a_name(given: &OsStr, error: NameError) -> CliError {
    let next = match error {
        NameError::Empty => "write one slash between parts, and none around them: team/build",
        NameError::TooLong => "choose a shorter one",
        NameError::NotUtf8 => "write it in UTF-8",
        NameError::Control => "leave out line ends, tabs and the like",
        NameError::Invisible => "write it by characters that can be seen",
        NameError::Dots => "write it whole, as from the top of a mount: team/build",
        NameError::Reserved => "let it begin otherwise",
    };
    CliError::usage(format!("'{}' is not the name of a lock: {error}; {next}", given.display()))
}

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
    own_state_dir().ok_or_else(|| {
        CliError::usage("there is no HOME to keep the state in; name a place by --state DIR")
    })
}

/// Returns the data directory of a server of this user.
pub(super) fn default_data_dir() -> CliResult<PathBuf> {
    if let Some(dir) = variable("LATCHFS_DATA") {
        return absolute(Path::new(&dir));
    }
    own_state_dir().map(|state| state.join("data")).ok_or_else(|| {
        CliError::usage(
            "there is no HOME to keep the locks in; name a place by --data DIR, or keep nothing by \
             --memory",
        )
    })
}

/// Returns the directory in a data directory with the certificate authority of a server that other
/// machines join.
pub(super) fn home_in(data: &Path) -> PathBuf {
    data.join("home")
}

/// Returns the Unix socket in the data directory of such a server.
pub(super) fn socket_in(data: &Path) -> PathBuf {
    data.join("socket")
}

fn own_state_dir() -> Option<PathBuf> {
    if is_root() {
        return Some("/var/lib/latchfs".into());
    }
    let state = directory_variable("XDG_STATE_HOME")
        .or_else(|| Some(directory_variable("HOME")?.join(".local/state")));
    state.map(|state| state.join("latchfs"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_people_do() {
        let millis = |text| span(text).map(Span::as_millis);
        for (text, wanted) in [
            ("3", 3_000),
            ("1.5", 1_500),
            ("0", 0),
            ("1m30s", 90_000),
            ("1h 30m", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(millis(text), Ok(wanted), "{text}");
        }
        for wrong in ["", " ", "1 30m", "1 s", "soon", "inf", "NaN", "1e3", "+3"] {
            assert_eq!(parsed_span(wrong), Err(TermError::NotADuration), "{wrong:?}");
        }
        assert_eq!(parsed_span("-3"), Err(TermError::TooShort));
        assert_eq!(parsed_span("99999999999999999999"), Err(TermError::TooLong));
        for wrong in ["-3", "99999999999999999999"] {
            assert!(span(wrong).is_err_and(|why| !why.contains("ttl")), "{wrong}");
        }
        for (wrong, why) in [
            ("500ms", "the shortest time is 1s"),
            ("25h", "the longest time is "),
            ("soon", "a duration reads like 30s, 1m30s or 1.5h"),
        ] {
            assert!(length(wrong).is_err_and(|said| said.starts_with(why)), "{wrong}");
        }
        assert!(ttl("0").is_err() && grace("0").is_ok() && ttl("30").is_ok());
    }

    #[test]
    fn an_address_is_an_ip_and_a_port() {
        for good in ["127.0.0.1:8080", "[::1]:0", "0.0.0.0:65535"] {
            assert_eq!(address(good).map(|address| address.to_string()), Ok(good.to_owned()));
        }
        for (wrong, next) in [
            ("localhost:8080", "write 127.0.0.1:8080"),
            (":8080", "write 127.0.0.1:8080 for this machine alone, 0.0.0.0:8080"),
            ("8080", "write 127.0.0.1:8080 for"),
            ("*:80", "0.0.0.0:80 for others"),
            ("10.0.0.1", "write 10.0.0.1:8080"),
            ("::1", "write [::1]:8080"),
            ("[::1]", "write [::1]:8080"),
            ("box.local:8080", "'box.local' is not looked up"),
            ("nonsense", "like 127.0.0.1:8080 or [::1]:8080"),
            ("127.0.0.1:99999", "like 127.0.0.1:8080"),
            ("", "like 127.0.0.1:8080"),
        ] {
            let said = address(wrong).expect_err(wrong);
            assert!(said.starts_with("not an IP:PORT address; ") && said.contains(next), "{said}");
        }
    }

    #[test]
    fn a_server_listens_at_an_address_and_at_a_socket() {
        let both = listen_at("127.0.0.1:80,unix:/run/a.sock").expect("both");
        assert!(both.tcp.is_some() && both.socket == Some(PathBuf::from("/run/a.sock")));
        let socket = listen_at("unix:a.sock").expect("a socket");
        assert!(socket.tcp.is_none() && socket.socket.is_some_and(|path| path.is_absolute()));
        for (wrong, why) in [
            ("unix:", "name a file"),
            ("unix:a,unix:b", "at most"),
            ("127.0.0.1:80,127.0.0.1:81", "at most"),
            ("127.0.0.1:80,", "not an IP:PORT"),
        ] {
            assert!(listen_at(wrong).is_err_and(|said| said.contains(why)), "{wrong}");
        }
    }
}
