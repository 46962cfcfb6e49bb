//! The commands about one lock: `acquire`, `wait`, `renew`, `release`, `steal` and `status`.
//!
//! Lock names as arguments, and their completion, which asks the mount or server that the command
//! line names so far, and stays silent where there is none.
//!
//! The `who` command: says who holds the lock of a file, which is a lock in a mount, or a file in a
//! guarded folder.

use crate::cli::argument_types::{absolute, grace, parsed, seats, span, ttl};
use crate::cli::connect::mount_client::listed_name;
use crate::cli::connect::mount_client::{LockClient, own_status, show_own};
use crate::cli::connect::target::{CommandTarget, TargetArgs};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::guard::endpoint::GuardEndpoint;
use crate::cli::guard::guard_parts::PlaceArgs;
use crate::cli::lock::held_lock;
use crate::cli::output;
use crate::cli::output::{TerminalStyle, harmless};
use crate::cli::status_table::{Status, held_by, page, process_of};
use crate::control::ControlRequest;
use crate::control::control_request::{
    AcquireRequest, LeaseOptions, ReleaseRequest, StealRequest, checked_handover, checked_note,
    checked_reason, checked_token,
};
use crate::engine::{Grace, LockName, RefusalKind, Seats, Ttl};
use crate::engine::{Mode, QueuePolicy, Token};
use crate::holder_id::Maker;
use crate::service::List;
use crate::time::Span;
use clap::Parser;
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use kernel::machine_facts::is_root;
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How often the command checks whether the holder of a stolen lock has stopped.
const STEAL_POLL: Duration = Duration::from_millis(250);
/// The wait for the old holder above which the command says how not to wait.
const STEAL_HINT: Duration = Duration::from_secs(2);

/// Arguments of every command about one lock.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct LockArgs {
    #[command(flatten)]
    name: NameArg,
    #[command(flatten)]
    target: TargetArgs,
    /// Print the lock's status as JSON
    #[arg(long)]
    json: bool,
}

/// The options of a lease that a command requests.
#[derive(Debug, Clone, Default, clap::Args)]
pub(in crate::cli) struct TermArgs {
    /// How long the lock stays held without a renewal, as when this machine dies: 30s, 1m30s, 1.5h
    /// [default: the mount's]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    pub(in crate::cli) ttl: Option<Ttl>,
    /// How long after that only you may take it back [default: the mount's]
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    pub(in crate::cli) grace: Option<Grace>,
    /// Note shown to clients that find the lock held
    #[arg(long, value_name = "TEXT")]
    pub(in crate::cli) note: Option<String>,
}

/// How many may hold the lock at the same time.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(in crate::cli) struct ModeArgs {
    /// Hold it together with others that ask for the same
    #[arg(long)]
    shared: bool,
    /// Hold one of N seats: at most N hold it at a time, served in the order of the queue
    #[arg(long, value_name = "N", value_parser = seats, conflicts_with = "shared")]
    max: Option<Seats>,
}

impl ModeArgs {
    /// Whether nobody else may hold the lock at the same time.
    pub(in crate::cli) const fn is_exclusive(self) -> bool {
        !self.shared && self.max.is_none()
    }

    /// Returns the mode in which the lock is requested.
    pub(in crate::cli) const fn mode(self) -> Mode {
        match (self.shared, self.max) {
            (_, Some(seats)) => Mode::Seats(seats),
            (true, None) => Mode::Shared,
            (false, None) => Mode::Exclusive,
        }
    }
}

/// The arguments of `latchfs acquire`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct AcquireArgs {
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    term: TermArgs,
    #[command(flatten)]
    mode: ModeArgs,
    /// Renew it if your user holds it already, instead of being refused
    #[arg(long)]
    reentrant: bool,
    /// Wait in the queue for at most this long, instead of being refused at once
    #[arg(long, visible_alias = "timeout", value_name = "DURATION", value_parser = span)]
    wait: Option<Span>,
    /// Remember the name beyond this tenure, so that 'release --handover' works
    #[arg(long)]
    remember: bool,
}

