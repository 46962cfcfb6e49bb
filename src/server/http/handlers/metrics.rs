//! The endpoint `GET /metrics`: counters of the process, the engine, the HTTP server and the
//! cluster, in the `OpenMetrics` format or the Prometheus text format.
//!
//! The liveness and readiness probes, `/healthz` and `/readyz`.

use crate::engine::{HoldOff, RefusalKind};
use crate::metrics::{Exposition, MetricKind, MetricsPage};
use crate::server::http::app_state::{AppState, ShutdownPhase};
use crate::server::http::bodies::options::RequestOptions;
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::bodies::response::{Response, json, text};
use crate::server::http::request_context::{Endpoint, RequestContext};
use crate::service::backend_status::{Behind, Member, Outlook, Standing};
use crate::service::{LockService, RequestError};
use axum::http::header::{ACCEPT, VARY};
use axum::http::{HeaderValue, StatusCode};
use serde_json::json;
use std::sync::Arc;

/// Handles `GET /metrics`, which includes the request counts of all `endpoints`.
pub(in crate::server::http) async fn get_metrics(
    mut call: RequestContext,
    endpoints: impl Iterator<Item = (&'static str, &'static Endpoint)> + Send + 'static,
) -> HandlerResult {
    RequestOptions::read(&mut call).await?;
    let accepts = call.head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Exposition::accepted(&accepts.collect::<Vec<_>>().join(","));
    let app = Arc::clone(&call.app);
    let turn = Arc::clone(&app.metrics_turn).lock_owned().await;
    // Counting many locks takes milliseconds, in which this thread must serve other connections.
    let page = tokio::task::spawn_blocking(move || {
        // The thread keeps its turn also if the client is gone.
        let _turn = turn;
        page(&app, endpoints).text(format)
    });
    let page = page.await.map_err(|_| Problem::closing())?;
    let kind = HeaderValue::from_static(format.content_type());
    let mut response = text(StatusCode::OK, kind, page);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

fn page(
    app: &AppState,
    endpoints: impl Iterator<Item = (&'static str, &'static Endpoint)>,
) -> MetricsPage {
    let mut page = app.metrics.page();
    for (name, help, value) in [
        ("latchfs_http_connections", "Open HTTP connections.", app.peers.connections()),
        ("latchfs_http_waiting", "Requests that wait in a queue.", app.waiting.taken()),
    ] {
        page.gauge(name, help, value as u64);
    }
    let help = "When each certificate expires, in seconds since 1970.";
    page.family("latchfs_certificate_expiry_timestamp_seconds", help, MetricKind::Gauge);
    for (certificate, expires) in app.gate.expiries() {
        let label = vec![("certificate", certificate.to_owned())];
        page.sample(label, expires.unsigned_abs());
    }
    if let Some(council) = app.locks.cluster_admin() {
        of_node(&mut page, &council.own());
        of_nodes(&mut page, &council.outlook());
    }
    of_requests(&mut page, app, endpoints);
    for more in &*app.more_metrics.lock() {
        more(&mut page);
    }
    page
}

/// Writes the counts and durations of the requests to each endpoint that had any.
fn of_requests(
    page: &mut MetricsPage,
    app: &AppState,
    endpoints: impl Iterator<Item = (&'static str, &'static Endpoint)>,
) {
    let counts = endpoints.zip(app.requests.by_endpoint());
    let labels = |path: &str, endpoint: &Endpoint| {
        vec![("method", endpoint.method.to_string()), ("route", path.to_owned())]
    };
    let used: Vec<_> = counts
        .filter(|(_, counts)| counts.durations.count > 0)
        .map(|((path, endpoint), counts)| (labels(path, endpoint), counts))
        .collect();
    let help = "Requests, by route and code.";
    page.family("latchfs_http_requests_total", help, MetricKind::Counter);
    for (labels, counts) in &used {
        for (code, count) in counts.codes.iter().filter(|(_, count)| *count > 0) {
            let code = if *code == 0 { "other".to_owned() } else { code.to_string() };
            let code = [("code", code)];
            page.sample(labels.iter().cloned().chain(code).collect(), *count);
        }
    }
    let help = "Time from the head of a request to that of its answer, waits in queues included.";
    page.family("latchfs_http_request_duration_seconds", help, MetricKind::Histogram);
    for (labels, counts) in used {
        page.histogram(labels, &counts.durations);
    }
}

/// Writes the metrics of this node's Raft state.
fn of_node(page: &mut MetricsPage, own: &Member) {
    let leads = u64::from(own.role() == Standing::Leader);
    let votes = u64::from(!matches!(own.role(), Standing::Learner | Standing::Stranger));
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
        page.gauge(name, help, value);
    }
}

