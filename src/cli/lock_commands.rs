//! The commands about one lock: `acquire`, `wait`, `renew`, `release`, `steal` and `status`.

use super::argument_types::{grace, span, ttl};
use super::exit::{CliError, CliResult, Exit};
use super::lock_names::{NameArg, completer};
use super::mount_client::{LockClient, own_status};
use super::name_argument::parsed;
use super::output::{self, TerminalStyle};
use super::status_table::{Status, page};
use super::target::{CommandTarget, TargetArgs};
use super::wait_progress;
use crate::engine::{Grace, LockName, RefusalKind, Ttl};
use crate::fuse::kernel::own_user::is_root;
use crate::holder_id::Maker;
use crate::time::Span;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// How often the command looks whether the holder of a stolen lock has stopped.
const STEAL_LOOK: Duration = Duration::from_millis(250);
/// The wait for the old holder above which the command says how not to wait.
const STEAL_HINT: Duration = Duration::from_secs(2);

/// Arguments of every command about one lock.
#[derive(Debug, clap::Args)]
pub(super) struct LockArgs {
    #[command(flatten)]
    name: NameArg,
    #[command(flatten)]
    target: TargetArgs,
    /// Print the lock's status as JSON
    #[arg(long)]
    json: bool,
}

/// The options of a lease that a command requests.
#[derive(Debug, clap::Args)]
pub(super) struct TermArgs {
    /// How long the lease lasts unrenewed: 30s, 1m30s, 1.5h [default: the mount's]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    ttl: Option<Ttl>,
    /// How long after that only you may take it back [default: the mount's]
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    grace: Option<Grace>,
    /// Note shown to clients that find the lock held
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// The arguments of `latchfs acquire`.
#[derive(Debug, clap::Args)]
pub(super) struct AcquireArgs {
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    term: TermArgs,
    /// Hold it together with others that ask for the same
    #[arg(long)]
    shared: bool,
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
pub(super) struct WaitArgs {
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    term: TermArgs,
    /// Hold it together with others that ask for the same
    #[arg(long)]
    shared: bool,
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
pub(super) struct RenewArgs {
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    term: TermArgs,
    #[command(flatten)]
    token: TokenArg,
}

/// The arguments of `latchfs release`.
#[derive(Debug, clap::Args)]
pub(super) struct ReleaseArgs {
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
pub(super) struct StealArgs {
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
    /// Do not wait for the holder of a lock that was acquired with --remember, such as that of a
    /// guarded folder, although it may go on until its lease expires
    #[arg(long)]
    now: bool,
}

/// The arguments of `latchfs status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
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

pub(super) fn acquire(args: &AcquireArgs) -> CliResult {
    let mode = if args.shared { "shared" } else { "exclusive" };
    let wait = args.wait.map(|span| exact(span.as_millis()));
    let how = json!({
        "mode": mode, "wait": wait, "reentrant": args.reentrant, "remember": args.remember,
        "parent": true
    });
    let status = acquired(&args.lock, &[&args.term.json(), &how])?;
    let is_new = status["acquired_at"] == status["renewed_at"];
    tell(&args.lock, &status, if is_new { "acquired" } else { "renewed" })
}

pub(super) fn wait(args: &WaitArgs) -> CliResult {
    let mode = if args.shared { "shared" } else { "exclusive" };
    let wait = args.wait.map_or(Value::Bool(true), |span| exact(span.as_millis()).into());
    let how = json!({
        "mode": mode, "wait": wait, "reentrant": args.reentrant, "remember": args.remember,
        "parent": true
    });
    let status = acquired(&args.lock, &[&args.term.json(), &how])?;
    tell(&args.lock, &status, "acquired")
}

/// Acquires a lock, or waits for it in its queue if `how` says so, and returns its status.
fn acquired(args: &LockArgs, how: &[&Value]) -> CliResult<Value> {
    let CommandTarget { ask, name, .. } = args.target.asking(&args.name.name)?;
    let answer = wait_progress::wait(&ask, &name, &request("acquire", name.as_str(), how))?;
    ask.close();
    Ok(own_status(answer))
}

pub(super) fn renew(args: &RenewArgs) -> CliResult {
    let status = change(&args.lock, "renew", &[&args.term.json(), &args.token.json()])?;
    tell(&args.lock, &status, "renewed")
}

pub(super) fn release(args: &ReleaseArgs) -> CliResult {
    // The parser requires a name unless --all is given.
    let Some(name) = args.name.as_ref().filter(|_| !args.all) else { return release_all(args) };
    let CommandTarget { ask, name, place } = args.target.asking(name)?;
    let token = match args.token.token {
        None if !args.any => Some(token_of_shell(&*ask, &name, place.dir())?),
        token => token,
    };
    let how = json!({"token": token, "handover": args.handover});
    let status = ask.status(&request("release", name.as_str(), &[&how]))?;
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
        None => release_all_at_mount(&*args.target.ask()?)?,
    };
    if args.json {
        return output::json(&ended);
    }
    let number = |field: &str| ended[field].as_u64().unwrap_or_default();
    output::line(&format!("ended {} holds and {} waits", number("holds"), number("waits")))
}

fn release_all_at_mount(ask: &dyn LockClient) -> CliResult<Value> {
    let you = ask.ask(&json!({"do": "list", "limit": 1}))?["you"].take();
    let mut holds = 0_u64;
    for status in ask.list("")? {
        for (token, _) in leases_of(&status, &you) {
            let name = status["name"].as_str().unwrap_or_default();
            match ask.ask(&request("release", name, &[&json!({"token": token})])) {
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
    let mut answer = ask.ask(&request("status", name.as_str(), &[]))?;
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

pub(super) fn steal(args: &StealArgs) -> CliResult {
    let term = TermArgs { ttl: args.ttl, grace: None, note: args.note.clone() };
    let reason = json!({"reason": args.reason, "parent": true, "now": args.now});
    let mut status = change(&args.lock, "steal", &[&term.json(), &reason])?;
    // The new lease begins when the steal grace of the old holder is over, or when it has said
    // that it has stopped. A caller may use the lock as soon as this command ends, so the command
    // waits until the new lease has begun.
    let token = status["token"].clone();
    let mut is_told = false;
    while let Some(wait) = before_use(Status(&status)).filter(|_| status["token"] == token) {
        if !std::mem::replace(&mut is_told, true) {
            let span = Span::from(wait);
            output::say(&format!(
                "the old holder has {span} to stop; this answers when you may begin"
            ));
            if wait > STEAL_HINT {
                output::say("it may not have heard of the steal; '--now' does not wait for it");
            }
        }
        thread::sleep(wait.min(STEAL_LOOK));
        status = show(&args.lock)?;
    }
    tell(&args.lock, &status, "stole")
}

pub(super) fn status(args: &StatusArgs) -> CliResult {
    if args.stale {
        let name = parsed(&args.lock.name.name)?;
        let known = args.lock.target.stale()?.status(&name)?;
        if !args.lock.json {
            known.warn();
        }
        return shown(args, &known.it);
    }
    let CommandTarget { ask, name, .. } = args.lock.target.asking(&args.lock.name.name)?;
    let status = ask.status(&request("status", name.as_str(), &[]));
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

fn tell(args: &LockArgs, status: &Value, how: &str) -> CliResult {
    if args.json {
        return output::json(status);
    }
    let status = Status(status);
    output::line(&format!("{how} {}: {}", status.text("name"), status.terms()))
}

fn show(args: &LockArgs) -> CliResult<Value> {
    change(args, "status", &[])
}

/// Sends a request about the lock, with `what` as its kind and with all fields of the objects
/// `more` that are not null. Returns the lock's status from the answer.
fn change(args: &LockArgs, what: &str, more: &[&Value]) -> CliResult<Value> {
    let CommandTarget { ask, name, .. } = args.target.asking(&args.name.name)?;
    ask.status(&request(what, name.as_str(), more))
}

fn request(what: &str, name: &str, more: &[&Value]) -> Value {
    let mut request = Map::new();
    request.insert("do".into(), what.into());
    request.insert("name".into(), name.into());
    for (key, value) in more.iter().filter_map(|fields| fields.as_object()).flatten() {
        if !value.is_null() {
            request.insert(key.clone(), value.clone());
        }
    }
    Value::Object(request)
}

impl TermArgs {
    fn json(&self) -> Value {
        json!({
            "ttl": self.ttl.map(|ttl| exact(ttl.span().as_millis())),
            "grace": self.grace.map(|grace| exact(grace.span().as_millis())),
            "note": self.note,
        })
    }
}

impl TokenArg {
    fn json(&self) -> Value {
        json!({"token": self.token})
    }
}

/// Formats milliseconds exactly, unlike the display of a [`Span`], which rounds for people.
fn exact(millis: u64) -> String {
    format!("{millis}ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_only_the_fields_that_are_given() {
        let term = TermArgs { ttl: Ttl::parse("1m30s").ok(), grace: None, note: Some("hi".into()) };
        let token = TokenArg { token: None };
        let request = request("renew", "team/build", &[&term.json(), &token.json()]);
        let expected = json!({"do": "renew", "name": "team/build", "ttl": "90000ms", "note": "hi"});
        assert_eq!(request, expected);
    }

    #[test]
    fn a_stolen_lock_may_be_used_when_its_lease_begins() {
        let wait = |begins: Value| before_use(Status(&json!({"begins_in_ms": begins})));
        assert_eq!(wait(json!(31_000)), Some(Duration::from_secs(31)));
        assert_eq!(wait(json!(0)), None);
        assert_eq!(wait(json!(-1)), None);
        assert_eq!(before_use(Status(&json!({}))), None);
    }
}
