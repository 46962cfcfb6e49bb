//! Several coding agents that edit and commit in one tree of git, as the chapter on agents shows.

use std::process::{Child, Command, Stdio};
use testing::{Guard, Scratch, latchfs_path, run, shell};

const AGENTS: usize = 4;
const COMMITS: usize = 3;

/// Starts an agent: a login session of its own, in which each edit is one command that holds the
/// lock from the read of the file to the commit.
fn agent(guard: &Guard, number: usize) -> Child {
    let edit = format!(
        "count=$(cat count); echo $((count + 1)) > count; echo $count > file{number}; \
         git add -A; git commit -qm 'agent {number}'"
    );
    let script = format!(
        "for commit in $(seq {COMMITS}); do '{}' run --guard . --wait 10m -- sh -ec \"$0\"; done",
        latchfs_path()
    );
    let mut command = Command::new("setsid");
    command.args(["-w", "sh", "-ec", &script, &edit]).current_dir(&guard.view);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Four agents edit and commit in one tree: each commit is there, none is lost, and each edit has
/// read the one before it.
#[test]
fn four_agents_commit_in_one_tree_and_lose_nothing() {
    let scratch = Scratch::with_folder();
    let setup = "git init -q; git config user.name agent; git config user.email agent@localhost
        echo 0 > count; git add -A; git commit -qm begin";
    shell(&scratch.folder(), setup).ok();
    scratch.init(&["--alone"]);
    let options = ["--owner", "session", "--on-write", "wait=30s"];
    let guard = Guard::start(&scratch, "view", &options);
    let agents: Vec<_> = (0..AGENTS).map(|number| agent(&guard, number)).collect();
    for agent in agents {
        let output = agent.wait_with_output().expect("our child");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let git =
        |words: &[&str]| run(Command::new("git").arg("-C").arg(scratch.folder()).args(words)).ok();
    let log = git(&["log", "--format=%s"]);
    for number in 0..AGENTS {
        let commits = log.lines().filter(|line| *line == format!("agent {number}")).count();
        assert_eq!(commits, COMMITS, "agent {number}: {log}");
    }
    assert_eq!(git(&["show", "HEAD:count"]), format!("{}\n", AGENTS * COMMITS));
    assert_eq!(git(&["status", "--porcelain"]), "");
    assert_eq!(guard.status()["lost_bytes"], 0);
    git(&["fsck", "--strict"]);
}
