//! Checks of the source tree that rustfmt and clippy do not make: sizes of lines, functions and
//! files, imports between layers, clocks, sleeps, leftovers, and the terms that files must name.

mod folder_budgets;
mod limits_table;
mod module_graph;
mod mutants;

use module_graph::ModuleGraph;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The maximum length of a line in columns: two windows of this width fit side by side on a screen.
const COLUMNS_MAX: usize = 100;
/// The maximum length of a function in lines, so that it fits on one screen.
const FUNCTION_LINES_MAX: usize = 70;
/// The numbers of lines of code that a file may have, tests excluded. A file covers one concept.
const FILE_LINES: std::ops::RangeInclusive<usize> = 60..=900;
/// Files that may be shorter, besides each `mod.rs` and the stand-ins for other systems: the
/// parsers that `tests/fuzz` reaches, and what other systems have as well.
const SHORT_FILES: &[&str] = &[
    "src/barrier/tenure_id.rs",
    "src/base.rs",
    "src/cli/doctor/finding.rs",
    "src/common/error_text.rs",
    "src/kernel/machine_facts.rs",
    "src/fuse/mount_config.rs",
    "src/guard/fuzz.rs",
    "src/server/http/fuzz.rs",
    "src/server/line/fuzz.rs",
    "src/service/fuzz.rs",
    "src/service/test_backends.rs",
    "src/storage/fuzz.rs",
    "tests/sim/machines/virtual_state_machine.rs",
    "tests/sim/planted_bugs.rs",
];
/// The maximum number of entries in a folder.
const ENTRIES_MAX: usize = 25;
/// The maximum number of files in which the methods of a type stand.
const METHOD_FILES_MAX: usize = 2;
/// Types whose methods may stand in more files.
const WIDE_TYPES: &[&str] = &[
    // Their rules read well one file each.
    "Engine",
    "EngineState",
    // Until the guard is made of machines with a state of their own.
    "FolderView",
    "Tenures",
    "FolderGuard",
    "FolderLock",
    "Ledger",
    "Nodes",
    // Each file has the view of one part on what all parts share.
    "LockView",
    "Op",
    "RequestPipeline",
    "SimWorld",
];
/// The maximum number of operations of the engine that a file may name, apart from the engine and
/// the permissions. Code that treats all operations takes what it needs from their subject, so that
/// a new operation is no change to it.
const OPERATIONS_MAX: usize = 7;
/// The maximum number of imports in `src` that point against the reading order of the modules,
/// which is the order of their `mod` lines. A folder is read as a whole, so that two folders which
/// use each other count more than they would file by file.
const UPWARD_ARROWS_MAX: usize = 46;
/// The same of the simulator.
const SIM_UPWARD_ARROWS_MAX: usize = 4;
/// The maximum number of imports within `src/fuse` that point against the reading order of the
/// modules, which is the order of their `mod` lines.
const FUSE_UPWARD_ARROWS_MAX: usize = 1;
/// The maximum number of files of `src/fuse` in one import cycle.
const FUSE_CIRCLE_MAX: usize = 5;

/// The folder of the simulator, a crate of its own. The rules for `src` apply to it as well.
const SIMULATOR: &str = "tests/sim/";
/// The crate of the rules of locks.
const ENGINE: &str = "src/engine/";
/// The crates below the program, each with the maximum number of its imports against the reading
/// order.
const LOWER_CRATES: &[(&str, usize)] =
    &[("src/barrier/", 4), ("src/common/", 0), (ENGINE, 3), ("src/kernel/", 2)];
/// The file that reads the clocks.
const ENGINE_TIME: &str = "src/engine/time.rs";

/// A source file: its path relative to the repository, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Returns the numbered lines of the file that are built into the program or the simulator: all
    /// lines up to the tests at its end, and none of a file of tests.
    fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_test = self.path.ends_with("/tests.rs") || self.path.contains("/tests/");
        let tests_only = !self.is_product() || is_test;
        let lines = self.text.lines().take_while(|line| *line != "#[cfg(test)]");
        (1..).zip(lines.take(if tests_only { 0 } else { usize::MAX }))
    }

    /// Returns the numbered lines of the file that are built into the program or the simulator,
    /// without comment lines.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.product().filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    fn is_in(&self, folder: &str) -> bool {
        self.path.starts_with(folder)
    }

    /// Whether the file is one of `src` or of the simulator.
    fn is_product(&self) -> bool {
        self.is_in("src/") || self.is_in(SIMULATOR)
    }
}

