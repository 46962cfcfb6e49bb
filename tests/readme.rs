//! README.md and the chapters of `contrib/doc` as printed: each document runs in a shell and an
//! empty directory of its own, and its `console` blocks must print what the document shows.
//!
//! In a `console` block, a line that begins with `$ ` or `# ` is a command, which lines that begin
//! with `> ` continue. The lines after it are its output; `[..]` stands for anything within a
//! line, and a line `[...]` for any lines. A block below `<!-- on NAME -->` is run on the machine
//! with this name (`tests/readme/machines.rs`). Other blocks are checked by their language:
//!
//! - `sh` and `bash`: never run, so `<!-- not run: WHY -->` must stand above the block.
//! - `rust`: the lines are part of the doc test of `src/mutex/mod.rs`, which `cargo test --doc`
//!   compiles.
//! - `ini`: the lines are part of a unit in `contrib/systemd`, which `systemd-analyze` verifies in
//!   `tests/served/http/units.rs`.
//! - `cron`: without the time and the user, the command is one that a `console` block runs.
//! - `text`: a picture or a table, not checked here.
//!
//! A block in another language fails: nothing would notice when it is wrong. One command is
//! replaced: `latchfs mount ./locks` stays in the foreground, so the test runs the
//! program under test in the background instead. Each shell has a network namespace of its own, so
//! two documents may use one port at the same time.

#[path = "readme/markdown.rs"]
mod markdown;

#[path = "readme/machines.rs"]
mod machines;

use machines::Machines;
use markdown::{Block, anchors, blocks, code_spans, links};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// The first command of the README, and the command that the test runs in its place.
const MOUNT: &str = "latchfs mount ./locks";
const MOUNT_HERE: &str = "latchfs mount ./locks --background --state ./.state";
/// Timeout of a command of a document, which only a hang exceeds.
const LIMIT: Duration = Duration::from_secs(60);
/// The maximum number of lines of the README: three screens of text.
const README_LINES_MAX: usize = 150;
/// The maximum number of lines of a tutorial, which a newcomer types in one sitting.
const TUTORIAL_LINES_MAX: usize = 60;
/// The word in place of the address of the repository, which its publisher fills in.
const ADDRESS: &str = "ADDRESS_OF_THE_REPOSITORY";
/// The maximum number of blocks of one document that are not run.
const NOT_RUN_MAX: usize = 3;

/// Defines one test for each document, so that a failure names the document. The test
/// `each_document_is_listed` compares the list of tests with the files in `contrib/doc`.
macro_rules! documents {
    ($($test:ident: $path:literal,)*) => {
        const DOCUMENTS: &[&str] = &[$($path),*];

        mod as_printed {
            $(
                #[test]
                fn $test() {
                    super::run_document($path);
                }
            )*
        }
    };
}

documents! {
    readme: "README.md",
    agents: "contrib/doc/agents.md",
    alerts: "contrib/doc/alerts.md",
    architecture: "contrib/doc/architecture.md",
    benchmarks: "contrib/doc/benchmarks/README.md",
    cluster: "contrib/doc/cluster.md",
    commands: "contrib/doc/commands.md",
    comparison: "contrib/doc/comparison.md",
    contributing: "contrib/doc/contributing.md",
    doctor: "contrib/doc/doctor.md",
    files: "contrib/doc/files.md",
    glossary: "contrib/doc/glossary.md",
    guarantees: "contrib/doc/guarantees.md",
    guard_explained: "contrib/doc/guard-explained.md",
    guard: "contrib/doc/guard.md",
    how_to_ci: "contrib/doc/how-to-ci.md",
    how_to_folders: "contrib/doc/how-to-folders.md",
    how_to_jobs: "contrib/doc/how-to-jobs.md",
    http: "contrib/doc/http.md",
    introduction: "contrib/doc/introduction.md",
    library: "contrib/doc/library.md",
    limits: "contrib/doc/limits.md",
    line_protocol: "contrib/doc/line-protocol.md",
    lock_records: "contrib/doc/lock-records.md",
    logs: "contrib/doc/logs.md",
    operations: "contrib/doc/operations.md",
    permissions: "contrib/doc/permissions.md",
    rules: "contrib/doc/rules.md",
    security: "contrib/doc/security.md",
    seeds: "contrib/doc/seeds.md",
    several_machines: "contrib/doc/several-machines.md",
    snapshots: "contrib/doc/snapshots.md",
    sync: "contrib/doc/sync.md",
    tutorial_many_hosts: "contrib/doc/tutorial-many-hosts.md",
    tutorial_one_machine: "contrib/doc/tutorial-one-machine.md",
    tutorial_two_laptops: "contrib/doc/tutorial-two-laptops.md",
    two_machines: "contrib/doc/two-machines.md",
}

