//! Saves: each appears in the folder in one step, when it is complete.

use crate::faulty_markers::Traced;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::process::{Command, Stdio};
use testing::{Guard, Scratch, shell, soon};

fn alone(options: &[&str]) -> (Scratch, Guard) {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", options);
    (scratch, guard)
}

#[test]
fn what_several_programs_write_appears_whole() {
    let (scratch, guard) = alone(&[]);
    let real = |name: &str| scratch.folder().join(name);
    // The shell, which opened the file, goes on to write after each of its commands.
    let writer = "exec 9< gate; (cat; cat <&9) > log";
    fs::create_dir(real("gates")).expect("made");
    let gate = scratch.join("gate");
    let made = Command::new("mkfifo").arg(&gate).status().expect("mkfifo is there");
    assert!(made.success());
    let script = writer.replace("gate", gate.to_str().expect("text"));
    let mut child = Command::new("bash")
        .args(["-ec", &script])
        .current_dir(&guard.view)
        .stdin(Stdio::piped())
        .spawn()
        .expect("bash is there");
    let mut open_gate = OpenOptions::new().write(true).open(&gate).expect("opened by both");
    child.stdin.take().expect("piped").write_all(b"one\n").expect("written");
    soon("the first part", || {
        fs::read_to_string(guard.path("log")).ok().filter(|text| text == "one\n")
    });
    assert!(!real("log").exists(), "a program would go on writing");
    open_gate.write_all(b"two\n").expect("written");
    drop(open_gate);
    assert!(child.wait().expect("it ends").success());
    let text = soon("the file", || fs::read_to_string(real("log")).ok());
    assert_eq!(text, "one\ntwo\n");
}

#[test]
fn a_killed_program_leaves_the_old_version() {
    let (scratch, guard) = alone(&[]);
    fs::write(guard.path("data"), "old").expect("written");
    let script = "import os,sys,time\nf=open('data','w')\nf.write('half')\nf.flush()\n\
                  print('ready',flush=True)\ntime.sleep(60)";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .current_dir(&guard.view)
        .stdout(Stdio::piped())
        .spawn()
        .expect("python is there");
    let mut ready = [0; 5];
    child.stdout.take().expect("piped").read_exact(&mut ready).expect("it says so");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let lost = soon("a lost file", || {
        Some(guard.request("lost", &[]).ok()).filter(|text| text.contains("data"))
    });
    assert!(lost.contains("a signal ended the program"), "{lost}");
    assert_eq!(fs::read_to_string(scratch.folder().join("data")).expect("there"), "old");
    let restored = guard.request("lost", &["--restore", "1"]).ok();
    assert!(restored.contains("data (restored 1)"), "{restored}");
    let beside = scratch.folder().join("data (restored 1)");
    assert_eq!(fs::read_to_string(beside).expect("there"), "half");
    assert!(!guard.request("lost", &[]).ok().contains("data"), "it is no lost file any more");
}

#[test]
fn programs_save_as_on_any_file_system() {
    let (scratch, guard) = alone(&[]);
    let script = "
        cp /etc/services s && cmp s /etc/services
        sed -i 's/tcp/TCP/' s && grep -q TCP s
        mkdir -p d/e && mv s d/e/t && ln d/e/t hard && ln -s d/e/t soft && cat soft > copy
        cmp copy hard && rm hard && printf more >> copy && tail -c 4 copy | grep -q more
        dd if=/dev/zero of=zeros bs=4096 count=3 conv=fsync status=none
        truncate -s 5 zeros && test $(stat -c %s zeros) = 5
        tar -cf all.tar d && mkdir x && tar -xf all.tar -C x && cmp x/d/e/t d/e/t
        install -m 600 copy private && test $(stat -c %a private) = 600
        t=$(mktemp ./tmp.XXXXXX) && echo done > $t && mv $t final && grep -q done final
        git init -q repo && cd repo && echo a > a && git add a
        git -c user.name=a -c user.email=b commit -qm first && git fsck --strict
        test -z \"$(git status --porcelain)\" && cd ..
        touch -d '2001-02-03 04:05:06.123456789' old
        test $(stat -c %Y old) = $(date -d '2001-02-03 04:05:06' +%s)
        python3 -c \"
import sqlite3
for mode in ('delete','wal'):
    c=sqlite3.connect(mode+'.db'); c.execute('pragma journal_mode='+mode)
    c.execute('create table t(x)'); c.commit()
    for n in range(50):
        c.execute('insert into t values(?)',(n,)); c.commit()
    assert c.execute('pragma integrity_check').fetchone()==('ok',); c.close()\"
    ";
    shell(&guard.view, script).ok();
    guard.request("give", &[]).ok();
    let compare = format!("diff -r --no-dereference -x .latchfs {} .", guard.view.display());
    shell(&scratch.folder(), &compare).ok();
    let check = "python3 -c \"
import sqlite3
for m in ('delete','wal'):
    assert sqlite3.connect(m+'.db').execute('select count(*) from t').fetchone()==(50,)\"";
    shell(&scratch.folder(), check).ok();
}

