//! Foreign versions of files, which came past the view: a save, a rename or a removal through the
//! view puts them aside.
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Command;
use testing::{Guard, Scratch, run, shell};

/// A guard that holds the lock, over a folder with the file `a`.
fn holding(scratch: &Scratch, options: &[&str]) -> Guard {
    match options {
        [_, url, ..] => scratch.init(&["--server", url, "--shared-storage"]),
        _ => scratch.init(&["--alone"]),
    }
    let guard = Guard::start(scratch, "view", &options[options.len().min(2)..]);
    fs::write(guard.path("a"), "ours").expect("the lock is free");
    guard
}

pub(crate) fn lost(guard: &Guard) -> Vec<Value> {
    let lost: Value = serde_json::from_str(&guard.request("lost", &["--json"]).ok()).expect("JSON");
    lost["lost"].as_array().expect("a list").clone()
}

/// Makes a foreign version of `a`.
fn plant(folder: &Path, how: &str) {
    let a = folder.join("a");
    match how {
        "replaced" => {
            fs::write(folder.join(".a.tmp"), "foreign").expect("written");
            fs::rename(folder.join(".a.tmp"), a).expect("renamed");
        }
        "changed" => fs::write(a, "foreign").expect("written"),
        "deleted" => fs::remove_file(a).expect("removed"),
        "made" => {
            fs::remove_file(&a).expect("removed");
            fs::write(a, "foreign").expect("written");
        }
        _ => {
            fs::remove_file(&a).expect("removed");
            fs::create_dir(&a).expect("made");
            fs::write(a.join("inside"), "foreign").expect("written");
        }
    }
}

/// Checks that the foreign version of `a` is among the lost files, reported, and can be restored.
#[track_caller]
fn is_kept(guard: &Guard, what: &str) {
    let kept = lost(guard);
    assert_eq!(kept.len(), 1, "{what}: {kept:?}");
    assert_eq!((&kept[0]["path"], &kept[0]["size"]), (&"a".into(), &7.into()), "{what}");
    assert!(kept[0]["why"].as_str().expect("text").contains("outside the view"), "{what}");
    assert!(guard.why().contains("a had a version that came past the view"), "{}", guard.why());
    let number = kept[0]["number"].to_string();
    let restored = guard.request("lost", &["--restore", &number]).ok();
    let name = restored.trim().rsplit("as ").next().expect("a name").to_owned();
    assert_eq!(fs::read_to_string(guard.path(&name)).expect("restored"), "foreign", "{what}");
    fs::remove_file(guard.path(&name)).expect("removed");
    assert!(lost(guard).is_empty(), "{what}: the restored version is no foreign one");
}

fn check(guard: &Guard, scratch: &Scratch) {
    let folder = scratch.folder();
    let events = File::open(guard.path(".latchfs/events")).expect("readable");
    let mut events = BufReader::new(events).lines();
    for how in ["replaced", "changed", "made", "deleted", "directory"] {
        // A save.
        let mut saved = File::create(guard.path("a")).expect("held");
        saved.write_all(b"saved").expect("held");
        plant(&folder, how);
        if how == "directory" {
            let refused = saved.sync_all().expect_err("a directory has the name");
            assert_eq!(refused.raw_os_error(), Some(libc::EISDIR));
            drop(saved);
            assert_eq!(fs::read(folder.join("a/inside")).expect("there"), b"foreign");
            let number = lost(guard)[0]["number"].to_string();
            guard.request("lost", &["--drop", &number]).ok();
            fs::remove_dir_all(folder.join("a")).expect("there");
        } else {
            saved.sync_all().expect("published");
            drop(saved);
            assert_eq!(fs::read_to_string(folder.join("a")).expect("there"), "saved");
        }
        if how == "deleted" || how == "directory" {
            assert!(lost(guard).is_empty(), "{how}");
            shell(&guard.view, "echo ours > a").ok();
            continue;
        }
        is_kept(guard, &format!("save, {how}"));
        let event = events.next().expect("an event").expect("readable");
        assert!(event.contains("\"foreign\"") && event.contains("\"path\":\"a\""), "{event}");
        // A rename over it, and a removal.
        for change in ["echo new > b; mv b a; test \"$(cat a)\" = new", "rm a; test ! -e a"] {
            plant(&folder, how);
            shell(&guard.view, change).ok();
            is_kept(guard, &format!("{change}, {how}"));
            events.next().expect("an event").expect("readable");
            shell(&guard.view, "echo ours > a").ok();
        }
    }
    shell(&guard.view, "rm a; mkdir d; echo ours > d/a; mv d/a .; rmdir d").ok();
    assert!(lost(guard).is_empty(), "{:?}", lost(guard));
}

