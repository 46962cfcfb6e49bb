//! Values as bytes, for the journal, snapshots, backups and replication.
//!
//! `encoding` encodes numbers, texts, lists, structs and enums; `command_codec` and `event_codec`
//! list the fields of commands and of what they yield, and `state_codec` those of a whole engine.

pub(super) mod format_version;
pub(super) mod encoding;
pub(super) mod command_codec;
pub mod state_codec;
#[cfg(test)]
pub(super) mod tests_codec;
