//! latchfs: a directory in which a file is a lock.

fn main() {}
