//! Process control for `run`: the command's process group, its descendants that have left the
//! group, signal forwarding, and the foreground group of the terminal.

use crate::cli::exit::{CliError, CliResult};
use crate::time::{Time, boot_now};
#[cfg(target_os = "linux")]
use std::fs;
use std::io::{self, IsTerminal};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

/// Signals that `run` forwards to its command.
const PASSED_ON: [libc::c_int; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];
/// Signals that end a process which does not handle them.
const ENDING: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
/// The maximum sleep of a thread that waits for a signal. Nothing depends on it.
const WAKE_EVERY: Duration = Duration::from_secs(60);
/// The interval between two checks for dead processes, and between two checks for pending signals
/// on systems without `sigtimedwait`.
const POLL: Duration = Duration::from_millis(10);
/// The maximum number of checks for dead processes after SIGKILL: a process that survives longer
/// hangs in the kernel.
const POLLS_MAX: usize = 500;

/// Blocked signals, which this process receives synchronously by [`Signals::next`].
pub(in crate::cli) struct Signals(libc::sigset_t);

/// A running command, with all processes that it has started.
pub(in crate::cli) struct Group {
    pid: libc::pid_t,
    /// The process group to which the terminal returns when the command stops or ends: the group
    /// `own` of [`Group::start`]. `None` if the command was not given the terminal.
    terminal_of: Option<libc::pid_t>,
    /// Whether the command's first process, the leader of its process group, has ended and been
    /// reaped. The kernel may then reuse its pid, also as the id of another process group.
    has_ended: bool,
    /// Whether the user has stopped the command at the terminal and not continued it yet.
    is_stopped: bool,
}

#[allow(unsafe_code)]
fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that its argument points to.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

impl Signals {
    /// Blocks the forwarded signals and SIGCHLD in this thread, and in threads that are created
    /// later.
    #[allow(unsafe_code)]
    pub(in crate::cli) fn take() -> io::Result<Self> {
        let mut set = empty_set();
        for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
            // SAFETY: the set is initialised, and the signal number is valid.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        let mut blocked = set;
        // SIGTTOU would stop this process when it changes the terminal's settings while it is not
        // in the foreground.
        // SAFETY: both sets are initialised; pthread_sigmask reads the mask, and a null pointer
        // requests no old one.
        let result = unsafe {
            libc::sigaddset(&raw mut blocked, libc::SIGTTOU);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, ptr::null_mut())
        };
        if result == 0 { Ok(Self(set)) } else { Err(io::Error::from_raw_os_error(result)) }
    }

    /// Does `work` on a thread of its own, and returns its result. A signal meanwhile that ends a
    /// process ends this one, once `abandon` was called.
    pub(in crate::cli) fn end_or<T: Send>(
        &self,
        abandon: impl FnOnce(),
        work: impl FnOnce() -> CliResult<T> + Send,
    ) -> CliResult<T> {
        let (send, done) = mpsc::channel();
        let failed = |error| CliError::system("no thread can be made", &error);
        thread::scope(|scope| {
            let work = move || {
                // The receive below can't end before the send.
                let _ = send.send(work());
                wake();
            };
            thread::Builder::new().spawn_scoped(scope, work).map_err(failed)?;
            loop {
                match done.try_recv() {
                    Ok(done) => return done,
                    Err(TryRecvError::Disconnected) => panic!("the work ended without a result"),
                    Err(TryRecvError::Empty) => {}
                }
                if let Some(signal) = self.next(WAKE_EVERY).filter(|signal| is_end(*signal)) {
                    abandon();
                    self.let_through();
                    kill(std::process::id().cast_signed(), signal);
                    std::process::exit(128 + signal);
                }
            }
        })
    }

    /// Unblocks the signals that [`Signals::take`] has blocked.
    #[allow(unsafe_code)]
    pub(super) fn let_through(&self) {
        // SAFETY: pthread_sigmask reads the mask, and a null pointer requests no old one.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.0, ptr::null_mut());
        }
    }

    /// Returns the next signal, if one arrives within `patience`.
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    pub(in crate::cli) fn next(&self, patience: Duration) -> Option<libc::c_int> {
        let patience = libc::timespec {
            tv_sec: patience.as_secs() as _,
            tv_nsec: libc::c_long::from(patience.subsec_nanos()),
        };
        // SAFETY: the set and the timeout outlive the call, and a null pointer requests no details
        // of the signal.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.0, ptr::null_mut(), &raw const patience) };
        (signal > 0).then_some(signal)
    }

    /// Returns the next signal, if one arrives within `patience`. The function polls, because this
    /// system has no `sigtimedwait`.
    #[cfg(not(target_os = "linux"))]
    #[allow(unsafe_code)]
    pub(in crate::cli) fn next(&self, patience: Duration) -> Option<libc::c_int> {
        let (mut left, mut pending) = (patience, empty_set());
        loop {
            // SAFETY: both sets outlive the calls, which fill `pending` and read it.
            let found = unsafe {
                libc::sigpending(&raw mut pending);
                let mut awaited = PASSED_ON.into_iter().chain([libc::SIGCHLD]);
                awaited.find(|&signal| libc::sigismember(&raw const pending, signal) == 1)
            };
            if found.is_some() {
                let mut signal = 0;
                // SAFETY: the set and `signal` outlive the call. A signal of the set is pending, so
                // sigwait returns at once.
                let result = unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
                return (result == 0).then_some(signal);
            }
            if left.is_zero() {
                return None;
            }
            let pause = left.min(POLL);
            thread::sleep(pause);
            left -= pause;
        }
    }
}