/// A command in a document, and the output that it should print.
#[derive(Debug, PartialEq)]
struct Step {
    line: usize,
    /// The machine on which it is run, if not on that of the document.
    machine: Option<String>,
    command: String,
    output: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the commands of the `console` blocks that are not marked as not run.
fn steps(blocks: &[Block]) -> Vec<Step> {
    let mut steps = vec![];
    for block in blocks.iter().filter(|block| block.language == "console" && !block.not_run) {
        let first = steps.len();
        for (number, line) in &block.lines {
            add(&mut steps, first, *number, line);
            if let Some(step) = steps.last_mut() {
                step.machine.clone_from(&block.machine);
            }
        }
    }
    steps
}

fn add(steps: &mut Vec<Step>, first: usize, number: usize, line: &str) {
    if let Some(command) = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")) {
        let command = command.to_owned();
        return steps.push(Step { line: number, machine: None, command, output: vec![] });
    }
    let step = steps.get_mut(first..).and_then(<[_]>::last_mut);
    let step = step.unwrap_or_else(|| panic!("line {number}: no command yet"));
    match line.strip_prefix("> ") {
        Some(more) if step.output.is_empty() => {
            write!(step.command, "\n{more}").expect("memory suffices");
        }
        _ => step.output.push(line.to_owned()),
    }
}

/// Whether `line` matches `pattern`, in which `[..]` stands for anything.
fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.trim_end().split("[..]");
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = line.trim_end().strip_prefix(first) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether output is as a document shows it: a line `[...]` stands for any lines.
fn are_alike(patterns: &[String], seen: &[String]) -> bool {
    match patterns.split_first() {
        None => seen.is_empty(),
        Some((any, rest)) if any == "[...]" => {
            (0..=seen.len()).any(|skipped| are_alike(rest, &seen[skipped..]))
        }
        Some((first, rest)) => seen
            .split_first()
            .is_some_and(|(line, more)| fits(first, line) && are_alike(rest, more)),
    }
}

/// Unmounts the latchfs mounts of other programs in the mount namespace of the shell, so that the
/// document does not see them.
const UNMOUNT_OTHERS: &str = "for dir in $(grep latchfs /proc/self/mountinfo | cut -d ' ' -f 5); \
                              do umount -l $dir; done";

/// Gives the document own locks that no other document sees: their place is below the home that
/// the user database names.
const OWN_LOCKS: &str = "home=$(getent passwd \"$(id -u)\" | cut -d : -f 6); \
                         mkdir -p \"$home/.local/state\" && \
                         mount -t tmpfs own \"$home/.local/state\"; unset home";

/// A shell that runs all commands of a document, in a directory and in namespaces of its own: it
/// sees no other mount and no other listener, and all processes that it started end with it.
struct Shell {
    child: Child,
    lines: Receiver<String>,
    dir: PathBuf,
}

impl Shell {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("latchfs-readme-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).expect("a fresh name");
        let own = Path::new(testing::latchfs_path()).parent().expect("it is a file").display();
        let path = std::env::var("PATH").expect("there is one");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
            .args(["--net", "--mount-proc", "sh"])
            .current_dir(&dir)
            .env("PATH", format!("{own}:{path}"))
            .env("LC_ALL", "C.UTF-8")
            .env_remove("LATCHFS_DIR")
            .env_remove("LATCHFS_SERVER");
        let mut shell = Self::start(command, dir);
        assert_eq!(shell.run(UNMOUNT_OTHERS), [""; 0], "unmounting in the namespace");
        assert_eq!(shell.run(OWN_LOCKS), [""; 0], "a place for own locks");
        assert_eq!(shell.run("ip link set lo up"), [""; 0], "a loopback of its own");
        shell
    }

