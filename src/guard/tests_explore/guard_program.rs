//! The program of each guard: it takes the lock, begins a tenure, changes files, and gives the
//! lock up or notices that it was lost, as long as there are tenures left.
//!
//! Runs a guard one step at a time without a thread. The guard runs from its start each time: its
//! first steps get the answers of a recorded history, and at the first step without an answer the
//! run unwinds and hands over the operation that it is about to do.

use super::super::tenure::{Owner, TenureClock};
use super::storage::{FOLDER, Inode, LOST, STAGES};
use super::{Mutant, Scenario, Setup};
use crate::engine::Token;
use crate::guard::disk::operations::{
    Attributes, Disk, DiskEntry, FileId, FileStat, FolderName, IfThere, Place,
};
use crate::guard::folder::folder_guard::{FolderDirs, FolderGuard, SaveError};
use crate::guard::stage::fence::FenceError;
use crate::guard::stage::gate::Pass;
use crate::guard::stage::staged_file::StagedFile;
use crate::time::{Span, Time};
use barrier::tenure_id::TenureId;
use foldhash::{HashMap, HashMapExt as _};
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// How long a lease lasts: one tick of the model's clock.
const LEASE: Span = Span::from_secs(1);

/// The gate is closed for the tenure: the guard has lost the lock.
struct Lost;

struct GuardRun<'a> {
    setup: Setup,
    disk: &'a Arc<ReplayDisk>,
    clock: Arc<ReplayClock>,
    guard: FolderGuard<ReplayDisk>,
    /// The files that programs have open.
    open: Vec<Arc<StagedFile<ReplayDisk>>>,
}

/// Runs a guard to its end.
pub(super) fn run_guard(setup: Setup, is_restart: bool, disk: &Arc<ReplayDisk>) {
    let clock = ReplayClock { disk: Arc::clone(disk), until: Mutex::new(Time::ZERO) };
    let clock = Arc::new(clock);
    if is_restart {
        disk.step(Step::EndSession);
    }
    let dirs = FolderDirs { folder: FOLDER, stages: STAGES, lost: LOST };
    let is_shared = setup.mutant != Some(Mutant::NotShared);
    let guard = FolderGuard::new(Arc::clone(disk), dirs, Arc::clone(&clock) as _, is_shared);
    let guard = guard.expect("the model can list the lost files");
    let mut run = GuardRun { setup, disk, clock, guard, open: Vec::new() };
    while let Answer::Granted(tenure, at) = disk.step(Step::Acquire) {
        run.hold(tenure, Time::from_secs(at));
        run.open.clear();
        disk.report(Report::Ended);
    }
}

/// Returns the number of a tenure, counted over all engines, as engine and token.
fn tenure_id(setup: Setup, tenure: u8) -> TenureId {
    let is_replaced = setup.is_engine_replaced && tenure > 1;
    let (engine, token) = if is_replaced { (2, tenure - 1) } else { (1, tenure + 8) };
    TenureId { engine, token: Token::named(u64::from(token)) }
}

