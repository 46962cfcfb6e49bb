//! Faults drawn at random in a cluster under a mount that was given one URL or three: leaders are
//! killed, stopped and cut off, and the majority goes. When all is well again nobody is stuck and
//! nothing stays held.

use crate::crowd::{Chance, Crowd, TTL, patience, seed};
use crate::net::eventually;
use crate::nodes::Cluster;
use std::time::Duration;

fn fail(cluster: &mut Cluster, fault: u64, chance: &mut Chance) -> Duration {
    let leader = cluster.leader();
    let wait = cluster.clients.clone();
    let lasted = match fault {
        0 => {
            println!("the leader is killed");
            cluster.nodes[leader].daemon.kill();
            let lasted = chance.linger(&wait);
            cluster.nodes[leader].daemon.again();
            lasted
        }
        1 => {
            println!("the leader is stopped");
            cluster.nodes[leader].daemon.signal(libc::SIGSTOP);
            let lasted = chance.linger(&wait);
            cluster.nodes[leader].daemon.signal(libc::SIGCONT);
            lasted
        }
        2 => {
            println!("the leader is cut off");
            cluster.nodes[leader].machine.isolate(true);
            let lasted = chance.linger(&wait);
            cluster.nodes[leader].machine.isolate(false);
            lasted
        }
        _ => {
            println!("the majority is gone");
            for node in 1..3 {
                cluster.nodes[(leader + node) % 3].daemon.kill();
            }
            let lasted = chance.linger(&wait);
            for node in 1..3 {
                cluster.nodes[(leader + node) % 3].daemon.again();
            }
            lasted
        }
    };
    cluster.voters(3);
    lasted
}

fn under_faults(urls: impl Fn(&Cluster) -> String) {
    let seed = seed();
    let mut chance = Chance(seed);
    let mut cluster = Cluster::of(3);
    let servers = urls(&cluster);
    let mount = cluster.clients.mount(&servers, &format!("--ttl {TTL}"));
    let crowd = Crowd::begin(&mount, &servers, None, seed);
    let mut lasted = Duration::ZERO;
    while lasted < patience() / 2 {
        lasted += chance.linger(&cluster.clients.clone());
        let fault = chance.below(4);
        lasted += fail(&mut cluster, fault, &mut chance);
    }
    crowd.end(&mount);
}

#[test]
fn faults_under_a_mount_of_one_node_leave_nobody_waiting_and_nothing_held() {
    under_faults(|cluster| cluster.urls().remove(0));
}

#[test]
fn faults_under_a_mount_of_all_nodes_leave_nobody_waiting_and_nothing_held() {
    under_faults(|cluster| cluster.urls().join(","));
}

/// One URL is enough: the mount learns the others, and its node may die.
#[test]
fn a_mount_of_one_node_goes_on_by_the_others() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.leader();
    let mount = cluster.clients.mount(&cluster.urls()[leader], "--ttl 20s");
    let mut holder = mount.python(
        "
        f = open('held', 'w')
        fcntl.flock(f, fcntl.LOCK_EX)
        print('held')
        sys.stdin.readline()
        ",
        &[],
    );
    holder.says("held");
    cluster.nodes[leader].daemon.kill();
    eventually("another node is asked", || (mount.sh("mkdir more").code == 0).then_some(()));
    mount.is("connected");
    holder.tell("end");
    assert_eq!(holder.ended(), 0);
    let path = "/locks/held";
    eventually("it is given back", || {
        let seen = cluster.curl((leader + 1) % 3, "GET", path).1;
        (seen["phase"] == "free").then_some(())
    });
    cluster.nodes[leader].daemon.again();
    cluster.voters(3);
}
