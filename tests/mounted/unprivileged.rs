//! Mounts by users other than root, and on machines that lack a component that mounting needs.
//!
//! Each script runs in a mount namespace of its own, in which it may change `/dev`.

use std::fs;
use std::process::Command;
use testing::*;

/// Runs a script as root in a new mount namespace, in which `user COMMAND...` runs a command as
/// [`ALICE`]. `$T` is a directory that all users may write to, with a copy of the program, because
/// users may not enter the directory in which the program was built.
fn in_a_namespace(script: &str) -> Output {
    users();
    let scratch = Scratch::open_to_all();
    let place = scratch.path();
    fs::copy(latchfs_path(), scratch.join("latchfs")).expect("there is room");
    let head = format!(
        "user() {{ setpriv --reuid={ALICE} --regid={ALICE} --clear-groups \"$@\"; }}
         export HOME=$T/home
         mkdir -m 777 $HOME && mknod $T/fuse c 10 229 && chmod 666 $T/fuse
         mount --bind $T/fuse /dev/fuse && cd $T || exit 99
         trap 'umount -l $T/locks 2>/dev/null' EXIT
         "
    );
    let mut command = Command::new("unshare");
    let script = head + script;
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let path = std::env::var("PATH").expect("there is one");
    let path = format!("{}:{path}", place.display());
    run(command.env("T", place).env("PATH", path).env_remove("LATCHFS_DIR"))
}

/// A user mounts by fusermount3, with the state in the user's home directory. No other user is
/// served, not even root.
#[test]
fn a_user_mounts_by_fusermount3() {
    let seen = in_a_namespace(
        "user latchfs mount locks --client laptop1 --background >&2 || exit 1
         user mkdir locks/build && user cat locks/build/holder
         ls locks 2>/dev/null || echo 'root is not served'
         user latchfs ls --dir locks | grep -c laptop1
         user latchfs umount locks >&2 || exit 2
         grep -c ' '${T%/}'/locks ' /proc/self/mountinfo
         user mkdir locks/build 2>/dev/null || echo sealed
         user latchfs mount locks --client laptop1 --background >&2 || exit 3
         user cat locks/build/holder; user latchfs umount locks >&2 || exit 4
         ls -d home/.local/state/latchfs",
    );
    let holder = format!("laptop1:{ALICE}");
    let said = format!(
        "{holder}\nroot is not served\n1\n0\nsealed\n{holder}\nhome/.local/state/latchfs\n"
    );
    assert_eq!((seen.out.as_str(), seen.code), (said.as_str(), 0), "{}", seen.err);
}

/// `--allow-other` by a user needs a line in /etc/fuse.conf, which the message names.
#[test]
fn allow_other_needs_a_line_in_fuse_conf() {
    let seen = in_a_namespace(
        ": > $T/fuse.conf; mount --bind $T/fuse.conf /etc/fuse.conf
         user latchfs mount locks --allow-other --state none --background",
    );
    assert!(seen.code != 0 && seen.err.contains("user_allow_other"), "{seen:?}");
}