impl GuardRun<'_> {
    fn fail(&self, reason: String) {
        self.disk.report(Report::Failed(reason));
    }

    /// One tenure, from its grant to its end.
    fn hold(&mut self, tenure: u8, granted: Time) {
        *self.clock.until.lock() = match self.setup.mutant {
            Some(Mutant::DeadlineFromReply) => self.disk.now() + LEASE,
            Some(Mutant::NoDeadline) => granted + Span::from_secs(1_000),
            _ => granted + LEASE,
        };
        if self.begin(tenure).and_then(|()| self.work(tenure)).is_err()
            || self.guard.gate().is_past_deadline()
        {
            let aside = self.guard.lose();
            if !aside.failed.is_empty() {
                self.fail(format!("not kept: {:?}", aside.failed));
            }
            self.tell_refused();
            return;
        }
        let aside = self.guard.give_up();
        if !aside.failed.is_empty() {
            self.fail(format!("not kept: {:?}", aside.failed));
        }
        self.tell_refused();
        self.disk.step(Step::Release);
    }

    fn begin(&self, tenure: u8) -> Result<(), Lost> {
        let id = tenure_id(self.setup, tenure);
        match self.guard.begin(id, None) {
            Ok(_) => {
                self.guard.open(id, Owner::Host);
                self.disk.report(Report::Opened);
                return Ok(());
            }
            Err(FenceError::Late) => {}
            Err(FenceError::Disk(error)) => {
                if !self.guard.gate().is_past_deadline() {
                    self.fail(format!("tenure {tenure} can't begin: {error}"));
                }
            }
        }
        Err(Lost)
    }

    fn work(&mut self, tenure: u8) -> Result<(), Lost> {
        match self.setup.scenario {
            Scenario::Whole | Scenario::Foreign => self.save_whole("A", tenure),
            Scenario::Unclosed => self.write_whole("A", "A", tenure).map(|_| ()),
            Scenario::Renamed | Scenario::ForeignRenamed => self.save_by_rename(tenure),
            Scenario::InPlace => self.change_in_place(tenure),
            Scenario::InPlaceMoved => self.change_and_move(tenure),
            Scenario::Names => self.change_names(tenure),
            Scenario::All => {
                self.save_whole("A", tenure)?;
                self.save_by_rename(tenure)?;
                self.change_in_place(tenure)
            }
        }
    }

    /// A program opens a new file and writes its content in two halves.
    fn write_whole(
        &mut self,
        path: &str,
        file: &str,
        tenure: u8,
    ) -> Result<Arc<StagedFile<ReplayDisk>>, Lost> {
        let staged = {
            let pass = self.guard.gate().enter(None, |_| true).map_err(|_| Lost)?;
            let path = OsStr::new(path);
            self.guard.stage_file(&pass, &FOLDER, 0o644, 0, path, false).expect("a new file")
        };
        let halves = [format!("{file}{tenure}"), tenure.to_string()];
        self.disk.write(&staged.file, 0, halves[0].as_bytes()).expect("a write");
        self.disk.write(&staged.file, 2, halves[1].as_bytes()).expect("a write");
        self.open.push(Arc::clone(&staged));
        Ok(staged)
    }

    fn publish(&mut self, path: &str, file: &str, tenure: u8) -> Result<(), Lost> {
        let staged = self.write_whole(path, file, tenure)?;
        let to = Place::new(&FOLDER, path);
        match self.guard.publish(&staged, |_| true, to, self.setup.is_synced) {
            Ok(()) => Ok(()),
            Err(SaveError::Closed(_)) => Err(self.lost()),
            Err(other) => {
                self.fail(format!("{path} of tenure {tenure}: {other:?}"));
                Err(Lost)
            }
        }
    }

    /// Checks that the guard was not fenced before its deadline.
    fn lost(&self) -> Lost {
        if self.guard.is_fenced() && !self.guard.gate().is_past_deadline() {
            self.fail("fenced before its deadline".to_owned());
        }
        Lost
    }

    fn save_whole(&mut self, file: &'static str, tenure: u8) -> Result<(), Lost> {
        self.publish(file, file, tenure)?;
        self.disk.report(Report::Saved(file));
        Ok(())
    }

    fn save_by_rename(&mut self, tenure: u8) -> Result<(), Lost> {
        self.publish("B.new", "B", tenure)?;
        self.disk.report(Report::Saved("B.new"));
        let renamed = {
            let pass = self.guard.gate().enter(None, |_| true).map_err(|_| Lost)?;
            let (from, to) = (Place::new(&FOLDER, "B.new"), Place::new(&FOLDER, "B"));
            let from = FolderName { at: from, path: from.name };
            let to = FolderName { at: to, path: to.name };
            self.guard.rename(&pass, from, to, IfThere::Replace)
        };
        match renamed {
            Ok(()) => {
                self.disk.report(Report::Saved("B"));
                Ok(())
            }
            Err(error) => Err(self.lost_by(&error)),
        }
    }

    /// Programs remove the name L, and make it anew.
    fn change_names(&mut self, tenure: u8) -> Result<(), Lost> {
        let at = Place::new(&FOLDER, "L");
        let removed = {
            let pass = self.guard.gate().enter(None, |_| true).map_err(|_| Lost)?;
            self.guard.remove_file(&pass, FolderName { at, path: at.name })
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(self.lost_by(&error));
            }
            _ => {}
        }
        let file = self.disk.unnamed_file(&FOLDER, 0o644).expect("a new file");
        let content = format!("L{tenure}{tenure}");
        self.disk.write(&file, 0, content.as_bytes()).expect("a write");
        let made = {
            let pass = self.guard.gate().enter(None, |_| true).map_err(|_| Lost)?;
            self.guard.make_name(&pass, at, &|at| self.disk.link(&file, at))
        };
        made.map_err(|error| self.lost_by(&error))
    }

    fn lost_by(&self, error: &io::Error) -> Lost {
        if !matches!(error.raw_os_error(), Some(libc::ESTALE | libc::ENOENT)) {
            self.fail(format!("the rename failed: {error}"));
        }
        self.lost()
    }

    /// A program opens a file and overwrites two bytes of it.
    fn change_in_place(&mut self, tenure: u8) -> Result<(), Lost> {
        let file = self.open_there("C")?.expect("C is always there");
        let pass = self.name_in_place("C")?;
        self.write_late(file, pass, tenure)
    }

    /// A program opens a file, and another renames it before the first one overwrites two bytes.
    fn change_and_move(&mut self, tenure: u8) -> Result<(), Lost> {
        let (file, from, to) = match self.open_there("C")? {
            Some(file) => (file, "C", "D"),
            // Late, the file can be in the stage of a newer tenure.
            None => (self.open_there("D")?.ok_or(Lost)?, "D", "C"),
        };
        drop(self.name_in_place(from)?);
        let renamed = {
            let pass = self.guard.gate().enter(None, |_| true).map_err(|_| Lost)?;
            let old = FolderName { at: Place::new(&FOLDER, from), path: OsStr::new(from) };
            let new = FolderName { at: Place::new(&FOLDER, to), path: OsStr::new(to) };
            self.guard.rename(&pass, old, new, IfThere::Fail)
        };
        renamed.map_err(|error| self.lost_by(&error))?;
        // The file was named before: the program writes at once.
        let pass = self.guard.gate().enter(None, |_| true).map_err(|_| Lost)?;
        self.write_late(file, pass, tenure)
    }

    fn open_there(&self, name: &str) -> Result<Option<Inode>, Lost> {
        let _pass = self.guard.gate().enter(None, |_| true).map_err(|_| Lost)?;
        Ok(self.disk.open_file(Place::new(&FOLDER, name)).ok())
    }

    /// Names a file before its first change, under the pass of that change.
    fn name_in_place(&self, path: &str) -> Result<Pass<'_>, Lost> {
        let pass = self.guard.gate().enter(None, |_| true).map_err(|_| Lost)?;
        match self.guard.name_in_place(&pass, OsStr::new(path)) {
            Ok(()) => Ok(pass),
            Err(SaveError::Closed(_)) => Err(self.lost()),
            Err(other) => {
                self.fail(format!("{path}: {other:?}"));
                Err(Lost)
            }
        }
    }

    /// Overwrites two bytes of C. The success is not reported if the deadline has passed meanwhile.
    fn write_late(&self, file: Inode, pass: Pass<'_>, tenure: u8) -> Result<(), Lost> {
        let bytes = format!("{tenure}{tenure}");
        self.disk.write(&file, 1, bytes.as_bytes()).expect("a write");
        drop(pass);
        if self.guard.gate().is_past_deadline() {
            return Err(Lost);
        }
        self.disk.report(Report::Saved("C"));
        Ok(())
    }

    /// Tells of each file that was not published. Its content must be among the lost files.
    fn tell_refused(&self) {
        for staged in &self.open {
            let path = if staged.path() == "A" { "A" } else { "B.new" };
            self.disk.report(Report::Refused(path));
        }
    }
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct At {
    pub(super) dir: Inode,
    pub(super) name: String,
}

