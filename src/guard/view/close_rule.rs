//! Decides whether the close of a file that is being saved publishes it: yes, if no program is left
//! that would go on writing.
//!
//! A close may be answered while its program executes another (exec), and the kernel then blocks
//! reads of most files in `/proc/PID`. `statm`, `status` and `fdinfo` are safe to read; `stat` only
//! if the program is ending.

use super::super::linux_disk::LinuxDisk;
use super::super::staged_file::StagedFile;
use parking_lot::Mutex;
use std::fs;
use std::io::Read;
use std::sync::Arc;

/// The maximum number of processes that are remembered as writers of one file. With more, the file
/// is published when its last descriptor is closed.
const WRITERS_MAX: usize = 16;
/// The maximum number of descriptors of a process that are looked at. A process with more counts as
/// having the file open.
const DESCRIPTORS_MAX: usize = 64;

/// The file of a save.
type Staged = StagedFile<LinuxDisk>;

/// The effect of a close on the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnClose {
    /// The file is published now.
    Publish,
    /// The file is published when its last descriptor is closed.
    Later,
    /// A signal ended the program. The file is put aside, unless another program closes it.
    Killed,
}

/// The save of one file: the staged file, and the programs that have to do with it.
pub(super) struct Saving {
    /// The file without a name.
    pub(super) staged: Arc<Staged>,
    memory: Mutex<SaveMemory>,
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
struct SaveMemory {
    /// The thread that opened the file.
    opener: u32,
    /// The thread that wrote last.
    last_writer: u32,
    /// The processes other than the opener's thread that wrote.
    writers: Vec<u32>,
    /// Whether there were more writers than are remembered.
    has_more_writers: bool,
    has_content: bool,
    was_flushed: bool,
    /// Whether the last close was the end of a program by a signal.
    was_killed: bool,
}

/// The state of a thread, as `/proc/TID/status` shows it.
struct ThreadStatus {
    process: u32,
    /// Whether the thread has closed all its descriptors because it is ending.
    is_ending: bool,
}

/// Returns what the first read of a file in `/proc` yields, which is all that is wanted of it. The
/// name of a program, which some of these files show, may hold any bytes.
fn first_read(path: String) -> Option<String> {
    let mut bytes = [0; 4_096];
    let count = fs::File::open(path).and_then(|mut file| file.read(&mut bytes)).ok()?;
    Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

/// Whether a thread has closed all its descriptors because it is ending.
fn is_ending(tid: u32) -> bool {
    !has_memory(tid) && status_of(tid).is_some_and(|status| status.is_ending)
}

/// Whether a thread certainly runs: an ending thread gives its memory up before it closes its
/// descriptors. The kernel answers this in less than half the time that `status` takes.
fn has_memory(tid: u32) -> bool {
    first_read(format!("/proc/{tid}/statm")).is_some_and(|sizes| !sizes.starts_with("0 "))
}

fn status_of(tid: u32) -> Option<ThreadStatus> {
    let text = first_read(format!("/proc/{tid}/status"))?;
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line[name.len()..].trim().parse::<u32>().ok()
    };
    Some(ThreadStatus { process: field("Tgid:")?, is_ending: field("FDSize:") == Some(0) })
}

/// Returns the process of a thread; the thread itself if it is gone.
fn process_of(tid: u32) -> u32 {
    status_of(tid).map_or(tid, |status| status.process)
}

/// Returns the process of a thread that still runs.
pub(super) fn process_if_running(tid: u32) -> Option<u32> {
    status_of(tid).map(|status| status.process)
}

/// Whether a signal is ending the thread. It must be ending.
fn is_killed(tid: u32) -> bool {
    let text = first_read(format!("/proc/{tid}/stat")).unwrap_or_default();
    // The fields after the program's name, which ends with the last parenthesis, begin with the
    // third; the exit code is the 52nd.
    let fields = text.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let code = fields.split_whitespace().nth(49).and_then(|code| code.parse::<i32>().ok());
    code.is_some_and(|code| code & 0x7f != 0)
}

/// Whether a process has the node `ino` open for writing, or may have.
fn may_write(process: u32, ino: u64) -> bool {
    has_open(process, ino, |flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Whether the process of a thread has the node `ino` open, or may have.
pub(super) fn may_have_open(tid: u32, ino: u64) -> bool {
    has_open(process_of(tid), ino, |_| true)
}

/// Whether a process has the node `ino` open with such flags, or may have.
fn has_open(process: u32, ino: u64, with: impl Fn(i32) -> bool) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/fdinfo")) else {
        // A process that is gone has nothing open. One that may not be read counts as a writer.
        return fs::exists(format!("/proc/{process}")).unwrap_or(true);
    };
    for (count, entry) in entries.enumerate() {
        let Ok(entry) = entry else { return true };
        if count >= DESCRIPTORS_MAX {
            return true;
        }
        let Ok(text) = fs::read_to_string(entry.path()) else { continue };
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line[name.len()..].trim().to_owned())
        };
        let is_it = field("ino:").and_then(|text| text.parse::<u64>().ok()) == Some(ino);
        let flags = field("flags:").and_then(|text| i32::from_str_radix(&text, 8).ok());
        if is_it && flags.is_none_or(&with) {
            return true;
        }
    }
    false
}

