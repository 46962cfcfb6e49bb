//! Folders, records and state directories that a guard refuses, each by a sentence that says what
//! to do, and the limits of a guard.
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testing::{Guard, Scratch, Server, latchfs, rounds, run, shell, soon};

/// Runs a guard that must be refused, and returns its sentence.
#[track_caller]
fn refused(scratch: &Scratch, folder: &Path, options: &[&str]) -> String {
    let mut command = latchfs();
    command.arg("guard").arg(folder).arg(scratch.join("refused-view"));
    if !options.contains(&"--stage") {
        command.arg("--stage").arg(scratch.join("state"));
    }
    run(command.args(options)).exits(69)
}

/// A mount of a test, which is removed at its end.
pub(crate) struct TestMount(PathBuf);

impl TestMount {
    pub(crate) fn new(command: &mut Command, at: &Path) -> Self {
        fs::create_dir_all(at).expect("made");
        run(command.arg(at)).ok();
        Self(at.to_owned())
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

fn id_of(folder: &Path) -> String {
    let text = fs::read_to_string(folder.join(".latchfs/folder")).expect("there");
    let record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    record["id"].as_str().expect("text").to_owned()
}

#[test]
fn a_hostile_record_is_refused() {
    let scratch = Scratch::with_folder();
    let folder = scratch.folder();
    scratch.init(&["--alone"]);
    let (dir, record) = (folder.join(".latchfs"), folder.join(".latchfs/folder"));
    let text = fs::read_to_string(&record).expect("there");
    let says = |wanted: &str| {
        let why = refused(&scratch, &folder, &[]);
        assert!(why.contains(wanted), "{why}");
    };
    fs::remove_file(&record).expect("there");
    fs::write(scratch.join("elsewhere"), &text).expect("written");
    symlink(scratch.join("elsewhere"), &record).expect("made");
    says("follows no symlink");
    fs::remove_file(&record).expect("there");
    run(Command::new("mkfifo").arg(&record)).ok();
    says("not a small regular file");
    fs::remove_file(&record).expect("there");
    fs::create_dir(&record).expect("made");
    says("not a small regular file");
    fs::remove_dir(&record).expect("there");
    fs::File::create(&record).expect("made").set_len(1 << 40).expect("sparse");
    says("not a small regular file");
    let id = id_of_text(&text);
    let version = text.replace("\"v\": 1", "\"v\": 9");
    let long = text.replace(&id, &format!("../../{id}"));
    let up = text.replace(&id, "../../../../../../../../../../etc");
    let not_ascii = text.replace(&id, &"\u{e9}".repeat(16));
    for (hostile, wanted) in [
        (&*version, "version 9"),
        (&*long, "no hexadecimal"),
        (&*up, "no hexadecimal"),
        (&*not_ascii, "no hexadecimal"),
        ("", "is no record"),
    ] {
        fs::write(&record, hostile).expect("written");
        says(wanted);
        says("restore it from another machine or a backup");
    }
    fs::remove_dir_all(&dir).expect("there");
    fs::write(&dir, "").expect("written");
    says("follows no symlink");
}

fn id_of_text(text: &str) -> String {
    let record: serde_json::Value = serde_json::from_str(text).expect("JSON");
    record["id"].as_str().expect("text").to_owned()
}

#[test]
fn a_state_directory_that_others_could_change_is_refused() {
    let scratch = Scratch::with_folder();
    let folder = scratch.folder();
    scratch.init(&["--alone"]);
    let own = scratch.join("state").join(id_of(&folder));
    fs::create_dir_all(&own).expect("made");
    chown(&own, Some(4_001), None).expect("given");
    let why = refused(&scratch, &folder, &[]);
    assert!(why.contains("belongs to user 4001") && why.contains("--stage DIR"), "{why}");
    chown(&own, Some(0), None).expect("taken back");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).expect("changed");
    let why = refused(&scratch, &folder, &[]);
    assert!(why.contains("other users may write") && why.contains("--stage DIR"), "{why}");
    for mark in [".stfolder", ".dropbox", ".dropbox.cache", ".unison"] {
        let synced = scratch.join(format!("synced{mark}"));
        fs::create_dir_all(synced.join(mark)).expect("made");
        // The state directory is reached through a symlink from outside of the synced place.
        let link = scratch.join(format!("link{mark}"));
        symlink(&synced, &link).expect("made");
        let stage = link.join("deep/state");
        let why = refused(&scratch, &folder, &["--stage", stage.to_str().expect("text")]);
        assert!(why.contains("sync tool") && why.contains("--stage DIR"), "{why}");
    }
    let inside = folder.join("state");
    let why = refused(&scratch, &folder, &["--stage", inside.to_str().expect("text")]);
    assert!(why.contains("lies in") && why.contains("--stage DIR"), "{why}");
}

/// A view in its folder, a folder in its view, and a view that a sync tool would carry are refused
/// before anything is made.
#[test]
fn a_view_that_would_be_carried_is_refused() {
    let scratch = Scratch::with_folder();
    let folder = scratch.folder();
    scratch.init(&["--alone"]);
    let refused_at = |view: &Path| {
        let mut guard = latchfs();
        guard.arg("guard").arg(&folder).arg(view).arg("--stage").arg(scratch.join("state"));
        run(guard.env_remove("NOTIFY_SOCKET")).exits(64)
    };
    let listed = |dir: &Path| fs::read_dir(dir).expect("there").count();
    let before = listed(&folder);
    let around = folder.parent().expect("it has one").to_owned();
    for view in [folder.join("view"), folder.join("deep/view"), folder.clone(), around] {
        let said = refused_at(&view);
        assert!(said.contains("one of them lies in the other"), "{said}");
    }
    assert_eq!(listed(&folder), before, "nothing was made in the folder");
    let synced = scratch.join("synced");
    fs::create_dir_all(synced.join(".stfolder")).expect("made");
    let said = refused_at(&synced.join("view"));
    assert!(said.contains("Syncthing") && said.contains("--inside-synced-folder"), "{said}");
    assert_eq!(listed(&synced), 1);
    let other = scratch.join("other");
    fs::create_dir_all(other.join(".latchfs/folder")).expect("made");
    let said = refused_at(&other.join("view"));
    assert!(said.contains("the guard of a folder"), "{said}");
    let guard = Guard::start(&scratch, "synced/view", &["--inside-synced-folder"]);
    assert_eq!(guard.status()["folder"], folder.to_str().expect("text"));
    guard.end();
}

#[test]
fn a_folder_whose_lock_another_engine_decides_is_refused() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url]);
    let record = scratch.folder().join(".latchfs/folder");
    let text = fs::read_to_string(&record).expect("there");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["engine"] = "00000000000000ab".into();
    fs::write(&record, json.to_string()).expect("written");
    let why = refused(&scratch, &scratch.folder(), &[]);
    assert!(why.contains("the server was replaced") && why.contains("use the right"), "{why}");
    let mut repeated = latchfs();
    let repeated = repeated.args(["guard", "init", "--server", &server.url]).arg(scratch.folder());
    let twice = run(repeated).exits(69);
    assert!(twice.contains("is guarded already") && twice.contains("--new-id"), "{twice}");
}

