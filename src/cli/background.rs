//! Runs this program again as a daemon without a terminal, and waits until it is ready: for `mount
//! --background`, and for the locks of a user. The watcher of an agent's session is not waited for.
//!
//! The daemon reports through its standard output, a pipe that its parent reads: the lines to
//! print, then [`READY`]. If the pipe ends without that word, the start has failed, and the lines
//! are the error messages.

use crate::base::said;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The hidden option that tells the daemon that its parent process waits for a report.
pub(super) const DETACHED: &str = "--detached";
/// The last line of the daemon's report to its parent: all mounts are usable.
pub(in crate::cli) const READY: &str = "ready";
/// The log file of a daemon without a terminal, in its state directory.
const LOG: &str = "latchfs.log";

/// Starts the daemon with this process's own arguments, and returns when it is ready.
pub(in crate::cli) fn start(state: Option<&Path>) -> CliResult {
    start_with(&std::env::args_os().skip(1).collect::<Vec<_>>(), state)
}

/// Starts the daemon with other arguments, and returns when it is ready.
pub(in crate::cli) fn start_with(args: &[OsString], state: Option<&Path>) -> CliResult {
    let log = state.map(open_log).transpose()?;
    let (child, report) = report_of(daemon(args, log))?;
    match report.strip_suffix(&format!("{READY}\n")) {
        Some(lines) => output::write(lines),
        None => Err(never_ready(child, &report, state)),
    }
}

/// Starts a daemon that belongs to no terminal, job or command, and returns when it is ready: it
/// has no environment, no open file and no parent of the caller's.
pub(in crate::cli) fn start_apart(args: &[OsString], log_dir: &Path) -> CliResult {
    let log = Some(open_log(log_dir)?);
    let mut command = daemon(args, log);
    command.env_clear();
    leave_everything(&mut command);
    let (mut child, report) = report_of(command)?;
    if report.ends_with(&format!("{READY}\n")) {
        // The child has only started the daemon, and has ended.
        return child.wait().map(drop).map_err(|error| not_started(&error));
    }
    Err(never_ready(child, &report, Some(log_dir)))
}

/// Starts a daemon with this process's environment, and without an open file or a parent of it.
/// Does not wait until the daemon is ready.
pub(in crate::cli) fn start_aside(args: &[OsString]) -> CliResult {
    let mut command = daemon(args, None);
    command.stdout(Stdio::null());
    leave_everything(&mut command);
    let started = command.spawn().and_then(|mut child| child.wait());
    started.map(drop).map_err(|error| not_started(&error))
}

fn not_started(error: &io::Error) -> CliError {
    CliError::system("the daemon can't be started in the background", error)
}

/// Starts a daemon. Returns it with what it reports until it is ready, or has ended.
fn report_of(mut command: Command) -> CliResult<(Child, String)> {
    let mut child = command.spawn().map_err(|error| not_started(&error))?;
    let mut report = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut report)
            .map_err(|error| CliError::system("the daemon's report can't be read", &error))?;
    }
    Ok((child, report))
}

/// Returns the command that starts a daemon, in a session of its own.
#[allow(unsafe_code)]
fn daemon(args: &[OsString], log: Option<File>) -> Command {
    // The child executes the file that runs now, even if another version has been installed under
    // its name since.
    #[cfg(target_os = "linux")]
    let mut command = Command::new("/proc/self/exe");
    #[cfg(not(target_os = "linux"))]
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "latchfs".into()));
    command.arg0(std::env::args_os().next().unwrap_or_else(|| "latchfs".into()));
    // After a '--' it would be the name of a directory, and each daemon would start another one.
    let end = args.iter().position(|word| word == "--").unwrap_or(args.len());
    command.args(&args[..end]).arg(DETACHED).args(&args[end..]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(log.map_or_else(Stdio::null, Stdio::from));
    let own_session = || {
        // SAFETY: setsid takes no arguments, and may be called after fork.
        match unsafe { libc::setsid() } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(own_session) };
    command
}

/// The highest descriptor of the caller that is closed where the system can't close all at once.
const DESCRIPTORS_CLOSED: libc::c_int = 1_024;

