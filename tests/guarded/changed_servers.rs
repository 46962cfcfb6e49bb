//! Servers that forget or change, and machines that were copied or made anew: none is ready by
//! mistake, a sentence says what happened, and the step that it offers helps.

use crate::arriving::{Machines, begin_take, markers, not_ready, state};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::run;
use testing::{Guard, Scratch, Server, latchfs, soon};

/// Copies a directory with everything in it.
fn copy_dir(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to)).ok();
}

fn record(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join(".latchfs/folder")).expect("there");
    serde_json::from_str(&text).expect("JSON")
}

/// Returns the directory of a machine in its state directory.
fn host_dir(scratch: &Scratch, client: &str) -> PathBuf {
    let id = record(&scratch.folder())["id"].as_str().expect("text").to_owned();
    scratch.join("state").join(id).join(client)
}

/// Refuses a change of a guard, and returns the reason.
#[track_caller]
fn refused(guard: &Guard, name: &str) -> String {
    let error = fs::write(guard.path(name), "by mistake").expect_err("it must not be ready");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
    guard.why()
}

/// Takes the lock, and saves a file.
#[track_caller]
fn save(guard: &Guard, name: &str, text: &str) {
    guard.request("take", &[]).ok();
    fs::write(guard.path(name), text).expect("ready");
}

/// Runs the step that a sentence offers to a person: `latchfs guard init FOLDER --new-id`.
fn give_new_id(scratch: &Scratch, client: &str) {
    let mut init = latchfs();
    init.args(["guard", "init", "--new-id", "--client", client]).arg(scratch.folder());
    run(init.arg("--stage").arg(scratch.join("state"))).ok();
}

/// Starts a guard that must be refused, and returns its sentence.
#[track_caller]
fn refused_start(scratch: &Scratch, client: &str) -> String {
    let mut command = latchfs();
    command.arg("guard").arg(scratch.folder()).arg(scratch.join("refused-view"));
    command.args(["--client", client]).arg("--stage").arg(scratch.join("state"));
    run(&mut command).exits(69)
}

/// Kills a server, so that another one can have its address.
pub(crate) fn kill(server: &Server) {
    server.signal(libc::SIGKILL);
    let address = server.url.trim_start_matches("http://").to_owned();
    soon("the end of the server", || std::net::TcpStream::connect(&address).err());
}

/// Makes one tenure of each machine, in which each knows the other's files.
fn one_tenure_each(machines: &Machines, one: &Guard, two: &Guard) {
    fs::write(one.path("a"), "first of m1").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_all();
    save(two, "b", "first of m2");
    two.request("give", &[]).ok();
    machines.carry_back();
}

/// A backup was made before the last tenures, and the server that begins from it is another engine.
#[test]
fn a_server_that_was_restored_from_a_backup_is_another_one() {
    let mut machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    let file = machines.first.join("backup");
    let backup = |what: &str, options: &[&str]| {
        run(latchfs().args(["cluster", what]).arg(&file).args(options)).ok();
    };
    backup("backup", &["--server", &machines.server.url]);
    one_tenure_each(&machines, &one, &two);
    save(&one, "a", "the last of m1");
    one.request("give", &[]).ok();
    let address = machines.server.url.trim_start_matches("http://").to_owned();
    let data = machines.first.join("restored").display().to_string();
    kill(&machines.server);
    backup("restore", &["--data", &data, "--old-holders-are-gone"]);
    machines.server = Server::at(&address, &["--data", &data]);
    for (guard, name) in [(&one, "x"), (&two, "y")] {
        let why = soon("the other engine", || {
            let why = refused(guard, name);
            why.contains("restored from a backup").then_some(why)
        });
        assert!(why.contains("'latchfs guard init FOLDER --new-id'"), "{why}");
    }
    one.end();
    two.end();
    for (scratch, client) in [(&machines.first, "m1"), (&machines.second, "m2")] {
        let why = refused_start(scratch, client);
        assert!(why.contains("restored from a backup"), "{why}");
    }
    moved_to_another_server(&machines);
}

