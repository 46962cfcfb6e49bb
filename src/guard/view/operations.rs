//! The operations of the view as the kernel requests them.

use super::folder_view::FolderView;
use crate::guard::stage::gate::CACHED_FOR;
use crate::guard::view::parts::open_file::Content;
use crate::guard::view::parts::record_nodes::LOCKS_INO;
use crate::guard::view::parts::second_opens::Needs;
use kernel::file_system::{
    DirPage, Errno, FileOffset, FileSystemStats, LockFound, LockRequest, NewMode, NodeAttr,
    NodeEntry, Opened, PollEvents, ReadBytes, ReadRequest, RenameFlags, Requester, SetAttrs,
    WriteRequest,
};
use kernel::file_system::{Done, FileSystem, NameIn, Unsupported};
use kernel::notifications::Invalidator;
use kernel::notifications::PollWaker;
use rustix::fs::XattrFlags;
use std::ffi::OsStr;

impl FileSystem for FolderView {
    fn started(&self) {
        log::debug!("names and attributes are cached for {:?}", CACHED_FOR.as_duration());
    }

    fn attached(&self, invalidator: Invalidator) {
        let _ = self.invalidator.set(invalidator);
    }

    async fn lookup(&self, who: Requester, at: NameIn<'_>) -> Done<NodeEntry> {
        if let Some(found) = self.look_up_record(who, at).await {
            return found;
        }
        match self.second_opens.needs(who, at) {
            None => self.look_up(at),
            Some(needs) => self.look_up_again(who, at, needs),
        }
    }

    fn forget(&self, ino: u64, count: u64) {
        self.nodes.forget(ino, count);
    }

    async fn getattr(&self, who: Requester, ino: u64, _fh: Option<u64>) -> Done<NodeAttr> {
        let attr = self.attributes_of(who, ino);
        self.note_failed(who, ino, Needs::Content, &attr);
        attr
    }

    async fn setattr(&self, who: Requester, ino: u64, wanted: &SetAttrs) -> Done<NodeAttr> {
        self.set_attributes(who, ino, wanted).await
    }

    async fn readlink(&self, _who: Requester, ino: u64) -> Done<ReadBytes> {
        self.link_target(ino)
    }

    async fn mkdir(&self, who: Requester, at: NameIn<'_>, mode: NewMode) -> Done<NodeEntry> {
        self.make_dir(who, at, mode).await
    }

    async fn mknod(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: NewMode,
        device: u32,
    ) -> Done<NodeEntry> {
        self.make_node(who, at, mode, device).await
    }

    async fn unlink(&self, who: Requester, at: NameIn<'_>) -> Done<()> {
        if at.parent == LOCKS_INO {
            return self.remove_record(who, at).await;
        }
        self.remove_file(who, at).await
    }

    async fn rmdir(&self, who: Requester, at: NameIn<'_>) -> Done<()> {
        self.remove_dir(who, at).await
    }

    async fn symlink(&self, who: Requester, at: NameIn<'_>, target: &OsStr) -> Done<NodeEntry> {
        self.make_symlink(who, at, target).await
    }

