//! The ways in which programs save, by the system calls that strace shows: the programs that the
//! tests run differ in more than their names.
use crate::programs::{EDITORS, Program, TOOLS, make_input, save};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use testing::{Guard, Scratch, shell};

/// The programs whose system calls are looked at.
const TRACED: [&str; 14] = [
    "vim",
    "sed -i",
    "cp",
    "mv",
    "ln",
    "append",
    "git",
    "python",
    "python mmap",
    "dd",
    "dd in place",
    "install",
    "sort",
    "truncate",
];

/// The system calls that a save can consist of.
const CALLS: &str = "creat,open,openat,write,writev,pwrite64,pwritev,ftruncate,truncate,mmap,\
                     copy_file_range,sendfile,fsync,fdatasync,rename,renameat,renameat2,link,\
                     linkat,unlink,unlinkat";

/// A way to give a file its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WayToSave {
    /// `O_TRUNC`, and writes.
    Truncate,
    /// `O_TRUNC`, writes, and fsync.
    TruncateAndSync,
    /// Opens without `O_TRUNC`, and empties the file by ftruncate before the first write.
    EmptyOpenFile,
    /// `O_CREAT | O_EXCL` under the final name.
    CreateNew,
    /// The old file is unlinked first.
    UnlinkAndCreate,
    /// The old file is renamed first, to become a backup.
    RenameAwayAndCreate,
    /// The kernel copies the content: `copy_file_range` or sendfile.
    CopyInKernel,
    /// `O_APPEND`.
    Append,
    /// Writes at an offset of a file that keeps its other content.
    WriteInPlace,
    /// Stores to a shared mapping.
    SharedMapping,
    /// ftruncate alone.
    Resize,
    /// Another name is written, and renamed.
    RenameOver,
    /// Another name is written, synced, and renamed.
    SyncAndRenameOver,
    /// Another name is written, gets the final name by link, and is unlinked.
    LinkTemporary,
    /// A file that the program has not written is renamed.
    RenameExisting,
    /// A file that the program has not written gets a second name.
    LinkExisting,
}

/// How a program has opened a file for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteOpen {
    Truncated,
    Exclusive,
    Append,
    Other,
}

/// The calls about one path until now.
#[derive(Debug, Default, Clone)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
struct Calls {
    was_unlinked: bool,
    was_renamed: bool,
    open: Option<WriteOpen>,
    was_emptied: bool,
    was_resized: bool,
    was_written: bool,
    was_mapped: bool,
    was_copied: bool,
    was_synced: bool,
}

impl Calls {
    fn has_content(&self) -> bool {
        self.was_written || self.was_mapped || self.was_copied
    }

    /// Returns the way of a file that keeps the name under which it was written.
    fn way(&self) -> Option<WayToSave> {
        let open = self.open?;
        if !self.has_content() {
            return (self.was_resized && open == WriteOpen::Other).then_some(WayToSave::Resize);
        }
        Some(match open {
            _ if self.was_mapped => WayToSave::SharedMapping,
            WriteOpen::Append => WayToSave::Append,
            _ if self.was_unlinked => WayToSave::UnlinkAndCreate,
            _ if self.was_renamed => WayToSave::RenameAwayAndCreate,
            _ if self.was_copied => WayToSave::CopyInKernel,
            WriteOpen::Exclusive => WayToSave::CreateNew,
            WriteOpen::Truncated if self.was_synced => WayToSave::TruncateAndSync,
            WriteOpen::Truncated => WayToSave::Truncate,
            WriteOpen::Other if self.was_emptied => WayToSave::EmptyOpenFile,
            WriteOpen::Other => WayToSave::WriteInPlace,
        })
    }
}

