//! The model: two guards as processes, their storage, the lock service and the clock.
//!
//! The guarantees that are checked at each change of the folder, and at each event of a guard.

use super::storage::{FOLDER, Inode, LOST, STAGES, Storage};
use super::{Mutant, Scenario, Setup};
use crate::guard::tests_explore::guard_program::{
    Answer, At, Histories, HistoryId, RESTART, Report, START, Step,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// More steps than any guard of the model needs. A guard that does more never ends.
const STEPS_OF_A_GUARD: usize = 600;

/// The content and the inode of the foreign version.
const FOREIGN: &[u8] = b"X00";
const PLANTED: u32 = 99;

/// The lock service: one lock with leases that end at a tick of the clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct ModelLockService {
    /// The number of tenures granted.
    pub(super) granted: u8,
    /// The guard that holds the lock, and the time at which its lease ends.
    pub(super) holder: Option<(usize, u64)>,
}

/// A guard as a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GuardProcess {
    pub(super) history: HistoryId,
    /// The number of the guard's tenure; 0 if it has none.
    pub(super) tenure: u8,
    /// The end of the lease that the service granted to the guard.
    pub(super) until: u64,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) storage: Storage,
    pub(super) service: ModelLockService,
    pub(super) now: u64,
    pub(super) guards: [GuardProcess; 2],
    /// The latest tenure whose gate was opened.
    pub(super) opened: u8,
    /// The tenure in which each file was last saved, as reported to a program.
    pub(super) saved: BTreeMap<&'static str, u8>,
    /// The names of stages that were made after the end of their tenure's lease.
    pub(super) late_stages: BTreeSet<String>,
    /// Whether the guards rename C to D and back.
    pub(super) is_moved: bool,
    /// The number of tenures granted when a foreign version came; `None` before that.
    pub(super) planted: Option<u8>,
    pub(super) kills: u8,
    /// How many leases of living guards have ended.
    pub(super) stops: u8,
}

/// A transition between two states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelMove {
    Step(usize),
    Tick,
    Kill(usize),
    /// A foreign version of a file comes.
    Plant(&'static str),
}

/// The rules by which worlds change.
pub(super) struct Model {
    setup: Setup,
    histories: Histories,
    /// What was done, for the report of a violation; `None` while nobody asks for it.
    trace: Option<Vec<String>>,
}

impl Model {
    pub(super) fn new(setup: Setup) -> Self {
        Self { setup, histories: Histories::new(setup), trace: None }
    }

    /// Records from now on what is done.
    pub(super) fn begin_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// Returns a violation with all that was done since the trace began.
    pub(super) fn report(&self, violation: &str) -> String {
        format!("{violation}\n{}", self.trace.as_deref().unwrap_or_default().join("\n"))
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    /// Returns the world in which both guards wait for the first tenure.
    pub(super) fn start(&mut self) -> World {
        let start = GuardProcess { history: START, tenure: 0, until: 0 };
        let files: [(&str, &[u8]); 3] = [("A", b"A00"), ("B", b"B00"), ("C", b"C00")];
        let mut world = World {
            storage: Storage::new(&files),
            service: ModelLockService::default(),
            now: 0,
            guards: [start.clone(), start],
            opened: 0,
            saved: BTreeMap::new(),
            late_stages: BTreeSet::new(),
            is_moved: self.setup.scenario == Scenario::InPlaceMoved,
            planted: None,
            kills: 0,
            stops: 0,
        };
        for guard in [0, 1] {
            self.run_private(&mut world, guard).expect("no change of the folder");
        }
        world
    }

    /// Returns the moves that are possible.
    pub(super) fn moves(&self, world: &World) -> Vec<ModelMove> {
        let mut moves = Vec::new();
        for (guard, process) in world.guards.iter().enumerate() {
            let Some(step) = self.next_step(world, guard) else { continue };
            let is_waiting = *step == Step::Acquire;
            // The guards are alike: the first one gets the first tenure.
            let is_symmetric = world.service.granted == 0 && guard == 1;
            let is_free = !is_held(world) || world.service.granted == self.setup.tenures;
            if !is_waiting || (is_free && !is_symmetric) {
                moves.push(ModelMove::Step(guard));
            }
            if world.kills < self.setup.kills && process.tenure > 0 {
                moves.push(ModelMove::Kill(guard));
            }
        }
        if let Some(name) = self.planted_name(world) {
            moves.push(ModelMove::Plant(name));
        }
        if is_held(world) && (world.stops < self.setup.stops || !is_holder_alive(world)) {
            moves.push(ModelMove::Tick);
        }
        moves
    }

    /// Returns the file of which a foreign version may come now. None comes between a guard's look
    /// at the file and the change that follows: no guard can notice that.
    fn planted_name(&self, world: &World) -> Option<&'static str> {
        let name = match self.setup.scenario {
            Scenario::Foreign => "A",
            Scenario::ForeignRenamed => "B",
            _ => return None,
        };
        let is_it = |at: &At| at.dir == FOLDER && at.name == name;
        let is_about_to_replace = |guard| match self.next_step(world, guard).as_deref() {
            Some(Step::Rename { to, .. } | Step::Exchange(_, to)) => is_it(to),
            _ => false,
        };
        let is_free = world.planted.is_none() && world.service.granted > 0;
        (is_free && !is_about_to_replace(0) && !is_about_to_replace(1)).then_some(name)
    }

