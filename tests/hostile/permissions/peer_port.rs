//! Requests to the peer port with the credentials of all other front ends, and with the secret that
//! the nodes share.

use super::{CALLERS, Who, table};
use crate::peers::Node;
use std::path::Path;
use std::process::Command;
use testing::run_latchfs;

const NODE: Who = Who { name: "a node", node: true, ..super::ALL };

#[test]
fn every_rpc_at_the_peer_port_is_decided_by_the_table() {
    let node = Node::start();
    let certs = node.scratch.path().join("clients");
    for what in [&["ca"][..], &["client", "a"]] {
        let dir = certs.display().to_string();
        let (code, said) = run_latchfs(&[&["cert", "--dir", &dir], what].concat());
        assert_eq!(code, Some(0), "{said}");
    }
    let secret = node.scratch.path().join("certs/peers.pem");
    let own = (certs.join("a.pem"), certs.join("a.key"));
    let rows: Vec<_> = table();
    let row = rows.iter().find(|row| row.requests.iter().any(|request| request == "peer port"));
    let row = row.expect("the table has the port");
    for who in CALLERS.iter().chain([&NODE]) {
        let certificate = match who {
            who if who.node => Some((&*secret, &*secret)),
            who if who.name == "client certificate" => Some((&*own.0, &*own.1)),
            _ => None,
        };
        for call in ["status", "forward", "append", "join"] {
            let is_heard = is_heard(&node.peers, call, who.token, certificate);
            let allowed = row.allows(who, who.clients.first().unwrap_or(&""), &[]);
            assert_eq!(is_heard, allowed, "{call} by {}", who.name);
        }
        node.serves_the_victim();
    }
}

/// Whether the node processes an RPC, even if its response is the error for a malformed one.
fn is_heard(
    peers: &str,
    call: &str,
    token: Option<&str>,
    certificate: Option<(&Path, &Path)>,
) -> bool {
    let mut curl = Command::new("curl");
    curl.args(["-sk", "--max-time", "20", "--data-binary", "anything"]);
    if let Some(token) = token {
        curl.args(["-H", &format!("Authorization: Bearer {token}")]);
    }
    if let Some((certificate, key)) = certificate {
        curl.arg("--cert").arg(certificate).arg("--key").arg(key);
    }
    let output = curl.arg(format!("https://{peers}/raft/v1/{call}")).output();
    let output = output.expect("curl is there");
    output.status.success() && !output.stdout.is_empty()
}
