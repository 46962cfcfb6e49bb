//! Markers that no guard wrote, in a folder that anybody may have changed: none makes a machine
//! ready, none keeps it from being ready, and a guard that reads them stays small.

use crate::arriving::{Machines, begin_take, markers, not_ready, state};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use testing::{Guard, shell, soon};
use testing::{rounds, run};

/// Returns the marker that was written last.
fn last_marker(machines: &Machines, before: &[std::path::PathBuf]) -> std::path::PathBuf {
    let new: Vec<_> =
        markers(&machines.first).into_iter().filter(|path| !before.contains(path)).collect();
    let [marker] = &new[..] else { panic!("one marker: {new:?}") };
    marker.clone()
}

/// Gives a marker the name that fits its content.
fn put_marker(machines: &Machines, name: &str, text: &str) {
    let dir = machines.second.folder().join(".latchfs/markers");
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join("new"), text).expect("written");
    let script = format!("mv new {name}-$(sha256sum new | cut -c1-8).json");
    shell(&dir, &script).ok();
}

fn memory(guard: &Guard) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", guard.pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("there");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

#[test]
fn markers_of_strangers_make_nothing_ready_and_keep_nobody_waiting() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    let before = markers(&machines.first);
    let long = "n".repeat(255);
    fs::write(one.path("a"), "of m1").expect("ready");
    fs::write(one.path(&long), "a long name").expect("ready");
    one.request("give", &[]).ok();
    let marker = last_marker(&machines, &before);
    let text = fs::read_to_string(&marker).expect("there");
    let name = marker.file_stem().expect("a name").to_string_lossy().into_owned();
    let name = name.rsplit_once('-').expect("a digest").0.to_owned();
    // One that says that nothing has changed, and others that lead out of the folder, or are none.
    let changes = text.find("\"changes\"").expect("there");
    let hostile = [
        format!("{}\"changes\":[]{}", &text[..changes], text[text.len() - 1..].trim_start()),
        text.replace("\"path\":\"a\"", "\"path\":\"../outside\""),
        text.replace("\"path\":\"a\"", "\"path\":\"/etc/passwd\""),
        text.replace("\"path\":\"a\"", "\"path\":\".latchfs/folder\""),
        "{".repeat(100_000),
        "[".repeat(1 << 20),
        "\"".to_owned(),
    ];
    for text in &hostile {
        put_marker(&machines, &name, text);
    }
    let dir = machines.second.folder().join(".latchfs/markers");
    symlink("/etc/passwd", dir.join("0000000000000001-1-1-00000000.json")).expect("made");
    run(Command::new("mkfifo").arg(dir.join("0000000000000001-1-2-00000000.json"))).ok();
    let sparse = fs::File::create(dir.join("0000000000000001-1-3-00000000.json")).expect("made");
    sparse.set_len(1 << 40).expect("sparse");
    let count = rounds(20_000, 100_000);
    let many = "seq -f '0000000000000002-%.0f-1-00000000.json' COUNT | xargs -n 5000 touch";
    shell(&dir, &many.replace("COUNT", &count.to_string())).ok();
    let small = memory(&two);
    let taking = begin_take(&two);
    not_ready(&two, "the marker of m1's tenure");
    assert_eq!(state(&two), "arriving");
    let notes = two.status()["notes"].to_string();
    assert!(notes.contains("is not read"), "{notes}");
    machines.carry(&format!(".latchfs/markers/{}", marker.file_name().expect("a name").display()));
    not_ready(&two, "2 of 63 files of m1's tenure");
    machines.carry("a");
    not_ready(&two, "1 of 63 files of m1's tenure");
    // The long name is a symlink to a file with the wanted content elsewhere.
    fs::write(machines.second.join("elsewhere"), "a long name").expect("written");
    let long = machines.second.folder().join(&long);
    symlink(machines.second.join("elsewhere"), &long).expect("made");
    not_ready(&two, "1 of 63 files of m1's tenure");
    assert_eq!(state(&two), "arriving");
    fs::remove_file(&long).expect("there");
    machines.carry(long.file_name().and_then(|name| name.to_str()).expect("text"));
    assert!(taking.join().expect("taken").contains("holding"));
    let grown = memory(&two).saturating_sub(small);
    println!("the guard has grown by {grown} KiB");
    assert!(grown < 64 << 10, "{grown} KiB");
    let open = fs::read_dir(format!("/proc/{}/fd", two.pid())).expect("it runs").count();
    assert!(open < 100, "{open} descriptors");
    fs::write(two.path("a"), "of m2").expect("ready");
}

/// A directory of the folder becomes a symlink to a place outside, where everything is as it should
/// be: it is not in the folder.
#[test]
fn files_behind_a_symlink_have_not_arrived() {
    let machines = Machines::with(|folder| {
        fs::create_dir(folder.join("dir")).expect("made");
        fs::write(folder.join("dir/file"), "of m1").expect("made");
    });
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("dir/file"), "again of m1").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_all();
    let (dir, outside) = (machines.second.folder().join("dir"), machines.second.join("outside"));
    fs::rename(&dir, &outside).expect("moved");
    symlink(&outside, &dir).expect("made");
    let taking = begin_take(&two);
    not_ready(&two, "'dir/file' ");
    assert_eq!(state(&two), "arriving");
    fs::remove_file(&dir).expect("there");
    fs::rename(&outside, &dir).expect("moved back");
    assert!(taking.join().expect("taken").contains("holding"));
}

/// A user who may write to the folder is not one who decides what is accepted.
#[test]
fn another_user_accepts_nothing() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("ready");
    one.kill();
    let taking = begin_take(&two);
    not_ready(&two, "has not said what it changed");
    for dir in [machines.second.path(), &machines.second.folder()] {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(dir, open).expect("its owner");
    }
    let as_user = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", "--reuid=4001", testing::latchfs_path(), "guard"]);
        run(command.args(args).arg(&two.view))
    };
    for args in [&["accept", "--reason", "mine"][..], &["take", "--try"], &["give"]] {
        let refused = as_user(args).fails();
        assert!(refused.contains("only root"), "{args:?}: {refused}");
    }
    assert_eq!(state(&two), "arriving");
    two.request("accept", &["--reason", "by root"]).ok();
    assert!(taking.join().expect("taken").contains("holding"));
    soon("ready", || fs::write(two.path("a"), "of m2").ok());
}