#[test]
fn a_server_that_takes_the_place_of_another_grants_nothing_to_a_guard() {
    let scratch = Scratch::with_folder();
    let dir = |name: &str| scratch.join(name).display().to_string();
    let server = Server::of(&scratch);
    let address = server.url.trim_start_matches("http://").to_owned();
    scratch.init(&["--server", &server.url]);
    let guard = Guard::start(&scratch, "view", &["--ttl", "2s"]);
    fs::write(guard.path("a"), "first").expect("the lock is free");
    drop(server);
    let _other = Server::at(&address, &["--data", &dir("other")]);
    // The tenure goes on until its lease ends.
    soon("the refusal", || {
        fs::write(guard.path("a"), "second").err()?;
        guard.why().contains("the server was replaced").then_some(())
    });
    assert!(fs::write(guard.path("b"), "third").is_err() && !scratch.folder().join("b").exists());
    // The other server keeps no lock for a guard that it must not serve.
    let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
    let url = format!("http://{address}");
    soon("the lock is given back", || {
        let status = run(latchfs().args(["status", &lock, "--json", "--server", &url]));
        (!status.out.contains("\"held\"")).then_some(())
    });
}

#[test]
fn an_indistinguishable_server_is_refused() {
    let scratch = Scratch::with_folder();
    let dir = scratch.join("server").display().to_string();
    for options in [&["--state", dir.as_str(), "--detached"][..], &["--memory"]] {
        let server = Server::at("127.0.0.1:0", options);
        let mut init = latchfs();
        init.args(["guard", "init", "--server", &server.url]).arg(scratch.folder());
        let why = run(&mut init).exits(69);
        assert!(why.contains("engine with an id") && why.contains("--data DIR"), "{why}");
    }
    let server = Server::at("127.0.0.1:0", &["--memory"]);
    let data = Server::of(&Scratch::at(scratch.join("data")));
    scratch.init(&["--server", &data.url]);
    let why = refused(&scratch, &scratch.folder(), &["--server", &server.url]);
    assert!(why.contains("engine with an id") && why.contains("--data DIR"), "{why}");
}

