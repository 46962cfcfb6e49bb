//! The record of a folder that a guard shows. A folder without one gets it here: the machine that
//! has made the folder's id at the server makes the record, and the others wait until the sync tool
//! has brought it.

use super::guard_init::{self, InitArgs};
use super::guard_parts::unavailable;
use super::shared_id::{FolderAtServer, SharedId, shared_name};
use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard::carry::Carry;
use crate::cli::guard::decider::DeciderArgs;
use crate::cli::output;
use crate::engine::ClientId;
use crate::guard::folder::folder_record::{FolderRecord, RECORD_PATH, RecordError, random_id};
use crate::time::{Span, boot_now};
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

/// How often a machine looks whether the record has arrived.
const LOOK_EVERY: Span = Span::from_millis(500);

/// A folder, and the options of the guard that shows it.
pub(super) struct GuardedFolder<'a> {
    pub(super) dir: &'a Path,
    pub(super) decider: &'a DeciderArgs,
    pub(super) name: Option<&'a str>,
    pub(super) client: Option<&'a ClientId>,
    pub(super) stage: Option<&'a PathBuf>,
    pub(super) carry: Option<&'a Carry>,
}

/// What a machine does about the record of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The record is here.
    GoOn,
    /// This machine makes the record.
    Make,
    /// The sync tool brings the record, which another machine makes or has made.
    Wait,
    /// The record here is that of another folder.
    Refuse,
}

/// Decides what a machine does whose folder has the id `here`, if it has a record. `is_marked`:
/// whether there is a checkpoint under the id at the server. From then on even the machine that has
/// made the id makes no record by itself: its files may be gone, and come by the sync tool.
fn step(here: Option<&str>, there: &SharedId, own: &ClientId, is_marked: bool) -> Step {
    match here {
        Some(here) if here == there.id => Step::GoOn,
        Some(_) => Step::Refuse,
        None if there.maker == own.as_str() && !is_marked => Step::Make,
        None => Step::Wait,
    }
}

