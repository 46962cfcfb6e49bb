//! The commands that affect all locks at once: `cluster reset`, `cluster grant-now`, `cluster
//! backup`, `cluster restore` and `cluster recover`.

use crate::cli::argument_types::span;
use crate::cli::connect::config_file::urls;
use crate::cli::connect::credential_options;
use crate::cli::connect::credential_options::ServerKeyArgs;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output;
use crate::client::api_request::download;
use crate::client::http_transport::TransportError;
use crate::client::http_transport::{Http, ServerAccess};
use crate::engine::values::lease::TTL_MAX;
use crate::engine::{
    ClientId, EndHoldOff, Engine, HoldOff, HoldOffCause, Op, Outcome, Reset, ResetScope,
    StealReason,
};
use crate::raft;
use crate::service::replay;
use crate::service::replay::{BACKUP_BYTES_MAX, Backup};
use crate::service::{LockService, Retry};
use crate::time::{Span, Time, Wall};
use common::task::block_on;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a node of the lost cluster may take to accept a connection.
const LIVING_PATIENCE: Duration = Duration::from_secs(1);

/// The arguments of `latchfs cluster reset`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("whose").required(true)))]
pub(in crate::cli) struct ResetArgs {
    /// End the holds and waits of all clients except these and their users
    #[arg(long, value_name = "CLIENT", group = "whose", value_delimiter = ',',
        value_parser = ClientId::parse)]
    keep: Vec<ClientId>,
    /// End the holds and waits of this client and its users
    #[arg(long, value_name = "CLIENT", group = "whose", value_parser = ClientId::parse)]
    of: Option<ClientId>,
    /// End the holds and waits of all clients
    #[arg(long, group = "whose")]
    all: bool,
    /// The reason, shown to the holders and written to the audit log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// The client to ask as [default: the host's name and the user's]
    #[arg(long, value_name = "CLIENT", value_parser = ClientId::parse)]
    client: Option<ClientId>,
}

/// The arguments of `latchfs cluster backup`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct BackupArgs {
    /// The file to write; an older file there is replaced when the backup is complete
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The arguments of `latchfs cluster restore`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RestoreArgs {
    /// The backup file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The data directory of the first node: empty, or not there
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    hold_off: HoldOffArgs,
}

/// The arguments of `latchfs cluster recover`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RecoverArgs {
    /// The data directory of a node that is left; the node must not run
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The data directory of the first node of the new cluster: empty, or not there
    #[arg(long, value_name = "NEW_DIR")]
    to: PathBuf,
    #[command(flatten)]
    hold_off: HoldOffArgs,
    /// Also when a majority of the old nodes seems to run
    #[arg(long)]
    force: bool,
}

/// For how long a new cluster that replaces a lost one grants nothing.
#[derive(Debug, clap::Args)]
struct HoldOffArgs {
    /// For how long nothing is granted: the longest ttl that any client had [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = span,
        conflicts_with = "old_holders_are_gone")]
    hold_off: Option<Span>,
    /// Grant at once: it is certain that no client still relies on an old lease
    #[arg(long)]
    old_holders_are_gone: bool,
}

impl HoldOffArgs {
    /// Returns how long nothing is granted; `None` to grant at once.
    fn span(&self) -> CliResult<Option<Span>> {
        match self.hold_off {
            _ if self.old_holders_are_gone => Ok(None),
            Some(span) if span == Span::ZERO || span > TTL_MAX => Err(CliError::usage(format!(
                "--hold-off is the longest ttl that any client had: more than nothing, {TTL_MAX} \
                 at most; --old-holders-are-gone says that nobody holds anything"
            ))),
            Some(span) => Ok(Some(span)),
            None => Ok(Some(TTL_MAX)),
        }
    }
}

/// The arguments of `latchfs cluster grant-now`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct GrantNowArgs {
    /// Why no client relies on an old lease any more, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// The client to ask as [default: the host's name and the user's]
    #[arg(long, value_name = "CLIENT", value_parser = ClientId::parse)]
    client: Option<ClientId>,
}

/// Ends the leases and queue places of the selected clients (`cluster reset`).
pub(in crate::cli) fn reset(args: &ResetArgs, servers: &str, key: &ServerKeyArgs) -> CliResult {
    let reason = StealReason::parse(&args.reason).ok_or_else(|| {
        CliError::usage("a reset needs a short reason, which the holders will read")
    })?;
    let by = client_of(args.client.as_ref(), servers, key)?;
    let whose = match &args.of {
        Some(one) => ResetScope::Of(one.clone()),
        None => ResetScope::AllBut(args.keep.clone()),
    };
    match submit(Op::Reset(Reset::new(whose, by, reason)), servers, key)? {
        Outcome::Reset { holds, waits } => {
            output::line(&format!("ended {holds} holds and {waits} waits"))
        }
        _ => Err(CliError::unavailable("the server sent an unexpected answer")),
    }
}