/// Returns whole lines of a trace without the ids of processes: strace splits a call in two lines
/// if another process ran meanwhile.
fn whole_lines(trace: &str) -> Vec<String> {
    let mut unfinished: BTreeMap<&str, &str> = BTreeMap::new();
    let mut lines = Vec::new();
    for line in trace.lines() {
        let Some((pid, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if let Some(begin) = call.strip_suffix(" <unfinished ...>") {
            unfinished.insert(pid, begin);
        } else if let Some((_, end)) =
            call.strip_prefix("<... ").and_then(|c| c.split_once(" resumed>"))
        {
            lines.push(format!("{}{end}", unfinished.remove(pid).unwrap_or_default()));
        } else {
            lines.push(call.to_owned());
        }
    }
    lines
}

/// Returns the path that `strace -y` shows beside a descriptor: `3</tmp/data>`.
fn path_of(descriptor: &str) -> PathBuf {
    let path = descriptor.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    PathBuf::from(path.map_or("", |(path, _)| path))
}

/// Returns the path of a name as a call gives it, relative to `dir`.
fn path_in(dir: &Path, name: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in dir.join(name.trim_matches('"')).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path
}

/// The ways of the files below a directory, in the order of the calls.
struct Classifier<'a> {
    dir: &'a Path,
    calls: BTreeMap<PathBuf, Calls>,
    ways: BTreeSet<WayToSave>,
}

impl Classifier<'_> {
    fn of(&mut self, path: &Path) -> &mut Calls {
        self.calls.entry(path.to_owned()).or_default()
    }

    fn is_open(&self, path: &Path) -> bool {
        self.calls.get(path).is_some_and(|calls| calls.open.is_some())
    }

    fn opened(&mut self, path: &Path, flags: &str) {
        if !flags.contains("O_WRONLY") && !flags.contains("O_RDWR") {
            return;
        }
        self.end(path);
        let has = |flag| flags.split('|').any(|part| part == flag);
        let calls = self.of(path);
        calls.open = Some(match () {
            () if has("O_EXCL") => WriteOpen::Exclusive,
            () if has("O_TRUNC") => WriteOpen::Truncated,
            () if has("O_APPEND") => WriteOpen::Append,
            () => WriteOpen::Other,
        });
    }

    /// Ends a save under the name that the file has.
    fn end(&mut self, path: &Path) {
        if !self.is_open(path) {
            return;
        }
        if let Some(way) = self.calls.remove(path).and_then(|calls| calls.way())
            && path.starts_with(self.dir)
        {
            self.ways.insert(way);
        }
    }

    fn named(&mut self, from: &Path, to: &Path, is_link: bool) {
        let calls = self.calls.get(from).cloned().unwrap_or_default();
        let way = match (calls.has_content(), is_link) {
            (false, false) => WayToSave::RenameExisting,
            (false, true) => WayToSave::LinkExisting,
            (true, true) => WayToSave::LinkTemporary,
            (true, false) if calls.was_synced => WayToSave::SyncAndRenameOver,
            (true, false) => WayToSave::RenameOver,
        };
        if to.starts_with(self.dir) {
            self.ways.insert(way);
        }
        if !is_link {
            self.calls.remove(from);
            self.of(from).was_renamed = true;
        }
    }

    fn line(&mut self, line: &str) {
        let Some((name, rest)) = line.split_once('(') else { return };
        let Some((arguments, result)) = rest.rsplit_once(" = ") else { return };
        if result.starts_with('-') || result.starts_with('?') {
            return;
        }
        let arguments: Vec<_> =
            arguments.trim_end().trim_end_matches(')').split(", ").map(str::trim).collect();
        let argument = |index: usize| *arguments.get(index).unwrap_or(&"");
        let at = |index: usize| path_in(&path_of(argument(index)), argument(index + 1));
        let here = |index: usize| path_in(self.dir, argument(index));
        match name {
            "creat" => self.opened(&here(0), "O_WRONLY|O_TRUNC"),
            "open" => self.opened(&here(0), argument(1)),
            "openat" => self.opened(&at(0), argument(2)),
            "write" | "writev" | "pwrite64" | "pwritev" => {
                self.of(&path_of(argument(0))).was_written = true;
            }
            "sendfile" => self.of(&path_of(argument(0))).was_copied = true,
            "copy_file_range" => self.of(&path_of(argument(2))).was_copied = true,
            "mmap" if argument(2).contains("PROT_WRITE") && argument(3).contains("MAP_SHARED") => {
                self.of(&path_of(argument(4))).was_mapped = true;
            }
            "ftruncate" => {
                let calls = self.of(&path_of(argument(0)));
                calls.was_emptied |= argument(1) == "0" && !calls.has_content();
                calls.was_resized = true;
            }
            "fsync" | "fdatasync" => self.of(&path_of(argument(0))).was_synced = true,
            "rename" => self.named(&here(0), &here(1), false),
            "renameat" | "renameat2" => self.named(&at(0), &at(2), false),
            "link" => self.named(&here(0), &here(1), true),
            "linkat" => self.named(&at(0), &at(2), true),
            "unlink" => self.unlinked(&here(0)),
            "unlinkat" => self.unlinked(&at(0)),
            _ => {}
        }
    }

    fn unlinked(&mut self, path: &Path) {
        self.calls.remove(path);
        self.of(path).was_unlinked = true;
    }
}

