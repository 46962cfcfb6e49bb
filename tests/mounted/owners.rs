//! The owner of a lock: host, user or session; and two clients of one daemon.

use testing::*;

/// Two users are two owners of locks: neither can renew or release the lock of the other.
#[test]
fn users_are_owners() {
    let m = mount();
    m.sh_as(ALICE, "mkdir build && touch file").ok();
    for script in ["mkdir build", "rmdir build", "touch build", "touch file", "rm -f file"] {
        m.sh_as(BOB, script).fails();
    }
    assert_eq!(m.status("build")["holder"], format!("laptop1:{ALICE}"));
    m.sh_as(ALICE, "touch build file && rmdir build && rm file").ok();
    m.sh_as(BOB, "mkdir build").ok();
}

/// A user without a name in the user database is named by its uid.
#[test]
fn a_user_without_a_name_is_named_by_its_uid() {
    let m = mount();
    m.py("os.setegid(54321); os.seteuid(54321); os.mkdir('build')").ok();
    assert_eq!(m.status("build")["holder"], "laptop1:54321");
    assert_eq!(m.sh("stat -c %u build").ok(), "54321\n");
}

/// Root may release the locks of local users, but not renew or move them.
#[test]
fn root_may_release_the_locks_of_users() {
    let m = mount();
    m.sh_as(ALICE, "mkdir build && touch file && ln -s x link").ok();
    m.sh("touch build").fails();
    m.sh("mv file root").fails();
    m.sh("rmdir build && rm file link").ok();
    assert_eq!(m.sh("ls -A").ok(), "");
}

/// `--owner host` ignores the user: any user of the host may renew and release.
#[test]
fn the_host_may_be_the_owner() {
    let m = Setup::new().with("--owner host").start();
    m.sh_as(ALICE, "mkdir build").ok();
    let token = m.token("build");
    assert_eq!(m.status("build")["holder"], "laptop1");
    m.sh_as(BOB, "mkdir build").fails();
    m.sh_as(BOB, "touch build").ok();
    assert_eq!(m.token("build"), token);
    m.sh_as(BOB, "rmdir build").ok();
    assert_eq!(m.phase("build"), "free");
}

/// `--owner session` adds the caller's login session: two terminals are two clients.
#[test]
fn the_session_may_be_the_owner() {
    let m = Setup::new().with("--owner session").start();
    m.sh_as(ALICE, "exec setsid -w sh -c 'mkdir build && touch build'").ok();
    let holder = text(&m.status("build")["holder"]);
    assert!(holder.starts_with(&format!("laptop1:{ALICE}:")), "{holder}");
    let other = "exec setsid -w sh -c 'touch build 2>&1; rmdir build 2>&1'";
    let said = m.sh_as(ALICE, other);
    assert!(said.out.contains("busy") && said.out.contains("not permitted"), "{}", said.out);
    m.sh_as(ALICE, "exec setsid -w sh -c 'mkdir mine && sh -c \"touch mine\" && rmdir mine'").ok();
    m.sh("rmdir build").ok();
}

/// One daemon may mount the same locks at several directories, each with its own `--client`.
#[test]
fn two_directories_are_two_clients() {
    let m = Setup::new().only("--client laptop1 --client laptop2").dirs(2).start();
    m.sh_as(ALICE, "mkdir build && (set -C; : > $D2/file)").ok();
    assert_eq!(m.status("build")["holder"], format!("laptop1:{ALICE}"));
    assert_eq!(m.status("file")["holder"], format!("laptop2:{ALICE}"));
    assert_eq!(m.sh("ls $D2; ls $D").ok(), "build\nfile\nbuild\nfile\n");
    m.sh_as(ALICE, "mkdir $D2/build").fails();
    m.sh_as(ALICE, "rmdir $D2/build").fails();
    m.sh_as(ALICE, "touch $D2/build").fails();
    m.sh_as(ALICE, "touch file").fails();
    let token = m.token("build");
    m.sh_as(ALICE, "rmdir build && test ! -e $D2/build && mkdir $D2/build").ok();
    assert!(m.token("build") > token);
    assert_eq!(m.sh("ls").ok(), "build\nfile\n");
    m.sh_as(ALICE, "test -d build && mkdir build").fails();
}

/// A change through one mount is visible at once through the other, even for names that were looked
/// up before.
#[test]
fn a_release_is_visible_on_the_other_mount() {
    let m = Setup::new().only("--client laptop1 --client laptop2").dirs(2).start();
    m.py(r#"
        there = os.environ['D2'] + '/build'
        for n in range(200):
            eq(no(os.stat, there), 'ENOENT')
            os.mkdir('build')
            eq(no(os.stat, there), 'ok')
            eq(no(os.mkdir, there), 'EEXIST')
            os.rmdir('build')
            eq(no(os.mkdir, there), 'ok')
            eq(no(os.mkdir, 'build'), 'EEXIST')
            eq(no(os.rmdir, there), 'ok')
    "#)
        .ok();
}

/// A mount by root serves all users, unless `--no-allow-other` is given.
#[test]
fn a_mount_by_root_serves_all_users() {
    let m = mount();
    m.sh_as(ALICE, "ls . && mkdir build").ok();
    let closed = Setup::new().with("--no-allow-other").start();
    closed.sh_as(ALICE, "cd / && ls $D").fails();
    closed.sh("mkdir build").ok();
}