/// Returns all Rust sources of `src` and `tests`.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![];
    for folder in ["src", "tests"] {
        walk(&root.join(folder), &mut paths);
    }
    paths.sort();
    let read = |path: &PathBuf| Source {
        path: path.strip_prefix(root).expect("found below it").display().to_string(),
        text: fs::read_to_string(path).expect("sources are UTF-8"),
    };
    paths.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")).map(read).collect()
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("readable").path();
        if path.is_dir() { walk(&path, paths) } else { paths.push(path) }
    }
}

/// Fails with one line for each finding that `find` reports in any source file; `rule` names the
/// rule.
fn none(rule: &str, find: impl Fn(&Source, &mut dyn FnMut(usize, &str))) {
    let mut findings = String::new();
    for source in sources() {
        find(&source, &mut |line, what| {
            writeln!(findings, "  {}:{line}: {what}", source.path).expect("memory suffices");
        });
    }
    assert!(findings.is_empty(), "{rule}:\n{findings}");
}

/// Whether `word` occurs in `line` as a whole identifier.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}

#[test]
fn lines_fit() {
    none("lines have at most 100 columns", |source, found| {
        for (number, line) in source.lines() {
            if line.chars().count() > COLUMNS_MAX {
                found(number, line.trim());
            }
        }
    });
}

#[test]
fn functions_fit_on_a_screen() {
    none("functions have at most 70 lines", |source, found| {
        let lines: Vec<_> = source.text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            let is_function = has_word(code.split(['(', '<']).next().unwrap_or(""), "fn");
            if !is_function || code.starts_with("//") || code.ends_with([';', '}']) {
                continue;
            }
            let mut signature = lines[start..].iter().map(|line| line.trim_end());
            if signature.find(|line| line.ends_with([';', '{'])).is_some_and(|l| l.ends_with(';')) {
                continue;
            }
            let indent = &line[..line.len() - code.len()];
            let end = format!("{indent}}}");
            let length = lines[start..].iter().position(|line| *line == end).unwrap_or(0) + 1;
            if length > FUNCTION_LINES_MAX {
                found(start + 1, &format!("{length} lines: {code}"));
            }
        }
    });
}

#[test]
fn files_cover_one_concept() {
    none(
        "files of src and the simulator have 60 to 900 lines of code beside their tests",
        |source, found| {
            let name = source.path.rsplit('/').next().unwrap_or_default();
            let is_test = name.starts_with("tests") || source.path.contains("/tests");
            let may_be_short = name == "mod.rs"
                || is_test
                || name.ends_with("elsewhere.rs")
                || ["main.rs", "lib.rs"].contains(&name)
                || SHORT_FILES.contains(&source.path.as_str());
            let count = source.code().filter(|(_, line)| !line.trim().is_empty()).count();
            let is_short = count < *FILE_LINES.start() && !may_be_short && source.is_product();
            if is_short || count > *FILE_LINES.end() {
                found(count, "lines");
            }
        },
    );
}

#[test]
fn folders_are_chapters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<_> = sources()
        .iter()
        .filter(|source| source.is_product())
        .filter_map(|source| Some(Path::new(&source.path).parent()?.to_path_buf()))
        .collect();
    folders.sort();
    folders.dedup();
    for folder in folders {
        let entries = fs::read_dir(root.join(&folder)).expect("readable").count();
        let shown = folder.display();
        assert!(entries <= ENTRIES_MAX, "{shown} has {entries} entries; {ENTRIES_MAX} are enough");
    }
}

/// Returns the type of a line that begins its methods, such as `impl<D: Disk> Stage<D> {`.
fn type_of_methods(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generics) => {
            let mut depth = 1;
            let end = generics.find(|c| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth == 0
            })?;
            &generics[end + 1..]
        }
        None => rest,
    };
    let rest = rest.strip_prefix(' ').filter(|rest| !rest.contains(" for "))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn the_methods_of_a_type_stand_together() {
    let mut files = std::collections::BTreeMap::<_, std::collections::BTreeSet<_>>::new();
    let sources = sources();
    for source in sources.iter().filter(|source| source.is_product()) {
        let chapter = source.path.split('/').nth(1).unwrap_or_default();
        for (_, line) in source.code() {
            if let Some(name) = type_of_methods(line) {
                files.entry((chapter, name)).or_default().insert(&source.path);
            }
        }
    }
    files.retain(|(_, name), files| files.len() > METHOD_FILES_MAX && !WIDE_TYPES.contains(name));
    assert!(files.is_empty(), "methods of one type in more than two files: {files:#?}");
}

