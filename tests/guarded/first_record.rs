//! A folder without a record: its id is made once, at the server, and only the machine that has
//! made it makes the record. The test itself is the sync tool, and carries the record when it wants
//! to.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use testing::net::Program;
use testing::{Output, Scratch, Server, latchfs, latchfs_path, rounds, run, signal, soon};

const WAITS: &str = "waiting until the sync tool brings";
/// An id that no guard has made.
const ID: &str = "0123456789abcdef0123456789abcdef";

/// A machine with a copy of the folder.
struct Laptop {
    name: &'static str,
    scratch: Scratch,
}

impl Laptop {
    fn new(name: &'static str) -> Self {
        let scratch = Scratch::with_folder();
        fs::write(scratch.folder().join("plan"), "draft").expect("a fresh folder");
        Self { name, scratch }
    }

    /// Returns the options of each command about the folder.
    fn options(&self, server: &Server) -> [String; 6] {
        let stage = self.scratch.join("state").display().to_string();
        let own = ["--server", &server.url, "--client", self.name, "--stage", &stage];
        own.map(str::to_owned)
    }

    /// Starts a guard, and returns it with both of its outputs.
    fn guard(&self, server: &Server, more: &[&str]) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" guard \"$@\" 2>&1", latchfs_path()]);
        command.arg(self.scratch.folder()).arg(self.view()).args(self.options(server));
        Program::start(command.args(more).env_remove("LATCHFS_SERVER"))
    }

    fn init(&self, server: &Server, more: &[&str]) -> Output {
        let mut command = latchfs();
        command.args(["guard", "init"]).arg(self.scratch.folder());
        run(command.args(self.options(server)).args(more))
    }

    fn view(&self) -> PathBuf {
        self.scratch.join("view")
    }

    /// Returns the id in the folder's record.
    fn id(&self) -> Option<String> {
        let record = fs::read(self.scratch.folder().join(".latchfs/folder")).ok()?;
        let record: Value = serde_json::from_slice(&record).expect("a record is written at once");
        Some(record["id"].as_str().expect("an id").to_owned())
    }

    /// Carries the files of the guard to another machine.
    fn carry_to(&self, other: &Self) {
        let from = self.scratch.folder().join(".latchfs");
        run(Command::new("rsync").arg("-ac").arg(from).arg(other.scratch.folder())).ok();
    }
}

impl Drop for Laptop {
    fn drop(&mut self) {
        let quiet = |program: &str, option: &str| {
            let mut command = Command::new(program);
            let _ = command.arg(option).arg(self.view()).stderr(Stdio::null()).status();
        };
        quiet("umount", "-l");
        quiet("chattr", "-i");
    }
}

fn laptops() -> [Laptop; 2] {
    ["laptop1", "laptop2"].map(Laptop::new)
}

/// Returns the id that the server has for the folder `notes`.
fn id_at(server: &Server) -> Option<String> {
    let known = server.curl(&["/locks/folders/notes/previous"]).is(200);
    known["previous"]["handover"].as_str().map(str::to_owned)
}

/// Has the server give the folder an id, as a machine does that dies afterwards.
fn id_made_by(client: &str, server: &Server) {
    let lock = format!("/locks/folders/notes?client={client}");
    let granted = format!("{lock}&ttl=10s&grace=0s&remember=true");
    let token = &server.curl(&["-X", "POST", &granted]).is(200)["token"];
    let release = format!("{lock}&token={token}&handover={ID}&counter=1");
    server.curl(&["-X", "DELETE", &release]).is(200);
}

#[track_caller]
fn says(guard: &Program, part: &str) -> String {
    let line = guard.line();
    assert!(line.contains(part), "{line}");
    line
}