/// Ends the time in which a server grants nothing (`cluster grant-now`).
pub(in crate::cli) fn grant_now(
    args: &GrantNowArgs,
    servers: &str,
    key: &ServerKeyArgs,
) -> CliResult {
    let reason = StealReason::parse(&args.reason)
        .ok_or_else(|| CliError::usage("say shortly why no client relies on an old lease"))?;
    let by = client_of(args.client.as_ref(), servers, key)?;
    match submit(Op::EndHoldOff(EndHoldOff { by, reason }), servers, key)? {
        Outcome::HoldOffEnded => output::line("locks are granted"),
        _ => Err(CliError::unavailable("the server sent an unexpected answer")),
    }
}

/// Returns the client to ask as: the one that was named, or that of this user.
fn client_of(named: Option<&ClientId>, servers: &str, key: &ServerKeyArgs) -> CliResult<ClientId> {
    named.map_or_else(|| key.client_at(servers), |client| Ok(client.clone()))
}

/// Submits an administrative command to the servers, and returns its outcome.
fn submit(op: Op, servers: &str, key: &ServerKeyArgs) -> CliResult<Outcome> {
    let remote = credential_options::connect(&key.access(servers)?, None)?;
    match block_on(remote.submit(op.into(), Retry::Never).outcome()) {
        Ok(outcome) => Ok(outcome.first()),
        Err(failure) => Err(CliError::Said(Exit::of(failure.kind()), failure.to_string())),
    }
}

