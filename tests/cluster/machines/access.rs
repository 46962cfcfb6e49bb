//! Authorization of mounts at a server, by tokens and by certificates.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use testing::net::{Machine, Net};
use testing::{eventually_in_cluster, latchfs_path, run};

/// A token file with one token. A mount with the token may act as the client `machine2` and its
/// users, on locks below `team/` and on locks whose names begin with `own`.
const TOKENS: &str = r#"
[[token]]
name = "two"
secret = "the secret of two"
clients = ["machine2", "machine2:*"]
locks = ["team/", "own"]
"#;

const ADMIN: &str = r#"
[[token]]
name = "admin"
secret = "the secret of the admin"
clients = ["*"]
"#;

fn private(machine: &Machine, name: &str, text: &str) -> String {
    let path = machine.path(name);
    fs::write(&path, text).expect("ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
    path.display().to_string()
}

/// Returns the error message of a mount that must be refused.
fn refused(machine: &Machine, args: &[&str]) -> String {
    let mut command = machine.command(latchfs_path());
    let dir = machine.path("never");
    let tried = run(command.arg("mount").arg(&dir).args(args).args(["--foreground"]));
    assert_ne!(tried.code, 0, "{tried:?}");
    tried.err
}

#[test]
fn a_token_limits_the_client_and_the_locks_of_a_mount() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let tokens = private(&server, "tokens.toml", TOKENS);
    let _served = server.serve(&format!("--tokens {tokens}"));
    let right = private(&a, "token", "the secret of two\n");
    let wrong = private(&a, "wrong", "the secret of three\n");
    let url = server.url();
    assert!(refused(&a, &["--server", &url]).contains("can't be used"));
    refused(&a, &["--server", &url, "--token-file", &wrong]);
    refused(&a, &["--server", &url, "--token-file", &right, "--client", "machine3"]);
    let a = a.mount(&url, &format!("--token-file {right}"));
    a.sh("mkdir own && rmdir own").ok();
    let denied = a.sh("mkdir other");
    assert!(denied.err.contains("Permission denied"), "{denied:?}");
    let flock = a.python("f = open('own', 'w'); fcntl.flock(f, 2); print('mine')", &[]);
    flock.says("mine");
}

/// Through a mount, a token limited to prefixes shows the locks with these prefixes and the
/// directories above them. Of all other locks it reveals neither names nor numbers nor existence.
#[test]
fn a_token_sees_its_own_part_of_the_directory() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let tokens = format!("{TOKENS}{}", ADMIN.trim_start());
    let tokens = private(&server, "tokens.toml", &tokens);
    let _served = server.serve(&format!("--tokens {tokens}"));
    let (two, admin) = (
        private(&a, "token", "the secret of two\n"),
        private(&a, "admin", "the secret of the admin\n"),
    );
    let url = server.url();
    let all = a.mount_all(&url, &["all"], &format!("--token-file {admin} --client admin"));
    let part = a.mount(&url, &format!("--token-file {two}"));
    let seen = |script: &str| {
        let mut lines: Vec<_> = part.sh(script).ok().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    // A directory above the token's prefix is shown only while there is a lock with the prefix.
    all.sh("mkdir team other other/x && touch zeta").ok();
    assert!(seen("ls").is_empty());
    let missing = part.sh("stat team");
    assert!(missing.err.contains("No such file"), "{missing:?}");
    all.sh("mkdir team/a team/a/b && touch own own1 owner").ok();
    assert_eq!(seen("ls"), ["own", "own1", "owner", "team"]);
    assert_eq!(
        seen("find . -mindepth 1"),
        ["./own", "./own1", "./owner", "./team", "./team/a", "./team/a/b"]
    );
    part.sh("cd team && stat a/b && test -d .").ok();
    let latchfs = latchfs_path();
    let names =
        |args: &str| seen(&format!("{latchfs} ls {args} --dir . | awk 'NR > 1 {{print $1}}'"));
    assert_eq!(names(""), ["own", "own1", "owner", "team/a", "team/a/b"]);
    assert_eq!(names("te"), ["team/a", "team/a/b"]);
    // `team` is shown as the directory of visible locks, whether it is a lock or not, and can't be
    // changed.
    let team = part.sh("cat team/holder");
    assert!(team.err.contains("No such file") || team.err.contains("denied"), "{team:?}");
    for (call, code) in [("mkdir team", 1), ("rmdir team", 1), ("cat other", 1), ("ls other", 2)] {
        let denied = part.sh(call);
        assert_eq!(denied.code, code, "{call}: {denied:?}");
        assert!(!denied.err.contains("Is a directory"), "{call}: {denied:?}");
    }
    // A lock that exists but is hidden looks like a lock that does not exist.
    for (there, not_there) in [("stat other", "stat othes"), ("mkdir zeta", "mkdir zetb")] {
        let (there, not_there) = (part.sh(there), part.sh(not_there));
        let same = there.err.replace("other", "othes").replace("zeta", "zetb");
        assert_eq!((there.code, same), (not_there.code, not_there.err));
    }
    let page = part.server_page();
    assert_eq!((&page["locks"], &page["sessions"]), (&0.into(), &0.into()));
    // When the last visible lock is released, the directory above it disappears, also from the
    // kernel's cache.
    all.sh("rmdir team/a/b team/a && rm own own1 owner").ok();
    eventually_in_cluster("the way is gone", || seen("ls").is_empty().then_some(()));
    assert!(part.sh("stat team").err.contains("No such file"));
}

