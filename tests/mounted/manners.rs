//! Ordinary tools that know files but not locks: each works on a mount as documented, and none
//! hangs.

use testing::*;

/// `rm -rf` releases the caller's own locks, reports those of others, and ends.
#[test]
fn rm_rf_releases_own_locks() {
    let m = mount();
    m.sh_as(ALICE, "mkdir -p team/build dir && touch team/build/x file && ln -s x link").ok();
    m.sh_as(BOB, "mkdir his").ok();
    let said = m.sh_as(ALICE, "rm -rf team dir file link his").fails();
    assert!(said.contains("his") && said.contains("not permitted"), "{said}");
    assert_eq!(m.sh("ls -A").ok(), "his\n");
    m.sh("rm -rf ./*").ok();
    assert_eq!(m.sh("ls -A").ok(), "");
    assert_eq!(m.phase("team/build/x"), "free");
}

/// `find -delete` releases all locks of the caller.
#[test]
fn find_delete_releases() {
    let m = mount();
    m.sh("mkdir -p a/b/c && touch a/b/x a/y z && ln -s x a/link").ok();
    m.sh("find . -mindepth 1 -delete").ok();
    assert_eq!(m.sh("find .").ok(), ".\n");
}

/// `cp -p` to the mount acquires a lock with the text and the times of the file; `cp` from the
/// mount copies the content as cat shows it.
#[test]
fn cp_to_and_from_the_mount() {
    let m = mount();
    m.sh("echo hello > $T/in && touch -d '2001-02-03 04:05:06.789 UTC' $T/in").ok();
    m.sh("cp -p $T/in build && cmp build $T/in").ok();
    assert_eq!(m.sh("date -u -r build +%FT%T.%N").ok(), "2001-02-03T04:05:06.789000000\n");
    assert_eq!(m.phase("build"), "held");
    m.sh("cp -p build $T/out && cmp $T/in $T/out && test ! $T/in -nt $T/out").ok();
    m.sh("touch plain && cp -p plain $T/plain && grep -q '\"phase\": \"held\"' $T/plain").ok();
    assert!(m.sh("head -c 5000 /dev/zero > $T/big; cp $T/big big").fails().contains("too large"));
    m.sh("cp -rp $T/. copies 2>/dev/null; cp -rp . $T/all").ok();
    assert!(m.sh_as(BOB, "cp $T/in build").fails().contains("busy"));
    m.sh("cmp build $T/in").ok();
}

/// `mv` to the mount turns a file into a lock; `mv` from the mount turns a lock into a file, and
/// releases it.
#[test]
fn mv_to_and_from_the_mount() {
    let m = mount();
    m.sh("echo hello > $T/in && mv $T/in build && test ! -e $T/in").ok();
    assert_eq!(m.sh("cat build").ok(), "hello\n");
    assert_eq!(m.phase("build"), "held");
    m.sh("mv build $T/out && grep -q hello $T/out").ok();
    assert_eq!(m.phase("build"), "free");
    assert_eq!(m.sh("ls -A").ok(), "");
}

/// `rsync -a` copies files to the mount and from it.
#[test]
fn rsync_to_and_from_the_mount() {
    let m = mount();
    m.sh("mkdir -p $T/in/sub && echo one > $T/in/a && echo two > $T/in/sub/b").ok();
    m.sh("touch -d '2001-02-03 UTC' $T/in/a && rsync -a $T/in/ ./").ok();
    assert_eq!(m.sh("find . | sort").ok(), ".\n./a\n./sub\n./sub/b\n");
    assert_eq!(m.sh("cat a sub/b; date -u -r a +%F").ok(), "one\ntwo\n2001-02-03\n");
    m.sh("rsync -a ./ $T/out && diff -r $T/in $T/out").ok();
    m.sh("rsync -a --delete $T/in/ ./ && rm $T/in/a && rsync -a --delete $T/in/ ./").ok();
    assert_eq!(m.sh("ls").ok(), "sub\n");
}

