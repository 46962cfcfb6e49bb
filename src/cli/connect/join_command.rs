//! The `join` command: joins a server by a code, and writes the profile by which commands then use
//! the server.
//!
//! Renewal of the client certificate that `join` has brought: a command that finds less than a
//! third of its time left has the server make another one, for a new key.

use super::config_file::{Config, NewProfile, urls};
use crate::auth::{name_in_certificate, validity_of_certificate};
use crate::base::said;
use crate::cli::argument_types::{absolute, default_data_dir, home_in, host_name};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output;
use crate::client::http_transport::ServerAccess;
use crate::client::join_request::{
    JoinError, JoinedAs, JoinedServer, certificate_request, check_certificate, join,
};
use crate::client::{Remote, api_request};
use crate::home::devices::is_device_name;
use crate::home::invitations::InvitationKind;
use crate::home::join_code::JoinCode;
use crate::home::messages::{HomeRequest, RENEW};
use crate::server::http::ca::place_home;
use crate::storage::atomic_file::{Durable, replace};
use crate::time::{Span, Wall, boot_now};
use rcgen::KeyPair;
use std::fs::{self, File};
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::{iter, thread};

/// The port of a server that machines join.
const PORT: u16 = 8443;

/// Maximum length of the line with the code.
const CODE_BYTES_MAX: u64 = 64;

/// The arguments of `latchfs join`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct JoinArgs {
    /// The server: a name or an address, and its port if that is not 8443
    #[arg(value_name = "HOST", value_parser = host)]
    host: JoinHost,
    /// The name of this machine at the server [default: the host's name]
    #[arg(long, value_name = "NAME", value_parser = device_name)]
    name: Option<String>,
    /// The name of the server in the configuration file of this machine
    #[arg(long, value_name = "PROFILE", default_value = "home", value_parser = device_name)]
    profile: String,
    /// Be a node of the server, which 'latchfs invite --node' invites: so any of three may fail
    #[arg(long, conflicts_with = "profile")]
    node: bool,
    /// With --node: the data directory of the new node [default: that of this user]
    #[arg(long, value_name = "DIR", requires = "node")]
    data: Option<PathBuf>,
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JoinHost {
    name: String,
    port: u16,
}

impl JoinHost {
    /// Returns the URLs of all nodes of a server, this one first, as the option --server takes
    /// them. A server alone has this one, under whatever name it was found.
    fn with_others(&self, servers: &[String]) -> String {
        let own = self.url();
        let urls = servers.iter().filter_map(|url| host(url).ok()).map(|host| host.url());
        let others = urls.filter(|url| servers.len() > 1 && *url != own);
        iter::once(own.clone()).chain(others).collect::<Vec<_>>().join(",")
    }

    fn url(&self) -> String {
        let Self { name, port } = self;
        if name.contains(':') {
            format!("https://[{name}]:{port}")
        } else {
            format!("https://{name}:{port}")
        }
    }
}

/// Parses a host with or without a port, and with or without brackets around an IPv6 address.
fn host(text: &str) -> Result<JoinHost, String> {
    let wrong = || format!("write a host such as box, box:{PORT} or 192.0.2.1");
    let text = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name, port.parse().map_err(|_| wrong())?)
        }
        _ => (text, PORT),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
    let is_of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    let is_host = !name.is_empty() && name.chars().all(is_of_host);
    if is_host { Ok(JoinHost { name, port }) } else { Err(wrong()) }
}

fn device_name(text: &str) -> Result<String, &'static str> {
    let wrong = "a name has letters, digits, '-', '_' and '.', 64 at most";
    if is_device_name(text) { Ok(text.to_owned()) } else { Err(wrong) }
}

