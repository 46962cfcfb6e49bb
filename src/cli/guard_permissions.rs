//! `guard permissions`: prints the table by which each request to a guard is authorized.

use super::exit::CliResult;
use super::output;
use super::print_permissions::wrapped;
use crate::auth::{Extent, FolderAct, FolderRule};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The legend of the table of rights.
const LEGEND: &str = "\
ROOT      root
GUARD     the user who started the guard; at a guard of root, root alone
OWNER     the owner of the tenure: with --owner user the programs of the user who took the lock,
          with --owner session those of that user, and of root, in that login session; otherwise
          nobody
OTHER     any other user
yes       the user may do it
own       the user may do it to what belongs to the user: the refusals of the user's programs, a
          lost file that the user wrote, a use of the lock that the same open file or connection
          began, a tenure of another login session of the user if 'guard give --from' names it
short     without the names of files, unless the folder belongs to the user
modes     as the modes and ACLs of the files say
no        it is refused

ctl is the file '.latchfs/ctl' of a view, socket that of a guard without a view; 'read' is a read of
a file in '.latchfs', and 'locks' an act on '.latchfs/locks/NAME.lock'. At a socket nobody is the
owner of the tenure. Whether a user may change a file is decided by the modes of the folder, and by
the gate: in a ready tenure, for programs of its owner.
";

/// The arguments of `latchfs guard permissions`.
#[derive(Debug, clap::Args)]
pub(super) struct PermissionsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn permissions(args: &PermissionsArgs) -> CliResult {
    if args.json { output::json(&as_json()) } else { output::write(&table()) }
}

/// Formats the table of rights, with its legend.
pub(super) fn table() -> String {
    let mut text = String::new();
    row(&mut text, "REQUEST", ["ROOT", "GUARD", "OWNER", "OTHER"], "REQUESTS");
    for act in FolderAct::ALL {
        let FolderRule { name, requests, root, guard, owner, other } = act.rule();
        let lines = wrapped(requests.iter().copied());
        let mut lines = lines.iter().map(String::as_str);
        let extents = [root, guard, owner, other].map(Extent::word);
        row(&mut text, name, extents, lines.next().unwrap_or_default());
        lines.for_each(|more| row(&mut text, "", [""; 4], more));
    }
    text + "\n" + LEGEND
}

fn row(text: &mut String, name: &str, [root, guard, owner, other]: [&str; 4], requests: &str) {
    let extents = format!("{root:<5}  {guard:<5}  {owner:<5}  {other:<5}");
    let _ = writeln!(text, "{}", format!("{name:<29}  {extents}  {requests}").trim_end());
}

fn as_json() -> Value {
    let row = |act: &FolderAct| {
        let FolderRule { name, requests, root, guard, owner, other } = act.rule();
        json!({
            "name": name, "root": root.word(), "guard": guard.word(), "owner": owner.word(),
            "other": other.word(), "requests": requests,
        })
    };
    FolderAct::ALL.iter().map(row).collect()
}
