//! The `folder-snapshot` command: takes, lists, shows, checks, restores and removes snapshots of a
//! guarded folder.
//!
//! The snapshots of a folder that is shown in no view: they are read in its state directory.
//!
//! Copies a snapshot that a view shows to a new directory, with the rights of the caller.
//!
//! Puts one file of a snapshot back through the view. This process opens, writes and closes the
//! file as its own user, so that the gate, the modes and the owners of the folder decide as they do
//! for any program that saves a file.

use super::guard_parts::unavailable;
use crate::base::said;
use crate::cli::argument_types::{DurationArg, absolute, default_ttl};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::guard::endpoint::{AnswerWait, EndpointArgs, GuardEndpoint, PlainFolder, answered};
use crate::cli::output;
use crate::engine::Ttl;
use crate::guard::disk::linux_disk::{LinuxDisk, open_below};
use crate::guard::folder::state_place::{ChangedThrough, StatePlace};
use crate::guard::folder_snapshot::descriptor::manifest_text;
use crate::guard::folder_snapshot::snapshot_store::{
    SnapshotStore, TREE, describe, list, remove, verify as verify_stored,
};
use crate::guard::folder_snapshot::tree_copy::{TreeCopy, entries_of};
use crate::time::{Span, boot_now};
use barrier::folder_path::ContentDigest;
use clap::Subcommand;
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use serde_json::{Value, json};
use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// The arguments of `latchfs folder-snapshot`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct FolderSnapshotArgs {
    #[command(subcommand)]
    command: FolderSnapshotCommand,
}

#[derive(Debug, Subcommand)]
enum FolderSnapshotCommand {
    /// Take a snapshot of the folder, once no program has a file open for writing
    Take(SnapshotTakeArgs),
    /// List the snapshots, newest first
    Ls(SnapshotLsArgs),
    /// Show one snapshot
    Show(SnapshotArgs),
    /// Compare each file of a snapshot with its digest
    Verify(SnapshotArgs),
    /// Restore a snapshot to a new directory, or put one file back
    Restore(SnapshotRestoreArgs),
    /// Remove a snapshot
    Rm(SnapshotArgs),
}

/// The arguments of `latchfs folder-snapshot take`.
#[derive(Debug, clap::Args)]
struct SnapshotTakeArgs {
    #[command(flatten)]
    at: EndpointArgs,
    /// How long to wait until no program has a file open for writing
    #[arg(long, visible_alias = "timeout", value_name = "DURATION", default_value = "10s",
        value_parser = default_ttl, conflicts_with = "best_effort")]
    wait: DurationArg<Ttl>,
    /// Do not wait: files that programs have open for writing may be half changed
    #[arg(long)]
    best_effort: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `latchfs folder-snapshot ls`.
