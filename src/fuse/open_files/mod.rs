//! Open files and directories: their state, the tenure of a lock to which each file is bound, and
//! their waiting reads.

pub(crate) mod answers;
pub(crate) mod last_seen;
pub(crate) mod wait_state;
pub(crate) mod held_read;
pub(crate) mod event_stream;
pub(crate) mod dir_reading;
pub(crate) mod open_file;
pub(crate) mod open_table;
pub(crate) mod waiting_reads;

pub(crate) use open_table::OpenFiles;
