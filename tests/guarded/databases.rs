//! `SQLite` on a view, in each journal mode, while its program and the guard are killed.
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use testing::{Guard, Scratch, rounds, run, soon};

/// Inserts one number after the other, and tells each one in a file outside the view once its
/// transaction is committed. First it checks the database, and that it holds all acknowledged
/// numbers.
const WRITER: &str = "
import os, sqlite3, sys
mode, acked = sys.argv[1:]
acknowledged = [int(line) for line in open(acked).read().split()]
base = sqlite3.connect('base.db', isolation_level=None, timeout=30)
assert base.execute('pragma integrity_check').fetchall() == [('ok',)]
got = base.execute('pragma journal_mode=' + mode).fetchone()[0]
assert got == mode, got
base.execute('pragma synchronous=full')
base.execute('create table if not exists numbers(number integer primary key, more blob)')
have = [row[0] for row in base.execute('select number from numbers order by number')]
missing = sorted(set(acknowledged) - set(have))
assert not missing, ('acknowledged, and missing', missing[:5], len(missing))
tell = os.open(acked, os.O_WRONLY | os.O_APPEND)
number = max(have, default=0)
if len(have) > 3000:
    base.execute('delete from numbers where number <= ?', (number - 100,))
    base.execute('vacuum')
    os.ftruncate(tell, 0)
print('checked', flush=True)
if len(sys.argv) > 3: sys.exit()
while True:
    number += 1
    base.execute('begin immediate')
    base.execute('insert into numbers values(?, ?)', (number, os.urandom(number % 7 * 900)))
    base.execute('update numbers set more = ? where number = ?', (os.urandom(5000), number // 2))
    base.execute('commit')
    os.write(tell, b'%d\\n' % number)
";

fn writer(view: &Path, mode: &str, acked: &Path, out: Stdio) -> Child {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", WRITER, mode]).arg(acked).current_dir(view);
    command.stdout(out).stderr(Stdio::null()).spawn().expect("python is there")
}

/// Checks the database, by the view or past it.
fn check(dir: &Path, mode: &str, acked: &Path) {
    let program = WRITER.replace("sys.argv[1:]", "sys.argv[1:3]");
    let mut command = Command::new("/usr/bin/python3");
    run(command.args(["-c", &program, mode]).arg(acked).arg("check").current_dir(dir)).ok();
}

fn kill_in_turn(mode: &str) {
    let seed = crate::suites::seed();
    println!("{mode}: seed {seed}");
    let mut random = seed | 1;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let acked = scratch.join("acked");
    fs::write(&acked, "").expect("made");
    let mut guard = Guard::start(&scratch, "view", &[]);
    let kills = rounds(10, 100);
    let mut transactions = 0;
    for kill in 0..kills {
        check(&guard.view, mode, &acked);
        let before = fs::metadata(&acked).expect("there").len();
        let mut child = writer(&guard.view, mode, &acked, Stdio::null());
        let enough = before + 4 * (1 + next(20));
        soon(&format!("{mode}, kill {kill}: transactions"), || {
            if let Some(status) = child.try_wait().expect("our child") {
                panic!("{mode}, kill {kill}: the program ended: {status}");
            }
            (fs::metadata(&acked).expect("there").len() >= enough).then_some(())
        });
        // The moment of the kill is to be anywhere in a transaction.
        for _ in 0..next(2_000) {
            let _ = fs::metadata(&acked);
        }
        if kill % 2 == 0 {
            guard.kill();
            let _ = child.kill();
            child.wait().expect("it ends");
            guard = Guard::start(&scratch, "view", &[]);
        } else {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
        transactions = fs::read_to_string(&acked).expect("there").lines().count();
    }
    check(&guard.view, mode, &acked);
    guard.end();
    check(&scratch.folder(), mode, &acked);
    println!("{mode}: {kills} kills, {transactions} transactions at the end");
}

#[test]
fn sqlite_loses_no_transaction_by_kills_with_journal_mode_delete() {
    kill_in_turn("delete");
}

#[test]
fn sqlite_loses_no_transaction_by_kills_with_journal_mode_truncate() {
    kill_in_turn("truncate");
}

#[test]
fn sqlite_loses_no_transaction_by_kills_with_journal_mode_persist() {
    kill_in_turn("persist");
}

#[test]
fn sqlite_loses_no_transaction_by_kills_with_journal_mode_wal() {
    kill_in_turn("wal");
}
