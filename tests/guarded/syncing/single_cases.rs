//! Single cases of two machines whose copies of a folder Syncthing carries, and that change it
//! through guards.

use crate::syncing::access::Access as _;
use crate::syncing::course::{folders_of, machines, wait_until_same};
use crate::syncing::guarded::{self, Guarded};
use crate::syncing::sync_tool::SyncTool as _;
use crate::syncing::syncthing::Syncthing;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testing::run;
use testing::{Guard, Scratch, latchfs, soon};

/// Two machines with guards and Syncthing.
struct Pair<'a> {
    access: Guarded<'a>,
    tool: Syncthing,
    folders: Vec<PathBuf>,
}

impl<'a> Pair<'a> {
    /// Starts everything on two machines. `make` makes the first files.
    fn start(machines: &'a [Scratch], make: impl FnOnce(&Path)) -> Self {
        let folders = folders_of(machines);
        make(&folders[0]);
        let server = guarded::init(machines);
        let tool = Syncthing::start(&folders, machines[0].path());
        wait_until_same(&folders);
        Self { access: Guarded::start(server, machines, 1), tool, folders }
    }

    /// A tenure of a machine, in which `work` changes the files in its view.
    fn tenure(&mut self, machine: usize, work: impl FnOnce(&Path)) {
        let view = self.access.take(machine);
        work(&view);
        self.access.give(machine);
        self.tool.changed(machine);
    }
}

fn write(path: &Path, content: &str) {
    fs::write(path, content).expect("ready");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("there")
}

#[test]
fn a_file_with_the_same_size_and_time_but_other_content_arrives() {
    let machines = machines(2);
    let mut pair = Pair::start(&machines, |folder| write(&folder.join("a"), "before"));
    pair.tenure(1, |view| {
        // As `cp -p` does it: the time is set before the file is closed.
        let modified = fs::metadata(view.join("a")).and_then(|it| it.modified()).expect("there");
        let mut file = fs::File::create(view.join("a")).expect("ready");
        file.write_all(b"behind").expect("written");
        file.set_modified(modified).expect("set");
    });
    pair.tenure(0, |view| assert_eq!(read(&view.join("a")), "behind"));
}

#[test]
fn a_name_with_separate_accents_arrives() {
    let machines = machines(2);
    let mut pair = Pair::start(&machines, |folder| write(&folder.join("a"), "1"));
    pair.tenure(0, |view| write(&view.join("u\u{308}ber"), "of m0"));
    pair.tenure(1, |view| {
        let names = fs::read_dir(view).expect("there").flatten();
        let name = names.map(|it| it.file_name()).find(|it| it.to_string_lossy().ends_with("ber"));
        let name = name.expect("it has arrived");
        assert_eq!(read(&view.join(&name)), "of m0");
        write(&view.join(&name), "of m1");
    });
    pair.tenure(0, |view| {
        let read = |name: &str| fs::read_to_string(view.join(name)).ok();
        assert_eq!(read("u\u{308}ber").or_else(|| read("\u{fc}ber")).as_deref(), Some("of m1"));
    });
}

#[test]
fn a_deletion_in_a_busy_folder_arrives() {
    let machines = machines(2);
    let mut pair = Pair::start(&machines, |folder| {
        fs::create_dir(folder.join("busy")).expect("made");
        (0..100).for_each(|at| write(&folder.join(format!("busy/{at}")), "before"));
    });
    pair.tenure(0, |view| {
        fs::remove_file(view.join("busy/7")).expect("ready");
        (0..100).filter(|at| *at != 7).for_each(|at| {
            write(&view.join(format!("busy/{at}")), "after");
        });
    });
    pair.tenure(1, |view| {
        assert!(!view.join("busy/7").exists());
        assert_eq!(fs::read_dir(view.join("busy")).expect("there").count(), 99);
        fs::remove_dir_all(view.join("busy")).expect("ready");
    });
    pair.tenure(0, |view| assert!(!view.join("busy/8").exists()));
}

