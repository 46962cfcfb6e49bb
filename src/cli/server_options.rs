//! The options by which a command uses a server instead of an engine in this process (URL and
//! credentials), and the connection to that server.

use super::environment::absolute;
use super::exit::{CliError, CliResult, Exit};
use super::output;
use crate::client::api_request::fetch;
use crate::client::http_transport::{Http, ServerAccess, is_exposed, may_learn};
use crate::client::transport::Transport;
use crate::client::{Failover, MakeServer, Remote, SERVERS_MAX, Terms};
use crate::time::Span;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options for the credentials that a command sends to a server, and for its CA certificate.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ServerKeyArgs {
    /// A file with the bearer token of the client
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        env = "LATCHFS_TOKEN_FILE",
        hide_env_values = true
    )]
    token_file: Option<PathBuf>,
    /// Send the token without encryption, also to a server on another machine
    #[arg(long, global = true, env = "LATCHFS_PLAIN_TOKEN", hide_env_values = true)]
    plain_token: bool,
    /// CA certificate (PEM) that verifies an https server
    #[arg(long, value_name = "FILE", global = true, env = "LATCHFS_CA", hide_env_values = true)]
    ca: Option<PathBuf>,
    /// Client certificate (PEM) of this command
    #[arg(long, value_name = "FILE", global = true, requires = "key")]
    cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", global = true, requires = "cert")]
    key: Option<PathBuf>,
}

impl ServerKeyArgs {
    /// Returns the options with absolute paths, because a daemon may change its working directory.
    pub(super) fn whole(&self) -> CliResult<Self> {
        let whole = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        Ok(Self {
            token_file: whole(&self.token_file)?,
            plain_token: self.plain_token,
            ca: whole(&self.ca)?,
            cert: whole(&self.cert)?,
            key: whole(&self.key)?,
        })
    }

    /// Returns the URL of a server that gets no credentials.
    pub(super) fn access_without_credentials(&self, url: &str) -> CliResult<ServerAccess> {
        let ca = self.ca.as_deref().map(read).transpose()?;
        Ok(ServerAccess { url: url.to_owned(), token: None, ca, identity: None })
    }

    /// Returns the URL of a server together with the credentials for it.
    pub(super) fn access(&self, url: &str) -> CliResult<ServerAccess> {
        let file = |path: &Option<PathBuf>| path.as_deref().map(read).transpose();
        let token = file(&self.token_file)?;
        let exposed = urls(url).into_iter().find(|url| is_exposed(url));
        if token.is_some()
            && !self.plain_token
            && let Some(url) = exposed
        {
            return Err(CliError::usage(format!(
                "the token is not sent to {url}, since others could read it on the way; use https, \
                 or say --plain-token where the network itself is encrypted"
            )));
        }
        if let Some(path) = &self.token_file {
            warn_of_readers(path);
        }
        let identity = file(&self.cert)?.zip(file(&self.key)?);
        let token = token.map(|token| String::from_utf8_lossy(&token).trim().to_owned());
        Ok(ServerAccess { url: url.to_owned(), token, ca: file(&self.ca)?, identity })
    }
}

fn read(path: &Path) -> CliResult<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| CliError::system(&format!("{} can't be read", path.display()), &error))
}

/// Warns if other users can read the token file, because anyone with the token can act as its
/// owner.
fn warn_of_readers(path: &Path) {
    let others = |mode: u32| mode & 0o077 != 0;
    if std::fs::metadata(path).is_ok_and(|found| others(found.mode())) {
        let path = path.display();
        output::say(&format!("others can read the token in {path}; run 'chmod 600 {path}'"));
    }
}

/// Returns the URLs of a comma-separated list, without duplicates.
pub(super) fn urls(list: &str) -> Vec<&str> {
    let mut urls: Vec<&str> = Vec::new();
    for url in list.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

/// Sends one API request to each server of a list in turn, until one answers. Returns the URL of
/// that server and its answer.
pub(super) fn ask_first(
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
            Err(why) => last = CliError::unavailable(why),
        }
    }
    Err(last)
}

fn refused(code: u16, problem: &Value) -> CliError {
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

/// Returns the transport for the URL in `access`. If it is a list of URLs, returns a transport with
/// failover between those servers.
fn server(access: &ServerAccess) -> CliResult<Arc<dyn Transport>> {
    let usable = |url: &str| -> CliResult<Arc<dyn Transport>> {
        let access = ServerAccess { url: url.to_owned(), ..access.clone() };
        let http = Http::new(&access).map_err(|error| CliError::usage(error.to_string()))?;
        Ok(Arc::new(http))
    };
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
        let known = urls(&access.url);
        let is_plain = access.token.is_none() || known.iter().any(|known| is_exposed(known));
        let is_safe =
            known.iter().all(|known| may_learn(known, url)) && (is_plain || !is_exposed(url));
        let made = Http::new(&ServerAccess { url: url.to_owned(), ..access.clone() });
        made.ok().filter(|_| is_safe).map(|http| Arc::new(http) as _)
    })
}

/// Connects to the servers of `access`; fails if none of them has answered in time.
pub(super) fn connect(access: &ServerAccess, terms: Option<Terms>) -> CliResult<Arc<Remote>> {
    connect_since(access, terms, None)
}

/// Connects to the servers like [`connect`], with an event stream from event `since` on.
pub(super) fn connect_since(
    access: &ServerAccess,
    terms: Option<Terms>,
    since: Option<u64>,
) -> CliResult<Arc<Remote>> {
    let server = server(access)?;
    let remote = Remote::connect_since(server, terms, since)
        .map_err(|error| CliError::system("no connection can be made", &error))?;
    match remote.trouble() {
        None => Ok(Arc::new(remote)),
        Some((kind, sentence)) => Err(CliError::Said(Exit::of(kind), sentence)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let none = || None::<PathBuf>;
        let key = ServerKeyArgs {
            token_file: Some(token.clone()),
            plain_token: false,
            ca: none(),
            cert: none(),
            key: none(),
        };
        for list in ["https://a:8443,http://b:8080", "http://localhost/,http://box:8080"] {
            let Err(CliError::Said(Exit::Usage, why)) = key.access(list) else { panic!("{list}") };
            assert!(why.contains("is not sent to http://b"), "{list}: {why}");
        }
        let access = key.access("http://localhost:1").expect("it stays on this machine");
        assert!(server_maker(&access)("http://10.0.0.2:8080").is_none(), "a learned server");
        assert!(server_maker(&access)("http://localhost:2").is_some());
        std::fs::remove_file(token).expect("it is there");
    }
}
