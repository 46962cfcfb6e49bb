//! Loss and return of the connection between a mount and its server: timeouts, sessions, and
//! restarts of the server.

use latchfs::time::{Span, boot_now};
use testing::net::Net;
use testing::{eventually_in_cluster, latchfs_path};

/// The maximum duration of a call that times out after 2 s, with a margin for a loaded machine.
const SOON: Span = Span::from_millis(3_000);
/// The maximum duration of a call that fails at once, because the mount knows that its server does
/// not answer.
const AT_ONCE: Span = Span::from_millis(500);

const CALLS: &[&str] = &[
    "ls",
    "stat held",
    "test -e nothing",
    "mkdir new",
    "touch new",
    "flock -n new true",
    "cat held",
    "rm held",
    "ln -s a new",
    "rmdir held",
];

#[test]
fn nothing_hangs_when_the_cable_is_pulled() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let _served = server.serve("");
    let a = a.mount(&server.url(), "");
    a.sh("mkdir held && ls").ok();
    for call in CALLS {
        a.machine.cable(false);
        let begun = boot_now();
        let tried = a.sh(call);
        let took = boot_now().since(begun);
        assert!(tried.code != 0 && took < SOON, "{call} took {took}: {tried:?}");
        let begun = boot_now();
        let tried = a.sh(call);
        let took = boot_now().since(begun);
        assert!(tried.code != 0 && took < AT_ONCE, "{call} again took {took}: {tried:?}");
        assert_eq!(a.server_page()["contact"], "in jeopardy");
        let status = a.sh(&format!("{} status held --dir .", latchfs_path()));
        assert_eq!(status.code, 69, "{status:?}");
        assert!(status.err.contains("contact with the server is in jeopardy"), "{status:?}");
        a.machine.cable(true);
        a.is("connected");
        assert_eq!(a.sh("ls").ok().trim(), "held", "after {call}");
    }
    a.sh("rmdir held").ok();
}

/// The name of the first server is looked up for 20 s. A mount goes on to the second one after a
/// part of a second; in an earlier version its thread for events waited for the look-up first.
#[test]
fn a_slow_look_up_of_a_name_delays_no_other_server() {
    const ENOUGH: Span = Span::from_secs(12);
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let _served = server.serve("");
    // No name server answers there, and nothing says so.
    server
        .sh("nft add table ip t; nft add chain ip t in '{ type filter hook input priority 0; }'; \
             nft add rule ip t in udp dport 53 drop")
        .ok();
    let (dir, latchfs) = (a.path("slow"), latchfs_path());
    let script = format!(
        "mkdir {dir} && cd {dir} || exit 1
         printf 'nameserver {address}\noptions timeout:20 attempts:1\n' > resolv.conf
         echo 'hosts: files dns' > nsswitch.conf
         mount --bind resolv.conf /etc/resolv.conf || exit 2
         mount --bind nsswitch.conf /etc/nsswitch.conf || exit 3
         for try in 1 2 3 4; do
             {latchfs} mount locks --server http://slow.example:1,{url} --background && break
         done
         mkdir locks/x && {latchfs} status x --dir locks; code=$?
         {latchfs} umount locks
         exit $code",
        dir = dir.display(),
        address = server.address,
        url = server.url(),
    );
    let mut apart = a.command("unshare");
    apart.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let begun = boot_now();
    testing::run(&mut apart).ok();
    let took = boot_now().since(begun);
    assert!(took < ENOUGH, "{took}");
}

/// Requests reach the server, but the answers are lost. A lock whose grant was not answered does
/// not stay held.
#[test]
fn grants_whose_answers_are_lost_are_released() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let _served = server.serve("");
    let (a, b) = (a.mount(&server.url(), ""), b.mount(&server.url(), ""));
    a.sh("ls").ok();
    a.machine.deaf(true);
    for take in ["mkdir x", "flock -n y sleep 9"] {
        let tried = a.sh(take);
        assert!(tried.code != 0, "{take}: {tried:?}");
    }
    a.machine.deaf(false);
    a.is("connected");
    b.sh("mkdir x").ok();
    b.sh("flock -w 10 y true").ok();
    a.sh("mkdir z && rmdir z").ok();
}

/// The server is killed and restarted: locks and queues are as before.
#[test]
fn a_restarted_server_keeps_locks_and_queues() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let mut served = server.serve("");
    let (a, b) = (a.mount(&server.url(), ""), b.mount(&server.url(), ""));
    let holder = "
        f = open('x', 'w')
        fcntl.flock(f, fcntl.LOCK_EX)
        print('mine')
        for line in sys.stdin:
            print(said(os.write, f.fileno(), b'\\n') if line.strip() == 'write' else f.close())
    ";
    let mut first = a.python(holder, &[]);
    first.says("mine");
    let second = b.python(holder, &[]);
    let waits = |mount: &testing::net::Mount| {
        let status = std::fs::read(mount.dir().join(".latchfs/status/x")).ok()?;
        let status: serde_json::Value = serde_json::from_slice(&status).ok()?;
        (status["waiters"].as_array()?.len() == 1).then_some(status["token"].clone())
    };
    let token = eventually_in_cluster("the second waits", || waits(&a));
    a.sh("mkdir dir").ok();
    served.kill();
    assert_ne!(b.sh("ls").code, 0, "nobody is there");
    served.restart();
    a.is("connected");
    b.is("connected");
    assert_eq!(eventually_in_cluster("it still waits", || waits(&b)), token);
    assert_ne!(b.sh("mkdir dir").code, 0, "held");
    first.send_line("write");
    first.says("OK");
    first.send_line("close");
    first.says("None");
    second.says("mine");
    a.sh("rmdir dir").ok();
}

