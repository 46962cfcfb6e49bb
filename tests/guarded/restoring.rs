//! Snapshots that are restored to a new directory, one file that is put back through the view, and
//! snapshots of a folder that is shown in no view.
use crate::snapshots::{facts, fill, id_of, snapshot, snapshots_of, taken};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use testing::{Guard, Output, Scratch, latchfs, run, shell};

/// Puts a file of a snapshot back as another user.
fn put_back_as(uid: u32, guard: &Guard, id: &str, path: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={uid}"), &format!("--regid={uid}")]);
    command.args([testing::latchfs_path(), "folder-snapshot", "restore", id]);
    run(command.arg(&guard.view).args(["--file", path]))
}

/// One file is saved as a program of the caller saves it: with the rights of the caller, and with
/// no owner and no special bit of the snapshot.
#[test]
fn one_file_is_put_back_as_a_save_of_the_caller() {
    let scratch = Scratch::with_folder();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("set");
    fill(&scratch.folder());
    shell(
        &scratch.folder(),
        "chmod 777 .; echo own > own; chmod 4755 own; chown 4242:4242 own; echo all > all
         chmod 666 all; chmod 644 a/b/deep; mkdir d",
    )
    .ok();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let id = id_of(&taken(&guard, &[]));
    let mode = |name: &str| guard.path(name).metadata().expect("there").mode() & 0o7777;
    let text = |name: &str| fs::read_to_string(guard.path(name)).expect("there");
    let put = |path: &str| snapshot(&guard, &["restore", &id, "--file", path]);
    shell(
        &guard.view,
        "echo new > own; chmod 600 own; echo new > all; rm -r a; rm secret run; chmod 600 numbers
         echo new > numbers; rm link; rmdir d",
    )
    .ok();
    // Modes and owners stay as they are, or are those of a new file of the caller.
    put("numbers").ok();
    assert_eq!((mode("numbers"), text("numbers").len()), (0o600, 108_894));
    assert!(put("run").ok().contains("put run back"), "as it was");
    assert_eq!((mode("run"), text("run")), (0o750, "run\n".to_owned()), "no special bit");
    put_back_as(4_242, &guard, &id, "own").ok();
    put_back_as(4_242, &guard, &id, "all").ok();
    assert_eq!((mode("own"), text("own"), text("all")), (0o600, "own\n".into(), "all\n".into()));
    let found = guard.path("all").metadata().expect("there");
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o666));
    // A user gets nothing that the user may not read, and changes nothing that the user may not.
    for (path, why) in [("secret", "ermission denied"), ("numbers", "ermission denied")] {
        let refused = put_back_as(4_242, &guard, &id, path).fails();
        assert!(refused.contains(why) && refused.contains("--to DIR"), "{path}: {refused}");
    }
    assert!(!guard.path("secret").exists());
    put("secret").ok();
    assert_eq!(mode("secret"), 0o600);
    // No symlink is followed, and a directory is not made.
    symlink(scratch.join("outside"), guard.path("link")).expect("held");
    symlink(scratch.path(), guard.path("d")).expect("held");
    for (path, why) in [
        ("link", "is a symlink"),
        ("d/outside", "no such file"),
        ("a/text", "no such file"),
        ("empty", "no regular file"),
        ("none", "no such file"),
    ] {
        let refused = put(path).fails();
        assert!(refused.to_lowercase().contains(why), "{path}: {refused}");
    }
    for path in ["../outside", "/etc/passwd"] {
        let refused = put(path);
        assert!(refused.code == 64 && refused.err.contains("name a file in it"), "{refused:?}");
    }
    assert!(!scratch.join("outside").exists());
    assert_eq!(fs::read_dir(guard.path(".latchfs/snapshots")).expect("there").count(), 1);
}

#[test]
fn a_folder_without_a_view_has_the_snapshots_of_its_view() {
    let scratch = Scratch::with_folder();
    fill(&scratch.folder());
    scratch.init(&["--alone"]);
    let on_folder = |args: &[&str]| -> Output {
        let mut command = latchfs();
        command.arg("folder-snapshot").args(args).arg(scratch.folder());
        run(command.arg("--stage").arg(scratch.join("state")))
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
    let to = scratch.join("restored").display().to_string();
    on_folder(&["restore", &id, "--to", &to]).ok();
    let without_fifo = |facts: &str| -> Vec<String> {
        facts.lines().filter(|line| !line.contains("fifo")).map(str::to_owned).collect()
    };
    assert_eq!(without_fifo(&facts(Path::new(&to))), without_fifo(&before));
    // Programs write past a guard without a view.
    let risky = on_folder(&["take", "--best-effort"]);
    assert!(risky.err.contains("E_CONSISTENCY_UNAVAILABLE"), "{risky:?}");
    let one = on_folder(&["restore", &id, "--file", "run"]);
    assert!(one.err.contains("is shown in no view"), "{one:?}");
    assert_eq!(facts(&scratch.folder()), before);
    // Another user reads nothing.
    let mut other = Command::new("setpriv");
    other.args(["--clear-groups", "--reuid=4242", testing::latchfs_path()]);
    other.args(["folder-snapshot", "ls", "--stage"]).arg(scratch.join("state"));
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
