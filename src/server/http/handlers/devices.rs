//! The internal endpoints by which a machine joins the server by a code and renews its certificate,
//! and by which the server's user invites, lists and removes devices.
//!
//! `join` and `confirm` need no credentials. Their answers do not tell an invitation that was used,
//! revoked or never made from a wrong code.

use super::grant_response::serialized;
use crate::auth::Credential;
use crate::auth::permissions::Operation;
use crate::engine::{ClientId, RefusalKind};
use crate::home::invitations::{
    InvitationEnd, InvitationKind, InvitationStage, JoinConfirmation, JoinHello,
};
use crate::home::messages::{
    ALLOW, AWAIT, BODY_BYTES_MAX, CONFIRM, ConfirmRequest, ConfirmResponse, DEVICES, HomeRequest,
    INVITATIONS, INVITE, JOIN, JoinRequest, JoinResponse, REMOVE, RENEW, REVOKE,
};
use crate::server::http::app_state::{ShutdownPhase, entered};
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::bodies::response::json;
use crate::server::http::bodies::schema::Schema;
use crate::server::http::home::{CLOCK_CHECK, Home, JoinedMachine, refused_name};
use crate::server::http::request_context::{
    Endpoint, HandlerFuture, RequestContext, doc, endpoint,
};
use crate::service::ActionTarget;
use crate::time::{Span, Wall, boot_now};
use axum::http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::sleep;

/// Endpoints for the commands of latchfs itself; internal, so not in the `OpenAPI` document.
pub(in crate::server::http) static ENDPOINTS: &[(&str, Endpoint)] = &[
    (JOIN, post(Operation::Join, "joinByCode", |call| Box::pin(join(call)))),
    (CONFIRM, post(Operation::Join, "confirmJoin", |call| Box::pin(confirm(call)))),
    (RENEW, post(Operation::RenewDevice, "renewDevice", |call| Box::pin(renew(call)))),
    (INVITE, post(Operation::Invite, "inviteDevice", |call| Box::pin(invite(call)))),
    (INVITATIONS, post(Operation::Invite, "listInvitations", |call| Box::pin(list(call)))),
    (AWAIT, post(Operation::Invite, "awaitDevice", |call| Box::pin(wait(call)))),
    (ALLOW, post(Operation::Invite, "allowNode", |call| Box::pin(allow(call)))),
    (REVOKE, post(Operation::Invite, "revokeInvitation", |call| Box::pin(revoke(call)))),
    (DEVICES, post(Operation::ManageDevices, "listDevices", |call| Box::pin(show(call)))),
    (REMOVE, post(Operation::ManageDevices, "removeDevice", |call| Box::pin(remove(call)))),
];

type Run = fn(RequestContext) -> HandlerFuture;

const fn post(operation: Operation, id: &'static str, run: Run) -> Endpoint {
    let doc = doc(id, "For commands of latchfs.", &[], 200, Schema::Text("application/json"), &[]);
    endpoint(Method::POST, operation, run, doc)
}

fn home(call: &RequestContext) -> HandlerResult<&Arc<Home>> {
    call.app.home.as_ref().ok_or_else(|| {
        let why = "this server lets no machine join; start it with 'latchfs serve --home'";
        Problem::plain(StatusCode::NOT_FOUND, why)
    })
}

async fn body<T: DeserializeOwned>(call: &mut RequestContext) -> HandlerResult<T> {
    let (bytes, _memory) = call.bytes(BODY_BYTES_MAX).await?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Problem::invalid(format!("the body is not that of this request: {error}")))
}

/// Returns the value that the TLS connection exports.
fn exporter(call: &RequestContext) -> HandlerResult<&[u8]> {
    let exporter = call.caller.origin.exporter.as_ref();
    exporter
        .map(<[u8; _]>::as_slice)
        .ok_or_else(|| Problem::invalid("a machine joins over TLS 1.3; use 'latchfs join HOST'"))
}

fn wrong_code() -> Problem {
    Problem::of(
        RefusalKind::Denied,
        "the code is wrong, or it was used or revoked, or its 10 minutes are over; run 'latchfs \
         invite' at the server for another one",
    )
}