/// Makes a program start as the child of a process that ends at once, without the open files of
/// this process.
#[allow(unsafe_code)]
fn leave_everything(command: &mut Command) {
    let leave = || {
        let first = libc::STDERR_FILENO + 1;
        // SAFETY: the process has one thread, and all calls take numbers.
        unsafe {
            match libc::fork() {
                -1 => return Err(io::Error::last_os_error()),
                0 => {}
                _ => libc::_exit(0),
            }
            libc::umask(0o077);
            #[cfg(target_os = "linux")]
            let at_once = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
            #[cfg(target_os = "linux")]
            if libc::syscall(libc::SYS_close_range, first, libc::c_int::MAX, at_once) == 0 {
                return Ok(());
            }
            for fd in first..DESCRIPTORS_CLOSED {
                libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(leave) };
}

fn open_log(state: &Path) -> CliResult<File> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(state);
    let path = state.join(LOG);
    let open = |()| OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    made.and_then(open).map_err(|error| {
        CliError::unavailable(format!(
            "the log {} of a daemon in the background can't be written: {}; name another state \
             directory",
            path.display(),
            said(&error)
        ))
    })
}

/// Prints the messages of a daemon that ended before it was ready, and returns an error with its
/// exit code.
fn never_ready(mut child: Child, report: &str, state: Option<&Path>) -> CliError {
    let code = child.wait().ok().and_then(|status| status.code());
    for line in report.lines() {
        output::say(line);
    }
    match code.and_then(|code| Exit::of_code(u8::try_from(code).ok()?)) {
        Some(exit) if !report.is_empty() => CliError::Silent(exit),
        _ => CliError::unavailable(match state {
            Some(state) => {
                format!("the daemon ended at once; see {}", state.join(LOG).display())
            }
            None => "the daemon ended at once; see why with --foreground".to_owned(),
        }),
    }
}

/// In the daemon: sets the name that `ps` shows, which would otherwise be `exe`.
pub(in crate::cli) fn take_name() {
    // An error is ignored, because the name is only displayed.
    let _ = std::fs::write("/proc/self/comm", "latchfs");
}

/// In the daemon: tells a service manager (systemd with `Type=notify`) that all mounts are usable.
pub(in crate::cli) fn notify_manager() {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send_to_manager(socket.as_bytes(), b"READY=1")
    {
        log::warn!("the service manager can't be told that all is mounted: {}", said(&error));
    }
}

/// Tells the service manager that has started this command why it fails, if one has.
pub(in crate::cli) fn tell_manager_why(failure: &CliError) {
    if let (CliError::Said(_, why), Some(socket)) = (failure, std::env::var_os("NOTIFY_SOCKET")) {
        let status = format!("STATUS={}", output::harmless(why));
        // The log has the error as well.
        let _ = send_to_manager(socket.as_bytes(), status.as_bytes());
    }
}

/// The watchdog of a daemon, which ends when this value is dropped.
#[cfg(target_os = "linux")]
pub(in crate::cli) struct Watchdog {
    _end: Option<std::sync::mpsc::Sender<()>>,
}

/// In the daemon: reports regularly to a service manager that wants it (systemd with
/// `WatchdogSec=`) that the daemon works, as long as `answers` returns true. The service manager
/// ends a daemon that does not report.
#[cfg(target_os = "linux")]
pub(in crate::cli) fn start_watchdog(
    answers: impl Fn() -> bool + Send + 'static,
) -> CliResult<Watchdog> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let limit = number("WATCHDOG_USEC").filter(|limit| is_ours && *limit > 0);
    let (Some(limit), Some(socket)) = (limit, std::env::var_os("NOTIFY_SOCKET")) else {
        return Ok(Watchdog { _end: None });
    };
    // Three reports in the time in which one is due, so that a slow one does no harm.
    let every = std::time::Duration::from_micros(limit / 3);
    let (end, ended) = std::sync::mpsc::channel();
    let report = move || {
        let mut is_silent = false;
        while ended.recv_timeout(every) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let reported = if answers() {
                send_to_manager(socket.as_bytes(), b"WATCHDOG=1").map_err(|error| said(&error))
            } else {
                Err("a thread does not answer".to_owned())
            };
            match reported {
                Ok(()) => is_silent = false,
                Err(why) if !std::mem::replace(&mut is_silent, true) => {
                    log::error!("the watchdog gets no reports: {why}");
                }
                Err(_) => {}
            }
        }
    };
    let spawned = std::thread::Builder::new().name("watchdog".to_owned()).spawn(report);
    spawned.map_err(|error| CliError::system("a thread can't be started", &error))?;
    Ok(Watchdog { _end: Some(end) })
}

fn send_to_manager(socket: &[u8], text: &[u8]) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(name) => SocketAddr::from_abstract_name(name)?,
        #[cfg(not(target_os = "linux"))]
        Some(_) => return Err(io::ErrorKind::Unsupported.into()),
        None => SocketAddr::from_pathname(OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?.send_to_addr(text, &address).map(|_| ())
}

/// In the daemon: ends the report to the waiting parent with [`READY`], and detaches from the
/// terminal.
#[allow(unsafe_code)]
pub(in crate::cli) fn ready() -> CliResult {
    output::line(READY)?;
    let away = |error: io::Error| CliError::system("the daemon can't leave its terminal", &error);
    // The daemon leaves its working directory, which it would otherwise keep busy.
    std::env::set_current_dir("/").map_err(away)?;
    let null = OpenOptions::new().write(true).open("/dev/null").map_err(away)?;
    // SAFETY: both arguments are open descriptors. The call closes the pipe behind standard output.
    match unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&null), libc::STDOUT_FILENO) } {
        -1 => Err(away(io::Error::last_os_error())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_sent_to_the_service_manager() {
        let name = format!("latchfs-test-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let manager = UnixDatagram::bind_addr(&address).expect("a fresh name");
        send_to_manager(format!("@{name}").as_bytes(), b"READY=1").expect("it listens");
        let mut said = [0; 32];
        let length = manager.recv(&mut said).expect("something was sent");
        assert_eq!(&said[..length], b"READY=1");
        assert!(send_to_manager(b"/no/such/socket", b"READY=1").is_err());
    }
}
