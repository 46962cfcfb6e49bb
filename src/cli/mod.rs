//! The command line.
//!
//! Modules: `exit` and `output` define how a command ends; `target` finds the mount or the server
//! that a command is about, and `mount_client` and `remote_client` send requests to it; each
//! command has a module of its own, and `command_line` lists them all.

mod exit;
mod output;
mod signals;
mod background;
mod children;
#[cfg_attr(not(target_os = "linux"), path = "supervisor_elsewhere.rs")]
mod supervisor;
mod name_argument;
mod argument_types;
mod environment;
mod startup_warnings;
mod log_options;
mod storage_options;
mod access_options;
mod http_server;
mod server_urls;
mod config_file;
mod credential_options;
mod server_options;
mod mount_client;
mod remote_client;
mod stale_option;
mod target;
mod synced_dir;
mod table;
mod config;
mod status_table;
mod wait_progress;
mod lock_names;
#[cfg(target_os = "linux")]
mod daemon_process;
#[cfg(target_os = "linux")]
mod detached_daemon;
mod mount;
#[cfg(target_os = "linux")]
mod mount_helper;
mod peer_options;
mod print_permissions;
mod guard_permissions;
mod serve;
mod umount;
mod ls;
mod lock_commands;
mod events;
mod terminal_mode;
mod top;
mod lease_renewal;
mod lease_watcher;
mod held_lock;
mod hold;
mod run;
mod cert;
mod backup_restore;
mod cluster;
#[cfg(target_os = "linux")]
mod view_daemon;
mod carry;
mod guard_decider;
mod guard_parts;
mod init_progress;
mod guard_init;
mod folder_options;
mod view_record;
mod folder_daemon;
mod guard_answers;
#[cfg(target_os = "linux")]
mod view_requests;
mod folder_requests;
mod guard_endpoint;
mod audit;
mod doctor;
mod guard_requests;
mod guard_link;
mod guard_target;
mod run_guarded;
mod who;
#[cfg(target_os = "linux")]
mod guard_view;
mod guard;
#[cfg(target_os = "linux")]
mod snapshot_copy;
#[cfg(target_os = "linux")]
mod snapshot_file;
#[cfg(target_os = "linux")]
mod stored_snapshots;
#[cfg(target_os = "linux")]
mod folder_snapshot;
mod sim;
mod generate;
mod command_line;

pub use command_line::main;
