//! Facts about processes, from `/proc`: which of them have a file of the view open for writing, and
//! which are their children.
//!
//! The kernel may wait for the answer to a close of a program that is executing another one (exec),
//! and then blocks reads of most files in `/proc/PID`, and of the links in `/proc/PID/fd`. The
//! files `status`, `fdinfo`, `task` and `children` and the modes of these links are safe to read;
//! `stat` only if the process is ending.

use super::close_rule::{OpenState, ProcessInstance, Processes};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::OnceLock;

/// The maximum number of descriptors that are looked at for one close, of all processes. With more
/// of them, the file counts as open for writing.
const DESCRIPTORS_MAX: usize = 2_048;
/// The maximum number of threads whose children are looked for at one close. With more of them, the
/// file counts as open for writing.
const THREADS_MAX: usize = 1_024;
/// The number of descriptors from which on the modes of all are looked at first: that takes a
/// quarter of the time, and most descriptors of large programs are for reading.
const MANY_DESCRIPTORS: usize = 32;
/// How often the children of a process are listed until two lists agree.
const CHILD_LISTS_MAX: usize = 8;

/// Whether the kernel lists the children of a process. (Few are built without that.)
static HAS_CHILD_LISTS: OnceLock<bool> = OnceLock::new();

/// The state of a thread, as `/proc/TID/status` shows it.
struct ThreadStatus {
    process: u32,
    parent: u32,
    /// Whether the thread has closed all its descriptors because it is ending.
    is_ending: bool,
}

/// The names in a directory of `/proc`.
struct Names {
    dir: Dir,
    numbers: Vec<u32>,
}

impl Names {
    /// Reads the names of a directory that are numbers.
    fn read(path: &str) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut dir = Dir::new(rustix::fs::openat(CWD, path, flags, Mode::empty())?)?;
        let mut numbers = Vec::new();
        while let Some(entry) = dir.read() {
            numbers.extend(entry?.file_name().to_str().ok().and_then(number_of));
        }
        Ok(Self { dir, numbers })
    }
}

fn number_of(text: &str) -> Option<u32> {
    text.parse().ok()
}

/// Whether an error of a read in `/proc` says that the process, thread or descriptor is gone.
fn is_gone(error: Errno) -> bool {
    error == Errno::NOENT || error == Errno::SRCH
}

/// Returns what the first read of a file in `/proc` yields. The name of a program, which some of
/// these files show, may hold any bytes.
fn first_read(dir: BorrowedFd<'_>, path: &str) -> Result<String, Errno> {
    let file = rustix::fs::openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = [0; 4_096];
    let count = rustix::io::read(&file, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

/// Returns the whole text of a file in `/proc`.
fn read_all(path: &str) -> Result<String, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(CWD, path, flags, Mode::empty())?);
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(text)
}

/// Returns the field of a text that has one in each line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn status_of(tid: u32) -> Option<ThreadStatus> {
    let text = first_read(CWD, &format!("/proc/{tid}/status")).ok()?;
    let number = |name| field(&text, name)?.parse::<u32>().ok();
    Some(ThreadStatus {
        process: number("Tgid:")?,
        parent: number("PPid:")?,
        is_ending: number("FDSize:") == Some(0),
    })
}

/// Returns the process of a thread that still runs.
pub(in crate::guard::view) fn process_if_running(tid: u32) -> Option<u32> {
    status_of(tid).map(|status| status.process)
}

/// Whether the process of a thread has the node `ino` open, or may have.
pub(in crate::guard::view) fn may_have_open(tid: u32, ino: u64) -> bool {
    ProcessScan { wants_writable: false, ..ProcessScan::at(ino) }.table(tid) == OpenState::Open
}

/// A look at the processes that may have the node of a file open.
pub(in crate::guard::view) struct ProcessScan {
    ino: u64,
    wants_writable: bool,
    descriptors_left: usize,
    threads_left: usize,
}

