//! The commands `invite` and `devices`, for the user of a server that other machines join: both use
//! the Unix socket in its data directory.

use crate::cli::argument_types::{absolute, default_data_dir, socket_in};
use crate::cli::connect::credential_options::refused;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output;
use crate::cli::output::harmless;
use crate::cli::status_table::aligned;
use crate::client::api_request;
use crate::client::http_transport::ServerAccess;
use crate::home::invitations::InvitationKind;
use crate::home::messages::{
    ALLOW, AWAIT, DEVICES, HomeRequest, INVITATIONS, INVITE, InviteResponse, REMOVE, REVOKE,
};
use crate::time::Span;
use clap::Subcommand;
use serde_json::Value;
use std::io::{self, BufRead as _, Read as _};
use std::path::{Path, PathBuf};

/// Maximum length of the answer about a node.
const ANSWER_BYTES_MAX: u64 = 64;

/// How long a request may take.
const PATIENCE: Span = Span::from_secs(10);

/// The arguments of `latchfs invite`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct InviteArgs {
    /// The name that the other machine gets [default: the one that it chooses]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Invite a node, which shares all that the server knows, also the key of its certificates
    #[arg(long, conflicts_with = "name")]
    node: bool,
    /// Show the invitations that nobody has used yet
    #[arg(long, conflicts_with_all = ["name", "revoke", "node"])]
    list: bool,
    /// Revoke the invitation with this number, which its code begins with
    #[arg(long, value_name = "SLOT", conflicts_with_all = ["name", "node"])]
    revoke: Option<u8>,
    #[command(flatten)]
    at: HomeServerArgs,
}

/// The arguments of `latchfs devices`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct DevicesArgs {
    #[command(subcommand)]
    what: Option<DevicesCommand>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: HomeServerArgs,
}

