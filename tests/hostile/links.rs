//! A local user who makes links in root's mount: symbolic links out of the mount, and more hard
//! links to a lock than the daemon accepts.

use latchfs::time::steady_now;
use std::time::Duration;
use testing::*;

/// The time within which another user of the attacked mount, the victim, must get an answer.
const VICTIM_LIMIT: Duration = Duration::from_secs(1);

/// Checks that the victim, the user Bob, acquires and releases a lock of his own within a second.
#[track_caller]
fn victim_is_served(m: &Mount) {
    let begun = steady_now();
    m.sh_as(BOB, "mkdir victim && rmdir victim").ok();
    let waited = steady_now().since(begun).as_duration();
    assert!(waited < VICTIM_LIMIT, "the victim waited {waited:?}");
}

/// After `ln -s /root-only/file locks/nightly` by a user, operations of root on `nightly` as the
/// README describes them reach no file outside of the mount, whatever owner and directory the
/// symlink has. Reading the symlink works: symlink locks need no more.
#[test]
fn symlink_out_of_the_mount_is_not_followed() {
    let m = mount();
    m.sh("echo precious > $T/secret && chmod 600 $T/secret").ok();
    m.sh_as(ALICE, "ln -s $T/secret nightly && ln -s $T/missing dangling").ok();
    m.sh_as(ALICE, "mkdir sub && ln -s $T/secret sub/nightly && ln -s $T out").ok();
    let given = m.sh_as(ALICE, "chown -h root nightly");
    for name in ["nightly", "sub/nightly", "out/secret"] {
        let written = m.sh(&format!("echo $$ > {name}"));
        assert_eq!(m.sh("cat $T/secret").ok(), "precious\n", "{name}: {written:?}");
        let refused = written.fails();
        assert!(refused.contains("symbolic link"), "{refused}");
    }
    let locked = m.sh("flock -n dangling true");
    assert_eq!(m.sh("ls $T").ok(), "secret\n", "{locked:?}");
    locked.fails();
    let refused = given.fails();
    assert!(refused.contains("not permitted"), "{refused}");
    m.sh_as(ALICE, "chgrp -h root nightly").fails();
    m.sh_as(ALICE, "chown -h $(id -u):$(id -g) nightly").ok();
    let target = m.sh("readlink nightly").ok();
    assert_eq!(target.trim(), m.scratch().join("secret").to_str().expect("UTF-8"));
    assert_eq!(m.status("nightly")["holder"], format!("laptop1:{ALICE}"));
    victim_is_served(&m);
}

/// A lock can have a limited number of hard links. Beyond the limit link(2) fails with EMLINK, and
/// operations that reach all names of the inode still work.
#[test]
fn hard_links_are_bounded() {
    let m = mount();
    let seen = m.py(r#"
        with user(A):
            os.close(exclusive('a'))
            made = 0
            for n in range(4_000):
                if no(os.link, 'a', f'l{n}') != 'ok': break
                made += 1
            eq(no(os.link, 'a', 'more'), 'EMLINK')
            assert '64' in why(), why()
            eq(os.stat('a').st_nlink, made + 1)
            os.utime('a')
            eq(write('a', 'text'), 'ok')
            os.chmod('a', 0o600)
        eq(os.stat('a').st_nlink, made + 1)
        with user(A):
            for name in listed(): os.remove(name)
        print(made)
        "#);
    assert_eq!(seen.ok(), "63\n");
    victim_is_served(&m);
}

/// A lock below another user's directory would keep that directory from being removed. So only
/// users who may write to the directory can make such a lock, by any operation, and the holder of
/// the directory can always remove it within a second.
#[test]
fn name_below_anothers_lock_is_refused() {
    let m = mount();
    m.sh("mkdir -p team && mkdir team/own").ok();
    m.sh_as(ALICE, "touch mine").ok();
    let forms = [
        "mkdir backup/x",
        "(set -C; : > backup/x)",
        ": > backup/x",
        "ln -s text backup/x",
        "flock -n backup/x true",
        "ln mine backup/x",
        "mv mine backup/x",
        "latchfs acquire backup/x",
        "latchfs run --try backup/x -- true",
        "latchfs wait backup/x",
        "cat .latchfs/wait/backup%2Fx",
        "mkdir backup/x/y",
        "latchfs acquire backup/x/y",
    ];
    for form in forms {
        m.sh_as(BOB, "mkdir backup").ok();
        let tried = m.sh_as(ALICE, form);
        let begun = steady_now();
        let removed = m.sh_as(BOB, "rmdir backup");
        assert_eq!(removed.code, 0, "the holder's rmdir after '{form}': {removed:?}");
        let waited = steady_now().since(begun).as_duration();
        assert!(waited < VICTIM_LIMIT, "{form}: the holder waited {waited:?}");
        let refused = tried.fails();
        let says = ["Permission denied", "No such file", "lets nobody else make locks there"];
        assert!(says.iter().any(|says| refused.contains(says)), "{form}: {refused}");
    }
    m.sh_as(BOB, "mkdir backup").ok();
    m.sh_as(ALICE, "mkdir backup/x").fails();
    m.sh_as(BOB, "rm -rf backup").ok();
    victim_is_served(&m);
}

/// The holder of a directory shares it by chmod. A directory that exists only because locks lie
/// below it belongs to nobody.
#[test]
fn chmod_shares_a_directory_of_locks() {
    let m = mount();
    m.sh_as(ALICE, "mkdir team && mkdir team/x").ok();
    m.sh_as(BOB, "mkdir team/y").fails();
    m.sh("mkdir team/root").ok();
    m.sh_as(ALICE, "chmod 777 team").ok();
    m.sh_as(BOB, "mkdir team/y && mkdir team/y/z").ok();
    m.sh_as(ALICE, "mkdir team/y/a").fails();
    // Nobody holds the lock `crew`, so everybody may make names below it.
    m.sh_as(ALICE, "latchfs acquire crew/x").ok();
    m.sh_as(BOB, "mkdir crew/y && touch crew/z && latchfs acquire crew/v/w").ok();
}