impl GuardedFolder<'_> {
    /// Returns the record of the folder.
    pub(super) fn record(&self) -> CliResult<FolderRecord> {
        let record = match FolderRecord::read(self.dir) {
            Err(RecordError::None(_)) => None,
            read => Some(read.map_err(|error| unavailable(&error))?),
        };
        let decider = self.decider;
        let is_carried = record.as_ref().is_none_or(FolderRecord::has_copies);
        let url = decider.server_of(record.as_ref())?.filter(|_| is_carried);
        let syncthing = self.carry.and_then(Carry::syncthing);
        let at = match (&url, shared_name(self.dir, syncthing, self.name)?) {
            (Some(url), Some(name)) => {
                let client = decider.key.machine_at(url, self.client)?;
                Some(FolderAtServer { name, url, key: &decider.key, client })
            }
            _ => None,
        };
        match (record, at) {
            (Some(record), Some(at)) => self.check(&at, &record).map(|()| record),
            (Some(record), None) => Ok(record),
            (None, Some(at)) => self.first(&at),
            (None, None) if url.is_some() => Err(self.nameless()),
            (None, None) => Err(unavailable(&RecordError::None(self.dir.to_owned()))),
        }
    }

    fn nameless(&self) -> CliError {
        let dir = self.dir.display();
        CliError::usage(format!(
            "{dir} is not guarded yet, and no Syncthing of this user gives it a name by which its \
             machines ask for its id; give it one by --name NAME, the same on each machine, or run \
             'latchfs guard init {dir} --alone' if only this machine changes it"
        ))
    }

    /// Refuses a record with another id than the server has for the folder. The server gets the id
    /// of a record if it has none. Without an answer the guard goes on with the record.
    fn check(&self, at: &FolderAtServer<'_>, record: &FolderRecord) -> CliResult {
        match at.claim(&record.id, false) {
            Ok(there) if step(Some(&record.id), &there, &at.client, true) == Step::Refuse => {
                Err(self.another_id(at, record, &there))
            }
            Ok(_) => Ok(()),
            Err(CliError::Said(_, why)) => {
                log::info!("the folder's id at the server is not compared: {why}");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn another_id(
        &self,
        at: &FolderAtServer<'_>,
        record: &FolderRecord,
        there: &SharedId,
    ) -> CliError {
        let (dir, name, url, maker) = (self.dir.display(), &at.name, at.url, &there.maker);
        unavailable(&format!(
            "the record in {dir} has the id {}, and {url} has the id {} for the folder '{name}' \
             (made by {}); wait until the sync tool has brought another record, or, if this is \
             another folder, give it another name; if the files here count, run 'latchfs guard \
             init {dir} --new-id --name {name}'",
            record.id,
            there.id,
            output::harmless(maker)
        ))
    }

    /// Makes the record of a folder that has none, or waits for it.
    fn first(&self, at: &FolderAtServer<'_>) -> CliResult<FolderRecord> {
        let there = at.claim(&random_id(), false)?;
        if step(None, &there, &at.client, at.is_marked(&there.id)?) == Step::Make {
            guard_init::make(&InitArgs::of_guard(self.dir, at, self.stage.cloned()))?;
            return FolderRecord::read(self.dir).map_err(|error| unavailable(&error));
        }
        let record = self.arrived(at, &there)?;
        // Meanwhile a machine may have given the folder another id.
        let there = at.claim(&record.id, false)?;
        match step(Some(&record.id), &there, &at.client, true) {
            Step::GoOn => Ok(record),
            _ => Err(self.another_id(at, &record, &there)),
        }
    }

    /// Waits until the sync tool has brought the record.
    fn arrived(&self, at: &FolderAtServer<'_>, there: &SharedId) -> CliResult<FolderRecord> {
        let (dir, name, maker) = (self.dir.display(), &at.name, output::harmless(&there.maker));
        output::say(&format!(
            "waiting until the sync tool brings {dir}/{RECORD_PATH}: {maker} has made the id of \
             the folder '{name}' at {}; if no machine has this file, run 'latchfs guard init {dir} \
             --name {name}' on the machine whose files count",
            at.url
        ));
        let (began, shows) = (boot_now(), io::stderr().is_terminal() && !output::is_quiet());
        let read = loop {
            match FolderRecord::read(self.dir) {
                Err(RecordError::None(_)) => std::thread::sleep(LOOK_EVERY.as_duration()),
                read => break read,
            }
            if shows {
                let waited = boot_now().since(began).as_millis() / 1_000;
                eprint!("\rlatchfs: waiting for {RECORD_PATH}, {waited} s\x1b[K");
            }
        };
        if shows {
            eprint!("\r\x1b[K");
        }
        read.map_err(|error| unavailable(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_makes_a_record_only_under_an_id_that_it_has_made_and_nobody_has_used() {
        let own = ClientId::parse("laptop1").expect("a name");
        let there = |id: &str, maker: &str| SharedId { id: id.to_owned(), maker: maker.to_owned() };
        for (here, there, is_marked, wanted) in [
            (Some("a"), there("a", "laptop1"), false, Step::GoOn),
            (Some("a"), there("a", "laptop2"), true, Step::GoOn),
            (Some("b"), there("a", "laptop1"), false, Step::Refuse),
            (Some("b"), there("a", "laptop2"), true, Step::Refuse),
            (None, there("a", "laptop1"), false, Step::Make),
            (None, there("a", "laptop1"), true, Step::Wait),
            (None, there("a", "laptop2"), false, Step::Wait),
            (None, there("a", "laptop2"), true, Step::Wait),
        ] {
            let found = step(here, &there, &own, is_marked);
            assert_eq!(found, wanted, "{here:?} {there:?} {is_marked}");
        }
    }
}
