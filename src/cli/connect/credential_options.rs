//! Connection options: the server of a command and the credentials for it, from the command line,
//! the environment and a profile of the configuration file, in this order.
//!
//! The credentials of a profile are sent to the servers of that profile only. With `--profile` the
//! environment is left out, so that its credentials do not reach a server that they are not for.
//!
//! The connection of a command to a server, or to the nodes of a cluster.
//!
//! Comma-separated lists of the URLs of servers.

use super::config_file::{Config, NamedProfile, Profile, urls};
use super::join_command;
use super::machine_locks::MachineLocks;
use crate::auth::name_in_certificate;
use crate::base::said;
use crate::cli::argument_types::{absolute, host, own_client, text_variable, variable};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output;
use crate::client::api_request::{fetch, no_answer};
use crate::client::http_transport::{Http, ServerAccess, is_exposed, may_learn};
use crate::client::http_transport::{Transport, TransportError};
use crate::client::server_events::ServerEvents;
use crate::client::{Failover, MakeServer, Remote, SERVERS_MAX, Terms};
use crate::engine::ClientId;
use crate::time::Span;
use serde_json::Value;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

/// The heading of the options by which a command finds the locks that it is about.
pub(super) const PLACE_HEADING: &str = "Mount or server";

/// The options for the credentials that a command sends to a server, and for its CA certificate.
#[derive(Debug, Clone, Default, clap::Args)]
pub(in crate::cli) struct ServerKeyArgs {
    // None of these options uses clap's `env`, which would hide whether a value comes from the
    // environment or from the command line.
    /// The server and its credentials as the configuration file describes them under this name
    /// [env: `LATCHFS_PROFILE`]
    #[arg(long, help_heading = PLACE_HEADING, value_name = "NAME", global = true)]
    profile: Option<String>,
    /// A file with the bearer token of the client [env: `LATCHFS_TOKEN_FILE`]
    #[arg(long, help_heading = PLACE_HEADING, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Send the token without encryption, also to a server on another machine [env:
    /// `LATCHFS_PLAIN_TOKEN`]
    #[arg(long, help_heading = PLACE_HEADING, global = true)]
    plain_token: bool,
    /// CA certificate (PEM) that verifies an https server [env: `LATCHFS_CA`] [default: those that
    /// this machine trusts]
    #[arg(long, help_heading = PLACE_HEADING, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
    /// Client certificate (PEM) of this command [env: `LATCHFS_CERT`]
    #[arg(long, help_heading = PLACE_HEADING, value_name = "FILE", global = true)]
    cert: Option<PathBuf>,
    /// The key of that certificate (PEM) [env: `LATCHFS_KEY`]
    #[arg(long, help_heading = PLACE_HEADING, value_name = "FILE", global = true)]
    key: Option<PathBuf>,
}

/// Where the value of a connection option comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum OptionSource {
    /// The command line.
    Argument,
    /// An environment variable.
    Variable(&'static str),
    /// A profile, by its name and the file that defines it.
    Profile(String, PathBuf),
    /// The common name, or the first DNS name, of the client certificate.
    Certificate,
}

/// How long each server may take to say who a token is for.
const ME_PATIENCE: Span = Span::from_secs(5);

/// The variables that name credentials, or the client to ask as.
pub(super) const CREDENTIAL_VARIABLES: [&str; 6] = [TOKEN_FILE, PLAIN_TOKEN, CA, CERT, KEY, CLIENT];

const TOKEN_FILE: &str = "LATCHFS_TOKEN_FILE";
const PLAIN_TOKEN: &str = "LATCHFS_PLAIN_TOKEN";
const CA: &str = "LATCHFS_CA";
const CERT: &str = "LATCHFS_CERT";
const KEY: &str = "LATCHFS_KEY";
const CLIENT: &str = "LATCHFS_CLIENT";

/// A connection option, with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Sourced<T> {
    pub(in crate::cli) value: T,
    pub(in crate::cli) source: OptionSource,
}

