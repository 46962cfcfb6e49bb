//! Guards, mounts and servers that start at boot or at login, in a container with a real systemd
//! that is booted twice.

use crate::http::units::Systemd;
use testing::eventually;

/// The users: alice's service manager starts when she logs in, and bob's at boot.
const USERS: [(&str, u32); 2] = [("alice", 4711), ("bob", 4714)];

/// The directories that a reboot keeps.
const KEPT: [&str; 4] = ["/home", "/srv", "/var/lib/latchfs", "/var/lib/systemd/linger"];

/// Makes the users and their logins, which are in memory.
fn set_up(systemd: &Systemd) {
    let script = r"
        printf '%s\n' 'sshd:*:4712:4712::/run/sshd:/bin/false' >> /etc/passwd
        printf 'root:*:19000::::::\n' >> /etc/shadow
        mkdir -p /etc/ssh
        ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/key
        ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/host";
    systemd.run(script).ok();
    for (name, uid) in USERS {
        let script = format!(
            "printf '%s\n' '{name}:*:{uid}:{uid}::/home/{name}:/bin/sh' >> /etc/passwd
            printf '%s\n' '{name}:*:19000::::::' >> /etc/shadow
            mkdir -p /home/{name}/.ssh && cp /etc/ssh/key.pub /home/{name}/.ssh/authorized_keys
            chown {uid} /home/{name} /home/{name}/.ssh /home/{name}/.ssh/authorized_keys
            chmod 700 /home/{name}"
        );
        systemd.run(&script).ok();
    }
    // Any user can open the device, as on most machines.
    let device = "mknod /dev/fuse.all c 10 229 && chmod 666 /dev/fuse.all";
    systemd.run(&format!("{device} && mount --bind /dev/fuse.all /dev/fuse")).ok();
    systemd.run("systemctl start multi-user.target").ok();
    let sshd = "mkdir -p /run/sshd; /usr/sbin/sshd -f /dev/null -h /etc/ssh/host -o UsePAM=yes";
    systemd.run(&format!("{sshd} -o ListenAddress=127.0.0.1")).ok();
}

/// Runs a command in a session of a user.
#[track_caller]
fn run_as(systemd: &Systemd, user: &str, script: &str) -> String {
    let ssh = "ssh -i /etc/ssh/key -o StrictHostKeyChecking=no -o LogLevel=ERROR";
    systemd.run(&format!("{ssh} {user}@127.0.0.1 '{script}'")).ok()
}

#[track_caller]
fn is_shown(systemd: &Systemd, dir: &str) -> bool {
    systemd.run(&format!("grep -q ' {dir} fuse.latchfs' /proc/mounts")).code == Some(0)
}

#[track_caller]
fn install_all(systemd: &Systemd) {
    // In a terminal, the server goes on without it.
    let said = systemd.run("script -qec 'latchfs serve --home' /dev/null").ok();
    assert!(said.contains("/etc/systemd/system/latchfs-serve.service starts this at each boot"));
    assert!(said.contains("type this code there: 1-"), "{said}");
    systemd
        .run("mkdir -p '/srv/my notes' && cd /srv && latchfs guard init 'my notes' --alone")
        .ok();
    systemd.run("cd /srv && latchfs guard 'my notes' --at-login").ok();
    assert!(is_shown(systemd, r"/mnt/my\\040notes"));
    systemd.run("latchfs mount /locks --at-login --client box").ok();
    systemd.run("mkdir /locks/build").ok();

    // A server asks that the service manager of its user starts at boot, which is permitted here.
    let said = run_as(systemd, "bob", "latchfs serve --home --at-login --listen 127.0.0.1:9443");
    assert!(said.contains("starts this at each boot"), "{said}");
    assert!(said.contains("type this code there: "), "{said}");
    for (user, says) in [("bob", "at each boot"), ("alice", "run 'loginctl enable-linger'")] {
        run_as(systemd, user, "mkdir notes && latchfs guard init notes --alone");
        let said = run_as(systemd, user, "latchfs guard notes --at-login");
        let file = format!("/home/{user}/.config/systemd/user/latchfs-guard-home");
        assert!(said.contains(&file) && said.contains(says), "{said}");
    }
    run_as(systemd, "alice", "echo draft > latchfs/notes/plan");
}

/// Checks the list of the guards as root, which sees the views of all users, and as one of them.
fn guards_are_listed(systemd: &Systemd) {
    let listed = systemd.run("latchfs guard ls").ok();
    assert!(
        listed.contains("/srv/my notes") && listed.contains("/home/bob/latchfs/notes"),
        "{listed}"
    );
    let listed = run_as(systemd, "alice", "latchfs guard ls");
    assert!(listed.contains("/home/alice/notes") && !listed.contains("bob"), "{listed}");
    let several = run_as(systemd, "alice", "latchfs guard status 2>&1; true");
    for view in ["/mnt/my notes", "/home/alice/latchfs/notes", "latchfs guard ls"] {
        assert!(several.contains(view), "{several}");
    }
}

/// Stops a guard, which then waits for a start, and removes its unit and another one.
fn services_end(systemd: &Systemd) {
    run_as(systemd, "alice", "systemctl --user stop \"latchfs-guard-*\"");
    let listed = run_as(systemd, "alice", "latchfs guard ls");
    assert!(listed.contains("ended") && listed.contains("systemctl --user start"), "{listed}");
    let said = run_as(systemd, "alice", "rm -r notes; latchfs guard notes --no-at-login");
    assert!(said.contains("ended this, and removed /home/alice/.config/systemd/user/"), "{said}");
    assert!(!run_as(systemd, "alice", "latchfs guard ls").contains("/home/alice"));
    systemd.run("latchfs mount /locks --no-at-login").ok();
    assert!(!is_shown(systemd, "/locks"));
    let left = systemd.run("ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants");
    assert!(!left.said.contains("latchfs-mount-locks"), "{left:?}");
    let again = systemd.run("latchfs mount /locks --no-at-login").ok();
    assert!(again.contains("so nothing starts this at login"), "{again}");
}

#[test]
fn after_a_reboot_everything_is_back() {
    let mut binds: Vec<_> =
        ["/etc/pam.d", "/etc/security"].map(|dir| format!("{dir}:{dir}")).into();
    let kept = testing::Scratch::new();
    for (number, dir) in KEPT.iter().enumerate() {
        let here = kept.join(number.to_string());
        std::fs::create_dir(&here).expect("ours");
        binds.push(format!("{}:{dir}", here.display()));
    }
    let mut systemd = Systemd::boot_with(&binds);
    set_up(&systemd);
    install_all(&systemd);
    guards_are_listed(&systemd);

    systemd.reboot();
    set_up(&systemd);
    for dir in [r"/mnt/my\\040notes", "/locks", "/home/bob/latchfs/notes"] {
        eventually(&format!("{dir} is there, and nobody has logged in"), || {
            is_shown(&systemd, dir).then_some(())
        });
    }
    systemd.run("latchfs ls --server unix:/var/lib/latchfs/data/socket").ok();
    assert_eq!(systemd.run("cat /locks/build/holder").ok(), "box:root\n");
    assert!(!is_shown(&systemd, "/home/alice/latchfs/notes"), "she has not logged in");

    let said = run_as(
        &systemd,
        "alice",
        "until grep -q /home/alice/latchfs/notes /proc/mounts; do :; done; cat latchfs/notes/plan",
    );
    assert_eq!(said, "draft\n");
    services_end(&systemd);
}
