//! The files that tenures have left in the state directory: stages, lost files, and late publishes.

use super::super::audit_log::{AuditedAct, acts_of};
use super::super::tenure::TenureId;
use crate::base::said;
use crate::guard::disk::operations::Disk;
use crate::guard::doctor::folder_checks::ExaminedFolder;
use crate::guard::doctor::folder_checks::{FindingKind, FolderFinding};
use std::io;

/// How many names a sentence shows.
const NAMES_SHOWN: usize = 3;

/// Returns the first names, and how many more there are.
pub(super) fn some_of(names: &[String]) -> String {
    some_of_all(names, 0)
}

/// Returns the first names, and how many more there are besides `others` that are not in the list.
pub(super) fn some_of_all(names: &[String], others: u64) -> String {
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) as u64 + others {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn failed(what: &str, error: &io::Error) -> String {
    format!("{what} can't be read: {}", said(error))
}

/// Returns the stages that no tenure uses any more.
pub(super) fn stage_leftovers<D: Disk>(
    of: &ExaminedFolder<'_, D>,
) -> Result<Vec<FolderFinding>, String> {
    let Some(stages) = of.stages.as_ref().filter(|_| !of.is_shared) else { return Ok(Vec::new()) };
    let entries = of.disk.entries(stages).map_err(|error| failed("the stages", &error))?;
    let is_current = |name: &str| {
        let tenure = TenureId::parse(name).map(|tenure| tenure.token.as_u64());
        of.is_guarded && tenure.is_some() && tenure >= of.tenure
    };
    let mut names: Vec<_> = entries
        .iter()
        .map(|entry| entry.name.to_string_lossy().into_owned())
        .filter(|name| !is_current(name))
        .collect();
    names.sort();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let says = format!(
        "a guard that was killed left the stage {}: what is left of a save that was under way is \
         in it",
        some_of(&names)
    );
    let mend = if of.is_guarded {
        format!("latchfs guard take {}: the next tenure moves it to the lost files", of.shown)
    } else {
        "latchfs doctor --strict --mend: it moves the content to the lost files; the next tenure \
         does so as well"
            .to_owned()
    };
    Ok(vec![FolderFinding::new(FindingKind::StageLeftover, says, mend)])
}

/// Returns the lost files.
pub(super) fn lost_files<D: Disk>(
    of: &ExaminedFolder<'_, D>,
) -> Result<Option<FolderFinding>, String> {
    let Some(lost) = &of.lost else { return Ok(None) };
    let entries = of.disk.entries(lost).map_err(|error| failed("the lost files", &error))?;
    let is_description =
        |name: &str| name.strip_suffix(".json").is_some_and(|number| number.parse::<u64>().is_ok());
    let count =
        entries.iter().filter(|entry| entry.name.to_str().is_some_and(is_description)).count();
    let files = if count == 1 { "file was" } else { "files were" };
    Ok((count > 0).then(|| {
        FolderFinding::new(
            FindingKind::Lost,
            format!("{count} {files} kept out of the folder, and nobody has looked after them"),
            format!(
                "'latchfs guard lost' lists them with the view of {}; put one back by --restore N, \
                 or drop it by --drop N",
                of.shown
            ),
        )
    }))
}

/// Returns the files that appeared after the deadline of the last tenure of this machine. After a
/// later tenure they are compared, and named by its marker.
pub(super) fn late_publish<D: Disk>(
    of: &ExaminedFolder<'_, D>,
) -> Result<Option<FolderFinding>, String> {
    let Some(host) = &of.host else { return Ok(None) };
    let acts = acts_of(of.disk, host).map_err(|error| failed("the audit log", &error))?;
    let name = AuditedAct::LatePublish.as_str();
    let Some(last) = acts.iter().rfind(|act| act.operation == name) else { return Ok(None) };
    let token = last.fencing_token.unwrap_or(0);
    let own = of.known.as_ref().filter(|known| known.previous.client == of.client);
    let later = own.map(|known| known.previous.token.as_u64()).max(of.tenure);
    Ok((later.is_none_or(|later| later <= token)).then(|| {
        FolderFinding::new(
            FindingKind::LatePublish,
            format!(
                "a file appeared in {} at {} after the deadline of tenure {token}, when the lock \
                 could already be another machine's",
                of.shown, last.timestamp
            ),
            format!(
                "compare the last changes with those of the other machines, then take the lock \
                 again ('latchfs guard take'): the next marker names the file in {}",
                of.shown
            ),
        )
    }))
}