    async fn rename(
        &self,
        who: Requester,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> Done<()> {
        if from.parent == LOCKS_INO && to.parent == LOCKS_INO {
            return self.rename_record(who, from, to, flags).await;
        }
        self.rename_entry(who, from, to, flags).await
    }

    async fn link(&self, who: Requester, ino: u64, to: NameIn<'_>) -> Done<NodeEntry> {
        self.make_link(who, ino, to).await
    }

    async fn create(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: NewMode,
        flags: i32,
    ) -> Done<(NodeEntry, Opened)> {
        if at.parent == LOCKS_INO {
            return self.create_record(who, at, flags).await;
        }
        self.create_file(who, at, mode, flags).await
    }

    async fn open(&self, who: Requester, ino: u64, flags: i32) -> Done<Opened> {
        if let Some(opened) = self.open_record(who, ino) {
            return opened;
        }
        let opened = self.open_file(who, ino, flags).await;
        match opened {
            Err(Errno::ESTALE) => self.note_failed(who, ino, Needs::of(flags), &opened),
            Ok(_) | Err(_) => self.second_opens.opened(who),
        }
        opened
    }

    async fn read(&self, who: Requester, asked: ReadRequest) -> Done<ReadBytes> {
        let open = self.open_of(asked.fh)?;
        match &open.content {
            Content::Control(handle) => self.read_control(handle, asked, who).await,
            Content::Record(handle) => self.read_record(handle, asked).await,
            Content::InPlace(_) | Content::Saving(_) | Content::Local(..) => {
                Self::read_file(&open, asked)
            }
        }
    }

    async fn write(&self, who: Requester, asked: WriteRequest, data: &[u8]) -> Done<u32> {
        let open = self.open_of(asked.fh)?;
        match &open.content {
            Content::Control(handle) => self.write_control(handle, data).await,
            Content::Record(handle) => self.write_record(who, handle, asked.offset, data).await,
            Content::InPlace(_) | Content::Saving(_) | Content::Local(..) => {
                self.wake_to_write(who, &open, asked).await?;
                self.announce_open(who, &open, false).await?;
                self.write_file(who, asked, data)
            }
        }
    }

    async fn flush(&self, who: Requester, ino: u64, fh: u64, _owner: u64) -> Done<()> {
        if let Some(handle) = self.open_of(fh)?.record() {
            return handle.check_whole();
        }
        self.announce_open(who, &*self.open_of(fh)?, true).await?;
        if self.policy.sync_saves {
            return self.slowly(who, move |view| view.flush_file(who, ino, fh)).await;
        }
        self.flush_file(who, ino, fh)
    }

    fn release(&self, ino: u64, fh: u64) {
        self.release_file(ino, fh);
    }

    async fn fsync(&self, who: Requester, ino: u64, fh: u64, data_only: bool) -> Done<()> {
        if let Some(handle) = self.open_of(fh)?.record() {
            return handle.check_whole();
        }
        self.announce_open(who, &*self.open_of(fh)?, true).await?;
        self.slowly(who, move |view| view.sync_file(who, ino, fh, data_only)).await
    }

    async fn fsyncdir(&self, who: Requester, ino: u64, _fh: u64) -> Done<()> {
        self.slowly(who, move |view| view.sync_dir(ino)).await
    }

    fn opendir(&self, who: Requester, ino: u64) -> Done<Opened> {
        self.open_dir(who, ino)
    }

    async fn readdir(
        &self,
        who: Requester,
        ino: u64,
        fh: u64,
        index: u64,
        anew: bool,
    ) -> Done<DirPage> {
        if ino == LOCKS_INO {
            return self.list_records().await;
        }
        if anew && self.has_local_files(ino) {
            // All names of local files are read at once.
            return self.slowly(who, move |view| view.read_dir(ino, fh, index, anew)).await;
        }
        self.read_dir(ino, fh, index, anew)
    }

    fn releasedir(&self, fh: u64) {
        self.dirs.remove(fh);
    }

    fn statfs(&self) -> FileSystemStats {
        self.statistics()
    }

    async fn setxattr(
        &self,
        who: Requester,
        ino: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Done<()> {
        let flags = XattrFlags::from_bits_retain(flags as u32);
        self.set_xattr(who, ino, name, value, flags).await
    }

    async fn getxattr(&self, who: Requester, ino: u64, name: &OsStr) -> Done<Vec<u8>> {
        let value = self.attribute(who, ino, name);
        self.note_failed(who, ino, Needs::Content, &value);
        value
    }

    async fn listxattr(&self, who: Requester, ino: u64) -> Done<Vec<u8>> {
        self.attribute_names(who, ino)
    }

    async fn removexattr(&self, who: Requester, ino: u64, name: &OsStr) -> Done<()> {
        self.set_attribute(who, ino, |path| rustix::fs::removexattr(path, name)).await
    }

    async fn fallocate(
        &self,
        who: Requester,
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Done<()> {
        let open = self.open_of(fh)?;
        self.wake(who, &open).await?;
        self.announce_open(who, &open, false).await?;
        self.slowly(who, move |view| view.allocate(who, fh, offset, length, mode)).await
    }

    async fn lseek(&self, _who: Requester, fh: u64, offset: i64, whence: i32) -> Done<i64> {
        self.seek(fh, offset, whence)
    }

    async fn copy_file_range(
        &self,
        who: Requester,
        from: FileOffset,
        to: FileOffset,
        length: u64,
    ) -> Done<u32> {
        let open = self.open_of(to.fh)?;
        self.wake(who, &open).await?;
        self.announce_open(who, &open, false).await?;
        self.slowly(who, move |view| view.copy_range(who, from, to, length)).await
    }

    async fn ioctl(&self, _who: Requester, _ino: u64, _fh: u64, _command: u32) -> Done<Vec<u8>> {
        Err(Errno::ENOTTY)
    }

    // The kernel itself grants locks on files of a view, and polls them as regular files.

    async fn getlk(&self, _who: Requester, _asked: LockRequest) -> Done<LockFound> {
        Err(Errno::ENOSYS)
    }

    async fn setlk(&self, _who: Requester, _asked: LockRequest, _sleep: bool) -> Done<()> {
        Err(Errno::ENOSYS)
    }

    async fn poll(&self, _: u64, _: PollEvents, _: Option<PollWaker>) -> Option<PollEvents> {
        None
    }

    fn unsupported(&self, _operation: Unsupported) -> Errno {
        Errno::ENOTSUP
    }

    fn ended(&self) {
        self.control.end();
    }
}