/// A server is stopped for longer than a ttl: no call hangs, the holders lose their locks, and
/// everything works again when the server resumes.
#[test]
fn a_server_stopped_for_longer_than_a_ttl_expires_sessions() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let served = server.serve("");
    let short = "--ttl 2s --grace 1s";
    let (a, b) = (a.mount(&server.url(), short), b.mount(&server.url(), short));
    let mut holder = a.python(HOLDER, &["x"]);
    holder.says("mine");
    served.signal(libc::SIGSTOP);
    let begun = boot_now();
    assert_ne!(b.sh("ls").code, 0);
    assert!(boot_now().since(begun) < SOON);
    a.is("lost");
    holder.send_line("write");
    holder.says("ESTALE");
    served.signal(libc::SIGCONT);
    a.is("connected");
    b.is("connected");
    holder.send_line("write");
    holder.says("ESTALE");
    b.sh("flock -w 10 x true").ok();
    a.sh("mkdir y && rmdir y").ok();
}

/// When the server expires the session of a mount, the leases of the session enter the grace
/// period, in which their client may renew them. If a write through an open file has failed because
/// its lock was lost, a later write does not renew the lease.
#[test]
fn a_write_does_not_renew_what_its_open_file_has_lost() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let _served = server.serve("");
    let a = a.mount(&server.url(), "--ttl 1s --grace 1m");
    let b = b.mount(&server.url(), "");
    let phase = || {
        let status = std::fs::read(b.dir().join(".latchfs/status/x")).expect("it answers");
        let status: serde_json::Value = serde_json::from_slice(&status).expect("JSON");
        status["phase"].as_str().map(str::to_owned)
    };
    let mut holder = a.python(HOLDER, &["x"]);
    holder.says("mine");
    holder.send_line("write");
    holder.says("OK");
    a.machine.cable(false);
    eventually_in_cluster("the server ends the session", || (phase()? == "grace").then_some(()));
    a.machine.cable(true);
    a.is("connected");
    holder.send_line("write");
    holder.says("ESTALE");
    assert_eq!(phase().as_deref(), Some("grace"), "nothing was renewed");
    // In the grace period the client renews the lock by its name. The open file that has lost the
    // lock does not get it back by that.
    a.sh("touch x && echo 60s > x").ok();
    assert_eq!(phase().as_deref(), Some("held"));
    holder.send_line("write");
    holder.says("ESTALE");
}

/// A Python program that locks a file by flock(2), and writes to it for each line of input.
pub(crate) const HOLDER: &str = "
    f = open(sys.argv[1], 'w')
    fcntl.flock(f, fcntl.LOCK_EX)
    print('mine')
    for line in sys.stdin:
        print(said(os.write, f.fileno(), b'\\n'))
";

/// The daemon of a mount is stopped for longer than its session lasts: another client is granted
/// the lock, and the first write of the old holder fails.
#[test]
fn a_stopped_mount_fails_stale_writes_when_it_resumes() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let _served = server.serve("");
    let a = a.mount(&server.url(), "--ttl 1s --grace 1s");
    let b = b.mount(&server.url(), "");
    let mut holder = a.python(HOLDER, &["x"]);
    holder.says("mine");
    holder.send_line("write");
    holder.says("OK");
    a.daemon.signal(libc::SIGSTOP);
    b.sh("flock -w 20 x true").ok();
    b.sh("mkdir x").ok();
    holder.send_line("write");
    a.daemon.signal(libc::SIGCONT);
    holder.says("ESTALE");
    a.is("connected");
    assert_ne!(a.sh("mkdir x").code, 0);
    b.sh("rmdir x").ok();
    a.sh("flock -n x true").ok();
}

/// A short loss of the network has no effect: the session is resumed.
#[test]
fn a_short_loss_of_the_network_loses_nothing() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let _served = server.serve("");
    let a = a.mount(&server.url(), "");
    let mut holder = a.python(HOLDER, &["x"]);
    holder.says("mine");
    a.machine.cable(false);
    assert_ne!(a.sh("ls").code, 0);
    holder.send_line("write");
    holder.says("ETIMEDOUT");
    a.machine.cable(true);
    a.is("connected");
    holder.send_line("write");
    holder.says("OK");
}