/// The files with the credentials for one server or cluster, and the client to ask as. The paths
/// are absolute, because a daemon may change its working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct ServerCredentials {
    /// The URL, or a comma-separated list of URLs.
    pub(in crate::cli) url: String,
    pub(in crate::cli) token_file: Option<Sourced<PathBuf>>,
    pub(super) plain_token: Option<Sourced<bool>>,
    pub(in crate::cli) ca: Option<Sourced<PathBuf>>,
    pub(in crate::cli) cert: Option<Sourced<PathBuf>>,
    pub(in crate::cli) key: Option<Sourced<PathBuf>>,
    pub(in crate::cli) client: Option<Sourced<ClientId>>,
}

impl fmt::Display for OptionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument => f.write_str("the command line"),
            Self::Variable(name) => f.write_str(name),
            Self::Profile(name, file) => write!(f, "profile '{name}' in {}", file.display()),
            Self::Certificate => f.write_str("the client certificate"),
        }
    }
}

impl ServerKeyArgs {
    /// Returns the options as arguments of a command.
    pub(in crate::cli) fn arguments(&self) -> Vec<OsString> {
        let profile = self.profile.as_ref().map(OsString::from);
        let file = |path: &Option<PathBuf>| path.clone().map(OsString::from);
        let valued = [
            ("--profile", profile),
            ("--token-file", file(&self.token_file)),
            ("--ca", file(&self.ca)),
            ("--cert", file(&self.cert)),
            ("--key", file(&self.key)),
        ];
        let valued = valued.into_iter().filter_map(|(name, value)| Some([name.into(), value?]));
        valued.flatten().chain(self.plain_token.then(|| "--plain-token".into())).collect()
    }

    /// Returns the name that `--profile` gives.
    pub(in crate::cli) fn profile_argument(&self) -> Option<&str> {
        self.profile.as_deref()
    }

    /// Returns the server that the command line names, by `--server` or by `--profile`.
    pub(in crate::cli) fn named_server(
        &self,
        server: Option<&String>,
    ) -> CliResult<Option<String>> {
        match (server, &self.profile) {
            (Some(server), _) => Ok(Some(server.clone())),
            (None, Some(_)) => Ok(self.default_server()?.map(|server| server.value)),
            (None, None) => Ok(None),
        }
    }

    /// Returns the server to use where the command line names no server and no mount: that of
    /// `--profile`, of `LATCHFS_SERVER`, of `LATCHFS_PROFILE`, or of the default profile.
    pub(in crate::cli) fn default_server(&self) -> CliResult<Option<Sourced<String>>> {
        if self.profile.is_none()
            && let Some(url) = text_variable("LATCHFS_SERVER")?
        {
            let source = OptionSource::Variable("LATCHFS_SERVER");
            return Ok(Some(Sourced { value: url, source }));
        }
        Ok(self.selected_profile()?.map(|selected| {
            let source = OptionSource::Profile(selected.name, selected.file);
            Sourced { value: selected.profile.server, source }
        }))
    }

    /// Returns the profile that `--profile`, `LATCHFS_PROFILE` or the configuration file selects.
    fn selected_profile(&self) -> CliResult<Option<NamedProfile>> {
        let name = match &self.profile {
            Some(name) => Some(name.clone()),
            None => text_variable("LATCHFS_PROFILE")?,
        };
        Config::read()?.profile(name.as_deref())
    }

    /// Returns the credentials for the server at `url`.
    pub(in crate::cli) fn credentials(&self, url: &str) -> CliResult<ServerCredentials> {
        let profile = self.selected_profile()?;
        let covering = profile.as_ref().filter(|selected| covers(&selected.profile.server, url));
        if let (Some(asked), Some(profile), None) = (&self.profile, &profile, covering) {
            return Err(CliError::usage(format!(
                "profile '{asked}' is for {}, and {url} is asked; leave --profile out, or add the \
                 URL to its server in {}",
                profile.profile.server,
                profile.file.display()
            )));
        }
        let layers = Layers { reads_environment: self.profile.is_none(), profile: covering };
        layers.credentials(self, url)
    }