    /// Whether both guards have come to their end.
    pub(super) fn is_ended(&self, world: &World) -> bool {
        world.guards.iter().all(|guard| self.histories.next_step(guard.history).is_none())
    }

    /// Returns the next step of a guard.
    pub(super) fn next_step(&self, world: &World, guard: usize) -> Option<Arc<Step>> {
        self.histories.next_step(world.guards[guard].history)
    }

    pub(super) fn make_move(&mut self, world: &mut World, next: ModelMove) -> Result<(), String> {
        match next {
            ModelMove::Tick => {
                self.note(|| "clock: one tick".to_owned());
                world.stops += u8::from(is_holder_alive(world));
                world.now += 1;
                for guard in [0, 1] {
                    self.run_private(world, guard)?;
                }
                Ok(())
            }
            ModelMove::Kill(guard) => {
                self.note(|| format!("guard {guard} is killed"));
                world.kills += 1;
                world.storage.close_all(guard);
                world.guards[guard] = GuardProcess { history: RESTART, tenure: 0, until: 0 };
                self.run_private(world, guard)
            }
            ModelMove::Plant(name) => {
                self.note(|| format!("a foreign version of {name} comes"));
                world.planted = Some(world.service.granted);
                world.saved.clear();
                world.storage.plant(name, PLANTED, FOREIGN);
                Ok(())
            }
            ModelMove::Step(guard) => {
                self.step(world, guard)?;
                for guard in [0, 1] {
                    self.run_private(world, guard)?;
                }
                Ok(())
            }
        }
    }

    /// Does the steps of a guard that no other process can tell from later ones. This leaves out
    /// interleavings that differ in nothing.
    fn run_private(&mut self, world: &mut World, guard: usize) -> Result<(), String> {
        loop {
            let process = &world.guards[guard];
            let Some(step) = self.next_step(world, guard) else { return Ok(()) };
            let is_private = match &*step {
                // After the end of a session the lock is free, as it is after a tick. The list of
                // the lost files tells which numbers are taken: with an older list a guard only
                // tries more of them.
                Step::UnnamedFile
                | Step::SyncFile(_)
                | Step::SyncDir(_)
                | Step::Report(_)
                | Step::EndSession
                | Step::Entries(LOST) => true,
                Step::Write(file, ..) | Step::StatFile(file) => {
                    world.storage.is_private(guard, *file)
                }
                // A guard whose lease has ended reads the same from the clock ever after.
                Step::Now => world.now >= process.until,
                _ => false,
            };
            if !is_private {
                return Ok(());
            }
            self.step(world, guard)?;
        }
    }

    pub(super) fn step(&mut self, world: &mut World, guard: usize) -> Result<(), String> {
        let history = world.guards[guard].history;
        let step = self.histories.next_step(history).expect("the guard has a step");
        if self.histories.length(history) > STEPS_OF_A_GUARD {
            return Err(format!("guard {guard} never ends"));
        }
        let answer = self.apply(world, guard, &step)?;
        let tenure = world.guards[guard].tenure;
        self.note(|| format!("guard {guard} (tenure {tenure}): {step:?} -> {answer:?}"));
        let is_over = *step == Step::Report(Report::Ended) && !self.setup.is_daemon_kept;
        world.guards[guard].history =
            if is_over { START } else { self.histories.extended(history, answer) };
        Ok(())
    }

