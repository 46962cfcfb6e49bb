//! The view of a guarded folder: the mount through which programs see the folder, and whose changes
//! pass the gate. Only this part of the guard uses the FUSE layer.

mod attributes;
mod nodes;
mod refused_changes;
mod close_rule;
mod open_file;
mod folder_view;
mod lookup;
mod open;
mod data;
mod closing;
mod names;
mod set_attributes;
mod directories;
mod control_files;
mod lost_control;
mod operations;
pub(crate) mod mount_view;
