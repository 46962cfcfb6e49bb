//! What the server of a guarded folder says: its version, its clock, its engine, and the last
//! tenure of the folder. It is asked without a session, so that nothing changes.

use super::folder_site::FolderSite;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard_decider::check_engine;
use crate::cli::server_options::{ServerKeyArgs, connect, urls};
use crate::client::http_transport::Http;
use crate::client::server_probe::{Stuck, probe};
use crate::engine::{LockName, LockView, Ownership};
use crate::guard::doctor::examined_folder::KnownTenures;
use crate::guard::doctor::folder_finding::{FindingKind, FolderFinding};
use crate::guard::folder_record::FolderRecord;
use crate::guard::lock_handovers::previous_tenure;
use crate::service::{LockService, Locks};
use crate::time::Span;
use std::sync::Arc;
use std::sync::mpsc;

/// How long the server may take to answer.
const PATIENCE: Span = Span::from_secs(5);
/// The difference of the clocks above which it is a finding: half of `max_clock_skew_ms`, above
/// which a steal is refused.
const SKEW_MAX: Span = Span::from_secs(1);

/// What the server has said.
#[derive(Default)]
pub(super) struct ServerAnswer {
    pub(super) findings: Vec<FolderFinding>,
    pub(super) known: Option<KnownTenures>,
}

/// Asks the server of a folder.
pub(super) fn ask(
    site: &FolderSite,
    record: &FolderRecord,
    url: &str,
    key: &ServerKeyArgs,
) -> CliResult<ServerAnswer> {
    let mut answer = ServerAnswer::default();
    let first = urls(url).first().map_or(url, |first| *first).to_owned();
    let heard = match Http::new(&key.access(&first)?) {
        Ok(server) => probe(&server),
        Err(error) => Err(Stuck::Unreachable(error.to_string())),
    };
    match heard {
        Err(stuck) => {
            answer.findings.push(stuck_finding(&first, &stuck));
            return Ok(answer);
        }
        Ok(heard) if heard.skew() > SKEW_MAX => answer.findings.push(FolderFinding::new(
            FindingKind::Clock,
            format!(
                "the clock of this machine differs from that of {first} by at least {}; from 2 s \
                 on this machine may steal no lock",
                heard.skew()
            ),
            "as root on both: timedatectl set-ntp true",
        )),
        Ok(_) => {}
    }
    let remote = connect(&key.access(url)?, None)?;
    let locks = Locks::new(Arc::clone(&remote) as Arc<dyn LockService>);
    match check_engine(record, &locks) {
        Err(CliError::Said(_, why)) => answer.findings.push(FolderFinding::new(
            FindingKind::OtherEngine,
            why,
            "bring the server back whose engine the folder's record names, or make the folder a \
             new one: latchfs guard init FOLDER --new-id",
        )),
        Err(other) => return Err(other),
        Ok(()) => ask_about_lock(site, record, &locks, &mut answer)?,
    }
    remote.close();
    Ok(answer)
}

fn stuck_finding(url: &str, stuck: &Stuck) -> FolderFinding {
    match stuck {
        Stuck::Foreign(why) => FolderFinding::new(
            FindingKind::ServerTooOld,
            format!("{url} does not speak the protocol of this version of latchfs: {why}"),
            "install this version on the server as well, and see whether the port is the right one",
        ),
        Stuck::Unreachable(why)
        | Stuck::Untrusted(why)
        | Stuck::Denied(why)
        | Stuck::Silent(why) => FolderFinding::new(
            FindingKind::Unsure,
            format!("the server {url} can't say what the last tenure left: {why}"),
            format!("latchfs doctor --server {url} says what is in the way"),
        ),
    }
}

/// Asks for the last tenure, and looks for another guard that has the name of this machine.
fn ask_about_lock(
    site: &FolderSite,
    record: &FolderRecord,
    locks: &Locks,
    answer: &mut ServerAnswer,
) -> CliResult {
    let name = LockName::parse(&record.lock());
    let name = name.map_err(|error| CliError::unavailable(error.to_string()))?;
    let (send, seen) = mpsc::channel();
    locks.view(&name, move |view| send.send(view).unwrap_or_default());
    let view = match seen.recv_timeout(PATIENCE.as_duration()) {
        Ok(Ok(view)) => view,
        Ok(Err(why)) => return Err(CliError::unavailable(why.to_string())),
        Err(_) => {
            let why = format!("the server has not answered for {PATIENCE}; try again");
            return Err(CliError::unavailable(why));
        }
    };
    answer.findings.extend(same_name(site, &view));
    let previous = previous_tenure(view.previous.as_deref(), |at| locks.wall(at));
    let (engine, is_held) = (locks.engine_id(), !view.holders.is_empty());
    answer.known = Some(KnownTenures { engine, previous, is_held });
    Ok(())
}

/// Returns a finding if a holder has the name of this machine, and is not this machine's guard.
fn same_name(site: &FolderSite, view: &LockView) -> Option<FolderFinding> {
    let noted = std::fs::read_to_string(site.host.join("session")).unwrap_or_default();
    let noted = noted.split(' ').next().and_then(|session| session.parse::<u64>().ok());
    let is_other = |hold: Ownership| match hold {
        Ownership::OpenFile(open) => Some(open.session.as_u64()) != noted,
        Ownership::Client | Ownership::Exclusive(_) => true,
    };
    let other = view.holders.iter().find(|holder| {
        holder.lease.holder.as_str() == site.client && is_other(holder.lease.hold)
    })?;
    Some(FolderFinding::new(
        FindingKind::SameName,
        format!(
            "another guard with this machine's name, {}, holds the lock (token {})",
            site.client, other.lease.token
        ),
        "give each machine a name of its own by --client",
    ))
}
