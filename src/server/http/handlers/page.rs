//! The status page at `/`: one HTML file that loads no other resources, with a content security
//! policy that forbids any.

use crate::auth::EXPIRY_NOTICE_SECS;
use crate::auth::permissions::Operation;
use crate::server::http::bodies::options::RequestOptions;
use crate::server::http::bodies::problem::HandlerResult;
use crate::server::http::bodies::response::{json, text};
use crate::server::http::request_context::RequestContext;
use crate::status::words_for_page;
use crate::time::Wall;
use axum::http::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The page as it is served: without the comments of its script, which stand in lines of their own,
/// and with the words for the fields of a waiter.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    let lines = include_str!("page.html").split_inclusive('\n');
    let page: String = lines.filter(|line| !line.trim_start().starts_with("//")).collect();
    page.replace("[/* of the server */]", &words_for_page().to_string())
});

/// Content security policy of the status page: it may run its own script and send requests to this
/// server.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let (script, style) = (digest_of("script"), digest_of("style"));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("base64 and words are a header value")
});

/// Returns the digest of the page's inline script or style, by which the content security policy
/// permits it.
fn digest_of(tag: &str) -> String {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let inside = PAGE.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
    let (inside, _) = inside.expect("the page has one of each");
    BASE64_STANDARD.encode(Sha256::digest(inside))
}

/// Handles `GET /`: returns the status page.
pub(in crate::server::http) async fn get_page(mut call: RequestContext) -> HandlerResult {
    RequestOptions::read(&mut call).await?;
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    let mut response = text(StatusCode::OK, kind, PAGE.as_str());
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

/// Handles `GET /me`: returns the caller's rights, on which the content of the status page depends.
pub(in crate::server::http) async fn me(mut call: RequestContext) -> HandlerResult {
    RequestOptions::read(&mut call).await?;
    let grant = &call.grant;
    let expiries = call.app.gate.expiries();
    let first = expiries.iter().copied().min_by_key(|(_, end)| *end);
    let soon = first.filter(|(_, end)| end - Wall::now().secs < EXPIRY_NOTICE_SECS);
    let warning = soon.map(|(name, secs)| {
        format!("the {name} certificate expires at {}", Wall { secs, nanos: 0 })
    });
    let me = json!({
        "name": grant.name,
        "client": grant.only_client(),
        "read_only": grant.is_read_only(),
        "steal": !grant.steals.is_empty(),
        // The field `cluster` is true if the server is a node of a cluster, and the caller may see
        // the cluster's status. Only then does the status page request the nodes of the cluster.
        "cluster": grant.may_begin(Operation::ShowCluster).is_ok()
            && call.app.locks.cluster_admin().is_some(),
        "locks": grant.prefixes,
        // The beginning of the names that a user of this machine has at the machine's daemon.
        "own_names": grant.own_names,
        "certificates": expiries.into_iter().collect::<BTreeMap<_, _>>(),
        "warning": warning,
        "server": server_name(&call),
        "version": env!("CARGO_PKG_VERSION"),
    });
    Ok(json(StatusCode::OK, &me))
}

/// Returns the name by which people know this server: that of the node, or else that of the host.
fn server_name(call: &RequestContext) -> String {
    let node = call.app.locks.cluster_admin().map(|cluster| cluster.own().name);
    let node = node.filter(|name| !name.is_empty()).map(|name| name.to_string());
    node.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}