#[test]
fn a_copied_folder_becomes_one_of_its_own() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("a"), "first").expect("the lock is free");
    let copy = scratch.join("copy");
    run(Command::new("cp").arg("-a").arg(scratch.folder()).arg(&copy)).ok();
    let why = refused(&scratch, &copy, &[]);
    assert!(why.contains("--new-id"), "{why}");
    let init = ["guard", "init", "--alone", "--new-id", "--client", "m2"];
    let said = run(latchfs().args(init).arg(&copy)).ok();
    assert!(said.contains("/copy VIEW --client m2'"), "{said}");
    assert_ne!(id_of(&copy), id_of(&scratch.folder()));
    let second = Scratch::at(scratch.join("second"));
    fs::create_dir(second.path()).expect("made");
    fs::rename(&copy, second.folder()).expect("moved");
    let other = Guard::start(&second, "view", &[]);
    fs::write(other.path("a"), "second").expect("its own lock");
    assert_eq!(fs::read(scratch.folder().join("a")).expect("there"), b"first");
}

#[test]
fn a_file_system_without_the_needed_renames_is_refused() {
    let scratch = Scratch::with_folder();
    let real = scratch.join("real");
    fs::create_dir_all(real.join("folder")).expect("made");
    let at = scratch.join("bound");
    let mut bindfs = Command::new("bindfs");
    let mount = TestMount::new(bindfs.arg(&real), &at);
    let folder = at.join("folder");
    run(latchfs().args(["guard", "init", "--alone"]).arg(&folder)).ok();
    let state = at.join("state");
    let why = refused(&scratch, &folder, &["--stage", state.to_str().expect("text")]);
    assert!(why.contains("has no") && why.contains("use a local one"), "{why}");
    drop(mount);
}

#[test]
fn changes_below_a_mount_point_in_the_folder_are_refused() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let at = scratch.folder().join("inner");
    let mount = TestMount::new(Command::new("mount").args(["-t", "tmpfs", "none"]), &at);
    fs::write(at.join("a"), "inner").expect("written");
    let guard = Guard::start(&scratch, "view", &[]);
    let read_only = |result: std::io::Result<()>| {
        let error = result.expect_err("a mount point lies in the way");
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    };
    read_only(fs::write(guard.path("inner/new"), "x"));
    read_only(fs::write(guard.path("inner/a"), "x"));
    read_only(fs::OpenOptions::new().append(true).open(guard.path("inner/a")).map(drop));
    read_only(fs::create_dir(guard.path("inner/dir")));
    read_only(fs::remove_file(guard.path("inner/a")));
    assert_eq!(fs::read(at.join("a")).expect("there"), b"inner");
    guard.end();
    drop(mount);
}

