//! The chapter on the seeds describes what differs, and the quotations in these tests are numbered
//! like its sections.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the sources of all tests.
fn sources(dir: &Path) -> String {
    let entries = fs::read_dir(dir).expect("readable").flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let text = |path: &PathBuf| match path.extension().and_then(|kind| kind.to_str()) {
        _ if path.is_dir() => sources(path),
        Some("rs") => fs::read_to_string(path).expect("readable"),
        _ => String::new(),
    };
    paths.iter().map(text).collect()
}

#[test]
fn each_row_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = fs::read_to_string(root.join("contrib/doc/seeds.md")).expect("the chapter");
    let (tables, tests) = chapter.split_once("\n## Tests of the rows\n").expect("the section");
    let tests = tests.replace('\n', " ");
    let sources = sources(&root.join("tests"));
    for seed in ["000", "001", "002", "003", "004"] {
        let (_, section) = tables.split_once(&format!("\n## Seed {seed}\n")).expect("a section");
        let section = section.split("\n## ").next().expect("text");
        let lines: Vec<&str> = section.lines().collect();
        let is_head = |at: usize| lines.get(at + 1).is_some_and(|next| next.starts_with("|--"));
        let is_row = |at: &usize| lines[*at].starts_with("| ") && !is_head(*at);
        let rows = (0..lines.len()).filter(is_row).count();
        let (_, listed) = tests.split_once(&format!("- Seed {seed}: ")).expect("a list");
        let listed = listed.split(" - Seed").next().expect("text");
        let names: Vec<_> = listed.split('`').skip(1).step_by(2).collect();
        assert_eq!(names.len(), rows, "seed {seed}: {names:?}");
        for name in names {
            assert!(sources.contains(&format!("fn {name}()")), "seed {seed}: no test {name}");
        }
    }
}

#[test]
fn chapter_has_a_section_for_each_seed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = fs::read_to_string(root.join("contrib/doc/seeds.md")).expect("the chapter");
    for seed in ["000", "001", "002", "003", "004"] {
        assert!(chapter.contains(&format!("\n## Seed {seed}")), "no section for {seed}");
        assert!(
            chapter.contains(&format!("tests/served/seeds/seed_{seed}.rs")),
            "no test of {seed}"
        );
    }
    let summary = fs::read_to_string(root.join("contrib/doc/SUMMARY.md")).expect("the summary");
    assert!(summary.contains("(seeds.md)"), "{summary}");
}
