//! A run of many turns by several machines, with faults.

use crate::syncing::access::Access;
use crate::syncing::ledger::{Ledger, Work, logs_in, run_turn};
use crate::syncing::random::Random;
use crate::syncing::sync_tool::SyncTool;
use crate::syncing::toy_sync::{Stat, files_in, is_conflict_copy};
use latchfs::time::boot_now;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use testing::Scratch;
use testing::poll;

/// The number of polls until all folders have the same content.
const POLLS_MAX: usize = 30_000;
/// The number of polls for which all folders must have the same content. Another version may still
/// be on its way to a machine that has sent none yet.
const SAME_LOOKS: usize = 10;
/// One of so many turns begins with a machine that gives up, and one with a guard that is killed.
const GIVEN_UP: usize = 6;
const KILLED: usize = 8;
/// Every so many turns a machine goes offline, and for how many turns it stays so.
const OFFLINE_EVERY: usize = 12;
const OFFLINE_TURNS: usize = 4;

/// The settings of a run.
pub(crate) struct Course {
    pub(crate) name: &'static str,
    pub(crate) machines: usize,
    pub(crate) turns: usize,
    pub(crate) seed: u64,
    /// The number of kills of a sync tool in the middle of a transfer.
    pub(crate) tool_kills: usize,
}

/// The result of a run.
pub(crate) struct Tally {
    pub(crate) ledger: Ledger,
    pub(crate) lost: usize,
    pub(crate) conflict_copies: Vec<PathBuf>,
    pub(crate) faults: Faults,
}

/// How often each fault took place.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Faults {
    pub(crate) offline: usize,
    pub(crate) given_up: usize,
    pub(crate) killed: usize,
    pub(crate) tool_killed: usize,
}

/// A scratch folder for each machine.
pub(crate) fn machines(count: usize) -> Vec<Scratch> {
    (0..count).map(|_| Scratch::with_folder()).collect()
}

pub(crate) fn folders_of(machines: &[Scratch]) -> Vec<PathBuf> {
    machines.iter().map(Scratch::folder).collect()
}

/// The digests of a folder's files, each computed again only when the file has changed.
#[derive(Default)]
struct FolderDigests(BTreeMap<PathBuf, (Option<Stat>, [u8; 32])>);

impl FolderDigests {
    /// Returns the digest of each file.
    fn of(&mut self, folder: &Path) -> BTreeMap<PathBuf, [u8; 32]> {
        let mut current = BTreeMap::new();
        for path in files_in(folder) {
            let real = folder.join(&path);
            let stat = Stat::at(&real);
            let digest = match self.0.get(&path) {
                Some((known, digest)) if *known == stat => *digest,
                _ => Sha256::digest(fs::read(&real).unwrap_or_default()).into(),
            };
            current.insert(path, (stat, digest));
        }
        self.0 = current;
        self.0.iter().map(|(path, (_, digest))| (path.clone(), *digest)).collect()
    }
}

/// Waits until all folders have the same files with the same content. A sync tool's own word about
/// its state would not do.
pub(crate) fn wait_until_same(folders: &[PathBuf]) {
    let mut known: Vec<_> = folders.iter().map(|_| FolderDigests::default()).collect();
    let mut same = 0;
    poll(POLLS_MAX, "the same files in all folders", || {
        let digests = known.iter_mut().zip(folders).map(|(known, folder)| known.of(folder));
        let digests: Vec<_> = digests.collect();
        same = if digests.iter().all(|one| *one == digests[0]) { same + 1 } else { 0 };
        (same == SAME_LOOKS).then_some(())
    });
}

/// A run that is under way.
struct Run<'a> {
    course: &'a Course,
    folders: Vec<PathBuf>,
    tool: &'a mut dyn SyncTool,
    access: &'a mut dyn Access,
    random: Random,
    ledger: Ledger,
    faults: Faults,
    /// The machine that is offline, and the turns for which it stays so.
    offline: Option<(usize, usize)>,
    last: usize,
}

