//! The guarantees that a durable server gives: it has a log on disk.

mod default_storage;
mod faults;
mod full_disk;
mod killed;
mod power;
mod shim;