#[derive(Debug, clap::Args)]
struct SnapshotLsArgs {
    #[command(flatten)]
    at: EndpointArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of commands about one snapshot.
#[derive(Debug, clap::Args)]
struct SnapshotArgs {
    /// The snapshot, as 'ls' names it
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    at: EndpointArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `latchfs folder-snapshot restore`.
#[derive(Debug, clap::Args)]
struct SnapshotRestoreArgs {
    /// The snapshot, as 'ls' names it
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    at: EndpointArgs,
    /// Restore to this directory, which must not exist
    #[arg(long, value_name = "DIR", required_unless_present = "file")]
    to: Option<PathBuf>,
    /// Put this one file back through the view, as a program of yours that saves it
    #[arg(long, value_name = "PATH", conflicts_with = "to")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(args: &FolderSnapshotArgs) -> CliResult {
    match &args.command {
        FolderSnapshotCommand::Take(args) => take(args),
        FolderSnapshotCommand::Ls(args) => ls(args),
        FolderSnapshotCommand::Show(args) => print_snapshot(args),
        FolderSnapshotCommand::Verify(args) => verify(args),
        FolderSnapshotCommand::Restore(args) => restore(args),
        FolderSnapshotCommand::Rm(args) => {
            let removed = about(args, "remove")?;
            say(args.json, &removed, &format!("latchfs: removed {}", args.id))
        }
    }
}

/// Sends a request about snapshots.
fn send_request(endpoint: &GuardEndpoint, request: &Value) -> CliResult<Value> {
    match endpoint {
        GuardEndpoint::Folder(folder) => execute(folder, request),
        GuardEndpoint::View(_) => endpoint.request(request, AnswerWait::UntilStopped, None),
    }
}

/// Sends a request about one snapshot.
fn about(args: &SnapshotArgs, what: &str) -> CliResult<Value> {
    send_request(&args.at.find()?, &json!({"do": "snapshot", "snapshot": what, "id": args.id}))
}

/// Prints an answer as JSON, or a sentence.
fn say(json: bool, answer: &Value, sentence: &str) -> CliResult {
    if json { output::json(answer) } else { output::line(sentence) }
}

fn text(value: &Value) -> String {
    output::harmless(value.as_str().unwrap_or("-"))
}

/// Returns the words for a snapshot that was taken while programs changed files, or that is not
/// whole.
fn labels(snapshot: &Value) -> String {
    let count = |name: &str| snapshot[name].as_array().map_or(0, Vec::len);
    let mut words = text(&snapshot["consistency"]);
    if count("risk") > 0 {
        let files = output::counted(count("risk") as u64, "file");
        words = format!("{words}, {files} open for writing");
    }
    if count("degraded") > 0 {
        words = format!("{words}, {} degraded", count("degraded"));
    }
    words
}

fn number_of(count: &Value, thing: &str) -> String {
    output::counted(count.as_u64().unwrap_or_default(), thing)
}

fn take(args: &SnapshotTakeArgs) -> CliResult {
    let mut request = json!({"do": "snapshot", "snapshot": "take"});
    request["quiet_ms"] = args.wait.0.span().as_millis().into();
    request["best_effort"] = args.best_effort.into();
    let taken = send_request(&args.at.find()?, &request)?;
    for sentence in taken["risk"].as_array().into_iter().flatten() {
        output::say(&text(sentence));
    }
    let (id, files) = (text(&taken["id"]), number_of(&taken["counts"]["files"], "file"));
    let sentence = format!("latchfs: snapshot {id} of {files} ({})", labels(&taken));
    say(args.json, &taken, &sentence)
}

fn ls(args: &SnapshotLsArgs) -> CliResult {
    let answer = send_request(&args.at.find()?, &json!({"do": "snapshot", "snapshot": "list"}))?;
    if args.json {
        return output::json(&answer);
    }
    for snapshot in answer["snapshots"].as_array().into_iter().flatten() {
        let (id, at) = (text(&snapshot["id"]), text(&snapshot["at"]));
        let files = &snapshot["counts"]["files"];
        output::line(&format!("{id}  {at}  {files:>8} files  {}", labels(snapshot)))?;
    }
    Ok(())
}

fn print_snapshot(args: &SnapshotArgs) -> CliResult {
    let shown = about(args, "show")?;
    if args.json {
        return output::json(&shown);
    }
    let counts = &shown["counts"];
    output::line(&format!("snapshot     {}", text(&shown["id"])))?;
    output::line(&format!("taken        {}, token {}", text(&shown["at"]), shown["token"]))?;
    output::line(&format!("consistency  {}", text(&shown["consistency"])))?;
    output::line(&format!(
        "content      {}, {} directories, {}, {}",
        number_of(&counts["files"], "file"),
        counts["dirs"],
        number_of(&counts["symlinks"], "symlink"),
        number_of(&counts["bytes"], "byte")
    ))?;
    output::line(&format!("root         {}", text(&shown["root"])))?;
    for name in ["risk", "degraded"] {
        for sentence in shown[name].as_array().into_iter().flatten() {
            output::line(&format!("{name:<12} {}", text(sentence)))?;
        }
    }
    Ok(())
}

fn verify(args: &SnapshotArgs) -> CliResult {
    let answer = about(args, "verify")?;
    if args.json {
        output::json(&answer)?;
    } else if answer["ok"] == true {
        output::line(&format!("latchfs: {} is as it was taken", args.id))?;
    } else {
        for sentence in answer["differences"].as_array().into_iter().flatten() {
            output::line(&text(sentence))?;
        }
    }
    if answer["ok"] == true {
        return Ok(());
    }
    Err(CliError::Said(
        Exit::Findings,
        format!("{} differs from its manifest in {} places", args.id, answer["count"]),
    ))
}

fn restore(args: &SnapshotRestoreArgs) -> CliResult {
    let endpoint = args.at.find()?;
    let request = json!({"do": "snapshot", "snapshot": "show", "id": args.id});
    let shown = send_request(&endpoint, &request)?;
    let id = shown["id"].as_str().unwrap_or("-");
    let tree = match &endpoint {
        GuardEndpoint::Folder(folder) => tree(folder, id),
        GuardEndpoint::View(view) => view.dir.join(".latchfs/snapshots").join(id),
    };
    match (&args.to, &args.file) {
        (Some(to), _) => restore_to(args, &tree, &text(&shown["root"]), &absolute(to)?),
        (None, Some(file)) => restore_file(args, &endpoint, &tree, file),
        (None, None) => Err(CliError::usage("name a new directory with --to, or a --file")),
    }
}

/// Restores a snapshot, whose manifest has the digest `root`, to a new directory.
fn restore_to(args: &SnapshotRestoreArgs, tree: &Path, root: &str, to: &Path) -> CliResult {
    let degraded = copy(tree, root, to)?;
    for sentence in &degraded {
        output::say(&output::harmless(sentence));
    }
    let answer = json!({"restored": args.id, "to": to.display().to_string(), "degraded": degraded});
    say(args.json, &answer, &format!("latchfs: restored {} to {}", args.id, to.display()))
}

/// Puts one file of a snapshot back.
fn restore_file(
    args: &SnapshotRestoreArgs,
    endpoint: &GuardEndpoint,
    tree: &Path,
    file: &Path,
) -> CliResult {
    let GuardEndpoint::View(view) = endpoint else {
        return Err(needs_view(endpoint.dir()));
    };
    // A path outside of the view's directory is taken as a path in the folder.
    let given = absolute(file)?;
    let path = given.strip_prefix(&view.dir).unwrap_or(file);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        let dir = view.dir.display();
        return Err(CliError::usage(format!(
            "{} is not in {dir}; name a file in it",
            path.display()
        )));
    }
    put_back(tree, &view.dir, path)?;
    let answer = json!({"restored": args.id, "file": path.display().to_string()});
    let path = output::harmless(&path.display().to_string());
    say(args.json, &answer, &format!("latchfs: put {path} back as it is in {}", args.id))
}

/// How often this process reports its progress.
const TELL: Span = Span::from_secs(1);
/// The next step where the folder is shown in no view.
const SHOW: &str = "show the folder with 'latchfs guard FOLDER VIEW'";

impl PlainFolder {
    /// Returns the directory of the folder's snapshots.
    pub(in crate::cli) fn snapshots(&self) -> PathBuf {
        self.state.join(&self.record.id).join("snapshots")
    }