/// Requests a backup of the server's whole state from the first server that answers, and writes it
/// to a file.
pub(in crate::cli) fn back_up(args: &BackupArgs, servers: &str, key: &ServerKeyArgs) -> CliResult {
    let mut last = CliError::usage("--server names no server");
    for url in urls(servers) {
        let access = key.access(url)?;
        match fetch(&access) {
            Ok(bytes) => return keep(&args.file, url, &bytes),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn fetch(access: &ServerAccess) -> CliResult<Vec<u8>> {
    let server = Http::new(access).map_err(|error| CliError::usage(error.to_string()))?;
    let watched = io::stderr().is_terminal();
    let come = |bytes: usize, of: Option<u64>| {
        if watched {
            let of = of.map_or_else(String::new, |of| format!(" of {of}"));
            eprint!("\rlatchfs: {bytes}{of} bytes\x1b[K");
        }
    };
    let bytes = download(&server, "/backup", BACKUP_BYTES_MAX, come);
    if watched {
        eprint!("\r\x1b[K");
    }
    bytes.map_err(|error| {
        let exit = match error {
            TransportError::Denied(_) => Exit::Denied,
            _ => Exit::Unavailable,
        };
        CliError::Said(exit, format!("{} gives no backup: {error}", access.url))
    })
}

/// Writes a backup to `file` atomically, after checking that the backup can be read.
fn keep(file: &Path, url: &str, bytes: &[u8]) -> CliResult {
    let backup = replay::read(bytes).map_err(|error| {
        CliError::unavailable(format!("the answer of {url} can't be used: {error}"))
    })?;
    let beside = file.with_extension("part");
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut part| part.write_all(bytes).and_then(|()| part.sync_all()))
        .and_then(|()| fs::rename(&beside, file))
        .and_then(|()| {
            let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
        });
    if let Err(error) = written {
        let _ = fs::remove_file(&beside);
        return Err(CliError::system(&format!("{} can't be written", file.display()), &error));
    }
    let Backup { taken, engine, .. } = backup;
    output::line(&format!(
        "wrote {} ({} bytes): {} locks, {} waiters, {} sessions, as of {taken}",
        file.display(),
        bytes.len(),
        engine.locks(),
        engine.waiters(),
        engine.sessions(),
    ))
}

/// Creates the data directory of the first node of a new cluster from a backup.
pub(in crate::cli) fn restore(args: &RestoreArgs) -> CliResult {
    let file = args.file.display();
    let bytes = fs::read(&args.file)
        .map_err(|error| CliError::system(&format!("{file} can't be read"), &error))?;
    let Backup { taken, engine, .. } = replay::read(&bytes)
        .map_err(|error| CliError::unavailable(format!("{file} can't be restored: {error}")))?;
    let hold_off = args.hold_off.span()?;
    let inherited = inherited_state(&engine, hold_off, HoldOffCause::Restored)?;
    let tokens_from = inherited.baseline.tokens_from;
    raft::restore(&args.data, inherited, raft::Origin::Backup)
        .map_err(|error| CliError::unavailable(error.to_string()))?;
    output::line(&format!(
        "restored {} from the backup of {taken}: nothing is held, and tokens go on at \
         {tokens_from}",
        args.data.display(),
    ))?;
    say_hold_off(&engine, hold_off, "the backup")
}

fn inherited_state(
    engine: &Engine,
    hold_off: Option<Span>,
    cause: HoldOffCause,
) -> CliResult<raft::InheritedState> {
    let hold_off = hold_off.map(|span| HoldOff { until: Time::ZERO + span, cause });
    let secs = u64::try_from(Wall::now().secs).unwrap_or(0);
    raft::InheritedState::of(engine, secs, hold_off).ok_or_else(|| {
        CliError::unavailable("all tokens below 2^53 would be used up; is the clock right?")
    })
}

/// Says for how long the new cluster grants nothing. `known` names the source of what is known of
/// the lost cluster.
fn say_hold_off(engine: &Engine, hold_off: Option<Span>, known: &str) -> CliResult {
    let Some(hold_off) = hold_off else {
        return output::line(
            "locks are granted at once, since no client relies on a lease of the lost servers",
        );
    };
    let longest = engine.longest_ttl().filter(|longest| *longest < hold_off);
    let longest = longest
        .map_or_else(String::new, |longest| format!("; the longest ttl in {known} is {longest}"));
    output::line(&format!(
        "for {hold_off} of its running nothing is granted: a client may still rely on a lease of \
         the lost servers{longest}\n--hold-off DURATION sets that time, and \
         --old-holders-are-gone grants at once; on the running node, 'latchfs cluster grant-now \
         --reason WHY' ends it"
    ))
}

/// Begins a new cluster with the state of a node that has survived the loss of a majority.
pub(in crate::cli) fn recover(args: &RecoverArgs) -> CliResult {
    let shown = args.data.display();
    match fs::metadata(args.data.join("node")) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CliError::usage(format!(
                "{shown} is no data directory of a node: it has no file 'node'; name the \
                 directory that the node was started with by --data"
            )));
        }
        Err(error) => return Err(CliError::system(&format!("{shown} can't be read"), &error)),
    }
    let hold_off = args.hold_off.span()?;
    let unavailable = |error: raft::DataError| CliError::unavailable(error.to_string());
    let survivor = raft::Survivor::open(&args.data).map_err(unavailable)?;
    if !args.force {
        refuse_living(&survivor)?;
    }
    let engine = survivor.engine.clone();
    let inherited = inherited_state(&engine, hold_off, HoldOffCause::Recovered)?;
    let (node, tokens_from) = (survivor.node, inherited.baseline.tokens_from);
    survivor.succeed(&args.to, inherited).map_err(unavailable)?;
    let to = args.to.display();
    output::line(&format!(
        "began a new cluster in {to} with what node {node} knows: nothing is held, and tokens go \
         on at {tokens_from}; start it with 'latchfs serve --data {to}', and let new nodes with \
         empty directories join it; the old nodes must never run again, and {shown} does not"
    ))?;
    say_hold_off(&engine, hold_off, "its data")
}

/// Fails if so many voters seem to run that they are a majority, this node included: then the
/// cluster is not lost.
fn refuse_living(survivor: &raft::Survivor) -> CliResult {
    let answers = |address: &str| {
        let mut places = address.to_socket_addrs().into_iter().flatten();
        places.any(|at| TcpStream::connect_timeout(&at, LIVING_PATIENCE).is_ok())
    };
    let lives = |(id, address): &(u64, Option<Arc<str>>)| {
        let address = address.as_deref().unwrap_or_default();
        if *id == survivor.node {
            return Some("this node".to_owned());
        }
        answers(address).then(|| format!("node {id} at {address}"))
    };
    let living: Vec<_> = survivor.voters.iter().filter_map(lives).collect();
    if living.len() <= survivor.voters.len() / 2 {
        return Ok(());
    }
    Err(CliError::unavailable(format!(
        "nothing is lost: of {} voters a majority can run or runs already ({}), so start this node \
         again; --force begins a new cluster nevertheless",
        survivor.voters.len(),
        living.join(", ")
    )))
}