#[derive(Debug, Subcommand)]
enum DevicesCommand {
    /// Refuse a machine from now on, also on the connections that it has open
    Remove {
        /// The name of the machine
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// The option that names the server.
#[derive(Debug, clap::Args)]
struct HomeServerArgs {
    /// The data directory of the server [env: `LATCHFS_DATA`] [default: that of this user]
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
}

impl HomeServerArgs {
    /// Has the server make an invitation.
    fn invited(&self, name: Option<String>, kind: InvitationKind) -> CliResult<InviteResponse> {
        let asked = HomeRequest { name, kind, ..HomeRequest::default() };
        let invited = self.request(INVITE, &asked, PATIENCE)?;
        serde_json::from_value(invited)
            .map_err(|error| CliError::unavailable(format!("the server's answer is none: {error}")))
    }

    /// Sends a request, and returns the answer.
    fn request(&self, path: &str, body: &HomeRequest, patience: Span) -> CliResult<Value> {
        let data = self.data.as_deref().map_or_else(default_data_dir, absolute)?;
        let url = format!("unix:{}", socket_in(&data).display());
        let access = ServerAccess { url, ..ServerAccess::default() };
        let asked = api_request::post(&access, path, body, patience);
        let (code, answer) = asked.map_err(|_| {
            CliError::unavailable(format!(
                "no server that machines join answers in {}; run this at the machine of 'latchfs \
                 serve --home', as the user of that server, or name its data directory by --data \
                 DIR",
                data.display()
            ))
        })?;
        if code == 200 { Ok(answer) } else { Err(refused(code, &answer)) }
    }
}

/// Prints how another machine joins the server with this data directory.
pub(super) fn print_invitation(data: &Path) -> CliResult {
    let server = HomeServerArgs { data: Some(data.to_owned()) };
    let invited = server.invited(None, InvitationKind::Device)?;
    output::line(&format!("latchfs: {}", instructions(&invited)))
}

pub(in crate::cli) fn invite(args: &InviteArgs) -> CliResult {
    if args.list {
        return list(&args.at);
    }
    if let Some(slot) = args.revoke {
        let asked = HomeRequest { slot: Some(slot), ..HomeRequest::default() };
        args.at.request(REVOKE, &asked, PATIENCE)?;
        return output::line(&format!("invitation {slot} is revoked"));
    }
    let kind = if args.node { InvitationKind::Node } else { InvitationKind::Device };
    let invited = args.at.invited(args.name.clone(), kind)?;
    output::line(&instructions(&invited))?;
    output::say("waiting for that machine; the code stays valid without this command");
    let lasts = Span::from_millis(invited.lasts_ms);
    let asked =
        HomeRequest { slot: Some(invited.slot), id: Some(invited.id), ..HomeRequest::default() };
    let mut ended = args.at.request(AWAIT, &asked, lasts + PATIENCE)?;
    if ended["end"] == "asks" {
        let name = ended["name"].as_str().map(harmless).unwrap_or_default();
        let allow = asks(&name)?;
        args.at.request(ALLOW, &HomeRequest { allow, ..asked.clone() }, PATIENCE)?;
        ended = args.at.request(AWAIT, &asked, lasts + PATIENCE)?;
    }
    let denied = |why: &str| Err(CliError::Said(Exit::Denied, why.to_owned()));
    match ended["end"].as_str() {
        Some("joined") => {
            let name = ended["name"].as_str().map(harmless).unwrap_or_default();
            output::line(&format!("'{name}' has joined"))
        }
        Some("wrong-code") => denied(
            "a machine has tried a wrong code, so this code is void; run 'latchfs invite' again, \
             and if nobody has mistyped it, look in refused.log for the address of that machine",
        ),
        Some("revoked") => denied("the invitation was revoked"),
        _ => Err(CliError::Said(
            Exit::Conflict,
            "the code was not used in time; run 'latchfs invite' for another one".to_owned(),
        )),
    }
}

/// Asks the person at the terminal whether a machine may become a node.
fn asks(name: &str) -> CliResult<bool> {
    output::say(&format!(
        "'{name}' knows the code. As a node it can let machines in, also those that you remove. \
         May it? Type yes:"
    ));
    let mut line = String::new();
    let read = io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| CliError::system("the answer can't be read", &error))?;
    Ok(line.trim() == "yes")
}

/// Returns what to do at the other machine.
pub(super) fn instructions(invited: &InviteResponse) -> String {
    let InviteResponse { code, kind, host, lasts_ms, .. } = invited;
    let lasts = Span::from_millis(*lasts_ms);
    let node = if *kind == InvitationKind::Node { " --node" } else { "" };
    format!(
        "run 'latchfs join {host}{node}' on the other machine within {lasts}, and type this code \
         there: {code}"
    )
}

fn list(at: &HomeServerArgs) -> CliResult {
    let answer = at.request(INVITATIONS, &HomeRequest::default(), PATIENCE)?;
    let mut rows = vec![["SLOT", "KIND", "NAME", "LEFT"].map(str::to_owned)];
    for open in answer["invitations"].as_array().into_iter().flatten() {
        let left = Span::from_secs(open["left_ms"].as_u64().unwrap_or_default() / 1_000);
        let name = open["name"].as_str().map_or_else(|| "-".to_owned(), harmless);
        let kind = open["kind"].as_str().map(harmless).unwrap_or_default();
        rows.push([open["slot"].to_string(), kind, name, left.to_string()]);
    }
    output::line(&aligned(&rows, None).join("\n"))
}

pub(in crate::cli) fn devices(args: &DevicesArgs) -> CliResult {
    if let Some(DevicesCommand::Remove { name }) = &args.what {
        let asked = HomeRequest { name: Some(name.clone()), ..HomeRequest::default() };
        args.at.request(REMOVE, &asked, PATIENCE)?;
        return output::line(&format!(
            "'{name}' is removed: the server refuses it from now on, and its locks expire"
        ));
    }
    let answer = args.at.request(DEVICES, &HomeRequest::default(), PATIENCE)?;
    if args.json {
        return output::json(&answer);
    }
    let mut rows = vec![["NAME", "SINCE", "UNTIL"].map(str::to_owned)];
    for device in answer["devices"].as_array().into_iter().flatten() {
        let text = |key: &str| device[key].as_str().map(harmless).unwrap_or_default();
        let day = |key: &str| text(key).split('T').next().unwrap_or_default().to_owned();
        rows.push([text("name"), day("since"), day("until")]);
    }
    output::line(&aligned(&rows, None).join("\n"))
}