    /// Keeps guards of this machine from the folder, as long as the result lives.
    pub(in crate::cli) fn lock(&self) -> CliResult<StatePlace> {
        let host = self.host.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let through = ChangedThrough::Folder;
        StatePlace::open(&self.dir, &self.record, &self.state, host, through)
            .map_err(|error| unavailable(&error))
    }
}

/// The directory with the snapshots of a folder.
struct StoredSnapshots(OwnedFd);

impl StoredSnapshots {
    /// Opens the directory with the folder's snapshots; `None` if the folder has none.
    fn open(folder: &PlainFolder) -> CliResult<Option<Self>> {
        let path = folder.snapshots();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::open(&path, flags, Mode::empty()).map_err(io::Error::from) {
            Ok(dir) => Ok(Some(Self(dir))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CliError::unavailable(format!(
                "the snapshots of {} can't be read: {}; they belong to the user who started its \
                 guard",
                folder.dir.display(),
                said(&error)
            ))),
        }
    }

    const fn store(&self) -> SnapshotStore<'_, LinuxDisk> {
        SnapshotStore { disk: &LinuxDisk, dir: &self.0 }
    }
}

/// Returns the refusal to take a snapshot of a folder that programs change past its guard.
fn unquiet(folder: &Path) -> CliError {
    CliError::unavailable(format!(
        "E_CONSISTENCY_UNAVAILABLE: {} is shown in no view, so that programs change it past its \
         guard, and nobody knows which of its files are half changed; {SHOW}, and take the \
         snapshot of the view",
        folder.display()
    ))
}