    /// Returns the URL of a server together with the credentials for it.
    pub(in crate::cli) fn access(&self, url: &str) -> CliResult<ServerAccess> {
        self.credentials(url)?.read()
    }

    /// Whether `LATCHFS_SERVER` or the selected profile names all servers of `url`.
    pub(super) fn is_configured(&self, url: &str) -> CliResult<bool> {
        let variable = text_variable("LATCHFS_SERVER")?;
        let variable = variable.filter(|_| self.profile.is_none());
        if variable.is_some_and(|known| covers(&known, url)) {
            return Ok(true);
        }
        Ok(self.selected_profile()?.is_some_and(|known| covers(&known.profile.server, url)))
    }

    /// Returns the URL of a server that gets no credentials.
    pub(super) fn access_without_credentials(&self, url: &str) -> CliResult<ServerAccess> {
        let layers = Layers { reads_environment: self.profile.is_none(), profile: None };
        let ca = layers.file(self.ca.as_ref(), CA, |_| &None)?;
        let ca = ca.as_ref().map(read).transpose()?;
        Ok(ServerAccess { url: url.to_owned(), ca, ..ServerAccess::default() })
    }

    /// Returns the access to a server that a folder names. Anyone who can write to the folder can
    /// name another server there, and have a certificate for it that a public CA has signed. So
    /// credentials are sent only if the user's configuration names the server too.
    pub(in crate::cli) fn access_of_folder(&self, url: &str) -> CliResult<ServerAccess> {
        let access = self.access(url)?;
        let has_credentials = access.token.is_some() || access.identity.is_some();
        if has_credentials && !self.is_configured(url)? {
            return Err(CliError::usage(format!(
                "the folder names the server {url}, to which your credentials would be sent; pass \
                 --server {url} if you trust it, or name it in LATCHFS_SERVER or in a profile"
            )));
        }
        Ok(access)
    }

    /// Returns the name of this machine at the server at `url`: `given`, or that of its
    /// certificate, or else that of the host.
    pub(in crate::cli) fn machine_at(
        &self,
        url: &str,
        given: Option<&ClientId>,
    ) -> CliResult<ClientId> {
        let own = self.credentials(url)?.client;
        let own = own.filter(|own| own.source == OptionSource::Certificate).map(|own| own.value);
        given.cloned().or(own).map_or_else(host, Ok)
    }

    /// Returns the client as which to ask the server at `url`, if no option names one.
    pub(in crate::cli) fn client_at(&self, url: &str) -> CliResult<ClientId> {
        let credentials = self.credentials(url)?;
        credentials.client_or_own(&credentials.read()?)
    }
}

/// The sources of options below the command line.
struct Layers<'a> {
    reads_environment: bool,
    /// The profile, if it is one for the server that is asked.
    profile: Option<&'a NamedProfile>,
}