pub(in crate::cli) fn run(args: &JoinArgs) -> CliResult {
    let JoinArgs { host, name, .. } = args;
    let name = match name {
        Some(name) => name.clone(),
        None => device_name(host_name().trim()).map_err(|why| {
            CliError::usage(format!("the name of this host can't be used: {why}; say --name NAME"))
        })?,
    };
    if args.node {
        return join_as_node(args, &name);
    }
    let place = Config::read_to_add()?.place_for(&args.profile, &host.url())?;
    place.prepare().map_err(|error| {
        let (path, why) = (place.path().display(), said(&error));
        CliError::unavailable(format!(
            "the profile can't be written to {path}: {why}; mend its directory, or name another \
             file by LATCHFS_CONFIG"
        ))
    })?;
    let code = read_code("latchfs invite")?;
    let joined = join(&host.name, host.port, &code, &name, InvitationKind::Device);
    let JoinedServer { name, ca, joined } = joined.map_err(|why| failed(host, why))?;
    let (identity, servers) = match joined {
        JoinedAs::Device { identity, servers }
            if name_in_certificate(identity.as_bytes()).as_ref() == Some(&name) =>
        {
            (identity, servers)
        }
        JoinedAs::Device { .. } | JoinedAs::Node(_) => {
            let why = "the certificate has another name".to_owned();
            return Err(failed(host, JoinError::Unproved(why)));
        }
    };
    let (profile, server) = (&args.profile, host.url());
    let all = host.with_others(&servers);
    let new = NewProfile { name: profile, server: &all, ca: &ca, identity: &identity };
    let is_default = place.write(&new).map_err(|error| {
        let place = place.path().display();
        CliError::unavailable(format!(
            "this machine has joined as '{name}', but {place} can't be written ({}); have the \
             server forget it by 'latchfs devices remove {name}', and join again",
            said(&error)
        ))
    })?;
    let how = if is_default { String::new() } else { format!(" with --profile {profile}") };
    output::line(&format!(
        "joined {server} as '{name}'; commands{how} use its locks, as {} says",
        place.path().display()
    ))
}

/// Makes this machine a node of the server: its next 'latchfs serve --home' joins the others.
fn join_as_node(args: &JoinArgs, name: &str) -> CliResult {
    let (host, data) = (&args.host, args.data.as_deref().map_or_else(default_data_dir, absolute)?);
    let shown = data.display();
    if fs::read_dir(&data).is_ok_and(|mut files| files.next().is_some()) {
        return Err(CliError::usage(format!(
            "{shown} has the data of a server already, and a new node begins with none; name \
             another directory by --data DIR"
        )));
    }
    let code = read_code("latchfs invite --node")?;
    output::say("confirm this machine at the terminal that shows the code");
    let joined = join(&host.name, host.port, &code, name, InvitationKind::Node);
    let JoinedServer { ca, joined, .. } = joined.map_err(|why| failed(host, why))?;
    let JoinedAs::Node(secrets) = joined else {
        return Err(failed(host, JoinError::Unproved("it knows no nodes".to_owned())));
    };
    place_home(&home_in(&data), &ca, &secrets)
        .map_err(|error| CliError::unavailable(error.to_string()))?;
    output::line(&format!(
        "this machine may be a node of {}: start 'latchfs serve --home' here; the second node only \
         learns until a third one has joined, since two that decide would be worse than one",
        host.url()
    ))
}

/// Reads the code from the terminal, or from standard input. It is no argument, because other users
/// can see those.
fn read_code(command: &str) -> CliResult<JoinCode> {
    if io::stdin().is_terminal() {
        output::say(&format!(
            "type the code that '{command}' shows at the server, such as 3-k7mq-2xhd:"
        ));
    }
    let mut line = String::new();
    let read = io::stdin().lock().take(CODE_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| CliError::system("the code can't be read", &error))?;
    JoinCode::parse(&line).ok_or_else(|| {
        CliError::usage(
            "this is no code: one reads like 3-k7mq-2xhd; run 'latchfs invite' at the server for \
             one, and type it here",
        )
    })
}

fn failed(host: &JoinHost, why: JoinError) -> CliError {
    let url = host.url();
    match why {
        JoinError::Unreachable(why) => CliError::unavailable(format!(
            "the server {url} can't be reached ({why}); see whether 'latchfs serve --home' runs \
             there, and try again"
        )),
        JoinError::Refused(why) => CliError::Said(Exit::Denied, format!("{url}: {why}")),
        JoinError::Unproved(why) => CliError::Said(
            Exit::Denied,
            format!(
                "{url} has not proved that it is the server of the code: {why}; nothing was written"
            ),
        ),
    }
}

/// How long the server may take: the command waits for it.
const RENEWAL_PATIENCE: Span = Span::from_secs(5);

/// Renews the client certificate of a machine that has joined, if less than a third of its time is
/// left. A failure is a warning: the command goes on with the certificate that it has.
pub(super) fn renew_certificate(access: &mut ServerAccess) {
    let (Some(path), Some((present, _))) = (&access.renewed_in, &access.identity) else { return };
    let Some((from, until)) = validity_of_certificate(present) else { return };
    let left = until - Wall::now().secs;
    if left <= 0 || left > (until - from) / 3 {
        return;
    }
    match renewed(path, access, present) {
        Ok(Some(identity)) => access.identity = Some((identity.clone(), identity)),
        Ok(None) => {}
        Err(why) => output::warn(&format!(
            "the certificate in {} ends in {} days, and can't be renewed: {why}; without another \
             one, join the server again",
            path.display(),
            left / 86_400
        )),
    }
}

