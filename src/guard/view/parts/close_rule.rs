//! Decides whether the close of a file that is being saved publishes it: yes, if no program is left
//! that has the file open for writing.
//!
//! The kernel tells of each close of a descriptor, but not whether another descriptor of the file
//! is left. So the programs that have to do with the file are looked at: those that opened, wrote
//! or closed it, and their living descendants, who may have inherited a descriptor.
//!
//! No descendant is missed. A descendant has the file only if its parent had it when it was
//! started. As long as the parent lives, the descendant is found below it; before the parent ends
//! it closes the file, and at that close all processes below it that have the file open are
//! remembered themselves. A process is looked at before its children are listed: a child that is
//! started after that look inherits no descriptor of the file, and one that was started before is
//! in the list. A
//! process that closes its descriptor between the two waits for the answer to that close, which
//! comes after this one, so that it can't end in between.
//!
//! The children that a program had before it opened the file did not inherit it, nor did theirs.
//! They are left out: a shell or an editor may have many children with many descriptors. (Two
//! processes that share one table of descriptors are taken for two with tables of their own.)

use crate::guard::disk::linux_disk::LinuxDisk;
use crate::guard::stage::staged_file::StagedFile;
use parking_lot::Mutex;
use std::sync::Arc;

/// The maximum number of processes that are remembered for one file. With more that still run, the
/// file is published when its last descriptor is closed.
const PROCESSES_MAX: usize = 16;

/// The maximum number of children of the opener that are known to be older than the file. The
/// others are looked at.
const OLDER_CHILDREN_MAX: usize = 64;

/// The file of a save.
type Staged = StagedFile<LinuxDisk>;

/// The effect of a close on the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard::view) enum OnClose {
    /// The file is published now.
    Publish,
    /// The file is published when its last descriptor is closed.
    Later,
    /// A signal ended the program. The file is put aside, unless another program closes it.
    Killed,
}

/// The descriptors of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard::view) enum OpenState {
    /// It has the file open for writing, or may have.
    Open,
    /// It has not.
    NotOpen,
    /// It has closed all its descriptors because it is ending.
    Ending,
}

/// One process, as distinct from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard::view) struct ProcessInstance {
    pub(in crate::guard::view) pid: u32,
    /// A number that no later process with this id has.
    pub(in crate::guard::view) number: u64,
}

/// The processes that may have one file open.
pub(in crate::guard::view) trait Processes {
    /// Returns the process of a thread that runs.
    fn process_of(&mut self, tid: u32) -> Option<u32>;

    /// Looks for the file among the descriptors of a thread, or of a process.
    fn table(&mut self, tid: u32) -> OpenState;

    /// Whether a thread that is ending was killed by a signal.
    fn is_killed(&mut self, tid: u32) -> bool;

    /// Returns the living children of the process of a thread; `None` if they can't be listed.
    fn children(&mut self, tid: u32) -> Option<Vec<u32>>;

    /// Returns the process that has an id now.
    fn instance(&mut self, pid: u32) -> Option<ProcessInstance>;
}

/// Returns a look at the processes that may have a node of the view open.
pub(in crate::guard::view) type ProcessLook = Box<dyn Fn(u64) -> Box<dyn Processes> + Send + Sync>;

/// The save of one file: the staged file, and the programs that have to do with it.
pub(in crate::guard::view) struct Saving {
    /// The file without a name.
    pub(in crate::guard::view) staged: Arc<Staged>,
    memory: Mutex<SaveMemory>,
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
struct SaveMemory {
    /// The thread that opened the file first.
    opener: u32,
    /// Whether the process of that thread is among the remembered ones.
    knows_opener: bool,
    /// Children of that process that are older than the file.
    older_children: Vec<ProcessInstance>,
    /// The thread that wrote last.
    last_writer: u32,
    /// The processes that opened, wrote or closed the file, or were found to have it open.
    processes: Vec<u32>,
    /// Whether a process has to do with the file that is not remembered, or can't be seen.
    has_others: bool,
    has_content: bool,
    /// Whether the last close was the end of a program by a signal.
    was_killed: bool,
}

impl SaveMemory {
    fn of(opener: u32) -> Self {
        Self { opener, has_others: opener == 0, knows_opener: opener == 0, ..Self::default() }
    }

