//! Snapshots that are restored by a guard which is killed meanwhile.

use crate::foreign::lost;
use crate::harness::{Guard, Scratch, latchfs, pause, shell};
use crate::snapshots::{facts, fill, id_of, snapshot, snapshots_of, taken};
use crate::support::rounds;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
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