/// Records an act in the audit log. `name` is that of a machine.
async fn audit(
    call: &RequestContext,
    operation: Operation,
    name: Option<&str>,
    kind: InvitationKind,
) {
    let client = name.and_then(|name| ClientId::parse(name).ok());
    let target = client.as_ref().map(ActionTarget::Client);
    let outcome = match kind {
        InvitationKind::Device => "done",
        InvitationKind::Node => "done, as a node",
    };
    call.audited().acts(&call.app.locks, operation, target, outcome).await;
}

/// Answers the first message of a machine that joins.
async fn join(mut call: RequestContext) -> HandlerResult {
    home(&call)?;
    exporter(&call)?;
    let JoinRequest { slot, name, request, message } = body(&mut call).await?;
    let home = home(&call)?;
    let begun = home.begin(boot_now(), JoinHello { slot, name, request, message });
    let (attempt, message) = begun?;
    let answer = JoinResponse { attempt, message, ca: home.ca().to_owned() };
    Ok(serialized(StatusCode::OK, &answer))
}

/// Checks that a machine knows the code, and gives it its certificate, or the secrets of a node.
async fn confirm(mut call: RequestContext) -> HandlerResult {
    home(&call)?;
    let ConfirmRequest { slot, attempt, confirmation } = body(&mut call).await?;
    let (home, exporter) = (home(&call)?, exporter(&call)?);
    let (ca, confirmation) = (home.ca(), &*confirmation);
    let given = JoinConfirmation { slot, attempt, confirmation, ca, exporter };
    let confirmed = home.invitations.lock().confirm(boot_now(), &given);
    home.changed.send_replace(());
    let device = confirmed.map_err(|_| wrong_code())?;
    let home = Arc::clone(home);
    let registering = async move {
        let joined = home.register(slot, device.clone()).await?;
        audit(&call, Operation::Join, Some(&device.name), device.kind).await;
        let (name, confirmation) = (device.name, device.confirmation);
        let (certificate, servers, node) = match joined {
            JoinedMachine::Device(issued, urls) => (Some(issued.pem), urls, None),
            JoinedMachine::Node(secrets) => (None, Vec::new(), Some(secrets)),
        };
        let answer = ConfirmResponse { name, confirmation, certificate, servers, node };
        Ok(serialized(StatusCode::OK, &answer))
    };
    // A machine that has gone meanwhile leaves no invitation half used, and no act unrecorded.
    tokio::spawn(registering).await.unwrap_or_else(|_| Err(Problem::closing()))
}

/// Gives a device a new certificate for the one that it has shown.
async fn renew(mut call: RequestContext) -> HandlerResult {
    home(&call)?;
    let asked: HomeRequest = body(&mut call).await?;
    let certified = call.caller.origin.certified.as_ref();
    let serial = certified.and_then(|caller| caller.serial.as_ref());
    let (Credential::Certificate, Some(serial), Some(request)) =
        (call.grant.credential, serial, &asked.request)
    else {
        return Err(Problem::invalid("a device renews its certificate, by the one that it has"));
    };
    let name = &call.grant.name;
    let issued = home(&call)?.renew(name, serial, request).await?;
    audit(&call, Operation::RenewDevice, Some(name), InvitationKind::Device).await;
    Ok(json(StatusCode::OK, &json!({ "certificate": issued.pem })))
}

/// Opens an invitation.
async fn invite(mut call: RequestContext) -> HandlerResult {
    home(&call)?;
    let HomeRequest { name, kind, .. } = body(&mut call).await?;
    let home = home(&call)?;
    if let Some(name) = &name {
        home.check_name(name).map_err(|error| refused_name(&error))?;
    }
    let invited = home.invite(boot_now(), kind, name.clone()).ok_or_else(|| {
        let why = "there are as many invitations as there may be; wait, or revoke one by 'latchfs \
                   invite --revoke SLOT'";
        Problem::of(RefusalKind::Limit, why)
    })?;
    audit(&call, Operation::Invite, name.as_deref(), kind).await;
    Ok(serialized(StatusCode::OK, &invited))
}

/// Lists the invitations that nobody has used yet.
async fn list(mut call: RequestContext) -> HandlerResult {
    let HomeRequest { .. } = body(&mut call).await?;
    let open = home(&call)?.invitations.lock().open(boot_now());
    let shown = open.iter().map(|open| {
        let left_ms = open.left.as_millis();
        json!({ "slot": open.slot, "kind": open.kind, "name": open.name, "left_ms": left_ms })
    });
    Ok(json(StatusCode::OK, &json!({ "invitations": shown.collect::<Vec<_>>() })))
}