/// Gives the folder of the first machine a new id in the server that runs now, and shows that the
/// second machine waits for all of it.
fn moved_to_another_server(machines: &Machines) {
    let tenures = |scratch: &Scratch| {
        let names = markers(scratch)
            .into_iter()
            .filter_map(|path| path.file_name()?.to_owned().into_string().ok());
        names.collect::<Vec<_>>()
    };
    assert!(tenures(&machines.first).len() > 2);
    give_new_id(&machines.first, "m1");
    assert_eq!(tenures(&machines.first).len(), 1, "the markers of the other folder are gone");
    let one = machines.start(1, &[]);
    fs::write(one.path("a"), "in the new server").expect("ready");
    one.request("give", &[]).ok();
    // The second machine has the new record, and the markers, but not the last file.
    machines.carry_markers();
    let two = machines.start(2, &[]);
    let taking = begin_take(&two);
    not_ready(&two, "'a' ");
    machines.carry_all();
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("a")).expect("there"), "in the new server");
    fs::write(two.path("b"), "of m2").expect("ready");
}

/// Another server at the same address, which counts from 1 again: the markers of the old one have
/// greater tokens and decide nothing.
#[test]
fn a_new_server_at_the_same_address_is_adopted_by_a_new_id() {
    let mut machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    one_tenure_each(&machines, &one, &two);
    let address = machines.server.url.trim_start_matches("http://").to_owned();
    one.end();
    two.end();
    let data = machines.first.join("new").display().to_string();
    kill(&machines.server);
    machines.server = Server::at(&address, &["--data", &data]);
    let why = refused_start(&machines.first, "m1");
    assert!(why.contains("the server was replaced"), "{why}");
    moved_to_another_server(&machines);
}

/// A peer exchanges the server in the record of the folder while no guard runs: the guard does not
/// follow it, since the new server would grant the lock beside the old one.
#[test]
fn a_server_that_the_record_names_anew_is_not_followed() {
    let machines = Machines::new();
    machines.start(1, &[]).end();
    let other = machines.first.join("other").display().to_string();
    let other = Server::at("127.0.0.1:0", &["--data", &other]);
    let path = machines.first.folder().join(".latchfs/folder");
    let text = fs::read_to_string(&path).expect("there");
    fs::write(&path, text.replace(&machines.server.url, &other.url)).expect("a peer may write");
    let mut command = latchfs();
    command.arg("guard").arg(machines.first.folder()).arg(machines.first.join("refused-view"));
    command.args(["--client", "m1"]).arg("--stage").arg(machines.first.join("state"));
    let why = run(&mut command).exits(64);
    assert!(why.contains(&machines.server.url) && why.contains(&other.url), "{why}");
    fs::write(&path, text).expect("as it was");
    let one = machines.start(1, &[]);
    fs::write(one.path("a"), "under the known server").expect("ready");
}

/// A server that keeps nothing has no engine id to distinguish it by.
#[test]
fn a_server_without_state_in_the_place_of_the_server_grants_nothing() {
    let mut machines = Machines::new();
    let one = machines.start(1, &[]);
    fs::write(one.path("a"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    let address = machines.server.url.trim_start_matches("http://").to_owned();
    kill(&machines.server);
    machines.server = Server::at(&address, &["--memory", "--grant-at-once"]);
    let why = soon("the other engine", || {
        let why = refused(&one, "a");
        (!why.contains("does not answer")).then_some(why)
    });
    assert!(why.contains("the server was replaced"), "{why}");
    one.end();
    let why = refused_start(&machines.first, "m1");
    assert!(why.contains("serve --data DIR"), "{why}");
    assert_eq!(fs::read_to_string(machines.first.folder().join("a")).expect("there"), "of m1");
    // The server as it was is there again.
    let data = machines.first.join("server").display().to_string();
    kill(&machines.server);
    machines.server = Server::at(&address, &["--data", &data]);
    let one = machines.start(1, &[]);
    fs::write(one.path("a"), "again").expect("its own handover");
}

/// The data directory of the server is put back as it was copied before the last tenures: the same
/// engine, which counts the same tokens again. The markers that are here tell of the lost tenures.
#[test]
fn an_old_copy_of_the_servers_data_is_seen_by_the_markers() {
    let mut machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "first of m1").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_all();
    fs::write(two.path("b"), "first of m2").expect("ready");
    two.request("give", &[]).ok();
    let (data, copy) = (machines.first.join("server"), machines.first.join("copy"));
    let address = machines.server.url.trim_start_matches("http://").to_owned();
    let restart = |machines: &mut Machines, between: &dyn Fn()| {
        kill(&machines.server);
        between();
        let options = ["--data", &data.display().to_string()];
        machines.server = Server::at(&address, &options);
    };
    restart(&mut machines, &|| copy_dir(&data, &copy));
    machines.carry_back();
    soon("the server is back", || fs::write(one.path("a"), "second of m1").ok());
    one.request("give", &[]).ok();
    machines.carry_all();
    save(&two, "a", "the last of m2");
    two.request("give", &[]).ok();
    // The first machine has the last marker, and not the file.
    machines.carry_markers_back();
    restart(&mut machines, &|| {
        fs::remove_dir_all(&data).expect("there");
        copy_dir(&copy, &data);
    });
    let taking = begin_take(&one);
    not_ready(&one, "an older copy of its data was put back");
    assert!(one.status()["not_ready"].to_string().contains("accept --reason"));
    machines.carry_back();
    not_ready(&one, "an older copy of its data was put back");
    one.request("accept", &["--reason", "the server's disk was replaced"]).ok();
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(one.path("a")).expect("there"), "the last of m2");
    fs::write(one.path("c"), "after it").expect("accepted");
    one.request("give", &[]).ok();
    // Old markers with greater tokens are still here, and decide nothing any more.
    fs::write(two.path("d"), "early").expect_err("c has not arrived");
    machines.carry_all();
    save(&two, "d", "of m2");
    two.request("give", &[]).ok();
    machines.carry_back();
    save(&one, "e", "of m1");
}

