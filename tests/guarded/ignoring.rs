//! Ignore rules that anybody has written into the folder hide no path from the sync barrier: what
//! markers name stays covered until a person gives it up.

use crate::arriving::{Machines, begin_take, markers, not_ready, state};
use crate::doctoring::{findings_of, options, place};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use testing::run;
use testing::{Guard, Scratch, latchfs, python, soon};

/// The interface of a Syncthing that shares a folder and names its ignore patterns.
struct Interface {
    /// The directory with its configuration.
    home: PathBuf,
}

impl Interface {
    /// Starts one that has read `*` from the `.stignore` of the folder, or other patterns.
    fn start(scratch: &Scratch, patterns: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let home = scratch.join("syncthing");
        fs::create_dir(&home).expect("made");
        let folder = scratch.folder();
        let config = format!(
            "<configuration><folder id=\"f\" path=\"{}\" type=\"sendreceive\"/><gui tls=\"false\">\
             <address>{address}</address><apikey>k</apikey></gui></configuration>",
            folder.display()
        );
        fs::write(home.join("config.xml"), config).expect("written");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(&stream.expect("a connection"), patterns);
            }
        });
        Self { home }
    }

    fn carry(&self) -> String {
        format!("syncthing={}", self.home.display())
    }
}

fn answer(mut stream: &TcpStream, patterns: &[&str]) {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().and_then(Result::ok).unwrap_or_default();
    let mut has_key = false;
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        has_key |= line.eq_ignore_ascii_case("x-api-key: k");
    }
    assert!(has_key, "{request}");
    let body = if request.starts_with("GET /rest/db/ignores?folder=f ") {
        json!({ "ignore": patterns, "expanded": patterns }).to_string()
    } else {
        String::new()
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    // A guard that has been ended reads no answer.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

/// Returns machines with a `ledger`, whose folder any user may change.
fn machines() -> Machines {
    Machines::with(|folder| {
        fs::write(folder.join("ledger"), "one").expect("written");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("ours");
    })
}

/// Writes a file through the view, as a user who may write the folder and nothing else.
fn write_as_user(guard: &Guard, name: &str, content: &str) {
    let program = format!("open('{name}', 'w').write({content})");
    python(1_000, &guard.view, &program).ok();
}

/// Returns the changes that all markers of a machine name, with the state of each.
fn named(scratch: &Scratch) -> Vec<(String, String)> {
    let texts = markers(scratch).into_iter().map(|path| fs::read_to_string(path).expect("there"));
    let of = |text: String| -> Vec<(String, String)> {
        let marker: Value = serde_json::from_str(&text).expect("JSON");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let changes = marker["changes"].as_array().expect("a list");
        changes.iter().map(|it| (text(&it["path"]), text(&it["type"]))).collect()
    };
    texts.flat_map(of).collect()
}

fn has_gone(scratch: &Scratch) -> bool {
    named(scratch).iter().any(|(_, state)| state == "gone")
}

fn doctor(home: &Path, place: &Path, options: &[&str]) -> Vec<(String, String)> {
    let mut command = latchfs();
    command.env("STHOMEDIR", home);
    findings_of(command, place, options)
}

fn is_named(found: &[(String, String)], part: &str) -> bool {
    found.iter().any(|(kind, says)| kind == "ignored" && says.contains(part))
}

/// A user, or a peer of the sync tool, ignores everything. Syncthing heeds it, the barrier does
/// not.
#[test]
fn a_stignore_hides_no_file_that_another_machine_has_published() {
    let machines = machines();
    let heeding = [&machines.first, &machines.second].map(|it| Interface::start(it, &["*"]));
    let [one, two] = [1, 2].map(|at| machines.start(at, &["--carry", &heeding[at - 1].carry()]));
    write_as_user(&one, ".stignore", "'*\\n'");
    fs::write(one.path("ledger"), "two").expect("ready");
    fs::write(one.path("new"), "new").expect("ready");
    one.request("give", &[]).ok();
    assert!(!has_gone(&machines.first), "{:?}", named(&machines.first));
    machines.carry(".stignore");
    machines.carry_markers();
    let taking = begin_take(&two);
    not_ready(&two, "'ledger'");
    assert_eq!(state(&two), "arriving");
    let ignored = &two.status()["ignored"]["covered_despite_a_rule"];
    assert!(ignored["count"].as_u64() > Some(60), "{ignored}");
    assert!(ignored.to_string().contains("ignore pattern 1 of Syncthing"), "{ignored}");
    let status = two.request("status", &[]).ok();
    assert!(status.contains("stay covered although a rule matches: '"), "{status}");
    let found = doctor(&heeding[1].home, &two.view, &[]);
    assert!(is_named(&found, "ignore rules match paths that markers name"), "{found:?}");
    machines.carry("ledger");
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("ledger")).expect("there"), "two");
    fs::write(two.path("ledger"), "three").expect("ready");
    two.request("give", &[]).ok();
    let all = named(&machines.second);
    assert!(all.iter().any(|(path, _)| path == "ledger") && !has_gone(&machines.second), "{all:?}");
    // A new file is in no marker, which both say.
    let shown = one.status()["ignored"]["not_covered"].to_string();
    assert!(shown.contains("\"new\"") || all.iter().any(|(path, _)| path == "new"), "{shown}");
}