impl Run<'_> {
    /// Returns a machine that is not offline.
    fn draw_machine(&mut self) -> usize {
        match self.offline {
            Some((offline, _)) => self.random.below_except(self.course.machines, offline),
            None => self.random.below(self.course.machines),
        }
    }

    /// Begins or ends a time in which a machine is offline. The machine of the last turn is never
    /// the one: its files could not reach the others.
    fn change_network(&mut self, number: usize) {
        if let Some((machine, turns)) = self.offline {
            self.offline = (turns > 0).then(|| (machine, turns - 1));
            if turns == 0 {
                self.tool.resume(machine);
            }
        } else if self.course.machines > 2 && number % OFFLINE_EVERY == 5 {
            let machine = self.random.below_except(self.course.machines, self.last);
            self.tool.stop(machine);
            self.offline = Some((machine, OFFLINE_TURNS));
            self.faults.offline += 1;
        }
    }

    /// Has a machine begin a turn that does not come to its work. One that is offline does so in
    /// each of these ways: the files of the last turn can't have arrived there.
    fn disturb(&mut self) {
        let drawn = self.random.below_except(self.course.machines, self.last);
        let (machine, turns) = self.offline.unwrap_or((drawn, 0));
        let (gives_up, is_killed) = (self.random.one_in(GIVEN_UP), self.random.one_in(KILLED));
        if gives_up || turns == OFFLINE_TURNS - 1 {
            self.faults.given_up += usize::from(self.access.give_up_while_arriving(machine));
        }
        if is_killed || turns == OFFLINE_TURNS - 2 {
            self.faults.killed += usize::from(self.access.kill_while_arriving(machine));
        }
    }

    fn turn(&mut self, number: usize, machine: usize, work: Work) {
        let name = format!("t{number}-m{machine}");
        let dir = self.access.take(machine);
        let printed = run_turn(&dir, work, &name, self.random.next());
        self.access.give(machine);
        self.tool.changed(machine);
        self.ledger.enter(&name, &printed);
        self.last = machine;
    }

    /// Has a machine change a large file, and kills the tool of another one that receives it.
    fn kill_tool(&mut self, number: usize) {
        let machine = self.draw_machine();
        let receiver = match self.offline {
            Some(_) => (0..self.course.machines)
                .find(|at| *at != machine && self.offline.is_none_or(|(off, _)| off != *at)),
            None => Some(self.random.below_except(self.course.machines, machine)),
        };
        let receiver = receiver.expect("three machines, of which one is offline");
        if !self.tool.slow_down(receiver) {
            return self.turn(number, machine, Work::ChangeLargeFile);
        }
        self.turn(number, machine, Work::ChangeLargeFile);
        let is_hit = self.tool.kill_while_receiving(receiver, "blob");
        self.faults.tool_killed += usize::from(is_hit);
    }

    fn go(&mut self) {
        let kill_every = self.course.turns / (self.course.tool_kills + 1);
        for number in 1..=self.course.turns {
            self.change_network(number);
            self.disturb();
            if number % kill_every == 0 && number / kill_every <= self.course.tool_kills {
                self.kill_tool(number);
            } else {
                let machine = self.draw_machine();
                self.turn(number, machine, Work::Change);
            }
        }
        if let Some((machine, _)) = self.offline.take() {
            self.tool.resume(machine);
        }
    }

    /// Returns the number of lost increments: of those that some machine misses once all folders
    /// are the same.
    fn lost(&mut self) -> usize {
        wait_until_same(&self.folders);
        let mut most = 0;
        for machine in 0..self.course.machines {
            let dir = self.access.take(machine);
            let printed = run_turn(&dir, Work::Check, "check", 0);
            self.access.give(machine);
            self.tool.changed(machine);
            most = most.max(self.ledger.lost(&logs_in(&printed)));
        }
        most
    }
}

/// Makes the files of the turns in a folder.
pub(crate) fn make_files(folder: &Path) {
    run_turn(folder, Work::Make, "start", 0);
}

/// Takes all turns, and prints a line of results.
pub(crate) fn run(
    course: &Course,
    folders: &[PathBuf],
    tool: &mut dyn SyncTool,
    access: &mut dyn Access,
) -> Tally {
    println!("{}: seed {}", course.name, course.seed);
    let began = boot_now();
    let mut run = Run {
        course,
        folders: folders.to_vec(),
        tool,
        access,
        random: Random::new(course.seed),
        ledger: Ledger::default(),
        faults: Faults::default(),
        offline: None,
        last: 0,
    };
    run.go();
    let of_turns = boot_now().since(began).as_millis() / 1_000;
    let lost = run.lost();
    let mut copies = files_in(&folders[0]);
    copies.retain(|path| is_conflict_copy(path));
    let tally = Tally { lost, conflict_copies: copies, faults: run.faults, ledger: run.ledger };
    let seconds = boot_now().since(began).as_millis() / 1_000;
    let Faults { offline, given_up, killed, tool_killed } = tally.faults;
    println!(
        "{}: {} turns of {} machines, {} increments: {lost} lost, {} starts torn, {} old, \
         {} conflict copies, {} failures; {offline} times offline, {given_up} given up and \
         {killed} killed while arriving, {tool_killed} tools killed; {of_turns} s of \
         turns, {seconds} s in all",
        course.name,
        tally.ledger.turns,
        course.machines,
        tally.ledger.increments(),
        tally.ledger.torn,
        tally.ledger.old,
        tally.conflict_copies.len(),
        tally.ledger.failed.len(),
    );
    tally
}