    /// Starts a shell by `command`. Its directory is removed at its end.
    fn start(mut command: Command, dir: PathBuf) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("there is a shell");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // The send fails only after a failure of the test, when the receiver is gone.
                let _gone = sender.send(line);
            }
        });
        let mut shell = Self { child, lines, dir };
        shell.run("exec 2>&1");
        shell
    }

    /// Runs a command in the shell, and returns the lines that it prints to standard output and
    /// standard error.
    fn run(&mut self, command: &str) -> Vec<String> {
        const END: &str = "=== end of the command ===";
        let input = self.child.stdin.as_mut().expect("piped");
        // The output may lack a newline at its end, so one is printed before the end mark.
        writeln!(input, "{command}\necho; echo '{END}'").expect("the shell lives");
        let mut output = vec![];
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) if line == END => break,
                Ok(line) => output.push(line),
                Err(error) => panic!("{command:?} does not end ({error}): {output:#?}"),
            }
        }
        if output.last().is_some_and(String::is_empty) {
            output.pop();
        }
        output
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // When the first process of the pid namespace is killed, all others end, and so do their
        // mounts.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        testing::remove_tree(&self.dir);
    }
}

fn run_document(path: &str) {
    let blocks = blocks(&read(path));
    let skipped = blocks.iter().filter(|block| block.not_run).count();
    assert!(skipped <= NOT_RUN_MAX, "{path}: {skipped} blocks are not run");
    let steps = steps(&blocks);
    for block in &blocks {
        if let Err(why) = check_block(block, &steps) {
            panic!("{path}:{}: {why}", block.line);
        }
    }
    if steps.is_empty() {
        return;
    }
    let mut shell = Shell::new();
    let mut machines = None;
    for step in &steps {
        let seen = match (&step.machine, step.command == MOUNT) {
            (Some(_), _) => machines.get_or_insert_with(|| Machines::of(&steps)).run(step),
            (None, true) => shell.run(MOUNT_HERE),
            (None, false) => shell.run(&step.command),
        };
        assert!(
            are_alike(&step.output, &seen),
            "{path}:{}: $ {}\nsays {:#?}\nprints {:#?}",
            step.line,
            step.command,
            step.output,
            seen
        );
    }
}

/// Checks that a block is run, or that it is compared with something that is run or compiled.
fn check_block(block: &Block, steps: &[Step]) -> Result<(), String> {
    match block.language.as_str() {
        _ if block.not_run => Ok(()),
        "console" | "text" => Ok(()),
        "rust" => check_rust(block),
        "ini" => check_unit(block),
        "cron" => check_cron(block, steps),
        "sh" | "bash" => Err("a script is neither run nor marked 'not run'".to_owned()),
        other => Err(format!("no test reads a block in the language '{other}'")),
    }
}

/// Checks that `text` contains the lines of `block` in the same order.
fn is_part_of(block: &Block, text: &str) -> Result<(), String> {
    let mut lines = text.lines().map(str::trim_end);
    for (number, line) in &block.lines {
        if !line.is_empty() && !lines.any(|other| other == line) {
            return Err(format!("line {number} is not there, or not in this order: {line}"));
        }
    }
    Ok(())
}

/// Checks that a `rust` block is part of the doc test, which may have other comments than the
/// block.
fn check_rust(block: &Block) -> Result<(), String> {
    let code = |line: &str| line.split(" // ").next().unwrap_or("").trim_end().to_owned();
    let source = read("src/mutex/mod.rs");
    let example = source.lines().filter_map(|line| line.strip_prefix("//! ")).map(code);
    let lines = block.lines.iter().map(|(number, line)| (*number, code(line))).collect();
    let (language, machine) = (block.language.clone(), None);
    let block = Block { language, machine, lines, ..*block };
    is_part_of(&block, &example.collect::<Vec<_>>().join("\n"))
}

fn check_unit(block: &Block) -> Result<(), String> {
    let units = fs::read_dir(root().join("contrib/systemd")).expect("there are units");
    let texts = units
        .map(|unit| fs::read_to_string(unit.expect("an entry").path()).expect("a unit is text"));
    let results: Vec<_> = texts.map(|text| is_part_of(block, &text)).collect();
    if results.iter().any(Result::is_ok) { Ok(()) } else { results.into_iter().collect() }
}