/// A fusermount3 that does not know the option `nosymfollow` mounts without it. Then a symlink that
/// leads out of the mount can be read only by the user who made it, so that no other user follows
/// it.
#[test]
fn symlinks_are_guarded_where_the_kernel_follows_them() {
    let seen = in_a_namespace(&format!(
        "echo user_allow_other > $T/fuse.conf; mount --bind $T/fuse.conf /etc/fuse.conf
         bob() {{ setpriv --reuid={BOB} --regid={BOB} --clear-groups \"$@\"; }}
         none='--state none --grant-at-once'
         user latchfs mount locks --allow-other $none --background >&2 || exit 1
         echo precious > secret && chown {ALICE} secret
         bob ln -s $T/secret locks/out && bob ln -s ../secret locks/up && bob ln -s me locks/in
         for link in out up; do
             user sh -c \"echo overwritten > locks/$link\" 2>/dev/null && echo followed
             user readlink locks/$link || echo unread
             bob readlink locks/$link
         done
         user readlink locks/in
         cat secret
         user latchfs umount locks >&2"
    ));
    assert_eq!(seen.code, 0, "{seen:?}");
    let mut lines = seen.out.lines();
    assert_eq!(lines.next(), Some("unread"), "{seen:?}");
    assert!(lines.next().is_some_and(|line| line.ends_with("/secret")), "{seen:?}");
    assert_eq!(lines.collect::<Vec<_>>(), ["unread", "../secret", "me", "precious"], "{seen:?}");
}

/// A user who may not open the FUSE device gets a message that names it.
#[test]
fn a_user_needs_the_device() {
    let seen =
        in_a_namespace("chmod 600 $T/fuse; user latchfs mount locks --state none --foreground");
    assert_eq!(seen.code, 77, "{seen:?}");
    assert!(seen.err.contains("/dev/fuse"), "{}", seen.err);
}

/// On a machine without the FUSE device, root gets a message that suggests modprobe.
#[test]
fn a_missing_device_is_reported() {
    let seen = in_a_namespace(
        "mount -t tmpfs tmpfs /dev; latchfs mount locks --state none --foreground 2>said
         code=$?; cat said; exit $code",
    );
    assert_eq!(seen.code, 69, "{seen:?}");
    assert!(seen.out.contains("/dev/fuse") && seen.out.contains("modprobe"), "{}", seen.out);
}

/// A user gets a message that names the package if fusermount3 is missing; root does not need
/// fusermount3.
#[test]
fn a_missing_fusermount3_is_reported() {
    let seen = in_a_namespace(
        "user env PATH=/nowhere $T/latchfs mount locks --state none --foreground 2>&1; echo $?
         env PATH=/nowhere $T/latchfs mount locks --state none --background >$T/said 2>&1; echo $?
         latchfs umount locks >/dev/null; echo $?",
    );
    let lines: Vec<_> = seen.out.lines().collect();
    let said = lines[..lines.len() - 3].join(" ");
    assert!(said.contains("fusermount3") && said.contains("package fuse3"), "{seen:?}");
    assert_eq!(lines[lines.len() - 3..], ["69", "0", "0"], "{seen:?}");
}

/// `doctor` reports that the user can't open the FUSE device.
#[test]
fn doctor_reports_an_unusable_device() {
    let seen = in_a_namespace("chmod 600 $T/fuse; user latchfs doctor");
    assert_eq!(seen.code, 1, "{seen:?}");
    assert!(seen.out.contains("/dev/fuse"), "{}", seen.out);
}

/// A command that names no mount means one of root or of its own user. In an earlier version any
/// user's mount made it ambiguous, or was used by root's commands if it was the only one.
#[test]
fn a_mount_of_another_user_is_not_meant_by_the_commands_of_root() {
    let seen = in_a_namespace(
        "of_latchfs() { grep -F ' - fuse.latchfs ' /proc/self/mountinfo | cut -d ' ' -f 5; }
         for dir in $(of_latchfs); do umount -l -c $dir; done
         echo user_allow_other > $T/fuse.conf; mount --bind $T/fuse.conf /etc/fuse.conf
         none='--state none --grant-at-once --background'
         user latchfs mount users --allow-other --client users $none >&2 || exit 1
         for dir in $(of_latchfs); do [ $dir -ef users ] || exit 2; done
         user mkdir users/build
         mkdir root && sed s:/root:$T/root: /etc/passwd > passwd && mount --bind passwd /etc/passwd
         latchfs ls 2>&1; latchfs status build --json | grep -o '\"phase\": \"free\"'
         kill $(cat root/.local/state/latchfs/own/*/state/lock); user rmdir users/build
         latchfs mount locks --client own $none >&2 || exit 3
         latchfs acquire build >&2 || exit 4
         latchfs ls | grep -o own:root; ls -d locks/build users/build 2>/dev/null
         latchfs acquire build --dir users >&2 || exit 5
         latchfs status build | grep -oE '(own|users):root' | sort -u
         user latchfs ls 2>&1; echo $?
         latchfs umount locks >&2; latchfs umount users >&2",
    );
    // Without a mount of its own, root means its own locks.
    let none = "NAME  PHASE  HOLDER  EXPIRES IN  WAITERS  NOTE\n\"phase\": \"free\"\n";
    let (root, user) = seen.out.split_at(seen.out.find("latchfs: several").unwrap_or_default());
    let expected = format!("{none}own:root\nlocks/build\nown:root\n");
    assert_eq!((root, seen.code), (expected.as_str(), 0), "{seen:?}");
    assert!(user.contains("/users") && user.contains("/locks") && user.ends_with("\n64\n"));
}