/// Makes the thread that waits for signals look around at once: SIGCHLD wakes it, for which it
/// waits anyway.
pub(in crate::cli) fn wake() {
    kill(std::process::id().cast_signed(), libc::SIGCHLD);
}

/// Whether a signal ends this process: one of those that ask for its end, and not ignored, as
/// `nohup` makes it.
#[allow(unsafe_code)]
pub(in crate::cli) fn is_end(signal: libc::c_int) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer changes nothing, and `now` outlives the call, which fills it; all bits
    // zero are a valid value as well.
    let handler = unsafe {
        libc::sigaction(signal, ptr::null(), now.as_mut_ptr());
        now.assume_init().sa_sigaction
    };
    ENDING.contains(&signal) && handler != libc::SIG_IGN
}

/// Makes the command start with all signals unblocked.
#[allow(unsafe_code)]
pub(super) fn unblock(command: &mut Command) {
    let none = empty_set();
    // SAFETY: the closure makes only a system call between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            Ok(())
        });
    }
}

impl Group {
    /// Starts the command in a process group of its own. The new group gets the terminal if the
    /// process group `own`, in which the shell has started `run`, is in the foreground.
    #[allow(unsafe_code)]
    pub(in crate::cli) fn start(mut command: Command, own: libc::pid_t) -> io::Result<Self> {
        // SAFETY: these calls take numbers and touch no memory.
        let has_terminal = unsafe {
            #[cfg(target_os = "linux")]
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
            io::stdin().is_terminal() && libc::tcgetpgrp(libc::STDIN_FILENO) == own
        };
        command.process_group(0);
        // SAFETY: the closure makes only system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // If this process (the supervisor) dies, the front process, which the shell has
                // started, kills the command. For the case that the front process is dead too,
                // PR_SET_PDEATHSIG makes the kernel kill at least the command's first process.
                #[cfg(target_os = "linux")]
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                if has_terminal {
                    libc::tcsetpgrp(libc::STDIN_FILENO, libc::getpid());
                }
                Ok(())
            });
        }
        unblock(&mut command);
        let child = command.spawn()?;
        let terminal_of = has_terminal.then_some(own);
        let pid = child.id().cast_signed();
        Ok(Self { pid, terminal_of, has_ended: false, is_stopped: false })
    }

    /// Sends a signal to the whole process group of the command.
    pub(in crate::cli) fn signal(&mut self, signal: libc::c_int) {
        if signal == libc::SIGCONT && std::mem::take(&mut self.is_stopped) {
            self.give_terminal();
        }
        if !self.has_ended {
            kill(-self.pid, signal);
        }
    }

    /// Reaps all children that have ended, and returns the exit status of the command if it is
    /// among them.
    #[allow(unsafe_code)]
    pub(super) fn reap(&mut self) -> Option<ExitStatus> {
        let mut ended = None;
        loop {
            let mut status = 0;
            let flags = libc::WNOHANG | libc::WUNTRACED;
            // SAFETY: `status` is a valid place to write to.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, flags) };
            if pid <= 0 {
                break;
            }
            if libc::WIFSTOPPED(status) {
                if pid == self.pid {
                    self.stop_with_it();
                }
            } else if pid == self.pid {
                ended = Some(ExitStatus::from_raw(status));
            }
        }
        if ended.is_some() {
            self.has_ended = true;
            self.take_terminal();
        }
        ended
    }

    /// Handles a stop of the command at the terminal: stops the front process too, and gives the
    /// terminal to the shell. When the shell continues the front process, the front process
    /// forwards SIGCONT. This process, the supervisor, keeps running, because it renews the lease.
    fn stop_with_it(&mut self) {
        let Some(own) = self.terminal_of else { return };
        self.is_stopped = true;
        self.take_terminal();
        kill(-own, libc::SIGSTOP);
    }

    #[allow(unsafe_code)]
    fn take_terminal(&self) {
        if let Some(own) = self.terminal_of {
            // SAFETY: the call takes two numbers and no pointers.
            unsafe { libc::tcsetpgrp(libc::STDIN_FILENO, own) };
        }
    }

    /// Makes the command's process group the foreground group of the terminal, if the shell has
    /// made the process group `own` the foreground group.
    #[allow(unsafe_code)]
    fn give_terminal(&self) {
        let Some(own) = self.terminal_of else { return };
        // SAFETY: the call takes two numbers and no pointers.
        unsafe {
            if libc::tcgetpgrp(libc::STDIN_FILENO) == own {
                libc::tcsetpgrp(libc::STDIN_FILENO, self.pid);
            }
        }
    }

    /// Returns the live processes that the command has started.
    #[cfg(target_os = "linux")]
    #[allow(clippy::unused_self)] // where there are no subreapers, the group is all that is known
    fn left(&self) -> Vec<libc::pid_t> {
        descendants()
    }

    /// Returns the command's process group as a negative number, if any process in it is alive. A
    /// process that has left the group is not found.
    #[cfg(not(target_os = "linux"))]
    #[allow(unsafe_code)]
    fn left(&self) -> Vec<libc::pid_t> {
        // SAFETY: the call takes two numbers, and signal 0 sends nothing.
        let lives = unsafe { libc::kill(-self.pid, 0) } == 0;
        if lives { vec![-self.pid] } else { Vec::new() }
    }

    /// Whether all processes that the command has started have ended.
    fn is_dead(&mut self) -> bool {
        self.reap();
        if cfg!(target_os = "linux") { is_childless() } else { self.left().is_empty() }
    }

    /// Ends the command's process group and all processes that have left it: sends SIGTERM first,
    /// and SIGKILL at `kill_at`. Returns whether all of them have ended, which a process does not
    /// if another user owns it or if it hangs in the kernel.
    pub(super) fn end_all(&mut self, kill_at: Time) -> bool {
        if self.is_dead() {
            return true;
        }
        self.signal(libc::SIGTERM);
        self.signal(libc::SIGCONT);
        for pid in self.left() {
            kill(pid, libc::SIGTERM);
            kill(pid, libc::SIGCONT);
        }
        // The clock decides, since a sleep may last much longer on a busy machine.
        while boot_now() < kill_at {
            if self.is_dead() {
                return true;
            }
            thread::sleep(POLL.min(kill_at.since(boot_now()).as_duration()));
        }
        for _ in 0..POLLS_MAX {
            if self.is_dead() {
                return true;
            }
            // SIGKILL is sent in each round, because the processes may have forked since the last
            // one.
            self.signal(libc::SIGKILL);
            for pid in self.left() {
                kill(pid, libc::SIGKILL);
            }
            thread::sleep(POLL);
        }
        self.is_dead()
    }
}

