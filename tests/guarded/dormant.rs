//! Programs that keep files open while the lock goes to another machine and comes back: they go on
//! if nobody else has changed their files, and get ESTALE otherwise.

use crate::arriving::{Machines, begin_take, state};
use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use testing::run;
use testing::{Guard, pause, soon};

/// A Python program that runs the statements that a test gives it, and goes on running.
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    pub(crate) fn start(dir: &Path) -> Self {
        let script = "import errno, mmap, os, sqlite3, sys\n\
                      for line in sys.stdin:\n\
                      \x20   try:\n\
                      \x20       it = None\n\
                      \x20       exec(line)\n\
                      \x20       print('ok', it, flush=True)\n\
                      \x20   except OSError as error:\n\
                      \x20       print(errno.errorcode[error.errno], flush=True)\n\
                      \x20   except sqlite3.Error as error:\n\
                      \x20       print('SQLite:', error, flush=True)\n";
        let mut command = Command::new("python3");
        command.args(["-c", script]).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, input, output }
    }

    /// Runs one statement. Returns `ok` with the value of `it`, or the error.
    pub(crate) fn run(&mut self, statement: &str) -> String {
        let input = self.input.as_mut().expect("it runs");
        writeln!(input, "{statement}").expect("it reads");
        self.output.next().expect("an answer").expect("text")
    }

    #[track_caller]
    pub(crate) fn ok(&mut self, statement: &str) {
        let answer = self.run(statement);
        assert!(answer.starts_with("ok "), "{statement}: {answer}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.input.take();
        let _ = self.child.wait();
    }
}

/// Gives the lock of one machine to the other, and carries all files meanwhile.
pub(crate) fn hand_over(machines: &Machines, to: &Guard, carry: fn(&Machines)) {
    let taking = begin_take(to);
    soon("the lock of the other machine", || {
        carry(machines);
        (state(to) == "holding").then_some(())
    });
    let said = taking.join().expect("taken");
    assert!(said.contains("holding"), "{said}");
}

/// Machines of which the first holds the lock, with the files `a` and `b`.
fn two_machines() -> (Machines, Guard, Guard) {
    let machines = Machines::new();
    let one = machines.start(1, &["--yield", "1s"]);
    let two = machines.start(2, &["--yield", "1s"]);
    fs::write(one.path("a"), "0000").expect("free");
    fs::write(one.path("b"), "0000").expect("free");
    (machines, one, two)
}

/// A program that has a file mapped may change it at any moment.
#[test]
fn a_mapped_file_keeps_the_lock() {
    let (machines, one, two) = two_machines();
    let mut program = Program::start(&one.view);
    program.ok("f = open('a', 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close(); m[0:1] = b'1'");
    let taking = begin_take(&two);
    soon("the wish", || one.status()["wanted_by"].as_str().map(drop));
    pause(Duration::from_millis(1_500));
    assert_eq!(state(&one), "holding");
    program.ok("m[1:2] = b'2'; m.flush(); m.close()");
    soon("the lock of the other machine", || {
        machines.carry_all();
        (state(&two) == "holding").then_some(())
    });
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("a")).expect("arrived"), "1200");
}

/// A change through a mapping that could not be written any more is reported, and the program does
/// not go on as if it had been written.
#[test]
fn a_mapping_whose_changes_are_lost_does_not_go_on() {
    let (machines, one, _two) = two_machines();
    let mut program = Program::start(&one.view);
    program.ok("f = os.open('a', os.O_RDWR); m = mmap.mmap(f, 0)");
    pause(Duration::from_millis(1_200));
    machines.server.signal(libc::SIGSTOP);
    program.ok("m[0:1] = b'x'");
    soon("the end of the lease", || (state(&one) != "holding").then_some(()));
    assert_eq!(program.run("m.flush(); os.fsync(f)"), "ESTALE");
    machines.server.signal(libc::SIGCONT);
    soon("the lock", || fs::write(one.path("b"), "new").ok());
    assert_eq!(program.run("os.pwrite(f, b'2', 1)"), "ESTALE");
    assert_eq!(fs::read_to_string(one.path("a")).expect("readable"), "0000");
}

/// The statements of a program that uses a database.
fn open_base(mode: &str) -> String {
    format!(
        "base = sqlite3.connect('x.db', isolation_level=None, timeout=5); \
         base.execute('pragma journal_mode={mode}'); \
         base.execute('create table if not exists t(n)')"
    )
}

const INSERT: &str = "base.execute('insert into t values (1)')";
const COUNT: &str = "it = (base.execute('select count(*) from t').fetchone(), \
                     base.execute('pragma integrity_check').fetchone())";

