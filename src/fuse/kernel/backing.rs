//! Backing files: files of another file system from which the kernel itself reads files of a mount
//! (`FUSE_PASSTHROUGH`).

use fuser::{BackingId, ReplyOpen};
use std::fs::File;
use std::io;

/// A file from which the kernel reads a file of a mount. The kernel forgets it when this value is
/// dropped, which must not happen while a file of the mount is open with it.
#[derive(Debug)]
pub(crate) struct BackingFile {
    file: File,
    pub(super) id: BackingId,
}

impl BackingFile {
    /// Returns the file, for requests that the kernel does not answer itself.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }
}

/// Makes backing files for the reply to an open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackingOpener<'a>(Option<&'a ReplyOpen>);

impl<'a> BackingOpener<'a> {
    /// For opens that no kernel has asked for.
    #[cfg(test)]
    pub(crate) const NONE: BackingOpener<'static> = BackingOpener(None);

    /// Returns the opener for the reply to one request.
    pub(super) const fn of(reply: &'a ReplyOpen) -> Self {
        Self(Some(reply))
    }

    /// Makes a file the backing file of a file of the mount. Returns the file with the error if the
    /// kernel refuses it: with EPERM if a user other than root has mounted, and with ELOOP if the
    /// file lies on a file system that is stacked on another one.
    pub(crate) fn open(self, file: File) -> Result<BackingFile, (File, io::Error)> {
        let opened = self.0.map_or_else(
            || Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            |reply| reply.open_backing(&file),
        );
        match opened {
            Ok(id) => Ok(BackingFile { file, id }),
            Err(error) => Err((file, error)),
        }
    }
}