/// A step of a guard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Step {
    MakeDir(At),
    OpenDir(At),
    RemoveDir(At),
    Entries(Inode),
    IdOf(At),
    Stat(At),
    StatFile(Inode),
    Exchange(At, At),
    OpenFile(At),
    UnnamedFile,
    Symlink(At, String),
    ReadSymlink(At),
    Write(Inode, u64, Vec<u8>),
    Copy(Inode, Inode),
    Link(Inode, At),
    Rename {
        from: At,
        to: At,
        must_be_new: bool,
    },
    RemoveFile(At),
    SyncFile(Inode),
    SyncDir(Inode),
    /// Reads the clock.
    Now,
    /// Waits for the lock.
    Acquire,
    Release,
    /// Ends the session of the killed guard.
    EndSession,
    Report(Report),
}

/// An event of a guard that the explorer checks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Report {
    /// The gate is open.
    Opened,
    /// The program got the answer that this version of a file is saved.
    Saved(&'static str),
    /// The program got the answer that a file is not saved: its content must be kept.
    Refused(&'static str),
    /// The tenure is over for the guard.
    Ended,
    /// The guard got an error that it must not get.
    Failed(String),
}

/// The answer to a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Done,
    Inode(Inode),
    Entries(Vec<(String, bool)>),
    /// The inode, whether it is a directory, its content, and the tenure in which it was changed.
    Stat(Inode, bool, Vec<u8>, u8),
    Text(String),
    Time(u64),
    /// The number of the tenure, counted over all engines, and the time of the grant.
    Granted(u8, u64),
    NoTenureLeft,
    Errno(i32),
}

