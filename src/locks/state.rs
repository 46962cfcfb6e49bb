//! The engine on the calling thread, in memory.