#[test]
fn permissions_are_those_of_the_folder() {
    let (scratch, guard) = alone(&[]);
    fs::write(guard.path("mine"), "x").expect("written");
    fs::set_permissions(guard.path("mine"), fs::Permissions::from_mode(0o600)).expect("changed");
    fs::create_dir(guard.path("open")).expect("made");
    fs::set_permissions(guard.path("open"), fs::Permissions::from_mode(0o777)).expect("changed");
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("changed");
    let other = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let refused = shell(&guard.view, &format!("{other} cat mine")).fails();
    assert!(refused.contains("Permission denied"), "{refused}");
    shell(&guard.view, &format!("{other} sh -c 'echo y > mine'")).fails();
    shell(&guard.view, &format!("{other} sh -c 'echo y > open/theirs; mkdir open/dir'")).ok();
    let real = scratch.folder().join("open");
    assert_eq!(fs::metadata(real.join("theirs")).expect("there").uid(), 65_534);
    assert_eq!(fs::metadata(real.join("dir")).expect("there").uid(), 65_534);
    // A symlink out of the folder is the caller's to follow, and never the guard's.
    symlink("/etc/shadow", real.join("out")).expect("made");
    shell(&guard.view, &format!("{other} cat open/out")).fails();
    assert_eq!(fs::read_link(guard.path("open/out")).expect("there").to_str(), Some("/etc/shadow"));
}

#[test]
fn a_directory_that_becomes_a_symlink_leads_nowhere() {
    let (scratch, guard) = alone(&[]);
    let secret = scratch.join("secret");
    fs::create_dir(&secret).expect("made");
    fs::write(secret.join("file"), "secret").expect("written");
    let real = scratch.folder();
    fs::create_dir(real.join("dir")).expect("made");
    fs::write(real.join("dir/file"), "public").expect("written");
    symlink(&secret, real.join("link")).expect("made");
    let rounds = testing::rounds(2_000, 100_000);
    let swapping = std::thread::spawn(move || {
        for _ in 0..rounds {
            let (dir, link) = (real.join("dir"), real.join("link"));
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                &dir,
                rustix::fs::CWD,
                &link,
                rustix::fs::RenameFlags::EXCHANGE,
            )
            .expect("exchanged");
        }
    });
    let mut reads = 0;
    while !swapping.is_finished() {
        // The kernel may follow the symlink for this caller; the guard, as root, must not.
        let file = guard.path("dir/file");
        if fs::symlink_metadata(guard.path("dir")).is_ok_and(|found| found.is_dir())
            && let Ok(text) = fs::read_to_string(&file)
            && fs::symlink_metadata(guard.path("dir")).is_ok_and(|found| found.is_dir())
        {
            reads += usize::from(text == "public");
        }
        let _ = OpenOptions::new().append(true).open(&file).map(|mut file| file.write_all(b""));
    }
    swapping.join().expect("no panic");
    assert_eq!(fs::read_to_string(secret.join("file")).expect("there"), "secret", "{reads} reads");
}

/// Returns the places in a trace of a guard at which it has synced a file, and at which a file got
/// the name `a`.
fn syncs_and_names(options: &[&str]) -> (Option<usize>, usize) {
    let (scratch, guard) = alone(options);
    fs::write(guard.path("other"), "x").expect("free");
    let out = scratch.join("trace");
    let traced = Traced::attach(&guard, &out, &["-e", "trace=fsync,fdatasync,renameat,renameat2"]);
    fs::write(guard.path("a"), "saved").expect("held");
    drop(traced);
    let trace = fs::read_to_string(out).expect("there");
    let named = trace.lines().position(|line| line.contains("rename") && line.contains("\"a\""));
    let named = named.unwrap_or_else(|| panic!("no rename: {trace}"));
    let synced = trace.lines().position(|line| line.contains("sync(")).filter(|at| *at < named);
    (synced, named)
}

#[test]
fn with_sync_saves_a_file_is_synced_before_it_appears() {
    assert_eq!(syncs_and_names(&[]).0, None);
    let (synced, named) = syncs_and_names(&["--sync-saves"]);
    assert!(synced.is_some_and(|synced| synced < named), "{synced:?}, {named}");
}
