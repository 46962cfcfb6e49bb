//! The connection of a command to a server, or to the nodes of a cluster.

use super::credential_options::ServerKeyArgs;
use super::exit::{CliError, CliResult, Exit};
use super::output;
use super::server_urls::urls;
use crate::client::api_request::{fetch, no_answer};
use crate::client::http_transport::{Http, ServerAccess, is_exposed, may_learn};
use crate::client::server_events::ServerEvents;
use crate::client::transport::{Transport, TransportError};
use crate::client::{Failover, MakeServer, Remote, SERVERS_MAX, Terms};
use crate::time::Span;
use serde_json::Value;
use std::sync::Arc;

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
            Err(why @ TransportError::Denied(_)) => {
                return Err(CliError::Said(Exit::Denied, why.to_string()));
            }
            Err(why) => last = CliError::unavailable(why.to_string()),
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
pub(super) fn events(access: &ServerAccess, since: Option<u64>) -> CliResult<ServerEvents> {
    let servers: CliResult<Vec<_>> =
        urls(&access.url).into_iter().map(|url| at(access, url)).collect();
    let own = access.clone();
    let learn = move |url: &str| at(&own, url).ok().filter(|_| may_use(&own, url));
    ServerEvents::open(servers?, Box::new(learn), since).map_err(|trouble| match trouble {
        TransportError::Denied(why) => CliError::Said(Exit::Denied, why),
        other => CliError::unavailable(no_answer(&access.url, &other)),
    })
}

/// Connects to the servers of `access`; fails if none of them has answered in time.
pub(super) fn connect(access: &ServerAccess, terms: Option<Terms>) -> CliResult<Arc<Remote>> {
    let server = server(access)?;
    let remote = Remote::connect(server, terms)
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
    fn credentials_follow_a_cluster_only_where_they_are_as_safe() {
        let token = Some("a secret of some length".to_owned());
        let access =
            ServerAccess { url: "http://localhost:1".to_owned(), token, ..Default::default() };
        assert!(server_maker(&access)("http://10.0.0.2:8080").is_none(), "a learned server");
        assert!(server_maker(&access)("http://localhost:2").is_some());
    }
}
