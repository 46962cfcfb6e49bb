//! Parses Markdown as the documents use it: fenced blocks, headings, links, and code spans in the
//! prose.

use std::collections::BTreeMap;

/// A fenced block of a Markdown document.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) language: String,
    /// Whether the comment `<!-- not run: WHY -->` stands above the block.
    pub(crate) not_run: bool,
    /// The machine that the comment `<!-- on NAME -->` above the block names.
    pub(crate) machine: Option<String>,
    pub(crate) lines: Vec<(usize, String)>,
}

/// Returns the fenced blocks of a document.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = vec![];
    let (mut inside, mut not_run, mut machine) = (false, false, None);
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(language) = line.strip_prefix("```").filter(|_| !inside) {
            let language = language.to_owned();
            let machine = machine.take();
            blocks.push(Block { line: number, language, not_run, machine, lines: vec![] });
            (inside, not_run) = (true, false);
        } else if line == "```" {
            inside = false;
        } else if inside {
            let block = blocks.last_mut().expect("a block is open");
            block.lines.push((number, line.to_owned()));
        } else {
            assert!(!line.trim_start().starts_with("```"), "line {number}: an indented block");
            not_run |= line.starts_with("<!-- not run: ");
            let named = line.strip_prefix("<!-- on ").and_then(|it| it.strip_suffix(" -->"));
            machine = named.map(str::to_owned).or(machine);
        }
    }
    assert!(!inside, "the last block has no end");
    blocks
}

/// Returns the lines of a document that are not in a fenced block, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut lines = vec![];
    for (number, line) in (1..).zip(text.lines()) {
        if line.starts_with("```") {
            inside = !inside;
        } else if !inside {
            lines.push((number, line));
        }
    }
    lines
}

/// Returns the targets of the links `[text](target)` in a document.
pub(crate) fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = vec![];
    for (number, line) in prose(text) {
        for rest in line.split("](").skip(1) {
            links.push((number, rest.split(')').next().unwrap_or("")));
        }
    }
    links
}

/// Returns the anchors of the headings of a document, as GitHub and mdBook make them.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = vec![];
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
        let title = title.trim().to_lowercase().chars().filter(kept).collect::<String>();
        let anchor = title.replace(' ', "-");
        let count = seen.entry(anchor.clone()).or_default();
        anchors.push(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Returns the code spans in the prose of a document, with their line numbers.
pub(crate) fn code_spans(text: &str) -> Vec<(usize, &str)> {
    let mut spans = vec![];
    for (number, line) in prose(text) {
        spans.extend(line.split('`').skip(1).step_by(2).map(|span| (number, span)));
    }
    spans
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# One *two*: `three`\n## A-b_c\n```text\n# no\n```\n## A-b_c\n#no\n";
    assert_eq!(anchors(text), ["one-two-three", "a-b_c", "a-b_c-1"]);
    assert_eq!(links("a [b](c#d) e [f](g)\n```text\n[h](i)\n```\n"), [(1, "c#d"), (1, "g")]);
}
