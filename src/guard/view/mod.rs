//! The view of a guarded folder: the mount through which programs see the folder, and whose changes
//! pass the gate. Only this part of the guard uses the FUSE layer.

mod attributes;
mod refused_changes;
mod kernel_wait;
mod control_files;
mod close_rule;
mod open_file;
mod nodes;
mod directories;
mod folder_view;
mod lookup;
mod open;
mod data;
mod closing;
mod names;
mod set_attributes;
mod control_requests;
mod lost_control;
mod operations;
pub(crate) mod mount_view;
