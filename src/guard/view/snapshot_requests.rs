//! The requests of `latchfs folder-snapshot`: takes, lists, shows, checks, restores and removes
//! snapshots of the folder.

use super::super::audit_log::{AuditedAct, GuardAct};
use super::super::disk::Look;
use super::super::folder_snapshot::descriptor::{SnapshotConsistency, SnapshotDescriptor};
use super::super::folder_snapshot::in_place_restore::{
    InPlaceRestore, RestoreError, RestoredFolder, interrupted_restore,
};
use super::super::folder_snapshot::snapshot_disk::program_name;
use super::super::folder_snapshot::snapshot_store::SnapshotError;
use super::super::folder_snapshot::snapshot_take::{SnapshotTake, TakenAs};
use super::super::guard_request::{SnapshotRequest, refused};
use super::super::tenure::TenureId;
use super::folder_view::{FolderView, MayWait};
use super::open_file::Content;
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::values::{Errno, Requester};
use crate::time::{Span, boot_now};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::Path;

/// The maximum number of snapshots that one answer lists: the newest ones.
const LISTED_MAX: usize = 200;
/// The maximum number of sentences of each of them that a list has.
const LISTED_SENTENCES_MAX: usize = 100;
/// How often a restore in place goes on after the lock service was told of changes.
const ANNOUNCED_TRIES: usize = 1_000;

/// The risk of each snapshot of a folder that other machines may change meanwhile.
const OTHERS_WRITE: &str = "other machines may have been changing files (--mode shared)";

/// Returns the answer for an error.
fn failed(error: &SnapshotError) -> Value {
    let mut answer = refused(error.to_string());
    if let Some(code) = error.code() {
        answer["code"] = code.into();
    }
    answer
}

/// Returns a descriptor as JSON. A user without the right to see all names gets a number instead of
/// sentences.
fn shown(descriptor: &SnapshotDescriptor, may_see: bool) -> Value {
    let mut value = serde_json::to_value(descriptor).unwrap_or_default();
    for (name, sentences) in [("risk", &descriptor.risk), ("degraded", &descriptor.degraded)] {
        if !may_see && !sentences.is_empty() {
            value[name] = json!([format!("{} files", sentences.len())]);
        }
    }
    value
}

impl FolderView {
    /// Carries out a request about snapshots. Returns the answer as JSON.
    pub(super) async fn snapshot_request(&self, who: Requester, request: SnapshotRequest) -> Value {
        let may_see = self.may_see_names(who.uid);
        match &request {
            SnapshotRequest::List => return self.list_snapshots(may_see),
            SnapshotRequest::Show(id) => {
                return match self.snapshots.store().open(id) {
                    Ok((_, _, descriptor)) => shown(&descriptor, may_see),
                    Err(error) => failed(&error),
                };
            }
            _ => {
                if let Err(why) = self.may_ask(who) {
                    return refused(why);
                }
            }
        }
        let done = match request {
            SnapshotRequest::Take { quiet } => self.take_snapshot(who, quiet).await,
            SnapshotRequest::Restore(id) => return self.restore_snapshot(who, id).await,
            SnapshotRequest::Verify(id) => {
                self.slowly(move |view| Ok(view.verify_snapshot(&id))).await
            }
            SnapshotRequest::Remove(id) => {
                self.slowly(move |view| Ok(view.remove_snapshot(&id))).await
            }
            SnapshotRequest::List | SnapshotRequest::Show(_) => Err(Errno::EIO),
        };
        done.unwrap_or_else(|_| refused(self.refused.text(who.uid).trim_end()))
    }

    fn list_snapshots(&self, may_see: bool) -> Value {
        let store = self.snapshots.store();
        let listed = match store.list() {
            Ok(listed) => listed,
            Err(error) => return failed(&SnapshotError::Disk(error)),
        };
        let newest = listed.iter().rev().take(LISTED_MAX);
        let short = |(_, descriptor): &(_, SnapshotDescriptor)| {
            let mut short = descriptor.clone();
            short.risk.truncate(LISTED_SENTENCES_MAX);
            short.degraded.truncate(LISTED_SENTENCES_MAX);
            shown(&short, may_see)
        };
        let all: Vec<_> = newest.map(short).collect();
        json!({"snapshots": all, "restoring": interrupted_restore(&store)})
    }

