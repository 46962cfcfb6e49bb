//! `/metrics`: what the engine counts, and what was asked of this server.

use super::app_state::AppState;
use super::options::RequestOptions;
use super::problem::HandlerResult;
use super::request_context::{RequestContext, text};
use super::routes::{Endpoint, ROUTES};
use crate::metrics::MetricsPage;
use crate::service::cluster_status::{Behind, Member, Outlook, Standing};
use axum::http::{HeaderValue, StatusCode};
use std::sync::atomic::{AtomicU64, Ordering};

/// The codes that answers have; what is not among them is counted as the last.
const CODES: [u16; 21] = [
    200, 201, 204, 304, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 415, 422, 429, 431, 500,
    503, 0,
];

/// Counts of requests by endpoint and status code.
pub(super) struct RequestCounts(Vec<[AtomicU64; CODES.len()]>);

impl Default for RequestCounts {
    fn default() -> Self {
        let acts: usize = ROUTES.iter().map(|route| route.acts.len()).sum();
        Self((0..acts).map(|_| <[AtomicU64; CODES.len()]>::default()).collect())
    }
}

impl RequestCounts {
    /// Counts an answer to the act with this number in the table.
    pub(super) fn count(&self, act: usize, code: StatusCode) {
        let code = CODES.iter().position(|known| *known == code.as_u16());
        let counter = code.unwrap_or(CODES.len() - 1);
        self.0[act][counter].fetch_add(1, Ordering::Relaxed);
    }
}

/// All acts of the table, in order.
pub(super) fn acts() -> impl Iterator<Item = (&'static str, &'static Endpoint)> {
    ROUTES.iter().flat_map(|route| route.acts.iter().map(|act| (route.path, act)))
}

/// GET /metrics.
pub(super) async fn show(mut call: RequestContext) -> HandlerResult {
    RequestOptions::read(&mut call).await?;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(text(StatusCode::OK, kind, page(&call.app)))
}

fn page(app: &AppState) -> String {
    let mut page = MetricsPage::of(&app.locks);
    for (name, help, value) in [
        ("latchfs_http_connections", "Open connections.", app.peers.connections()),
        (
            "latchfs_http_quiet",
            "Connections that only keep a session alive.",
            app.quiet.load(Ordering::Relaxed),
        ),
        ("latchfs_http_waiting", "Requests that wait in line.", app.places.waiting()),
    ] {
        page.family(name, help, "gauge");
        page.line("", value as u64);
    }
    if let Some(council) = app.locks.council() {
        of_node(&mut page, &council.own());
        of_nodes(&mut page, &council.outlook());
    }
    page.family("latchfs_http_requests_total", "Requests, by route and code.", "counter");
    for ((path, act), counters) in acts().zip(&app.requests.0) {
        for (code, counter) in CODES.iter().zip(counters) {
            let count = counter.load(Ordering::Relaxed);
            if count > 0 {
                let code = if *code == 0 { "other".to_owned() } else { code.to_string() };
                let labels = format!("method=\"{}\",route=\"{path}\",code=\"{code}\"", act.method);
                page.line(&labels, count);
            }
        }
    }
    for more in &*app.more_metrics.lock() {
        more(&mut page);
    }
    page.text()
}

/// How this node stands.
fn of_node(page: &mut MetricsPage, own: &Member) {
    let leads = u64::from(own.standing == Standing::Leader);
    let votes = u64::from(!matches!(own.standing, Standing::Learner | Standing::Stranger));
    for (name, help, value) in [
        ("latchfs_cluster_term", "The term: it rises with each election.", own.term),
        ("latchfs_cluster_leads", "Whether this node leads.", leads),
        ("latchfs_cluster_votes", "Whether this node votes.", votes),
        ("latchfs_cluster_has_leader", "Whether anybody leads.", own.leader.is_some().into()),
        ("latchfs_cluster_last_log", "The last entry of this node's log.", own.last_log),
        ("latchfs_cluster_applied", "The last entry carried out here.", own.applied),
    ] {
        page.family(name, help, "gauge");
        page.line("", value);
    }
}

/// What this node knows of all.
fn of_nodes(page: &mut MetricsPage, outlook: &Outlook) {
    page.family("latchfs_cluster_nodes", "Nodes, by whether they vote or only learn.", "gauge");
    page.line("role=\"voter\"", outlook.voters as u64);
    page.line("role=\"learner\"", outlook.learners as u64);
    let elections = outlook.elections;
    let help = "Elections that this node has seen since its start.";
    page.family("latchfs_cluster_elections_total", help, "counter");
    page.line("", elections.count);
    if let Some(last) = elections.last {
        let help = "How long ago the last election was that this node has seen.";
        page.family("latchfs_cluster_elected_seconds", help, "gauge");
        page.span("", last);
    }
    let label = |behind: &Behind| format!("node=\"{}\"", behind.id);
    // A family without a value is left out.
    let lags = outlook.behind.iter().filter_map(|one| Some((label(one), one.entries?)));
    let help = "Entries by which nodes are behind: all others where one leads, else this one.";
    for (at, (label, lag)) in lags.enumerate() {
        if at == 0 {
            page.family("latchfs_cluster_lag", help, "gauge");
        }
        page.line(&label, lag);
    }
    let heard = outlook.behind.iter().filter_map(|one| Some((label(one), one.heard?)));
    let help = "How long ago this leader has heard of each node.";
    for (at, (label, ago)) in heard.enumerate() {
        if at == 0 {
            page.family("latchfs_cluster_heard_seconds", help, "gauge");
        }
        page.span(&label, ago);
    }
}