/// Waits until an invitation has ended, or a node asks to join.
async fn wait(mut call: RequestContext) -> HandlerResult {
    let asked: HomeRequest = body(&mut call).await?;
    let (home, slot, id) = (home(&call)?, slot_of(&asked)?, asked.id.unwrap_or_default());
    let (mut changed, mut phase) = (home.changed.subscribe(), call.app.follow_phase());
    loop {
        let left = match home.invitations.lock().state(boot_now(), slot, id) {
            Ok((_, InvitationStage::Asks(name))) => {
                return Ok(json(StatusCode::OK, &json!({ "end": "asks", "name": name })));
            }
            Ok((left, _)) => left.max(Span::from_millis(1)).as_duration(),
            Err(end) => return Ok(json(StatusCode::OK, &shown_end(&end))),
        };
        tokio::select! {
            _ = changed.changed() => {}
            () = sleep(left.min(CLOCK_CHECK)) => {}
            () = entered(&mut phase, ShutdownPhase::Draining) => return Err(Problem::closing()),
        }
    }
}

fn shown_end(end: &InvitationEnd) -> Value {
    match end {
        InvitationEnd::Joined(name) => json!({ "end": "joined", "name": name }),
        InvitationEnd::WrongCode => json!({ "end": "wrong-code" }),
        InvitationEnd::Expired => json!({ "end": "expired" }),
        InvitationEnd::Revoked => json!({ "end": "revoked" }),
    }
}

fn slot_of(asked: &HomeRequest) -> HandlerResult<u8> {
    asked.slot.ok_or_else(|| Problem::invalid("the request names no slot"))
}

/// Allows the machine that has used an invitation to become a node, or refuses it.
async fn allow(mut call: RequestContext) -> HandlerResult {
    let asked: HomeRequest = body(&mut call).await?;
    let (slot, id) = (slot_of(&asked)?, asked.id.unwrap_or_default());
    let home = home(&call)?;
    let was_asked = home.invitations.lock().allow(boot_now(), slot, id, asked.allow);
    home.changed.send_replace(());
    if !was_asked {
        let why = "no machine waits for that: the invitation has ended";
        return Err(Problem::plain(StatusCode::CONFLICT, why));
    }
    audit(&call, Operation::Invite, None, InvitationKind::Node).await;
    Ok(json(StatusCode::OK, &json!({ "slot": slot, "allowed": asked.allow })))
}

/// Revokes an invitation.
async fn revoke(mut call: RequestContext) -> HandlerResult {
    let asked: HomeRequest = body(&mut call).await?;
    let slot = slot_of(&asked)?;
    let home = home(&call)?;
    let was_open = home.invitations.lock().revoke(boot_now(), slot);
    home.changed.send_replace(());
    if !was_open {
        let why = format!("no invitation has the slot {slot}; 'latchfs invite --list' shows all");
        return Err(Problem::plain(StatusCode::NOT_FOUND, why));
    }
    audit(&call, Operation::Invite, None, InvitationKind::Device).await;
    Ok(json(StatusCode::OK, &json!({ "slot": slot, "revoked": true })))
}

/// Lists the devices that have joined.
async fn show(mut call: RequestContext) -> HandlerResult {
    let HomeRequest { .. } = body(&mut call).await?;
    let list = home(&call)?.devices();
    let day = |secs| Wall { secs, nanos: 0 }.to_string();
    let shown = list.devices().map(|(name, device)| {
        json!({
            "name": name,
            "serials": device.serials,
            "since": day(device.since),
            "until": day(device.until),
        })
    });
    Ok(json(StatusCode::OK, &json!({ "devices": shown.collect::<Vec<_>>() })))
}

/// Removes a device: its requests end, and it can make no others.
async fn remove(mut call: RequestContext) -> HandlerResult {
    let HomeRequest { name, .. } = body(&mut call).await?;
    let name = name.ok_or_else(|| Problem::invalid("the request names no device"))?;
    home(&call)?.remove(&name).await?;
    audit(&call, Operation::ManageDevices, Some(&name), InvitationKind::Device).await;
    Ok(json(StatusCode::OK, &json!({ "name": name, "removed": true })))
}