/// Whether this process has no children, including zombies. A subreaper without children has no
/// descendants either, because orphaned descendants become its children.
#[allow(unsafe_code)]
fn is_childless() -> bool {
    let mut found = MaybeUninit::uninit();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `found` is a valid place to write to, and is never read.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, found.as_mut_ptr(), flags) };
    result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD)
}

/// Kills all descendants of this process. Returns whether all of them have ended within `patience`.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn kill_descendants(patience: Duration) -> bool {
    for _ in 0..patience.as_millis() / POLL.as_millis() {
        for pid in descendants() {
            kill(pid, libc::SIGKILL);
        }
        // SAFETY: the null pointer requests no status.
        while unsafe { libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) } > 0 {}
        if is_childless() {
            return true;
        }
        thread::sleep(POLL);
    }
    false
}

/// Sends a signal to a process, or to a group (a negative number).
#[allow(unsafe_code)]
pub(in crate::cli) fn kill(pid: libc::pid_t, signal: libc::c_int) {
    // SAFETY: the call takes two numbers. An error is ignored, because a process that has ended
    // needs no signal.
    unsafe { libc::kill(pid, signal) };
}

/// The index of `num_threads`, field 20 of `/proc/PID/stat`, among the fields after the command
/// name.
#[cfg(target_os = "linux")]
const THREADS_FIELD: usize = 20 - 3;

/// Returns all live descendants of this process, including orphans, which a subreaper inherits.
#[cfg(target_os = "linux")]
fn descendants() -> Vec<libc::pid_t> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<libc::pid_t>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<_> = rest.split(' ').collect();
        let is_zombie = matches!(fields.first(), Some(&("Z" | "X")));
        // A process whose first thread has ended has the state of a zombie, although its other
        // threads may still run.
        let threads = fields.get(THREADS_FIELD).and_then(|field| field.parse::<usize>().ok());
        let is_dead = is_zombie && threads.is_none_or(|threads| threads < 2);
        let parent: Option<libc::pid_t> = fields.get(1).and_then(|field| field.parse().ok());
        if let (Some(parent), false) = (parent, is_dead) {
            parents.push((pid, parent));
        }
    }
    let mut found = vec![std::process::id().cast_signed()];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// Starts a process whose first thread ends, while a second thread of the same process
    /// continues. A copy of this process would not do: another thread may hold a lock of libc
    /// when it is made, and the copy would wait for it for ever.
    fn headless() -> std::process::Child {
        let program = format!(
            "import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).syscall({}, 0)",
            libc::SYS_exit
        );
        Command::new("python3").arg("-c").arg(program).spawn().expect("python3 is installed")
    }

    #[test]
    fn a_process_lives_as_long_as_any_of_its_threads() {
        let mut program = headless();
        let child = program.id() as libc::pid_t;
        let stat = || fs::read_to_string(format!("/proc/{child}/stat")).expect("not reaped");
        while !stat().contains(") Z ") {
            thread::yield_now();
        }
        assert!(descendants().contains(&child), "{}", stat());
        kill(child, libc::SIGKILL);
        program.wait().expect("it ends");
        assert!(!descendants().contains(&child));
    }
}