/// The arguments of `latchfs wait`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct WaitArgs {
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    term: TermArgs,
    #[command(flatten)]
    mode: ModeArgs,
    /// Renew it if your user holds it already, instead of waiting
    #[arg(long)]
    reentrant: bool,
    /// Remember the name beyond this tenure, so that 'release --handover' works
    #[arg(long)]
    remember: bool,
    /// Give up after so long: 10m, 1h30m, or seconds [default: never]
    #[arg(long, visible_alias = "timeout", value_name = "DURATION", value_parser = span)]
    wait: Option<Span>,
}

/// The arguments of `latchfs renew`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RenewArgs {
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    term: TermArgs,
    #[command(flatten)]
    token: TokenArg,
}

/// The arguments of `latchfs release`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ReleaseArgs {
    /// The lock: its name, or a path below the mount
    #[arg(value_name = "NAME", required_unless_present = "all", add = completer())]
    name: Option<OsString>,
    #[command(flatten)]
    target: TargetArgs,
    /// Print the lock's status as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    token: TokenArg,
    /// All locks that your client holds; at a server, all queues in which it waits as well
    #[arg(long, conflicts_with_all = ["name", "token", "any"])]
    all: bool,
    /// Also if another program of your user has acquired it
    #[arg(long, conflicts_with = "token")]
    any: bool,
    /// A text for the tenures after yours, which 'status' shows; acquire the lock with --remember
    #[arg(long, value_name = "TEXT", conflicts_with = "all")]
    handover: Option<String>,
}

/// The arguments of `latchfs steal`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct StealArgs {
    #[command(flatten)]
    lock: LockArgs,
    /// Why, for the holder and the audit log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// How long the lease lasts unrenewed [default: the mount's]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    ttl: Option<Ttl>,
    /// Note shown to clients that find the lock held
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Only from the holder with this token, and only its seat of a lock that has several
    #[arg(long, value_name = "TOKEN")]
    token: Option<u64>,
    /// Do not wait for the holder of a lock that was acquired with --remember, such as that of a
    /// guarded folder, although it may go on until its lease expires
    #[arg(long)]
    now: bool,
}

/// The arguments of `latchfs status`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct StatusArgs {
    #[command(flatten)]
    lock: LockArgs,
    /// Stale read: the state of the first node that answers, however old, without asking the leader
    #[arg(long)]
    stale: bool,
}

/// The option that names the token of one lease.
#[derive(Debug, clap::Args)]
struct TokenArg {
    /// Only if this is still the lock's token: then no newer tenure can be hit
    #[arg(long, value_name = "TOKEN")]
    token: Option<u64>,
}

pub(in crate::cli) fn acquire(args: &AcquireArgs) -> CliResult {
    let queue = args.wait.map_or(QueuePolicy::Skip, |span| QueuePolicy::Join(Some(span)));
    let options = LeaseOptions { mode: Some(args.mode.mode()), ..args.term.options()? };
    let status = acquired(&args.lock, options, queue, args.reentrant, args.remember)?;
    let is_new = status["acquired_at"] == status["renewed_at"];
    print_status(&args.lock, &status, if is_new { "acquired" } else { "renewed" })
}

pub(in crate::cli) fn wait(args: &WaitArgs) -> CliResult {
    let queue = QueuePolicy::Join(args.wait);
    let options = LeaseOptions { mode: Some(args.mode.mode()), ..args.term.options()? };
    let status = acquired(&args.lock, options, queue, args.reentrant, args.remember)?;
    print_status(&args.lock, &status, "acquired")
}

/// Acquires a lock, or waits for it in its queue, and returns its status.
fn acquired(
    args: &LockArgs,
    options: LeaseOptions,
    queue: QueuePolicy,
    reentrant: bool,
    remember: bool,
) -> CliResult<Value> {
    let CommandTarget { ask, name, .. } = args.target.asking(&args.name.name)?;
    let wanted = AcquireRequest {
        queue,
        reentrant,
        remember,
        for_parent: true,
        ..AcquireRequest::new(&name, options)
    };
    let answer = held_lock::wait(&ask, &name, &ControlRequest::Acquire(wanted))?;
    ask.close();
    Ok(own_status(answer))
}