fn check_cron(block: &Block, steps: &[Step]) -> Result<(), String> {
    let is_setting = |line: &str| line.split(' ').next().is_some_and(|word| word.contains('='));
    for (number, line) in block.lines.iter().filter(|(_, line)| !is_setting(line)) {
        // A line of a crontab has five fields of a time, the user, and the command, in which cron
        // needs a backslash before each '%'.
        let command = line.splitn(7, ' ').nth(6).unwrap_or("").replace("\\%", "%");
        if !steps.iter().any(|step| step.command == command) {
            return Err(format!("line {number}: no console block runs {command:?}"));
        }
    }
    Ok(())
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// Returns the paths of the chapters in `contrib/doc`: its texts, and the README.md of a folder.
fn chapters() -> Vec<String> {
    let dir = root().join("contrib/doc");
    let entries = fs::read_dir(&dir).expect("there are documents");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("a name in UTF-8"));
    let paths =
        names.map(|name| if dir.join(&name).is_dir() { format!("{name}/README.md") } else { name });
    let mut paths: Vec<_> = paths.filter(|path| has_extension(path, "md")).collect();
    paths.sort();
    paths
}

#[test]
fn each_document_is_listed() {
    let chapters = chapters();
    let there = chapters.iter().filter(|name| *name != "SUMMARY.md");
    let mut there: Vec<_> = there.map(|name| format!("contrib/doc/{name}")).collect();
    there.insert(0, "README.md".to_owned());
    assert_eq!(DOCUMENTS, there, "the list of documents in tests/readme.rs");
}

#[test]
fn readme_shows_how_to_begin() {
    let text = read("README.md");
    assert!(text.lines().count() <= README_LINES_MAX, "details belong in contrib/doc");
    for chapter in chapters().iter().filter(|name| *name != "SUMMARY.md") {
        let link = format!("contrib/doc/{chapter}");
        assert!(links(&text).iter().any(|(_, to)| *to == link), "the README has no link to {link}");
    }
    let steps = steps(&blocks(&text));
    assert!(steps.len() >= 5, "the README shows how it works: {} commands", steps.len());
    assert!(steps.iter().any(|step| step.command == MOUNT), "the README says '{MOUNT}'");
}

#[test]
fn tutorials_are_short_and_run_as_printed() {
    let tutorials: Vec<_> = DOCUMENTS.iter().filter(|path| path.contains("/tutorial-")).collect();
    assert_eq!(tutorials.len(), 3, "one for each way to begin");
    for path in tutorials {
        let text = read(path);
        let lines = text.lines().count();
        assert!(lines <= TUTORIAL_LINES_MAX, "{path} has {lines} lines");
        let blocks = blocks(&text);
        assert!(blocks.iter().all(|block| !block.not_run), "{path}: a block is not run");
        assert!(steps(&blocks).len() >= 5, "{path} has few commands");
    }
}

/// The README alone has a place for the address of the repository.
#[test]
fn address_of_the_repository_stands_at_one_place() {
    for path in DOCUMENTS {
        let count = read(path).matches(ADDRESS).count();
        assert_eq!(count, usize::from(*path == "README.md"), "{path}: {ADDRESS}");
    }
}

#[test]
fn links_lead_somewhere() {
    for path in DOCUMENTS {
        let text = read(path);
        let dir = root().join(path).parent().expect("a document has a directory").to_owned();
        for (line, link) in links(&text) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { root().join(path) } else { dir.join(file) };
            assert!(target.exists(), "{path}:{line}: there is no {link}");
            assert!(
                *path == "README.md" || !file.contains(".."),
                "{path}:{line}: {link} leaves the book; name the file without a link"
            );
            let known = anchor.is_empty()
                || anchors(&fs::read_to_string(&target).expect("text")).iter().any(|a| a == anchor);
            assert!(known, "{path}:{line}: no heading has the anchor {link}");
        }
    }
}