    /// Returns a sentence for each file that a program has open for writing.
    fn writers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for ino in self.nodes.open_nodes() {
            for open in self.nodes.open_files(ino) {
                let is_of_folder = matches!(open.content, Content::InPlace(_) | Content::Saving(_));
                if open.is_for_writing() && is_of_folder {
                    let path = self.nodes.path(ino).unwrap_or_default();
                    let program = program_name(open.opener);
                    found.push(format!("{} is open for writing by {program}", path.display()));
                }
            }
        }
        found.sort();
        found
    }

    /// Whether a snapshot may share a file with the folder: one with a single name, which was
    /// published as a whole and which no program has open for writing.
    fn may_share(&self, path: &OsStr, look: &Look) -> bool {
        let links = look.links.saturating_sub(self.snapshots.links_of(look.id)).max(1);
        let is_open = || {
            let node = self.nodes.of_file(look.id);
            let open = node.map(|ino| self.nodes.open_files(ino)).unwrap_or_default();
            open.iter().any(|open| open.is_for_writing())
        };
        let may = self.snapshots.may_link
            && links == 1
            && !self.policy.in_place.matches(Path::new(path))
            && !self.guard.is_foreign(look)
            && !is_open();
        if may {
            self.snapshots.share(look.id);
        }
        may
    }

    async fn take_snapshot(&self, who: Requester, quiet: Option<Span>) -> Done<Value> {
        drop(self.pass_unannounced(who, Path::new("."), MayWait::Long).await?);
        self.slowly(move |view| {
            let Some(_one) = view.snapshots.one_change.try_lock() else {
                return Ok(refused(
                    "another snapshot is being taken, restored or removed; try again then",
                ));
            };
            let taken = view.take_now(quiet);
            view.snapshots.begin_work(None);
            Ok(match taken {
                Ok((descriptor, closed_for)) => {
                    let mut answer = shown(&descriptor, true);
                    answer["writers_waited_ms"] = closed_for.as_millis().into();
                    answer
                }
                Err(error) => {
                    view.snapshots.taken(&[]);
                    failed(&error)
                }
            })
        })
        .await
    }

    /// Takes a snapshot. Returns its descriptor, and how long writers had to wait.
    fn take_now(&self, quiet: Option<Span>) -> Result<(SnapshotDescriptor, Span), SnapshotError> {
        let snapshots = &self.snapshots;
        let is_shared = self.guard.is_shared_mode();
        if is_shared && quiet.is_some() {
            return Err(SnapshotError::Shared);
        }
        let wait = |until| {
            snapshots.begin_work(Some("waiting for programs that have files open for writing"));
            let writers = snapshots.wait_for_writers(until, || self.writers());
            let is_over = quiet.is_some() && !writers.is_empty();
            if is_over { Err(SnapshotError::NotQuiet(writers)) } else { Ok(()) }
        };
        let count = || snapshots.count_file();
        let patience = quiet.unwrap_or(Span::ZERO);
        if quiet.is_some() {
            wait(boot_now() + patience)?;
        }
        let may_link = |path: &OsStr, look: &Look| self.may_share(path, look);
        let mut take = SnapshotTake::begin(&self.guard, &snapshots.dir, &may_link)?;
        snapshots.begin_work(Some("copying for a snapshot"));
        take.copy_changed(&count)?;
        // The time for the copy does not count, and each program that comes meanwhile does.
        let until = boot_now() + patience;
        let (risk, closed_for) = loop {
            if quiet.is_some() {
                wait(until)?;
            }
            // Programs that change files wait meanwhile, and so do the others: not longer than it
            // takes to look at each file.
            let last = self.guard.gate().exclusively(|| {
                let (begun, writers) = (boot_now(), self.writers());
                if quiet.is_some() && !writers.is_empty() {
                    return Ok(None);
                }
                take.copy_last()?;
                take.linked().iter().for_each(|look| self.guard.record_own(look));
                Ok::<_, SnapshotError>(Some((writers, boot_now().since(begun))))
            })?;
            if let Some(last) = last {
                break last;
            }
        };
        let others = is_shared.then(|| OTHERS_WRITE.to_owned());
        let risk = others.into_iter().chain(risk).collect();
        let linked = take.linked().to_vec();
        let consistency = if quiet.is_some() {
            SnapshotConsistency::Quiesced
        } else {
            SnapshotConsistency::BestEffort
        };
        let taken_as = TakenAs { folder: snapshots.folder_id.clone(), consistency, risk };
        snapshots.begin_work(Some("reading the snapshot"));
        let descriptor = take.complete(taken_as, &count)?;
        let pass = self.guard.gate().enter(Some(take.tenure()), |_| true);
        let pass = pass.map_err(|_| SnapshotError::TenureOver)?;
        take.publish(&pass)?;
        snapshots.taken(&linked);
        Ok((descriptor, closed_for))
    }

    fn verify_snapshot(&self, id: &str) -> Value {
        let Some(_one) = self.snapshots.one_change.try_lock() else {
            return refused("another snapshot is being taken, restored or removed; try again then");
        };
        self.snapshots.begin_work(Some("checking a snapshot"));
        let verified = self.snapshots.store().verify(id, &|| self.snapshots.count_file());
        self.snapshots.begin_work(None);
        match verified {
            Ok(differences) => {
                let count = differences.len();
                json!({"id": id, "ok": count == 0, "count": count, "differences": differences})
            }
            Err(error) => failed(&error),
        }
    }

    fn remove_snapshot(&self, id: &str) -> Value {
        let Some(_one) = self.snapshots.one_change.try_lock() else {
            return refused("another snapshot is being taken, restored or removed; try again then");
        };
        let store = self.snapshots.store();
        let linked = match store.open(id) {
            Ok((id, _, descriptor)) => {
                self.snapshots.count_linked(id.as_str(), &descriptor, -1).unwrap_or_default()
            }
            Err(_) => Vec::new(),
        };
        let removed = store.remove(id);
        // The removal of a name changes the time of a file, which is no change past the view.
        for look in &linked {
            self.guard.record_own(look);
        }
        match removed {
            Ok(()) => json!({ "removed": id }),
            Err(error) => failed(&error),
        }
    }

    async fn restore_snapshot(&self, who: Requester, id: String) -> Value {
        for _ in 0..ANNOUNCED_TRIES {
            // Announces changes, if that is needed.
            let passed = self.pass(who, Path::new("."), MayWait::Long).await;
            let Ok(tenure) = passed.map(|pass| pass.tenure()) else {
                return refused(self.refused.text(who.uid).trim_end());
            };
            let wanted = id.clone();
            let restored = self.slowly(move |view| {
                let Some(_one) = view.snapshots.one_change.try_lock() else {
                    let why =
                        "another snapshot is being taken, restored or removed; try again then";
                    return Ok(Some(refused(why)));
                };
                let (store, count) = (view.snapshots.store(), || view.snapshots.count_file());
                view.snapshots.begin_work(Some("restoring a snapshot"));
                let done = InPlaceRestore::run(&view.guard, &store, &wanted, (tenure, &count));
                view.snapshots.begin_work(None);
                Ok(match done {
                    Ok(RestoredFolder { changed, not_given }) => {
                        view.audit_restore(who, tenure, &wanted);
                        let not_given = json!(not_given);
                        Some(json!({
                            "restored": wanted, "changed": changed, "not_given": not_given
                        }))
                    }
                    Err(RestoreError::Unannounced) => None,
                    Err(RestoreError::Failed(error)) => Some(failed(&error)),
                })
            });
            match restored.await {
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                Err(_) => break,
            }
        }
        refused("the guard ends, or the lock service does not answer; restore again to finish")
    }

    /// Records that a person has restored a snapshot in place.
    fn audit_restore(&self, who: Requester, tenure: TenureId, id: &str) {
        let (act, token) = (AuditedAct::Restore, Some(tenure.token));
        let session = self.tenures.lock().held_session();
        let reason = format!("uid {} restored the snapshot in place", who.uid);
        self.guard.audit(&GuardAct { act, target: id, token, session, reason: &reason });
    }
}