    /// Remembers the children that the opener has before it gets the descriptor.
    fn remember_older(mut self, system: &mut dyn Processes) -> Self {
        if self.opener != 0 {
            let children = system.children(self.opener).unwrap_or_default();
            let first = children.into_iter().take(OLDER_CHILDREN_MAX);
            self.older_children = first.filter_map(|child| system.instance(child)).collect();
        }
        self
    }

    /// Whether a process was a child of the opener before that had the file.
    fn is_older(&self, system: &mut dyn Processes, child: u32) -> bool {
        self.older_children
            .iter()
            .any(|older| older.pid == child && system.instance(child).as_ref() == Some(older))
    }

    /// Remembers a process that has to do with the file.
    fn remember(&mut self, system: &mut dyn Processes, process: u32) {
        if self.processes.contains(&process) {
            return;
        }
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.retain(|process| system.process_of(*process).is_some());
        }
        if self.processes.len() >= PROCESSES_MAX {
            self.has_others = true;
        } else {
            self.processes.push(process);
        }
    }

    /// Remembers the process of a thread that has to do with the file.
    fn remember_thread(&mut self, system: &mut dyn Processes, tid: u32) {
        if tid == self.opener {
            return self.remember_opener(system);
        }
        if self.processes.contains(&tid) {
            return;
        }
        match system.process_of(tid) {
            Some(process) => self.remember(system, process),
            None => self.has_others = true,
        }
    }

    /// Remembers the process of the thread that opened the file first. Most files are closed by
    /// that thread, so its process is looked up only if another one has to do with the file.
    fn remember_opener(&mut self, system: &mut dyn Processes) {
        if std::mem::replace(&mut self.knows_opener, true) {
            return;
        }
        match system.process_of(self.opener) {
            Some(process) => self.remember(system, process),
            None => self.has_others = true,
        }
    }

    fn wrote(&mut self, system: &mut dyn Processes, tid: u32) {
        self.has_content = true;
        self.was_killed = false;
        if tid != self.last_writer {
            self.last_writer = tid;
            self.acted(system, tid);
        }
    }

    /// Remembers a thread, unless it is the one that opened the file first.
    fn acted(&mut self, system: &mut dyn Processes, tid: u32) {
        if tid == 0 {
            self.has_others = true;
        } else if tid != self.opener {
            self.remember_opener(system);
            self.remember_thread(system, tid);
        }
    }

    /// Remembers the processes below one that have the file open. Returns whether there are any, or
    /// may be.
    fn remember_below(&mut self, system: &mut dyn Processes, process: u32) -> bool {
        let (mut waiting, mut found) = (vec![process], false);
        while let Some(parent) = waiting.pop() {
            let Some(children) = system.children(parent) else {
                self.has_others = true;
                return true;
            };
            for child in children {
                if self.is_older(system, child) {
                    continue;
                }
                if system.table(child) == OpenState::Open {
                    found = true;
                    self.remember(system, child);
                }
                waiting.push(child);
            }
        }
        found
    }

    /// Whether a process other than the closing one has the file open, or may have.
    fn is_open_elsewhere(&mut self, system: &mut dyn Processes, closing: u32) -> bool {
        if closing != self.opener {
            self.remember_opener(system);
        }
        if self.has_others {
            return true;
        }
        for process in self.processes.clone() {
            if process == closing {
                continue;
            }
            if system.table(process) == OpenState::Open || self.remember_below(system, process) {
                return true;
            }
        }
        false
    }

    fn closed_by(&mut self, system: &mut dyn Processes, tid: u32) -> OnClose {
        self.was_killed = false;
        if tid == 0 {
            self.has_others = true;
            return OnClose::Later;
        }
        let table = system.table(tid);
        let is_open = table == OpenState::Open || self.remember_below(system, tid);
        if table == OpenState::Ending && system.is_killed(tid) {
            self.was_killed = true;
        } else if !is_open && self.has_content && !self.is_open_elsewhere(system, tid) {
            return OnClose::Publish;
        }
        self.remember_thread(system, tid);
        if self.was_killed { OnClose::Killed } else { OnClose::Later }
    }
}