pub(in crate::cli) fn renew(args: &RenewArgs) -> CliResult {
    let options = LeaseOptions { token: args.token.token()?, ..args.term.options()? };
    let status = change(&args.lock, |name| ControlRequest::renewal(&name, options))?;
    print_status(&args.lock, &status, "renewed")
}

pub(in crate::cli) fn release(args: &ReleaseArgs) -> CliResult {
    // The parser requires a name unless --all is given.
    let Some(name) = args.name.as_ref().filter(|_| !args.all) else { return release_all(args) };
    let CommandTarget { ask, name, place } = args.target.asking(name)?;
    let token = match args.token.token()? {
        None if !args.any => Some(Token::named(token_of_shell(&*ask, &name, place.dir())?)),
        token => token,
    };
    let handover = args.handover.as_deref().map(checked_handover).transpose();
    let handover = handover.map_err(CliError::usage)?;
    let request = ReleaseRequest { name, token, handover };
    let status = ask.status(&ControlRequest::Release(request))?;
    if args.json {
        return output::json(&status);
    }
    let (name, next) = (Status(&status).text("name"), Status(&status).text("holder"));
    output::line(&match next.as_str() {
        "" => format!("released {name}"),
        next => format!("released {name}; {next} has it now"),
    })
}

/// Releases all locks that the caller's client holds. A server also takes the client out of all
/// queues; at a mount each wait belongs to a program, and ends with it.
fn release_all(args: &ReleaseArgs) -> CliResult {
    let ended = match args.target.release_all_at_server()? {
        Some(ended) => ended,
        None => release_all_at_mount(&*args.target.lock_client()?)?,
    };
    if args.json {
        return output::json(&ended);
    }
    let number = |field: &str| ended[field].as_u64().unwrap_or_default();
    output::line(&format!("ended {} holds and {} waits", number("holds"), number("waits")))
}

