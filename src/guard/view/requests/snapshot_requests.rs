//! The requests of `latchfs folder-snapshot`: takes, lists, shows, checks and removes snapshots of
//! the folder. A restore is no request: the program that restores reads the snapshot in the view.
//!
//! Folder snapshots in the view: the complete ones are shown in `.latchfs/snapshots`, and nobody
//! changes them. A file that the folder shares with one gets a new inode before it is changed.

use crate::auth::FolderAct;
use crate::guard::disk::acting_as;
use crate::guard::disk::acting_as::User;
use crate::guard::disk::linux_disk::{LinuxDisk, id_in, stat_at, stat_in};
use crate::guard::disk::operations::{Disk as _, FileId, FileStat, Place};
use crate::guard::folder_snapshot::descriptor::{SnapshotConsistency, SnapshotDescriptor};
use crate::guard::folder_snapshot::snapshot_disk::program_name;
use crate::guard::folder_snapshot::snapshot_store::{
    SnapshotError, TREE, describe, failed, list, remove, shown, verify,
};
use crate::guard::folder_snapshot::snapshot_take::{SnapshotTake, TakenAs};
use crate::guard::guard_request::{SnapshotRequest, refused};
use crate::guard::view::folder_view::{FolderView, Located, LocatedFile, MayWait, errno};
use crate::guard::view::parts::attributes::SNAPSHOTS;
use crate::guard::view::parts::nodes::NodeBase;
use crate::guard::view::parts::nodes::{Node, Nodes};
use crate::guard::view::parts::open_file::Content;
use crate::time::{Span, boot_now};
use kernel::file_system::{DirEntry, Done, Errno, NameIn, NodeEntry, NodeType, Requester};
use rustix::fs::Statx;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

/// The refusal while another request is at work.
const BUSY: &str = "another snapshot is being taken, checked or removed; try again then";
/// Said of a snapshot of a folder in shared mode: it may have files that were half changed.
const OTHERS_WRITE: &str = "other machines may have been changing files (--mode shared)";

const fn consistency(quiet: Option<Span>) -> SnapshotConsistency {
    match quiet {
        Some(_) => SnapshotConsistency::Quiesced,
        None => SnapshotConsistency::BestEffort,
    }
}

impl FolderView {
    /// Carries out a request about snapshots of a user who may make it. Returns the answer as JSON.
    pub(in crate::guard::view) async fn snapshot_request(
        &self,
        who: Requester,
        request: SnapshotRequest,
    ) -> Value {
        let done = match request {
            SnapshotRequest::List => {
                let may_see = self.sees_names(who, FolderAct::ListSnapshots);
                return list(&self.snapshots.store(), may_see);
            }
            SnapshotRequest::Show(id) => {
                let may_see = self.sees_names(who, FolderAct::ShowSnapshot);
                return describe(&self.snapshots.store(), &id, may_see);
            }
            SnapshotRequest::Take { quiet } => self.take_snapshot(who, quiet).await,
            SnapshotRequest::Verify(id) => {
                self.slowly(who, move |view| Ok(view.verify_snapshot(&id))).await
            }
            SnapshotRequest::Remove(id) => {
                self.slowly(who, move |view| Ok(view.remove_snapshot(&id))).await
            }
        };
        done.unwrap_or_else(|_| refused(self.refused.last(self.refused_of(who))))
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
    fn may_share(&self, path: &OsStr, stat: &FileStat) -> bool {
        let links = stat.links.saturating_sub(self.snapshots.links_of(stat.id)).max(1);
        let is_open = || {
            let node = self.nodes.of_file(stat.id);
            let open = node.map(|ino| self.nodes.open_files(ino)).unwrap_or_default();
            open.iter().any(|open| open.is_for_writing())
        };
        let may = self.snapshots.may_link
            && links == 1
            && !self.policy.in_place.matches(Path::new(path))
            && !self.guard.is_foreign(stat)
            && !is_open();
        if may {
            self.snapshots.share(stat.id);
        }
        may
    }

    async fn take_snapshot(&self, who: Requester, quiet: Option<Span>) -> Done<Value> {
        self.after_jump(who, Path::new("."), MayWait::Long).await?;
        // A snapshot may be taken in the tenure of another user.
        if self.guard.gate().tenure().is_none() {
            drop(self.pass_unannounced(who, Path::new("."), MayWait::Long).await?);
        }
        self.slowly(who, move |view| {
            let Some(_one) = view.snapshots.one_change.try_lock() else {
                return Ok(refused(BUSY));
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
        let may_link = |path: &OsStr, stat: &FileStat| self.may_share(path, stat);
        let mut take = SnapshotTake::begin(
            &self.guard,
            &snapshots.dir,
            self.records.client().as_str(),
            &may_link,
            snapshots.bytes_max,
        )?;
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
                take.linked().iter().for_each(|stat| self.guard.record_own(stat));
                Ok::<_, SnapshotError>(Some((writers, boot_now().since(begun))))
            })?;
            if let Some(last) = last {
                break last;
            }
        };
        let others = is_shared.then(|| OTHERS_WRITE.to_owned());
        let risk = others.into_iter().chain(risk).collect();
        let linked = take.linked().to_vec();
        let consistency = consistency(quiet);
        let folder = snapshots.folder_id.clone();
        let taken_as = TakenAs { folder, consistency, risk };
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
            return refused(BUSY);
        };
        self.snapshots.begin_work(Some("checking a snapshot"));
        let answer = verify(&self.snapshots.store(), id, &|| self.snapshots.count_file());
        self.snapshots.begin_work(None);
        answer
    }

