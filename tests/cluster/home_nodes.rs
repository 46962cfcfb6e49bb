//! Nodes that join a server by a code, each on a machine of its own, and the devices that they have
//! in common.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use testing::net::{Daemon, Machine, Net, Program};
use testing::{Output, eventually_in_cluster, latchfs_path, lines, run};

/// A machine with a server that others join.
struct HomeNode {
    machine: Machine,
    daemon: Option<Daemon>,
}

impl HomeNode {
    fn new(net: &mut Net) -> Self {
        Self { machine: net.machine(), daemon: None }
    }

    fn data(&self) -> PathBuf {
        self.machine.path("data")
    }

    /// Returns a command of the user of this machine's server.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.machine.command(latchfs_path());
        command.args(words).env("LATCHFS_DATA", self.data());
        let config = self.machine.path("config.toml");
        if config.exists() {
            command.env("LATCHFS_CONFIG", config);
        }
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        run(&mut self.command(words))
    }

    /// Starts `latchfs serve --home`.
    fn serve(&mut self) {
        let data = self.data().display().to_string();
        let words = ["serve", "--home", "--name", &self.machine.address, "--data", &data];
        let words = words.map(str::to_owned).to_vec();
        self.daemon = Some(Daemon::start(&self.machine, words, "listening"));
    }

    /// Starts `latchfs invite`, and returns it with the code.
    fn invite(&self, more: &[&str]) -> (Program, String) {
        let mut command = self.machine.command("sh");
        command.args(["-c", "exec \"$0\" invite \"$@\" 2>&1", latchfs_path()]).args(more);
        let inviting = Program::start(command.env("LATCHFS_DATA", self.data()));
        let line = inviting.line();
        let code = line.rsplit_once(": ").expect("a code").1.to_owned();
        assert!(inviting.line().contains("the code stays valid without this command"));
        (inviting, code)
    }

    /// Starts `latchfs join` at this machine, with a code on its standard input.
    fn join(&self, at: &Self, code: &str, more: &[&str]) -> Program {
        let script = "code=$1; shift; printf '%s\\n' \"$code\" | \"$0\" join \"$@\" 2>&1";
        let mut command = self.machine.command("sh");
        command.args(["-c", script, latchfs_path(), code, &at.machine.address]).args(more);
        command.env("LATCHFS_DATA", self.data());
        command.env("LATCHFS_CONFIG", self.machine.path("config.toml"));
        Program::start(&mut command)
    }

    /// Joins as a node, which the person at the terminal of `at` answers by `answer`. Returns what
    /// the two commands said last, and their exit codes.
    fn join_as_node(&self, at: &Self, answer: &str) -> [(String, i32); 2] {
        let (mut inviting, code) = at.invite(&["--node"]);
        let joining = self.join(at, &code, &["--node", "--name", "nas"]);
        let asked = inviting.line();
        assert!(asked.contains("'nas' knows the code"), "{asked}");
        inviting.send_line(answer);
        assert!(joining.line().contains("confirm this machine"));
        let said = [inviting.line(), joining.line()];
        let [one, other] = said;
        [(one, inviting.ended()), (other, joining.ended())]
    }

    fn devices(&self) -> Vec<String> {
        let shown: Value =
            serde_json::from_str(&self.run(&["devices", "--json"]).ok()).expect("JSON");
        let list = shown["devices"].as_array().expect("a list").iter();
        list.map(|device| device["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Waits until this many voters and learners answer.
    #[track_caller]
    fn nodes(&self, voters: usize, learners: usize) {
        eventually_in_cluster("the nodes", || {
            let shown = self.run(&["cluster", "status", "--json"]);
            let shown: Value = serde_json::from_str(&shown.out).ok()?;
            let nodes = shown["nodes"].as_array()?.clone();
            let learns = |node: &&Value| node["role"] == "learner";
            let found = nodes.iter().filter(learns).count();
            (nodes.len() - found == voters && found == learners).then_some(())
        });
    }
}

/// Seven commands, and no file edited or copied.
#[test]
fn three_nodes_join_by_codes_and_any_of_them_invites_and_removes() {
    let mut net = Net::new();
    let [mut one, mut two, mut three] = [(); 3].map(|()| HomeNode::new(&mut net));
    one.serve();
    let [(invited, 0), (joined, 0)] = two.join_as_node(&one, "yes") else { panic!("it may join") };
    assert_eq!(invited, "'nas' has joined");
    assert!(joined.contains("only learns until a third one has joined"), "{joined}");
    two.serve();
    one.nodes(1, 1);
    // The second node can invite the third one.
    let [(_, 0), (_, 0)] = three.join_as_node(&two, "yes") else { panic!("it may join") };
    three.serve();
    three.nodes(3, 0);
    // A device that joins at one node is one at all of them.
    let laptop = HomeNode::new(&mut net);
    let (inviting, code) = three.invite(&[]);
    let joining = laptop.join(&three, &code, &["--name", "laptop"]);
    assert!(joining.line().contains("as 'laptop'"));
    assert_eq!((joining.ended(), inviting.ended()), (0, 0));
    let config = fs::read_to_string(laptop.machine.path("config.toml")).expect("it is written");
    for node in [&one, &two, &three] {
        assert!(config.contains(&format!("https://{}:8443", node.machine.address)), "{config}");
        eventually_in_cluster("the device", || (node.devices() == ["laptop"]).then_some(()));
    }
    laptop.run(&["acquire", "photos", "--ttl", "10m"]).ok();
    // Its node dies, and it goes on at the others.
    drop(three.daemon.take());
    laptop.run(&["status", "photos"]).ok();
    // It is removed at one node, and its connection to another one ends.
    let config = laptop.machine.path("config.toml");
    let beside = |name: &str| config.with_file_name(name).display().to_string();
    let [own, ca] = ["home.pem", "home-ca.pem"].map(beside);
    let mut curl = laptop.machine.command("curl");
    curl.args(["-sS", "-N", "--http1.1", "--max-time", "60", "--cacert", &ca, "--cert", &own]);
    curl.args(["--key", &own, &format!("https://{}:8443/events", two.machine.address)]);
    let mut stream = curl.stdout(Stdio::piped()).spawn().expect("curl is there");
    let said = lines(stream.stdout.take().expect("piped"));
    while said.recv().expect("a line") != ": latchfs" {}
    one.run(&["devices", "remove", "laptop"]).ok();
    let rest: Vec<String> = said.iter().collect();
    assert!(rest.iter().any(|line| line.contains("revoked")), "{rest:?}");
    let _reaped = stream.wait();
    for node in [&one, &two] {
        let url = format!("https://{}:8443", node.machine.address);
        let refused =
            laptop.run(&["ls", "--server", &url, "--ca", &ca, "--cert", &own, "--key", &own]);
        let refused = refused.exits(77);
        assert!(refused.contains("this client certificate is refused"), "{refused}");
    }
    // A node that comes back does not admit it either.
    three.serve();
    eventually_in_cluster("it is gone", || three.devices().is_empty().then_some(()));
    let audit = fs::read_to_string(one.data().join("audit.log")).expect("it is there");
    assert!(
        audit.lines().any(|line| line.contains("nas") && line.contains("as a node")),
        "{audit}"
    );
}

#[test]
fn machine_that_nobody_allows_is_no_node() {
    let mut net = Net::new();
    let [mut one, two] = [(); 2].map(|()| HomeNode::new(&mut net));
    one.serve();
    let [(invited, denied), (joined, refused)] = two.join_as_node(&one, "no");
    assert_eq!((denied, refused), (77, 77));
    assert!(invited.contains("the invitation was revoked"), "{invited}");
    assert!(joined.contains("nobody has allowed this machine to be a node"), "{joined}");
    assert!(!two.data().exists());
    // A laptop's code makes no node, and that of a node no laptop; each is void then.
    for (kind, more) in [(&["--node"][..], &[][..]), (&[][..], &["--node"][..])] {
        let (inviting, code) = one.invite(kind);
        let joining = two.join(&one, &code, more);
        let said = std::iter::from_fn(|| Some(joining.line()));
        let said = said.take(2).find(|line| line.contains("the code is wrong"));
        assert!(said.is_some());
        assert_eq!(joining.ended(), 77);
        assert!(inviting.line().contains("has tried a wrong code"));
        assert_eq!(inviting.ended(), 77);
        assert!(!two.data().exists() && !two.machine.path("config.toml").exists());
    }
    eventually_in_cluster("an entry about the three refusals", || {
        let refused = fs::read_to_string(one.data().join("refused.log")).ok()?;
        refused.contains("\"count\":3,\"last\":\"join by a code\"").then_some(())
    });
    assert!(one.devices().is_empty());
}

/// The mount has an old certificate, and learns of the new one.
#[test]
fn mount_goes_on_once_its_machine_has_joined_again() {
    let mut net = Net::new();
    let [mut one, laptop] = [(); 2].map(|()| HomeNode::new(&mut net));
    one.serve();
    let join = || {
        let (inviting, code) = one.invite(&[]);
        let joining = laptop.join(&one, &code, &["--name", "laptop"]);
        assert_eq!((joining.ended(), inviting.ended()), (0, 0));
    };
    join();
    let dir = laptop.machine.path("locks");
    let at = dir.display().to_string();
    laptop.run(&["mount", &at, "--background"]).ok();
    fs::create_dir(dir.join("a")).expect("it is joined");
    one.run(&["devices", "remove", "laptop"]).ok();
    eventually_in_cluster("a refusal", || fs::create_dir(dir.join("b")).err());
    join();
    eventually_in_cluster("a lock", || fs::create_dir(dir.join("c")).ok());
    laptop.run(&["umount", &at]).ok();
}

/// The first node has lost its log: if it began another one, two servers would grant the same lock.
#[test]
fn server_that_has_lost_its_log_does_not_begin_anew() {
    let mut net = Net::new();
    let mut one = HomeNode::new(&mut net);
    one.serve();
    drop(one.daemon.take());
    for entry in fs::read_dir(one.data()).expect("it is there") {
        let path = entry.expect("a file").path();
        if !path.ends_with("home") {
            let gone =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            gone.expect("it is ours");
        }
    }
    let said = one.run(&["serve", "--home"]).exits(69);
    assert!(said.contains("is empty, and it is not said whom to join"), "{said}");
    // A machine with the data of a server does not join another one.
    let mut two = HomeNode::new(&mut net);
    two.serve();
    let joining = one.join(&two, "1-aaaa-aaaa", &["--node"]);
    let said = joining.line();
    assert!(said.contains("has the data of a server already"), "{said}");
    assert_eq!(joining.ended(), 64);
}
