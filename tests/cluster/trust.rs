//! Trust between nodes: a node talks only to nodes of the same cluster that have credentials of the
//! same certificate authority, or the same peer secret.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use testing::net::{Daemon, Machine};
use testing::nodes::{Cluster, begin, options, refusal, serve};
use testing::{eventually_in_cluster, latchfs, latchfs_path, run};

/// Makes a certificate authority in the directory `dir` of a machine.
fn authority(machine: &Machine, dir: &str) {
    let dir = machine.path(dir);
    run(latchfs().args(["cert", "ca", "--dir"]).arg(dir)).ok();
}

/// Makes a certificate for `machine`, signed by the authority in `dir` of machine `of`. Returns the
/// options of a node that use it.
fn certified(of: &Machine, dir: &str, machine: &Machine, kind: &str) -> Vec<String> {
    let dir = of.path(dir);
    let mut make = latchfs();
    make.args(["cert", kind, &machine.address, "--dir"]).arg(&dir);
    run(&mut make).ok();
    let name = if kind == "server" { "server" } else { &machine.address };
    let file = |name: String| dir.join(name).display().to_string();
    let (cert, key) = (file(format!("{name}.pem")), file(format!("{name}.key")));
    let ca = file("ca.pem".to_owned());
    let own = ["--peer-cert", &cert, "--peer-key", &key, "--peer-ca", &ca];
    own.map(str::to_owned).into()
}

#[test]
fn nodes_require_certificates_of_their_authority() {
    let mut net = testing::net::Net::new();
    let clients = net.machine();
    let (a, b, c, d) = (net.machine(), net.machine(), net.machine(), net.machine());
    authority(&a, "ca");
    authority(&a, "other");
    let start = |machine: &Machine, tls: &[String], more: &[&str]| {
        let tls: Vec<_> = tls.iter().map(String::as_str).collect();
        serve(machine, "data", &[&tls[..], more].concat())
    };
    begin(&a, "data");
    let first = start(&a, &certified(&a, "ca", &a, "peer"), &[]);
    let seed = ["--seed", &a.peers()].map(str::to_owned);
    let seed: Vec<_> = seed.iter().map(String::as_str).collect();
    // Two nodes try to join with credentials that the cluster does not accept: a certificate of
    // another authority, and a peer secret of their own. They run at the same time, because each
    // gives up only after the whole timeout.
    let foreign = certified(&a, "other", &c, "peer");
    let foreign: Vec<_> = foreign.iter().map(String::as_str).collect();
    let refused = |machine: &Machine, more: &[&str]| {
        let said = refusal(machine, "no", more);
        assert!(said.contains("lets this one join"), "{said}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| refused(&c, &[&foreign[..], &seed].concat()));
        scope.spawn(|| refused(&d, &seed));
    });
    // A node tries to join with a certificate for a server, which is not valid for a node.
    // (`latchfs cert peer` makes one for a node.)
    let server = certified(&a, "ca", &c, "server");
    let server: Vec<_> = server.iter().map(String::as_str).collect();
    let said = refusal(&c, "no", &[&server[..], &seed].concat());
    assert!(said.contains("latchfs cert peer"), "{said}");
    let second = start(&b, &certified(&a, "ca", &b, "peer"), &seed);
    let third = start(&c, &certified(&a, "ca", &c, "peer"), &seed);
    let nodes = [(a, first), (b, second), (c, third)]
        .map(|(machine, daemon)| testing::nodes::Node { machine, daemon });
    let cluster = Cluster { net, clients, nodes: nodes.into(), token: None };
    cluster.voters(3);
    assert_eq!(cluster.curl(2, "POST", "/locks/a?client=a").0, 200);
    cluster.agree();
}

/// A node of another cluster is not accepted, whatever its address is.
#[test]
fn nodes_of_other_clusters_are_rejected() {
    let mut cluster = Cluster::of(3);
    let stranger = cluster.net.machine();
    let said = refusal(&stranger, "data", &[]);
    assert!(said.contains("--seed"), "{said}");
    begin(&stranger, "data");
    // The foreign node already has a cluster of its own, so it can't join.
    let seed = cluster.nodes[0].machine.peers();
    let said = refusal(&stranger, "data", &["--seed", &seed]);
    assert!(said.contains("another cluster"), "{said}");
    // The foreign node takes over the address of a node that is down, and is still rejected.
    let gone = (cluster.leader() + 1) % 3;
    cluster.nodes[gone].daemon.kill();
    let place = cluster.nodes[gone].machine.clone();
    begin(&place, "foreign");
    let _other = serve(&place, "foreign", &[]);
    let leader = cluster.leader();
    eventually_in_cluster("it is distinguished", || {
        let status = cluster.status(leader)?;
        let nodes = status["nodes"].as_array()?;
        let is_of_other_cluster = |node: &serde_json::Value| {
            node["trouble"].as_str().is_some_and(|why| why.contains("another cluster"))
        };
        nodes.iter().any(is_of_other_cluster).then_some(())
    });
    assert_eq!(cluster.curl(leader, "POST", "/locks/a?client=a").0, 200);
}

/// A peer port requires certificates or the peer secret, even on loopback and even with
/// `--insecure`.
#[test]
fn a_peer_port_always_requires_credentials() {
    let mut net = testing::net::Net::new();
    let machine = net.machine();
    begin(&machine, "data");
    let mut args = options(&machine, "data", &[]);
    let secret = args.split_off(8);
    for peers in [machine.peers(), "127.0.0.1:7100".to_owned()] {
        args[6] = peers;
        let said = run(machine.command(latchfs_path()).args(&args)).exits(69);
        assert!(said.contains("--peer-secret-file"), "{said}");
    }
    let daemon = Daemon::start(&machine, [args, secret].concat(), "listening");
    drop(daemon);
    // A secret file that other users can read is refused.
    let others = fs::Permissions::from_mode(0o640);
    let copy = machine.path("copy.pem");
    fs::copy(testing::nodes::secret(&machine), &copy).expect("it is there");
    fs::set_permissions(&copy, others).expect("ours");
    let options = options(&machine, "data", &["--peer-secret-file", &copy.display().to_string()]);
    let own: Vec<_> = [&options[..8], &options[10..]].concat();
    let said = run(machine.command(latchfs_path()).args(&own)).exits(69);
    assert!(said.contains("chmod 600"), "{said}");
    // A mount is never a node of a cluster, so it refuses the peer options.
    let said =
        run(machine.command(latchfs_path()).args(["mount", "/x", "--peer-listen", "127.0.0.1:1"]));
    assert_eq!(said.code, 64, "{}", said.err);
}