/// Returns the paths and the contents of all sources except this file.
fn sources() -> Vec<(String, String)> {
    let mut dirs = vec![root().join("src"), root().join("tests")];
    let mut sources = vec![];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory of the repository") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(root()).expect("it is below").display().to_string();
            let is_source = has_extension(&name, "rs") || has_extension(&name, "story");
            if path.is_dir() {
                dirs.push(path);
            } else if is_source && name != "tests/readme.rs" {
                sources.push((name, fs::read_to_string(&path).expect("text")));
            }
        }
    }
    sources
}

/// Whether a code span in a document looks like the path of a source file or folder, the name of a
/// test or that of a planted bug, but the repository has no such thing.
fn is_dangling(span: &str, sources: &[(String, String)]) -> bool {
    let is_word = span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let is_test = is_word && span.matches('_').count() >= 3 && !span.contains("latchfs");
    if is_test {
        let head = format!("fn {span}(");
        return !sources.iter().any(|(_, text)| text.contains(&head));
    }
    if span.contains('/') && root().join(span).exists() {
        return false;
    }
    if has_extension(span, "rs") || has_extension(span, "story") {
        let end = format!("/{span}");
        return !sources.iter().any(|(path, _)| path == span || path.ends_with(&end));
    }
    let is_path = ["src/", "tests/", "contrib/"].iter().any(|dir| span.starts_with(dir));
    is_path && !span.contains(' ') && !root().join(span).exists()
}

#[test]
fn code_that_is_named_exists() {
    let sources = sources();
    for path in DOCUMENTS {
        for (line, span) in code_spans(&read(path)) {
            assert!(!is_dangling(span, &sources), "{path}:{line}: there is no {span}");
        }
    }
    assert!(is_dangling("src/nothing.rs", &sources) && is_dangling("no_such_test_here", &sources));
    assert!(!is_dangling("src/engine/", &sources) && !is_dangling("tokens.story", &sources));
}

#[test]
fn rules_and_guarantees_that_code_cites_are_defined() {
    let (rules, guarantees) = (read("contrib/doc/rules.md"), read("contrib/doc/guarantees.md"));
    let is_defined = |text: &str, heading: &str| text.lines().any(|line| line.starts_with(heading));
    for number in 1..=11 {
        assert!(is_defined(&rules, &format!("## Rule {number}")), "rule {number}");
    }
    for number in 1..=12 {
        assert!(is_defined(&guarantees, &format!("## G{number}: ")), "G{number}");
    }
    for number in 1..=7 {
        assert!(is_defined(&guarantees, &format!("### GF{number}: ")), "GF{number}");
    }
}

/// Each part of a guarantee of guarded folders stands in a row of a table, beside the tests that
/// show it.
#[test]
fn each_part_of_a_guarantee_of_guarded_folders_names_its_tests() {
    let guarantees = read("contrib/doc/guarantees.md");
    let mut rows = 0;
    for section in guarantees.split("\n### GF").skip(1) {
        let section = section.split("\n## ").next().expect("a section");
        let head = section.lines().next().expect("a heading");
        let parts = section.lines().filter(|line| line.starts_with("| "));
        // The first two lines of a table are its head.
        let parts: Vec<_> = parts.filter(|line| !line.starts_with("| part ")).collect();
        assert!(!parts.is_empty(), "GF{head}: no part names a test");
        for part in parts {
            let tests = part.split(" | ").nth(1).unwrap_or_default();
            let is_test = |name: &&str| name.matches('_').count() >= 3;
            let count = tests.split('`').filter(is_test).count();
            assert!(count > 0, "GF{head}: no test shows: {part}");
            rows += 1;
        }
    }
    assert!(rows >= 25, "{rows} rows");
}

/// The pictures of terminals are what `contrib/terminal-picture` makes when it runs its commands
/// again, in namespaces of their own.
#[test]
fn terminal_picture_is_current() {
    let mut shell = Shell::new();
    let script = root().join("contrib/terminal-picture");
    let output = shell.run(&format!("{} --check; echo \"exit $?\"", script.display()));
    assert_eq!(output, ["exit 0"], "the session is not as in the picture");
}

#[test]
fn moving_picture_suits_every_reader() {
    let picture = read("contrib/doc/run.svg");
    assert!(picture.len() < 40_000, "{} bytes", picture.len());
    for query in ["prefers-color-scheme:light", "prefers-reduced-motion:no-preference"] {
        assert!(picture.contains(query), "it does not heed {query}");
    }
    assert!(!picture.contains("<script"), "code hosts show no picture with a script");
}

