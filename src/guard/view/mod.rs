//! The view of a guarded folder: the mount through which programs see the folder, and whose changes
//! pass the gate. Only this part of the guard uses the FUSE layer.
//!
//! `parts` has the parts of a view that have a state of their own. `folder_view` joins them, and
//! `requests` has what it does for each request; `announcing` makes changes wait until the lock
//! service knows of them. `operations` are the requests of the kernel, and `mount_view` mounts.

pub(crate) mod parts;
mod folder_view;
mod requests;
mod announcing;
mod operations;
pub(crate) mod mount_view;

#[cfg(test)]
mod tests;