impl Layers<'_> {
    fn credentials(&self, args: &ServerKeyArgs, url: &str) -> CliResult<ServerCredentials> {
        let plain_token = args.plain_token.then_some(true);
        let is_plain = |text: OsString| Ok(is_yes(&text.to_string_lossy()));
        let client_of = |profile: &Profile| ClientId::parse(profile.client.as_ref()?).ok();
        let mut found = ServerCredentials {
            url: url.to_owned(),
            token_file: self.file(args.token_file.as_ref(), TOKEN_FILE, |it| &it.token_file)?,
            plain_token: self.first(plain_token, PLAIN_TOKEN, is_plain, |it| it.plain_token)?,
            ca: self.file(args.ca.as_ref(), CA, |it| &it.ca)?,
            cert: self.file(args.cert.as_ref(), CERT, |it| &it.cert)?,
            key: self.file(args.key.as_ref(), KEY, |it| &it.key)?,
            client: self.first(None, CLIENT, client_in_variable, client_of)?,
        };
        match (&found.cert, &found.key) {
            (Some(cert), None) => return Err(half("certificate", cert, "key", "--key FILE")),
            (None, Some(key)) => return Err(half("key", key, "certificate", "--cert FILE")),
            _ => {}
        }
        if found.client.is_none() {
            found.client = found.named_by_certificate()?;
        }
        Ok(found)
    }

    fn file(
        &self,
        argument: Option<&PathBuf>,
        name: &'static str,
        of_profile: fn(&Profile) -> &Option<PathBuf>,
    ) -> CliResult<Option<Sourced<PathBuf>>> {
        let argument = argument.map(|path| absolute(path)).transpose()?;
        let parse = |path: OsString| absolute(Path::new(&path));
        self.first(argument, name, parse, |profile| of_profile(profile).clone())
    }

    /// Returns the first value that is given: by the command line, by the variable `name`, or by
    /// the profile.
    fn first<T>(
        &self,
        argument: Option<T>,
        name: &'static str,
        parse: impl FnOnce(OsString) -> CliResult<T>,
        of_profile: impl FnOnce(&Profile) -> Option<T>,
    ) -> CliResult<Option<Sourced<T>>> {
        if let Some(value) = argument {
            return Ok(Some(Sourced { value, source: OptionSource::Argument }));
        }
        let given = if self.reads_environment { variable(name) } else { None };
        if let Some(value) = given.map(parse).transpose()? {
            return Ok(Some(Sourced { value, source: OptionSource::Variable(name) }));
        }
        Ok(self.profile.and_then(|NamedProfile { name, file, profile }| {
            let source = OptionSource::Profile(name.clone(), file.clone());
            Some(Sourced { value: of_profile(profile)?, source })
        }))
    }
}

fn client_in_variable(text: OsString) -> CliResult<ClientId> {
    let wrong = |why: String| CliError::usage(format!("{CLIENT} can't be used: {why}"));
    let text = text.into_string().map_err(|_| wrong("it is not UTF-8".to_owned()))?;
    ClientId::parse(&text).map_err(|error| wrong(error.to_string()))
}

/// Returns the error for a certificate without a key, or a key without a certificate.
fn half(what: &str, given: &Sourced<PathBuf>, other: &str, option: &str) -> CliError {
    let (path, source) = (given.value.display(), &given.source);
    CliError::usage(format!(
        "the client {what} {path} ({source}) is of no use without its {other}; name it by {option}"
    ))
}

/// Whether the value of a variable turns a switch on, as clap reads such values.
fn is_yes(text: &str) -> bool {
    !["0", "false", "f", "no", "n", "off"].iter().any(|no| text.eq_ignore_ascii_case(no))
}

impl ServerCredentials {
    /// Reads the files.
    pub(in crate::cli) fn read(&self) -> CliResult<ServerAccess> {
        let file = |path: &Option<Sourced<PathBuf>>| path.as_ref().map(read).transpose();
        let token = file(&self.token_file)?;
        let exposed = urls(&self.url).into_iter().find(|url| is_exposed(url));
        if token.is_some()
            && !self.plain_token.as_ref().is_some_and(|plain| plain.value)
            && let Some(url) = exposed
        {
            return Err(CliError::usage(format!(
                "the token is not sent to {url}, since others could read it on the way; use https, \
                 or say --plain-token where the network itself is encrypted"
            )));
        }
        if let Some(path) = &self.token_file {
            warn_of_readers(&path.value);
        }
        let identity = file(&self.cert)?.zip(file(&self.key)?);
        let token = token.map(|token| String::from_utf8_lossy(&token).trim().to_owned());
        // `join` has written both into one file.
        let both = self.cert.as_ref().zip(self.key.as_ref());
        let both = both.filter(|(cert, key)| cert.value == key.value);
        let renewed_in = both.map(|(cert, _)| cert.value.clone());
        let (url, ca) = (self.url.clone(), file(&self.ca)?);
        let mut access = ServerAccess { url, token, ca, identity, renewed_in };
        join_command::renew_certificate(&mut access);
        Ok(access)
    }