impl ProcessScan {
    /// Begins a look for programs that have the node `ino` open for writing.
    pub(in crate::guard::view) const fn at(ino: u64) -> Self {
        Self {
            ino,
            wants_writable: true,
            descriptors_left: DESCRIPTORS_MAX,
            threads_left: THREADS_MAX,
        }
    }

    /// Looks at the descriptors of a thread. Returns `None` if it has none.
    fn descriptors(&mut self, tid: u32) -> Option<OpenState> {
        let names = match Names::read(&format!("/proc/{tid}/fdinfo")) {
            Ok(names) => names,
            Err(error) if is_gone(error) => return None,
            // A process whose descriptors can't be read may have the file open.
            Err(_) => return Some(OpenState::Open),
        };
        let count = names.numbers.len();
        let Some(left) = self.descriptors_left.checked_sub(count) else {
            return Some(OpenState::Open);
        };
        self.descriptors_left = left;
        let Ok(infos) = names.dir.fd() else { return Some(OpenState::Open) };
        let is_open = |number: &u32| {
            let is_candidate = count < MANY_DESCRIPTORS || self.is_wanted(tid, *number);
            is_candidate && self.is_it(infos, *number)
        };
        let is_open = names.numbers.iter().any(is_open);
        (count > 0).then_some(if is_open { OpenState::Open } else { OpenState::NotOpen })
    }

    /// Whether a descriptor is of the wanted kind, by the mode of its link.
    fn is_wanted(&self, tid: u32, number: u32) -> bool {
        let link = format!("/proc/{tid}/fd/{number}");
        match rustix::fs::statat(CWD, link, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => !self.wants_writable || found.st_mode & libc::S_IWUSR != 0,
            Err(error) => !is_gone(error),
        }
    }

    /// Whether a descriptor is of the node, and of the wanted kind.
    fn is_it(&self, infos: BorrowedFd<'_>, number: u32) -> bool {
        let text = match first_read(infos, &number.to_string()) {
            Ok(text) => text,
            Err(error) => return !is_gone(error),
        };
        let ino = field(&text, "ino:").and_then(|ino| ino.parse::<u64>().ok());
        let flags = field(&text, "flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
        let is_writable = flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY);
        // Before Linux 5.14 the number of the inode is not shown.
        ino.is_none_or(|ino| ino == self.ino) && (is_writable || !self.wants_writable)
    }

    /// Returns the children of a process by a look at all processes.
    fn children_by_parent(&mut self, process: u32) -> Option<Vec<u32>> {
        let all = Names::read("/proc").ok()?.numbers;
        self.threads_left = self.threads_left.checked_sub(all.len())?;
        let is_child = |pid: &u32| status_of(*pid).is_some_and(|status| status.parent == process);
        Some(all.into_iter().filter(is_child).collect())
    }

    /// Returns the threads of a process. One call answers for a process with a single thread.
    fn threads(&mut self, process: u32) -> Result<Vec<u32>, Errno> {
        let path = format!("/proc/{process}/task");
        // Two links, and one for each thread.
        let threads = match rustix::fs::stat(&path)?.st_nlink {
            3 => vec![process],
            _ => Names::read(&path)?.numbers,
        };
        self.threads_left = self.threads_left.checked_sub(threads.len()).ok_or(Errno::AGAIN)?;
        Ok(threads)
    }

