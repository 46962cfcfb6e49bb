//! Foreign versions of files, which came past the view: a save, a rename or a removal through the
//! view puts them aside.
use std::fs::{self};
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
    assert!(guard.lost().is_empty(), "{:?}", guard.lost());
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
    assert!(guard.lost().is_empty(), "{:?}", guard.lost());
}
