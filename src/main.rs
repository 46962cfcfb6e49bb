//! latchfs: a directory in which a file is a lock.

use std::process::ExitCode;

fn main() -> ExitCode {
    latchfs::cli::main()
}