    fn apply(&self, world: &mut World, guard: usize, step: &Arc<Step>) -> Result<Answer, String> {
        let process = world.guards[guard].clone();
        match &**step {
            // All times after the end of the lease are the same to a guard.
            Step::Now => Ok(Answer::Time(match self.setup.mutant {
                Some(Mutant::DeadlineFromReply) => world.now,
                _ => world.now.min(process.until),
            })),
            Step::Acquire => Ok(grant(self.setup, world, guard)),
            Step::Release => {
                let is_holder = world.service.holder == Some((guard, process.until));
                world.service.holder = world.service.holder.filter(|_| !is_holder);
                Ok(Answer::Done)
            }
            Step::EndSession => {
                world.service.holder = world.service.holder.filter(|(by, _)| *by != guard);
                Ok(Answer::Done)
            }
            Step::Report(report) => check_report(world, guard, report).map(|()| Answer::Done),
            step => {
                let before = world.storage.clone();
                let had_foreign = world.planted.is_some() && before.has_content(FOREIGN);
                let answer = self.file_step(&mut world.storage, guard, step);
                if had_foreign
                    && !world.storage.has_content(FOREIGN)
                    && world.planted.is_some_and(|planted| process.tenure <= planted)
                {
                    return Err("the foreign version is gone".to_owned());
                }
                if world.storage.has_other_files(&before) {
                    let (before, after) = (folder(&before), folder(&world.storage));
                    if before != after {
                        check_change(world, process.tenure, &before, &after)?;
                    }
                }
                if let (Step::MakeDir(at), Answer::Inode(_)) = (step, &answer)
                    && at.dir == STAGES
                    && world.now >= process.until
                {
                    world.late_stages.insert(at.name.clone());
                }
                Ok(answer)
            }
        }
    }

    /// Does a file operation, or a faulty one in its place.
    fn file_step(&self, storage: &mut Storage, guard: usize, step: &Step) -> Answer {
        match (self.setup.mutant, step) {
            (Some(Mutant::FenceWithoutRmdir), Step::RemoveDir(at)) => storage.hide(at),
            (Some(Mutant::FenceOnlyOlder), Step::Entries(STAGES)) => {
                let answer = storage.apply(guard, step);
                let Answer::Entries(mut entries) = answer else { return answer };
                // The faulty fence sees only stages whose tokens are below that of the first
                // tenure.
                entries.retain(|(name, _)| !name.ends_with("-9"));
                Answer::Entries(entries)
            }
            (Some(Mutant::CopyBesideStages), Step::Link(file, to)) => {
                storage.apply(guard, &Step::Link(*file, beside_stages(to)))
            }
            (Some(Mutant::CopyBesideStages), Step::Exchange(from, to)) => {
                storage.apply(guard, &Step::Exchange(beside_stages(from), to.clone()))
            }
            (Some(Mutant::CopyBesideStages), Step::IdOf(at)) => {
                storage.apply(guard, &Step::IdOf(beside_stages(at)))
            }
            (Some(Mutant::CopyBesideStages), Step::RemoveFile(at)) => {
                storage.apply(guard, &Step::RemoveFile(beside_stages(at)))
            }
            (Some(Mutant::ForeignReplaced), Step::Exchange(from, to)) => {
                let (from, to, must_be_new) = (from.clone(), to.clone(), false);
                storage.apply(guard, &Step::Rename { from, to, must_be_new })
            }
            (Some(Mutant::PublishIgnoresEnoent), Step::Rename { to, .. }) if to.dir == FOLDER => {
                match storage.apply(guard, step) {
                    Answer::Errno(libc::ENOENT) => Answer::Done,
                    answer => answer,
                }
            }
            _ => storage.apply(guard, step),
        }
    }
}

/// Whether a lease is running.
fn is_held(world: &World) -> bool {
    world.service.holder.is_some_and(|(_, until)| world.now < until)
}

/// Whether the lock is held by a guard that was not killed.
fn is_holder_alive(world: &World) -> bool {
    world.service.holder.is_some_and(|(guard, _)| world.guards[guard].tenure > 0)
}

fn grant(setup: Setup, world: &mut World, guard: usize) -> Answer {
    if world.service.granted == setup.tenures {
        return Answer::NoTenureLeft;
    }
    world.service.granted += 1;
    world.storage.granted = world.service.granted;
    let until = world.now + 1;
    world.service.holder = Some((guard, until));
    world.guards[guard].tenure = world.service.granted;
    world.guards[guard].until = until;
    Answer::Granted(world.service.granted, world.now)
}

/// Returns the place of the copy that a fence makes, in the directory of all stages.
fn beside_stages(at: &At) -> At {
    let dir = if at.name.starts_with("renewed-") { STAGES } else { at.dir };
    At { dir, name: at.name.clone() }
}

/// The files of the folder: for each name the inode and the content.
pub(super) type Folder = BTreeMap<String, (Inode, Vec<u8>)>;

/// Returns the files of the folder.
pub(super) fn folder(storage: &Storage) -> Folder {
    let owned = |(name, (inode, content)): (&str, (Inode, &[u8]))| {
        (name.to_owned(), (inode, content.to_vec()))
    };
    storage.files_in(FOLDER).into_iter().map(owned).collect()
}

