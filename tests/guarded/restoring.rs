//! Snapshots that are restored by a guard which is killed meanwhile, and those of a folder that is
//! shown in no view.

use crate::foreign::lost;
use crate::harness::{Guard, Scratch, latchfs, pause, shell};
use crate::snapshots::{facts, fill, follows_schema, id_of, snapshot, snapshots_of, taken};
use crate::support::{Output, rounds, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Returns the complete snapshots, the newest first.
fn listed(guard: &Guard) -> Value {
    serde_json::from_str(&snapshot(guard, &["ls", "--json"]).ok()).expect("JSON")
}

/// Changes a folder that has 500 files named `file` and a number, through its view.
fn change(view: &Path, round: usize) {
    shell(
        view,
        &format!(
            "for file in file*; do echo {round} >> $file; done; rm -r a link; mkdir -p link/new
             chmod 700 run; mv numbers link/numbers"
        ),
    )
    .ok();
}

/// A restore changes 500 files, and the guard is killed at some moment meanwhile.
#[test]
fn a_restore_whose_guard_is_killed_is_finished_or_undone() {
    let scratch = Scratch::new();
    fill(&scratch.folder());
    for number in 0..500 {
        fs::write(scratch.folder().join(format!("file{number}")), "first").expect("written");
    }
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let id = id_of(&taken(&guard, &[]));
    let wanted = facts(&scratch.folder());
    guard.end();
    let intent = snapshots_of(&scratch).join("restore.json");
    let mut ended = [0; 2];
    for round in 0..rounds(6, 100) {
        let guard = Guard::start(&scratch, "view", &[]);
        change(&guard.view, round);
        let before = facts(&scratch.folder());
        let mut restore = latchfs();
        restore.args(["folder-snapshot", "restore", &id, "--in-place"]).arg(&guard.view);
        restore.stdout(Stdio::null()).stderr(Stdio::null());
        let mut restore = restore.spawn().expect("it starts");
        while !intent.exists() && restore.try_wait().expect("a child").is_none() {
            pause(Duration::from_millis(1));
        }
        pause(Duration::from_millis(round as u64 % 12 * 3));
        guard.kill();
        restore.wait().expect("it ends");
        let guard = Guard::start(&scratch, "view", &[]);
        let undoes = round % 2 == 1;
        if !listed(&guard)["restoring"].is_null() {
            let said = snapshot(&guard, &["ls"]);
            assert!(said.err.contains("was interrupted"), "{said:?}");
            follows_schema("restore", &intent);
            let kept = snapshot(&guard, &["rm", &id]);
            assert!(kept.err.contains("needs this snapshot"), "{kept:?}");
            let end: &[&str] = if undoes { &["--in-place", "--undo"] } else { &["--in-place"] };
            snapshot(&guard, &[&["restore", &id], end].concat()).ok();
            let is_as = if undoes { &before } else { &wanted };
            assert_eq!(facts(&scratch.folder()), *is_as, "round {round}");
            ended[usize::from(undoes)] += 1;
        }
        let none = snapshot(&guard, &["restore", &id, "--in-place", "--undo"]);
        assert!(none.err.contains("no restore of"), "{none:?}");
        snapshot(&guard, &["restore", &id, "--in-place"]).ok();
        assert_eq!(facts(&scratch.folder()), wanted, "round {round}");
        for taken in listed(&guard)["snapshots"].as_array().expect("a list") {
            if !taken["before_restore"].is_null() {
                snapshot(&guard, &["rm", &id_of(taken)]).ok();
            }
        }
        guard.end();
    }
    println!("{ended:?} restores finished and undone");
    assert!(ended[0] > 0 && ended[1] > 0, "{ended:?}");
}

#[test]
fn a_complete_restore_names_the_snapshot_of_the_folder_before() {
    let scratch = Scratch::new();
    fill(&scratch.folder());
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let id = id_of(&taken(&guard, &[]));
    shell(&guard.view, "rm -r a; echo new > new; chmod 600 run").ok();
    let changed = facts(&scratch.folder());
    let answer = snapshot(&guard, &["restore", &id, "--in-place", "--json"]).ok();
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let before = answer["before"].as_str().expect("a name").to_owned();
    let label = format!("before a restore of {id}");
    assert!(snapshot(&guard, &["ls"]).ok().contains(&label));
    assert!(snapshot(&guard, &["show", &before]).ok().contains("a restore of"));
    snapshot(&guard, &["restore", &before, "--in-place"]).ok();
    assert_eq!(facts(&scratch.folder()), changed);
    // No version is taken for one that came past the view.
    assert_eq!(lost(&guard), Vec::<Value>::new());
    let audit = fs::read_to_string(audit_of(&scratch)).expect("there");
    assert_eq!(audit.matches("restored the snapshot in place").count(), 2, "{audit}");
}

fn audit_of(scratch: &Scratch) -> PathBuf {
    let dir = snapshots_of(scratch).join("..");
    let logs = fs::read_dir(dir).expect("there").flatten().map(|it| it.path().join("audit.log"));
    logs.into_iter().find(|log| log.exists()).expect("the machine's")
}

#[test]
fn a_folder_without_a_view_has_the_snapshots_of_its_view() {
    let scratch = Scratch::new();
    fill(&scratch.folder());
    scratch.init(&["--alone"]);
    let on_folder = |args: &[&str]| -> Output {
        let mut command = latchfs();
        command.arg("folder-snapshot").args(args).arg(scratch.folder());
        run(command.arg("--stage").arg(scratch.0.join("state")))
    };
    assert_eq!(on_folder(&["ls"]).ok(), "", "there is none yet");
    assert!(on_folder(&["show", "x"]).err.contains("there is no snapshot"));
    let guard = Guard::start(&scratch, "view", &[]);
    let before = facts(&scratch.folder());
    let id = id_of(&taken(&guard, &[]));
    // A guard of the folder keeps others from removing snapshots, and from nothing else.
    assert!(on_folder(&["ls"]).ok().contains(&id));
    let guarded = on_folder(&["rm", &id]);
    assert!(guarded.err.contains("another guard of this machine"), "{guarded:?}");
    guard.end();
    assert!(on_folder(&["ls", "--json"]).ok().contains(&id));
    assert!(on_folder(&["show", &id]).ok().contains("quiesced"));
    assert!(on_folder(&["verify", &id]).ok().contains("is as it was taken"));
    let to = scratch.0.join("restored").display().to_string();
    on_folder(&["restore", &id, "--to", &to]).ok();
    let without_fifo = |facts: &str| -> Vec<String> {
        facts.lines().filter(|line| !line.contains("fifo")).map(str::to_owned).collect()
    };
    assert_eq!(without_fifo(&facts(Path::new(&to))), without_fifo(&before));
    // Programs write past a guard without a view.
    let risky = on_folder(&["take", "--best-effort"]);
    assert!(risky.err.contains("E_CONSISTENCY_UNAVAILABLE"), "{risky:?}");
    let in_place = on_folder(&["restore", &id, "--in-place"]);
    assert!(in_place.err.contains("is shown in no view"), "{in_place:?}");
    assert_eq!(facts(&scratch.folder()), before);
    // Another user reads nothing.
    let mut other = Command::new("setpriv");
    other.args(["--clear-groups", "--reuid=4242", env!("CARGO_BIN_EXE_latchfs")]);
    other.args(["folder-snapshot", "ls", "--stage"]).arg(scratch.0.join("state"));
    let other = run(other.arg(scratch.folder()));
    assert!(other.err.contains("belong to the user who started"), "{other:?}");
    let tree = snapshots_of(&scratch).join(&id).join("tree");
    fs::write(tree.join("run"), "changed").expect("ours");
    let damaged = on_folder(&["verify", &id]);
    assert!(damaged.code == 1 && damaged.out.contains("run has another content"), "{damaged:?}");
    on_folder(&["rm", &id]).ok();
    assert_eq!(on_folder(&["ls"]).ok(), "");
    assert!(!tree.exists());
}