fn release_all_at_mount(ask: &dyn LockClient) -> CliResult<Value> {
    let first = List { limit: 1, ..List::default() };
    let you = ask.request(&ControlRequest::List(first))?["you"].take();
    let mut holds = 0_u64;
    for status in ask.list("")? {
        for (token, _) in leases_of(&status, &you) {
            let name = listed_name(status["name"].as_str().unwrap_or_default())?;
            match ask.request(&ControlRequest::end_of(&name, Token::named(token))) {
                Ok(_) => holds += 1,
                // The tenure has ended since it was listed.
                Err(CliError::Said(Exit::Lost | Exit::Denied, _)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(json!({"client": you, "holds": holds, "waits": 0}))
}

/// Returns the token of the lease that `release` without options releases: a lease acquired from
/// this shell, or else one acquired by an ended process of the shell's login session.
fn token_of_shell(ask: &dyn LockClient, name: &LockName, dir: Option<&Path>) -> CliResult<u64> {
    let mut answer = ask.request(&ControlRequest::Status(name.clone()))?;
    let (status, you) = (answer["status"].take(), answer["you"].take());
    let shell = Maker::running(parent_id());
    let own = leases_of(&status, &you);
    let of_shell = own.iter().filter(|(_, maker)| maker.is_some_and(|it| it.is_of_shell(shell)));
    let is_shell = |maker: Option<Maker>| maker.is_some_and(|it| it.process == shell.process);
    if let Some((token, _)) = of_shell.max_by_key(|(_, maker)| is_shell(*maker)) {
        return Ok(*token);
    }
    // No lease was found that this shell may release, so no request is sent: a release without a
    // token could end a lease that another program of the user has acquired since.
    let sentence = match own.first() {
        Some((token, maker)) => not_from_here(name, *token, *maker),
        None => not_held(name, &status, &you, dir),
    };
    Err(CliError::Said(Exit::of(RefusalKind::LockNotHeld), sentence))
}

/// Returns the leases that `client` holds, from the status of a lock: the token of each, and the
/// process that acquired it if the status names one.
fn leases_of(status: &Value, client: &Value) -> Vec<(u64, Option<Maker>)> {
    let lease_of = |holder: &Value| {
        let maker = holder["holder_id"].as_str().and_then(Maker::parse);
        Some((holder["token"].as_u64()?, maker))
    };
    match status["holders"].as_array() {
        Some(all) => {
            all.iter().filter(|one| one["client"] == *client).filter_map(lease_of).collect()
        }
        None if status["holder"] == *client => lease_of(status).into_iter().collect(),
        None => Vec::new(),
    }
}

fn not_from_here(name: &LockName, token: u64, maker: Option<Maker>) -> String {
    let by = match maker.filter(|maker| maker.process.pid != 0) {
        None => "an unknown process".to_owned(),
        Some(maker) if !maker.is_of_this_boot() => {
            format!("process {}, before a restart or on another machine,", maker.process.pid)
        }
        Some(Maker { process, .. }) if process.runs() => format!("process {}", process.pid),
        Some(Maker { process, .. }) => format!("process {}, which has ended,", process.pid),
    };
    format!(
        "lock '{name}' was acquired by {by} and not from this shell; release it from there, or \
         name the lease by '--token {token}', or say '--any' to release it all the same"
    )
}

fn not_held(name: &LockName, status: &Value, you: &Value, dir: Option<&Path>) -> String {
    let (you, holder) = (you.as_str().unwrap_or("you"), Status(status).text("holder"));
    match holder.as_str() {
        "" => format!(
            "lock '{name}' is free, so {you} has nothing to release; acquire it with 'latchfs \
             acquire {name}'"
        ),
        holder => {
            let next = match dir.filter(|_| is_root()) {
                Some(dir) => format!(
                    "as root, release it with 'rm -d {}' if {holder} is a user of this machine, \
                     or take it with 'latchfs steal {name} --reason WHY'",
                    dir.join(name.as_str()).display()
                ),
                None => format!(
                    "only its holder can release it; 'latchfs wait {name}' waits until it is free"
                ),
            };
            format!("lock '{name}' is held by {holder}, not by {you}; {next}")
        }
    }
}

pub(in crate::cli) fn steal(args: &StealArgs) -> CliResult {
    let term = TermArgs { ttl: args.ttl, grace: None, note: args.note.clone() };
    let token = TokenArg { token: args.token }.token()?;
    let options = LeaseOptions { token, ..term.options()? };
    let reason = checked_reason(&args.reason).map_err(CliError::usage)?;
    let was_free = Status(&current_status(&args.lock)?).phase() == "free";
    let mut status = change(&args.lock, |name| {
        let at_once = args.now;
        ControlRequest::Steal(StealRequest { name, options, reason, for_parent: true, at_once })
    })?;
    // The new lease begins when the steal grace of the old holder is over, or when it has said
    // that it has stopped. A caller may use the lock as soon as this command ends, so the command
    // waits until the new lease has begun.
    let token = status["token"].clone();
    let mut is_announced = false;
    while let Some(wait) = before_use(Status(&status)).filter(|_| status["token"] == token) {
        if !std::mem::replace(&mut is_announced, true) {
            let span = Span::from(wait);
            output::say(&format!(
                "the old holder has {span} to stop; this answers when you may begin"
            ));
            if wait > STEAL_HINT {
                output::say("it may not have heard of the steal; '--now' does not wait for it");
            }
        }
        thread::sleep(wait.min(STEAL_POLL));
        status = current_status(&args.lock)?;
        show_own(&mut status, &token);
    }
    print_status(&args.lock, &status, if was_free { "nobody held it; acquired" } else { "stole" })
}

pub(in crate::cli) fn status(args: &StatusArgs) -> CliResult {
    if args.stale {
        let name = parsed(&args.lock.name.name)?;
        let known = args.lock.target.stale()?.status(&name)?;
        if !args.lock.json {
            known.warn();
        }
        return shown(args, &known.it);
    }
    let CommandTarget { ask, name, .. } = args.lock.target.asking(&args.lock.name.name)?;
    let status = ask.status(&ControlRequest::Status(name));
    // The command asks for the state of the connection to the server even if the status request has
    // failed, because a lost connection explains the failure.
    let contact = ask.about().ok().map(|mut about| about["contact"].take());
    if let Some(contact) = contact.as_ref().and_then(Value::as_str)
        && contact != "connected"
    {
        output::say(&format!("the contact with the server is {contact}"));
    }
    shown(args, &status?)
}

fn shown(args: &StatusArgs, status: &Value) -> CliResult {
    if args.lock.json {
        return output::json(status);
    }
    output::write(&page(Status(status), TerminalStyle::of_stdout()))
}

/// Returns how long a stolen lock may not be used yet.
fn before_use(status: Status<'_>) -> Option<Duration> {
    let wait = u64::try_from(status.number("begins_in_ms")?).ok()?;
    (wait > 0).then_some(Duration::from_millis(wait))
}

fn print_status(args: &LockArgs, status: &Value, how: &str) -> CliResult {
    if args.json {
        return output::json(status);
    }
    let status = Status(status);
    output::line(&format!("{how} {}: {}", status.text("name"), status.terms()))
}

fn current_status(args: &LockArgs) -> CliResult<Value> {
    change(args, ControlRequest::Status)
}

/// Sends a request about the lock. Returns the lock's status from the answer.
fn change(args: &LockArgs, what: impl FnOnce(LockName) -> ControlRequest) -> CliResult<Value> {
    let CommandTarget { ask, name, .. } = args.target.asking(&args.name.name)?;
    ask.status(&what(name))
}

impl TermArgs {
    pub(super) fn options(&self) -> CliResult<LeaseOptions> {
        let note = self.note.as_deref().map(checked_note).transpose();
        let note = note.map_err(CliError::usage)?;
        Ok(LeaseOptions { ttl: self.ttl, grace: self.grace, note, ..LeaseOptions::default() })
    }
}

impl TokenArg {
    fn token(&self) -> CliResult<Option<Token>> {
        self.token.map(checked_token).transpose().map_err(CliError::usage)
    }
}

/// The longest time for which a completion waits for the names.
const PATIENCE: Span = Span::from_millis(500);
/// The maximum number of names that a completion shows.
const NAMES_MAX: usize = 200;
/// The options that say which mount or server a command uses, and with which credentials.
const TARGET_OPTIONS: [&str; 8] =
    ["--dir", "--server", "--profile", "--client", "--token-file", "--ca", "--cert", "--key"];

/// The name of a lock as an argument.
#[derive(Debug, Clone, clap::Args)]
pub(in crate::cli) struct NameArg {
    /// The lock: its name, or a path below the mount
    #[arg(value_name = "NAME", add = completer())]
    pub(in crate::cli) name: OsString,
}

/// The beginning of the names of locks as an argument.
#[derive(Debug, Clone, clap::Args)]
pub(in crate::cli) struct PrefixArg {
    /// Only locks whose names begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true,
        add = completer())]
    pub(in crate::cli) prefix: String,
}

/// The options that choose the mount or server, out of a command line that is being written.
#[derive(Parser)]
struct TargetOnly {
    #[command(flatten)]
    target: TargetArgs,
}

/// Returns the completer of arguments that name a lock.
pub(in crate::cli) fn completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|begun: &OsStr| names(begun))
}

