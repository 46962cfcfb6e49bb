//! The program of each guard: it takes the lock, begins a tenure, changes files, and gives the
//! lock up or notices that it was lost, as long as there are tenures left.

use super::super::disk::{Disk, IfThere, Place};
use super::super::fence::FenceError;
use super::super::folder_guard::{FolderDirs, FolderGuard, SaveError};
use super::super::gate::Pass;
use super::super::staged_file::StagedFile;
use super::super::tenure::{Owner, TenureId};
use super::replay::{Answer, ReplayClock, ReplayDisk, Step, Told};
use super::storage::{FOLDER, Inode, LOST, STAGES};
use super::{Mutant, Scenario, Setup};
use crate::engine::Token;
use crate::time::{Span, Time};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::io;
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
        disk.tell(Told::Ended);
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
        self.disk.tell(Told::Failed(reason));
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
                self.disk.tell(Told::Opened);
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
            let about = (0, OsStr::new(path), false);
            self.guard.stage_file(&pass, &FOLDER, 0o644, about).expect("a new file")
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
        self.disk.tell(Told::Saved(file));
        Ok(())
    }

    fn save_by_rename(&mut self, tenure: u8) -> Result<(), Lost> {
        self.publish("B.new", "B", tenure)?;
        self.disk.tell(Told::Saved("B.new"));
        let renamed = {
            let pass = self.guard.gate().enter(None, |_| true).map_err(|_| Lost)?;
            let (from, to) = (Place::new(&FOLDER, "B.new"), Place::new(&FOLDER, "B"));
            let (from, to) = ((from, OsStr::new("B.new")), (to, OsStr::new("B")));
            self.guard.rename(&pass, from, to, IfThere::Replace)
        };
        match renamed {
            Ok(()) => {
                self.disk.tell(Told::Saved("B"));
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
            self.guard.remove_file(&pass, (at, OsStr::new("L")))
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
            let old = (Place::new(&FOLDER, from), OsStr::new(from));
            let new = (Place::new(&FOLDER, to), OsStr::new(to));
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

    /// Overwrites two bytes of C. The success is not told if the deadline has passed meanwhile.
    fn write_late(&self, file: Inode, pass: Pass<'_>, tenure: u8) -> Result<(), Lost> {
        let bytes = format!("{tenure}{tenure}");
        self.disk.write(&file, 1, bytes.as_bytes()).expect("a write");
        drop(pass);
        if self.guard.gate().is_past_deadline() {
            return Err(Lost);
        }
        self.disk.tell(Told::Saved("C"));
        Ok(())
    }

    /// Tells of each file that was not published. Its content must be among the lost files.
    fn tell_refused(&self) {
        for staged in &self.open {
            let path = if staged.path() == "A" { "A" } else { "B.new" };
            self.disk.tell(Told::Refused(path));
        }
    }
}
