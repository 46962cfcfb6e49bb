//! The view of a guarded folder: the mount through which programs see the folder, and whose changes
//! pass the gate. Only this part of the guard uses the FUSE layer.

mod attributes;
mod refused_changes;
mod kernel_wait;
mod control_files;
mod close_rule;
mod database_files;
mod open_file;
mod passthrough;
mod node_files;
mod new_files;
mod local_dir;
mod nodes;
mod second_opens;
mod newer_nodes;
mod dir_reading;
mod folder_view;
mod flocks;
mod local_files;
mod databases;
mod mapped_files;
mod own_versions;
mod announcing;
mod dormant;
mod lookup;
mod reading;
mod open;
mod data;
mod closing;
mod names;
mod set_attributes;
mod directories;
mod control_requests;
mod take_request;
mod lost_control;
mod operations;
pub(crate) mod mount_view;
