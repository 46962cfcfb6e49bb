//! A guard that goes on by its options without what has not arrived, and says so to the others.

use crate::arriving::{Machines, begin_take, not_ready};
use std::fs;
use std::path::Path;
use std::process::Command;
use testing::latchfs;
use testing::run;

/// Returns the reason of the acceptance in the markers of the second machine.
fn reason(machines: &Machines) -> String {
    let control = machines.second.folder().join(".latchfs");
    let all = [control.clone(), control.join("markers")].into_iter().map(fs::read_dir);
    let texts = all.flatten().flatten().flatten().filter_map(|entry| {
        let marker: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(entry.path()).ok()?).ok()?;
        marker["accepted"]["reason"].as_str().map(str::to_owned)
    });
    texts.last().expect("a marker that tells of the acceptance")
}

#[test]
fn with_unsure_go_a_machine_goes_on_without_the_changes_of_one_that_is_gone() {
    let machines = Machines::new();
    let one = machines.start(1, &[]);
    let two = machines.start(2, &["--on-write", "wait=1m", "--unsure", "go"]);
    fs::write(one.path("a"), "of m1").expect("ready");
    one.kill();
    fs::write(two.path("old"), "of m2").expect("accepted");
    two.request("give", &[]).ok();
    let reason = reason(&machines);
    assert!(reason.starts_with("--unsure go: ") && reason.contains("m1 (token"), "{reason}");
}

#[test]
fn with_foreign_accept_a_machine_goes_on_with_versions_of_other_programs_alone() {
    let machines = Machines::new();
    let one = machines.start(1, &[]);
    let two = machines.start(2, &["--on-write", "wait=1m", "--foreign", "accept"]);
    fs::write(one.path("a"), "of m1").expect("ready");
    fs::write(one.path("b"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_markers();
    machines.carry("a");
    // A phone has changed a file a while ago.
    let old = machines.second.folder().join("old");
    fs::write(&old, "by a phone").expect("past the view");
    run(Command::new("touch").args(["-d", "1 minute ago"]).arg(&old)).ok();
    let path = two.path("a");
    let writing = std::thread::spawn(move || fs::write(path, "of m2"));
    not_ready(&two, "2 of");
    machines.carry("b");
    writing.join().expect("no panic").expect("accepted");
    two.request("give", &[]).ok();
    assert_eq!(fs::read_to_string(old).expect("there"), "by a phone");
    let reason = reason(&machines);
    assert_eq!(reason, "--foreign accept: other programs have changed 1 file");
}

/// A sync tool has let a phone's change win, and has kept the wanted version as a conflict copy.
#[test]
fn the_content_of_a_conflict_copy_is_put_back() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("old"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_markers();
    let folder = machines.second.folder();
    let copy = "old.sync-conflict-20260101-000000-ABCDEFG";
    fs::write(folder.join("old"), "by a phone").expect("past the view");
    let (path, user) = (folder.join("old"), Some(4_242));
    std::os::unix::fs::chown(path, user, user).expect("by root");
    fs::write(folder.join(copy), "of m1").expect("past the view");
    run(Command::new("touch").args(["-d", "1 minute ago"]).arg(folder.join("old"))).ok();
    let taking = begin_take(&two);
    not_ready(&two, "'old' was overwritten from elsewhere");
    let from = |path: &str, copy: &Path| {
        let mut accept = latchfs();
        accept.args(["guard", "accept"]).arg(two.path(path)).arg("--from").arg(copy);
        run(&mut accept)
    };
    for (path, other) in [("old", "pad0"), ("pad0", copy), ("old", "absent"), ("old", ".")] {
        let refused = from(path, &two.path(other));
        assert!(!refused.out.contains("holding"), "{path} from {other}: {}", refused.out);
    }
    let refused = from("old", Path::new("/etc/passwd"));
    assert!(!refused.out.contains("holding"), "{}", refused.out);
    // The copy becomes a symlink to a file with the same content.
    fs::write(machines.second.join("elsewhere"), "of m1").expect("written");
    fs::rename(folder.join(copy), folder.join("kept")).expect("renamed");
    std::os::unix::fs::symlink(machines.second.join("elsewhere"), folder.join(copy)).expect("made");
    assert!(!from("old", &two.path(copy)).out.contains("holding"));
    assert_eq!(fs::read_to_string(folder.join("old")).expect("there"), "by a phone");
    fs::rename(folder.join("kept"), folder.join(copy)).expect("renamed");
    let accepted = from("old", &two.path(copy));
    assert!(accepted.out.contains("holding"), "{}{}", accepted.out, accepted.err);
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("old")).expect("there"), "of m1");
    assert_eq!(fs::read_to_string(folder.join(copy)).expect("kept"), "of m1");
    let lost = two.request("lost", &[]).ok();
    assert!(lost.contains("old") && lost.contains("put back in its place"), "{lost}");
    // It belongs to the user that the replaced file belonged to.
    let mut sees = Command::new("setpriv");
    sees.args(["--reuid", "4242", "--regid", "4242", "--clear-groups"]);
    let listed = run(sees.arg(testing::latchfs_path()).args(["guard", "lost"]).arg(&two.view));
    assert!(listed.ok().contains("old"), "the user sees the lost file");
    let refused = from("old", &two.path(copy));
    assert!(refused.err.contains("nothing is missing"), "{}", refused.err);
}