    /// Returns the processes that the threads of a process have started. The children of a thread
    /// that ends go to the first thread, which is therefore read last.
    fn list_children(&mut self, process: u32) -> Result<Vec<u32>, Errno> {
        let mut children = Vec::new();
        for thread in self.threads(process)?.into_iter().rev() {
            match read_all(&format!("/proc/{process}/task/{thread}/children")) {
                Ok(text) => children.extend(text.split_whitespace().filter_map(number_of)),
                Err(error) if is_gone(error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(children)
    }
}

impl Processes for ProcessScan {
    fn process_of(&mut self, tid: u32) -> Option<u32> {
        process_if_running(tid)
    }

    fn table(&mut self, tid: u32) -> OpenState {
        if let Some(table) = self.descriptors(tid) {
            return table;
        }
        let Some(status) = status_of(tid) else { return OpenState::NotOpen };
        if !status.is_ending {
            return OpenState::NotOpen;
        }
        // The first thread of a process may end before the others, which have the descriptors.
        let threads = self.threads(status.process).unwrap_or_default();
        let runs = |other: &u32| status_of(*other).is_some_and(|status| !status.is_ending);
        match threads.into_iter().filter(|other| *other != tid).find(runs) {
            Some(other) => self.descriptors(other).unwrap_or(OpenState::NotOpen),
            None => OpenState::Ending,
        }
    }

    fn is_killed(&mut self, tid: u32) -> bool {
        let text = first_read(CWD, &format!("/proc/{tid}/stat")).unwrap_or_default();
        // The fields after the program's name, which ends with the last parenthesis, begin with the
        // third; the exit code is the 52nd.
        let fields = text.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
        let code = fields.split_whitespace().nth(49).and_then(|code| code.parse::<i32>().ok());
        code.is_some_and(|code| code & 0x7f != 0)
    }

    /// The kernel leaves processes out of a list if one that it has just listed ends meanwhile. The
    /// next list then lacks that one, so two lists that agree are complete.
    fn children(&mut self, process: u32) -> Option<Vec<u32>> {
        if !HAS_CHILD_LISTS.get_or_init(|| Path::new("/proc/thread-self/children").exists()) {
            return self.children_by_parent(process);
        }
        let mut before = Vec::new();
        for _ in 0..CHILD_LISTS_MAX {
            let children = match self.list_children(process) {
                Ok(children) => children,
                Err(error) if is_gone(error) => return Some(Vec::new()),
                Err(_) => return None,
            };
            if children == before {
                return Some(children);
            }
            before = children;
        }
        None
    }

    /// The kernel gives each process a new node in `/proc`. It may drop the node of a process that
    /// runs and make another one, so that the same process may have two numbers.
    fn instance(&mut self, pid: u32) -> Option<ProcessInstance> {
        let found = rustix::fs::stat(format!("/proc/{pid}")).ok()?;
        Some(ProcessInstance { pid, number: found.st_ino })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::fs::MetadataExt as _;
    use std::process::{Child, Command, Stdio};

    /// Starts a program in a process of its own, since the other tests of this one have many open
    /// files, and waits for its first line.
    fn start(program: &str, arguments: &[&str]) -> (Child, impl FnMut() + use<>) {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it is there");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut input = child.stdin.take().expect("piped");
        lines.next().expect("it writes").expect("a line");
        (child, move || {
            input.write_all(b"\n").expect("it reads");
            lines.next().expect("it writes").expect("a line");
        })
    }

    fn table(ino: u64, tid: u32) -> OpenState {
        ProcessScan::at(ino).table(tid)
    }

    #[test]
    fn a_writable_descriptor_of_a_process_is_found() {
        let path = std::env::temp_dir().join(format!("latchfs-close-{}", std::process::id()));
        let ino = File::create(&path).and_then(|file| file.metadata()).expect("a file").ino();
        let script = "exec 8>> \"$0\"; echo; read _; exec 8>&- 9< \"$0\"; echo; read _";
        let (mut shell, mut next) = start("sh", &["-c", script, path.to_str().expect("text")]);
        assert_eq!(table(ino, shell.id()), OpenState::Open);
        next();
        assert_eq!(table(ino, shell.id()), OpenState::NotOpen, "it may read only");
        assert!(may_have_open(shell.id(), ino));
        assert_eq!(table(ino, u32::MAX - 1), OpenState::NotOpen, "there is no such process");
        drop(next);
        shell.wait().expect("our child");
        fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn one_descriptor_of_many_is_found_and_too_many_count_as_open() {
        let path = std::env::temp_dir().join(format!("latchfs-many-{}", std::process::id()));
        let ino = File::create(&path).and_then(|file| file.metadata()).expect("a file").ino();
        let script = "
import os, sys, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (6000, 6000))
fds = [os.open('/dev/null', os.O_RDONLY) for _ in range(900)]
fd = os.open(sys.argv[1], os.O_WRONLY)
print(flush=True); input()
os.close(fd)
print(flush=True); input()
fds += [os.open('/dev/null', os.O_RDONLY) for _ in range(4000)]
print(flush=True); input()";
        let arguments = ["-c", script, path.to_str().expect("text")];
        let (mut python, mut next) = start("/usr/bin/python3", &arguments);
        assert_eq!(table(ino, python.id()), OpenState::Open);
        next();
        assert_eq!(table(ino, python.id()), OpenState::NotOpen);
        next();
        assert_eq!(table(ino, python.id()), OpenState::Open, "too many");
        python.kill().expect("it runs");
        python.wait().expect("our child");
        fs::remove_file(&path).expect("it is there");
    }

    /// The children of two threads, one of which ends.
    #[test]
    fn the_children_of_all_threads_of_a_process_are_found() {
        let script = "
import os, subprocess, threading
children = [subprocess.Popen(['sleep', '60'])]
def other():
    children.append(subprocess.Popen(['sleep', '60']))
    ready.wait(); over.wait()
ready, over = threading.Barrier(2), threading.Barrier(2)
thread = threading.Thread(target=other); thread.start(); ready.wait()
print(*[child.pid for child in children], flush=True); input()
over.wait(); thread.join()
print(flush=True); input()
for child in children: child.kill(); child.wait()
print(flush=True)";
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = command.spawn().expect("it is there");
        let mut lines = BufReader::new(python.stdout.take().expect("piped")).lines();
        let mut input = python.stdin.take().expect("piped");
        let mut line = || lines.next().expect("it writes").expect("a line");
        let mut expected: Vec<u32> = line().split(' ').filter_map(number_of).collect();
        expected.sort_unstable();
        let sorted = |children: Option<Vec<u32>>| {
            let mut children = children.expect("listed");
            children.sort_unstable();
            children
        };
        for _ in 0..2 {
            let (mut scan, pid) = (ProcessScan::at(0), python.id());
            assert_eq!(sorted(scan.children(pid)), expected);
            assert_eq!(sorted(scan.children_by_parent(pid)), expected);
            input.write_all(b"\n").expect("it reads");
            line();
        }
        input.write_all(b"\n").ok();
        python.wait().expect("our child");
        assert_eq!(ProcessScan::at(0).children(u32::MAX - 1), Some(Vec::new()));
    }

    #[test]
    fn an_instance_is_one_process() {
        let mut scan = ProcessScan::at(0);
        let start = || Command::new("sleep").arg("60").spawn().expect("it is there");
        let (mut one, mut two) = (start(), start());
        let first = scan.instance(one.id()).expect("it runs");
        assert_eq!(scan.instance(one.id()), Some(first));
        assert_ne!(scan.instance(two.id()).map(|other| other.number), Some(first.number));
        for child in [&mut one, &mut two] {
            child.kill().expect("it runs");
            child.wait().expect("our child");
        }
        assert_eq!(scan.instance(first.pid), None);
    }

    #[test]
    fn too_many_threads_count_as_unknown_children() {
        let other = std::thread::spawn(std::thread::park);
        let mut scan = ProcessScan { threads_left: 1, ..ProcessScan::at(0) };
        assert_eq!(scan.children(std::process::id()), None, "it has two threads at least");
        other.thread().unpark();
        other.join().expect("it ends");
    }

    #[test]
    fn a_running_thread_is_not_ending() {
        let status = status_of(std::process::id()).expect("it runs");
        assert_eq!((status.process, status.is_ending), (std::process::id(), false));
        assert!(status_of(u32::MAX - 1).is_none());
    }

    #[test]
    fn the_status_of_a_program_with_any_name_is_read() {
        let named = std::thread::spawn(|| {
            let name = c"\xff (9) Z";
            rustix::thread::set_name(name).expect("renamed");
            status_of(rustix::thread::gettid().as_raw_nonzero().get() as u32)
        });
        let status = named.join().expect("ended").expect("it is read");
        assert_eq!((status.process, status.is_ending), (std::process::id(), false));
    }
}
