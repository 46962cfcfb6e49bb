//! The import graph of a crate's modules. An arrow is a `use` of one file's items in another file;
//! imports in tests are not counted. The reading order of modules is the order of their `mod`
//! lines, where a `mod.rs` comes after the files that it declares. An arrow points upward if it
//! goes against the reading order. A circle is an import cycle.

use std::collections::{BTreeMap, BTreeSet};

/// A module by its path below the crate, such as `["fuse", "poll"]`.
pub(crate) type Module = Vec<String>;

/// The modules of a crate in reading order, and the imports between them as arrows.
#[derive(Debug, Default)]
pub(crate) struct ModuleGraph {
    order: Vec<Module>,
    arrows: BTreeMap<usize, BTreeSet<usize>>,
}

/// Returns the module of a file, given its path below `src/`; `None` for tests and for `main.rs`.
fn module_of(path: &str) -> Option<Module> {
    let mut parts: Module = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    match parts.last().map(String::as_str) {
        Some("mod" | "lib") => drop(parts.pop()),
        Some(last) if last == "main" || last.starts_with("tests") => return None,
        _ => {}
    }
    (!parts.iter().any(|part| part == "tests")).then_some(parts)
}

/// Returns the code of a file up to its tests, without comment lines.
fn code_of(text: &str) -> String {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]");
    let code = lines.filter(|line| !line.trim_start().starts_with("//"));
    code.fold(String::new(), |code, line| code + line + "\n")
}

/// Returns the statements of a file that begin with the keyword `word`, without their visibility.
fn statements<'a>(code: &'a str, word: &str) -> Vec<&'a str> {
    let (mut found, mut at) = (Vec::new(), 0);
    for line in code.split_inclusive('\n') {
        let start = at + (line.len() - line.trim_start().len());
        at += line.len();
        if start == at {
            continue;
        }
        let mut rest = &code[start..];
        if let Some(public) = rest.strip_prefix("pub") {
            let scope = public.strip_prefix('(').and_then(|scope| scope.split_once(')'));
            rest = scope.map_or(public, |(_, rest)| rest).trim_start();
        }
        let rest = rest.strip_prefix(word).and_then(|rest| rest.strip_prefix(' '));
        found.extend(rest.and_then(|rest| rest.split_once(';')).map(|(statement, _)| statement));
    }
    found
}

/// Returns the paths that a grouped import such as `a::{b, c::{d, e as f}}` stands for.
fn expand(text: &str) -> Vec<String> {
    let text = text.trim();
    let Some((prefix, inner)) = text.split_once('{') else {
        return vec![text.split(" as ").next().unwrap_or(text).trim().to_owned()];
    };
    let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for mark in inner.chars() {
        depth += i32::from(mark == '{') - i32::from(mark == '}');
        if mark == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(mark);
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| expand(part)).map(|part| format!("{}{part}", prefix.trim())).collect()
}

impl ModuleGraph {
    /// Builds the graph of a crate from its files, given as pairs of the path below `src/` and the
    /// text.
    pub(crate) fn read<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let code = files.filter_map(|(path, text)| Some((module_of(path)?, code_of(text))));
        let code: BTreeMap<Module, String> = code.collect();
        let mut graph = Self::default();
        graph.walk(&Vec::new(), &code);
        let numbers: BTreeMap<_, _> = graph.order.iter().cloned().zip(0..).collect();
        for (module, from) in &numbers {
            for path in statements(&code[module], "use").into_iter().flat_map(expand) {
                let to = resolve(module, &path, &numbers).filter(|to| to != from);
                graph.arrows.entry(*from).or_default().extend(to);
            }
        }
        graph
    }

    /// Appends a module to the reading order, after the modules that it declares.
    fn walk(&mut self, module: &Module, code: &BTreeMap<Module, String>) {
        let Some(text) = code.get(module).filter(|_| !self.order.contains(module)) else { return };
        for child in statements(text, "mod") {
            self.walk(&[&**module, &[child.trim().to_owned()]].concat(), code);
        }
        if !self.order.contains(module) {
            self.order.push(module.clone());
        }
    }

    fn name(&self, number: usize) -> String {
        self.order[number].join("/")
    }

    /// Returns the number of modules in the graph.
    pub(crate) fn modules(&self) -> usize {
        self.order.len()
    }

    /// Returns the imports that go against the reading order, as `from -> to`.
    pub(crate) fn upward(&self) -> Vec<String> {
        let all = self.arrows.iter().flat_map(|(from, to)| to.iter().map(move |to| (*from, *to)));
        let upward = all.filter(|(from, to)| to > from);
        upward.map(|(from, to)| format!("{} -> {}", self.name(from), self.name(to))).collect()
    }

    /// Returns the import cycles: sets of modules each of which reaches all others.
    pub(crate) fn circles(&self) -> Vec<Vec<String>> {
        let reached: Vec<_> = (0..self.order.len()).map(|from| self.reached(from)).collect();
        let mut circles = BTreeSet::new();
        for (from, to) in reached.iter().enumerate().filter(|(from, to)| to.contains(from)) {
            let circle = to.iter().filter(|other| reached[**other].contains(&from));
            circles.insert(circle.map(|number| self.name(*number)).collect::<Vec<_>>());
        }
        circles.into_iter().collect()
    }

    /// Returns the modules that can be reached from the module with the number `from`.
    fn reached(&self, from: usize) -> BTreeSet<usize> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            let to = self.arrows.get(&at).into_iter().flatten();
            open.extend(to.filter(|to| reached.insert(**to)));
        }
        reached
    }
}

/// Returns the module that the path of a `use` in `module` names or lies in; `None` for another
/// crate, and for a name of the crate's root, which declares modules and nothing else.
fn resolve(module: &Module, path: &str, numbers: &BTreeMap<Module, usize>) -> Option<usize> {
    let parts: Vec<String> = path.split("::").map(|part| part.trim().to_owned()).collect();
    let (first, rest) = parts.split_first()?;
    let supers = parts.iter().take_while(|part| *part == "super").count();
    let path: Module = match first.as_str() {
        "crate" => rest.to_vec(),
        "self" => [module, rest].concat(),
        "super" => [&module[..module.len().checked_sub(supers)?], &parts[supers..]].concat(),
        child if numbers.contains_key(&[&**module, &[child.to_owned()]].concat()) => {
            [&**module, &parts].concat()
        }
        _ => return None,
    };
    (1..=path.len()).rev().find_map(|length| numbers.get(&path[..length])).copied()
}

#[test]
fn arrows_and_circles_are_found() {
    let files = [
        ("lib.rs", "mod low;\npub(crate) mod folder;\npub mod high;\n"),
        ("low.rs", "use crate::high::{High, Other as Name};\n// use crate::folder::inner::X;\n"),
        ("folder/mod.rs", "mod inner;\nuse inner::Deep;\n#[cfg(test)]\nmod tests;\n"),
        ("folder/inner.rs", "use super::Thing;\nuse std::fmt;\n"),
        ("folder/tests.rs", "use crate::high::High;\n"),
        ("high.rs", "use crate::{folder::inner::{Deep, Other}, low};\n"),
    ];
    let graph = ModuleGraph::read(files.into_iter());
    assert_eq!(graph.modules(), 5);
    assert_eq!(graph.upward(), ["low -> high", "folder/inner -> folder"]);
    assert_eq!(graph.circles(), [vec!["folder/inner", "folder"], vec!["low", "high"]]);
}
