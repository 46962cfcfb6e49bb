//! A library between a server and the kernel: built by the C compiler, preloaded into the server.

use crate::harness::{LATCHFS, Scratch, Server};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library that can be put between a server and the kernel.
pub(crate) struct Shim {
    library: PathBuf,
    /// Where all that is watched lies.
    dir: PathBuf,
    /// The log of the intercepted calls.
    pub(crate) trace: PathBuf,
    /// Once it is there, syncs fail.
    pub(crate) fail: PathBuf,
}

impl Shim {
    /// Builds it in a directory; what lies in `dir` is watched.
    pub(crate) fn new(scratch: &Scratch, dir: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/durable/shim.c");
        let library = scratch.path().join("shim.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        assert!(compiler.status().expect("the compiler is there").success());
        let (trace, fail) = (scratch.path().join("trace"), scratch.path().join("fail"));
        // As the kernel shows it: without symbolic links.
        let dir = dir.canonicalize().expect("it is there");
        Self { library, dir, trace, fail }
    }

    /// A server on a data directory, with this between it and the kernel.
    pub(crate) fn serve(&self, data: &Path) -> Server {
        let mut command = Command::new(LATCHFS);
        command.env("LD_PRELOAD", &self.library).env("SHIM_DIR", &self.dir);
        command.env("SHIM_TRACE", &self.trace).env("SHIM_FAIL", &self.fail);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        Server::spawn(&mut command, Scratch::new())
    }
}