/// Returns the parameters of the function whose signature begins in this text, with their types.
fn parameters(signature: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let (mut depth, mut before) = (0, ' ');
    for c in signature[signature.find('(').unwrap_or(0)..].chars() {
        depth -= i32::from(matches!(c, ')' | ']' | '}') || c == '>' && before != '-');
        if depth == 0 && before != ' ' {
            break;
        }
        if c == ',' && depth == 1 {
            found.push(String::new());
        } else if depth > 0 {
            found.last_mut().expect("one at least").push(c);
        }
        depth += i32::from(matches!(c, '(' | '[' | '{' | '<'));
        before = c;
    }
    found
}

/// Whether the type of a parameter is a tuple, or a reference to one.
fn is_tuple(parameter: &str) -> bool {
    let Some((_, of)) = parameter.rsplit_once(": ") else { return false };
    let of = of.trim_start_matches(['&', ' ']).trim_start_matches("mut ");
    of.starts_with('(') && of.contains(',')
}

#[test]
fn no_parameter_is_a_tuple() {
    let tuple = "fn f<T>(&self, (a, b): (u8, Option<T>), c: &(dyn Error + 'static)) -> (u8, u8) {";
    assert_eq!(parameters(tuple).iter().filter(|it| is_tuple(it)).count(), 1);
    none("a parameter is no tuple: values that travel together have a name", |source, found| {
        let lines: Vec<_> = source.product().collect();
        for (at, (number, line)) in lines.iter().enumerate() {
            let code = line.trim_start();
            if code.starts_with("//") || !has_word(code.split('(').next().unwrap_or(""), "fn") {
                continue;
            }
            let signature = lines[at..].iter().map(|(_, line)| line.trim()).take(20);
            let signature = signature.collect::<Vec<_>>().join(" ");
            if let Some(tuple) = parameters(&signature).iter().find(|it| is_tuple(it)) {
                found(*number, tuple);
            }
        }
    });
}

#[test]
fn files_begin_with_a_module_header() {
    none("files begin with a sentence of documentation", |source, found| {
        if !source.text.starts_with("//! ") {
            found(1, "no '//!'");
        }
    });
}

#[test]
fn few_files_name_all_operations() {
    let findings = sources().into_iter().filter_map(|source| {
        let may_name_all = source.is_in("src/engine/") || source.is_in("src/auth/");
        if may_name_all || !source.is_in("src/") || source.path == "src/fixtures.rs" {
            return None;
        }
        let named: std::collections::BTreeSet<_> = source
            .code()
            .flat_map(|(_, line)| ["Op::", "OpKind::"].map(|kind| line.split(kind).skip(1)))
            .flatten()
            .filter(|rest| rest.starts_with(char::is_uppercase))
            .map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("").to_owned())
            .collect();
        (named.len() > OPERATIONS_MAX).then_some((source.path, named))
    });
    let findings: Vec<_> = findings.collect();
    assert!(findings.is_empty(), "a file outside the engine and the permissions: {findings:#?}");
}

#[test]
fn product_code_has_no_unwrap() {
    none("no unwrap outside tests: say the invariant, or return the error", |source, found| {
        for (number, line) in source.code() {
            if line.contains(".unwrap()") {
                found(number, line.trim());
            }
        }
    });
}

#[test]
fn no_leftovers() {
    let marks = [concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X")];
    let macros = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];
    none("no leftovers", |source, found| {
        for (number, line) in source.lines() {
            if marks.iter().any(|mark| has_word(line, mark))
                || macros.iter().any(|name| line.contains(name))
            {
                found(number, line.trim());
            }
        }
    });
}

#[test]
fn only_time_reads_a_clock() {
    let readers = [
        concat!("SystemTime", "::now"),
        concat!("Instant", "::now"),
        concat!("clock_", "gettime"),
        concat!(".elapsed", "()"),
    ];
    none("clocks are read in src/engine/time.rs only", |source, found| {
        for (number, line) in source.lines() {
            if source.path != ENGINE_TIME && readers.iter().any(|name| line.contains(name)) {
                found(number, line.trim());
            }
        }
    });
}

