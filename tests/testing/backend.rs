//! Starts the servers and clusters that are the backends of a test's mounts.

use crate::command::{eventually, free_port, latchfs, lines, run, signal};
use crate::mount::MOUNT_LIMIT;
use crate::scratch::Scratch;
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

/// The backend of a test's mounts: the processes that decide which client holds which lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// The daemon of the mount decides about its locks itself, without any server.
    Itself,
    /// One latchfs server decides about the locks of all its mounts.
    Server,
    /// A cluster of three latchfs servers decides about the locks of all their mounts.
    Cluster,
}

/// A latchfs server that a test has started; it is killed when this value is dropped.
pub(crate) struct Node {
    child: Child,
    pub(crate) url: String,
}

impl Node {
    #[track_caller]
    fn start(name: &str, scratch: &Scratch, args: &[String]) -> Self {
        let log = File::create(scratch.join(format!("{name}.log"))).expect("ours");
        let mut command = latchfs();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut child = command.spawn().expect("the program was built");
        let said = lines(child.stdout.take().expect("piped"));
        let first = said.recv_timeout(MOUNT_LIMIT).expect("it says that it listens");
        let url =
            first.strip_prefix("latchfs: listening on ").and_then(|rest| rest.split(' ').next());
        let url = url.unwrap_or_else(|| panic!("no server: {first}")).to_owned();
        Self { child, url }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        signal(self.pid(), libc::SIGKILL);
        let _reaped = self.child.wait();
    }
}

/// Starts one server, or three nodes of a cluster; waits until all three nodes vote.
#[track_caller]
pub(crate) fn nodes(scratch: &Scratch, behind: Behind) -> Vec<Node> {
    let data = |n: usize| scratch.join(format!("data{n}")).display().to_string();
    if behind == Behind::Server {
        return vec![Node::start("server", scratch, &["--state".to_owned(), data(0)])];
    }
    let certs = scratch.join("certs").display().to_string();
    run(latchfs().args(["cert", "secret", "--dir", &certs])).ok();
    let secret = format!("{certs}/peers.pem");
    let own = |n: usize| ["--data", &data(n)].map(str::to_owned).to_vec();
    // The first node of a new cluster runs once without peer options, which initializes the
    // cluster.
    drop(Node::start("begin", scratch, &own(0)));
    let ports: Vec<_> = (0..3).map(|_| free_port()).collect();
    let peers = |n: usize| format!("127.0.0.1:{}", ports[n]);
    let node = |n: usize| {
        let mut args = own(n);
        args.extend(["--peer-listen".to_owned(), peers(n)]);
        args.extend(["--peer-secret-file".to_owned(), secret.clone()]);
        if n > 0 {
            args.extend(["--seed".to_owned(), peers(0)]);
        }
        Node::start(&format!("node{n}"), scratch, &args)
    };
    let nodes: Vec<_> = (0..3).map(node).collect();
    eventually("three nodes vote", || {
        let mut status = latchfs();
        let said = run(status.args(["cluster", "status", "--json", "--server", &nodes[2].url]));
        let status: Value = serde_json::from_str(&said.out).ok()?;
        let votes = |node: &&Value| node["role"] == "leader" || node["role"] == "voter";
        (status["nodes"].as_array()?.iter().filter(votes).count() == 3).then_some(())
    });
    nodes
}