/// A copy of the folder on the same machine has the id of the folder, and would use its state.
#[test]
fn a_copied_folder_with_a_server_is_refused_beside_the_other_one() {
    let machines = Machines::new();
    let one = machines.start(1, &[]);
    fs::write(one.path("a"), "of the folder").expect("ready");
    let token = one.status()["tenure"]["token"].clone();
    let copy = Scratch::at(machines.first.join("copied"));
    fs::create_dir(copy.path()).expect("made");
    copy_dir(&machines.first.folder(), &copy.folder());
    // One machine keeps the states of all its folders in one place.
    std::os::unix::fs::symlink(machines.first.join("state"), copy.join("state")).expect("made");
    let why = refused_start(&copy, "m1");
    assert!(why.contains("the same id") && why.contains("--new-id"), "{why}");
    assert_eq!(one.status()["tenure"]["token"], token, "the tenure goes on");
    give_new_id(&copy, "m1");
    assert_ne!(record(&copy.folder())["id"], record(&machines.first.folder())["id"]);
    let options = ["--client", "m1", "--settle", "1s"];
    let other = Guard::start(&copy, "view", &options);
    fs::write(other.path("a"), "of the copy").expect("its own lock");
    fs::write(one.path("a"), "of the folder again").expect("its own lock");
    assert_eq!(fs::read_to_string(copy.folder().join("a")).expect("there"), "of the copy");
    other.end();
    // A copy that nobody guards at the same time is the same folder elsewhere: compared, not
    // believed.
    one.request("give", &[]).ok();
    one.end();
}

/// A folder gets another id while a guard shows it.
#[test]
fn a_guard_begins_no_tenure_under_the_id_that_its_folder_had() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    one_tenure_each(&machines, &one, &two);
    let mut init = latchfs();
    init.args(["guard", "init", "--new-id", "--client", "m1"]).arg(machines.first.folder());
    let why = run(init.arg("--stage").arg(machines.first.join("state"))).exits(69);
    assert!(why.contains("another guard of this machine"), "{why}");
    two.request("take", &[]).ok();
    one.end();
    give_new_id(&machines.first, "m1");
    machines.carry_markers();
    // It holds the lock of the old id already, and has changed nothing since it was ready.
    let why = refused(&two, "b");
    assert!(why.contains("the folder has another id by now"), "{why}");
    assert!(why.contains("start it again"), "{why}");
    two.request("give", &[]).ok();
    let why = refused(&two, "b");
    assert!(why.contains("the folder has another id by now"), "{why}");
    two.end();
    let two = machines.start(2, &[]);
    machines.carry_all();
    save(&two, "b", "of m2");
}

/// Returns a third machine, a clone of the first one: folder, state directory and client name.
fn clone_of(machines: &Machines) -> Scratch {
    let clone = Scratch::with_folder();
    fs::remove_dir(clone.folder()).expect("empty");
    for name in ["folder", "state"] {
        copy_dir(&machines.first.join(name), &clone.join(name));
    }
    // The clone has booted by itself.
    let session = host_dir(&clone, "m1").join("session");
    if let Ok(text) = fs::read_to_string(&session) {
        let (session_id, _) = text.trim().split_once(' ').expect("a session and a boot");
        fs::write(session, format!("{session_id} 12345\n")).expect("written");
    }
    clone
}

