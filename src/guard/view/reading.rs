//! Opens files for reading. The kernel reads large files of the folder by itself, without the
//! guard and without a second copy of their pages (`FUSE_PASSTHROUGH`).
//!
//! While a node is read in this way the kernel accepts no other open of it: not for writing, since
//! each change must pass the gate. A program that opens the file for writing gets ESTALE for an
//! answer, upon which the kernel looks the name up once more and finds another node of the same
//! file. Readers keep the first node. The two nodes have nothing in common in the kernel: neither
//! locks, nor inode numbers, nor watches. Therefore files that programs change in place while
//! others read them are not read in this way, as far as that can be foreseen.

use super::super::linux_disk::{id_in, stat};
use super::folder_view::{FolderView, Located, LocatedFile};
use super::node_files::NextSource;
use super::node_files::NodeBase;
use super::open_file::{Content, OpenFile};
use super::second_opens::FoundFile;
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::file_system::Requester;
use crate::fuse::kernel::file_system::{Errno, Opened};
use crate::fuse::kernel::handles::BackingOpener;
use crate::fuse::kernel::handles::Share;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

/// How often the source of a reader's content is chosen before the kernel has to find another
/// node.
const READ_TRIES: usize = 4;

impl FolderView {
    /// Locates a file that a program opens. If its name leads to another file by now, the kernel
    /// has to look the name up: a program must not get an older version, whose content nobody would
    /// find after it was changed. A file that was replaced after the second lookup is opened
    /// nevertheless, as if the open had come before.
    pub(super) fn locate_to_open(&self, ino: u64, found: Option<FoundFile>) -> Done<LocatedFile> {
        match self.locate(ino) {
            Ok(LocatedFile { located: Located::Open(_), .. })
                if found.is_none() && self.nodes.leave_place(ino) =>
            {
                Err(Errno::ESTALE)
            }
            Err(error) => {
                let kept = found.ok_or(error)?.file;
                let known = self.nodes.known(ino)?;
                let found = stat(kept.as_fd()).map_err(|_| error)?;
                if id_in(&found) != known.file {
                    return Err(error);
                }
                let (located, path) = (Located::Kept(kept), known.path.unwrap_or_default());
                let (base, below) = (known.base, known.below.unwrap_or_default());
                Ok(LocatedFile { located, found, path, base, below })
            }
            located => located,
        }
    }

    /// Opens a file for a program that only reads it.
    pub(super) fn open_for_reading(
        &self,
        who: Requester,
        ino: u64,
        (flags, share): (i32, Share),
        (opener, found): (BackingOpener<'_>, Option<FoundFile>),
    ) -> Done<Opened> {
        let located = self.locate_to_open(ino, found)?;
        self.note_read(who, &located.found);
        let mut share = share;
        // Another program may open or close the node meanwhile, so that it is read in another way.
        for _ in 0..READ_TRIES {
            let content = self.content_to_read(&located, (ino, flags), opener)?;
            match self.add_open(OpenFile::new(ino, content, None, (who, share))) {
                Ok(reply) => return Ok(reply),
                Err(Some(free)) => share = free,
                Err(None) => break,
            }
        }
        Err(Errno::ESTALE)
    }

    fn content_to_read(
        &self,
        located: &LocatedFile,
        (ino, flags): (u64, i32),
        opener: BackingOpener<'_>,
    ) -> Done<Content> {
        let is_able = flags & (libc::O_DIRECT | libc::O_TRUNC) == 0;
        Ok(match (&located.located, self.nodes.next_source(ino)) {
            (_, NextSource::Backing(backing)) if is_able => Content::Backed(backing),
            (Located::Saving(saving), _) => Content::Saving(Arc::clone(saving)),
            (Located::Path(_) | Located::Open(_) | Located::Kept(_), next) => {
                let file = self.reopen(located, flags)?;
                let is_free = is_able && matches!(next, NextSource::Any);
                if is_free && self.may_be_backed(located, &file) {
                    self.passthrough.back(file, opener)
                } else {
                    Content::InPlace(file)
                }
            }
        })
    }

    /// Whether the kernel may read a file by itself: one that programs replace as a whole.
    fn may_be_backed(&self, located: &LocatedFile, file: &File) -> bool {
        located.base != NodeBase::Local
            && self.is_whole(located)
            && self.passthrough.suits(file, located.found.stx_size)
    }

    /// Records an open file, unless the other open files of its node have another source of their
    /// content. Then the file gets another node, which the kernel finds after ESTALE.
    pub(super) fn opened(&self, open: OpenFile) -> Done<Opened> {
        self.add_open(open).map_err(|_| Errno::ESTALE)
    }

    /// Records an open file. Returns its share if the other open files of its node have another
    /// source of their content.
    fn add_open(&self, open: OpenFile) -> Result<Opened, Option<Share>> {
        let (fh, ino, flags) = (self.numbers.next(), open.ino, open.flags());
        let backing = open.backing().cloned();
        let open = Arc::new(open);
        if !self.nodes.opened(ino, &open) {
            self.forget_attributes(ino);
            return Err(Arc::into_inner(open).map(|open| open.share));
        }
        self.files.insert_shared(fh, open);
        Ok(match backing {
            Some(backing) => Opened::by_backing(fh, backing),
            None => Opened::by_requests(fh, flags),
        })
    }
}