#[test]
fn tests_wait_for_events() {
    let sleep = concat!("thread", "::sleep");
    none("tests sleep in the one bounded poll of tests/testing only", |source, found| {
        let code: Vec<_> = match source.path.as_str() {
            // The polling loop of the tests and that of the benchmark are the only ones that may
            // sleep; each is in one of these two files.
            "tests/testing/command.rs" | "tests/bench/report.rs" => {
                assert_eq!(source.text.matches(sleep).count(), 1, "one poll");
                return;
            }
            path if path.starts_with("tests/") => source.lines().collect(),
            _ => source.lines().skip(source.product().count()).collect(),
        };
        for (number, line) in code {
            if line.contains(sleep) {
                found(number, line.trim());
            }
        }
    });
}

/// The table of layers: for each folder, the names after `crate::` that its files may use. Cargo
/// keeps the crates of `LOWER_CRATES` below all of them.
const LAYERS: &[(&str, &[&str])] = &[
    ("src/base.rs", &["time"]),
    ("src/holder_id.rs", &["time"]),
    ("src/cli/guard/sleep_inhibitor.rs", &["time"]),
    ("src/log_output/", &["time", "shares"]),
    // Files of src/storage write bytes to files and read them back. They must not import anything
    // that interprets these bytes.
    ("src/storage/", &["time", "base", "storage"]),
    ("src/audit_chain/", &["storage", "audit_chain"]),
    ("src/service/", &["time", "base", "shares", "storage", "audit_chain", "engine", "service"]),
    ("src/net/", &["base", "shares", "net"]),
    ("src/home/", &["time", "base", "storage", "net", "home"]),
    ("src/raft/", &["time", "base", "shares", "net", "storage", "engine", "service", "raft"]),
    ("src/client/", &["time", "base", "net", "home", "engine", "service", "client"]),
    ("src/status.rs", &["time", "engine"]),
    ("src/metrics/", &["time", "engine", "service", "metrics"]),
    // Authorization is decided in src/auth for all front ends.
    ("src/auth/", &["time", "base", "shares", "net", "home", "engine", "auth"]),
    ("src/control/", &["time", "engine", "service", "auth", "status", "control"]),
    (
        "src/fuse/",
        &[
            "time",
            "shares",
            "base",
            "engine",
            "service",
            "auth",
            "control",
            "holder_id",
            "status",
            "metrics",
            "fuse",
        ],
    ),
    // The view alone uses the FUSE layer; the other parts of a guard are tested without a mount.
    (
        "src/guard/view/",
        &["time", "shares", "base", "engine", "service", "holder_id", "auth", "fuse", "guard"],
    ),
    (
        "src/guard/",
        &[
            "time",
            "shares",
            "base",
            "storage",
            "audit_chain",
            "engine",
            "service",
            "holder_id",
            "auth",
            "guard",
        ],
    ),
    (
        "src/server/",
        &[
            "time", "shares", "base", "net", "home", "engine", "service", "auth", "status",
            "metrics", "server",
        ],
    ),
    // The library uses a mount as any program does, and knows nothing of the server behind the
    // mount.
    ("src/mutex/", &["time", "engine", "holder_id", "mutex"]),
    // The command line (`src/cli`) may use every other folder, because it starts all parts of the
    // program.
    (
        "src/cli/",
        &[
            "time",
            "shares",
            "base",
            "storage",
            "audit_chain",
            "engine",
            "service",
            "home",
            "raft",
            "client",
            "holder_id",
            "status",
            "metrics",
            "auth",
            "control",
            "fuse",
            "guard",
            "log_output",
            "server",
            "cli",
        ],
    ),
];

#[test]
fn layers_import_downwards_only() {
    none("layers name only what lies below them", |source, found| {
        let Some((_, may)) = LAYERS.iter().find(|(folder, _)| source.is_in(folder)) else { return };
        for (number, line) in source.code() {
            for (at, _) in line.match_indices("crate::") {
                let name: String = line[at + "crate::".len()..]
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                // A grouped import, `crate::{a, b}`, always fails this check, because the check
                // would not see the names in it: `name` is empty for it.
                if !may.contains(&name.as_str()) {
                    found(number, line.trim());
                }
            }
        }
    });
}

/// What the simulator may use of the library, besides the version of its build.
const SIMULATED: &[&str] = &["base", "time", "engine", "service", "raft"];

#[test]
fn the_simulator_knows_no_front_end() {
    none("the simulator uses the engine and its nodes only", |source, found| {
        for (number, line) in source.code().filter(|_| source.is_in(SIMULATOR)) {
            for (at, _) in line.match_indices("latchfs::") {
                let name = &line[at + "latchfs::".len()..];
                let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                if !SIMULATED.contains(&name.unwrap_or_default()) {
                    found(number, line.trim());
                }
            }
        }
    });
}

