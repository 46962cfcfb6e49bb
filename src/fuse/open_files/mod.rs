//! Open files and directories: their state, the tenure to which each file of a lock is bound, and
//! their waiting reads. A tenure is the time for which a client holds a lock, from the grant to the
//! release or loss.

pub(crate) mod answers;
pub(crate) mod last_seen;
pub(crate) mod wait_state;
pub(crate) mod held_read;
pub(crate) mod event_stream;
pub(crate) mod dir_reading;
pub(crate) mod open_file;
pub(crate) mod repeated_opens;
pub(crate) mod open_table;
pub(crate) mod waiting_reads;

pub(crate) use open_table::OpenFiles;
