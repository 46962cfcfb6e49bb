//! A program that has an older version of a file in its memory saves it over the version of another
//! machine: that version is kept, or the save is refused.

use crate::arriving::Machines;
use crate::dormant::{Program, hand_over};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use testing::{Guard, shell, soon};

fn lost(guard: &Guard) -> Vec<Value> {
    let lost: Value = serde_json::from_str(&guard.request("lost", &["--json"]).ok()).expect("JSON");
    lost["lost"].as_array().expect("a list").clone()
}

/// Returns the paths of the lost files that are versions of other machines, the newest first.
fn kept(guard: &Guard) -> Vec<String> {
    let is_unread = |it: &&Value| it["why"].as_str().expect("text").contains("had published");
    let path = |it: &Value| it["path"].as_str().expect("text").to_owned();
    lost(guard).iter().filter(is_unread).map(path).collect()
}

/// The first machine has a file in its memory, which the second one has changed since.
fn changed_elsewhere(
    options: &[&str],
    path: &str,
    meanwhile: impl FnOnce(&Guard),
) -> (Machines, Guard, Guard) {
    let machines = Machines::new();
    let options = [&["--yield", "1s"], options].concat();
    let (one, two) = (machines.start(1, &options), machines.start(2, &["--yield", "1s"]));
    fs::write(one.path(path), "of m1").expect("free");
    meanwhile(&one);
    hand_over(&machines, &two, Machines::carry_all);
    fs::write(two.path(path), "of m2").expect("held");
    hand_over(&machines, &one, Machines::carry_back);
    (machines, one, two)
}

#[test]
fn a_version_that_no_program_has_read_is_kept_when_it_is_replaced() {
    let ways = ["echo new > a", "echo new > b; mv b a", "rm a; echo new > a", "cp /etc/hostname a"];
    for way in ways {
        let (_machines, one, _two) = changed_elsewhere(&[], "a", |_| {});
        shell(&one.view, way).ok();
        assert_eq!(kept(&one), ["a"], "{way}");
        assert!(
            one.why().contains("of another machine that no program had opened"),
            "{}",
            one.why()
        );
        let number = lost(&one)[0]["number"].to_string();
        let said = one.request("lost", &["--restore", &number]).ok();
        let name = said.trim().rsplit("as ").next().expect("a name").to_owned();
        assert_eq!(fs::read_to_string(one.path(&name)).expect("restored"), "of m2", "{way}");
    }
}

#[test]
fn a_version_that_a_program_has_read_is_replaced() {
    for way in ["sed -i s/m2/m1/ a", "cat a; echo new > a", "echo '1 + 1' >> a"] {
        let (_machines, one, _two) = changed_elsewhere(&[], "a", |_| {});
        shell(&one.view, way).ok();
        assert!(lost(&one).is_empty(), "{way}");
        // This machine's own version is no unread one.
        shell(&one.view, "echo newer > a").ok();
        assert!(lost(&one).is_empty(), "{way}");
    }
}

/// The program opens the file before the guard of its machine knows that it is a new version.
#[test]
fn a_version_that_was_read_before_the_lock_came_is_replaced() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &["--yield", "1s"]), machines.start(2, &["--yield", "1s"]));
    fs::write(one.path("a"), "of m1").expect("free");
    hand_over(&machines, &two, Machines::carry_all);
    fs::write(two.path("a"), "of m2").expect("held");
    two.request("give", &[]).ok();
    machines.carry_back();
    assert_eq!(fs::read_to_string(one.path("a")).expect("arrived"), "of m2");
    soon("the lock", || fs::write(one.path("a"), "newer").ok());
    assert!(lost(&one).is_empty());
}

/// A sync tool gives a file its name first and its time afterwards: the guard may compare the
/// folder in between.
#[test]
fn a_version_whose_time_was_set_after_the_comparison_is_no_foreign_one() {
    let (machines, one, _two) = changed_elsewhere(&[], "a", |_| {});
    let folder = machines.first.folder();
    shell(&folder, "touch -d @77 a").ok();
    shell(&one.view, "cat a; echo new > a").ok();
    assert!(lost(&one).is_empty(), "{:?}", lost(&one));
    for (way, is_kept) in [("echo new > a", true), ("cat a; rm a", false), ("cat a; mv b a", false)]
    {
        let (machines, one, _two) = changed_elsewhere(&[], "a", |_| {});
        shell(&one.view, "echo b > b").ok();
        shell(&machines.first.folder(), "touch -d @77 a").ok();
        shell(&one.view, way).ok();
        let wanted: &[&str] = if is_kept { &["a"] } else { &[] };
        assert_eq!(kept(&one), wanted, "{way}");
        assert_eq!(lost(&one).len(), wanted.len(), "{way}");
    }
    // A version that is too long for a comparison is kept.
    let (machines, one, two) = changed_elsewhere(&[], "a", |_| {});
    hand_over(&machines, &two, Machines::carry_all);
    shell(&two.view, "cat a; truncate -s 8388609 a").ok();
    hand_over(&machines, &one, Machines::carry_back);
    shell(&machines.first.folder(), "touch -d @77 a").ok();
    shell(&one.view, "cat a > /dev/null; echo new > a").ok();
    assert_eq!(lost(&one).len(), 1);
}