#[test]
fn a_foreign_version_is_put_aside() {
    let scratch = Scratch::with_folder();
    let guard = holding(&scratch, &[]);
    check(&guard, &scratch);
    guard.end();
}

#[test]
fn a_foreign_version_on_shared_storage_is_put_aside() {
    let scratch = Scratch::with_folder();
    let server = testing::Server::of(&scratch);
    let options = ["--server", server.url.as_str(), "--client", "m1", "--shared-storage"];
    let guard = holding(&scratch, &options);
    check(&guard, &scratch);
    guard.end();
}

#[test]
fn a_change_of_attributes_does_not_make_a_foreign_version_an_own_one() {
    let scratch = Scratch::with_folder();
    let guard = holding(&scratch, &[]);
    plant(&scratch.folder(), "replaced");
    shell(&guard.view, "chmod 600 a; ln a b; rm b; echo new > a").ok();
    is_kept(&guard, "chmod");
}

#[test]
fn programs_of_the_view_put_nothing_aside() {
    let scratch = Scratch::with_folder();
    let guard = holding(&scratch, &[]);
    let script = "
        for round in 1 2 3; do
            echo $round > x; chmod 600 x; touch -d @5 x; echo again > x; ln x y; rm x; mv y x
            cp -p x z; cp -p z x; mv z x; rm -f x; echo $round >> log.log; echo m >> log.log
            mv log.log log.old; cp log.old log.log; rm log.old; sed -i s/m/n/ log.log
            truncate -s 100 t; truncate -s 5 t; echo new > t; rm t
            dd if=/dev/zero of=t bs=10 count=3
            dd if=/dev/zero of=t bs=1 count=1 seek=2 conv=notrunc; mv t u; rm u
            mkdir -p p/q; echo 1 > p/q/r; tar cf p.tar p; rm -r p; tar xpf p.tar; tar xpf p.tar
            rm -r p
            install -m 644 p.tar v; install -m 600 p.tar v; rm v p.tar
        done 2>&1
        git init -q . 2>&1; git config user.email a@b; git config user.name a
        for round in 1 2 3; do
            echo $round > tracked; git add .; git commit -qm $round; git gc -q
        done 2>&1
        git checkout -q HEAD~1 2>&1; git status >/dev/null; git clone -q . clone 2>&1
        rm -rf clone .git";
    shell(&guard.view, script).ok();
    assert!(lost(&guard).is_empty(), "{:?}", lost(&guard));
    for mode in ["delete", "wal", "persist", "truncate"] {
        let program = format!(
            "
import sqlite3
for turn in range(3):
    db = sqlite3.connect('db'); db.execute('pragma journal_mode = {mode}')
    db.execute('create table if not exists t (n)')
    other = sqlite3.connect('db')
    for n in range(20):
        db.execute('insert into t values (?)', (n,)); db.commit()
        other.execute('select count(*) from t').fetchone()
    db.execute('vacuum')
    db.close(); other.close()
"
        );
        run(Command::new("python3").arg("-c").arg(program).current_dir(&guard.view)).ok();
    }
    shell(&guard.view, "rm db; rm -f db-*").ok();
    assert!(lost(&guard).is_empty(), "{:?}", lost(&guard));
}

/// Tenures that follow each other within one tick of the file system's clock.
const SHORT_TENURES: &str = "
for number in range(300):
    with open('a', 'w') as file: file.write(str(number))
    os.rename('a', 'b')
    os.rename('b', 'a')
    with open('.latchfs/ctl', 'r+b', buffering=0) as ctl:
        ctl.write(b'{\"do\": \"give\"}\\n')
        ctl.seek(0)
        ctl.read()
";

#[test]
fn the_version_of_the_last_tenure_is_no_foreign_one() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let program = format!("import os\n{SHORT_TENURES}");
    run(Command::new("python3").args(["-c", &program]).current_dir(&guard.view)).ok();
    assert_eq!(lost(&guard), Vec::<Value>::new());
    guard.end();
}
