//! What the server of a guarded folder says: its version, its clock, its engine, and the last
//! tenure of the folder. It is asked without a session, so that nothing changes.

use super::folder_site::FolderSite;
use crate::cli::credential_options::ServerKeyArgs;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard_decider::check_engine;
use crate::cli::server_options::connect;
use crate::cli::server_urls::urls;
use crate::client::http_transport::{Http, ServerAccess};
use crate::client::server_probe::{Stuck, probe};
use crate::engine::{LockName, LockView, Ownership};
use crate::guard::doctor::examined_folder::KnownTenures;
use crate::guard::doctor::folder_finding::{FindingKind, FolderFinding};
use crate::guard::folder_record::FolderRecord;
use crate::guard::lock_handovers::previous_tenure;
use crate::service::{LockService, Locks, RttSample};
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

/// The servers that are asked about a folder.
#[derive(Clone, Copy)]
pub(super) struct FolderServers<'a> {
    /// The URLs, as a comma-separated list.
    pub(super) urls: &'a str,
    /// Whether the user has named them, and not only the folder.
    pub(super) is_named: bool,
    pub(super) key: &'a ServerKeyArgs,
}

impl FolderServers<'_> {
    fn access(&self, url: &str) -> CliResult<ServerAccess> {
        if self.is_named { self.key.access(url) } else { self.key.access_of_folder(url) }
    }
}

/// Asks the servers of a folder.
pub(super) fn ask(
    site: &FolderSite,
    record: &FolderRecord,
    asked: FolderServers<'_>,
) -> CliResult<ServerAnswer> {
    let mut answer = ServerAnswer::default();
    let servers = asked.urls;
    let heard = match first_heard(asked)? {
        Ok(heard) => heard,
        Err(finding) => {
            answer.findings.push(finding);
            return Ok(answer);
        }
    };
    answer.findings.extend(skew_finding(&heard));
    let remote = match connect(&asked.access(servers)?, None) {
        Ok(remote) => remote,
        Err(CliError::Said(_, why)) => {
            answer.findings.push(unreachable(servers, "does not answer properly", &why));
            return Ok(answer);
        }
        Err(other) => return Err(other),
    };
    let locks = Locks::new(Arc::clone(&remote) as Arc<dyn LockService>);
    // The first request tells which engine answers.
    let view = match view_of(record, &locks) {
        Ok(view) => view,
        Err(why) => {
            answer.findings.push(unreachable(servers, "does not answer properly", &why));
            return Ok(answer);
        }
    };
    match check_engine(record, &locks) {
        Err(CliError::Said(_, why)) => answer.findings.push(FolderFinding::new(
            FindingKind::OtherEngine,
            why,
            "bring the server back whose engine the folder's record names, or make the folder a \
             new one: latchfs guard init FOLDER --new-id",
        )),
        Err(other) => return Err(other),
        Ok(()) => {
            answer.findings.extend(same_name(site, &view));
            let previous = previous_tenure(view.previous.as_deref(), |at| locks.wall(at));
            let (engine, is_held) = (locks.engine_id(), !view.holders.is_empty());
            answer.known = Some(KnownTenures { engine, previous, is_held });
        }
    }
    remote.close();
    Ok(answer)
}

/// What the first server that answers has said, with its URL.
struct Heard {
    url: String,
    sample: RttSample,
}

/// Probes the servers of a list in turn until one answers. If none does, returns the finding about
/// the first one that says most: a server of another kind, or one that does not answer.
fn first_heard(asked: FolderServers<'_>) -> CliResult<Result<Heard, FolderFinding>> {
    let mut all = urls(asked.urls);
    if all.is_empty() {
        all.push(asked.urls);
    }
    let mut stuck = Vec::new();
    for url in all {
        let heard = match Http::new(&asked.access(url)?) {
            Ok(server) => probe(&server),
            Err(error) => Err(Stuck::Unreachable(error.to_string())),
        };
        match heard {
            Ok(sample) => return Ok(Ok(Heard { url: url.to_owned(), sample })),
            Err(why) => stuck.push((url, why)),
        }
    }
    stuck.sort_by_key(|(_, why)| !matches!(why, Stuck::Foreign(_)));
    let (url, why) = stuck.swap_remove(0);
    Ok(Err(stuck_finding(url, &why)))
}

fn skew_finding(heard: &Heard) -> Option<FolderFinding> {
    let (url, skew) = (&heard.url, heard.sample.skew());
    (skew > SKEW_MAX).then(|| {
        FolderFinding::new(
            FindingKind::Clock,
            format!(
                "the clock of this machine differs from that of {url} by at least {skew}; from 2 s \
                 on this machine may steal no lock"
            ),
            "as root on both: timedatectl set-ntp true",
        )
    })
}

fn stuck_finding(url: &str, stuck: &Stuck) -> FolderFinding {
    match stuck {
        Stuck::Foreign(why) => FolderFinding::new(
            FindingKind::ServerTooOld,
            format!("{url} does not speak the protocol of this version of latchfs: {why}"),
            "install this version on the server as well, and see whether the port is the right one",
        ),
        Stuck::Unreachable(why) => unreachable(url, "does not answer", why),
        Stuck::Silent(why) => unreachable(url, "does not answer properly", why),
        Stuck::Untrusted(why) => refused(url, "can't be trusted", why),
        Stuck::Denied(why) => refused(url, "refuses this machine", why),
    }
}

/// The part of a finding that says what follows from it.
const UNKNOWN: &str = "so nobody can say who holds the lock and what the last tenure left";

fn unreachable(url: &str, what: &str, why: &str) -> FolderFinding {
    FolderFinding::new(
        FindingKind::ServerUnreachable,
        format!("the server {url} {what}, {UNKNOWN}: {why}"),
        format!(
            "start the server, or mend the way to it; 'latchfs doctor --server {url}' says what is \
             in the way"
        ),
    )
}

fn refused(url: &str, what: &str, why: &str) -> FolderFinding {
    FolderFinding::new(
        FindingKind::ServerUnreachable,
        format!("the server {url} {what}, {UNKNOWN}: {why}"),
        "name the credentials of the guard to doctor as well: --token-file, --ca, --cert and --key",
    )
}

/// Asks for the lock of a folder. An error is a sentence.
fn view_of(record: &FolderRecord, locks: &Locks) -> Result<LockView, String> {
    let name = LockName::parse(&record.lock()).map_err(|error| error.to_string())?;
    let (send, seen) = mpsc::channel();
    locks.view(&name, move |view| send.send(view).unwrap_or_default());
    match seen.recv_timeout(PATIENCE.as_duration()) {
        Ok(view) => view.map_err(|why| why.to_string()),
        Err(_) => Err(format!("it was asked for the lock, and said nothing for {PATIENCE}")),
    }
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
