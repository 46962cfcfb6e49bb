//! Guards of users other than root, who mount by fusermount3.
//!
//! Each script runs in a mount namespace of its own, in which it may change `/dev/fuse`.
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use testing::{Output, Scratch, run};

/// The user that starts the guard. No such user need exist.
pub(crate) const ALICE: u32 = 54_321;
/// Another user.
const BOB: u32 = 54_322;

/// Runs a script in a new mount namespace, in which `user COMMAND...` runs a command as [`ALICE`],
/// and `bob COMMAND...` one as [`BOB`]. `folder` belongs to [`ALICE`].
pub(crate) fn in_a_namespace(script: &str) -> Output {
    let scratch = Scratch::with_folder();
    let place = scratch.path();
    fs::set_permissions(place, fs::Permissions::from_mode(0o777)).expect("ours");
    fs::copy(testing::latchfs_path(), place.join("latchfs")).expect("there is room");
    let head = format!(
        "as() {{ id=$1; shift; exec setpriv --reuid=$id --regid=$id --clear-groups \"$@\"; }}
         user() {{ (as {ALICE} \"$@\"); }}
         bob() {{ (as {BOB} \"$@\"); }}
         cd $T && chown {ALICE} folder && mkdir -m 777 home || exit 99
         export HOME=$T/home XDG_STATE_HOME=$T/home/state
         mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 98
         mount -t fusectl fusectl /sys/fs/fuse/connections || exit 97
         # fusermount3 wants to know the name of its user.
         {{ cat /etc/passwd; echo alice:x:{ALICE}:{ALICE}::/:/bin/sh; }} >passwd
         mount --bind passwd /etc/passwd
         trap 'umount -l $T/view 2>/dev/null' EXIT
         # Prints the daemon of the view, and fails if there is none.
         daemon() {{ sed -n \"s,^.* $T/view .* latchfs:\\([0-9]*\\):.*,\\1,p\" \
             /proc/self/mountinfo | grep .; }}
         "
    );
    let mut command = Command::new("unshare");
    let script = head + script;
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let path = std::env::var("PATH").expect("there is one");
    let path = format!("{}:{path}", place.display());
    command.env("T", place).env("PATH", path).env_remove("LATCHFS_SERVER");
    run(command.env_remove("LATCHFS_DIR"))
}

#[test]
fn a_user_guards_a_folder_by_fusermount3() {
    let seen = in_a_namespace(&format!(
        "user latchfs guard init folder --alone >&2 || exit 1
         (as {ALICE} latchfs guard folder view) >out & guard=$!
         until grep -q shows out; do kill -0 $guard || exit 2; sleep 0.02; done
         user sh -c 'echo saved >view/a; chmod 640 view/a; echo more >>view/a' || exit 3
         # A large file takes several reads.
         user sh -c 'head -c 200000 /dev/zero >folder/large; for i in 1 2; do \
             cmp view/large folder/large; done' || exit 4
         cat folder/a; stat -c '%u %a' folder/a
         ls view 2>&1 | grep -c denied
         bob cat view/a 2>&1 | grep -c denied
         ls -d home/state/latchfs/*/stage | wc -l; stat -c '%u %a' home/state/latchfs/*/stage
         user latchfs guard status view | grep -c holding
         kill -INT $(daemon); wait $guard; echo ended $?
         daemon || echo unmounted"
    ));
    let expected =
        format!("saved\nmore\n{ALICE} 640\n1\n1\n1\n{ALICE} 700\n1\nended 0\nunmounted\n");
    assert_eq!((seen.out.as_str(), seen.code), (expected.as_str(), 0), "{}", seen.err);
}

#[test]
fn a_user_unmounts_a_live_view_and_a_dead_one() {
    let seen = in_a_namespace(
        "user latchfs guard init folder --alone >&2 || exit 1
         user latchfs guard folder view --background >&2 || exit 2
         pid=$(daemon); user sh -c 'echo 1 >view/a' || exit 3
         user latchfs umount view || exit 4
         daemon || echo unmounted
         while kill -0 $pid 2>/dev/null; do sleep 0.02; done; echo ended
         user latchfs guard folder view --background >&2 || exit 5
         user sh -c 'echo 2 >view/a' || exit 6
         kill -KILL $(daemon)
         until user latchfs guard status view 2>&1 | grep -o 'is dead'; do :; done
         user latchfs umount view || exit 7
         daemon || echo unmounted
         user latchfs guard folder view --background >&2 || exit 8
         user sh -c 'echo 3 >>view/a' && cat folder/a
         kill -STOP $(daemon); pid=$(daemon)
         (as 54321 cat view/none 2>why) & cat=$!
         until grep -q request_wait /proc/$cat/wchan; do kill -0 $cat || exit 10; done
         user latchfs umount view || exit 9
         wait $cat; grep -c 'connection abort' why
         daemon || echo unmounted; kill -CONT $pid
         while kill -0 $pid 2>/dev/null; do sleep 0.02; done",
    );
    let out = seen.out.replace(|c: char| c.is_ascii_digit(), "");
    let place = out.split_whitespace().find(|word| word.ends_with("/view")).unwrap_or_default();
    let expected = format!(
        "latchfs: unmounted {place}\nunmounted\nended\nis dead\nlatchfs: unmounted {place}, whose \
         daemon was gone\nunmounted\n\n\nlatchfs: unmounted {place}, whose daemon did not \
         answer\n\nunmounted\n"
    );
    assert_eq!((out.as_str(), seen.code), (expected.as_str(), 0), "{seen:?}");
}

#[test]
fn a_user_without_the_device_gets_the_remedy() {
    let seen = in_a_namespace(
        "user latchfs guard init folder --alone >&2 || exit 1
         chmod 600 fuse; user latchfs guard folder view",
    );
    assert_eq!(seen.code, 77, "{seen:?}");
    assert!(seen.err.contains("'chmod 666 /dev/fuse'"), "{}", seen.err);
}

/// A view that nobody has named is shown in the home directory, unless a sync tool carries that.
#[test]
fn a_view_has_a_default_place() {
    let seen = in_a_namespace(
        "user latchfs guard init folder --alone >&2 || exit 1
         mkdir home/.stfolder && chown 54321 home/.stfolder
         user latchfs guard folder 2>&1 | grep -o 'home/latchfs/folder lies in' || exit 2
         rmdir home/.stfolder
         user latchfs guard folder --background >&2 || exit 3
         user sh -c 'echo saved >home/latchfs/folder/a' && cat folder/a
         # Another folder with the same name.
         mkdir -p other/folder && chown 54321 other/folder
         user latchfs guard init other/folder --alone >&2 || exit 6
         user latchfs guard other/folder 2>&1 | grep -o 'folder is a view already'
         user latchfs umount home/latchfs/folder >&2 || exit 4
         user env -u HOME XDG_STATE_HOME=$T/home/state latchfs guard folder 2>&1 | grep -o 'no HOME'
         latchfs guard folder --stage $T/kept --background >&2 || exit 5
         cat /mnt/folder/a; latchfs umount /mnt/folder >&2",
    );
    let expected = "home/latchfs/folder lies in\nsaved\nfolder is a view already\nno HOME\nsaved\n";
    assert_eq!((seen.out.as_str(), seen.code), (expected, 0), "{seen:?}");
}