    /// Returns the client to ask as, if the command line names none. A bearer token may be for one
    /// client alone, which only the server knows.
    pub(super) fn client_or_own(&self, access: &ServerAccess) -> CliResult<ClientId> {
        if let Some(client) = &self.client {
            return Ok(client.value.clone());
        }
        if access.token.is_some()
            && let Some(client) = only_client(access)
        {
            return Ok(client);
        }
        let machine = MachineLocks::at(&self.url)?.and_then(|machine| machine.client.clone());
        machine.map_or_else(own_client, Ok)
    }

    /// Returns the client that the client certificate names.
    fn named_by_certificate(&self) -> CliResult<Option<Sourced<ClientId>>> {
        let Some(path) = &self.cert else { return Ok(None) };
        let name = name_in_certificate(&read(path)?);
        let client = name.and_then(|name| ClientId::parse(&name).ok());
        Ok(client.map(|value| Sourced { value, source: OptionSource::Certificate }))
    }
}

/// Returns the client of credentials that are for one alone. If no server answers, the command
/// itself says so.
fn only_client(access: &ServerAccess) -> Option<ClientId> {
    let me = urls(&access.url).into_iter().find_map(|url| {
        let access = ServerAccess { url: url.to_owned(), ..access.clone() };
        fetch(&access, "GET", "/me", ME_PATIENCE).ok().filter(|(code, _)| *code == 200)
    });
    ClientId::parse(me?.1["client"].as_str()?).ok()
}

fn read(path: &Sourced<PathBuf>) -> CliResult<Vec<u8>> {
    let Sourced { value: path, source } = path;
    std::fs::read(path).map_err(|error| {
        let (path, why) = (path.display(), said(&error));
        CliError::unavailable(format!(
            "{path} can't be read: {why}; {source} names it: correct the path there, or the file"
        ))
    })
}

/// Warns if other users can read the token file, because anyone with the token can act as its
/// owner.
fn warn_of_readers(path: &Path) {
    static WARNED: Once = Once::new();
    let others = |mode: u32| mode & 0o077 != 0;
    if std::fs::metadata(path).is_ok_and(|found| others(found.mode())) {
        let path = path.display();
        WARNED.call_once(|| {
            output::say(&format!("others can read the token in {path}; run 'chmod 600 {path}'"));
        });
    }
}

/// Sends one API request to each server of a list in turn, until one answers. Returns the URL of
/// that server and its answer.
pub(in crate::cli) fn ask_first(
    servers: &str,
    key: &ServerKeyArgs,
    method: &str,
    path: &str,
    patience: Span,
) -> CliResult<(String, Value)> {
    let mut last = CliError::usage("name a server with --server URL");
    for url in urls(servers) {
        match fetch(&key.access(url)?, method, path, patience) {
            Ok((200, answer)) => return Ok((url.to_owned(), answer)),
            Ok((code, problem)) => return Err(refused(code, &problem)),
            Err(why @ TransportError::Denied(_)) => {
                return Err(CliError::Said(Exit::Denied, why.to_string()));
            }
            Err(why) => last = CliError::unavailable(why.to_string()),
        }
    }
    Err(last)
}

/// Returns the error for the answer of a server that has refused a request.
pub(in crate::cli) fn refused(code: u16, problem: &Value) -> CliError {
    let said = problem["detail"].as_str().map(output::harmless);
    let said = said.unwrap_or_else(|| format!("the server answered {code}"));
    let exit = match code {
        400 | 404 => Exit::Usage,
        401 | 403 => Exit::Denied,
        409 | 429 => Exit::Conflict,
        _ => Exit::Unavailable,
    };
    CliError::Said(exit, said)
}