/// Returns the names of locks that begin with `begun`, each with its holder.
fn names(begun: &OsStr) -> Vec<CompletionCandidate> {
    output::be_silent();
    let Some(begun) = begun.to_str().map(str::to_owned) else { return Vec::new() };
    let (send, found) = mpsc::channel();
    let ask = move || {
        let _ = send.send(listed(&begun).unwrap_or_default());
    };
    // A daemon that does not answer keeps the thread, which ends with the process.
    if thread::Builder::new().spawn(ask).is_err() {
        return Vec::new();
    }
    found.recv_timeout(PATIENCE.as_duration()).unwrap_or_default()
}

fn listed(begun: &str) -> Option<Vec<CompletionCandidate>> {
    let target = TargetOnly::try_parse_from(target_words(std::env::args_os())).ok()?.target;
    let query = List { prefix: begun.to_owned(), after: None, limit: NAMES_MAX };
    let answer = target.lock_client().ok()?.request(&ControlRequest::List(query)).ok()?;
    let locks = answer["locks"].as_array()?.iter().map(Status);
    let locks = locks.filter(|lock| is_plain(&lock.text("name")));
    let candidate = |lock: Status<'_>| {
        let help = held_by(lock).into();
        CompletionCandidate::new(lock.text("name")).help(Some(help))
    };
    Some(locks.map(candidate).collect())
}

