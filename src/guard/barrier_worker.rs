//! The thread that makes the steps of the sync barrier which may take long: it compares the folder
//! and writes markers, while the thread of the tenures answers everybody.

use super::barrier::acceptance::Accepted;
use super::barrier::folder_path::FolderPath;
use super::barrier::handover::{Handover, PreviousTenure};
use super::disk::Disk;
use super::folder_barrier::Arrival;
use super::folder_changes::FolderBarrier;
use super::folder_guard::FolderGuard;
use super::late_changes::Late;
use super::tenure::TenureId;
use crate::base::said;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A step that may take long.
pub(super) enum Job {
    /// Looks after the changes of an ended tenure.
    Late(PreviousTenure, u64),
    /// Looks whether the folder is ready for a tenure.
    Look(PreviousTenure, TenureId),
    /// Writes a marker of a tenure. `true`: its gate has closed for good.
    Mark(TenureId, bool),
    /// Prepares the acceptance of some paths, or of the whole folder, with this reason.
    Accept(PreviousTenure, TenureId, BTreeSet<FolderPath>, String),
    /// Puts the content of a conflict copy, the second path, back.
    PutBack(PreviousTenure, TenureId, FolderPath, FolderPath),
    /// Removes markers that nobody needs any more.
    CleanUp,
}

/// The result of a step.
pub(super) enum JobDone {
    Late(Result<Late, String>),
    /// With the change time before which the folder was compared.
    Looked(TenureId, Option<i128>, Result<Arrival, String>),
    Marked(TenureId, bool, Result<Option<Vec<FolderPath>>, String>),
    Accepting(TenureId, Option<i128>, Accepting),
}

/// The acceptance with its handover, or why it can't be made.
type Accepting = Result<Result<Box<(Accepted, Handover)>, Arrival>, String>;

/// The thread, and the way to it.
pub(super) struct BarrierWorker(Sender<Job>);

impl BarrierWorker {
    /// Starts the thread for a guard that has a barrier. It calls `done` with each result.
    pub(super) fn start<D: Disk>(
        guard: Arc<FolderGuard<D>>,
        done: impl Fn(JobDone) + Send + 'static,
    ) -> io::Result<Option<Self>> {
        let Some(barrier) = guard.barrier().cloned() else { return Ok(None) };
        let (send, jobs) = channel();
        let work = move || run(&guard, &barrier, &jobs, &done);
        std::thread::Builder::new().name("barrier".to_owned()).spawn(work)?;
        Ok(Some(Self(send)))
    }

    /// Gives the thread a step.
    pub(super) fn begin(&self, job: Job) {
        // The send fails only if the thread has panicked; then nothing is ready any more.
        let _ = self.0.send(job);
    }
}

/// Returns the change time before which no change is made from now on. Without one, all that came
/// since the tenure began counts as foreign, and is kept.
fn since<D: Disk>(guard: &FolderGuard<D>) -> Option<i128> {
    let time = guard.change_time();
    time.inspect_err(|error| log::warn!("no file can be made: {}", said(error))).ok()
}

fn run<D: Disk>(
    guard: &FolderGuard<D>,
    barrier: &FolderBarrier<D>,
    jobs: &Receiver<Job>,
    done: &dyn Fn(JobDone),
) {
    let keep = |paths: &[&FolderPath], marker: Option<&str>| guard.keep_copies(paths, marker);
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Late(previous, engine) => {
                done(JobDone::Late(barrier.late(&previous, engine, &keep)));
            }
            Job::Look(previous, tenure) => {
                let (engine, since) = (tenure.engine, since(guard));
                // Before the folder is compared: afterwards the changes are no longer this
                // tenure's.
                let looked = barrier.late(&previous, engine, &keep);
                let looked = looked.and_then(|_| barrier.look(&previous, engine));
                let is_ready = matches!(looked, Ok(Arrival::Ready(_)));
                done(JobDone::Looked(tenure, since, looked));
                if is_ready {
                    guard.remove_told_copies(barrier, &previous);
                }
            }
            Job::Mark(tenure, is_last) => {
                let marked = barrier.mark(guard.gate(), tenure, is_last);
                done(JobDone::Marked(tenure, is_last, marked));
            }
            Job::Accept(previous, tenure, paths, reason) => {
                let since = since(guard);
                let accepted = barrier.begin_acceptance(&previous, tenure.engine, (&paths, reason));
                let accepted = accepted.map(|accepted| accepted.map(Box::new));
                done(JobDone::Accepting(tenure, since, accepted));
            }
            Job::PutBack(previous, tenure, path, copy) => {
                let since = since(guard);
                let put = guard.put_back(barrier, (&previous, tenure), (&path, &copy));
                done(match put.and_then(|()| barrier.look(&previous, tenure.engine)) {
                    Ok(Arrival::Ready(arrived)) => {
                        JobDone::Looked(tenure, since, Ok(Arrival::Ready(arrived)))
                    }
                    put => JobDone::Accepting(tenure, since, put.map(Err)),
                });
            }
            Job::CleanUp => barrier.remove_old_markers(),
        }
    }
}