/// Returns the transport for one URL, with the credentials of `access`.
fn at(access: &ServerAccess, url: &str) -> CliResult<Http> {
    let access = ServerAccess { url: url.to_owned(), ..access.clone() };
    Http::new(&access).map_err(|error| CliError::usage(error.to_string()))
}

/// Returns the transport for the URL in `access`. If it is a list of URLs, returns a transport with
/// failover between those servers.
fn server(access: &ServerAccess) -> CliResult<Arc<dyn Transport>> {
    let usable = |url: &str| Ok(Arc::new(at(access, url)?) as Arc<dyn Transport>);
    match &urls(&access.url)[..] {
        [] => usable(&access.url),
        urls if urls.len() > SERVERS_MAX => {
            Err(CliError::usage(format!("--server names {SERVERS_MAX} servers at most")))
        }
        urls => {
            let servers: CliResult<Vec<_>> = urls.iter().map(|url| usable(url)).collect();
            Ok(Arc::new(Failover::learning(servers?, server_maker(access))))
        }
    }
}

/// Returns a function that creates transports to the other nodes of a cluster, whose URLs a node
/// has reported. It uses the same credentials, and returns no transport for a URL to which the
/// credentials must not be sent: a token is not sent without encryption unless it already is.
fn server_maker(access: &ServerAccess) -> MakeServer {
    let access = access.clone();
    Box::new(move |url| {
        at(&access, url).ok().filter(|_| may_use(&access, url)).map(|http| Arc::new(http) as _)
    })
}

/// Whether the credentials of `access` may be sent to the node at `url`, which a server of `access`
/// has reported.
pub(super) fn may_use(access: &ServerAccess, url: &str) -> bool {
    let known = urls(&access.url);
    let is_plain = access.token.is_none() || known.iter().any(|known| is_exposed(known));
    known.iter().all(|known| may_learn(known, url)) && (is_plain || !is_exposed(url))
}

/// Opens the events of the servers of `access`, from event `since` on; fails if none of them
/// answers.
pub(in crate::cli) fn events(access: &ServerAccess, since: Option<u64>) -> CliResult<ServerEvents> {
    let servers: CliResult<Vec<_>> =
        urls(&access.url).into_iter().map(|url| at(access, url)).collect();
    let own = access.clone();
    let learn = move |url: &str| at(&own, url).ok().filter(|_| may_use(&own, url));
    ServerEvents::open(servers?, Box::new(learn), since).map_err(|error| match error {
        TransportError::Denied(why) => CliError::Said(Exit::Denied, why),
        other => CliError::unavailable(no_answer(&access.url, &other)),
    })
}

/// Connects to the servers of `access`; fails if none of them has answered in time.
pub(in crate::cli) fn connect(
    access: &ServerAccess,
    terms: Option<Terms>,
) -> CliResult<Arc<Remote>> {
    let server = server(access)?;
    let remote = Remote::connect(server, terms)
        .map_err(|error| CliError::system("no connection can be made", &error))?;
    if let Some((kind, sentence)) = remote.connection_error() {
        return Err(CliError::Said(Exit::of(kind), sentence));
    }
    let remote = Arc::new(remote);
    join_command::renew_while_connected(access, &remote)?;
    Ok(remote)
}