/// `tar` unpacks files in the mount and packs them from it.
#[test]
fn tar_to_and_from_the_mount() {
    let m = mount();
    m.sh("mkdir -p $T/in/sub && echo one > $T/in/a && echo two > $T/in/sub/b").ok();
    m.sh("ln -s text $T/in/link && tar -C $T/in -cf - a sub link | tar -xf -").ok();
    assert_eq!(m.sh("cat a sub/b; readlink link; ls").ok(), "one\ntwo\ntext\na\nlink\nsub\n");
    m.sh("tar -cf $T/out.tar . && mkdir $T/out && tar -C $T/out -xf $T/out.tar").ok();
    m.sh("diff -r --no-dereference $T/in $T/out").ok();
    // A lock's file that shows the status has size 0, as in /proc: tar archives its name without
    // content.
    m.sh("touch plain && tar -cf - plain | tar -tf - | grep -qx plain").ok();
}

/// `sed -i` renames a new file over the lock, which moves the new file's lease to the lock's name;
/// the content is the new text.
#[test]
fn sed_in_place() {
    let m = mount();
    m.sh("set -C; echo hello > build").ok();
    let token = m.token("build");
    m.sh("sed -i s/hello/bye/ build").ok();
    assert_eq!(m.sh("cat build; ls -A").ok(), "bye\nbuild\n");
    assert!(m.token("build") > token);
    m.sh_as(BOB, "sed -i s/bye/mine/ build").fails();
    assert_eq!(m.sh("cat build; ls -A").ok(), "bye\nbuild\n", "nothing is left behind");
}

/// vi saves a file in the mount, with its swap file and its backup. It complains if its swap file
/// does not fit into 4 KiB, but saves.
#[test]
fn vi_saves_in_the_mount() {
    let m = mount();
    m.sh("set -C; echo hello > build").ok();
    m.sh("vi -u NONE -es -c 's/hello/bye/' -c wq build </dev/null || true").ok();
    assert_eq!(m.sh("cat build; ls -A").ok(), "bye\nbuild\n");
    let careful = "vi -u NONE -nes --cmd 'set backup writebackup backupcopy=no backupskip=' \
                   -c 's/bye/third/' -c wq build </dev/null";
    m.sh(careful).ok();
    assert_eq!(m.sh("cat .latchfs/content/build").ok(), "third\n");
    assert_eq!(m.sh("ls -A").ok(), "build\nbuild~\n");
    assert_eq!(m.phase("build~"), "held");
}

/// The editor `ed` writes to a lock's file in place, without a new file and a rename.
#[test]
fn ed_saves_in_the_mount() {
    let m = mount();
    m.sh("set -C; echo hello > build").ok();
    m.sh("printf 's/hello/bye/\\nw\\nq\\n' | ed -s build").ok();
    assert_eq!(m.sh("cat .latchfs/content/build; ls -A").ok(), "bye\nbuild\n");
}

/// `ls -laR` and other programs that read everything succeed, and acquire nothing.
#[test]
fn reading_everything_acquires_nothing() {
    let m = mount();
    m.sh("mkdir -p a/b && touch a/b/c d && ln -s nowhere e").ok();
    m.sh_as(ALICE, "mkdir hers").ok();
    for look in [
        "ls -laR . .latchfs",
        "find . -ls",
        "du -a .",
        "grep -rs held .",
        "stat * .latchfs/*",
        "getfattr -d -R . > /dev/null; true",
        "df .; file d; head -c 10 d; tail -n 2 d; wc d; md5sum d",
        "test -r d && test -w d && test -d a && test -L e",
        "ls | sort | tail -1",
    ] {
        let seen = m.sh(look);
        assert_eq!(seen.code, 0, "{look}: {seen:?}");
        m.sh_as(BOB, look).code.to_string();
    }
    assert_eq!(m.sh("ls -A").ok(), "a\nd\ne\nhers\n", "looking takes nothing");
}

/// `ls DIR` lists all held locks, even if there are many.
#[test]
fn a_long_listing_is_complete() {
    let m = mount();
    m.py(r#"
        names = [f'lock-{n:05}' for n in range(3_000)]
        for name in names: os.mkdir(name)
        eq(listed(), names)
        # What is released while somebody lists is not listed twice, and hides nothing else.
        seen = []
        with os.scandir('.') as entries:
            for entry in entries:
                seen.append(entry.name)
                if len(seen) == 10:
                    for name in names[:1_000]: os.rmdir(name)
        eq(len(seen), len(set(seen)))
        assert set(names[1_000:]) <= set(seen)
        eq(listed(), names[1_000:])
    "#)
        .ok();
    assert_eq!(m.sh("ls | wc -l; rm -rf lock-*; ls | wc -l").ok(), "2000\n0\n");
}
