//! The endpoints at `/cluster`: cluster status, leadership transfer, and membership changes.
//!
//! The endpoints of administrative operations on all locks: `/reset`, `/grant-now` and `/backup`.

use crate::auth::permissions::Operation;
use crate::engine::{ClientId, EndHoldOff, LockName, Op, Outcome, Reset, ResetScope, StealReason};
use crate::server::http::bodies::options::{RequestOptions, request_id};
use crate::server::http::bodies::parameters::{
    ALL, CLIENT, FORCE, IDEMPOTENCY_KEY, KEEP, NODE_ID, OF, REASON, STATE, TO,
};
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::bodies::response::{Response, json, text};
use crate::server::http::bodies::schema::Schema;
use crate::server::http::handlers::grant_response;
use crate::server::http::handlers::grant_response::unexpected;
use crate::server::http::request_context::{Endpoint, RequestContext, doc, endpoint};
use crate::service::backend_status::{
    ClusterAdmin, ClusterChange, ClusterReport, MemberStatus, Unchanged,
};
use crate::service::{ActionTarget, RequestError, Retry, replay};
use crate::status::hold_off_of;
use crate::time::{Span, Wall};
use axum::http::{HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of pending requests in an answer.
const PENDING_MAX: usize = 1_000;

/// The endpoint `GET /cluster`, which shows the nodes and their state.
pub(in crate::server::http) const SHOW: &[Endpoint] = &[endpoint(
    Method::GET,
    Operation::ShowCluster,
    |call| Box::pin(get_cluster(call)),
    doc(
        "getCluster",
        "The nodes of the cluster and their status.",
        &[STATE],
        200,
        Schema::Cluster,
        &[400, 403, 409],
    ),
)];

/// The endpoint `GET /cluster/pending`, which shows the requests that this node has not answered.
pub(in crate::server::http) const PENDING: &[Endpoint] = &[endpoint(
    Method::GET,
    Operation::ShowPending,
    |call| Box::pin(pending(call)),
    doc(
        "listPendingRequests",
        "The requests that this node has not answered yet, in their order, 1,000 at most.",
        &[],
        200,
        Schema::Pending,
        &[400, 403, 409],
    ),
)];

/// The endpoint `POST /cluster/transfer`, which transfers leadership.
pub(in crate::server::http) const TRANSFER: &[Endpoint] = &[endpoint(
    Method::POST,
    Operation::TransferLeader,
    |call| Box::pin(transfer(call)),
    doc(
        "transferLeadership",
        "Let another node lead.",
        &[TO],
        200,
        Schema::Changed,
        &[400, 403, 409, 415, 503],
    ),
)];

/// The endpoint `DELETE /cluster/nodes/{node}`, which removes a node.
pub(in crate::server::http) const REMOVE: &[Endpoint] = &[endpoint(
    Method::DELETE,
    Operation::RemoveNode,
    |call| Box::pin(remove(call)),
    doc(
        "removeNode",
        "Remove a node from the cluster; it shuts down.",
        &[NODE_ID],
        200,
        Schema::Changed,
        &[400, 403, 409, 503],
    ),
)];

/// The endpoint `POST /cluster/nodes/{node}/promote`, which makes a learner a voter.
pub(in crate::server::http) const PROMOTE: &[Endpoint] = &[endpoint(
    Method::POST,
    Operation::PromoteNode,
    |call| Box::pin(promote(call)),
    doc(
        "promoteNode",
        "Promote a learner to a voter.",
        &[NODE_ID, FORCE],
        200,
        Schema::Changed,
        &[400, 403, 409, 415, 503],
    ),
)];

/// Handles `GET /cluster`: returns the nodes and their state.
async fn get_cluster(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let council = council(&call)?;
    let report = council.report(options.state).await?;
    let mut shown = shown(&report);
    if let Some(hold_off) = call.app.locks.hold_off() {
        let locks = &call.app.locks;
        shown["hold_off"] = hold_off_of(hold_off, locks.now(), |at| locks.wall(at));
    }
    Ok(json(StatusCode::OK, &shown))
}

/// Handles `GET /cluster/pending`.
async fn pending(mut call: RequestContext) -> HandlerResult {
    RequestOptions::read(&mut call).await?;
    let council = council(&call)?;
    let (own, pending) = (council.own(), council.pending(PENDING_MAX));
    let shown = (1..).zip(&pending).map(|(place, request): (u64, _)| {
        json!({
            "place": place,
            "stage": request.stage.as_str(),
            "command": request.command,
            "name": request.lock.as_ref().map(LockName::as_str),
            "client": request.client.as_ref().map(ClientId::as_str),
            "age_ms": request.age.as_millis(),
        })
    });
    let shown: Vec<_> = shown.collect();
    Ok(json(StatusCode::OK, &json!({ "asked": own.id, "leader": own.leader, "pending": shown })))
}

fn shown(report: &ClusterReport) -> Value {
    let nodes: Vec<_> = report.nodes.iter().map(shown_node).collect();
    json!({
        "cluster": report.cluster,
        "asked": report.asked,
        "leader": report.leader,
        "elections": report.elections.count,
        "elected_ms_ago": report.elections.last.map(Span::as_millis),
        "nodes": nodes,
    })
}

fn shown_node(node: &MemberStatus) -> Value {
    let member = &node.member;
    json!({
        "id": member.id,
        "name": &*member.name,
        "address": &*member.address,
        "url": &*member.url,
        "role": member.role().as_str(),
        "reachable": node.error.is_none(),
        "trouble": node.error,
        "term": member.term,
        "leader": member.leader,
        "last_log": member.last_log,
        "committed": member.committed,
        "applied": member.applied,
        "snapshot": member.snapshot,
        "heard_ms_ago": member.heard_ms,
        "lag": node.lag,
        "sync_median_us": member.syncing.map(|syncing| micros(syncing.median)),
        "sync_worst_us": member.syncing.map(|syncing| micros(syncing.worst)),
        "state": member.state.as_deref(),
    })
}

fn micros(span: Span) -> u64 {
    span.as_nanos() / 1_000
}

/// Handles `POST /cluster/transfer`: transfers leadership to another node.
async fn transfer(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    change(&call, ClusterChange::Transfer { to: options.to }).await
}

/// Handles `POST /cluster/nodes/{node}/promote`: makes a learner a voter.
async fn promote(mut call: RequestContext) -> HandlerResult {
    let id = id_of(&call)?;
    let options = RequestOptions::read(&mut call).await?;
    change(&call, ClusterChange::Promote { id, force: options.force }).await
}

/// Handles `DELETE /cluster/nodes/{node}`: removes a node.
async fn remove(mut call: RequestContext) -> HandlerResult {
    let id = id_of(&call)?;
    RequestOptions::read(&mut call).await?;
    if !call.app.release_on_node_removal {
        return change(&call, ClusterChange::Remove { id }).await;
    }
    let council = council(&call)?;
    let client = client_of(&*council, id).await;
    // A node that leaves can submit nothing once it is removed. The only voter can't be removed.
    let leaves = council.own().id == id;
    if leaves && council.outlook().voters > 1 {
        release_of(&call, &*council, id, client.as_ref()).await?;
    }
    let removed = change(&call, ClusterChange::Remove { id }).await?;
    if !leaves {
        release_of(&call, &*council, id, client.as_ref()).await?;
    }
    Ok(removed)
}

/// Returns the client that has the name of a node; `None` if there is no such node, if another node
/// has the same name, or if it can't be the name of a client.
async fn client_of(council: &dyn ClusterAdmin, id: u64) -> Option<ClientId> {
    let nodes = council.report(false).await.ok()?.nodes;
    let node = nodes.iter().find(|node| node.member.id == id)?;
    let is_only = nodes.iter().filter(|one| one.member.name == node.member.name).count() == 1;
    ClientId::parse(&node.member.name).ok().filter(|_| is_only)
}

/// Ends all holds and waits of a node's client and its users, as a reset does: the holders are
/// notified, and no client may use their locks for the steal grace.
async fn release_of(
    call: &RequestContext,
    council: &dyn ClusterAdmin,
    id: u64,
    client: Option<&ClientId>,
) -> HandlerResult<()> {
    let Some(client) = client else {
        log::warn!("no client has the name of node {id} alone, so its removal ends no holds");
        return Ok(());
    };
    let by = ClientId::parse(&council.own().name).unwrap_or_else(|_| client.clone());
    let reason = StealReason::parse(&format!("node {id}, {client}, has left the cluster"))
        .expect("a client id and a few words fit");
    let reset = Op::Reset(Reset::new(ResetScope::Of(client.clone()), by, reason));
    call.app.locks.submit(reset.into(), Retry::Never).outcome().await?;
    Ok(())
}

/// Returns the node id in the path of a request.
fn id_of(call: &RequestContext) -> HandlerResult<u64> {
    let part = call.head.uri.path().split('/').nth(3).unwrap_or_default();
    part.parse().map_err(|_| Problem::invalid("a node is a number, as GET /cluster shows it"))
}

/// Changes the cluster's leader or membership, and writes an entry to the audit log before and
/// after the change.
async fn change(call: &RequestContext, change: ClusterChange) -> HandlerResult {
    let council = council(call)?;
    audit(call, change, "begun").await;
    let changed = council.change(change).await;
    let Err(why) = changed.unwrap_or_else(|why| Err(Unchanged::Unavailable(why))) else {
        audit(call, change, "done").await;
        return Ok(json(StatusCode::OK, &json!({ "done": true })));
    };
    audit(call, change, &format!("not done: {why}")).await;
    Err(match why {
        Unchanged::Refused(why) => Problem::plain(StatusCode::CONFLICT, why),
        Unchanged::Unavailable(why) => RequestError::Unavailable(why).into(),
    })
}

async fn audit(call: &RequestContext, change: ClusterChange, outcome: &str) {
    let (operation, node) = match change {
        ClusterChange::Promote { id, .. } => (Operation::PromoteNode, Some(id)),
        ClusterChange::Remove { id } => (Operation::RemoveNode, Some(id)),
        ClusterChange::Transfer { to } => (Operation::TransferLeader, to),
    };
    let node = node.map(ActionTarget::Node);
    call.audited().acts(&call.app.locks, operation, node, outcome).await;
}

fn council(call: &RequestContext) -> HandlerResult<Arc<dyn ClusterAdmin>> {
    call.app.locks.cluster_admin().ok_or_else(|| {
        let why = "this server is no node of a cluster; start it with --data and --peer-listen";
        Problem::plain(StatusCode::CONFLICT, why)
    })
}

/// The endpoints at `/reset`.
pub(in crate::server::http) const RESET: &[Endpoint] = &[endpoint(
    Method::POST,
    Operation::Reset,
    |call| Box::pin(reset(call)),
    doc(
        "resetLocks",
        "Take from clients all that they hold and wait for: of `keep`, `of` and `all` one is said.",
        &[KEEP, OF, ALL, CLIENT, REASON, IDEMPOTENCY_KEY],
        200,
        Schema::Reset,
        &[400, 403, 415, 429, 503],
    ),
)];

/// The endpoints at `/backup`.
pub(in crate::server::http) const BACKUP: &[Endpoint] = &[endpoint(
    Method::GET,
    Operation::BackUp,
    |call| Box::pin(back_up(call)),
    doc(
        "getBackup",
        "All that the server knows, as `latchfs cluster restore` takes it.",
        &[],
        200,
        Schema::Text("application/octet-stream"),
        &[403, 404, 503],
    ),
)];

/// The endpoints at `/grant-now`.
pub(in crate::server::http) const GRANT_NOW: &[Endpoint] = &[endpoint(
    Method::POST,
    Operation::GrantNow,
    |call| Box::pin(grant_now(call)),
    doc(
        "endHoldOff",
        "Grant locks from now on, although the time is not over in which nothing is granted after \
         a start without state, a restore or a recovery.",
        &[CLIENT, REASON, IDEMPOTENCY_KEY],
        200,
        Schema::Changed,
        &[400, 403, 415, 503],
    ),
)];

/// Handles `POST /grant-now`, which ends the hold-off.
async fn grant_now(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let by = options.client(&call)?;
    let request = request_id(&call, &options, &by)?;
    let Some(reason) = options.reason else {
        let detail = "say by 'reason' why no client can rely on an old lease any more";
        return Err(Problem::invalid(detail));
    };
    match call.decide(Op::EndHoldOff(EndHoldOff { by, reason }), request).await?.first() {
        Outcome::HoldOffEnded => Ok(json(StatusCode::OK, &json!({ "done": true }))),
        other => Err(unexpected(&other)),
    }
}

/// Handles `POST /reset`, which ends all leases, queues and sessions.
async fn reset(mut call: RequestContext) -> HandlerResult {
    let mut options = RequestOptions::read(&mut call).await?;
    let by = options.client(&call)?;
    let request = request_id(&call, &options, &by)?;
    let Some(whose) = options.whose.take() else {
        let detail = "a reset needs exactly one of keep=CLIENT,CLIENT (all others), of=CLIENT \
            and all=true";
        return Err(Problem::invalid(detail));
    };
    let Some(reason) = options.reason else {
        return Err(Problem::invalid("a reset needs a reason, which the holders will read"));
    };
    let outcome = call.decide(Op::Reset(Reset::new(whose, by, reason)), request).await?;
    let is_replay = matches!(outcome, Outcome::Replayed(_));
    match outcome.first() {
        Outcome::Reset { holds, waits } => {
            let done = json!({ "holds": holds, "waits": waits });
            let answer = || json(StatusCode::OK, &done);
            Ok(if is_replay {
                grant_response::marked(StatusCode::OK, &done, None)
            } else {
                answer()
            })
        }
        other => Err(unexpected(&other)),
    }
}

/// Handles `GET /backup`, which returns a backup of the engine's state.
async fn back_up(mut call: RequestContext) -> HandlerResult<Response> {
    RequestOptions::read(&mut call).await?;
    let Some(state) = call.app.locks.state().await? else {
        let detail = "this server holds no lock state; send the request to the server that does";
        return Err(Problem::plain(StatusCode::NOT_FOUND, detail));
    };
    call.audited().acts(&call.app.locks, Operation::BackUp, None, "done").await;
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(text(StatusCode::OK, kind, replay::write(call.app.locks.engine_id(), Wall::now(), &state)))
}