/// Whether the list `known` has all URLs of the list `url`.
pub(in crate::cli) fn covers(known: &str, url: &str) -> bool {
    let plain = |url: &str| url.trim_end_matches('/').to_owned();
    let known: Vec<_> = urls(known).into_iter().map(plain).collect();
    let all = urls(url);
    !all.is_empty() && all.into_iter().all(|url| known.contains(&plain(url)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::Exit;

    fn args() -> ServerKeyArgs {
        ServerKeyArgs { profile: Some("p".to_owned()), ..ServerKeyArgs::default() }
    }

    fn profile() -> NamedProfile {
        let profile = Profile {
            server: "https://a:1,https://b:1/".to_owned(),
            token_file: Some("/p.token".into()),
            client: Some("ci".to_owned()),
            ..Profile::default()
        };
        NamedProfile { name: "p".to_owned(), file: "/config".into(), profile }
    }

    #[test]
    fn the_command_line_comes_before_the_profile() {
        let profile = profile();
        let layers = Layers { reads_environment: false, profile: Some(&profile) };
        let found = layers.credentials(&args(), "https://a:1").expect("valid");
        let of_profile = OptionSource::Profile("p".to_owned(), "/config".into());
        let token = Sourced { value: "/p.token".into(), source: of_profile.clone() };
        assert_eq!(found.token_file, Some(token));
        let client = ClientId::parse("ci").expect("valid");
        assert_eq!(found.client, Some(Sourced { value: client, source: of_profile }));
        let args = ServerKeyArgs { token_file: Some("/mine".into()), ..args() };
        let found = layers.credentials(&args, "https://a:1").expect("valid");
        let token = Sourced { value: "/mine".into(), source: OptionSource::Argument };
        assert_eq!(found.token_file, Some(token));
    }

    #[test]
    fn half_an_identity_is_refused() {
        let layers = Layers { reads_environment: false, profile: None };
        let args = ServerKeyArgs { key: Some("/k".into()), ..args() };
        let Err(CliError::Said(Exit::Usage, why)) = layers.credentials(&args, "https://a") else {
            panic!("it has no certificate")
        };
        assert!(
            why.contains("/k (the command line) is of no use without its certificate"),
            "{why}"
        );
    }

    #[test]
    fn tokens_leave_the_machine_encrypted_only() {
        for url in [
            "http://localhost:8080",
            "http://127.0.0.1",
            "http://[::1]:1/",
            "https://box",
            "HTTPS://box",
        ] {
            assert!(!is_exposed(url), "{url}");
        }
        for url in ["http://box.lan:8080", "http://192.0.2.1", "HTTP://[2001:db8::1]:80"] {
            assert!(is_exposed(url), "{url}");
        }
        let token = std::env::temp_dir().join(format!("latchfs-token-{}", std::process::id()));
        std::fs::write(&token, "a secret of some length").expect("a file");
        let args = ServerKeyArgs { token_file: Some(token.clone()), ..ServerKeyArgs::default() };
        let layers = Layers { reads_environment: false, profile: None };
        let access = |list| layers.credentials(&args, list).and_then(|found| found.read());
        for list in ["https://a:8443,http://b:8080", "http://localhost/,http://box:8080"] {
            let Err(CliError::Said(Exit::Usage, why)) = access(list) else { panic!("{list}") };
            assert!(why.contains("is not sent to http://b"), "{list}: {why}");
        }
        access("http://localhost:1").expect("it stays on this machine");
        std::fs::remove_file(token).expect("it is there");
    }
}

#[cfg(test)]
mod server_options_tests {
    use super::*;

    #[test]
    fn credentials_follow_a_cluster_only_where_they_are_as_safe() {
        let token = Some("a secret of some length".to_owned());
        let access =
            ServerAccess { url: "http://localhost:1".to_owned(), token, ..Default::default() };
        assert!(server_maker(&access)("http://10.0.0.2:8080").is_none(), "a learned server");
        assert!(server_maker(&access)("http://localhost:2").is_some());
    }
}

#[cfg(test)]
mod server_urls_tests {
    use super::*;

    #[test]
    fn a_list_covers_its_own_urls_only() {
        let known = "https://a:1,https://b:1/";
        for url in ["https://a:1", "https://b:1", "https://b:1,https://a:1/"] {
            assert!(covers(known, url), "{url}");
        }
        for url in ["https://a:2", "http://a:1", "https://a:1,https://c:1", "", "https://a:10"] {
            assert!(!covers(known, url), "{url}");
        }
    }
}