fn start_clone(clone: &Scratch) -> Guard {
    Guard::start(clone, "view", &["--client", "m1", "--ttl", "2s", "--settle", "1s"])
}

/// A cloned machine has the name, the ledger and the session of the other one. They exclude each
/// other, and neither is ready with what the other has changed since.
#[test]
fn a_cloned_machine_is_another_machine() {
    let machines = Machines::new();
    let one = machines.start(1, &["--yield", "1s"]);
    fs::write(one.path("a"), "before the clone").expect("ready");
    one.request("give", &[]).ok();
    let scratch = clone_of(&machines);
    one.request("take", &[]).ok();
    fs::write(one.path("a"), "after the clone").expect("ready");
    let token = one.status()["tenure"]["token"].clone();
    let clone = start_clone(&scratch);
    let why = refused(&clone, "a");
    assert!(why.contains("m1 (this machine's own name"), "{why}");
    assert!(why.contains("a name of its own, --client"), "{why}");
    assert_eq!(one.status()["tenure"]["token"], token, "the clone ends no session of the other");
    // The clone asks, and the first machine hears of it although the name is its own.
    let taking = begin_take(&clone);
    soon("the hand-over", || (state(&one) == "reading").then_some(()));
    not_ready(&clone, "the marker of m1's tenure");
    let from = format!("{}/", machines.first.folder().display());
    run(Command::new("rsync").args(["-ac", "--delete", &from]).arg(scratch.folder())).ok();
    assert!(taking.join().expect("taken").contains("holding"));
    fs::write(clone.path("a"), "of the clone").expect("ready");
    let why = refused(&one, "a");
    assert!(why.contains("m1 (this machine's own name"), "{why}");
    clone.request("give", &[]).ok();
    let why = refused(&one, "a");
    assert!(why.contains("the marker of m1's tenure"), "{why}");
    // The step that the sentence offers: a name of its own.
    clone.end();
    let clone = Guard::start(&scratch, "view", &["--client", "m3", "--ttl", "2s"]);
    clone.request("take", &[]).ok();
    assert_eq!(fs::read_to_string(clone.path("a")).expect("there"), "of the clone");
    let why = refused(&one, "a");
    assert!(why.contains("m3 holds the lock"), "{why}");
}

/// A machine that is reinstalled has its name, and an empty state directory. Changes that it left
/// behind without a marker are unknown to it.
#[test]
fn a_reinstalled_machine_is_not_ready_by_its_own_handover() {
    let machines = Machines::new();
    let one = machines.start(1, &[]);
    fs::write(one.path("a"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_all();
    one.end();
    // The sync tool brings half of the folder: the record and the markers, and one file.
    let fresh = Scratch::with_folder();
    let from = machines.second.folder();
    copy_dir(&from.join(".latchfs"), &fresh.folder().join(".latchfs"));
    fs::copy(from.join("a"), fresh.folder().join("a")).expect("carried");
    let reinstalled = start_clone(&fresh);
    let taking = begin_take(&reinstalled);
    not_ready(&reinstalled, "61 of 62 files of m1's tenure");
    run(Command::new("rsync").arg("-a").arg(format!("{}/", from.display())).arg(fresh.folder()))
        .ok();
    assert!(taking.join().expect("taken").contains("holding"));
    // Killed with a change that no marker names, and reinstalled again.
    fs::write(reinstalled.path("a"), "and never seen again").expect("ready");
    reinstalled.kill();
    fs::remove_dir_all(fresh.join("state")).expect("there");
    let reinstalled = start_clone(&fresh);
    let taking = begin_take(&reinstalled);
    not_ready(&reinstalled, "the name of this machine, whose state directory does not know of it");
    let why = reinstalled.status()["not_ready"].to_string();
    assert!(why.contains("put the state directory back") && why.contains("accept"), "{why}");
    reinstalled.request("accept", &["--reason", "reinstalled"]).ok();
    assert!(taking.join().expect("taken").contains("holding"));
    fs::write(reinstalled.path("a"), "goes on").expect("accepted");
    reinstalled.request("give", &[]).ok();
    let two = machines.start(2, &[]);
    let why = refused(&two, "b");
    assert!(why.contains("the marker of m1's tenure"), "{why}");
    let from = format!("{}/", fresh.folder().display());
    run(Command::new("rsync").args(["-ac", "--delete", &from]).arg(machines.second.folder())).ok();
    save(&two, "b", "of m2");
    assert_eq!(fs::read_to_string(two.path("a")).expect("there"), "goes on");
}