/// Fails unless a crate has `modules_min` modules, of which `upward_max` imports go against the
/// reading order.
fn check_order(crate_root: &str, modules_min: usize, upward_max: usize) {
    let sources = sources();
    let own = sources.iter().filter_map(|s| Some((s.path.strip_prefix(crate_root)?, &*s.text)));
    let graph = ModuleGraph::read(own);
    assert!(graph.modules() > modules_min, "{} modules", graph.modules());
    let upward = graph.upward();
    assert!(upward.len() <= upward_max, "against the reading order: {upward:#?}");
}

#[test]
fn modules_of_the_simulator_are_read_in_order() {
    check_order(SIMULATOR, 15, SIM_UPWARD_ARROWS_MAX);
}

#[test]
fn modules_of_the_lower_crates_are_read_in_order() {
    for (crate_root, upward_max) in LOWER_CRATES {
        check_order(crate_root, 2, *upward_max);
    }
}

#[test]
fn modules_are_read_in_order() {
    let sources = sources();
    let is_lower = |source: &&Source| LOWER_CRATES.iter().any(|(root, _)| source.is_in(root));
    let own = sources.iter().filter(|source| !is_lower(source));
    let own = own.filter_map(|s| Some((s.path.strip_prefix("src/")?, &*s.text)));
    let graph = ModuleGraph::read(own);
    assert!(graph.modules() > 300, "{} modules", graph.modules());
    let upward = graph.upward();
    assert!(upward.len() <= UPWARD_ARROWS_MAX, "against the reading order: {upward:#?}");
    let of_fuse = upward.iter().filter(|arrow| arrow.starts_with("fuse/")).count();
    assert!(of_fuse <= FUSE_UPWARD_ARROWS_MAX, "against the reading order: {upward:#?}");
    let is_fuse = |circle: &&Vec<String>| circle.iter().any(|name| name.starts_with("fuse"));
    for circle in graph.circles().iter().filter(is_fuse) {
        assert!(circle.len() <= FUSE_CIRCLE_MAX, "files in a circle: {circle:#?}");
    }
}

#[test]
fn the_engine_imports_std_only() {
    let sources = sources();
    let own: Vec<_> = sources.iter().filter_map(|s| s.path.strip_prefix(ENGINE)).collect();
    none("the engine imports std and itself", |source, found| {
        for (number, line) in source.code().filter(|_| source.is_in(ENGINE)) {
            let Some(path) = line.trim_start().strip_prefix("use ") else { continue };
            let root = path.split("::").next().unwrap_or(path);
            let is_known = ["std", "core", "crate", "super", "self"].contains(&root);
            if !is_known && !own.contains(&format!("{root}.rs").as_str()) {
                found(number, line.trim());
            }
        }
        let outside = ["std::fs", "std::net", "std::thread", "std::io", "std::env", "log::"];
        for (number, line) in source.code().filter(|_| source.is_in(ENGINE)) {
            if source.path == ENGINE_TIME {
                continue;
            }
            if outside.iter().any(|name| line.contains(name) && has_word(line, name)) {
                found(number, line.trim());
            }
        }
    });
}

/// Crates, and for each the folders of the source tree whose files may name it.
const OWNED: &[(&str, &str)] = &[
    // The view alone uses the FUSE protocol; the other parts of a guard are tested without a mount.
    ("barrier", "src/barrier/test_markers.rs, src/guard/, src/cli/"),
    ("kernel", "src/holder_id.rs, src/fuse/, src/guard/view/, src/cli/"),
    ("clap", "src/cli/"),
    ("axum", "src/server/http/"),
    ("openraft", "src/raft/"),
    ("raft_log", "src/raft/"),
    ("hyper_util", "src/net/, src/server/http/, src/client/, src/raft/rpc/"),
    ("hyper", "src/net/, src/server/http/, src/client/, src/raft/rpc/"),
];

#[test]
fn suites_that_cargo_leaves_out_are_run_by_the_script() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("it is there");
    let script = read("contrib/test");
    let manifests = read("Cargo.toml") + &read("tests/sim/Cargo.toml");
    let suites = manifests.split("[[").filter(|part| part.contains("\ntest = false"));
    let names: Vec<_> = suites.filter_map(|part| part.split('"').nth(1)).collect();
    assert!(names.contains(&"mounted") && names.contains(&"cluster_seeds"), "{names:?}");
    for name in names {
        let is_run = script.lines().any(|line| !line.starts_with('#') && has_word(line, name));
        assert!(is_run, "contrib/test does not run {name}");
    }
}

