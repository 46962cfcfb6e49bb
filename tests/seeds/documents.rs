//! The chapter on the seeds describes what differs, and the quotations in these tests are numbered
//! like its sections.

use std::fs;
use std::path::Path;

#[test]
fn chapter_has_a_section_for_each_seed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = fs::read_to_string(root.join("contrib/doc/seeds.md")).expect("the chapter");
    for seed in ["000", "001", "002", "003", "004"] {
        assert!(chapter.contains(&format!("\n## Seed {seed}")), "no section for {seed}");
        assert!(chapter.contains(&format!("tests/seeds/seed_{seed}.rs")), "no test of {seed}");
    }
    let summary = fs::read_to_string(root.join("contrib/doc/SUMMARY.md")).expect("the summary");
    assert!(summary.contains("(seeds.md)"), "{summary}");
}