/// Returns the anonymous memory of a process in bytes.
fn memory(pid: u64) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find(|line| line.starts_with("RssAnon:")).expect("there");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
        * 1_024
}

/// The memory of a guard for each known file, and for many open directories of very many names.
#[test]
fn the_memory_of_a_guard_is_bounded() {
    const BYTES_MAX: u64 = 600;
    let scratch = Scratch::with_folder();
    let count = rounds(100_000, 1_000_000);
    let names =
        |count: usize| format!("seq -f 'file-%08.0f' {count} | xargs -n 10000 touch; sync -f .");
    fs::create_dir(scratch.folder().join("many")).expect("made");
    shell(&scratch.folder().join("many"), &names(count)).ok();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let status = || -> serde_json::Value {
        serde_json::from_str(&guard.request("status", &["--json"]).ok()).expect("JSON")
    };
    let pid = status()["pid"].as_u64().expect("a number");
    assert_eq!(fs::read_dir(guard.path("many")).expect("there").count(), count);
    let before = memory(pid);
    let dir = guard.path("many");
    for number in 1..=count {
        fs::symlink_metadata(dir.join(format!("file-{number:08}"))).expect("there");
    }
    let known = status()["nodes"].as_u64().expect("a number");
    let bytes = memory(pid).saturating_sub(before) / known.max(1);
    println!("{bytes} bytes for each of {known} known files");
    assert!(known as usize >= count / 2 && bytes <= BYTES_MAX, "{bytes} for each of {known}");
    // 200 programs that have read a part of the directory.
    let before = memory(pid);
    let mut open: Vec<_> =
        (0..200).map(|_| fs::read_dir(guard.path("many")).expect("there")).collect();
    for dir in &mut open {
        assert_eq!(dir.by_ref().take(3_000).count(), 3_000);
    }
    let of_each = memory(pid).saturating_sub(before) / 200;
    println!("{of_each} bytes for each open directory of {count} names");
    assert!(of_each < 256 << 10, "{of_each}");
    drop(open);
    fs::write("/proc/sys/vm/drop_caches", "2").expect("root may");
    soon("the kernel forgets the files", || {
        (status()["nodes"].as_u64()? < known / 2).then_some(())
    });
}

/// Ends a thread of a test, also when the test fails.
struct StopAtEnd<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Root makes `.latchfs` in a folder of a user, who exchanges that name with a directory of root
/// meanwhile: the user gets nothing of root's.
#[test]
fn a_directory_exchanged_while_the_record_is_made_stays_roots() {
    let scratch = Scratch::with_folder();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let folder = scratch.join("users");
    let (made, private) = (folder.join(".latchfs"), folder.join("private"));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            // The owner of the folder may do that with any name in it.
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                let cwd = rustix::fs::CWD;
                let _ = rustix::fs::renameat_with(cwd, &made, cwd, &private, exchange);
            }
        });
        for round in 0..rounds(200, 5_000) {
            let fresh = scratch.join(format!("users{round}"));
            fs::create_dir_all(fresh.join("private")).expect("made");
            fs::write(fresh.join("private/secret"), "of root").expect("made");
            chown(&fresh, Some(4_242), Some(4_242)).expect("by root");
            fs::rename(&fresh, &folder).expect("renamed");
            let _ = run(latchfs().args(["guard", "init", "--alone"]).arg(&folder));
            fs::rename(&folder, &fresh).expect("renamed");
            for dir in [".latchfs", "private"].map(|name| fresh.join(name)) {
                // The names may still be exchanged once; a directory that is open stays the same.
                let Ok(dir) = fs::File::open(&dir) else { continue };
                let owner = std::os::unix::fs::MetadataExt::uid(&dir.metadata().expect("open"));
                let fd = std::os::fd::AsRawFd::as_raw_fd(&dir);
                let secret = PathBuf::from(format!("/proc/self/fd/{fd}/secret"));
                assert!(owner == 0 || !secret.exists(), "round {round}: given away");
            }
        }
    });
}