/// Returns the ways in which files below `dir` were saved, by a trace of `strace -f -y`.
fn ways(dir: &Path, trace: &str) -> BTreeSet<WayToSave> {
    let mut classifier = Classifier { dir, calls: BTreeMap::new(), ways: BTreeSet::new() };
    for line in whole_lines(trace) {
        classifier.line(&line);
    }
    let left: Vec<_> = classifier.calls.keys().cloned().collect();
    for path in left {
        classifier.end(&path);
    }
    classifier.ways
}

/// Runs the commands of a program under strace in a view. Returns the ways in which it saves.
fn trace(program: &Program, view: &Path, scratch: &Scratch) -> BTreeSet<WayToSave> {
    shell(view, "find . -mindepth 1 -delete; cp ../in/data data").ok();
    let (script, log) = (scratch.join("out/script"), scratch.join("out/trace"));
    let mut seen = BTreeSet::new();
    for command in program.1 {
        fs::write(scratch.join("in/moving"), "moving\n").expect("written");
        fs::write(&script, command).expect("written");
        let strace = format!(
            "strace -f -y -qq -s 0 -e signal=none -e trace={CALLS} -o {} sh -e {}",
            log.display(),
            script.display()
        );
        save(view, scratch, "traced", "", &strace);
        seen.extend(ways(view, &fs::read_to_string(&log).expect("strace wrote it")));
    }
    seen
}

#[test]
fn programs_save_in_ten_ways_by_their_system_calls() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    for dir in ["in", "out"] {
        fs::create_dir(scratch.join(dir)).expect("made");
    }
    make_input(&scratch.join("in"));
    let guard = Guard::start(&scratch, "view", &[]);
    let mut all = BTreeSet::new();
    for name in TRACED {
        let program = EDITORS.iter().chain(TOOLS).find(|program| program.0 == name);
        let seen = trace(program.expect("it is in one of the lists"), &guard.view, &scratch);
        println!("{name}: {seen:?}");
        assert!(!seen.is_empty(), "no save of {name} was seen");
        all.extend(seen);
    }
    assert!(all.len() >= 10, "only {} ways to save: {all:?}", all.len());
}

#[test]
fn a_trace_shows_how_a_file_got_its_content() {
    let of = |trace: &str| ways(Path::new("/v"), trace).into_iter().collect::<Vec<_>>();
    let open = |flags: &str, name: &str| {
        format!("1 openat(AT_FDCWD</v>, \"{name}\", {flags}, 0666) = 3</v/{name}>\n")
    };
    let write = "1 write(3</v/a>, \"\"..., 9) = 9\n";
    let cases = [
        (format!("{}{write}", open("O_WRONLY|O_CREAT|O_TRUNC", "a")), vec![WayToSave::Truncate]),
        (format!("{}{write}", open("O_WRONLY|O_APPEND", "a")), vec![WayToSave::Append]),
        (format!("{}{write}", open("O_RDWR", "a")), vec![WayToSave::WriteInPlace]),
        (open("O_RDWR", "a"), vec![]),
        (open("O_RDONLY", "a") + write, vec![]),
        (
            open("O_RDWR", "a") + "1 ftruncate(3</v/a>, 0) = 0\n" + write,
            vec![WayToSave::EmptyOpenFile],
        ),
        (
            open("O_RDWR", "a") + write + "1 ftruncate(3</v/a>, 0) = 0\n",
            vec![WayToSave::WriteInPlace],
        ),
        (
            open("O_RDWR|O_CREAT|O_EXCL", "a")
                + write
                + "1 fsync(3</v/a> <unfinished ...>\n2 rename(\"x\", \"/w/x\") = 0\n\
                   1 <... fsync resumed>) = 0\n1 rename(\"a\", \"./b\") = 0\n",
            vec![WayToSave::SyncAndRenameOver],
        ),
        (
            format!(
                "1 unlink(\"a\") = 0\n{}1 copy_file_range(4</x>, NULL, 3</v/a>, NULL, 9, 0) = 9\n",
                open("O_WRONLY|O_CREAT|O_EXCL", "a")
            ),
            vec![WayToSave::UnlinkAndCreate],
        ),
        (
            open("O_RDWR", "a")
                + "1 mmap(NULL, 9, PROT_READ|PROT_WRITE, MAP_SHARED, 3</v/a>, 0) = 0x7f\n",
            vec![WayToSave::SharedMapping],
        ),
        ("1 rename(\"a\", \"b\") = -1 ENOENT (No such file)\n".to_owned(), vec![]),
    ];
    for (trace, expected) in cases {
        assert_eq!(of(&trace), expected, "{trace}");
    }
}