/// The same by the file that all machines share.
#[test]
fn a_shared_ignore_file_hides_no_file_that_another_machine_has_published() {
    let machines = machines();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("ledger"), "two").expect("ready");
    // It comes past the view while the lock is held.
    fs::write(machines.first.folder().join(".latchfs/ignore"), "*\n").expect("written");
    one.request("give", &[]).ok();
    assert!(!has_gone(&machines.first), "{:?}", named(&machines.first));
    machines.carry_markers();
    let taking = begin_take(&two);
    not_ready(&two, "'ledger'");
    let found = findings_of(latchfs(), &two.view, &[]);
    assert!(is_named(&found, "line 1 of .latchfs/ignore"), "{found:?}");
    machines.carry("ledger");
    assert!(taking.join().expect("taken").contains("holding"));
}

#[test]
fn ignore_files_that_cannot_be_used_stop_no_machine_and_are_named() {
    let machines = machines();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    let folders = [machines.first.folder(), machines.second.folder()];
    write_as_user(&one, ".stignore", "'a' * 70_000");
    machines.carry(".stignore");
    for folder in &folders {
        fs::write(folder.join(".latchfs/ignore"), "a".repeat(70_000)).expect("written");
    }
    fs::write(one.path("ledger"), "two").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_all();
    two.request("take", &[]).ok();
    for (guard, said) in [(&two, "'.latchfs/ignore' can't be used"), (&two, "'.stignore' stands")] {
        let status = guard.request("status", &[]).ok();
        assert!(status.contains(said), "{status}");
    }
    let found = findings_of(latchfs(), &two.view, &[]);
    assert!(is_named(&found, "'.latchfs/ignore' can't be used"), "{found:?}");
    two.end();
    let own = place(&machines.second, "m2");
    let found = findings_of(latchfs(), &folders[1], &options(&own));
    assert!(is_named(&found, "'.latchfs/ignore' can't be used"), "{found:?}");
    let said = run(latchfs().args(["doctor", "--strict"]).arg(&folders[1]).args(own)).out;
    assert!(said.contains("'.stignore' stands"), "{said}");
}

/// A file that the sync tool of one machine keeps back never arrives there.
#[test]
fn a_person_gives_up_a_path_that_does_not_arrive() {
    let machines = machines();
    let tool = Interface::start(&machines.second, &["ledger"]);
    let one = machines.start(1, &["--yield", "1s"]);
    let two = machines.start(2, &["--carry", &tool.carry(), "--yield", "1s"]);
    fs::write(one.path("ledger"), "two").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_markers();
    let taking = begin_take(&two);
    not_ready(&two, "'ledger'");
    let path = two.path("ledger");
    let accept = |path: &Path| {
        run(latchfs().args(["guard", "accept"]).arg(path).args(["--reason", "it stays there"]))
    };
    assert!(accept(&path).ok().contains("holding"));
    assert!(taking.join().expect("taken").contains("holding"));
    two.request("give", &[]).ok();
    let all = named(&machines.second);
    assert!(all.contains(&("ledger".to_owned(), "ignored".to_owned())), "{all:?}");
    assert!(!has_gone(&machines.second), "{all:?}");
    machines.carry_markers_back();
    one.request("take", &[]).ok();
    assert_eq!(fs::read_to_string(one.path("ledger")).expect("there"), "two");
    let shown = one.status()["ignored"]["not_covered"].to_string();
    assert!(shown.contains("ledger") && shown.contains("given up"), "{shown}");
    // Where no rule matches, a change makes it a file of all machines again.
    fs::write(one.path("ledger"), "three").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_markers();
    let taking = begin_take(&two);
    not_ready(&two, "'ledger'");
    machines.carry("ledger");
    assert!(taking.join().expect("taken").contains("holding"));
}

/// The folder is ready, and the rule is a new one.
#[test]
fn a_person_gives_up_a_path_while_the_folder_is_ready() {
    let machines = machines();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    one.request("take", &[]).ok();
    fs::write(machines.first.folder().join(".latchfs/ignore"), "ledger\nold\n").expect("written");
    let accept = || {
        run(latchfs()
            .args(["guard", "accept"])
            .arg(one.path("ledger"))
            .args(["--reason", "each machine has its own"]))
    };
    soon("the acceptance", || (accept().code == 0).then_some(()));
    one.request("give", &[]).ok();
    let all = named(&machines.first);
    assert!(all.contains(&("ledger".to_owned(), "ignored".to_owned())), "{all:?}");
    fs::write(machines.second.folder().join("ledger"), "of m2 alone").expect("written");
    machines.carry_markers();
    two.request("take", &[]).ok();
    assert_eq!(fs::read_to_string(two.path("ledger")).expect("there"), "of m2 alone");
    let ignored = two.status()["ignored"].clone();
    assert!(ignored["not_covered"].to_string().contains("ledger"), "{ignored}");
    // Nobody has given the other one up.
    assert!(ignored["covered_despite_a_rule"].to_string().contains("old"), "{ignored}");
}
