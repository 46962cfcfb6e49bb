//! Mount points in folders that a sync tool carries to other machines.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use testing::*;

/// Returns a command that mounts `dir` in the background, with a state directory of the test.
fn mount_at(scratch: &Scratch, dir: &Path) -> Command {
    let mut mount = latchfs();
    mount.arg("mount").arg(dir).args(["--background", "--client", "laptop1", "--state"]);
    mount.arg(scratch.join("state")).env_remove("NOTIFY_SOCKET");
    mount
}

fn umount(dir: &Path) {
    run(latchfs().arg("umount").arg(dir)).ok();
}

/// `mount` refuses a place that a sync tool carries, says why, and changes nothing there. With
/// `--inside-synced-folder` it mounts, and `doctor` names the mount.
#[test]
fn a_mount_inside_a_synced_folder_is_refused() {
    let scratch = Scratch::open_to_all();
    for (mark, tool) in [
        ("a/.stfolder", "Syncthing"),
        ("b/.stignore", "Syncthing"),
        ("c/.dropbox", "Dropbox"),
        ("d/OneDrive - Company/x", "OneDrive"),
        ("e/Nextcloud/x", "Nextcloud"),
        ("f/Google Drive/x", "Google Drive"),
        ("g/Mobile Documents/com~apple~CloudDocs/x", "iCloud"),
        ("h/.unison", "Unison"),
        ("i/.latchfs/folder", "guard"),
    ] {
        let mark = scratch.join(mark);
        fs::create_dir_all(&mark).expect("made");
        let synced = mark.parent().expect("it has one");
        let synced = if mark.ends_with("folder") { synced.parent().expect("one") } else { synced };
        let dir = synced.join("deep/locks");
        let said = run(&mut mount_at(&scratch, &dir)).exits(64);
        assert!(said.contains(tool) && said.contains("--inside-synced-folder"), "{said}");
        assert!(!synced.join("deep").exists(), "nothing was made: {said}");
    }
    let dir = scratch.join("a/locks");
    run(mount_at(&scratch, &dir).arg("--inside-synced-folder")).ok();
    let doctor = run(latchfs().arg("doctor")).out;
    let says = format!("{} lies in a folder of a sync tool", dir.display());
    assert!(doctor.contains(&says), "{doctor}");
    umount(&dir);
}

/// A mark that another user has put into a shared directory stops nobody, and a service of root
/// with its fixed path gets a warning.
#[test]
fn a_planted_mark_stops_nobody_and_a_service_is_warned() {
    let scratch = Scratch::open_to_all();
    let mark = scratch.join("shared/.stfolder");
    fs::create_dir_all(&mark).expect("made");
    chown(&mark, Some(4_001), None).expect("given");
    let dir = scratch.join("shared/locks");
    let said = run(&mut mount_at(&scratch, &dir)).ok();
    assert!(!said.contains("sync tool"), "{said}");
    umount(&dir);
    chown(&mark, Some(0), None).expect("taken back");
    run(&mut mount_at(&scratch, &dir)).exits(64);
    let socket = scratch.join("notify");
    let _listener = std::os::unix::net::UnixDatagram::bind(&socket).expect("bound");
    let seen = run(mount_at(&scratch, &dir).env("NOTIFY_SOCKET", &socket));
    umount(&dir);
    let said = format!("{}{}", seen.out, seen.err);
    assert!(said.contains("Syncthing carries it"), "{said}");
}
