//! The guarantees that only a durable server (`--data`) gives: it has a log on disk.

mod faults;
mod full_disk;
mod killed;
mod power;
mod shim;
