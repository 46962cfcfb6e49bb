//! Hard links: `ln A NAME` by the holder of lock `A` takes the lock `NAME`, with the content of `A`
//! and under the inode of `A`.

use crate::engine::{
    Acquire, Annotate, Details, FileAttrs, FileType, Firm, LeaseKey, LeaseTerms, Lifetime,
    LockName, LockView, Op, Outcome, Ownership, Patch, ReadMode, Release, Renew, TextPatch, Token,
};
use crate::fuse::credentials::Caller;
use crate::fuse::inodes::LockNode;
use crate::fuse::mount_parts::Mount;
use crate::fuse::process::lease_users::ProcessHandle;
use crate::fuse::refusals::Act;
use crate::service::Retry;
use kernel::file_system::Errno;
use kernel::file_system::NameIn;
use kernel::file_system::NodeEntry;

/// The maximum number of names of one inode. A change through the inode is sent to the lease of
/// each name; programs that lock by `ln` make two names.
const LINKS_MAX: usize = 64;

/// Takes the lock `NAME` by `ln A NAME`, where `ino` is the inode number of `A`.
pub(crate) async fn link(
    mount: &Mount,
    caller: &Caller,
    ino: u64,
    to: NameIn<'_>,
) -> Result<NodeEntry, Errno> {
    let name = mount.nodes.name_in(caller, Act::Link, to)?;
    let Some(node) = mount.nodes.lock_node(ino) else {
        let sentence = "only a lock can be linked, and to another name of a lock";
        return Err(refused(mount, caller, None, Errno::EPERM, sentence.to_owned()));
    };
    if let Some((errno, sentence)) = wrong_source(&node) {
        return Err(refused(mount, caller, Some(&name), errno, sentence));
    }
    link_to(mount, caller, ino, &node.name, name).await
}

fn refused(
    mount: &Mount,
    caller: &Caller,
    name: Option<&LockName>,
    errno: Errno,
    sentence: String,
) -> Errno {
    mount.nodes.refusals.refused(caller, Act::Link, name, errno, sentence)
}

async fn link_to(
    mount: &Mount,
    caller: &Caller,
    ino: u64,
    of: &LockName,
    name: LockName,
) -> Result<NodeEntry, Errno> {
    let view = mount.nodes.view(caller, Act::Link, of).await?;
    let Some(held) = view.held_by(&caller.client) else {
        let sentence = format!(
            "lock '{}' is not held by {}, and only its holder can link it",
            view.name, caller.client
        );
        return Err(refused(mount, caller, Some(&name), Errno::EPERM, sentence));
    };
    let details = &held.lease.details;
    let attrs = FileAttrs { reads: ReadMode::Text, ..details.attrs() };
    let is_open = matches!(held.lease.hold, Ownership::OpenFile(_));
    let process = details.process().filter(|_| !is_open).and_then(ProcessHandle::reopen);
    let term = match held.lease.life {
        // Until the lease is attached to the open file, it lasts like other leases that are
        // made by file.
        _ if is_open => mount.bindings.term(None),
        Lifetime::Own { ttl, grace, .. } => LeaseTerms::Own(ttl, grace),
        Lifetime::Session(session) => LeaseTerms::Session(session),
    };
    let op = Op::Acquire(Acquire {
        hold: Ownership::Exclusive(None),
        patch: Patch {
            process: Some(process.as_ref().map(|handle| handle.process)),
            ..patch_like(details, attrs)
        },
        ..Acquire::new(name.clone(), caller.client.clone(), term)
    });
    let check = mount.parents.check_of(caller, &op);
    let made = mount.nodes.service.clone().submit_checked(op.into(), check).outcome().await;
    let failed = |failure| mount.nodes.refusals.failed(caller, Act::Link, Some(&name), failure);
    let outcome = made.map_err(failed)?;
    let Outcome::Granted(tenure) = outcome else { return Err(Errno::EEXIST) };
    if let Some(process) = process {
        let client = caller.client.clone();
        let key = LeaseKey { name: name.clone(), client, token: Some(tenure.token) };
        mount.bindings.bind(key, tenure.life, &process);
    }
    let key = held_key(&view, caller);
    let client = caller.client.clone();
    let new = LeaseKey { name: name.clone(), client, token: Some(tenure.token) };
    let linked = if is_open {
        end_with_open_file(mount, caller, held.lease.token, &new).await
    } else {
        Ok(())
    };
    if linked.is_ok() {
        mount.nodes.inodes().linked(ino, &name, tenure.token, &key.name);
    }
    let linked = match linked {
        Ok(()) => read_as_text(mount, caller, ino, key, attrs).await,
        Err(errno) => Err(errno),
    };
    if linked.is_err() {
        // The answer to the program is that it does not have the lock.
        mount.nodes.service.give_back(Op::Release(Release::of(new)));
    }
    linked
}

