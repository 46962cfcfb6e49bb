//! A server and mounts of two versions of latchfs: the server is upgraded and downgraded under
//! mounts of both.

use crate::net::{Net, Version};
use crate::turns::Turns;

/// A single server, no cluster, is replaced by one of the previous version at the same URL, then by
/// one of the current version, and so on, under mounts of both versions that hold locks.
#[test]
fn a_single_server_is_upgraded_and_downgraded_under_mounts() {
    let mut net = Net::new();
    let (server, machines) = (net.machine(), [net.machine(), net.machine()]);
    let mut daemon = server.serve("");
    let args = daemon.args().to_vec();
    let mounts = [
        machines[0].mount_as(Version::Current, &server.url(), &["locks-new"], ""),
        machines[1].mount_as(Version::Previous, &server.url(), &["locks-old"], ""),
    ];
    let turns = Turns::begin(&mounts, &server);
    turns.go_on(10);
    for version in [Version::Previous, Version::Current, Version::Previous] {
        daemon.end();
        daemon.again_as(version, args.clone());
        turns.go_on(10);
    }
    turns.end();
}
