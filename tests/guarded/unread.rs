//! A program that has an older version of a file in its memory saves it over the version of another
//! machine: that version is kept, or the save is refused.

use crate::arriving::Machines;
use crate::dormant::{Program, hand_over};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use testing::{Guard, shell};

/// Returns the paths of the lost files that are versions of other machines, the newest first.
fn kept(guard: &Guard) -> Vec<String> {
    let is_unread = |it: &&Value| it["why"].as_str().expect("text").contains("had published");
    let path = |it: &Value| it["path"].as_str().expect("text").to_owned();
    guard.lost().iter().filter(is_unread).map(path).collect()
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

/// A sync tool gives a file its name first and its time afterwards: the guard may compare the
/// folder in between.
#[test]
fn a_version_whose_time_was_set_after_the_comparison_is_no_foreign_one() {
    let (machines, one, _two) = changed_elsewhere(&[], "a", |_| {});
    let folder = machines.first.folder();
    shell(&folder, "touch -d @77 a").ok();
    shell(&one.view, "cat a; echo new > a").ok();
    assert!(one.lost().is_empty(), "{:?}", one.lost());
    for (way, is_kept) in [("echo new > a", true), ("cat a; rm a", false), ("cat a; mv b a", false)]
    {
        let (machines, one, _two) = changed_elsewhere(&[], "a", |_| {});
        shell(&one.view, "echo b > b").ok();
        shell(&machines.first.folder(), "touch -d @77 a").ok();
        shell(&one.view, way).ok();
        let wanted: &[&str] = if is_kept { &["a"] } else { &[] };
        assert_eq!(kept(&one), wanted, "{way}");
        assert_eq!(one.lost().len(), wanted.len(), "{way}");
    }
    // A version that is too long for a comparison is kept.
    let (machines, one, two) = changed_elsewhere(&[], "a", |_| {});
    hand_over(&machines, &two, Machines::carry_all);
    shell(&two.view, "cat a; truncate -s 8388609 a").ok();
    hand_over(&machines, &one, Machines::carry_back);
    shell(&machines.first.folder(), "touch -d @77 a").ok();
    shell(&one.view, "cat a > /dev/null; echo new > a").ok();
    assert_eq!(one.lost().len(), 1);
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