/// vim and a Python program have the file in their memory, and no descriptor of it.
#[test]
fn an_editor_that_was_open_replaces_no_version_silently() {
    let mut vim = None;
    let mut python = None;
    let (_machines, one, _two) = changed_elsewhere(&[], "a", |one| {
        let mut command = Command::new("vim");
        command.args(["-es", "-u", "NONE", "-n"]).arg(one.path("a"));
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut editor = command.spawn().expect("it starts");
        writeln!(editor.stdin.as_mut().expect("piped"), "call setline(1, 'of vim')").expect("read");
        vim = Some(editor);
        let mut program = Program::start(&one.view);
        program.ok("text = open('a').read() + ' and python'");
        python = Some(program);
    });
    // The first one replaces the version of the other machine, the second one the first one's.
    python.as_mut().expect("started").ok("f = open('a', 'w'); f.write(text); f.close()");
    assert_eq!(kept(&one), ["a"]);
    let mut vim = vim.expect("started");
    // Its own command for a save would ask a person, since it finds the file changed.
    writeln!(vim.stdin.take().expect("piped"), "call writefile(getline(1, '$'), expand('%'))\nq!")
        .expect("read");
    assert!(vim.wait().expect("it ends").success());
    assert_eq!(fs::read_to_string(one.path("a")).expect("there"), "of vim\n");
    assert_eq!(kept(&one), ["a"]);
}

#[test]
fn a_careful_guard_refuses_a_save_over_a_version_that_nobody_has_read() {
    let (machines, one, _two) = changed_elsewhere(&["--careful"], "a", |_| {});
    let refused = shell(&one.view, "echo new > a");
    let mut program = Program::start(&one.view);
    assert_eq!(program.run("f = open('a', 'w'); f.write('new'); f.close()"), "ESTALE");
    assert!(one.why().contains("no program here has opened"), "{} {}", one.why(), refused.err);
    program.ok("f = open('b', 'w'); f.write('new'); f.close()");
    assert_eq!(program.run("os.rename('b', 'a')"), "ESTALE");
    assert_eq!(fs::read_to_string(machines.first.folder().join("a")).expect("there"), "of m2");
    let why = |it: &Value| it["why"].as_str().expect("text").contains("it would have replaced");
    assert!(lost(&one).iter().all(why) && !lost(&one).is_empty(), "{:?}", lost(&one));
    program.ok("it = open('a').read(); f = open('a', 'w'); f.write(it + '!'); f.close()");
    assert_eq!(fs::read_to_string(one.path("a")).expect("there"), "of m2!");
}

#[test]
fn the_oldest_versions_are_dropped_when_they_are_too_many() {
    let machines = Machines::new();
    let options = ["--yield", "1s", "--keep-unread", "10"];
    let (one, two) = (machines.start(1, &options), machines.start(2, &["--yield", "1s"]));
    fs::write(one.path("a"), "of m1").expect("free");
    hand_over(&machines, &two, Machines::carry_all);
    for (name, text) in [("a", "of m2"), ("b", "four"), ("c", "six of"), ("d", "eleven byte")] {
        fs::write(two.path(name), text).expect("held");
    }
    hand_over(&machines, &one, Machines::carry_back);
    for name in ["a", "b", "c"] {
        fs::write(one.path(name), "new").expect("held");
    }
    assert_eq!(kept(&one), ["c", "b"]);
    let mut program = Program::start(&one.view);
    assert_eq!(program.run("f = open('d', 'w'); f.write('new'); f.close()"), "ESTALE");
    assert!(one.why().contains("--keep-unread"), "{}", one.why());
    // A guard that is started again knows what it has kept, and what nobody has read.
    one.end();
    let one = machines.start(1, &["--yield", "1s", "--keep-unread", "12"]);
    soon("the lock", || fs::write(one.path("d"), "new").ok());
    assert_eq!(kept(&one), ["d"]);
}