#[test]
fn laptops_that_start_in_the_same_second_get_one_id() {
    for _ in 0..rounds(5, 50) {
        let laptops = laptops();
        let server = Server::of(&laptops[0].scratch);
        let guards = laptops.each_ref().map(|it| it.guard(&server, &["--name", "notes"]));
        let maker = soon("a record", || laptops.iter().position(|it| it.id().is_some()));
        let other = 1 - maker;
        says(&guards[other], WAITS);
        says(&guards[maker], "is guarded");
        says(&guards[maker], "shows");
        assert_eq!(laptops[other].id(), None);
        laptops[maker].carry_to(&laptops[other]);
        says(&guards[other], "shows");
        assert_eq!(laptops[0].id(), laptops[1].id());
        assert_eq!(laptops[0].id(), id_at(&server));
        fs::write(laptops[other].view().join("plan"), "of the other").expect("ready");
    }
}

#[test]
fn laptop_waits_while_the_sync_tool_is_stopped_and_never_makes_an_id() {
    let [one, two] = laptops();
    let server = Server::of(&one.scratch);
    let first = one.guard(&server, &["--name", "notes"]);
    says(&first, "is guarded");
    says(&first, "shows");
    let id = one.id();
    for options in [&["--name", "notes"][..], &["--name", "notes", "--background"]] {
        let waiting = two.guard(&server, options);
        let said = says(&waiting, WAITS);
        assert!(said.contains("laptop1 has made the id of the folder 'notes'"), "{said}");
        assert!(waiting.is_silent(), "it says so once");
        assert_eq!((two.id(), id_at(&server)), (None, id.clone()));
        assert!(!two.view().exists());
        signal(waiting.pid(), libc::SIGTERM);
        assert_eq!(waiting.ended(), 128 + libc::SIGTERM);
    }
    let waiting = two.guard(&server, &["--name", "notes", "--background"]);
    says(&waiting, WAITS);
    one.carry_to(&two);
    says(&waiting, "shows");
    assert_eq!(waiting.ended(), 0);
    assert_eq!((two.id(), id_at(&server)), (id.clone(), id));
    fs::write(two.view().join("plan"), "of laptop2").expect("ready");
    run(latchfs().arg("umount").arg(two.view())).ok();
}

#[test]
fn record_with_another_id_is_refused() {
    let ([one, two], other) = (laptops(), Laptop::new("other"));
    let server = Server::of(&one.scratch);
    one.init(&server, &["--name", "notes"]).ok();
    other.init(&server, &[]).ok();
    let waiting = two.guard(&server, &["--name", "notes"]);
    says(&waiting, WAITS);
    other.carry_to(&two);
    let refused = says(&waiting, "for the folder 'notes' (made by laptop1)");
    assert!(refused.contains(&other.id().expect("a record")), "{refused}");
    assert!(refused.contains(&one.id().expect("a record")), "{refused}");
    assert_eq!(waiting.ended(), 69);
    let again = two.guard(&server, &["--name", "notes"]);
    says(&again, "for the folder 'notes' (made by laptop1)");
    // A folder whose server has no id for it yet tells its own.
    let named = two.guard(&server, &["--name", "other"]);
    says(&named, "shows");
    let known = server.curl(&["/locks/folders/other/previous"]).is(200);
    assert_eq!(known["previous"]["handover"].as_str(), other.id().as_deref());
}

#[test]
fn new_id_of_a_folder_replaces_that_at_the_server() {
    let [one, two] = laptops();
    let server = Server::of(&one.scratch);
    one.init(&server, &["--name", "notes"]).ok();
    one.carry_to(&two);
    let before = one.id();
    one.init(&server, &["--name", "notes", "--new-id"]).ok();
    assert_ne!(one.id(), before);
    assert_eq!(one.id(), id_at(&server));
    says(&two.guard(&server, &["--name", "notes"]), "for the folder 'notes' (made by laptop1)");
    one.carry_to(&two);
    says(&two.guard(&server, &["--name", "notes"]), "shows");
}

