//! The view of a guarded folder: the mount through which programs see the folder, and whose changes
//! pass the gate. Only this part of the guard uses the FUSE layer.

pub(crate) mod parts;
mod folder_view;
mod requests;
mod announcing;
mod operations;
pub(crate) mod mount_view;