/// A database stays open on the first machine while the second one changes it, and is closed there.
fn database_of_two(mode: &str) {
    let (machines, one, two) = two_machines();
    let mut program = Program::start(&one.view);
    program.ok(&open_base(mode));
    (0..3).for_each(|_| program.ok(INSERT));
    // Nobody changes it elsewhere: the program goes on.
    hand_over(&machines, &two, Machines::carry_all);
    hand_over(&machines, &one, Machines::carry_back);
    program.ok(INSERT);
    hand_over(&machines, &two, Machines::carry_all);
    let mut other = Program::start(&two.view);
    other.ok(&open_base(mode));
    (0..5).for_each(|_| other.ok(INSERT));
    // The log of the other machine's changes stays beside the database.
    hand_over(&machines, &one, Machines::carry_back);
    let answer = program.run(INSERT);
    assert!(answer.starts_with("SQLite:"), "{mode}: {answer}");
    // SQLite removes the log when the last program closes the database, as far as that one knows.
    program.run("base.close()");
    program.ok(&open_base(mode));
    assert_eq!(program.run(COUNT), "ok ((9,), ('ok',))", "{mode}");
    program.ok(INSERT);
    hand_over(&machines, &two, Machines::carry_all);
    other.run("base.close()");
    other.ok(&open_base(mode));
    assert_eq!(other.run(COUNT), "ok ((10,), ('ok',))", "{mode}");
}

#[test]
fn an_open_database_with_a_log_loses_no_changes_of_another_machine() {
    database_of_two("wal");
}

#[test]
fn an_open_database_with_a_journal_loses_no_changes_of_another_machine() {
    database_of_two("delete");
}

/// A program closes a database whose log it believes to be empty, so that it would remove the log,
/// which another machine has filled meanwhile.
fn close_over_a_log(has_lock: bool) {
    let (machines, one, two) = two_machines();
    let mut program = Program::start(&one.view);
    program.ok(&open_base("wal"));
    program.ok(INSERT);
    // Everything is in the database itself, and the log is empty.
    program.ok("base.execute('pragma wal_checkpoint(truncate)')");
    hand_over(&machines, &two, Machines::carry_all);
    let mut other = Program::start(&two.view);
    other.ok(&open_base("wal"));
    other.ok("base.execute('pragma wal_autocheckpoint=0')");
    (0..5).for_each(|_| other.ok(INSERT));
    if has_lock {
        hand_over(&machines, &one, Machines::carry_back);
    } else {
        two.request("give", &[]).ok();
        machines.carry_back();
        assert_eq!(state(&one), "reading");
    }
    program.run("base.close()");
    soon("the lock", || fs::write(one.path("b"), "new").ok());
    program.ok(&open_base("wal"));
    assert_eq!(program.run(COUNT), "ok ((6,), ('ok',))");
}

/// The program decides to remove the log before it has the lock, and by what it knew then.
#[test]
fn a_database_that_is_closed_without_the_lock_keeps_the_log_of_another_machine() {
    close_over_a_log(false);
}

#[test]
fn a_database_that_is_closed_under_the_lock_keeps_the_log_of_another_machine() {
    close_over_a_log(true);
}

/// A sync tool may also change files in place, so that they stay the same files.
#[test]
fn a_log_that_is_changed_in_place_gets_another_shared_memory() {
    let (machines, one, two) = two_machines();
    hand_over(&machines, &two, Machines::carry_all);
    let mut other = Program::start(&two.view);
    other.ok(&open_base("wal"));
    other.ok(INSERT);
    let unsaved = fs::File::create(two.path("unsaved")).expect("held");
    let back_in_place = |machines: &Machines| {
        let from = format!("{}/", machines.second.folder().display());
        let mut rsync = Command::new("rsync");
        rsync.args(["-a", "--delete", "--inplace", &from]).arg(machines.first.folder());
        run(&mut rsync).ok();
    };
    back_in_place(&machines);
    let mut reader = Program::start(&one.view);
    reader.ok("base = sqlite3.connect('file:x.db?mode=ro', uri=True, timeout=5)");
    assert_eq!(reader.run(COUNT), "ok ((1,), ('ok',))");
    (0..3).for_each(|_| other.ok(INSERT));
    drop(unsaved);
    hand_over(&machines, &one, back_in_place);
    let mut program = Program::start(&one.view);
    program.ok(&open_base("wal"));
    program.ok(INSERT);
    assert_eq!(program.run(COUNT), "ok ((5,), ('ok',))");
}

/// The shared memory of a database is local, and belongs to the files for which it was made.
#[test]
fn a_reader_without_the_lock_sees_the_log_of_another_machine() {
    let (machines, one, two) = two_machines();
    let mut program = Program::start(&one.view);
    program.ok(&open_base("wal"));
    program.ok(INSERT);
    hand_over(&machines, &two, Machines::carry_all);
    let mut other = Program::start(&two.view);
    other.ok(&open_base("wal"));
    other.ok(INSERT);
    assert!(!machines.second.folder().join("x.db-shm").exists(), "it is local");
    let unsaved = fs::File::create(two.path("unsaved")).expect("held");
    machines.carry_back();
    let mut reader = Program::start(&one.view);
    reader.ok("base = sqlite3.connect('file:x.db?mode=ro', uri=True, timeout=5)");
    assert_eq!(reader.run(COUNT), "ok ((2,), ('ok',))", "although the first has it open");
    assert_ne!(state(&one), "holding");
    drop(unsaved);
}