/// How often a connection looks whether its certificate is another one: after another command has
/// renewed it, or after this machine was removed and has joined again.
const LOOK_EVERY: Span = Span::from_secs(5);
/// How often a connection looks whether its certificate is to be renewed.
const RENEW_EVERY: Span = Span::from_secs(86_400);

/// Uses the present client certificate of this machine while a connection lasts, and renews it in
/// time, however long that is: a mount or a guard may run for years.
pub(super) fn renew_while_connected(access: &ServerAccess, remote: &Arc<Remote>) -> CliResult {
    let Some(path) = access.renewed_in.clone() else { return Ok(()) };
    let (mut access, remote) = (access.clone(), Arc::downgrade(remote));
    let look = move || {
        let mut renewal = boot_now() + RENEW_EVERY;
        loop {
            sleep(LOOK_EVERY.as_duration());
            let Some(remote) = remote.upgrade() else { return };
            let before = access.identity.clone();
            if let Ok(identity) = fs::read(&path) {
                access.identity = Some((identity.clone(), identity));
            }
            if boot_now() >= renewal {
                renewal = boot_now() + RENEW_EVERY;
                renew_certificate(&mut access);
            }
            if access.identity != before
                && let Err(error) = remote.renew_keys(&access)
            {
                output::warn(&format!("{} can't be used: {error}", path.display()));
            }
        }
    };
    let started = thread::Builder::new().name("certificate".to_owned()).spawn(look);
    started.map(drop).map_err(|error| CliError::system("a thread can't be started", &error))
}

/// Returns the new key and certificate, which are in the file then; `None` if another command
/// renews them.
fn renewed(path: &Path, access: &ServerAccess, present: &[u8]) -> Result<Option<Vec<u8>>, String> {
    // The server knows the certificate of a device and the one before. Of two that were requested
    // at once, the file would keep one, and perhaps the other one.
    let file = File::open(path).map_err(|error| error.to_string())?;
    let is_unchanged = || fs::read(path).is_ok_and(|now| now == present);
    if file.try_lock().is_err() || !is_unchanged() {
        return Ok(None);
    }
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    let request = certificate_request(&key).map_err(|error| error.to_string())?;
    let asked = HomeRequest { request: Some(request), ..HomeRequest::default() };
    // Any node renews it.
    let mut answers = urls(&access.url).into_iter().map(|url| {
        let access = ServerAccess { url: url.to_owned(), ..access.clone() };
        api_request::post(&access, RENEW, &asked, RENEWAL_PATIENCE)
    });
    let first = answers.next().ok_or("no server is named")?;
    let answer = first.or_else(|why| answers.find_map(Result::ok).ok_or(why));
    let (code, answer) = answer.map_err(|error| error.to_string())?;
    let certificate = answer["certificate"].as_str().filter(|_| code == 200).ok_or_else(|| {
        let said = answer["detail"].as_str().map(output::harmless);
        said.unwrap_or_else(|| format!("the server answered {code}"))
    })?;
    let ca = access.ca.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    let key = key.serialize_pem();
    check_certificate(&ca, certificate, &key)?;
    let identity = (key + certificate).into_bytes();
    replace(path, &[&identity], Durable::Yes).map_err(|error| error.to_string())?;
    Ok(Some(identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_a_name_or_an_address_with_or_without_a_port() {
        for (text, url) in [
            ("box", "https://box:8443"),
            ("box.local:9", "https://box.local:9"),
            ("https://box/", "https://box:8443"),
            ("192.0.2.1", "https://192.0.2.1:8443"),
            ("::1", "https://[::1]:8443"),
            ("[::1]:9", "https://[::1]:9"),
        ] {
            assert_eq!(host(text).map(|host| host.url()).as_deref(), Ok(url), "{text}");
        }
        for wrong in ["", ":9", "box:x", "a/b", "u@box", "a,b", "http://box", "a\"", "a b"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn profile_names_all_nodes_and_a_server_alone_as_it_was_found() {
        let found = host("box.local").expect("a host");
        let all = |servers: &[&str]| {
            found.with_others(&servers.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(all(&["https://box:8443"]), "https://box.local:8443");
        let nodes = ["https://box.local:8443", "https://nas:8443", "https://a\"b:1"];
        assert_eq!(all(&nodes), "https://box.local:8443,https://nas:8443");
    }
}
