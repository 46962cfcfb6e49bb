//! Publishes copies of files, for example of lost ones that a person restores.

use super::disk::{Disk, IfThere, Look, Place};
use super::folder_guard::{FolderGuard, SaveError};
use super::gate::Pass;
use super::stage::PublishError;
use std::ffi::OsStr;
use std::io;

impl<D: Disk> FolderGuard<D> {
    /// Publishes a file without a name that was made for this place.
    pub(crate) fn publish_made(
        &self,
        pass: &Pass<'_>,
        copy: &D::File,
        to: Place<'_, D::Dir>,
        path: &OsStr,
        if_there: IfThere,
    ) -> Result<(), PublishError> {
        let Some(stage) = self.stage_of(pass) else {
            return Err(PublishError::Fenced { is_kept: false });
        };
        self.log_publish(copy, to, path).map_err(|error| match error {
            SaveError::Disk(error) => PublishError::Disk(error),
            _ => PublishError::Disk(io::Error::other("the change can't be logged")),
        })?;
        let is_kept = |there: &Look| self.is_kept(&stage, there, pass.owner());
        let published = stage.publish(&*self.disk, copy, to, path, (if_there, &is_kept));
        let displaced = published.map_err(|error| match error {
            PublishError::Stays { name, error } => {
                // The copy has no second name, so a failed removal leaves it to the next fence.
                let _ = self.disk.remove_file(stage.displaced(&name));
                PublishError::Disk(error)
            }
            error => error,
        })?;
        self.log_published(copy, path);
        if let Some(name) = displaced {
            self.keep_displaced((&stage, pass.owner()), &name, path);
        }
        Ok(())
    }
}