/// Whether a shell takes a name for itself. bash inserts completions as they are, so that the name
/// `$(rm -rf .)`, which another client has chosen, would be a command.
fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    !name.starts_with('-') && name.chars().all(is_plain)
}

/// Returns those words of a command line that choose the mount or server.
fn target_words(mut line: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words = vec!["latchfs".into()];
    while let Some(word) = line.next() {
        let text = word.to_string_lossy();
        let (option, value) = text.split_once('=').map_or((&*text, None), |(a, b)| (a, Some(b)));
        if !TARGET_OPTIONS.contains(&option) {
            continue;
        }
        let has_value = value.is_some();
        words.push(word);
        if !has_value {
            words.extend(line.next());
        }
    }
    words
}

/// The arguments of `latchfs who`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct WhoArgs {
    /// A file in a guarded folder, or a lock: its name, or a path below the mount
    #[arg(value_name = "FILE", add = completer())]
    file: OsString,
    #[command(flatten)]
    target: TargetArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(args: &WhoArgs) -> CliResult {
    let path = absolute(Path::new(&args.file))?;
    let is_there = path.symlink_metadata().is_ok();
    if !args.target.names_lock(&args.file)? {
        match GuardEndpoint::find_any(Some(&path), &PlaceArgs::default()) {
            Ok(endpoint) => return of_folder(args, &endpoint.or_view()?),
            // A bare name means a lock, even if a file has the same name.
            Err(_) if is_there && args.file.as_encoded_bytes().contains(&b'/') => {
                return Err(CliError::usage(format!(
                    "'{}' lies in no guarded folder and in no mount of locks, so it has no lock; \
                     name a lock, or a file in a folder that 'latchfs guard' guards",
                    args.file.display()
                )));
            }
            Err(_) => {}
        }
    }
    let CommandTarget { ask, name, .. } = args.target.asking(&args.file)?;
    let status = ask.status(&ControlRequest::Status(name.clone()))?;
    if args.json {
        return output::json(&json!({"lock": name.as_str(), "status": status}));
    }
    output::write(&lines(&status))
}

/// Says who holds the lock of the guarded folder in which the file lies.
fn of_folder(args: &WhoArgs, endpoint: &GuardEndpoint) -> CliResult {
    let guard = endpoint.status()?;
    let text = |field: &str| guard[field].as_str().map(harmless);
    let (folder, lock) = (text("folder").unwrap_or_default(), text("lock").unwrap_or_default());
    let status = match endpoint.server_without_guard() {
        // Without a guard only the server knows.
        Some(url) => Some(at_server(args, &url, &lock)?),
        // A guard learns of another holder when it asks for the lock itself.
        None if guard["tenure"].is_null() && guard["holder"].is_null() => {
            guard["server"].as_str().and_then(|url| at_server(args, url, &lock).ok())
        }
        None => None,
    };
    if args.json {
        return output::json(
            &json!({"folder": folder, "lock": lock, "guard": guard, "status": status}),
        );
    }
    let holder = match (&status, guard["tenure"]["token"].as_u64(), text("holder")) {
        (Some(status), _, _) => return output::write(&(in_folder(&folder) + &lines(status))),
        (None, Some(token), _) => {
            let since = guard["tenure"]["since"].as_str().map(harmless);
            let since = since.map_or_else(String::new, |since| format!(" since {since}"));
            format!(
                "held by this machine, {}{since}; token {token}",
                text("client").unwrap_or_default()
            )
        }
        (None, None, Some(holder)) => format!("held by {holder}"),
        (None, None, None) => "not held, as far as this machine knows".to_owned(),
    };
    let next = text("next").unwrap_or_default();
    output::write(&format!("{}{lock}: {holder}\n{next}\n", in_folder(&folder)))
}