/// The payload by which a run unwinds at its first step without an answer.
struct Unanswered(Step);

/// A disk that answers from a history.
pub(super) struct ReplayDisk {
    answers: Mutex<std::vec::IntoIter<Answer>>,
}

fn text(name: &OsStr) -> String {
    name.to_str().expect("the names of the model are UTF-8").to_owned()
}

fn at(place: Place<'_, Inode>) -> At {
    At { dir: *place.dir, name: text(place.name) }
}

fn id(file: Inode) -> FileId {
    FileId { device: 1, inode: u64::from(file), born: 0 }
}

impl ReplayDisk {
    /// Does a step: returns its recorded answer, or unwinds.
    pub(super) fn step(&self, step: Step) -> Answer {
        let next = self.answers.lock().next();
        match next {
            Some(answer) => answer,
            None => resume_unwind(Box::new(Unanswered(step))),
        }
    }

    pub(super) fn report(&self, report: Report) {
        self.step(Step::Report(report));
    }

    pub(super) fn now(&self) -> Time {
        match self.step(Step::Now) {
            Answer::Time(seconds) => Time::from_secs(seconds),
            other => panic!("a time, not {other:?}"),
        }
    }

    fn submit(&self, step: Step) -> io::Result<Answer> {
        match self.step(step) {
            Answer::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            answer => Ok(answer),
        }
    }

    fn inode(&self, step: Step) -> io::Result<Inode> {
        match self.submit(step)? {
            Answer::Inode(inode) => Ok(inode),
            other => panic!("an inode, not {other:?}"),
        }
    }

    fn stat_of(&self, step: Step) -> io::Result<FileStat> {
        let Answer::Stat(inode, is_dir, content, changed) = self.submit(step)? else {
            unreachable!()
        };
        // Different contents have different times.
        let time = content.iter().fold(0, |time, byte| time * 256 + i128::from(*byte));
        Ok(FileStat {
            id: id(inode),
            is_file: !is_dir,
            is_dir,
            links: 1,
            uid: 0,
            size: content.len() as u64,
            modified: time,
            changed: i128::from(changed),
        })
    }

    fn done(&self, step: Step) -> io::Result<()> {
        self.submit(step).map(|_| ())
    }
}

/// Returns the bytes of a write without the wall-clock time in the description of a lost file.
fn without_time(bytes: &[u8]) -> Vec<u8> {
    match serde_json::from_slice::<serde_json::Value>(bytes) {
        Ok(serde_json::Value::Object(mut about)) => {
            about.remove("at");
            serde_json::to_vec(&about).expect("JSON of JSON")
        }
        _ => bytes.to_vec(),
    }
}

impl Disk for ReplayDisk {
    type Dir = Inode;
    type File = Inode;