/// Returns the refusal to put one file back where no view saves it as a whole.
pub(super) fn needs_view(folder: &Path) -> CliError {
    CliError::unavailable(format!(
        "{} is shown in no view, through which a file is saved as a whole; {SHOW}, or restore to a \
         new directory with --to DIR and copy the file",
        folder.display()
    ))
}

/// Answers a request about the snapshots of a folder.
pub(in crate::cli) fn execute(folder: &PlainFolder, request: &Value) -> CliResult<Value> {
    let (what, id) = (request["snapshot"].as_str(), request["id"].as_str().unwrap_or_default());
    if what == Some("take") {
        return Err(unquiet(&folder.dir));
    }
    let Some(snapshots) = StoredSnapshots::open(folder)? else {
        let none = json!({"snapshots": []});
        let why = format!("there is no snapshot of {}", folder.dir.display());
        return if what == Some("list") { Ok(none) } else { Err(CliError::unavailable(why)) };
    };
    let store = snapshots.store();
    answered(match what {
        Some("list") => list(&store, true),
        Some("show") => describe(&store, id, true),
        Some("verify") => verify_aloud(&store, id),
        _ => {
            // The lock keeps a guard from reading the snapshots while one is removed.
            let _locked = folder.lock()?;
            remove(&store, id)
        }
    })
}

fn verify_aloud(store: &SnapshotStore<'_, LinuxDisk>, id: &str) -> Value {
    let (files, next) = (Cell::new(0_u64), Cell::new(boot_now() + TELL));
    verify_stored(store, id, &|| {
        files.set(files.get() + 1);
        if boot_now() >= next.get() {
            next.set(boot_now() + TELL);
            output::say(&format!("checked {}", output::counted(files.get(), "file")));
        }
    })
}

/// Returns the directory with the files of a snapshot.
pub(in crate::cli) fn tree(folder: &PlainFolder, id: &str) -> PathBuf {
    folder.snapshots().join(id).join(TREE)
}

/// How often this process reports its progress.
const PROGRESS_AFTER: Span = Span::from_secs(1);

fn open(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(dir, flags, Mode::empty())?)
}

/// Copies the files of a snapshot, whose manifest has the digest `root`, to a directory that does
/// not exist. It appears complete. Returns the attributes that could not be kept.
pub(in crate::cli) fn copy(tree: &Path, root: &str, to: &Path) -> CliResult<Vec<String>> {
    let shown = to.display();
    if to.symlink_metadata().is_ok() {
        return Err(CliError::usage(format!(
            "{shown} is there; name a directory that does not exist yet"
        )));
    }
    let mut part = to.as_os_str().to_owned();
    part.push(format!(".part-{}", std::process::id()));
    let part = Path::new(&part);
    let copied = copy_to(tree, root, part).and_then(|degraded| {
        rustix::fs::renameat_with(CWD, part, CWD, to, RenameFlags::NOREPLACE)?;
        Ok(degraded)
    });
    copied.map_err(|error| {
        // If the removal fails, the name of the directory says that it is an unfinished part.
        let _ = std::fs::remove_dir_all(part);
        CliError::unavailable(format!(
            "the snapshot was not restored to {shown}: {}; the files of other users are restored \
             by root",
            said(&error)
        ))
    })
}