/// The page of benchmarks and its plots are what `contrib/lockbench` makes of the figures.
#[test]
fn benchmarks_are_current() {
    let mut shell = Shell::new();
    let script = format!(
        "cp {dir}/results.json . && {root}/contrib/lockbench --render --out . && \
         for file in *; do cmp $file {dir}/$file; done; echo \"exit $?\"",
        dir = root().join("contrib/doc/benchmarks").display(),
        root = root().display()
    );
    assert_eq!(shell.run(&script), ["exit 0"], "run 'contrib/lockbench --render'");
}

#[test]
fn each_chapter_is_in_the_book() {
    let summary = read("contrib/doc/SUMMARY.md");
    let mut listed: Vec<_> = links(&summary).into_iter().map(|(_, link)| link.to_owned()).collect();
    listed.push("SUMMARY.md".to_owned());
    listed.sort();
    assert_eq!(listed, chapters(), "contrib/doc/SUMMARY.md lists each chapter once");
}

#[test]
fn blocks_are_read_as_written() {
    let text = "text\n```console\n$ one \\\n> two\nout\n\n$ three\n```\n\
                <!-- not run: no -->\n```console\n$ four\n```\n```\n$ five\n```\n\
                <!-- on box -->\n```console\n$ six\n```\n";
    let blocks = blocks(text);
    let steps = steps(&blocks);
    let said: Vec<_> = steps.iter().map(|step| (step.line, step.command.as_str())).collect();
    assert_eq!(said, [(3, "one \\\ntwo"), (7, "three"), (18, "six")]);
    let machines: Vec<_> = steps.iter().map(|step| step.machine.as_deref()).collect();
    assert_eq!(machines, [None, None, Some("box")]);
    assert_eq!(steps[0].output, ["out", ""]);
    let not_run: Vec<_> = blocks.iter().map(|block| block.not_run).collect();
    assert_eq!(not_run, [false, true, false, false]);
}

#[test]
fn each_language_has_a_check() {
    let check = |text: &str| {
        let blocks = blocks(text);
        let steps = steps(&blocks);
        blocks.iter().try_for_each(|block| check_block(block, &steps))
    };
    assert!(check("```sh\ntrue\n```\n").is_err(), "a script that nothing runs");
    assert!(check("<!-- not run: three boxes -->\n```sh\ntrue\n```\n").is_ok());
    assert!(check("```yaml\na: b\n```\n").is_err(), "a language without a check");
    assert!(check("```rust\nlet x = 1;\n```\n").is_err(), "not in the doc test");
    assert!(check("```rust\nlet build = Mutex::open(\"/locks\", \"build\")?;\n```\n").is_ok());
    assert!(check("```ini\nType=notify\n```\n").is_ok());
    assert!(check("```ini\nType=simple\n```\n").is_err(), "in no unit");
    let cron = "```cron\nPATH=/bin\n1 2 * * * root echo \\%\n```\n";
    assert!(check(cron).is_err(), "no console block runs it");
    assert!(check(&format!("```console\n$ echo %\n%\n```\n{cron}")).is_ok());
}

#[test]
fn anything_fits_the_dots_only() {
    assert!(fits("held by [..] for [..]s more", "held by laptop1:root for 24s more"));
    assert!(fits("[..]", "") && fits("a[..]", "a") && fits("[..]a", "ba") && fits("", ""));
    assert!(!fits("a", "ab") && !fits("a[..]c", "ab") && !fits("", "a"));
    assert!(!fits("ab[..]bc", "abc"), "parts do not overlap");
    let alike = |patterns: &[&str], seen: &[&str]| {
        let [patterns, seen] = [patterns, seen]
            .map(|lines| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
        are_alike(&patterns, &seen)
    };
    assert!(alike(&["a", "[...]", "d"], &["a", "b", "c", "d"]) && alike(&["[...]"], &[]));
    assert!(!alike(&["[...]", "d"], &["d", "e"]) && !alike(&["a"], &[]) && !alike(&[], &["a"]));
}