    fn make_dir(&self, place: Place<'_, Inode>) -> io::Result<Inode> {
        self.inode(Step::MakeDir(at(place)))
    }
    fn open_dir(&self, place: Place<'_, Inode>) -> io::Result<Inode> {
        self.inode(Step::OpenDir(at(place)))
    }
    fn reopen_dir(&self, dir: &Inode) -> io::Result<Inode> {
        Ok(*dir)
    }
    fn remove_dir(&self, place: Place<'_, Inode>) -> io::Result<()> {
        self.done(Step::RemoveDir(at(place)))
    }
    fn entries(&self, dir: &Inode) -> io::Result<Vec<DiskEntry>> {
        let Answer::Entries(entries) = self.submit(Step::Entries(*dir))? else { unreachable!() };
        let entry = |(name, is_dir): (String, bool)| DiskEntry { name: name.into(), is_dir };
        Ok(entries.into_iter().map(entry).collect())
    }
    fn id_of(&self, place: Place<'_, Inode>) -> io::Result<FileId> {
        let inode = self.inode(Step::IdOf(at(place)))?;
        Ok(id(inode))
    }
    fn stat(&self, place: Place<'_, Inode>) -> io::Result<FileStat> {
        self.stat_of(Step::Stat(at(place)))
    }
    fn stat_file(&self, file: &Inode) -> io::Result<FileStat> {
        self.stat_of(Step::StatFile(*file))
    }
    fn reserve(&self, _file: &Inode, _offset: u64, _bytes: u64) -> io::Result<()> {
        unreachable!("the guards of the model have no barrier")
    }
    fn give_to_owner(&self, _file: &Inode, _of: &Inode) -> io::Result<()> {
        unreachable!("the guards of the model have no barrier")
    }
    fn make_readable_dir(&self, _place: Place<'_, Inode>) -> io::Result<()> {
        unreachable!("the guards of the model have no barrier")
    }
    fn attributes(&self, _place: Place<'_, Inode>) -> io::Result<Attributes> {
        unreachable!("the guards of the model have no barrier")
    }
    fn open_to_read(&self, _place: Place<'_, Inode>) -> io::Result<Inode> {
        unreachable!("the guards of the model have no barrier")
    }
    fn read(&self, _file: &Inode, _offset: u64, _bytes: &mut [u8]) -> io::Result<usize> {
        unreachable!("the guards of the model have no barrier")
    }
    fn visit_entries(
        &self,
        _dir: &Inode,
        _visit: &mut dyn FnMut(DiskEntry) -> ControlFlow<()>,
    ) -> io::Result<()> {
        unreachable!("the guards of the model have no barrier")
    }
    fn sync_file_system(&self, _dir: &Inode) -> io::Result<()> {
        unreachable!("the guards of the model have no barrier")
    }
    fn exchange(&self, one: Place<'_, Inode>, other: Place<'_, Inode>) -> io::Result<()> {
        self.done(Step::Exchange(at(one), at(other)))
    }
    fn open_file(&self, place: Place<'_, Inode>) -> io::Result<Inode> {
        self.inode(Step::OpenFile(at(place)))
    }
    fn unnamed_file(&self, _near: &Inode, _mode: u32) -> io::Result<Inode> {
        self.inode(Step::UnnamedFile)
    }
    fn make_symlink(&self, place: Place<'_, Inode>, target: &OsStr) -> io::Result<()> {
        self.done(Step::Symlink(at(place), text(target)))
    }
    fn read_symlink(&self, place: Place<'_, Inode>) -> io::Result<OsString> {
        let Answer::Text(target) = self.submit(Step::ReadSymlink(at(place)))? else {
            unreachable!()
        };
        Ok(target.into())
    }
    fn open_parent(&self, root: &Inode, path: &OsStr) -> io::Result<(Inode, OsString)> {
        // All files of the model lie in the folder itself, which nobody removes.
        Ok((*root, path.to_owned()))
    }
    fn set_modified(&self, _file: &Inode, _time: i128) -> io::Result<()> {
        unreachable!("no sync tool carries the folder of the model")
    }
    fn shorten(&self, _file: &Inode, _bytes: u64) -> io::Result<()> {
        unreachable!("the disk of the model is never full")
    }
    fn write(&self, file: &Inode, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.done(Step::Write(*file, offset, without_time(bytes)))
    }
    fn copy(&self, from: &Inode, to: &Inode) -> io::Result<()> {
        self.done(Step::Copy(*from, *to))
    }
    fn link(&self, file: &Inode, to: Place<'_, Inode>) -> io::Result<()> {
        self.done(Step::Link(*file, at(to)))
    }
    fn rename(
        &self,
        from: Place<'_, Inode>,
        to: Place<'_, Inode>,
        if_there: IfThere,
    ) -> io::Result<()> {
        let must_be_new = if_there == IfThere::Fail;
        self.done(Step::Rename { from: at(from), to: at(to), must_be_new })
    }
    fn remove_file(&self, place: Place<'_, Inode>) -> io::Result<()> {
        self.done(Step::RemoveFile(at(place)))
    }
    fn sync_file(&self, file: &Inode) -> io::Result<()> {
        self.done(Step::SyncFile(*file))
    }
    fn sync_dir(&self, dir: &Inode) -> io::Result<()> {
        self.done(Step::SyncDir(*dir))
    }
}

