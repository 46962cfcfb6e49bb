//! mount(8) and a line of fstab: the program is called as `mount.latchfs`.

use std::process::Command;
use testing::{Scratch, latchfs_path, run};

/// Runs a script as root in a mount namespace of its own, in which mount(8) finds the helper.
fn with_helper(script: &str) -> testing::Output {
    let scratch = Scratch::open_to_all();
    let head = "
        mkdir $T/over && mount -t tmpfs none $T/over && mkdir $T/over/upper $T/over/work
        layers=lowerdir=/usr/sbin,upperdir=$T/over/upper,workdir=$T/over/work
        mount -t overlay -o $layers none /usr/sbin
        ln -s $LATCHFS /usr/sbin/mount.latchfs && ln -s mount.latchfs /usr/sbin/mount.fuse.latchfs
        trap 'umount -l $T/locks 2>/dev/null || :' EXIT
        mkdir $T/locks && cd $T
    ";
    let mut command = Command::new("unshare");
    let script = format!("{head}{script}");
    command.args(["--mount", "--propagation", "private", "sh", "-euc", &script]);
    let path = scratch.path();
    run(command
        .env("T", path.display().to_string().trim_end_matches('/'))
        .env("LATCHFS", latchfs_path()))
}

/// A line of fstab mounts, umount(8) ends the daemon, and the next mount finds the lock again.
#[test]
fn a_line_of_fstab_mounts_and_umount_ends_the_daemon() {
    let seen = with_helper(
        "echo \"latchfs $T/locks latchfs defaults,nofail,_netdev,state=$T/state,ttl=5m 0 0\" > fstab
         mount --all --fstab fstab >&2
         mkdir locks/build && cat locks/build/token
         grep -c \" $T/locks fuse.latchfs \" /proc/mounts
         umount locks
         mount -t fuse.latchfs latchfs locks -o state=$T/state,nodev >&2
         cat locks/build/token && rmdir locks/build
         pid=$(cat state/lock)
         umount locks
         while kill -0 $pid 2>/dev/null; do sleep 0.05; done",
    );
    assert_eq!((seen.code, seen.out.as_str()), (0, "1\n1\n1\n"), "{}", seen.err);
}

/// A wrong option, a wrong SPEC and a server that is not there fail with the exit codes of mount(8)
/// and with a sentence.
#[test]
fn a_mount_that_fails_has_the_exit_code_of_mount() {
    let seen = with_helper(
        "try() { code=0; mount -t latchfs \"$@\" 2>> said || code=$?; echo $code; }
         try latchfs locks -o ro
         try latchfs locks -o help
         try /dev/null locks
         try latchfs locks -o no-such-option
         try latchfs locks -o state=/proc/self/no-directory
         cat said >&2",
    );
    assert_eq!((seen.code, seen.out.as_str()), (0, "1\n1\n1\n1\n32\n"), "{}", seen.err);
    for wanted in ["can't be 'ro'", "is no server; write its URL", "--no-such-option"] {
        assert!(seen.err.contains(wanted), "{wanted} is missing in {}", seen.err);
    }
}

/// A line with the URL of a server mounts its locks. A line whose server is away fails alone.
#[test]
fn a_line_of_fstab_names_a_server() {
    let seen = with_helper(
        "$LATCHFS serve --listen 127.0.0.1:0 --memory --grant-at-once > served & server=$!
         trap 'umount -l $T/locks 2>/dev/null || :; kill $server' EXIT
         until grep -q listening served; do sleep 0.05; done
         url=$(sed -n 's/.*listening on \\([^ ]*\\).*/\\1/p' served)
         echo \"$url $T/locks latchfs client=laptop1,_netdev 0 0\" > fstab
         echo \"http://127.0.0.1:1 $T/away latchfs nofail,_netdev 0 0\" >> fstab
         code=0; mount --all --fstab fstab >&2 || code=$?; echo $code
         mkdir locks/build && $LATCHFS who build --server $url | head -n 1
         grep -c \" $T/.* fuse.latchfs\" /proc/mounts
         umount locks",
    );
    assert_eq!(seen.code, 0, "{}", seen.err);
    let lines: Vec<_> = seen.out.lines().collect();
    // The code of mount(8) if some of several succeeded.
    assert_eq!((lines[0], lines[2]), ("64", "1"), "{seen:?}");
    assert!(lines[1].starts_with("build: held by laptop1:root"), "{seen:?}");
    assert!(seen.err.contains("the server http://127.0.0.1:1 can't be used"), "{seen:?}");
}