/// After a token is removed from the server the mount loses its session and reports the reason.
#[test]
fn a_mount_reports_that_its_token_is_not_known_any_more() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let tokens = private(&server, "tokens.toml", TOKENS);
    let served = server.serve(&format!("--tokens {tokens}"));
    let token = private(&a, "token", "the secret of two\n");
    let mount = a.mount(&server.url(), &format!("--token-file {token} --ttl 2s"));
    mount.sh("mkdir own").ok();
    private(&server, "tokens.toml", &TOKENS.replace("of two", "of three"));
    served.signal(libc::SIGHUP);
    mount.is("lost");
    // On a busy machine the lease may end before the server's answer is here.
    eventually_in_cluster("the reason", || {
        let page = mount.server_page();
        page["server"]["trouble"]
            .as_str()
            .is_some_and(|it| it.contains("token is unknown"))
            .then_some(())
    });
    // `doctor` also reports mounts of tests that run at the same time, so the test reads only the
    // line about this mount. It names the last trouble, which on a busy machine may be another one
    // for a while.
    let ours = format!("{} has lost {}", mount.dir().display(), server.url());
    eventually_in_cluster("the finding of doctor", || {
        let seen = run(a.command(latchfs_path()).arg("doctor"));
        let line = seen.out.lines().find(|line| line.contains(&ours)).unwrap_or_default();
        assert!(line.starts_with("wrong "), "{seen:?}");
        line.contains("token is unknown").then_some(())
    });
    private(&server, "tokens.toml", TOKENS);
    served.signal(libc::SIGHUP);
    mount.is("connected");
    assert_eq!(mount.server_page()["server"]["trouble"], serde_json::Value::Null);
}

#[test]
fn a_client_certificate_authenticates_a_mount() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let dir = server.path("certs").display().to_string();
    let cert = |args: &[&str]| {
        run(server.command(latchfs_path()).arg("cert").args(args).args(["--dir", &dir])).ok()
    };
    cert(&["ca"]);
    cert(&["server", &server.address]);
    cert(&["client", "machine2"]);
    let _served = server.serve(&format!(
        "--tls-cert {dir}/server.pem --tls-key {dir}/server.key --client-ca {dir}/ca.pem"
    ));
    let url = server.url().replace("http:", "https:");
    let ca = format!("{dir}/ca.pem");
    assert!(refused(&a, &["--server", &url]).contains("--ca"));
    refused(&a, &["--server", &url, "--ca", &ca]);
    refused(&a, &["--server", &server.url()]);
    let (mine, key) = (format!("{dir}/machine2.pem"), format!("{dir}/machine2.key"));
    let a = a.mount(&url, &format!("--ca {ca} --cert {mine} --key {key}"));
    a.sh("mkdir x && ! mkdir x && flock y true && rmdir x").ok();
    a.machine.cable(false);
    assert_ne!(a.sh("ls").code, 0);
    a.machine.cable(true);
    a.is("connected");
    a.sh("mkdir x && rmdir x").ok();
}