/// The clock of a guard: the time is a step, the end of the lease is what the guard was granted.
pub(super) struct ReplayClock {
    pub(super) disk: Arc<ReplayDisk>,
    pub(super) until: Mutex<Time>,
}

impl TenureClock for ReplayClock {
    fn now(&self) -> Time {
        self.disk.now()
    }
    fn surely_until(&self) -> Time {
        *self.until.lock()
    }
}

/// The history of a guard: an index into [`Histories`].
pub(super) type HistoryId = usize;

struct GuardHistory {
    /// The history without the last answer, and that answer; `None` for a guard that starts.
    before: Option<(HistoryId, Answer)>,
    /// Whether the guard was started after a kill.
    is_restart: bool,
    /// The next step of the guard; `None` after its end.
    next: Option<Arc<Step>>,
    length: usize,
}

/// All histories of guards that were met. Equal histories are one, so that each step of a guard is
/// found by one run.
pub(super) struct Histories {
    setup: Setup,
    all: Vec<GuardHistory>,
    after: HashMap<(HistoryId, Answer), HistoryId>,
}

/// The history of a guard that starts.
pub(super) const START: HistoryId = 0;
/// The history of a guard that starts after a kill.
pub(super) const RESTART: HistoryId = 1;

impl Histories {
    pub(super) fn new(setup: Setup) -> Self {
        let mut histories = Self { setup, all: Vec::new(), after: HashMap::new() };
        for is_restart in [false, true] {
            histories.add(None, is_restart);
        }
        histories
    }

    pub(super) fn next_step(&self, history: HistoryId) -> Option<Arc<Step>> {
        self.all[history].next.clone()
    }

    pub(super) fn length(&self, history: HistoryId) -> usize {
        self.all[history].length
    }

    /// Returns the history that goes on with an answer.
    pub(super) fn extended(&mut self, history: HistoryId, answer: Answer) -> HistoryId {
        let key = (history, answer);
        if let Some(known) = self.after.get(&key) {
            return *known;
        }
        let added = self.add(Some(key.clone()), self.all[history].is_restart);
        self.after.insert(key, added);
        added
    }

    fn add(&mut self, before: Option<(HistoryId, Answer)>, is_restart: bool) -> HistoryId {
        let mut answers = Vec::new();
        let mut link = before.as_ref();
        while let Some((earlier, answer)) = link {
            answers.push(answer.clone());
            link = self.all[*earlier].before.as_ref();
        }
        answers.reverse();
        let length = answers.len();
        let next = next_step(self.setup, is_restart, answers).map(Arc::new);
        self.all.push(GuardHistory { before, is_restart, next, length });
        self.all.len() - 1
    }
}

fn next_step(setup: Setup, is_restart: bool, answers: Vec<Answer>) -> Option<Step> {
    let disk = Arc::new(ReplayDisk { answers: Mutex::new(answers.into_iter()) });
    let run = AssertUnwindSafe(|| run_guard(setup, is_restart, &disk));
    match catch_unwind(run) {
        Ok(()) => None,
        Err(payload) => match payload.downcast::<Unanswered>() {
            Ok(unanswered) => Some(unanswered.0),
            Err(panic) => resume_unwind(panic),
        },
    }
}
