//! The endpoint `GET /metrics`: counters of the engine, the HTTP server and the cluster, in the
//! Prometheus text format.

use super::app_state::AppState;
use super::endpoint::Endpoint;
use super::options::RequestOptions;
use super::problem::HandlerResult;
use super::request_context::RequestContext;
use super::response::text;
use crate::metrics::MetricsPage;
use crate::service::cluster_status::{Behind, Member, Outlook, Standing};
use axum::http::{HeaderValue, StatusCode};

/// Handles `GET /metrics`, which includes the request counts of all `endpoints`.
pub(super) async fn show(
    mut call: RequestContext,
    endpoints: impl Iterator<Item = (&'static str, &'static Endpoint)>,
) -> HandlerResult {
    RequestOptions::read(&mut call).await?;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(text(StatusCode::OK, kind, page(&call.app, endpoints)))
}

fn page(
    app: &AppState,
    endpoints: impl Iterator<Item = (&'static str, &'static Endpoint)>,
) -> String {
    let mut page = MetricsPage::of(&app.locks);
    for (name, help, value) in [
        ("latchfs_http_connections", "Open connections.", app.peers.connections()),
        ("latchfs_http_waiting", "Requests that wait in a queue.", app.waiting.taken()),
    ] {
        page.family(name, help, "gauge");
        page.line("", value as u64);
    }
    if let Some(council) = app.locks.cluster_admin() {
        of_node(&mut page, &council.own());
        of_nodes(&mut page, &council.outlook());
    }
    page.family("latchfs_http_requests_total", "Requests, by route and code.", "counter");
    for ((path, endpoint), counts) in endpoints.zip(app.requests.by_endpoint()) {
        for (code, count) in counts {
            if count > 0 {
                let code = if code == 0 { "other".to_owned() } else { code.to_string() };
                let labels =
                    format!("method=\"{}\",route=\"{path}\",code=\"{code}\"", endpoint.method);
                page.line(&labels, count);
            }
        }
    }
    for more in &*app.more_metrics.lock() {
        more(&mut page);
    }
    page.text()
}

/// Writes the metrics of this node's Raft state.
fn of_node(page: &mut MetricsPage, own: &Member) {
    let leads = u64::from(own.standing == Standing::Leader);
    let votes = u64::from(!matches!(own.standing, Standing::Learner | Standing::Stranger));
    for (name, help, value) in [
        ("latchfs_cluster_term", "The term: it rises with each election.", own.term),
        ("latchfs_cluster_leads", "Whether this node leads.", leads),
        ("latchfs_cluster_votes", "Whether this node votes.", votes),
        (
            "latchfs_cluster_has_leader",
            "Whether the cluster has a leader.",
            own.leader.is_some().into(),
        ),
        ("latchfs_cluster_last_log", "The last entry of this node's log.", own.last_log),
        ("latchfs_cluster_applied", "Index of the last applied log entry.", own.applied),
    ] {
        page.family(name, help, "gauge");
        page.line("", value);
    }
}

/// Writes the metrics of the cluster's nodes, as this node sees them.
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
    let help = "The newest format of this node's log entries; an older latchfs may not read it.";
    page.family("latchfs_cluster_log_format", help, "gauge");
    page.line("", u64::from(outlook.log_format));
    let label = |behind: &Behind| format!("node=\"{}\"", behind.id);
    // Each metric family is written before its first sample, so a family without samples is left
    // out.
    let lags = outlook.behind.iter().filter_map(|one| Some((label(one), one.entries?)));
    let help = "Entries by which nodes are behind: all others where one leads, else this one.";
    for (at, (label, lag)) in lags.enumerate() {
        if at == 0 {
            page.family("latchfs_cluster_lag", help, "gauge");
        }
        page.line(&label, lag);
    }
    let heard = outlook.behind.iter().filter_map(|one| Some((label(one), one.heard?)));
    let help = "Seconds since each node last answered this leader.";
    for (at, (label, ago)) in heard.enumerate() {
        if at == 0 {
            page.family("latchfs_cluster_heard_seconds", help, "gauge");
        }
        page.span(&label, ago);
    }
}