impl Saving {
    /// Returns the save of a file that the thread `opener` has opened.
    pub(super) fn new(staged: Arc<Staged>, opener: u32) -> Arc<Self> {
        let memory = SaveMemory { opener, ..SaveMemory::default() };
        Arc::new(Self { staged, memory: Mutex::new(memory) })
    }

    /// Records that a thread changed the content of the file.
    pub(super) fn wrote(&self, tid: u32) {
        let mut memory = self.memory.lock();
        memory.has_content = true;
        memory.was_killed = false;
        if tid == memory.last_writer || tid == memory.opener || tid == 0 {
            memory.last_writer = tid;
            return;
        }
        memory.last_writer = tid;
        let process = process_of(tid);
        if memory.writers.contains(&process) {
            return;
        }
        if memory.writers.len() < WRITERS_MAX {
            memory.writers.push(process);
        } else {
            memory.has_more_writers = true;
        }
    }

    /// Whether the last close was the end of a program by a signal.
    pub(super) fn was_killed(&self) -> bool {
        self.memory.lock().was_killed
    }

    /// Decides about the close of a descriptor of the node `ino` by the thread `tid`.
    pub(super) fn closed_by(&self, tid: u32, ino: u64) -> OnClose {
        let mut memory = self.memory.lock();
        let is_first = !std::mem::replace(&mut memory.was_flushed, true);
        if tid == 0 {
            return if memory.has_content { OnClose::Publish } else { OnClose::Later };
        }
        if is_ending(tid) && is_killed(tid) {
            memory.was_killed = true;
            return OnClose::Killed;
        }
        memory.was_killed = false;
        if !memory.has_content {
            return OnClose::Later;
        }
        if is_first && tid == memory.opener && memory.writers.is_empty() {
            return OnClose::Publish;
        }
        if memory.has_more_writers {
            return OnClose::Later;
        }
        let (closing, opener) = (process_of(tid), process_of(memory.opener));
        let mut all = memory.writers.clone();
        all.extend([closing, opener]);
        all.sort_unstable();
        all.dedup();
        drop(memory);
        let is_open = all.into_iter().any(|process| may_write(process, ino));
        if is_open { OnClose::Later } else { OnClose::Publish }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    /// The process is one of its own, since the other tests of this one have many open files.
    #[test]
    fn a_writable_descriptor_of_a_process_is_found() {
        let path = std::env::temp_dir().join(format!("latchfs-close-{}", std::process::id()));
        let ino = fs::File::create(&path).and_then(|file| file.metadata()).expect("a file").ino();
        let script = "exec 8>> \"$0\"; echo; read _; exec 8>&- 9< \"$0\"; echo; read _";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("there is a shell");
        let mut told = BufReader::new(shell.stdout.take().expect("piped")).lines();
        let mut input = shell.stdin.take().expect("piped");
        told.next().expect("it writes").expect("a line");
        assert!(may_write(shell.id(), ino), "it may write");
        input.write_all(b"\n").expect("it reads");
        told.next().expect("it writes").expect("a line");
        assert!(!may_write(shell.id(), ino), "it may read only");
        assert!(!may_write(u32::MAX - 1, ino), "there is no such process");
        drop(input);
        shell.wait().expect("our child");
        fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn a_running_thread_is_not_ending() {
        let status = status_of(std::process::id()).expect("it runs");
        assert_eq!((status.process, status.is_ending), (std::process::id(), false));
        assert!(has_memory(std::process::id()));
        assert!(status_of(u32::MAX - 1).is_none() && !has_memory(u32::MAX - 1));
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