/// A machine that changes the folder itself overwrites what a tenure has left. Nobody goes on
/// without knowing it.
#[test]
fn a_version_from_past_the_view_is_reported_and_can_be_accepted() {
    let machines = machines(2);
    let mut pair = Pair::start(&machines, |folder| write(&folder.join("a"), "before"));
    pair.tenure(0, |view| write(&view.join("a"), "of m0"));
    wait_until_same(&pair.folders);
    write(&pair.folders[1].join("a"), "past the view");
    pair.tool.changed(1);
    wait_until_same(&pair.folders);
    let view = pair.access.view(0);
    let refused = fs::write(view.join("b"), "x").expect_err("a foreign version stands there");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let why = read(&view.join(".latchfs/why"));
    assert!(why.contains("'a'"), "{why}");
    let accept = |path: &Path| {
        let mut command = latchfs();
        command.args(["guard", "accept"]).arg(path).args(["--reason", "a phone has edited it"]);
        run(&mut command).code == 0
    };
    soon("the acceptance", || accept(&view).then_some(()));
    assert_eq!(read(&view.join("a")), "past the view");
    pair.access.give(0);
    pair.tool.changed(0);
    pair.tenure(1, |view| assert_eq!(read(&view.join("a")), "past the view"));
}

#[test]
fn a_guard_tells_syncthing_of_the_paths_of_each_marker() {
    let machines = machines(2);
    let folders = folders_of(&machines);
    write(&folders[0].join("a"), "before");
    let _server = guarded::init(&machines);
    let tool = Syncthing::start(&folders, machines[0].path());
    wait_until_same(&folders);
    tool.stop_watching(0);
    let carry = format!("syncthing={}", tool.home(0).display());
    let guard = Guard::start(&machines[0], "view", &["--client", "m0", "--carry", &carry]);
    guard.request("take", &[]).ok();
    write(&guard.view.join("a"), "after");
    guard.request("give", &[]).ok();
    let has_arrived = || fs::read_to_string(folders[1].join("a")).is_ok_and(|it| it == "after");
    soon("the change", || has_arrived().then_some(()));
    let markers = |folder: &Path| {
        let names = fs::read_dir(folder.join(".latchfs/markers")).ok()?.flatten();
        Some(names.map(|it| it.file_name()).collect::<std::collections::BTreeSet<_>>())
    };
    soon("the marker", || (markers(&folders[0]) == markers(&folders[1])).then_some(()));
}

const OPEN_DATABASE: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute('pragma journal_mode=wal')
base.execute('insert into t values(1)')
print('open', flush=True)
sys.stdin.readline()
try:
    base.execute('insert into t values(3)')
    print('inserted', flush=True)
except sqlite3.Error as error:
    print('refused', error, flush=True)
";
const DATABASE: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute('pragma journal_mode=wal')
base.execute(sys.argv[2])
assert base.execute('pragma integrity_check').fetchall() == [('ok',)]
print(*[row[0] for row in base.execute('select n from t order by n')])
";

/// Runs a statement on a database, and returns its rows.
fn rows(path: &Path, statement: &str) -> String {
    let mut python = Command::new("/usr/bin/python3");
    run(python.args(["-c", DATABASE]).arg(path).arg(statement)).ok().trim().to_owned()
}

/// A program keeps a database open while another machine changes it. The commits of that machine
/// must be there afterwards, whatever the program does.
#[test]
fn a_database_that_stays_open_across_another_tenure_loses_no_commit() {
    let machines = machines(2);
    let mut pair = Pair::start(&machines, |folder| {
        rows(&folder.join("base"), "create table if not exists t(n)");
    });
    let view = pair.access.take(0);
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", OPEN_DATABASE]).arg(view.join("base"));
    let mut python =
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut out = BufReader::new(python.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("open");
    pair.access.give(0);
    pair.tool.changed(0);
    pair.tenure(1, |view| assert_eq!(rows(&view.join("base"), "insert into t values(2)"), "1 2"));
    let view = pair.access.take(0);
    python.stdin.take().expect("piped").write_all(b"\n").expect("it reads");
    line.clear();
    out.read_line(&mut line).expect("an answer");
    python.wait().expect("it ends");
    let wanted = if line.contains("inserted") { "1 2 3" } else { "1 2" };
    assert_eq!(rows(&view.join("base"), "select 1"), wanted, "{line}");
    pair.access.give(0);
    pair.tool.changed(0);
    pair.tenure(1, |view| assert_eq!(rows(&view.join("base"), "select 1"), wanted, "{line}"));
}
