//! Checks that each named bug of `tests/mutants` fits the source, so that `contrib/mutants` can
//! plant it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// One named bug of a file of `tests/mutants`.
#[derive(Default)]
struct Bug {
    name: String,
    sentence: String,
    changes: Vec<Change>,
}

/// A change of one source file by which a bug is planted.
#[derive(Default)]
struct Change {
    file: String,
    /// The lines of the file that are replaced, with the context around them.
    found: String,
    replaces: bool,
}

fn bugs(file: &str) -> Vec<Bug> {
    let text = fs::read_to_string(in_tree(file)).expect("UTF-8");
    let mut bugs: Vec<Bug> = vec![];
    for line in text.lines() {
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        if mark == "bug" {
            bugs.push(Bug { name: rest.to_owned(), ..Bug::default() });
            continue;
        }
        let Some(bug) = bugs.last_mut() else { continue };
        match mark {
            "in" => bug.changes.push(Change { file: rest.to_owned(), ..Change::default() }),
            "-" | "|" => {
                let change = bug.changes.last_mut().expect("a file comes first");
                change.found += rest;
                change.replaces |= mark == "-";
            }
            "+" | "" | "test" => {}
            _ => bug.sentence += line,
        }
    }
    bugs
}

fn in_tree(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn without_whitespace(text: &str) -> String {
    text.split_whitespace().collect()
}

#[test]
fn each_domain_bug_has_its_place_in_the_source() {
    have_their_place("tests/mutants/domain_bugs.txt", 44);
}

#[test]
fn each_bug_of_the_guard_has_its_place_in_the_source() {
    have_their_place("tests/mutants/guard_bugs.txt", 10);
}

fn have_their_place(file: &str, bugs_min: usize) {
    let bugs = bugs(file);
    let count = bugs.len();
    assert!(count >= bugs_min, "{count} bugs: a bug may be reworded, and none is dropped");
    let mut names = BTreeSet::new();
    for Bug { name, sentence, changes } in &bugs {
        assert!(names.insert(name), "two bugs are called {name}");
        assert!(sentence.ends_with('.'), "{name} says which rule it breaks: {sentence:?}");
        assert!(!changes.is_empty(), "{name} changes something");
        for Change { file, found, replaces } in changes {
            assert!(replaces, "{name} replaces something in {file}");
            let source = fs::read_to_string(in_tree(file)).expect("a file of the source");
            let count = without_whitespace(&source).matches(&without_whitespace(found)).count();
            assert_eq!(count, 1, "{name}: {file} has it exactly once: {found}");
        }
    }
}