/// Returns the content of a file, which may have been renamed.
fn content_of<'a>(files: &'a Folder, file: &str) -> Option<&'a [u8]> {
    let moved = files.get("D").filter(|_| file == "C");
    files.get(file).or(moved).map(|(_, content)| &content[..])
}

/// Returns the tenure whose version of a file a content is, if it is a whole version.
pub(super) fn version(content: &[u8]) -> Option<u8> {
    match content {
        [_, first, second] if first == second && first.is_ascii_digit() => Some(first - b'0'),
        _ => None,
    }
}

/// Returns the version of a file in the folder. Each tenure renames its B.new to B.
fn visible(world: &World, file: &str) -> u8 {
    let files = world.storage.files_in(FOLDER);
    let there = |name: &str| files.get(name).and_then(|(_, content)| version(content));
    let renamed = match file {
        "B.new" => there("B"),
        "C" => there("D"),
        _ => None,
    };
    there(file).max(renamed).unwrap_or_default()
}

/// Returns the newest version of a file that is or was in the folder.
fn newest(world: &World, file: &str) -> u8 {
    visible(world, file).max(world.saved.get(file).copied().unwrap_or_default())
}

/// Checks a change of the folder by a guard.
pub(super) fn check_change(
    world: &World,
    tenure: u8,
    before: &Folder,
    after: &Folder,
) -> Result<(), String> {
    if tenure < world.opened {
        let opened = world.opened;
        return Err(format!(
            "tenure {tenure} changes the folder after tenure {opened} has begun: {before:?} to \
             {after:?}"
        ));
    }
    for file in ["A", "B", "C"] {
        let content = |files: &Folder| content_of(files, file).map(<[u8]>::to_vec);
        let Some(now) = content(after) else {
            // A file that is being renamed is in the stage for a moment.
            if file == "C" && world.is_moved {
                continue;
            }
            return Err(format!("{file} is gone"));
        };
        let Some(now) = version(&now) else {
            return Err(format!("{file} is {now:?}, which is no whole version"));
        };
        let earlier = content(before).and_then(|content| version(&content)).unwrap_or_default();
        if file != "C" && now < earlier {
            return Err(format!("{file} goes back from version {earlier} to {now}"));
        }
        let saved = world.saved.get(file).copied().unwrap_or_default();
        if now < saved {
            return Err(format!("{file} is version {now}, but version {saved} was saved"));
        }
    }
    Ok(())
}

/// Checks an event of a guard.
pub(super) fn check_report(world: &mut World, guard: usize, report: &Report) -> Result<(), String> {
    let tenure = world.guards[guard].tenure;
    match report {
        Report::Opened => {
            let is_in_time = world.now < world.guards[guard].until;
            let stages = world.storage.names_in(STAGES);
            let late = |name: &&&str| !world.late_stages.contains(**name);
            let left = stages.iter().filter(late).count();
            if is_in_time && left != 1 {
                return Err(format!("tenure {tenure} begins beside the stages {stages:?}"));
            }
            let files = folder(&world.storage);
            let is_gone = |file: &&str| content_of(&files, file).is_none();
            if is_in_time && let Some(gone) = ["A", "B", "C"].into_iter().find(is_gone) {
                return Err(format!("tenure {tenure} finds {gone} gone"));
            }
            for (file, saved) in &world.saved {
                let now = visible(world, file);
                if is_in_time && now < *saved {
                    return Err(format!("tenure {tenure} finds {file} {now}, {saved} was saved"));
                }
            }
            world.opened = world.opened.max(tenure);
            Ok(())
        }
        Report::Saved(file) => {
            if world.planted.is_some() {
                // The foreign version may have replaced the saved one.
                return Ok(());
            }
            let newest = newest(world, file);
            if newest < tenure {
                return Err(format!("{file} of tenure {tenure} was saved, but is {newest}"));
            }
            let saved = world.saved.entry(file).or_default();
            *saved = tenure.max(*saved);
            Ok(())
        }
        Report::Refused(file) => {
            let content = format!("{}{tenure}{tenure}", &file[..1]).into_bytes();
            let is_kept = [FOLDER, LOST]
                .into_iter()
                .any(|dir| world.storage.files_in(dir).values().any(|(_, kept)| *kept == content));
            if is_kept || world.planted.is_some() || newest(world, file) > tenure {
                Ok(())
            } else {
                Err(format!("{file} of tenure {tenure} is neither in the folder nor lost"))
            }
        }
        Report::Ended => {
            world.storage.close_all(guard);
            let process = &mut world.guards[guard];
            (process.tenure, process.until) = (0, 0);
            Ok(())
        }
        Report::Failed(reason) => Err(format!("guard {guard}: {reason}")),
    }
}