    fn remove_snapshot(&self, id: &str) -> Value {
        let Some(_one) = self.snapshots.one_change.try_lock() else {
            return refused(BUSY);
        };
        let store = self.snapshots.store();
        let found = store.open(id).ok();
        let linked = found.as_ref().map_or_else(Vec::new, |(id, _, descriptor)| {
            self.snapshots.linked(id.as_str(), descriptor).unwrap_or_default()
        });
        let answer = remove(&store, id);
        if answer["error"].is_null() {
            self.snapshots.count_linked(&linked, -1);
        }
        // The removal of a name changes the time of a file, which is no change past the view.
        for stat in &linked {
            self.guard.record_own(stat);
        }
        answer
    }
}

impl Nodes {
    /// Returns the node of a file that was found in a snapshot, or of the root of one, and counts
    /// one lookup of it.
    pub(super) fn found_in_snapshot(&self, parent: u64, name: &OsStr, file: FileId) -> u64 {
        let mut table = self.0.lock();
        let root = match table.nodes.get(&parent).map(|node| node.base) {
            Some(NodeBase::Snapshot(root)) => Some(root),
            _ => None,
        };
        let key = (root.unwrap_or(SNAPSHOTS), file);
        if let Some(ino) = table.by_snapshot.get(&key).copied()
            && let Some(node) = table.nodes.get_mut(&ino)
        {
            node.lookups += 1;
            return ino;
        }
        let ino = table.next;
        table.next += 1;
        table.by_snapshot.insert(key, ino);
        let place = Some((parent, name.to_owned()));
        let base = NodeBase::Snapshot(root.unwrap_or(ino));
        table.nodes.insert(ino, Box::new(Node::of(file, place, base)));
        ino
    }
}

impl FolderView {
    /// Returns the entry of a snapshot: the directory with the files of the folder.
    pub(super) fn look_up_snapshot(&self, at: NameIn<'_>) -> Done<NodeEntry> {
        let name = at.name.to_str().ok_or(Errno::ENOENT)?;
        let (_, dir, _) = self.snapshots.store().open(name).map_err(|_| Errno::ENOENT)?;
        let found = stat_at(dir.as_fd(), OsStr::new(TREE)).map_err(|error| errno(&error))?;
        let ino = self.nodes.found_in_snapshot(SNAPSHOTS, at.name, id_in(&found));
        Ok(self.entry(ino, &found, self.cached_for()))
    }

    /// Returns the entry of a file in a snapshot.
    pub(super) fn look_up_in_snapshot(&self, at: NameIn<'_>) -> Done<NodeEntry> {
        let (dir, _) = self.directory(at.parent)?;
        let found = stat_at(dir.as_fd(), at.name).map_err(|error| errno(&error))?;
        let ino = self.nodes.found_in_snapshot(at.parent, at.name, id_in(&found));
        Ok(self.entry(ino, &found, self.cached_for()))
    }

    /// Returns the names of the complete snapshots.
    pub(super) fn snapshot_entries(&self) -> Done<Vec<DirEntry>> {
        let listed = self.snapshots.store().list().map_err(|error| errno(&error))?;
        let entry = |name: &str| DirEntry {
            ino: None,
            kind: NodeType::Directory,
            name: OsStr::new(name).into(),
        };
        Ok(listed.iter().map(|(id, _)| entry(id.as_str())).collect())
    }

    /// Fails if a node lies in a snapshot.
    pub(super) fn check_no_snapshot(&self, ino: u64) -> Done<()> {
        if ino == SNAPSHOTS || self.nodes.is_snapshot(ino) { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Returns the number of names that a file has besides those in snapshots.
    pub(super) fn own_links(&self, found: &Statx) -> u32 {
        if found.stx_nlink < 2 {
            return found.stx_nlink;
        }
        found.stx_nlink.saturating_sub(self.snapshots.links_of(id_in(found))).max(1)
    }

    /// Returns the attributes of a node's file as the view shows them.
    pub(in crate::guard::view) fn shown(&self, ino: u64, found: &Statx) -> Statx {
        let mut shown = self.nodes.shown(ino, found);
        if stat_in(found).is_file {
            shown.stx_nlink = self.own_links(found);
        }
        shown
    }

    /// Gives a file that snapshots share a new inode in the folder, before it is changed. With
    /// `goes_on` the node becomes that of the new file; otherwise, if there was such a file, the
    /// kernel has to look the name up again.
    pub(super) fn leave_snapshots(
        &self,
        ino: u64,
        located: &LocatedFile,
        goes_on: bool,
    ) -> Done<()> {
        let file = id_in(&located.found);
        if located.base != NodeBase::Folder || self.snapshots.links_of(file) == 0 {
            return Ok(());
        }
        match located.located {
            Located::Path(_) => {}
            Located::Saving(_) => return Ok(()),
            // The snapshot may have the only name of the file.
            Located::Open(_) | Located::Kept(_) => return Err(Errno::ESTALE),
        }
        let path = located.path.as_os_str();
        let renew = || self.guard.give_new_inode(path);
        let renewed = acting_as::making(User::owning(&located.found), renew);
        renewed.map_err(|error| errno(&error))?;
        if !goes_on {
            return Err(Errno::ESTALE);
        }
        let (dir, name) =
            LinuxDisk.open_parent(self.guard.folder(), path).map_err(|error| errno(&error))?;
        let renewed = LinuxDisk.stat(Place::new(&dir, &name)).map_err(|error| errno(&error))?;
        self.nodes.renewed(ino, renewed.id);
        Ok(())
    }

    /// Locates a file whose attributes are about to be changed.
    pub(super) fn locate_unshared(&self, ino: u64) -> Done<LocatedFile> {
        let located = self.locate(ino)?;
        self.leave_snapshots(ino, &located, true)?;
        if self.snapshots.links_of(id_in(&located.found)) == 0 {
            return Ok(located);
        }
        self.locate(ino)
    }
}