/// A laptop that is killed while it makes the first checkpoint goes on under the same id.
#[test]
fn laptop_that_was_killed_before_its_record_makes_it_later() {
    let [one, two] = laptops();
    let server = Server::of(&one.scratch);
    let large = fs::File::create(one.scratch.folder().join("large")).expect("ours");
    large.set_len(64 << 30).expect("without blocks");
    let killed = one.guard(&server, &["--name", "notes"]);
    let id = soon("an id", || id_at(&server));
    soon("the first checkpoint", || {
        let lock = server.curl(&[&format!("/locks/folder-{id}")]).is(200);
        (lock["holder"] == "laptop1").then_some(())
    });
    drop(killed);
    assert_eq!(one.id(), None);
    let waiting = two.guard(&server, &["--name", "notes"]);
    says(&waiting, WAITS);
    large.set_len(1).expect("ours");
    let again = one.guard(&server, &["--name", "notes"]);
    says(&again, "is guarded");
    says(&again, "shows");
    assert_eq!(one.id().as_ref(), Some(&id));
    one.carry_to(&two);
    says(&waiting, "shows");
}

#[test]
fn laptop_that_is_lost_before_its_record_keeps_the_others_only_until_a_person_says_so() {
    let [one, two] = laptops();
    let server = Server::of(&one.scratch);
    // It dies before it has set an id.
    let lock = "/locks/folders/notes?client=lost&ttl=1s&grace=0s&remember=true";
    server.curl(&["-X", "POST", lock]).is(200);
    let first = one.guard(&server, &["--name", "notes"]);
    says(&first, "is guarded");
    // It dies after that.
    let server = Server::of_data(&two.scratch.join("other-server"));
    id_made_by("lost", &server);
    let waiting = two.guard(&server, &["--name", "notes"]);
    let said = says(&waiting, WAITS);
    assert!(said.contains("if no machine has this file, run 'latchfs guard init"), "{said}");
    two.init(&server, &["--name", "notes"]).ok();
    says(&waiting, "shows");
    assert_eq!(two.id().as_deref(), Some(ID));
    // A machine that has nothing of the folder makes no record of it.
    let empty = Laptop::new("laptop3");
    let refused = empty.init(&server, &["--name", "notes"]).exits(69);
    assert!(refused.contains("has not arrived yet"), "{refused}");
    assert_eq!(empty.id(), None);
}

#[test]
fn credentials_that_do_not_include_the_names_of_folders_are_named() {
    let [one, two] = laptops();
    let entry = "[[token]]\nname = 'm'\nsecret = 'the secret of machines'\nclients = ['*']\n";
    let tokens = one.scratch.secret_file("tokens", &format!("{entry}locks = ['folder-']\n"));
    let token = one.scratch.secret_file("token", "the secret of machines");
    let data = one.scratch.join("data").display().to_string();
    let server = Server::listen(&["--data", &data, "--tokens", &tokens]);
    let own = ["--name", "notes", "--token-file", &token];
    let refused = says(&two.guard(&server, &own), "keeps the id of this folder as the lock");
    assert!(refused.contains("folders/notes"), "{refused}");
    // A guard whose folder has a record needs no other locks.
    one.init(&server, &own[2..]).ok();
    says(&one.guard(&server, &own), "shows");
}

/// Syncthing names the folder, unless by the id of the first folder of each machine.
#[test]
fn name_is_the_id_of_the_folder_in_syncthing() {
    let [one, two] = laptops();
    let server = Server::of(&one.scratch);
    let carry = |laptop: &Laptop, id: &str| {
        let folder = laptop.scratch.folder().display().to_string();
        let config = format!(
            "<configuration><folder id=\"{id}\" path=\"{folder}\"/><gui><address>127.0.0.1:1\
             </address><apikey>key</apikey></gui></configuration>"
        );
        fs::write(laptop.scratch.join("config.xml"), config).expect("ours");
        format!("syncthing={}", laptop.scratch.path().display())
    };
    for without_a_name in [&["--carry", &carry(&one, "default")][..], &[]] {
        let refused = says(&one.guard(&server, without_a_name), "is not guarded yet");
        assert!(refused.contains("--name NAME, the same on each machine"), "{refused}");
    }
    let own = ["--carry", &carry(&one, "notes")];
    let refused = one.guard(&server, &[&own[..], &["--name", "x"]].concat());
    says(&refused, "the folder is 'notes' in Syncthing");
    let first = one.guard(&server, &own);
    says(&first, "is guarded");
    says(&first, "shows");
    assert_eq!(one.id(), id_at(&server));
    says(&two.guard(&server, &["--carry", &carry(&two, "notes")]), WAITS);
}
