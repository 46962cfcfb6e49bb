//! The `config` command: shows which server and credentials commands use, and where each value
//! comes from.

use super::config_file::Config;
use super::credential_options::{ServerKeyArgs, Sourced};
use super::machine_locks::{self, MachineLocks};
use super::own_locks::OwnLocks;
use super::target::{home_server, mount_before_server};
use crate::cli::argument_types::own_client;
use crate::cli::exit::CliResult;
use crate::cli::output;
use crate::cli::output::harmless;
use crate::cli::status_table::aligned;
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Display;

/// The arguments of `latchfs config`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ConfigArgs {
    #[command(subcommand)]
    what: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show the server and the credentials that commands use, and where each comes from
    ///
    /// The files are ~/.config/latchfs/config.toml, which root does not read, and
    /// /etc/latchfs/config.toml; `LATCHFS_CONFIG` names another one instead, or says 'none'. A file
    /// has a table for each server:
    ///
    ///   [profiles.work]
    ///   server = "https://a.lan:8443,https://b.lan:8443"
    ///   token-file = "work.token"   # relative to the file
    ///   ca = "work-ca.pem"          # default: the CAs that this machine trusts
    ///
    /// Further keys are cert, key, client and plain-token. The profile 'default' is used if
    /// --profile, `LATCHFS_PROFILE` and the line profile = "NAME" select no other one. Credentials
    /// of a profile are sent to its own servers only.
    #[command(verbatim_doc_comment)]
    Show(ShowArgs),
}

/// The arguments of `latchfs config show`.
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    key: ServerKeyArgs,
}

/// One option: its name, its value, and where the value comes from.
type Row = (&'static str, String, String);

pub(in crate::cli) fn run(args: &ConfigArgs) -> CliResult {
    let ConfigCommand::Show(args) = &args.what;
    let config = Config::read()?;
    let rows = rows(&args.key)?;
    if args.json {
        return output::json(&to_json(&config, &rows));
    }
    output::write(&to_text(&config, &rows))
}

/// Returns the options that have a value.
fn rows(key: &ServerKeyArgs) -> CliResult<Vec<Row>> {
    let mut unnamed = Vec::new();
    if let Some(home) = home_server() {
        unnamed.push(("home", harmless(&home), "'latchfs serve --home' of this user".to_owned()));
    }
    if let Some(machine) = MachineLocks::here()? {
        unnamed.push(("machine", machine_locks::URL.to_owned(), machine.described()));
    }
    if let Ok(own) = OwnLocks::here() {
        let state = if own.is_running()? { "its daemon runs" } else { "no daemon runs" };
        unnamed.push(("own locks", harmless(&own.url()), state.to_owned()));
    }
    let Some(server) = key.default_server()? else { return Ok(unnamed) };
    let found = key.credentials(&server.value)?;
    let mut rows = vec![row("server", &server, String::clone)];
    for (name, file) in [
        ("token-file", &found.token_file),
        ("ca", &found.ca),
        ("cert", &found.cert),
        ("key", &found.key),
    ] {
        rows.extend(file.as_ref().map(|file| row(name, file, |path| path.display().to_string())));
    }
    rows.extend(found.plain_token.as_ref().map(|it| row("plain-token", it, bool::to_string)));
    if key.profile_argument().is_none()
        && let Some((dir, source)) = mount_before_server()?
    {
        let dir = harmless(&dir.display().to_string());
        rows.insert(0, ("mount", dir, source.to_owned()));
    }
    rows.push(match &found.client {
        Some(client) => row("client", client, ToString::to_string),
        None => ("client", own_client()?.to_string(), "host and user".to_owned()),
    });
    rows.extend(unnamed);
    Ok(rows)
}

fn row<T>(name: &'static str, of: &Sourced<T>, shown: impl FnOnce(&T) -> String) -> Row {
    (name, harmless(&shown(&of.value)), harmless(&of.source.to_string()))
}

fn to_text(config: &Config, rows: &[Row]) -> String {
    let mut lines = Vec::new();
    if !rows.iter().any(|(name, ..)| *name == "server") {
        lines.push(
            "no server is configured, so commands use the mounts of this machine, and where there \
             is none the machine's daemon, or else your own locks"
                .to_owned(),
        );
    }
    let cells = |(name, value, source): &Row| [(*name).to_owned(), value.clone(), source.clone()];
    lines.extend(aligned(&rows.iter().map(cells).collect::<Vec<_>>(), None));
    if rows.iter().any(|(name, ..)| *name == "mount") {
        lines.push(
            "commands about locks use the mount; --server or --profile names a server instead"
                .to_owned(),
        );
    }
    lines.push(String::new());
    lines.push(listed("files read", config.files().map(std::path::Path::display)));
    lines.push(listed("profiles", config.profiles().iter().map(|profile| &profile.name)));
    lines.join("\n") + "\n"
}

fn listed(what: &str, each: impl Iterator<Item = impl Display>) -> String {
    let each: Vec<_> = each.map(|one| harmless(&one.to_string())).collect();
    format!("{what}: {}", if each.is_empty() { "none".to_owned() } else { each.join(", ") })
}

fn to_json(config: &Config, rows: &[Row]) -> Value {
    let options = rows.iter().map(|(name, value, source)| {
        ((*name).to_owned(), json!({"value": value, "source": source}))
    });
    let files: Vec<_> = config.files().map(|path| path.display().to_string()).collect();
    let profiles = config.profiles().into_iter().map(|named| {
        let (file, server) = (named.file.display().to_string(), named.profile.server);
        (named.name, json!({"server": server, "file": file}))
    });
    json!({
        "options": options.collect::<serde_json::Map<_, _>>(),
        "files": files,
        "profiles": profiles.collect::<serde_json::Map<_, _>>(),
    })
}
