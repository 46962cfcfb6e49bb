//! A program that uses a view: each of its system calls becomes the requests that the kernel makes
//! of it. Failures are the errno as a number.

use super::bed::PATIENCE;
use crate::guard::view::folder_view::FolderView;
use crate::guard::view::parts::attributes::ROOT;
use crate::guard::view::parts::close_rule::{OpenState, ProcessInstance, ProcessLook, Processes};
use common::task::spawn;
use kernel::file_system::{
    Done, Errno, FileAttr, FileSystem as _, NameIn, NewMode, NodeType, OpenedFlags, ReadRequest,
    RenameFlags, Requester, SetAttrs, WriteRequest,
};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

/// The number of the first process: greater than that of any process of this machine.
const FIRST_PROCESS: u32 = 1 << 23;
/// The maximum number of bytes of one read or write, as with a mount.
const REQUEST_BYTES: usize = 1 << 17;
/// The mode of new files and directories.
const UMASK: u32 = 0o022;

/// The result of a system call, or its errno.
pub(super) type Called<T> = Result<T, i32>;

/// The descriptors for writing of all programs: how many of a node each process has.
#[derive(Clone, Default)]
pub(super) struct Descriptors(Arc<Mutex<HashMap<(u32, u64), usize>>>);

/// A look at the programs that have one node open.
struct DescriptorsAt(Descriptors, u64);

impl Descriptors {
    /// Returns what a guard sees of the programs that have a node open.
    pub(super) fn seen_by_guard(&self) -> ProcessLook {
        let own = self.clone();
        Box::new(move |ino| Box::new(DescriptorsAt(own.clone(), ino)))
    }

    fn opened(&self, pid: u32, ino: u64) {
        *self.0.lock().entry((pid, ino)).or_default() += 1;
    }

    fn closed(&self, pid: u32, ino: u64) {
        self.0.lock().entry((pid, ino)).and_modify(|count| *count -= 1);
    }
}

/// The programs run until the end of the test, each in one thread, and have no children.
impl Processes for DescriptorsAt {
    fn process_of(&mut self, tid: u32) -> Option<u32> {
        Some(tid)
    }

    fn table(&mut self, tid: u32) -> OpenState {
        match self.0.0.lock().get(&(tid, self.1)) {
            Some(count) if *count > 0 => OpenState::Open,
            _ => OpenState::NotOpen,
        }
    }

    fn is_killed(&mut self, _tid: u32) -> bool {
        false
    }

    fn children(&mut self, _tid: u32) -> Option<Vec<u32>> {
        Some(Vec::new())
    }

    fn instance(&mut self, pid: u32) -> Option<ProcessInstance> {
        Some(ProcessInstance { pid, number: 0 })
    }
}

/// Runs an operation of the view to its end, and returns its result.
fn done<T: Send + 'static>(operation: impl Future<Output = Done<T>> + Send + 'static) -> Called<T> {
    let (send, result) = channel();
    spawn(async move { send.send(operation.await).unwrap_or_default() });
    let result = result.recv_timeout(PATIENCE.as_duration()).expect("an answer of the view");
    result.map_err(Errno::code)
}

/// Makes a request of the view that takes the program's identity and some owned values.
macro_rules! request {
    ($program:expr, |$view:ident, $who:ident| $call:expr) => {{
        let ($view, $who) = (Arc::clone(&$program.view), $program.who);
        done(async move { $call.await })
    }};
}

/// A program that uses a view.
#[derive(Clone)]
pub(super) struct Program {
    view: Arc<FolderView>,
    processes: Descriptors,
    pub(super) who: Requester,
}