/// Writes the metrics of the cluster's nodes, as this node sees them.
fn of_nodes(page: &mut MetricsPage, outlook: &Outlook) {
    let help = "Nodes, by whether they vote or only learn.";
    page.family("latchfs_cluster_nodes", help, MetricKind::Gauge);
    page.sample(vec![("role", "voter".to_owned())], outlook.voters as u64);
    page.sample(vec![("role", "learner".to_owned())], outlook.learners as u64);
    let elections = outlook.elections;
    let help = "Elections that this node has seen since its start.";
    page.counter("latchfs_cluster_elections_total", help, elections.count);
    if let Some(last) = elections.last {
        let help = "How long ago the last election was that this node has seen.";
        page.family("latchfs_cluster_elected_seconds", help, MetricKind::Gauge);
        page.duration(Vec::new(), last.as_duration());
    }
    let help = "The cluster version: that of entries, snapshots and calls between nodes.";
    page.gauge("latchfs_cluster_version", help, u64::from(outlook.cluster_version));
    let label = |behind: &Behind| vec![("node", behind.id.to_string())];
    let help = "Entries by which nodes are behind: all others where one leads, else this one.";
    page.family("latchfs_cluster_lag", help, MetricKind::Gauge);
    for (behind, lag) in outlook.behind.iter().filter_map(|one| Some((one, one.entries?))) {
        page.sample(label(behind), lag);
    }
    let help = "Seconds since each node last answered this leader.";
    page.family("latchfs_cluster_heard_seconds", help, MetricKind::Gauge);
    for (behind, ago) in outlook.behind.iter().filter_map(|one| Some((one, one.heard?))) {
        page.duration(label(behind), ago.as_duration());
    }
}

/// Handles `GET /healthz`: always succeeds, because a process that responds is alive.
pub(in crate::server::http) fn alive() -> Response {
    json(StatusCode::OK, &json!({ "status": "alive" }))
}

/// Handles `GET /readyz`: succeeds if the server grants locks, and fails while it shuts down, while
/// the lock service is unavailable, for example without a leader, or during the hold-off.
pub(in crate::server::http) fn ready(call: &RequestContext) -> HandlerResult<Response> {
    match call.app.phase() {
        ShutdownPhase::Serving => {
            let locks = &call.app.locks;
            locks.grants().map_err(RequestError::Unavailable)?;
            if let Some(hold_off) = locks.hold_off() {
                return Err(held_off(&hold_off, locks));
            }
            Ok(json(StatusCode::OK, &json!({ "status": "ready" })))
        }
        ShutdownPhase::Draining | ShutdownPhase::Closing => Err(Problem::closing()),
    }
}

/// Returns the problem of a server that grants nothing yet.
fn held_off(hold_off: &HoldOff, locks: &Arc<dyn LockService>) -> Problem {
    let until = locks.wall(hold_off.until);
    let said = hold_off.sentence(until);
    let detail = format!(
        "{said}; requests that wait are queued, and POST /grant-now?reason=WHY ends that if no \
         client can rely on an old lease any more"
    );
    let problem = Problem::of(RefusalKind::ConsistencyUnavailable, detail);
    problem.not_before(hold_off, locks.now()).with("until", until.to_string())
}