/// Makes the new lease `key` last as long as an open file holds the linked lock under `token`.
async fn end_with_open_file(
    mount: &Mount,
    caller: &Caller,
    token: Token,
    key: &LeaseKey,
) -> Result<(), Errno> {
    let Some(session) = mount.posix_locks.linked(token, key.clone()) else {
        let sentence = "no open file of this mount holds the lock any more; link it through \
                        the mount in which it is locked";
        return Err(refused(mount, caller, Some(&key.name), Errno::EBUSY, sentence.to_owned()));
    };
    let op = Op::Renew(Renew {
        key: key.clone(),
        term: Some(LeaseTerms::Session(session)),
        firm: Firm::Keep,
        patch: Patch::default(),
        acquires: false,
    });
    let nodes = &mount.nodes;
    let renewed = nodes.service.submit(op.into(), Retry::Never).outcome().await;
    let failed = |failure| nodes.refusals.failed(caller, Act::Link, Some(&key.name), failure);
    renewed.map(|_| ()).map_err(failed)
}

/// Makes reads of both names return the content rather than the status, the last step of `ln`.
async fn read_as_text(
    mount: &Mount,
    caller: &Caller,
    ino: u64,
    key: LeaseKey,
    attrs: FileAttrs,
) -> Result<NodeEntry, Errno> {
    let patch = Patch { attrs: Some(attrs), ..Patch::default() };
    // A failure to set the attributes of the new name is ignored: the name exists, and if its
    // lease has ended in the meantime, its attributes no longer matter.
    let annotate = Op::Annotate(Annotate { key, patch, handover: None });
    let _described = mount.nodes.service.submit(annotate.into(), Retry::Never).await;
    let Some(node) = mount.nodes.lock_node(ino) else { return Err(Errno::EIO) };
    Ok(NodeEntry::uncached(mount.nodes.attr_now(caller, ino, &node).await?))
}

/// Returns the errno and the message for an inode to which no hard link can be made; `None` if one
/// can.
fn wrong_source(node: &LockNode) -> Option<(Errno, String)> {
    if node.file_type == FileType::Directory {
        let sentence = format!("lock '{}' is a directory, which can't be linked", node.name);
        return Some((Errno::EPERM, sentence));
    }
    (node.links.len() >= LINKS_MAX).then(|| {
        let sentence = format!(
            "lock '{}' has {LINKS_MAX} names already, and can have no more; release one of them",
            node.name
        );
        (Errno::EMLINK, sentence)
    })
}

fn patch_like(details: &Details, attrs: FileAttrs) -> Patch {
    Patch {
        holder_id: details.holder_id().cloned(),
        note: details.note().cloned(),
        text: Some(TextPatch::Set(details.shared_text())),
        attrs: Some(attrs),
        ..Patch::default()
    }
}

/// Returns the key of the caller's lease (lock name, client and token), taken from the lock's state
/// `view`.
fn held_key(view: &LockView, caller: &Caller) -> LeaseKey {
    LeaseKey {
        name: view.name.clone(),
        client: caller.client.clone(),
        token: view.held_by(&caller.client).map(|holder| holder.lease.token),
    }
}
