//! A library that the C compiler builds and that is preloaded into a server. It records the
//! server's file operations, and can make its syncs fail.

use std::path::{Path, PathBuf};
use std::process::Command;
use testing::{Scratch, Server, latchfs};

/// A library that intercepts the file operations of a server.
pub(crate) struct Shim {
    library: PathBuf,
    /// The directory of the server's files: the preloaded library records only operations on files
    /// below it.
    dir: PathBuf,
    /// The file to which the preloaded library writes the calls that it has intercepted.
    pub(crate) trace: PathBuf,
    /// While this file exists, the preloaded library lets every fsync and fdatasync of the server
    /// fail.
    pub(crate) fail: PathBuf,
}

impl Shim {
    /// Builds the library in the scratch directory; it watches the files below `dir`.
    pub(crate) fn new(scratch: &Scratch, dir: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/served/durable/shim.c");
        let library = scratch.path().join("shim.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        assert!(compiler.status().expect("the compiler is there").success());
        let (trace, fail) = (scratch.path().join("trace"), scratch.path().join("fail"));
        // The path is resolved, because the kernel reports paths without symbolic links.
        let dir = dir.canonicalize().expect("it is there");
        Self { library, dir, trace, fail }
    }

    /// Starts a server on a data directory with the library preloaded.
    pub(crate) fn serve(&self, data: &Path) -> Server {
        let mut command = latchfs();
        command.env("LD_PRELOAD", &self.library).env("SHIM_DIR", &self.dir);
        command.env("SHIM_TRACE", &self.trace).env("SHIM_FAIL", &self.fail);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        Server::spawn(&mut command, Scratch::new())
    }
}