#[test]
fn crates_have_one_owner() {
    none("clap is named in src/cli only, axum in src/server/http", |source, found| {
        for (number, line) in source.code().filter(|_| source.is_in("src/")) {
            for (name, folder) in OWNED {
                let path = format!("{name}::");
                let is_owner = folder.split(", ").any(|folder| source.is_in(folder));
                if has_word(line, name) && line.contains(&path) && !is_owner {
                    found(number, line.trim());
                }
            }
        }
    });
}

/// Terms of the field, each with the file that implements it. The term must occur in the name of
/// the file, in its header, or in the name of a type or function in it, so that a search for the
/// term finds the file.
const FIELD_WORDS: &[(&str, &str)] = &[
    ("heartbeat", "src/raft/rpc/network.rs"),
    ("keep-alive", "src/client/session_keep_alive.rs"),
    ("keep-alive", "src/server/http/handlers/sessions.rs"),
    ("partition", "tests/cluster/partitions.rs"),
    ("failover", "src/client/failover.rs"),
    ("retry", "src/client/request_pipeline.rs"),
    ("backoff", "src/client/request_pipeline.rs"),
    ("quorum", "src/raft/linearizable_read.rs"),
    ("latency", "src/raft/store/log.rs"),
    ("stale read", "src/service/paging.rs"),
    ("idempotency", "src/engine/values/idempotency.rs"),
    ("invalidation", "src/kernel/notifications.rs"),
    ("interrupts", "src/kernel/interrupts.rs"),
    ("deadlock", "src/fuse/posix_locks/table/engine_events.rs"),
    ("deadlock", "src/mutex/thread_ownership.rs"),
    ("fsync", "src/raft/store/log.rs"),
    ("learner", "src/raft/node/membership.rs"),
    ("back-pressure", "src/server/http/handlers/events.rs"),
    ("split brain", "tests/cluster/partitions.rs"),
    ("membership", "src/raft/node/membership.rs"),
];

/// Returns `text` in lower case, with hyphens and underscores replaced by spaces.
fn plain(text: &str) -> String {
    text.to_lowercase().replace(['-', '_'], " ")
}

/// Whether a line of source code belongs to a module header that contains `word`, or defines a type
/// or a function whose name contains `word`.
fn names_word(line: &str, word: &str) -> bool {
    if let Some(header) = line.strip_prefix("//!") {
        return plain(header).contains(word);
    }
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let kinds = ["fn", "struct", "enum", "trait", "type"];
    let mut defined = words.by_ref().skip_while(|word| ["const", "async"].contains(word));
    let is_definition = defined.next().is_some_and(|kind| kinds.contains(&kind));
    let name = defined.next().unwrap_or_default();
    let name = name.split(['(', '<', '{', ';', ':']).next().unwrap_or_default();
    // Type names are in camel case, without separators between words.
    is_definition && (plain(name).contains(word) || plain(name).contains(&word.replace(' ', "")))
}

#[test]
fn field_terms_are_named_where_they_are_implemented() {
    let sources = sources();
    for (word, path) in FIELD_WORDS {
        let source = sources.iter().find(|source| source.path == *path);
        let source = source.unwrap_or_else(|| panic!("'{word}': there is no {path}"));
        let file = path.rsplit('/').next().unwrap_or(path);
        let word = plain(word);
        let is_found = plain(file).contains(&word)
            || source.text.lines().any(|line| names_word(line.trim_start(), &word));
        assert!(is_found, "no header, type or function of {path} names '{word}'");
    }
}

#[test]
fn suites_include_no_module_of_another() {
    let path = concat!("#[path", " = \"../");
    none("what several suites use stands in tests/testing", |source, found| {
        for (number, line) in source.lines().filter(|_| source.is_in("tests/")) {
            if line.trim_start().starts_with(path) {
                found(number, line.trim());
            }
        }
    });
}

#[test]
fn unsafe_blocks_have_a_safety_comment() {
    none("each unsafe block has a SAFETY line right above", |source, found| {
        let lines: Vec<_> = source.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let is_block = line.contains(concat!("unsafe", " {"));
            let comment = lines[..index].iter().rev().take(6);
            if is_block && !comment.into_iter().any(|line| line.contains("// SAFETY: ")) {
                found(index + 1, line.trim());
            }
        }
    });
}

#[test]
fn sources_are_ascii() {
    none("the product's sources are ASCII", |source, found| {
        for (number, line) in source.product() {
            if !line.is_ascii() {
                found(number, line.trim());
            }
        }
    });
}