impl Program {
    /// Returns a program of a user, in a new process.
    pub(super) fn new(view: Arc<FolderView>, processes: Descriptors, uid: u32) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(FIRST_PROCESS);
        let pid = COUNT.fetch_add(1, Ordering::Relaxed);
        Self { view, processes, who: Requester { uid, gid: uid, pid } }
    }

    /// Returns another program that uses the same view.
    pub(super) fn of_user(&self, uid: u32) -> Self {
        Self::new(Arc::clone(&self.view), self.processes.clone(), uid)
    }

    fn lookup_in(&self, parent: u64, name: &OsStr) -> Called<FileAttr> {
        let name = name.to_owned();
        let entry = request!(self, |view, who| view.lookup(who, NameIn { parent, name: &name }))?;
        if entry.attr.ino.0 == 0 { Err(libc::ENOENT) } else { Ok(entry.attr) }
    }

    fn walk(&self, path: &str) -> Called<u64> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names
            .into_iter()
            .try_fold(ROOT, |dir, name| Ok(self.lookup_in(dir, OsStr::new(name))?.ino.0))
    }

    /// Returns the directory of a path, and the name in it.
    fn place<'a>(&self, path: &'a str) -> Called<(u64, &'a OsStr)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.walk(dir)?, OsStr::new(name)))
    }

    /// Returns the attributes of a file, without following a symlink (lstat).
    pub(super) fn stat(&self, path: &str) -> Called<FileAttr> {
        let ino = self.walk(path)?;
        Ok(request!(self, |view, who| view.getattr(who, ino, None))?.attr)
    }

    /// Whether there is a name.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.walk(path).is_ok()
    }

    /// Opens a file. As the kernel does, looks the name up once more after ESTALE.
    pub(super) fn open(&self, path: &str, flags: i32) -> Called<OpenedFile> {
        match self.open_once(path, flags) {
            Err(libc::ESTALE) => self.open_once(path, flags),
            opened => opened,
        }
    }

    fn open_once(&self, path: &str, flags: i32) -> Called<OpenedFile> {
        let (parent, name) = self.place(path)?;
        let found = self.lookup_in(parent, name);
        let (ino, opened) = match found {
            Ok(_) if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 => {
                return Err(libc::EEXIST);
            }
            Ok(found) if found.kind == NodeType::Symlink => return Err(libc::ELOOP),
            Ok(found) => {
                let (ino, flags) = (found.ino.0, flags & !libc::O_CREAT);
                (ino, request!(self, |view, who| view.open(who, ino, flags))?)
            }
            Err(libc::ENOENT) if flags & libc::O_CREAT != 0 => {
                let (name, mode) = (name.to_owned(), NewMode { mode: 0o100_666, umask: UMASK });
                let at = move |view: Arc<FolderView>, who| async move {
                    view.create(who, NameIn { parent, name: &name }, mode, flags).await
                };
                let (entry, opened) = request!(self, |view, who| at(view, who))?;
                (entry.attr.ino.0, opened)
            }
            Err(errno) => return Err(errno),
        };
        let is_writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if is_writable {
            self.processes.opened(self.who.pid, ino);
        }
        let tells_close = !opened.flags.contains(OpenedFlags::FOPEN_NOFLUSH);
        let (fh, program) = (opened.fh, self.clone());
        let descriptors = Arc::new(LastDescriptor { program: self.clone(), ino, fh });
        Ok(OpenedFile { program, ino, fh, flags, tells_close, descriptors, is_closed: false })
    }

    /// Opens a file for writing, empty and made if need be.
    pub(super) fn create(&self, path: &str) -> Called<OpenedFile> {
        self.open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)
    }

    /// Opens a file to append to it, made if need be.
    pub(super) fn append(&self, path: &str) -> Called<OpenedFile> {
        self.open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND)
    }

    /// Writes a file as a whole, as a shell does by `> FILE`.
    pub(super) fn write(&self, path: &str, text: &str) -> Called<()> {
        let file = self.create(path)?;
        file.write(text)?;
        file.close()
    }

    /// Reads a file from its beginning to its end.
    pub(super) fn read(&self, path: &str) -> Called<String> {
        self.open(path, libc::O_RDONLY)?.read()
    }

    /// Makes a directory.
    pub(super) fn mkdir(&self, path: &str) -> Called<()> {
        let (parent, name) = self.place(path)?;
        let (name, mode) = (name.to_owned(), NewMode { mode: 0o777, umask: UMASK });
        let entry =
            request!(self, |view, who| view.mkdir(who, NameIn { parent, name: &name }, mode));
        entry.map(drop)
    }

    /// Makes a FIFO.
    pub(super) fn mkfifo(&self, path: &str) -> Called<()> {
        let (parent, name) = self.place(path)?;
        let (name, mode) = (name.to_owned(), NewMode { mode: 0o010_666, umask: UMASK });
        let entry =
            request!(self, |view, who| view.mknod(who, NameIn { parent, name: &name }, mode, 0));
        entry.map(drop)
    }

    /// Removes a file.
    pub(super) fn unlink(&self, path: &str) -> Called<()> {
        let (parent, name) = self.place(path)?;
        let name = name.to_owned();
        self.lookup_in(parent, &name)?;
        request!(self, |view, who| view.unlink(who, NameIn { parent, name: &name }))
    }

    /// Removes a directory.
    pub(super) fn rmdir(&self, path: &str) -> Called<()> {
        let (parent, name) = self.place(path)?;
        let name = name.to_owned();
        self.lookup_in(parent, &name)?;
        request!(self, |view, who| view.rmdir(who, NameIn { parent, name: &name }))
    }

    /// Makes a symlink to `target`.
    pub(super) fn symlink(&self, target: &str, path: &str) -> Called<()> {
        let (parent, name) = self.place(path)?;
        let (name, target) = (name.to_owned(), OsStr::new(target).to_owned());
        let at = move |view: Arc<FolderView>, who| async move {
            view.symlink(who, NameIn { parent, name: &name }, &target).await
        };
        request!(self, |view, who| at(view, who)).map(drop)
    }

    /// Returns the target of a symlink.
    pub(super) fn readlink(&self, path: &str) -> Called<String> {
        let ino = self.walk(path)?;
        let target = request!(self, |view, who| view.readlink(who, ino))?;
        Ok(String::from_utf8_lossy(target.as_slice()).into_owned())
    }

    /// Makes a hard link.
    pub(super) fn link(&self, path: &str, to: &str) -> Called<()> {
        let (ino, (parent, name)) = (self.walk(path)?, self.place(to)?);
        let name = name.to_owned();
        request!(self, |view, who| view.link(who, ino, NameIn { parent, name: &name })).map(drop)
    }

    /// Renames a file or directory.
    pub(super) fn rename(&self, from: &str, to: &str) -> Called<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// Renames a file or directory by renameat2.
    pub(super) fn rename_with(&self, from: &str, to: &str, flags: RenameFlags) -> Called<()> {
        let ((from_dir, from), (to_dir, to)) = (self.place(from)?, self.place(to)?);
        self.lookup_in(from_dir, from)?;
        let _ = self.lookup_in(to_dir, to);
        let (from, to) = (from.to_owned(), to.to_owned());
        request!(self, |view, who| {
            let from = NameIn { parent: from_dir, name: &from };
            view.rename(who, from, NameIn { parent: to_dir, name: &to }, flags)
        })
    }

    fn set(&self, ino: u64, wanted: SetAttrs) -> Called<()> {
        request!(self, |view, who| view.setattr(who, ino, &wanted)).map(drop)
    }

    /// Changes the size of a file.
    pub(super) fn truncate(&self, path: &str, size: u64) -> Called<()> {
        let ino = self.walk(path)?;
        self.set(ino, SetAttrs { size: Some(size), ..SetAttrs::default() })
    }

    /// Changes the permissions of a file.
    pub(super) fn chmod(&self, path: &str, mode: u32) -> Called<()> {
        let ino = self.walk(path)?;
        self.set(ino, SetAttrs { mode: Some(mode), ..SetAttrs::default() })
    }

    /// Changes the time of the last change of a file.
    pub(super) fn touch(&self, path: &str, at: std::time::SystemTime) -> Called<()> {
        use kernel::file_system::TimeOrNow::SpecificTime;
        let (ino, times) = (self.walk(path)?, (None, Some(SpecificTime(at))));
        self.set(ino, SetAttrs { times, ..SetAttrs::default() })
    }

    /// Sets an extended attribute.
    pub(super) fn setxattr(&self, path: &str, name: &str, value: &str) -> Called<()> {
        let (ino, name, value) = (self.walk(path)?, name.to_owned(), value.to_owned());
        request!(self, |view, who| view.setxattr(who, ino, name.as_ref(), value.as_bytes(), 0))
    }

    /// Returns an extended attribute.
    pub(super) fn getxattr(&self, path: &str, name: &str) -> Called<String> {
        let (ino, name) = (self.walk(path)?, name.to_owned());
        let value = request!(self, |view, who| view.getxattr(who, ino, name.as_ref()))?;
        Ok(String::from_utf8_lossy(&value).into_owned())
    }

    /// Opens a directory.
    pub(super) fn open_dir(&self, path: &str) -> Called<OpenedDir> {
        let ino = self.walk(path)?;
        let opened = self.view.opendir(self.who, ino).map_err(Errno::code)?;
        Ok(OpenedDir { view: Arc::clone(&self.view), ino, fh: opened.fh })
    }

    /// Returns the sorted names in a directory.
    pub(super) fn list(&self, path: &str) -> Called<Vec<String>> {
        let dir = self.open_dir(path)?;
        let (ino, fh) = (dir.ino, dir.fh);
        let (mut names, mut index) = (Vec::new(), 0);
        loop {
            let page = request!(self, |view, who| view.readdir(who, ino, fh, index, index == 0))?;
            let skipped = usize::try_from(index - page.first).expect("a page of names");
            let new: Vec<_> = page.entries.iter().skip(skipped).collect();
            if new.is_empty() {
                break;
            }
            index += new.len() as u64;
            names.extend(new.iter().map(|it| String::from_utf8_lossy(it.name.as_bytes()).into()));
        }
        names.sort();
        Ok(names)
    }

    /// Makes a request by the file `ctl`. Returns the answer.
    pub(super) fn request(&self, request: &Value) -> Value {
        let text = self.request_text(&format!("{request}\n"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Writes a text into the file `ctl`. Returns the answer.
    pub(super) fn request_text(&self, text: &str) -> String {
        let ctl = self.open(".latchfs/ctl", libc::O_RDWR).expect("it can be opened");
        ctl.write(text).expect("it takes requests");
        ctl.read().expect("it answers")
    }

    /// Returns the sentence of the last refusal.
    pub(super) fn why(&self) -> String {
        self.read(".latchfs/why").expect("readable")
    }

    /// Returns the state of the guard.
    pub(super) fn status(&self) -> Value {
        serde_json::from_str(&self.read(".latchfs/status").expect("readable")).expect("JSON")
    }

    /// Opens the events of the guard.
    pub(super) fn events(&self) -> Events {
        Events(self.open(".latchfs/events", libc::O_RDONLY).expect("readable"))
    }
}

/// The events of a guard from one moment on.
pub(super) struct Events(OpenedFile);

impl Events {
    /// Waits for the next event.
    pub(super) fn any(&self) -> Value {
        let line = self.0.read_at(0, REQUEST_BYTES).expect("an event");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Waits for the next event, which has this name.
    pub(super) fn next(&self, name: &str) -> Value {
        let event = self.any();
        assert_eq!(event["event"], name, "{event}");
        event
    }
}

/// An open directory, which is closed at the end of its life.
pub(super) struct OpenedDir {
    view: Arc<FolderView>,
    ino: u64,
    fh: u64,
}

impl Drop for OpenedDir {
    fn drop(&mut self) {
        self.view.releasedir(self.fh);
    }
}

/// The open file behind the descriptors of it. The last of them releases it.
struct LastDescriptor {
    program: Program,
    ino: u64,
    fh: u64,
}

impl Drop for LastDescriptor {
    fn drop(&mut self) {
        self.program.view.release(self.ino, self.fh);
    }
}

/// A descriptor of an open file. It is closed at the end of its life, as at that of a program.
pub(super) struct OpenedFile {
    program: Program,
    ino: u64,
    fh: u64,
    flags: i32,
    tells_close: bool,
    descriptors: Arc<LastDescriptor>,
    is_closed: bool,
}

impl OpenedFile {
    /// Writes at the end of the file.
    pub(super) fn write(&self, text: &str) -> Called<()> {
        let (ino, fh) = (self.ino, Some(self.fh));
        let size = request!(self.program, |view, who| view.getattr(who, ino, fh));
        // A file in `.latchfs` has no size.
        self.write_at(size.map_or(0, |found| found.attr.size), text)
    }

    /// Writes at a place of the file.
    pub(super) fn write_at(&self, offset: u64, text: &str) -> Called<()> {
        let (fh, mut offset) = (self.fh, offset);
        for part in text.as_bytes().chunks(REQUEST_BYTES) {
            let (asked, data) = (WriteRequest { fh, offset, from_cache: false }, part.to_owned());
            let written = request!(self.program, |view, who| view.write(who, asked, &data))?;
            assert_eq!(written as usize, part.len(), "a whole write");
            offset += u64::from(written);
        }
        Ok(())
    }

    /// Reads at a place of the file by one request.
    pub(super) fn read_at(&self, offset: u64, size: usize) -> Called<String> {
        let (size, flags) = (size as u32, self.flags);
        let asked = ReadRequest { fh: self.fh, offset, size, flags };
        let bytes = request!(self.program, |view, who| view.read(who, asked))?;
        Ok(String::from_utf8_lossy(bytes.as_slice()).into_owned())
    }

    /// Reads the whole file.
    pub(super) fn read(&self) -> Called<String> {
        let mut text = String::new();
        loop {
            let part = self.read_at(text.len() as u64, REQUEST_BYTES)?;
            if part.is_empty() {
                return Ok(text);
            }
            text += &part;
        }
    }

    /// Changes the size of the file (ftruncate).
    pub(super) fn truncate(&self, size: u64) -> Called<()> {
        let fh = Some(self.fh);
        self.program.set(self.ino, SetAttrs { size: Some(size), fh, ..SetAttrs::default() })
    }

    /// Allocates or frees space of the file (fallocate).
    pub(super) fn allocate(&self, mode: i32, offset: u64, length: u64) -> Called<()> {
        let fh = self.fh;
        request!(self.program, |view, who| view.fallocate(who, fh, offset, length, mode))
    }

    /// Writes the file to the disk (fsync).
    pub(super) fn sync(&self) -> Called<()> {
        let (ino, fh) = (self.ino, self.fh);
        request!(self.program, |view, who| view.fsync(who, ino, fh, false))
    }

    /// Returns the attributes of the open file.
    pub(super) fn stat(&self) -> Called<FileAttr> {
        let (ino, fh) = (self.ino, Some(self.fh));
        Ok(request!(self.program, |view, who| view.getattr(who, ino, fh))?.attr)
    }

    /// Returns one more descriptor of the file, in the same program (dup).
    pub(super) fn dup(&self) -> Self {
        self.in_program(&self.program)
    }

    /// Returns a descriptor of the file that another program has got.
    pub(super) fn in_program(&self, program: &Program) -> Self {
        if self.is_writable() {
            self.program.processes.opened(program.who.pid, self.ino);
        }
        let descriptors = Arc::clone(&self.descriptors);
        Self { program: program.clone(), descriptors, is_closed: false, ..*self }
    }

    fn is_writable(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Closes the descriptor. Returns the result of close(2).
    pub(super) fn close(mut self) -> Called<()> {
        self.end()
    }

    fn end(&mut self) -> Called<()> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        if self.is_writable() {
            self.program.processes.closed(self.program.who.pid, self.ino);
        }
        if !self.tells_close {
            return Ok(());
        }
        let (ino, fh) = (self.ino, self.fh);
        request!(self.program, |view, who| view.flush(who, ino, fh, 0))
    }
}

impl Drop for OpenedFile {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
