//! The guard of a folder without a view: a process in the background that holds the folder's lock
//! and answers the requests of `latchfs guard` through a Unix socket.

use super::background;
use super::carry;
use super::exit::{CliError, CliResult};
use super::folder_options::{PlaceArgs, StartArgs};
use super::guard_decider;
use super::guard_parts::{
    PartsRequest, folder_parts, local_patterns, unavailable, write_with_markers,
};
use super::output;
use super::signals::{self, Hangup};
use crate::client::Terms;
use crate::engine::Mode;
use crate::engine::lease_terms::GRACE_OF_FOLDER;
use crate::guard::folder_record::{FolderRecord, StartedRecord};
use crate::guard::plain_disk::PlainDisk;
use crate::guard::space::SpaceLimits;
use crate::guard::state_place::{ChangedThrough, StatePlace};
use crate::guard::tenure_events::NewsCommands;
use crate::guard::unread::UnreadPolicy;
use crate::guard::without_view::listener::RequestSocket;
use crate::guard::without_view::plain_guard::{PlainGuard, Wake};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc;

/// Runs the guard of a folder until nobody needs it. The process that started it reads its report.
pub(super) fn run(folder: &Path, place: &PlaceArgs, start: &StartArgs) -> CliResult {
    background::take_name();
    let done = serve(folder, place, start);
    if let Err(CliError::Said(_, sentence)) = &done {
        output::line(sentence)?;
    }
    done
}

fn serve(folder: &Path, place: &PlaceArgs, start: &StartArgs) -> CliResult {
    let record = FolderRecord::read(folder).map_err(|error| unavailable(&error))?;
    if record.storage.is_some() {
        return Err(CliError::usage(
            "several machines share the storage of this folder, and only a view keeps a machine \
             that has lost the lock from writing; show the folder with 'latchfs guard FOLDER VIEW \
             --shared-storage'",
        ));
    }
    // A send fails only if the main thread has ended, and then it waits for nothing.
    let (wake, wakes) = mpsc::channel();
    let ending = wake.clone();
    signals::on_end(Hangup::Ends, move || ending.send(Wake::Signal).unwrap_or_default())
        .map_err(|error| CliError::system("signals can't be waited for", &error))?;
    let client = place.client()?;
    let host = (client.as_str(), ChangedThrough::Folder);
    let opened = StatePlace::open(folder, &record, &place.state()?, host);
    let opened = opened.map_err(|error| unavailable(&error))?;
    // What the guard makes has explicit permissions.
    rustix::process::umask(rustix::fs::Mode::empty());
    let terms = Terms { client: client.clone(), ttl: start.ttl.0, grace: GRACE_OF_FOLDER };
    let decider = start.decider.open(&record, &opened.host, terms.clone())?;
    let locks = decider.locks();
    let served = guard_decider::check_engine(&record, &locks).and_then(|()| {
        let wanted = PartsRequest {
            record: &record,
            started: StartedRecord::new(folder, Some(record.clone())),
            place: &opened,
            terms: &terms,
            local: local_patterns(&[])?,
            limits: SpaceLimits::NONE,
            unread: UnreadPolicy::NONE,
            mode: Mode::Exclusive,
            first_marked: write_with_markers(&record, folder),
        };
        let (lock, guard) = folder_parts(PlainDisk, locks, wanted)?;
        carry::connect(start.carry.as_ref(), folder, &guard)?;
        let system = |error| CliError::system("the guard can't be started", &error);
        let owner = folder.metadata().map_err(system)?.uid();
        let commands = NewsCommands { lost: start.on_lost.clone(), ready: None };
        let folder = (folder.to_owned(), owner);
        let guard = PlainGuard::start((guard, lock), folder, commands, wake).map_err(system)?;
        let socket = RequestSocket::serve(&opened.host, &guard).map_err(|error| {
            CliError::system(
                "the socket of the guard can't be made in its state directory; name one with a \
                 shorter path by --stage DIR",
                &error,
            )
        })?;
        background::ready()?;
        guard.serve(&wakes);
        // From now on a request finds no guard, and starts another one.
        drop(socket);
        guard.stop();
        Ok(())
    });
    served.and(decider.close())
}