/// Returns the status of a folder's lock at its server.
fn at_server(args: &WhoArgs, url: &str, lock: &str) -> CliResult<Value> {
    let name = LockName::parse(lock).map_err(|error| CliError::usage(error.to_string()))?;
    let server = args.target.direct_to_server_of_folder(url)?;
    let status = server.status(&ControlRequest::Status(name));
    status.map_err(|error| match error {
        CliError::Said(Exit::Denied, sentence) => CliError::Said(
            Exit::Denied,
            format!(
                "{sentence}; credentials are sent to the server that a folder names only if your \
                 configuration names it too: set LATCHFS_SERVER={url} if you trust it, or pass \
                 --profile NAME"
            ),
        ),
        other => other,
    })
}

fn in_folder(folder: &str) -> String {
    format!("guarded folder {folder}\n")
}

/// Formats who holds a lock, and who waits for it.
fn lines(status: &Value) -> String {
    let status = Status(status);
    let name = status.text("name");
    let mut text = match (status.phase().as_str(), status.not_granting()) {
        ("free", None) if status.waiters().is_empty() => return format!("{name}: free\n"),
        ("free", Some(said)) => format!("{name}: free; {said}\n"),
        _ => format!("{name}: {}; {}\n", held_by(status), status.terms()),
    };
    let process = process_of(&status.text("holder_id"));
    if !process.is_empty() {
        let _ = writeln!(text, "process {process}");
    }
    for waiting in status.waiting() {
        let _ = writeln!(text, "waiting {waiting}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stolen_lock_may_be_used_when_its_lease_begins() {
        let wait = |begins: Value| before_use(Status(&json!({"begins_in_ms": begins})));
        assert_eq!(wait(json!(31_000)), Some(Duration::from_secs(31)));
        assert_eq!(wait(json!(0)), None);
        assert_eq!(wait(json!(-1)), None);
        assert_eq!(before_use(Status(&json!({}))), None);
    }
}

#[cfg(test)]
mod lock_names_tests {
    use super::*;

    #[test]
    fn no_name_is_completed_that_a_shell_would_read_as_more_than_a_name() {
        for name in ["build", "team/night-job", "deploy@2026-11-28", "größe", "a.b_c%20"] {
            assert!(is_plain(name), "{name}");
        }
        let hostile =
            ["x$(touch${IFS}pwned)", "a b", "it's", "a;b", "`id`", "~root", "-x", "a*", "a\nb"];
        for name in hostile {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn a_begun_command_line_chooses_the_target() {
        let line = "latchfs -- latchfs status --json --dir /a --server=http://b bu --ca";
        let words = target_words(line.split(' ').map(OsString::from));
        assert_eq!(words, ["latchfs", "--dir", "/a", "--server=http://b", "--ca"]);
    }
}

#[cfg(test)]
mod who_tests {
    use super::*;

    #[test]
    fn the_holder_and_the_waiters_are_named() {
        let status = json!({"name": "x", "phase": "held", "holder": "a", "token": 7,
            "expires_in_ms": 30_000, "grace_ms": 5_000, "holder_id": "a:12:34", "note": "n",
            "waiters": [{"client": "b", "waited_ms": 1_000, "since": "then"}]});
        assert_eq!(
            lines(&status),
            "x: held by a (note: n); token 7, expires in 30s, grace 5s\nprocess a:12:34\n\
             waiting 1. b, for 1s, since then\n"
        );
        assert_eq!(lines(&json!({"name": "x", "phase": "free"})), "x: free\n");
        let detail = json!({"detail": "nothing is granted before then"});
        let held_off = json!({"name": "x", "phase": "free", "hold_off": detail,
            "waiters": [{"client": "b", "waited_ms": 1_000, "since": "then"}]});
        assert_eq!(
            lines(&held_off),
            "x: free; nothing is granted before then\nwaiting 1. b, for 1s, since then\n"
        );
    }
}