impl Saving {
    /// Returns the save of a file that the thread `opener` is about to get.
    pub(in crate::guard::view) fn new(
        staged: Arc<Staged>,
        opener: u32,
        system: &mut dyn Processes,
    ) -> Arc<Self> {
        let memory = SaveMemory::of(opener).remember_older(system);
        Arc::new(Self { staged, memory: Mutex::new(memory) })
    }

    /// Records that another thread opened the file for writing.
    pub(in crate::guard::view) fn opened(&self, system: &mut dyn Processes, tid: u32) {
        self.memory.lock().acted(system, tid);
    }

    /// Records that a thread changed the content of the file.
    pub(in crate::guard::view) fn wrote(&self, system: &mut dyn Processes, tid: u32) {
        self.memory.lock().wrote(system, tid);
    }

    /// Records that the kernel wrote the pages of a mapping. It does not tell whose mapping it is.
    pub(in crate::guard::view) fn was_written_back(&self) {
        let mut memory = self.memory.lock();
        memory.has_content = true;
        memory.was_killed = false;
    }

    /// Whether the last close was the end of a program by a signal.
    pub(in crate::guard::view) fn was_killed(&self) -> bool {
        self.memory.lock().was_killed
    }

    /// Decides about the close of a descriptor by the thread `tid`.
    pub(in crate::guard::view) fn closed_by(
        &self,
        system: &mut dyn Processes,
        tid: u32,
    ) -> OnClose {
        self.memory.lock().closed_by(system, tid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Processes with their parents, and those that have the file open.
    #[derive(Default)]
    struct World {
        parents: BTreeMap<u32, u32>,
        /// The threads of processes that are not the first.
        threads: BTreeMap<u32, u32>,
        open: BTreeSet<u32>,
        ending: BTreeSet<u32>,
        killed: BTreeSet<u32>,
        hides_children: bool,
        /// The number of processes that had an id before.
        reused: BTreeMap<u32, u64>,
        /// The processes that were looked at.
        inspected: Vec<u32>,
    }

    impl World {
        fn of(parents: &[(u32, u32)]) -> Self {
            Self { parents: parents.iter().copied().collect(), ..Self::default() }
        }

        /// Ends a process, whose children go to the first one.
        fn end(&mut self, pid: u32) {
            self.parents.remove(&pid);
            self.open.remove(&pid);
            self.parents
                .values_mut()
                .filter(|parent| **parent == pid)
                .for_each(|parent| *parent = 1);
        }

        /// The process `pid` closes its descriptors because it ends.
        fn exit(&mut self, memory: &mut SaveMemory, pid: u32) -> OnClose {
            self.open.remove(&pid);
            self.ending.insert(pid);
            let effect = memory.closed_by(self, pid);
            self.end(pid);
            effect
        }

        /// The process `pid` closes its last descriptor of the file.
        fn close(&mut self, memory: &mut SaveMemory, pid: u32) -> OnClose {
            self.open.remove(&pid);
            memory.closed_by(self, pid)
        }

        /// The process `child` is started by another one, whose descriptors it inherits.
        fn fork(&mut self, parent: u32, child: u32) {
            self.parents.insert(child, parent);
            if self.open.contains(&parent) {
                self.open.insert(child);
            }
        }
    }

    impl Processes for World {
        fn process_of(&mut self, tid: u32) -> Option<u32> {
            let process = self.threads.get(&tid).copied().unwrap_or(tid);
            self.parents.contains_key(&process).then_some(process)
        }

        fn table(&mut self, tid: u32) -> OpenState {
            self.inspected.push(tid);
            match self.process_of(tid) {
                Some(process) if self.open.contains(&process) => OpenState::Open,
                Some(process) if self.ending.contains(&process) => OpenState::Ending,
                _ => OpenState::NotOpen,
            }
        }

        fn is_killed(&mut self, tid: u32) -> bool {
            self.killed.contains(&tid)
        }

        fn children(&mut self, tid: u32) -> Option<Vec<u32>> {
            let process = self.process_of(tid);
            let is_child = |(_, parent): &(&u32, &u32)| Some(**parent) == process;
            let children = self.parents.iter().filter(is_child).map(|(child, _)| *child).collect();
            (!self.hides_children).then_some(children)
        }

        fn instance(&mut self, pid: u32) -> Option<ProcessInstance> {
            let number = self.reused.get(&pid).copied().unwrap_or(0);
            self.parents.contains_key(&pid).then_some(ProcessInstance { pid, number })
        }
    }

    /// Returns a world in which process 10 has opened a file and written to it.
    fn written() -> (World, SaveMemory) {
        let mut world = World::of(&[(10, 1)]);
        world.open.insert(10);
        let mut memory = SaveMemory::of(10);
        memory.wrote(&mut world, 10);
        (world, memory)
    }

    #[test]
    fn a_save_of_one_process_is_published_at_its_close_by_one_look() {
        let (mut world, mut memory) = written();
        assert_eq!(world.close(&mut memory, 10), OnClose::Publish);
        assert_eq!(world.inspected, [10]);
    }

    #[test]
    fn children_that_are_older_than_the_file_are_not_looked_at() {
        let mut world = World::of(&[(10, 1), (20, 10), (21, 20)]);
        let mut memory = SaveMemory::of(10).remember_older(&mut world);
        world.open.insert(10);
        memory.wrote(&mut world, 10);
        world.fork(20, 22);
        assert_eq!(world.close(&mut memory, 10), OnClose::Publish);
        assert_eq!(world.inspected, [10]);
    }

    #[test]
    fn a_child_with_the_number_of_an_older_one_counts() {
        let mut world = World::of(&[(10, 1), (20, 10)]);
        let mut memory = SaveMemory::of(10).remember_older(&mut world);
        world.open.insert(10);
        memory.wrote(&mut world, 10);
        world.end(20);
        world.reused.insert(20, 1);
        world.fork(10, 20);
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
        assert_eq!(world.exit(&mut memory, 20), OnClose::Publish);
    }

    #[test]
    fn a_close_of_a_duplicate_does_not_publish() {
        let (mut world, mut memory) = written();
        for _ in 0..3 {
            assert_eq!(memory.closed_by(&mut world, 10), OnClose::Later);
        }
        assert_eq!(world.close(&mut memory, 10), OnClose::Publish);
    }

    #[test]
    fn a_file_without_content_is_published_later() {
        let mut world = World::of(&[(10, 1)]);
        assert_eq!(SaveMemory::of(10).closed_by(&mut world, 10), OnClose::Later);
    }

    #[test]
    fn an_inherited_descriptor_counts_as_long_as_its_process_lives() {
        let (mut world, mut memory) = written();
        world.fork(10, 11);
        world.fork(11, 12);
        world.open.remove(&11);
        assert_eq!(world.exit(&mut memory, 10), OnClose::Later, "12 has it, below 11");
        assert_eq!(world.exit(&mut memory, 12), OnClose::Publish);
    }

    #[test]
    fn a_parent_that_opened_or_wrote_or_closed_counts() {
        // 10 has opened it, and 11 is its child.
        let (mut world, mut memory) = written();
        world.fork(10, 11);
        assert_eq!(world.exit(&mut memory, 11), OnClose::Later);
        assert_eq!(world.close(&mut memory, 10), OnClose::Publish);
        // 20 has written to it, and is no relative.
        let (mut world, mut memory) = written();
        world.parents.insert(20, 1);
        world.open.insert(20);
        memory.wrote(&mut world, 20);
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
        assert_eq!(world.close(&mut memory, 20), OnClose::Publish);
        // 20 has opened it once more, and written nothing.
        let (mut world, mut memory) = written();
        world.parents.insert(20, 1);
        world.open.insert(20);
        memory.acted(&mut world, 20);
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
        assert_eq!(world.close(&mut memory, 20), OnClose::Publish);
        // 11 has closed a copy, and has another; it is no descendant of 10 any more.
        let (mut world, mut memory) = written();
        world.fork(10, 11);
        assert_eq!(memory.closed_by(&mut world, 11), OnClose::Later);
        world.parents.insert(11, 1);
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
        assert_eq!(world.exit(&mut memory, 11), OnClose::Publish);
    }

    #[test]
    fn a_daemon_that_is_started_in_two_steps_counts() {
        for opener_stays in [true, false] {
            let (mut world, mut memory) = written();
            world.fork(10, 11);
            world.fork(11, 12);
            assert_eq!(world.exit(&mut memory, 11), OnClose::Later);
            assert_eq!(world.parents[&12], 1, "nothing leads from 10 to 12");
            let closed = if opener_stays {
                world.close(&mut memory, 10)
            } else {
                world.exit(&mut memory, 10)
            };
            assert_eq!(closed, OnClose::Later);
            world.fork(12, 13);
            assert_eq!(world.exit(&mut memory, 12), OnClose::Later);
            assert_eq!(world.exit(&mut memory, 13), OnClose::Publish);
        }
    }

    /// The file has no content yet when the first two processes end.
    #[test]
    fn a_daemon_that_writes_later_counts() {
        let mut world = World::of(&[(10, 1)]);
        world.open.insert(10);
        let mut memory = SaveMemory::of(10);
        world.fork(10, 11);
        assert_eq!(world.exit(&mut memory, 10), OnClose::Later);
        world.fork(11, 12);
        world.fork(12, 13);
        assert_eq!(world.exit(&mut memory, 11), OnClose::Later);
        memory.wrote(&mut world, 13);
        assert_eq!(world.exit(&mut memory, 13), OnClose::Later);
        assert_eq!(world.exit(&mut memory, 12), OnClose::Publish);
    }

    #[test]
    fn a_killed_program_publishes_nothing_unless_another_one_closes_the_file() {
        let (mut world, mut memory) = written();
        world.fork(10, 11);
        world.killed.insert(10);
        assert_eq!(world.exit(&mut memory, 10), OnClose::Killed);
        assert!(memory.was_killed);
        assert_eq!(world.close(&mut memory, 11), OnClose::Publish);
        assert!(!memory.was_killed);
    }

    #[test]
    fn a_process_that_nobody_can_see_leaves_the_file_for_its_last_close() {
        // The kernel shows no number for a process of a foreign namespace.
        let (mut world, mut memory) = written();
        assert_eq!(memory.closed_by(&mut world, 0), OnClose::Later);
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
        let (mut world, mut memory) = written();
        memory.wrote(&mut world, 0);
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
        let mut memory = SaveMemory::of(0);
        memory.wrote(&mut world, 10);
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
        // Its children can't be listed.
        let (mut world, mut memory) = written();
        world.hides_children = true;
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
        // The thread that opened it is gone, and its process is not known.
        let (mut world, mut memory) = written();
        memory.opener = 77;
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
    }

    #[test]
    fn the_threads_of_a_process_are_one_process() {
        let mut world = World::of(&[(10, 1)]);
        world.threads.extend([(15, 10), (16, 10)]);
        let mut memory = SaveMemory::of(15);
        memory.wrote(&mut world, 16);
        assert_eq!(world.close(&mut memory, 16), OnClose::Publish);
        assert_eq!(memory.processes, [10]);
    }

    #[test]
    fn the_number_of_remembered_processes_is_bounded_and_ended_ones_make_room() {
        let (mut world, mut memory) = written();
        for child in 100..200 {
            world.fork(10, child);
            memory.wrote(&mut world, child);
            assert_eq!(world.exit(&mut memory, child), OnClose::Later);
        }
        assert!(!memory.has_others && memory.processes.len() <= PROCESSES_MAX);
        for child in 200..=200 + PROCESSES_MAX as u32 {
            world.fork(10, child);
            memory.wrote(&mut world, child);
        }
        assert!(memory.has_others);
        assert_eq!(world.close(&mut memory, 10), OnClose::Later);
    }
}