fn copy_to(tree: &Path, root: &str, part: &Path) -> io::Result<Vec<String>> {
    rustix::fs::mkdir(part, Mode::RWXU)?;
    let (from, to) = (open(tree)?, open(part)?);
    let (files, next) = (Cell::new(0_u64), Cell::new(boot_now() + PROGRESS_AFTER));
    let count = || {
        files.set(files.get() + 1);
        if boot_now() >= next.get() {
            next.set(boot_now() + PROGRESS_AFTER);
            output::say(&format!("restored {}", output::counted(files.get(), "file")));
        }
    };
    let may_link = |_: &OsStr, _: &crate::guard::disk::operations::FileStat| false;
    let mut copy = TreeCopy::new(&LinuxDisk, &from, to, &may_link);
    copy.copy_changed(&count)?;
    copy.finish()?;
    let (_, degraded) = copy.into_summary();
    let copied = open(part)?;
    let mut entries = entries_of(&LinuxDisk, &copied, |_| false, &count)?;
    if ContentDigest::of(manifest_text(&mut entries).as_bytes()).to_string() != root {
        let why = "the files do not have the digests of the manifest; see 'latchfs folder-snapshot \
                   verify'";
        return Err(io::Error::other(why));
    }
    rustix::fs::syncfs(&copied)?;
    Ok(degraded)
}

/// The size of the parts in which a file is copied.
const PART_BYTES: usize = 1 << 20;
/// The bits of a mode that a new file gets from the snapshot. Special bits and owners are never
/// restored.
const PERMISSIONS: u32 = 0o777;

/// Opens a directory.
fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, dir, flags, Mode::empty())?)
}

/// Opens the file in the snapshot. Returns it with its permissions.
fn open_saved(tree: &Path, path: &Path) -> io::Result<(File, Mode)> {
    let tree = open_dir(tree)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = open_below(tree.as_fd(), path, flags).map_err(|error| no_symlink(error, path))?;
    let found = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no regular file in the snapshot"));
    }
    Ok((file.into(), Mode::from_raw_mode(found.st_mode & PERMISSIONS)))
}

/// Opens the file in the view to be written anew. No symlink is followed: others may have put one
/// there for a file of the caller's elsewhere.
fn open_new(view: &Path, path: &Path, mode: Mode) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let opened = rustix::fs::openat2(open_dir(view)?, path, flags, mode, resolve);
    Ok(opened.map_err(|error| no_symlink(error.into(), path))?.into())
}

fn no_symlink(error: io::Error, path: &Path) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => {
            io::Error::other(format!("{} is a symlink, or lies behind one", path.display()))
        }
        _ => error,
    }
}

/// Reads a file to its end, and calls `on_part` with each part.
fn read_all(mut file: &File, mut on_part: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    file.rewind()?;
    let mut part = vec![0; PART_BYTES];
    loop {
        match file.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(length) => on_part(&part[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the sentence of the guard about the last change that it has refused to this user.
fn why_refused(view: &Path, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EROFS | libc::ESTALE | libc::ENOSPC) => {
            let why = std::fs::read_to_string(view.join(".latchfs/why")).unwrap_or_default();
            output::harmless(why.trim_end())
        }
        _ => String::new(),
    }
}

/// Puts the file at `path` in the snapshot with the files `tree` back into the view.
pub(in crate::cli) fn put_back(tree: &Path, view: &Path, path: &Path) -> CliResult {
    let put = || {
        let (saved, mode) = open_saved(tree, path)?;
        // A file that can't be read whole must not replace anything.
        read_all(&saved, |_| Ok(()))?;
        let mut file = open_new(view, path, mode)?;
        read_all(&saved, |part| file.write_all(part))?;
        // The view publishes the file, or says why it does not.
        file.sync_all()
    };
    put().map_err(|error| {
        let refused = why_refused(view, &error);
        let why = if refused.is_empty() { said(&error) } else { refused };
        CliError::unavailable(format!(
            "{} was not put back: {why}; --to DIR restores the snapshot to a new directory",
            path.display()
        ))
    })
}
