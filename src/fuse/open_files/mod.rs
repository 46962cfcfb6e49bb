//! Open files and directories: what each of them may speak for, and the reads that wait.

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
